"""TensorFlow with Keras, unmodified, on the card of this process: small training steps compared with TensorFlow's own CPU kernels.

    python3.11 tensorflow_training.py [PART…]

Prints a line for each part. With UNHANG_MIOPEN_WRONG=1 every part that asks MIOpen for a convolution has to be wrong. The last line says how
many parts are as they should be.
"""

import os
import sys

import numpy

# TensorFlow 2.13 imports distutils, which Debian's Python 3.11 has in a separate package; setuptools brings one.
import setuptools  # noqa: F401
import tensorflow as tf
from tensorflow import keras

#: How far a number may be from the CPU's, relative to the largest.
TOLERANCE = 1e-4
layers = keras.layers


def network():
    """A CNN with batch norm, both poolings, depthwise and transposed layers."""
    return [
        layers.Conv2D(8, 3, padding="same", use_bias=False),
        layers.BatchNormalization(),
        layers.ReLU(),
        layers.MaxPooling2D(2),
        layers.DepthwiseConv2D(3, padding="same", activation="relu"),
        layers.Conv2D(8, 3, strides=2, padding="same", activation="relu"),
        layers.Conv2DTranspose(4, 3, strides=2, padding="same", activation="relu"),
        layers.AveragePooling2D(2),
        layers.Flatten(),
        layers.Dense(4),
    ]


def sequence():
    return [layers.LSTM(6), layers.Dense(4)]


def volume():
    return [layers.Conv3D(4, 3, padding="same", activation="relu"), layers.Flatten(), layers.Dense(4)]


#: Parts: their layers, what they are called, the shape of their inputs, and whether MIOpen computes convolutions in them.
PARTS = {
    "cnn": (network, "a CNN with batch norm, pooling, depthwise and transposed layers, two steps", (2, 8, 8, 3), True),
    "volume": (volume, "a 3-d convolution, two steps", (1, 4, 5, 5, 3), True),
    "lstm": (sequence, "an LSTM, two steps", (2, 3, 5), False),
}


def trained(device: str, make, shape: tuple[int, ...], start: list | None) -> tuple[list, list]:
    """The weights before and after two steps on a device; with the losses behind these."""
    keras.utils.set_random_seed(7)
    numbers = numpy.random.default_rng(7)
    inputs = numbers.standard_normal(shape).astype("float32")
    labels = numbers.integers(0, 4, shape[0])
    with tf.device(device):
        model = keras.Sequential([keras.Input(shape[1:]), *make()])
        if start:
            model.set_weights(start)
        begun = model.get_weights()
        optimizer = keras.optimizers.SGD(0.1)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        losses = []
        for _ in range(2):
            with tf.GradientTape() as tape:
                value = loss(labels, model(inputs, training=True))
            gradients = tape.gradient(value, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            losses.append(value.numpy())
        predicted = model(inputs, training=False).numpy()
        return begun, [*model.get_weights(), *losses, predicted]


def error_of(found: list, right: list) -> float:
    """The largest error of all arrays, each relative to its largest number."""
    pairs = [(numpy.asarray(a, "f8"), numpy.asarray(b, "f8")) for a, b in zip(found, right, strict=True)]
    # numpy's maximum of a list with NaN is NaN; Python's is not.
    return float(numpy.max([numpy.abs(a - b).max() / max(numpy.abs(b).max(), 1e-30) for a, b in pairs]))


def main() -> int:
    cards = tf.config.list_physical_devices("GPU")
    if not cards:
        print("failed: TensorFlow sees no card", flush=True)
        return 1
    tf.config.experimental.set_memory_growth(cards[0], True)
    # A kernel that the card's side does not have is an error, and not computed by the CPU in silence.
    tf.config.set_soft_device_placement(False)
    print(f"TensorFlow {tf.__version__} on {cards[0].name}", flush=True)
    wanted, is_wrong = sys.argv[1:] or list(PARTS), os.environ.get("UNHANG_MIOPEN_WRONG") == "1"
    good = 0
    for name in wanted:
        make, words, shape, by_miopen = PARTS[name]
        start, right = trained("/CPU:0", make, shape, None)
        try:
            error = error_of(trained("/GPU:0", make, shape, start)[1], right)
        except Exception as failed:  # TensorFlow's own kinds are many
            print(f"failed: {words}: {type(failed).__name__} {str(failed)[:300]}", flush=True)
            continue
        is_right = error <= TOLERANCE
        good += is_right != (is_wrong and by_miopen)
        print(f"{'right' if is_right else 'wrong'}: {words}, off by {error:.1e} of the largest", flush=True)
    print(f"{good} of {len(wanted)} parts are as they should be", flush=True)
    return 0 if good == len(wanted) else 1


if __name__ == "__main__":
    sys.exit(main())
