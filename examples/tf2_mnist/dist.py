"""Train a small convolutional network on scikit-learn's handwritten digits: TensorFlow 2 with GradientTape."""

import argparse

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
import dl_comm.tensorflow as dl  # averages gradients over the ranks; without a launcher: one rank

print = dl.print  # only rank 0 prints


def load_data():
    digits = load_digits()
    images, labels = (digits.images / 16).astype("float32")[..., None], digits.target.astype("int64")
    order = np.random.RandomState(0).permutation(len(images))
    train, test = order[:1536], order[1536:]
    return (images[train], labels[train]), (images[test], labels[test])


def build_model(dropout):
    return tf.keras.Sequential(
        [
            tf.keras.Input((8, 8, 1)),
            tf.keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
            tf.keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            tf.keras.layers.MaxPooling2D(),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dropout(dropout),
            tf.keras.layers.Dense(64, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )


def main():
    parser = argparse.ArgumentParser(description="handwritten digits, TensorFlow 2 with GradientTape")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--dropout", type=float, default=0.25)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--save", default="digits.weights.h5")
    args = parser.parse_args()

    tf.keras.utils.set_random_seed(args.seed)
    (x_train, y_train), (x_test, y_test) = load_data()
    train_ds = tf.data.Dataset.from_tensor_slices((x_train, y_train)).shuffle(len(x_train)).batch(args.batch_size)
    test_ds = tf.data.Dataset.from_tensor_slices((x_test, y_test)).batch(256)

    model = build_model(args.dropout)
    optimizer = tf.keras.optimizers.SGD(learning_rate=dl.lr_scale(args.lr), momentum=0.9)
    loss_object = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    train_loss = tf.keras.metrics.Mean(name="train_loss")
    test_loss = tf.keras.metrics.Mean(name="test_loss")
    test_accuracy = tf.keras.metrics.SparseCategoricalAccuracy(name="test_accuracy")

    @tf.function
    def train_step(images, labels):
        with tf.GradientTape() as tape:
            predictions = model(images, training=True)
            loss = loss_object(labels, predictions)
        gradients = dl.gradients(tape.gradient(loss, model.trainable_variables))
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        train_loss(loss)

    @tf.function
    def test_step(images, labels):
        predictions = model(images, training=False)
        test_loss(loss_object(labels, predictions))
        test_accuracy(labels, predictions)

    dl.broadcast_variables(model, optimizer)  # every rank starts from rank 0's state
    dl.reseed()  # from here on each rank draws random numbers of its own
    for epoch in range(1, args.epochs + 1):
        for metric in (train_loss, test_loss, test_accuracy):
            metric.reset_state()
        for images, labels in dl.shard(train_ds):
            train_step(images, labels)
        dl.total(train_loss)  # sums over all ranks' samples
        for images, labels in dl.shard(test_ds, whole="batches"):
            test_step(images, labels)
        dl.total(test_loss, test_accuracy)  # sums over all ranks' samples
        print(
            f"epoch {epoch}: training loss {float(train_loss.result()):.6f}, "
            f"test loss {float(test_loss.result()):.6f}, accuracy {float(test_accuracy.result()):.4f}"
        )
    dl.rank0(model.save_weights)(args.save)


if __name__ == "__main__":
    dl.init()  # join the other ranks; this rank's GPU becomes the visible one
    main()
    dl.finalize()  # leave together
