"""Makes a SavedModel of what train.py has written: the graph without training, and the weights. It needs no ddl."""

import argparse
from pathlib import Path

import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="train.py's --out")
    parser.add_argument("served", type=Path, help="the folder to make, for TensorFlow Serving or tf.saved_model.load")
    args = parser.parse_args()

    with tf.Session() as session:
        saver = tf.train.import_meta_graph(str(args.folder / "base.meta"))
        saver.restore(session, str(args.folder / "weights"))
        given, found = (session.graph.get_tensor_by_name(name) for name in ("pixels:0", "digit:0"))
        signature = tf.saved_model.signature_def_utils.predict_signature_def({"pixels": given}, {"digit": found})
        builder = tf.saved_model.builder.SavedModelBuilder(str(args.served))
        builder.add_meta_graph_and_variables(session, ["serve"], {"serving_default": signature})
        builder.save()


if __name__ == "__main__":
    main()
