"""The kernels that ``tools/triton/compile.py`` compiles for gfx1010: none of them multiplies matrices but ``matmul``."""

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
    """Each row less its mean, over its deviation."""
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
    """One query a program, with the running softmax of flash attention and sums in place of tl.dot."""
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


@triton.jit
def poi_fused_add_relu(in_ptr0, in_ptr1, out_ptr0, xnumel, XBLOCK: tl.constexpr):
    """Pointwise, as inductor writes it: a bias for each channel of 50 elements, of 7 channels, then relu."""
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = xindex < xnumel
    x2 = xindex
    x1 = (xindex // 50) % 7
    tmp0 = tl.load(in_ptr0 + (x2), xmask)
    tmp1 = tl.load(in_ptr1 + (x1), xmask, eviction_policy="evict_last")
    tmp2 = tmp0 + tmp1
    tmp3 = tl.full([1], 0, tl.int32)
    tmp4 = tl.maximum(tmp3, tmp2)
    tl.store(out_ptr0 + (x2), tmp4, xmask)


@triton.jit
def per_fused_softmax(in_ptr0, out_ptr2, xnumel, r0_numel, XBLOCK: tl.constexpr, R0_BLOCK: tl.constexpr):
    """A persistent reduction, as inductor writes it: several rows a program, each at once."""
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_index = tl.arange(0, R0_BLOCK)[None, :]
    r0_mask = r0_index < r0_numel
    tmp0 = tl.load(in_ptr0 + (r0_index + r0_numel * xindex), r0_mask & xmask, other=0.0)
    tmp1 = tl.broadcast_to(tmp0, [XBLOCK, R0_BLOCK])
    tmp3 = tl.where(r0_mask & xmask, tmp1, float("-inf"))
    tmp4 = tl.max(tmp3, 1)[:, None]
    tmp5 = tmp0 - tmp4
    tmp6 = tl.exp(tmp5)
    tmp7 = tl.broadcast_to(tmp6, [XBLOCK, R0_BLOCK])
    tmp9 = tl.where(r0_mask & xmask, tmp7, 0)
    tmp10 = tl.sum(tmp9, 1)[:, None]
    tmp11 = tmp6 / tmp10
    tl.store(out_ptr2 + (r0_index + r0_numel * xindex), tmp11, r0_mask & xmask)


@triton.jit
def red_fused_mean_pow(in_ptr0, out_ptr0, xnumel, r0_numel, XBLOCK: tl.constexpr, R0_BLOCK: tl.constexpr):
    """A reduction in a loop, as inductor writes it: the mean square of each row."""
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_base = tl.arange(0, R0_BLOCK)[None, :]
    x0 = xindex
    _tmp3 = tl.full([XBLOCK, R0_BLOCK], 0, tl.float32)
    for r0_offset in range(0, r0_numel, R0_BLOCK):
        r0_index = r0_offset + r0_base
        r0_mask = r0_index < r0_numel
        r0_1 = r0_index
        tmp0 = tl.load(in_ptr0 + (r0_1 + r0_numel * x0), r0_mask & xmask, eviction_policy="evict_first", other=0.0)
        tmp1 = tmp0 * tmp0
        tmp2 = tl.broadcast_to(tmp1, [XBLOCK, R0_BLOCK])
        tmp4 = _tmp3 + tmp2
        _tmp3 = tl.where(r0_mask & xmask, tmp4, _tmp3)
    tmp3 = tl.sum(_tmp3, 1)[:, None]
    tmp5 = r0_numel.to(tl.float32)
    tmp6 = tmp3 / tmp5
    tl.store(out_ptr0 + (x0), tmp6, xmask)
