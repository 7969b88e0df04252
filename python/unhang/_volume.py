"""3-d convolutions as 2-d ones, on torch's tensors: planes are gathered and put back by torch's own copies.

What is folded into what is Rust's (``unhang_conv::fold``). Who computes the 2-d convolutions is the caller's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from unhang import _core
from unhang._engines import DATA_TYPES, Geometry

Tensor = torch.Tensor
#: Images, channels, the first depth, depths along images, depths along channels: each a start or a step, and a count.
Ranges = tuple[tuple[int, int], tuple[int, int], int, tuple[int, int], tuple[int, int]]
#: Computes a 2-d problem on its first and second operand.
Compute = Callable[[_core.Problem, Tensor, Tensor], Tensor]


class Folded(NamedTuple):
    """What a 3-d convolution is computed by."""

    parts: list[tuple[_core.Problem, list[Ranges] | None]]
    #: Which of its operands the parts' first and second are.
    order: list[int]
    #: Depths of the result that nothing reaches.
    zeros: list[Ranges]
    memory_format: torch.memory_format
    #: Of what is computed, and of the output.
    shape: tuple[int, ...]
    output_shape: tuple[int, ...]


def fold(
    direction: str, input: Tensor, weight: Tensor, geometry: Geometry, memory_format: torch.memory_format
) -> Folded:
    """What these tensors' convolution is folded into; raises ``ValueError`` where they make none that our engines
    know."""
    volume = _core.Volume(
        tuple(input.shape),
        tuple(weight.shape),
        *geometry,
        DATA_TYPES[input.dtype],
        memory_format is torch.channels_last_3d,
        direction,
    )
    output_shape = tuple(volume.output_shape)
    shapes = {"forward": output_shape, "backward-data": tuple(input.shape), "backward-weights": tuple(weight.shape)}
    return Folded(*volume.fold(), memory_format, shapes[direction], output_shape)


def compute(
    folded: Folded, operands: tuple[Tensor, Tensor], compute_part: Compute, bias: Tensor | None = None
) -> Tensor:
    """The result, part by part; parts add the bias themselves."""
    parts, order, zeros, memory_format, shape, _ = folded
    last = memory_format is torch.channels_last_3d
    result: Tensor | None = None
    kept: list[tuple[Ranges, Tensor] | None] = [None, None]
    for problem, ranges in parts:
        if ranges is None:
            flat = [operands[which].flatten(3) for which in order[:2]]
            return compute_part(problem, *flat).reshape(shape).contiguous(memory_format=memory_format)
        gathered = []
        for index in range(2):
            known = kept[index]
            if known is None or known[0] != ranges[index]:
                known = kept[index] = ranges[index], gather(operands[order[index]], ranges[index], last=last)
            gathered.append(known[1])
        computed = _unfold(compute_part(problem, *gathered), ranges[2])
        if len(parts) == 1 and not zeros:
            return computed.contiguous(memory_format=memory_format)
        if result is None:
            result = computed.new_empty(shape).contiguous(memory_format=memory_format)
        _window(result, ranges[2]).copy_(computed)
    assert result is not None
    for nothing in zeros:
        _window(result, nothing).copy_(result.new_zeros(()) if bias is None else bias.view(1, -1, 1, 1, 1))
    return result


def gather(tensor: Tensor, ranges: Ranges, *, last: bool) -> Tensor:
    """The 2-d tensor that planes of a 3-d one make, zeros where there is no such plane."""
    (image, images), (channel, channels), depth, (step, along), (hop, taps) = ranges
    part = tensor[image : image + images, channel : channel + channels]
    planes, height, width = part.shape[2:]
    step, hop = step if along > 1 else 1, hop if taps > 1 else 1
    if depth >= 0 and min(step, hop) > 0 and depth + step * (along - 1) + hop * (taps - 1) < planes:
        # Nothing but a permutation, and often not even that.
        form = torch.channels_last if last else torch.contiguous_format
        if taps == 1:
            chosen = part[:, :, depth : depth + step * (along - 1) + 1 : step].transpose(1, 2)
            return chosen.reshape(images * along, channels, height, width).contiguous(memory_format=form)
        if along == 1:
            chosen = part[:, :, depth : depth + hop * (taps - 1) + 1 : hop]
            return chosen.reshape(images, channels * taps, height, width).contiguous(memory_format=form)
    if last:
        whole = tensor.new_empty((images, along, height, width, channels, taps)).permute(0, 1, 4, 5, 2, 3)
    else:
        whole = tensor.new_empty((images, along, channels, taps, height, width))
    if step < 0:  # a filter from its last tap to its first
        for turn in range(along):
            whole[:, turn, :, 0] = part[:, :, depth + turn * step]
        return whole.flatten(2, 3).flatten(0, 1)
    for tap in range(taps):
        first = depth + tap * hop
        begin = min(max(-(first // step), 0), along)
        end = min(max((planes - 1 - first) // step + 1, begin), along)
        whole[:, :begin, :, tap] = 0
        whole[:, end:, :, tap] = 0
        if begin < end:
            chosen = part[:, :, first + begin * step : first + (end - 1) * step + 1 : step]
            whole[:, begin:end, :, tap] = chosen.transpose(1, 2)
    return whole.flatten(2, 3).flatten(0, 1)


def _unfold(computed: Tensor, ranges: Ranges) -> Tensor:
    """A part's result as planes: its depths are images or channels, never both."""
    (_, images), (_, channels), _, (_, along), (_, taps) = ranges
    six = computed.reshape(images, along, channels, taps, *computed.shape[2:])
    return six.permute(0, 2, 1, 3, 4, 5).flatten(2, 3)


def _window(result: Tensor, ranges: Ranges) -> Tensor:
    """Where a part belongs in the whole result."""
    (image, images), (channel, channels), depth, (step, along), (hop, taps) = ranges
    by, count = (step, along) if along > 1 else (hop, taps)
    by = by if count > 1 else 1
    depths = slice(depth, depth + by * (count - 1) + 1, by)
    return result[image : image + images, channel : channel + channels, depths]
