"""The engine ``tiled``: another engine, in tiles with halo; and channels padded by one, for kernels that hang on
powers of two."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from unhang import _core
from unhang._engines import Engine, Geometry, Gradients, Mask, Task

Tensor = torch.Tensor


class TiledEngine:
    """Another engine, in tiles with halo, exact to the last pixel; with channels padded by one if asked."""

    def __init__(self, inner: Engine, limit: int, pad_channels: bool) -> None:
        self._inner = PaddedChannelsEngine(inner) if pad_channels else inner
        self._limit = limit

    def forward(self, task: Task, input: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
        task = _of_parts(task)
        output = torch.zeros(task.problem.output_shape, dtype=_summing(input), device=input.device).contiguous(
            memory_format=task.memory_format
        )
        if geometry.transposed:
            # A transposed convolution is the data gradient of an ordinary one: its output is what the tiles add up in.
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
        # In the lowered convolution of a transposed one, input and output have changed places.
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
            # Of the window only its shape and type matter here.
            part = self._inner.backward(
                task, outer[tile.output], window.to(outer.dtype), weight, plain, (True, False, False)
            )[0]
            assert part is not None
            into[tile.input] += part[tile.inside]

    def _windows(self, task: Task, inner: Tensor) -> list[tuple[_Tile, Tensor]]:
        tiles = [_Tile(*spans) for spans in _core.tiles(task.problem, self._limit)]
        return [(tile, F.pad(inner[tile.input], tile.zeros)) for tile in tiles]


def _of_parts(task: Task) -> Task:
    """The task for engines that get tiles and not its tensors."""
    return task._replace(ready=False)


def _summing(tensor: Tensor) -> torch.dtype:
    """The type in which tiles are added up: a sum of many half-precision parts must not be rounded at each."""
    return torch.float32 if tensor.dtype in (torch.float16, torch.bfloat16) else tensor.dtype


class _Tile:
    """A tile as torch's slices: of the input that exists, of the output, and of the window inside its zeros."""

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
    """Another engine, with one more channel in each group where their number is a power of two above one."""

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
