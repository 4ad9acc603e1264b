"""Digits in a graph of TensorFlow 1, made distributed by ``import ddl``, and kept so that the model can be served.

The graph is written before the optimizer is made, so it holds none of the operators that train it. Rank 0 writes it,
and the weights at the end; export.py makes of both what a server loads.
"""

import argparse
from pathlib import Path

import numpy as np
import tensorflow.compat.v1 as tf
from sklearn.datasets import load_digits

tf.disable_v2_behavior()

import ddl  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=48, help="of all ranks together")
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--out", type=Path, default=Path("digits"))
    args = parser.parse_args()

    x = tf.placeholder(tf.float32, [None, 64], name="pixels")
    hidden = tf.get_variable("hidden/kernel", [64, 32], initializer=tf.glorot_uniform_initializer())
    outer = tf.get_variable("outer/kernel", [32, 10], initializer=tf.glorot_uniform_initializer())
    logits = tf.matmul(tf.nn.relu(tf.matmul(x, hidden)), outer)
    tf.argmax(logits, 1, name="digit")
    saver = tf.train.Saver()
    if ddl.rank() == 0:
        args.out.mkdir(exist_ok=True)
        tf.train.export_meta_graph(str(args.out / "base.meta"), saver_def=saver.as_saver_def())

    y = tf.placeholder(tf.int64, [None])
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
    train = tf.train.AdamOptimizer(args.lr).minimize(loss)
    images, digits = load_digits(return_X_y=True)
    images = images.astype("f4") / 16
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for epoch in range(args.epochs):
            order = np.random.RandomState(epoch).permutation(len(images))
            for begin in range(0, len(images) - args.batch_size + 1, args.batch_size):
                own = order[begin : begin + args.batch_size][ddl.rank() :: ddl.size()]
                session.run(train, {x: images[own], y: digits[own]})
            if ddl.rank() == 0:
                found = session.run("digit:0", {x: images})
                print(f"epoch {epoch} accuracy {np.mean(found == digits):.4f}", flush=True)
        if ddl.rank() == 0:
            saver.save(session, str(args.out / "weights"))


if __name__ == "__main__":
    main()
