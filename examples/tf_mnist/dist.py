"""Train a small convolutional network on scikit-learn's handwritten digits, in the style of TensorFlow 1: an Estimator.

Estimators are in TensorFlow up to 2.15.
"""

import argparse

import numpy as np
import tensorflow.compat.v1 as tf
from sklearn.datasets import load_digits
import dl_comm.tensorflow as dl  # averages gradients over the ranks; without a launcher: one rank

print = dl.print  # only rank 0 prints


def load_data():
    digits = load_digits()
    images, labels = (digits.images / 16).astype("float32")[..., None], digits.target.astype("int32")
    order = np.random.RandomState(0).permutation(len(images))
    train, test = order[:1536], order[1536:]
    return (images[train], labels[train]), (images[test], labels[test])


def conv(inputs, filters, name):
    with tf.variable_scope(name):
        kernel = tf.get_variable("kernel", [3, 3, inputs.shape[-1], filters])
        bias = tf.get_variable("bias", [filters], initializer=tf.zeros_initializer())
        return tf.nn.relu(tf.nn.conv2d(inputs, kernel, padding="SAME") + bias)


def dense(inputs, units, name):
    with tf.variable_scope(name):
        kernel = tf.get_variable("kernel", [inputs.shape[-1], units])
        bias = tf.get_variable("bias", [units], initializer=tf.zeros_initializer())
        return tf.matmul(inputs, kernel) + bias


def model_fn(features, labels, mode, params):
    net = conv(features, 16, "conv1")
    net = conv(net, 32, "conv2")
    net = tf.nn.max_pool2d(net, 2, 2, "VALID")
    net = tf.reshape(net, [-1, 4 * 4 * 32])
    if mode == tf.estimator.ModeKeys.TRAIN:
        net = tf.nn.dropout(net, rate=params["dropout"])
    net = tf.nn.relu(dense(net, 64, "dense1"))
    logits = dense(net, 10, "logits")
    predictions = {"classes": tf.argmax(logits, 1), "probabilities": tf.nn.softmax(logits)}
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions=predictions)

    loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
    if mode == tf.estimator.ModeKeys.EVAL:
        metrics = {"accuracy": tf.metrics.accuracy(labels, predictions["classes"])}
        return tf.estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)

    optimizer = tf.train.MomentumOptimizer(learning_rate=dl.lr_scale(params["lr"]), momentum=0.9)
    optimizer = dl.DistributedOptimizer(optimizer)  # averages the gradients that it computes
    train_op = optimizer.minimize(loss, global_step=tf.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def main():
    parser = argparse.ArgumentParser(description="handwritten digits, an Estimator of TensorFlow 1")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=288, help="training steps; 24 are one pass over the data")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--dropout", type=float, default=0.25)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model-dir", default="digits")
    args = parser.parse_args()

    tf.logging.set_verbosity(tf.logging.ERROR)
    (x_train, y_train), (x_test, y_test) = load_data()

    def train_input_fn():
        dataset = tf.data.Dataset.from_tensor_slices((x_train, y_train))
        return dl.shard(dataset.shuffle(len(x_train), seed=args.seed).repeat().batch(args.batch_size))

    def eval_input_fn():
        return tf.data.Dataset.from_tensor_slices((x_test, y_test)).batch(256)

    config = tf.estimator.RunConfig(tf_random_seed=args.seed, save_summary_steps=dl.steps(100))
    estimator = tf.estimator.Estimator(
        model_fn, model_dir=dl.model_dir(args.model_dir), config=config, params={"lr": args.lr, "dropout": args.dropout}
    )
    estimator.train(train_input_fn, steps=dl.steps(args.steps), hooks=[dl.BroadcastHook()])
    result = estimator.evaluate(eval_input_fn)
    print(f"test loss {result['loss']:.6f}, accuracy {result['accuracy']:.4f}")


if __name__ == "__main__":
    dl.init()  # join the other ranks; this rank's GPU becomes the visible one
    main()
    dl.finalize()  # leave together
