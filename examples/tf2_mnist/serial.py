"""Train a small convolutional network on scikit-learn's handwritten digits with a GradientTape loop."""

import argparse

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits


def load_data():
    digits = load_digits()
    images, labels = (digits.images / 16).astype("float32")[..., None], digits.target.astype("int64")
    order = np.random.RandomState(0).permutation(len(images))
    train, test = order[:1536], order[1536:]
    return (images[train], labels[train]), (images[test], labels[test])


def main():
    parser = argparse.ArgumentParser(description="handwritten digits, TensorFlow 2")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--lr", type=float, default=0.001)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--save", default="digits.weights.h5")
    args = parser.parse_args()

    tf.random.set_seed(args.seed)
    (x_train, y_train), (x_test, y_test) = load_data()
    dataset = tf.data.Dataset.from_tensor_slices((x_train, y_train)).shuffle(len(x_train)).batch(args.batch_size)

    model = tf.keras.Sequential(
        [
            tf.keras.layers.InputLayer((8, 8, 1)),
            tf.keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
            tf.keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            tf.keras.layers.MaxPooling2D(),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(64, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )
    loss_fn = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = tf.keras.optimizers.Adam(args.lr)

    @tf.function
    def train_step(images, labels):
        with tf.GradientTape() as tape:
            loss = loss_fn(labels, model(images, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    for epoch in range(1, args.epochs + 1):
        for images, labels in dataset:
            loss = train_step(images, labels)
        predicted = tf.argmax(model(x_test), axis=1)
        accuracy = tf.reduce_mean(tf.cast(predicted == y_test, tf.float32))
        print(f"epoch {epoch}: loss {float(loss):.4f}, test accuracy {float(accuracy):.4f}")
    model.save_weights(args.save)


if __name__ == "__main__":
    main()
