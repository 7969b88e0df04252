"""Compares a few elements of a GPU kernel's result with the definition of a convolution, on the same numbers.

The elements are at the corners of the first and last image, in the first and last channels of the first and last group
(where tiles are ragged and mistakes live), and at a few places between; of a filter's gradient over very many pixels
they are the last filter's and channel's alone. What each of them depends on is cut out of the operands and becomes a
small convolution, of which the extension computes those elements in double precision.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable
from typing import NamedTuple, Union

import torch

from unhang import _core
from unhang._engines import DATA_TYPES, Geometry

Tensor = torch.Tensor
# Evaluated, unlike annotations, and Python 3.9 has no other union.
Piece = tuple[tuple[Union[int, slice], ...], Tensor]

_CHANNELS = 4
_PLACES = 4
# Each tap of a filter's gradient sums over all pixels, which are brought to the CPU for it. With more of them than the
# first of these one filter and channel are compared at each end, with more than the second five of its taps (corners
# and the middle), with more than the third at one end only.
_MANY_PIXELS = (1 << 12, 1 << 14, 1 << 17)


class Finding(NamedTuple):
    """Whether the numbers are right (None: they cannot be compared), and how far they are apart."""

    right: bool | None
    detail: str


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
    comparison = _core.Comparison(DATA_TYPES[result.dtype])
    if direction == "backward-weights":
        _weights(comparison, geometry, first, second, result)
    else:
        _pixels(comparison, direction, geometry, first, second, bias, result)
    return Finding(*comparison.finding())


class _Parcel:
    """Pieces of tensors, brought to the CPU by one copy: each copy waits for the device.

    They are put together by assigning slices: loading torch's kernels for lists of indices took longer than all else
    that a first step does here.
    """

    def __init__(self, like: Tensor) -> None:
        self._like = like
        self._parts: list[tuple[int, tuple[int, ...], list[Piece]]] = []
        self._size = 0

    def add(self, shape: tuple[int, ...], pieces: Iterable[Piece]) -> None:
        """One part: zeros but for the pieces."""
        self._parts.append((self._size, shape, list(pieces)))
        self._size += math.prod(shape)

    def bring(self) -> list[Tensor]:
        """The parts in the order in which they were added."""
        whole = self._like.new_zeros(self._size)
        for start, shape, pieces in self._parts:
            part = whole[start : start + math.prod(shape)].view(shape)
            for at, piece in pieces:
                part[at] = piece
        whole = whole.to("cpu")
        return [whole[start : start + math.prod(shape)].view(shape) for start, shape, _ in self._parts]


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


def _windows(tensor: Tensor, channels: slice, starts: list[tuple[int, int, int]], lengths: list[int]) -> list[Piece]:
    """The parts inside the image of the windows that start at some images, rows and columns."""
    pieces: list[Piece] = []
    for number, (image, *start) in enumerate(starts):
        inside = [
            (max(begin, 0), min(begin + length, size)) for begin, length, size in zip(start, lengths, tensor.shape[2:])
        ]
        if all(begin < end for begin, end in inside):
            to = [slice(begin - at, end - at) for (begin, end), at in zip(inside, start)]
            (top, bottom), (left, right) = inside
            pieces.append(((number, slice(None), *to), tensor[image, channels, top:bottom, left:right]))
    return pieces


def _side_by_side(axis: int, parts: list[Tensor]) -> list[Piece]:
    """Parts that follow each other along an axis."""
    pieces: list[Piece] = []
    start = 0
    for part in parts:
        end = start + part.shape[axis]
        pieces.append(((*[slice(None)] * axis, slice(start, end)), part))
        start = end
    return pieces


def _pixels(
    comparison: _core.Comparison,
    direction: str,
    geometry: Geometry,
    first: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    result: Tensor,
) -> None:
    """Forward: each output and the window it sees. Backward-data: each input and the outputs that saw it."""
    stride, padding, dilation, groups = geometry.stride, geometry.padding, geometry.dilation, geometry.groups
    kernel = weight.shape[2:]
    reach = [d * (k - 1) for d, k in zip(dilation, kernel)]
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
    ends = _ends(group_rows)
    rows = sum(end.stop - end.start for end in ends)
    parcel = _Parcel(result)
    ends_of_groups = sorted({0, groups - 1})
    for group in ends_of_groups:
        own = slice(group * group_channels, (group + 1) * group_channels)
        spans = [slice(group * group_rows + end.start, group * group_rows + end.stop) for end in ends]
        parcel.add((len(places), group_channels, *lengths), _windows(first, own, starts, lengths))
        if forward:
            parcel.add((rows, group_channels, *kernel), _side_by_side(0, [weight[span] for span in spans]))
        else:
            parcel.add((group_channels, rows, *kernel), _side_by_side(1, [weight[own, end] for end in ends]))
        parcel.add((rows,), _side_by_side(0, [bias[span] for span in spans]) if bias is not None else [])
        # All channels of a place, of which a few are compared: one piece for each place.
        whole = slice(group * group_rows, (group + 1) * group_rows)
        columns = [((number,), result[image, whole, row, column]) for number, (image, row, column) in enumerate(places)]
        parcel.add((len(places), group_rows), columns)
    parts = parcel.bring()
    if forward:
        size, strides = lengths, [1, 1]
    else:
        # Where a stride leaps over pixels, these too: their gradient is zero.
        size = [(n - 1) * s + max(r + 1, s) for n, s, r in zip(seen, stride, reach)]
        strides = stride
    channels = group_channels if forward else rows
    problem = _core.Problem(
        (len(places), channels, *size), (rows if forward else group_channels, channels, *kernel), strides, [0, 0],
        dilation, False, [0, 0], 1, DATA_TYPES[result.dtype], "nchw", direction,
    )  # fmt: skip
    elements = [(number, row, *inside[number]) for number in range(len(places)) for row in range(rows)]
    for at in range(len(ends_of_groups)):
        windows, filters, spread, found = parts[4 * at : 4 * at + 4]
        values = torch.cat([found[:, end] for end in ends], 1)
        _add(comparison, problem, windows, filters, spread if bias is not None else None, elements, values)


def _weights(
    comparison: _core.Comparison, geometry: Geometry, input: Tensor, grad_output: Tensor, result: Tensor
) -> None:
    """The gradients of a few filters: a convolution with few channels, on all pixels."""
    groups = geometry.groups
    rows, channels = grad_output.shape[1] // groups, input.shape[1] // groups
    pixels = grad_output[:, :1].numel()
    few = 1 if pixels > _MANY_PIXELS[0] else 2
    few_rows, few_channels = min(few, rows), min(few, channels)
    # The first of both, and the last: each a group of one convolution.
    last = (groups - 1, rows - few_rows, channels - few_channels)
    corners = list(dict.fromkeys([(0, 0, 0), (groups - 1, 0, 0), last])) if pixels <= _MANY_PIXELS[2] else [last]
    some_inputs, some_gradients, some_filters = [], [], []
    for group, row, channel in corners:
        first_row, first_channel = group * rows + row, group * channels + channel
        some_inputs.append(input[:, first_channel : first_channel + few_channels])
        some_gradients.append(grad_output[:, first_row : first_row + few_rows])
        some_filters.append(result[first_row : first_row + few_rows, channel : channel + few_channels])
    all_rows, kernel = few_rows * len(corners), result.shape[2:]
    parcel = _Parcel(result)
    parcel.add((input.shape[0], few_channels * len(corners), *input.shape[2:]), _side_by_side(1, some_inputs))
    parcel.add((input.shape[0], all_rows, *grad_output.shape[2:]), _side_by_side(1, some_gradients))
    parcel.add((all_rows, few_channels, *kernel), _side_by_side(0, some_filters))
    inputs, gradients, filters = parcel.bring()
    problem = _core.Problem(
        tuple(inputs.shape), tuple(filters.shape), geometry.stride, geometry.padding, geometry.dilation, False, [0, 0],
        len(corners), DATA_TYPES[result.dtype], "nchw", "backward-weights",
    )  # fmt: skip
    # Of a large window the corners, the middles of its edges, and its own.
    down, across = ((0, size // 2, size - 1) for size in kernel)
    diagonals = [*zip(down, across), *zip(down, reversed(across))]
    taps = list(dict.fromkeys(diagonals if pixels > _MANY_PIXELS[1] else itertools.product(down, across)))
    elements = [(row, channel, *tap) for row in range(all_rows) for channel in range(few_channels) for tap in taps]
    values = torch.stack([filters[:, :, r, s] for r, s in taps], -1)
    _add(comparison, problem, inputs, gradients, None, elements, values)


def _add(
    comparison: _core.Comparison,
    problem: _core.Problem,
    first: Tensor,
    second: Tensor,
    bias: Tensor | None,
    elements: list[tuple[int, int, int, int]],
    values: Tensor,
) -> None:
    memory = [(it.data_ptr(), it.numel()) for it in (first, second, values)]
    spread = None if bias is None else (bias.data_ptr(), bias.numel())
    comparison.add(problem, memory[0], memory[1], spread, elements, memory[2])
