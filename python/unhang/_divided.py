"""Convolutions that are computed as other convolutions.

The engine ``tiled`` runs another engine in tiles with halo, optionally with channels padded by one, for kernels that
hang on powers of two. 3-d convolutions are computed as 2-d ones, on planes of torch's tensors that torch's own copies
gather and put back. Rust decides how a convolution is divided (``unhang_conv``'s ``tile`` and ``fold``). The caller
decides which engine computes the 2-d parts of a 3-d one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F

from unhang import _core
from unhang._engines import DATA_TYPES, Engine, Geometry, Gradients, Mask, Task

Tensor = torch.Tensor


class TiledEngine:
    """Another engine, in tiles with halo, exact to the last pixel; with channels padded by one if requested."""

    def __init__(self, inner: Engine, limit: int, pad_channels: bool) -> None:
        self._inner = PaddedChannelsEngine(inner) if pad_channels else inner
        self._limit = limit

    def forward(self, task: Task, input: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
        task = _of_parts(task)
        output = torch.zeros(task.problem.output_shape, dtype=_summing(input), device=input.device).contiguous(
            memory_format=task.memory_format
        )
        if geometry.transposed:
            # A transposed convolution is the data gradient of an ordinary one; the tiles add up in its output.
            self._add_data_gradient(task, input, output, weight, geometry._replace(transposed=False))
        else:
            plain = geometry._replace(padding=[0, 0])
            for tile, window in self._windows(task, input):
                output[tile.output] = self._inner.forward(task, window, weight, None, plain)
        if bias is not None:
            output += bias.view(1, -1, 1, 1)
        return output.to(input.dtype)

    def backward(
        self, task: Task, grad_output: Tensor, input: Tensor, weight: Tensor, geometry: Geometry, mask: Mask
    ) -> Gradients:
        task = _of_parts(task)
        ordinary = geometry._replace(transposed=False, output_padding=[0, 0])
        plain = ordinary._replace(padding=[0, 0])
        # In the lowered form of a transposed convolution, input and output are exchanged.
        outer, inner = (input, grad_output) if geometry.transposed else (grad_output, input)
        data = weights = None
        if mask[0]:
            data = torch.zeros_like(input, dtype=_summing(input), memory_format=task.memory_format)
            if geometry.transposed:
                for tile, window in self._windows(task, grad_output):
                    data[tile.output] = self._inner.forward(task, window, weight, None, plain)
            else:
                self._add_data_gradient(task, grad_output, data, weight, ordinary)
        if mask[1]:
            weights = torch.zeros_like(weight, dtype=_summing(weight), memory_format=task.memory_format)
            for tile, window in self._windows(task, inner):
                part = self._inner.backward(task, outer[tile.output], window, weight, plain, (False, True, False))[1]
                assert part is not None
                weights += part
        data, weights = (None if it is None else it.to(input.dtype) for it in (data, weights))
        return data, weights, None

    def _add_data_gradient(self, task: Task, outer: Tensor, into: Tensor, weight: Tensor, geometry: Geometry) -> None:
        plain = geometry._replace(padding=[0, 0], output_padding=[0, 0])
        for tile, window in self._windows(task, into):
            # Only the window's shape and type matter here.
            part = self._inner.backward(
                task, outer[tile.output], window.to(outer.dtype), weight, plain, (True, False, False)
            )[0]
            assert part is not None
            into[tile.input] += part[tile.inside]

    def _windows(self, task: Task, inner: Tensor) -> list[tuple[_Tile, Tensor]]:
        tiles = [_Tile(*spans) for spans in _core.tiles(task.problem, self._limit)]
        return [(tile, F.pad(inner[tile.input], tile.zeros)) for tile in tiles]


def _of_parts(task: Task) -> Task:
    """The task for engines that receive tiles instead of its tensors."""
    return task._replace(ready=False)


def _summing(tensor: Tensor) -> torch.dtype:
    """The type for summing tiles: a sum of many half-precision parts must not be rounded at each."""
    return torch.float32 if tensor.dtype in (torch.float16, torch.bfloat16) else tensor.dtype


class _Tile:
    """A tile as slices for torch: of the existing input, of the output, and of the window inside its zeros."""

    __slots__ = ("input", "inside", "output", "zeros")

    def __init__(self, rows: tuple[int, ...], columns: tuple[int, ...]) -> None:
        everything = slice(None)

        def along(start: int, length: int) -> slice:
            return slice(start, start + length)

        (row_out, row_outs, row_in, row_ins, top, bottom) = rows
        (column_out, column_outs, column_in, column_ins, left, right) = columns
        self.output = (everything, everything, along(row_out, row_outs), along(column_out, column_outs))
        self.input = (everything, everything, along(row_in, row_ins), along(column_in, column_ins))
        self.inside = (everything, everything, along(top, row_ins), along(left, column_ins))
        self.zeros = (left, right, top, bottom)


class PaddedChannelsEngine:
    """Another engine, with one more channel per group if their number is a power of two above one."""

    def __init__(self, inner: Engine) -> None:
        self._inner = inner

    def forward(self, task: Task, input: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
        groups = geometry.groups
        out_channels = weight.shape[1] * groups if geometry.transposed else weight.shape[0]
        wide = self._inner.forward(task, _widen(input, groups), _widen_weight(weight, groups), None, geometry)
        output = _narrow(wide, groups, out_channels)
        return output if bias is None else output + bias.view(1, -1, 1, 1)

    def backward(
        self, task: Task, grad_output: Tensor, input: Tensor, weight: Tensor, geometry: Geometry, mask: Mask
    ) -> Gradients:
        groups = geometry.groups
        wide_mask = (mask[0], mask[1], False)
        data, weights, _ = self._inner.backward(
            task,
            _widen(grad_output, groups),
            _widen(input, groups),
            _widen_weight(weight, groups),
            geometry,
            wide_mask,
        )
        if data is not None:
            data = _narrow(data, groups, input.shape[1])
        if weights is not None:
            first, second = weight.shape[:2]
            grouped = weights.reshape(groups, -1, *weights.shape[1:])
            weights = grouped[:, : first // groups, :second].reshape(weight.shape)
        return data, weights, None


def _extra(channels: int) -> int:
    return 1 if channels > 1 and channels & (channels - 1) == 0 else 0


def _widen(activation: Tensor, groups: int) -> Tensor:
    n, channels, h, w = activation.shape
    extra = _extra(channels // groups)
    grouped = activation.reshape(n, groups, channels // groups, h, w)
    return F.pad(grouped, (0, 0, 0, 0, 0, extra)).reshape(n, channels + groups * extra, h, w)


def _widen_weight(weight: Tensor, groups: int) -> Tensor:
    first, second, r, s = weight.shape
    grouped = weight.reshape(groups, first // groups, second, r, s)
    wide = F.pad(grouped, (0, 0, 0, 0, 0, _extra(second), 0, _extra(first // groups)))
    return wide.reshape(-1, second + _extra(second), r, s)


def _narrow(activation: Tensor, groups: int, channels: int) -> Tensor:
    n, _, h, w = activation.shape
    return activation.reshape(n, groups, -1, h, w)[:, :, : channels // groups].reshape(n, channels, h, w)


# ---- 3-d convolutions ----

#: Images, channels, the first depth, depths along images, depths along channels. Each is a start or a step, and a
#: count.
Ranges = tuple[tuple[int, int], tuple[int, int], int, tuple[int, int], tuple[int, int]]
#: Computes a 2-d problem on its first and second operand.
Compute = Callable[[_core.Problem, Tensor, Tensor], Tensor]


class Folded(NamedTuple):
    """The 2-d convolutions that compute a 3-d one."""

    parts: list[tuple[_core.Problem, list[Ranges] | None]]
    #: Which of its operands the parts' first and second are.
    order: list[int]
    #: Depths of the result that no tap reaches.
    zeros: list[Ranges]
    memory_format: torch.memory_format
    #: The shapes of the result and of the output.
    shape: tuple[int, ...]
    output_shape: tuple[int, ...]


def fold(
    direction: str, input: Tensor, weight: Tensor, geometry: Geometry, memory_format: torch.memory_format
) -> Folded:
    """Folds these tensors' convolution. Raises ``ValueError`` if our engines do not know it."""
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


def compute_folded(
    folded: Folded, operands: tuple[Tensor, Tensor], compute_part: Compute, bias: Tensor | None = None
) -> Tensor:
    """The result, part by part; the parts add the bias themselves."""
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
    """The 2-d tensor made of planes of a 3-d one, with zeros for missing planes."""
    (image, images), (channel, channels), depth, (step, along), (hop, taps) = ranges
    part = tensor[image : image + images, channel : channel + channels]
    planes, height, width = part.shape[2:]
    step, hop = step if along > 1 else 1, hop if taps > 1 else 1
    if depth >= 0 and min(step, hop) > 0 and depth + step * (along - 1) + hop * (taps - 1) < planes:
        # A permutation at most, and often not even that.
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
    """The position of a part in the whole result."""
    (image, images), (channel, channels), depth, (step, along), (hop, taps) = ranges
    by, count = (step, along) if along > 1 else (hop, taps)
    by = by if count > 1 else 1
    depths = slice(depth, depth + by * (count - 1) + 1, by)
    return result[image : image + images, channel : channel + channels, depths]
