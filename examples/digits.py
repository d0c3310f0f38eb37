"""Handwritten digits, 1,797 real images: plain Keras, and one line of keras_tricks."""

import argparse

import keras
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import keras_tricks as kt


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run-dir", default="run", help="where events and checkpoints go")
    run_dir = parser.parse_args().run_dir

    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8, 1).astype("float32") / 16
    x, x_val, y, y_val = train_test_split(images, labels, test_size=0.2, random_state=0)

    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(64, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.25),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    optimizer = keras.optimizers.Adam(0.01)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])

    # 1,437 and 360 examples: the last batch is ragged in training and in validation. The net
    # overfits before the end: the best checkpoint is not the last one.
    callbacks = kt.recommended(run_dir, (x_val, y_val))
    model.fit(x, y, batch_size=64, epochs=20, verbose=2, callbacks=callbacks)


if __name__ == "__main__":
    main()
