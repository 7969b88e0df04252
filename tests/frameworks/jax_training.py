"""JAX, unmodified, on the card of this process: small training steps compared with JAX's own CPU backend.

    python3 jax_training.py [PART…]

Prints a line for each part. With UNHANG_MIOPEN_WRONG=1 every part that asks MIOpen for a convolution has to be wrong. The last line says how
many parts are as they should be.
"""

import os
import sys

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.numpy as jnp
import numpy
from jax import lax
from jax.experimental import rnn

NUMBERS = numpy.random.default_rng(7)
#: How far a number may be from the CPU's, relative to the largest.
TOLERANCE = 1e-4


def random(*shape):
    """Numbers of the size that keeps a layer's results near one."""
    return (NUMBERS.standard_normal(shape) / max(1.0, numpy.prod(shape[1:])) ** 0.5).astype("float32")


def convolution(x, filters, stride=1, axes="HW", groups=1):
    names = (f"NC{axes}", f"OI{axes}", f"NC{axes}")
    strides = (stride,) * len(axes)
    precise = lax.Precision.HIGHEST
    return lax.conv_general_dilated(
        x, filters, strides, "SAME", dimension_numbers=names, feature_group_count=groups, precision=precise
    )


def normalization(x, scale, bias):
    """By the batch's own statistics, as in training."""
    mean = x.mean((0, 2, 3), keepdims=True)
    variance = ((x - mean) ** 2).mean((0, 2, 3), keepdims=True)
    return (x - mean) / jnp.sqrt(variance + 1e-3) * scale[None, :, None, None] + bias[None, :, None, None]


def network(weights, images):
    x = normalization(convolution(images, weights["first"]), weights["scale"], weights["bias"])
    x = lax.reduce_window(jax.nn.relu(x), -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
    x = jax.nn.relu(convolution(x, weights["depthwise"], groups=x.shape[1]))
    x = jax.nn.relu(convolution(x, weights["second"], stride=2)).mean((2, 3))
    return jnp.matmul(x, weights["last"], precision=lax.Precision.HIGHEST)


def trained(weights, images, labels):
    """Weights after two steps, and the losses."""

    def loss(weights):
        return -jnp.take_along_axis(jax.nn.log_softmax(network(weights, images)), labels[:, None], 1).mean()

    losses = []
    for _ in range(2):
        value, gradients = jax.value_and_grad(loss)(weights)
        weights = jax.tree.map(lambda weight, gradient: weight - 0.1 * gradient, weights, gradients)
        losses.append(value)
    return weights, losses


def cnn():
    weights = {
        "first": random(8, 3, 3, 3),
        "scale": numpy.ones(8, "float32"),
        "bias": numpy.zeros(8, "float32"),
        "depthwise": random(8, 1, 3, 3),
        "second": random(8, 8, 3, 3),
        "last": random(8, 4),
    }
    return trained, trained, (weights, random(2, 3, 8, 8), numpy.array([1, 3]))


def volume():
    def gradients(x, filters):
        return jax.value_and_grad(lambda x, w: (convolution(x, w, axes="DHW") ** 2).sum(), argnums=(0, 1))(x, filters)

    return gradients, gradients, (random(1, 3, 4, 5, 5), random(4, 3, 3, 3, 3))


def half():
    def product(x, filters):
        return convolution(x, filters)

    return product, product, (random(1, 8, 6, 6).astype("float16"), random(8, 8, 3, 3).astype("float16"))


def lstm():
    """By MIOpen on the card; by JAX's own definition on the CPU, which has MIOpen's last two gates the other way round."""
    sizes = (4, 5, 1)
    # One sequence: of several JAX 0.10.2 has MIOpen read the first steps of all where the first sequence is.
    x, h, c = random(1, 3, 4), random(1, 1, 5), random(1, 1, 5)
    weights = random(rnn.get_num_params_in_lstm(*sizes, False))
    lengths = numpy.full(1, 3, "int32")

    def by_miopen(x, h, c, weights):
        return rnn.lstm(x, h, c, weights, lengths, *sizes, 0.0, False)

    def defined(x, h, c, weights):
        unpacked = rnn.unpack_lstm_weights(rnn.swap_lstm_gates(weights, *sizes, False), *sizes, False)
        return rnn.lstm_ref(x, h, c, *unpacked, lengths, *sizes, 0.0, False)

    def gradient_of(layer):
        return lambda x, *others: jax.value_and_grad(lambda x: (layer(x, *others)[0] ** 2).sum())(x)

    return gradient_of(by_miopen), gradient_of(defined), (x, h, c, weights)


#: Parts, each made as what the card computes, what the CPU does, and arguments. With each is what it is called, and
#: whether MIOpen computes convolutions in it.
PARTS = {
    "cnn": (cnn, "a CNN with batch norm, pooling and a depthwise layer, two steps", True),
    "volume": (volume, "3-d convolution and its gradients", True),
    "half": (half, "convolution in half precision", True),
    "lstm": (lstm, "an LSTM of MIOpen's and its gradient", False),
}


def error_of(found, right):
    """The largest error of all arrays, each relative to its largest number."""
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(right), strict=True)
    both = [(numpy.asarray(a).astype("f8"), numpy.asarray(b).astype("f8")) for a, b in pairs]
    # numpy's maximum of a list with NaN is NaN; Python's is not.
    return float(numpy.max([numpy.abs(a - b).max() / max(numpy.abs(b).max(), 1e-30) for a, b in both]))


def main() -> int:
    card, cpu = jax.devices()[0], jax.devices("cpu")[0]
    if card.platform == "cpu":
        print("failed: JAX sees no card", flush=True)
        return 1
    print(f"JAX {jax.__version__} on {card.device_kind}", flush=True)
    wanted, is_wrong = sys.argv[1:] or list(PARTS), os.environ.get("UNHANG_MIOPEN_WRONG") == "1"
    good = 0
    for name in wanted:
        make, words, by_miopen = PARTS[name]
        function, definition, arguments = make()
        right = on(cpu, definition, arguments)
        try:
            error = error_of(on(card, function, arguments), right)
        except Exception as failed:  # XLA's own kinds are many
            print(f"failed: {words}: {type(failed).__name__} {str(failed)[:300]}", flush=True)
            continue
        is_right = error <= (2e-3 if name == "half" else TOLERANCE)
        good += is_right != (is_wrong and by_miopen)
        print(f"{'right' if is_right else 'wrong'}: {words}, off by {error:.1e} of the largest", flush=True)
    print(f"{good} of {len(wanted)} parts are as they should be", flush=True)
    return 0 if good == len(wanted) else 1


def on(device, function, arguments):
    """What a function computes on a device, brought to the host."""
    with jax.default_device(device):
        return jax.device_get(jax.jit(function)(*jax.device_put(arguments, device)))


if __name__ == "__main__":
    sys.exit(main())
