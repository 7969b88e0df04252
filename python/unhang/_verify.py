"""Compares a few elements of a GPU kernel's result with our CPU engine, on the same numbers.

The elements are at the corners of the first and last image, in the first and last channels of the first and last group
(where tiles are ragged and mistakes live), and at a few places between. What each of them depends on is cut out of the
operands and becomes a small convolution of its own.
"""

from __future__ import annotations

import random
from typing import NamedTuple

import torch

from unhang import _core
from unhang._engines import DATA_TYPES, Geometry, run_on_cpu

Tensor = torch.Tensor

_CHANNELS = 4
_PLACES = 8
# More pixels than this are compared in one channel only.
_MANY_PIXELS = 1 << 15


class Finding(NamedTuple):
    """Whether the numbers are right (None: they cannot be compared), and how far they are apart."""

    right: bool | None
    detail: str


class _Sample(NamedTuple):
    """Some elements of the result, what they should be, and the sum of their products' magnitudes."""

    got: Tensor
    want: Tensor
    magnitude: Tensor


def compare(
    direction: str, geometry: Geometry, first: Tensor, second: Tensor, bias: Tensor | None, result: Tensor
) -> Finding:
    """Compares a result. The tensors are the operands of that direction, as the engines get them."""
    if geometry.transposed:
        # The ordinary convolution that it is: the same numbers under other names.
        exchanged = {"forward": "backward-data", "backward-data": "forward"}
        if direction in exchanged:
            direction = exchanged[direction]
        else:
            first, second = second, first
    if direction == "backward-weights":
        samples = _weights(geometry, first, second, result)
    else:
        samples = _pixels(direction, geometry, first, second, bias, result)
    dtype = result.dtype
    worst = scale = largest = 0.0
    for got, want, magnitude in samples:
        if not want.isfinite().all() or want.abs().max() > torch.finfo(dtype).max / 2:
            return Finding(None, "the numbers are not finite")
        if not got.isfinite().all():
            return Finding(False, "a number is not finite")
        worst = max(worst, (got.double() - want.double()).abs().max().item())
        scale = max(scale, magnitude.max().item())
        largest = max(largest, want.abs().max().item())
    if scale == 0.0:
        return Finding(None if worst == 0.0 else False, f"zeros, off by {worst:.1e}")
    count = sum(sample.got.numel() for sample in samples)
    allowed = _core.explained_by_rounding(DATA_TYPES[dtype], scale, largest)
    return Finding(
        worst <= allowed, f"{count} elements, off by {worst / allowed:.2f} of what rounding explains at most"
    )


def _ends(total: int) -> list[slice]:
    """A few channels at the beginning and at the end."""
    few = min(total, _CHANNELS)
    return [slice(0, few)] if total <= _CHANNELS else [slice(0, few), slice(max(total - few, few), total)]


def _places(batch: int, height: int, width: int) -> list[tuple[int, int, int]]:
    """Image, row, column of the elements: corners and a few between, the same each time."""
    chance = random.Random(0)
    places = [(0, 0, 0), (0, 0, width - 1), (batch - 1, height - 1, 0), (batch - 1, height - 1, width - 1)]
    for _ in range(_PLACES):
        places.append((chance.randrange(batch), chance.randrange(height), chance.randrange(width)))
    return list(dict.fromkeys(places))


def _gather(tensor: Tensor, channels: slice, starts: list[tuple[int, int, int]], lengths: list[int]) -> Tensor:
    """Windows of some channels on the CPU, one for each image, row and column where one starts.

    What lies outside of the image is zero. One launch and one copy for all of them: each copy waits for the device.
    """
    image, row, column = torch.tensor(starts).unbind(1)
    rows = row[:, None] + torch.arange(lengths[0])
    columns = column[:, None] + torch.arange(lengths[1])
    height, width = tensor.shape[2:]
    inside = ((rows >= 0) & (rows < height))[:, None, :, None] & ((columns >= 0) & (columns < width))[:, None, None, :]
    indices = torch.cat([image[:, None], rows.clamp(0, height - 1), columns.clamp(0, width - 1)], 1).to(tensor.device)
    image, rows, columns = indices.split([1, *lengths], 1)
    pixels = tensor[:, channels].permute(0, 2, 3, 1)
    windows = pixels[image[:, :, None], rows[:, :, None], columns[:, None, :]].to("cpu").permute(0, 3, 1, 2)
    return windows.masked_fill(~inside, 0)


def _pixels(
    direction: str, geometry: Geometry, first: Tensor, weight: Tensor, bias: Tensor | None, result: Tensor
) -> list[_Sample]:
    """Forward: each output and the window it sees. Backward-data: each input and the outputs that saw it."""
    stride, padding, dilation, groups = geometry.stride, geometry.padding, geometry.dilation, geometry.groups
    reach = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:])]
    forward = direction == "forward"
    # Outputs along each axis that may have seen one input.
    seen = [r // s + 1 for r, s in zip(reach, stride)]
    group_rows = result.shape[1] // groups
    group_channels = first.shape[1] // groups
    places = _places(result.shape[0], *result.shape[2:])
    starts, inside = [], []
    for image, *place in places:
        if forward:
            start = [at * s - p for at, s, p in zip(place, stride, padding)]
            inside.append((0, 0))
        else:
            start = [(at + p) // s - n + 1 for at, s, p, n in zip(place, stride, padding, seen)]
            row, column = (at - (begin * s - p) for at, begin, s, p in zip(place, start, stride, padding))
            inside.append((row, column))
        starts.append((image, start[0], start[1]))
    lengths = [reach[0] + 1, reach[1] + 1] if forward else seen
    samples = []
    for group in sorted({0, groups - 1}):
        own = slice(group * group_channels, (group + 1) * group_channels)
        windows = _gather(first, own, starts, lengths)
        ends = _ends(group_rows)
        rows = [slice(group * group_rows + end.start, group * group_rows + end.stop) for end in ends]
        values = _values(result, places, [row for span in rows for row in range(span.start, span.stop)])
        if forward:
            filters = torch.cat([weight[span] for span in rows])
        else:
            filters = torch.cat([weight[own, end] for end in ends], 1)
        spread = torch.cat([bias[span] for span in rows]).to("cpu") if bias is not None else None
        found = (values, *_small(direction, windows, filters.to("cpu"), spread, stride, dilation, inside))
        # Each end by itself: numbers that cannot be compared at one say nothing of the other.
        sizes = [end.stop - end.start for end in ends]
        samples += [_Sample(*parts) for parts in zip(*(tensor.split(sizes, 1) for tensor in found))]
    return samples


def _values(tensor: Tensor, places: list[tuple[int, int, int]], channels: list[int]) -> Tensor:
    """Some channels at some places, on the CPU."""
    at = torch.tensor([(n, channel, row, column) for n, row, column in places for channel in channels])
    image, channel, row, column = at.to(tensor.device).unbind(1)
    return tensor[image, channel, row, column].to("cpu").view(len(places), len(channels))


def _small(
    direction: str,
    windows: Tensor,
    filters: Tensor,
    bias: Tensor | None,
    stride: list[int],
    dilation: list[int],
    inside: list[tuple[int, int]],
) -> tuple[Tensor, Tensor]:
    """The elements of small convolutions, one for each window, and the sums of the products' magnitudes."""
    # The numbers are one group and their magnitudes another: one convolution for both.
    windows, filters = _wide(windows), _wide(filters)
    rows = filters.shape[0] if direction == "forward" else filters.shape[1]
    windows, filters = torch.cat([windows, windows.abs()], 1), torch.cat([filters, filters.abs()])
    if direction == "forward":
        input_shape = tuple(windows.shape)
        strides = [1, 1]
    else:
        # Where a stride leaps over pixels, these too: their gradient is zero.
        ways = zip(windows.shape[2:], stride, dilation, filters.shape[2:])
        size = [(n - 1) * s + max(d * (k - 1) + 1, s) for n, s, d, k in ways]
        input_shape = (windows.shape[0], 2 * rows, size[0], size[1])
        strides = list(stride)
    problem = _core.Problem(
        input_shape, tuple(filters.shape), strides, [0, 0], list(dilation), False, [0, 0], 2,
        DATA_TYPES[windows.dtype], "nchw", direction,
    )  # fmt: skip
    whole = _compute(problem, windows, filters)
    at = torch.tensor(inside)
    want, magnitude = whole[torch.arange(len(inside)), :, at[:, 0], at[:, 1]].split(rows, 1)
    if bias is not None:
        want, magnitude = want + _wide(bias), magnitude + _wide(bias).abs()
    return want, magnitude


def _weights(geometry: Geometry, input: Tensor, grad_output: Tensor, result: Tensor) -> list[_Sample]:
    """The gradients of a few filters: a convolution with few channels, on all pixels."""
    groups = geometry.groups
    rows, channels = grad_output.shape[1] // groups, input.shape[1] // groups
    few = 1 if grad_output[:, :1].numel() > _MANY_PIXELS else 2
    few_rows, few_channels = min(few, rows), min(few, channels)
    # The first of both, and the last: each a group of one convolution, and then their magnitudes.
    corners = [(0, 0, 0), (groups - 1, 0, 0), (groups - 1, rows - few_rows, channels - few_channels)]
    some_inputs, some_gradients, some_filters = [], [], []
    for group, row, channel in dict.fromkeys(corners):
        first_row, first_channel = group * rows + row, group * channels + channel
        some_inputs.append(input[:, first_channel : first_channel + few_channels])
        some_gradients.append(grad_output[:, first_row : first_row + few_rows])
        some_filters.append(result[first_row : first_row + few_rows, channel : channel + few_channels])
    operands = [_wide(torch.cat(some, 1).to("cpu")) for some in (some_inputs, some_gradients)]
    operands = [torch.cat([it, it.abs()], 1) for it in operands]
    filters = torch.cat(some_filters).to("cpu")
    problem = _core.Problem(
        tuple(operands[0].shape), (2 * filters.shape[0], *filters.shape[1:]), geometry.stride, geometry.padding,
        geometry.dilation, False, [0, 0], 2 * len(some_inputs), DATA_TYPES[operands[0].dtype], "nchw",
        "backward-weights",
    )  # fmt: skip
    found = (filters, *_compute(problem, operands[0], operands[1]).split(filters.shape[0]))
    return [_Sample(*parts) for parts in zip(*(tensor.split(few_rows) for tensor in found))]


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype is torch.float64 else tensor.float()


def _compute(problem: _core.Problem, first: Tensor, second: Tensor) -> Tensor:
    return run_on_cpu(
        problem, first.contiguous(), second.contiguous(), None, torch.contiguous_format, by_definition=True
    )
