"""The kernels that ``tools/triton/compile.py`` compiles for gfx1010. Only ``matmul`` multiplies matrices."""

import triton
import triton.language as tl


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    """out[i] = x[i] + y[i]"""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    tl.store(out + i, tl.load(x + i, inside) + tl.load(y + i, inside), inside)


@triton.jit
def total(x, out, n, BLOCK: tl.constexpr):
    """out[0] += the sum of x"""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out, tl.sum(tl.load(x + i, i < n, other=0.0)))


@triton.jit
def softmax(x, out, columns, BLOCK: tl.constexpr):
    """The softmax of each row."""
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    inside = i < columns
    values = tl.load(x + row * columns + i, inside, other=-float("inf"))
    powers = tl.exp(values - tl.max(values))
    tl.store(out + row * columns + i, powers / tl.sum(powers), inside)


@triton.jit
def layer_norm(x, weight, bias, out, columns, epsilon, BLOCK: tl.constexpr):
    """Each row minus its mean, divided by its deviation."""
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    inside = i < columns
    values = tl.load(x + row * columns + i, inside, other=0.0)
    mean = tl.sum(values) / columns
    centred = tl.where(inside, values - mean, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(centred * centred) / columns + epsilon)
    result = centred * scale * tl.load(weight + i, inside) + tl.load(bias + i, inside)
    tl.store(out + row * columns + i, result, inside)


@triton.jit
def attention(q, k, v, out, keys, scale, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """One query per program, with the running softmax of flash attention and sums in place of tl.dot."""
    row = tl.program_id(0)
    lanes = tl.arange(0, WIDTH)
    query = tl.load(q + row * WIDTH + lanes) * scale
    highest = -float("inf")
    divisor = 0.0
    result = tl.zeros([WIDTH], tl.float32)
    for start in range(0, keys, BLOCK):
        i = start + tl.arange(0, BLOCK)
        inside = i < keys
        at = i[:, None] * WIDTH + lanes[None, :]
        scores = tl.sum(tl.load(k + at, inside[:, None], other=0.0) * query[None, :], 1)
        scores = tl.where(inside, scores, -float("inf"))
        new_highest = tl.maximum(highest, tl.max(scores))
        factor = tl.exp(highest - new_highest)
        powers = tl.exp(scores - new_highest)
        divisor = divisor * factor + tl.sum(powers)
        values = tl.load(v + at, inside[:, None], other=0.0)
        result = result * factor + tl.sum(powers[:, None] * values, 0)
        highest = new_highest
    tl.store(out + row * WIDTH + lanes, result / divisor)


@triton.jit
def matmul(a, b, out, BLOCK: tl.constexpr):
    """One tile by tl.dot."""
    i = tl.arange(0, BLOCK)
    at = i[:, None] * BLOCK + i[None, :]
    tl.store(out + at, tl.dot(tl.load(a + at), tl.load(b + at)))
