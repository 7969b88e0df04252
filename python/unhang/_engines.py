"""How each engine computes a convolution on torch's tensors.

All of this runs below autograd: tensors come in without a graph and go out without one. An engine has two entries,
``forward`` and ``backward``; the latter computes the gradients that the mask asks for (input, weight, bias). An engine
may leave the bias's to its caller: it is a plain sum.

Tensors arrive four-dimensional; 1-d convolutions have been given a height of one before.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, Optional, Protocol

import torch
import torch.nn.functional as F

from unhang import _core
from unhang._state import renewed_after_fork, threads

if TYPE_CHECKING:
    from unhang._jit import Loaded

Tensor = torch.Tensor
Gradients = tuple[Optional[Tensor], Optional[Tensor], Optional[Tensor]]
Mask = tuple[bool, bool, bool]

_KEY = torch._C.DispatchKey.CompositeExplicitAutograd
# The kernels that torch would have run, called past the dispatcher so that ours is not called again.
_original_forward = torch.ops.aten._convolution.default._op_dk
_original_backward = torch.ops.aten.convolution_backward.default._op_dk

DATA_TYPES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16", torch.float64: "f64"}


class Geometry(NamedTuple):
    """Everything about a convolution but its tensors, in the order of torch's own arguments."""

    stride: list[int]
    padding: list[int]
    dilation: list[int]
    transposed: bool
    output_padding: list[int]
    groups: int


class Engine(Protocol):
    """What computes a convolution on torch's tensors."""

    def forward(self, route: Route, input: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
        """The output."""

    def backward(
        self, route: Route, grad_output: Tensor, input: Tensor, weight: Tensor, geometry: Geometry, mask: Mask
    ) -> Gradients:
        """The gradients of input, weight and bias that the mask asks for; the bias's may be left out."""


class Route:
    """One direction of one convolution, planned: who computes it, in which order they are asked, and why."""

    __slots__ = (
        "bypass",
        "calls",
        "device",
        "engines",
        "kernel",
        "key",
        "memory_format",
        "names",
        "padding",
        "plan",
        "problem",
        "ready",
        "rehearsed",
        "seconds",
        "tally",
        "tune",
        "workspace_limit",
    )

    def __init__(
        self, problem: _core.Problem, plan: _core.Plan, memory_format: torch.memory_format, padding: list[int]
    ) -> None:
        self.problem = problem
        #: The problem's key; asking for it makes a new text each time.
        self.key = problem.key
        self.plan = plan
        self.memory_format = memory_format
        self.padding = padding
        self.names: list[str] = []
        self.engines: list[Engine] = []
        self.bypass: list[bool] = []
        self.tally = _core.Tally()
        #: Whether the tensors lie where and as our CPU engine wants them. Part of what a route is looked up by.
        self.ready = False
        #: Where the tensors live, and whether they stand for a described card's.
        self.device = "cpu"
        self.rehearsed = False
        #: What our GPU kernels keep here, and the most bytes of workspace that they may take.
        self.kernel: Loaded | None = None
        self.workspace_limit = 0
        #: Whether candidates for them are to be measured.
        self.tune = False
        #: Calls that were timed, and the fastest; only where a call's return means that the work is done.
        self.calls = 0
        self.seconds = float("inf")


@contextmanager
def below_autograd() -> Iterator[None]:
    """Where engines compute: as when the dispatcher calls them, autograd's kernels being past."""
    guard = torch._C._AutoDispatchBelowAutograd()
    if hasattr(guard, "__enter__"):
        with guard:
            yield
    else:  # before torch 2 the object itself is the guard
        try:
            yield
        finally:
            del guard


def deterministic() -> bool:
    """Whether the user asked for the same bits every time."""
    return torch.backends.cudnn.deterministic or torch.are_deterministic_algorithms_enabled()


class AtenEngine:
    """Torch's own kernels, the vendor's library off. On CPU tensors: what torch does by itself."""

    def forward(self, route: Route, input: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
        output: Tensor = _original_forward(_KEY, input, weight, bias, *geometry, False, False, False, True)
        return output

    def backward(
        self, route: Route, grad_output: Tensor, input: Tensor, weight: Tensor, geometry: Geometry, mask: Mask
    ) -> Gradients:
        if grad_output.device.type == "cpu":
            return call_original_backward(grad_output, input, weight, geometry, mask)
        with vendor_library(on=False):
            return call_original_backward(grad_output, input, weight, geometry, mask)


class MiopenEngine:
    """Torch with AMD's convolution library; never with its exhaustive search."""

    def forward(self, route: Route, input: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
        output: Tensor = _original_forward(
            _KEY, input, weight, bias, *geometry, False, deterministic(), True, torch.backends.cudnn.allow_tf32
        )
        return output

    def backward(
        self, route: Route, grad_output: Tensor, input: Tensor, weight: Tensor, geometry: Geometry, mask: Mask
    ) -> Gradients:
        with vendor_library(on=True):
            return call_original_backward(grad_output, input, weight, geometry, mask)


class CpuEngine:
    """Ours, on the CPU. Tensors of an accelerator are copied there and the result back; no parameter is moved."""

    def forward(self, route: Route, input: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
        if route.ready and geometry.padding == route.padding and input.shape == route.problem.input_shape:
            # The short way of a repeated convolution on CPU tensors.
            return run_on_cpu(route.problem, input, weight, bias, route.memory_format)
        problem = problem_of(route, input, weight, geometry)
        return _copy_and_run_cpu(route, problem, input, weight, bias).to(input.device)

    def backward(
        self, route: Route, grad_output: Tensor, input: Tensor, weight: Tensor, geometry: Geometry, mask: Mask
    ) -> Gradients:
        data = weights = None
        problem = problem_of(route, input, weight, geometry)
        if mask[0]:
            toward_data = problem.with_direction("backward-data")
            data = _copy_and_run_cpu(route, toward_data, grad_output, weight, None).to(input.device)
        if mask[1]:
            toward_weights = problem.with_direction("backward-weights")
            weights = _copy_and_run_cpu(route, toward_weights, input, grad_output, None).to(input.device)
        return data, weights, None


def problem_of(route: Route, input: Tensor, weight: Tensor, geometry: Geometry) -> _core.Problem:
    """The route's problem, or that of one of its tiles."""
    if tuple(input.shape) == route.problem.input_shape and geometry.padding == route.padding:
        return route.problem
    return make_problem(input, weight, geometry, route.problem.direction, route.memory_format)


def make_problem(
    input: Tensor, weight: Tensor, geometry: Geometry, direction: str, memory_format: torch.memory_format
) -> _core.Problem:
    """The problem that these tensors are; raises ``ValueError`` where they make none that our engines know."""
    return _core.Problem(
        tuple(input.shape),
        tuple(weight.shape),
        *geometry,
        DATA_TYPES[input.dtype],
        "nhwc" if memory_format is torch.channels_last else "nchw",
        direction,
    )


def _copy_and_run_cpu(
    route: Route, problem: _core.Problem, first: Tensor, second: Tensor, bias: Tensor | None
) -> Tensor:
    form = route.memory_format
    first, second = first.to("cpu").contiguous(memory_format=form), second.to("cpu").contiguous(memory_format=form)
    return run_on_cpu(problem, first, second, None if bias is None else bias.to("cpu"), form)


def run_on_cpu(
    problem: _core.Problem,
    first: Tensor,
    second: Tensor,
    bias: Tensor | None,
    memory_format: torch.memory_format,
    *,
    by_definition: bool = False,
) -> Tensor:
    """On dense CPU tensors of that memory format; by definition, if another engine is to be judged by it."""
    if memory_format is torch.contiguous_format:
        result = first.new_empty(problem.result_shape)
    else:
        result = torch.empty(problem.result_shape, dtype=first.dtype, memory_format=memory_format)
    if bias is not None:
        bias = bias.contiguous()
    _core.run_cpu(
        problem,
        (first.data_ptr(), first.numel()),
        (second.data_ptr(), second.numel()),
        None if bias is None else (bias.data_ptr(), bias.numel()),
        (result.data_ptr(), result.numel()),
        threads(),
        by_definition,
    )
    return result


class TiledEngine:
    """Another engine, in tiles with halo, exact to the last pixel; with channels padded by one if asked."""

    def __init__(self, inner: Engine, limit: int, pad_channels: bool) -> None:
        self._inner = PaddedChannelsEngine(inner) if pad_channels else inner
        self._limit = limit

    def forward(self, route: Route, input: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
        output = torch.zeros(route.problem.output_shape, dtype=input.dtype, device=input.device).contiguous(
            memory_format=route.memory_format
        )
        if geometry.transposed:
            # A transposed convolution is the data gradient of an ordinary one: its output is what the tiles add up in.
            self._add_data_gradient(route, input, output, weight, geometry._replace(transposed=False))
        else:
            plain = geometry._replace(padding=[0, 0])
            for tile, window in self._windows(route, input):
                output[tile.output] = self._inner.forward(route, window, weight, None, plain)
        if bias is not None:
            output += bias.view(1, -1, 1, 1)
        return output

    def backward(
        self, route: Route, grad_output: Tensor, input: Tensor, weight: Tensor, geometry: Geometry, mask: Mask
    ) -> Gradients:
        ordinary = geometry._replace(transposed=False, output_padding=[0, 0])
        plain = ordinary._replace(padding=[0, 0])
        # In the lowered convolution of a transposed one, input and output have changed places.
        outer, inner = (input, grad_output) if geometry.transposed else (grad_output, input)
        data = weights = None
        if mask[0]:
            data = torch.zeros_like(input, memory_format=route.memory_format)
            if geometry.transposed:
                for tile, window in self._windows(route, grad_output):
                    data[tile.output] = self._inner.forward(route, window, weight, None, plain)
            else:
                self._add_data_gradient(route, grad_output, data, weight, ordinary)
        if mask[1]:
            weights = torch.zeros_like(weight)
            for tile, window in self._windows(route, inner):
                part = self._inner.backward(route, outer[tile.output], window, weight, plain, (False, True, False))[1]
                assert part is not None
                weights += part
        return data, weights, None

    def _add_data_gradient(self, route: Route, outer: Tensor, into: Tensor, weight: Tensor, geometry: Geometry) -> None:
        plain = geometry._replace(padding=[0, 0], output_padding=[0, 0])
        for tile, window in self._windows(route, into):
            part = self._inner.backward(route, outer[tile.output], window, weight, plain, (True, False, False))[0]
            assert part is not None
            into[tile.input] += part[tile.inside]

    def _windows(self, route: Route, inner: Tensor) -> list[tuple[_Tile, Tensor]]:
        tiles = [_Tile(*spans) for spans in _core.tiles(route.problem, self._limit)]
        return [(tile, F.pad(inner[tile.input], tile.zeros)) for tile in tiles]


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

    def forward(self, route: Route, input: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
        groups = geometry.groups
        out_channels = weight.shape[1] * groups if geometry.transposed else weight.shape[0]
        wide = self._inner.forward(route, _widen(input, groups), _widen_weight(weight, groups), None, geometry)
        output = _narrow(wide, groups, out_channels)
        return output if bias is None else output + bias.view(1, -1, 1, 1)

    def backward(
        self, route: Route, grad_output: Tensor, input: Tensor, weight: Tensor, geometry: Geometry, mask: Mask
    ) -> Gradients:
        groups = geometry.groups
        wide_mask = (mask[0], mask[1], False)
        data, weights, _ = self._inner.backward(
            route,
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


def call_original_backward(
    grad_output: Tensor, input: Tensor, weight: Tensor, geometry: Geometry, mask: Mask
) -> Gradients:
    """Torch's own gradients, as the process's flags are set."""
    bias_sizes = [grad_output.shape[1]] if mask[2] else None
    gradients = _original_backward(_KEY, grad_output, input, weight, bias_sizes, *geometry, list(mask))
    data, weights, bias = (gradient if wanted else None for gradient, wanted in zip(gradients, mask))
    return data, weights, bias


def call_original_forward(input: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
    """What torch would have done by itself, with the process's flags as the user set them."""
    flags = torch.backends.cudnn
    output: Tensor = _original_forward(
        _KEY, input, weight, bias, *geometry, flags.benchmark, deterministic(), flags.enabled, flags.allow_tf32
    )
    return output


_flag_lock = renewed_after_fork(__name__, "_flag_lock", threading.RLock)


class vendor_library:
    """Switches torch's use of the vendor's convolution library on or off for one call.

    Torch has no argument for it in the backward direction and the flag is the process's: while this is held, another
    thread's convolutions *outside* unhang, batch norms and RNNs see it too. The lock keeps our own calls apart.
    Setting the flag raises after ``torch.backends.disable_global_flags()``; then the next engine is asked.
    """

    def __init__(self, *, on: bool) -> None:
        self._on = on
        self._before = (False, False)

    def __enter__(self) -> None:
        _flag_lock.acquire()
        try:
            flags = torch.backends.cudnn
            self._before = (flags.enabled, flags.benchmark)
            if self._before != (self._on, False):
                flags.enabled, flags.benchmark = self._on, False
        except BaseException:
            _flag_lock.release()
            raise

    def __exit__(self, *_: object) -> None:
        try:
            if self._before != (self._on, False):
                torch.backends.cudnn.enabled, torch.backends.cudnn.benchmark = self._before
        finally:
            _flag_lock.release()
