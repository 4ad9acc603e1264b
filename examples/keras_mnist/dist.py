"""Train a small convolutional network on scikit-learn's handwritten digits with Keras (2 or 3)."""

import argparse

import keras
import numpy as np
from sklearn.datasets import load_digits
import dl_comm.keras as dl  # averages gradients over the ranks; without a launcher: one rank

print = dl.print  # only rank 0 prints


def load_data():
    digits = load_digits()
    images, labels = (digits.images / 16).astype("float32")[..., None], digits.target
    order = np.random.RandomState(0).permutation(len(images))
    train, test = order[:1536], order[1536:]
    return (images[train], labels[train]), (images[test], labels[test])


def build_model(dropout):
    return keras.Sequential(
        [
            keras.layers.Input((8, 8, 1)),
            keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dropout(dropout),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )


def main():
    parser = argparse.ArgumentParser(description="handwritten digits, Keras")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--dropout", type=float, default=0.25)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--save", default="digits.keras")
    args = parser.parse_args()

    keras.utils.set_random_seed(args.seed)
    (x_train, y_train), (x_test, y_test) = load_data()

    model = build_model(args.dropout)
    model.compile(
        optimizer=keras.optimizers.SGD(learning_rate=dl.lr_scale(args.lr), momentum=0.9),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    dl.distribute(model)  # average gradients and metrics, start alike, share the samples
    callbacks = [keras.callbacks.ModelCheckpoint(args.save, monitor="val_accuracy", save_best_only=True)]
    model.fit(
        x_train,
        y_train,
        batch_size=args.batch_size,
        epochs=args.epochs,
        validation_data=(x_test, y_test),
        callbacks=callbacks,
        verbose=2,
    )
    loss, accuracy = model.evaluate(x_test, y_test, verbose=0)
    print(f"test loss {loss:.6f}, accuracy {accuracy:.4f}")


if __name__ == "__main__":
    dl.init()  # join the other ranks; this rank's GPU becomes the visible one
    main()
    dl.finalize()  # leave together
