"""The one place through which every convolution goes: plan, compute, count, and fall through when an engine fails.

Both entries lead here: the dispatcher's (:mod:`unhang._dispatch`, unmodified code) and that of our own op
(:class:`unhang.SafeConv2d`). The path of a repeated convolution touches memory only: one look-up in a map of routes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from unhang import _core, _watchdog
from unhang._engines import (
    DATA_TYPES,
    AtenEngine,
    CpuEngine,
    Engine,
    Geometry,
    Gradients,
    Mask,
    MiopenEngine,
    Route,
    TiledEngine,
    call_original_backward,
    call_original_forward,
    make_problem,
)
from unhang._jit import JitEngine
from unhang._settings import Settings
from unhang._state import renewed_after_fork, say, state, warn_once
from unhang._statistics import current_layer

Tensor = torch.Tensor
Result = TypeVar("Result")

_ENGINES: dict[str, Engine] = {
    "jit": JitEngine(),
    "aten": AtenEngine(),
    "miopen": MiopenEngine(),
    "cpu": CpuEngine(),
}
# Calls of a route that are timed to learn how fast its engine is; the first is not, since it warms up.
_TIMED_CALLS = 4

# What is planned, by everything that a plan depends on. Cleared as a whole when evidence changes.
_forward_routes: dict[Any, Route | None] = {}
_backward_routes: dict[Any, Route | None] = {}
_lock = renewed_after_fork(__name__, "_lock", threading.Lock)
# A program that sees ever new sizes must not fill its memory with plans.
_MOST_ROUTES = 10_000
#: Routes of this process for the report, by problem and settings; they outlive the maps above.
routes: dict[tuple[str, str], Route] = {}
#: How many plans were made: what ``cache_decisions`` changes.
decisions = 0
#: Called when a convolution is redispatched to torch because it is none that our engines know.
redispatched = _core.Tally()
#: Device types whose tensors stand for the described card's: a rehearsal, never set otherwise.
rehearsed: set[str] = set()


def forward(
    settings: Settings,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
) -> Tensor:
    """A convolution's output, by the plan that these settings make for it."""
    geometry = Geometry(stride, padding, dilation, transposed, output_padding, groups)
    key = (
        settings.token, input.shape, input.stride(), weight.shape, weight.stride(), input.dtype, weight.dtype,
        None if bias is None else (bias.dtype, bias.device), input.device, weight.device, *stride, *padding, *dilation,
        transposed, *output_padding, groups,
    )  # fmt: skip
    try:
        route = _forward_routes[key]
    except KeyError:
        route = _route(_forward_routes, key, settings, "forward", input, weight, bias, geometry)
    layer = current_layer()
    if route is None:
        redispatched.count(0, False)
        output = call_original_forward(input, weight, bias, geometry)
        if layer is not None:
            layer.count("", "torch", bypass=False, settings=settings)
        return output
    flat = input.dim() == 3
    if flat:
        input, weight, geometry = _with_height(input), _with_height(weight), _geometry_with_height(geometry)
    started = time.perf_counter() if route.calls < _TIMED_CALLS else 0.0
    index = 0
    try:
        output = route.engines[0].forward(route, input, weight, bias, geometry)
    except Exception as error:
        output, index = _recover(route, error, lambda engine: engine.forward(route, input, weight, bias, geometry))
    if started:
        _learn_time(route, index, time.perf_counter() - started, input)
    # The one place where a forward is counted.
    route.tally.count(index, route.bypass[index])
    if layer is not None:
        layer.count(route.key, route.names[index], bypass=route.bypass[index], settings=settings)
    return output.squeeze(2) if flat else output


def backward(
    settings: Settings,
    grad_output: Tensor,
    input: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """A convolution's gradients of input, weight and bias, as far as the mask asks for them."""
    geometry = Geometry(stride, padding, dilation, transposed, output_padding, groups)
    key = (
        settings.token, input.shape, input.stride(), weight.shape, weight.stride(), input.dtype, weight.dtype,
        grad_output.dtype, input.device, weight.device, *stride, *padding, *dilation, transposed, *output_padding,
        groups,
    )  # fmt: skip
    routes_: list[Route | None] = []
    for direction, wanted in zip(("backward-data", "backward-weights"), output_mask):
        if wanted:
            try:
                routes_.append(_backward_routes[(direction, key)])
            except KeyError:
                whole = (direction, key)
                if grad_output.dtype is not input.dtype or grad_output.device != input.device:
                    routes_.append(None)
                else:
                    routes_.append(_route(_backward_routes, whole, settings, direction, input, weight, None, geometry))
    mask = (bool(output_mask[0]), bool(output_mask[1]), bool(output_mask[2]))
    if not routes_:
        return None, None, _sum_over_pixels(grad_output) if mask[2] else None
    if any(route is None for route in routes_):
        redispatched.count(0, False)
        return call_original_backward(grad_output, input, weight, geometry, mask)
    planned = [route for route in routes_ if route is not None]
    flat = input.dim() == 3
    if flat:
        grad_output, input, weight = _with_height(grad_output), _with_height(input), _with_height(weight)
        geometry = _geometry_with_height(geometry)
    # Torch's kernels give both gradients in one call. Ours are two, and a verdict on one is none on the other.
    apart = len(planned) == 2 and (planned[0].names[0] != planned[1].names[0] or planned[0].names[0] == "jit")
    if apart:
        data, _, bias = _backward(planned[0], grad_output, input, weight, geometry, (True, False, False))
        _, weights, bias = _backward(planned[1], grad_output, input, weight, geometry, (False, True, mask[2]))
    else:
        data, weights, bias = _backward(planned[0], grad_output, input, weight, geometry, mask)
        if len(planned) == 2:
            planned[1].tally.count(0, planned[1].bypass[0])
    if bias is None and mask[2]:
        bias = _sum_over_pixels(grad_output)
    if flat:
        data, weights = (None if gradient is None else gradient.squeeze(2) for gradient in (data, weights))
    return data, weights, bias


def _backward(
    route: Route, grad_output: Tensor, input: Tensor, weight: Tensor, geometry: Geometry, mask: Mask
) -> Gradients:
    index = 0
    try:
        gradients = route.engines[0].backward(route, grad_output, input, weight, geometry, mask)
    except Exception as error:
        gradients, index = _recover(
            route, error, lambda engine: engine.backward(route, grad_output, input, weight, geometry, mask)
        )
    route.tally.count(index, route.bypass[index])
    return gradients


def _recover(route: Route, error: Exception, call: Callable[[Engine], Result]) -> tuple[Result, int]:
    """Asks the route's other engines in turn. The last one's error is the caller's; out of memory always is."""
    for index in range(1, len(route.engines) + 1):
        if index == len(route.engines) or _is_out_of_memory(error):
            raise error
        if not isinstance(error, _core.GpuDeclined):  # that one began nothing: it may take the next call
            _note_failure(route, route.names[index - 1], error)
        try:
            return call(route.engines[index]), index
        except Exception as next_error:
            error = next_error
    raise AssertionError("the last engine's error was raised")


def _learn_time(route: Route, index: int, seconds: float, input: Tensor) -> None:
    """Learns how fast an engine is: only on the CPU, where a call that returned has done its work, and when warm."""
    if input.device.type != "cpu" or not state().learns_from_cpu:
        route.calls = _TIMED_CALLS
        return
    if route.calls > 0 and index == 0:
        route.seconds = min(route.seconds, seconds)
    route.calls += 1
    if route.calls == _TIMED_CALLS and route.seconds < float("inf"):
        state().planner.learn(route.problem, route.plan.engines[0], "works", route.seconds, "timed in a run")


def _is_out_of_memory(error: Exception) -> bool:
    if isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError)):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and ("out of memory" in text or "can't allocate memory" in text)


def _note_failure(route: Route, engine: str, error: Exception) -> None:
    """Records that an engine failed, tells once, and has everything planned anew: this engine is out for it now."""
    detail = f"{type(error).__name__}: {error}".splitlines()[0][:300]
    current = state()
    name = engine.partition("(")[0]
    current.failures[(route.key, name, route.device)] = detail
    if not route.rehearsed and (route.device != "cpu" or current.learns_from_cpu):
        current.planner.learn(route.problem, name, getattr(error, "verdict", "error"), None, detail)
    say(f"{engine} failed on {route.key} ({detail}); computed by the next engine, and not tried for it again")
    replan()


def replan() -> None:
    """Forgets all plans: evidence or circumstances have changed."""
    with _lock:
        _forward_routes.clear()
        _backward_routes.clear()


def _route(
    cache: dict[Any, Route | None],
    key: Any,
    settings: Settings,
    direction: str,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    geometry: Geometry,
) -> Route | None:
    """Plans a convolution; None where it is none that our engines know, and torch is to do what it does."""
    global decisions
    try:
        route = _plan(settings, direction, input, weight, bias, geometry)
    except Exception as error:
        say(f"could not plan a convolution ({type(error).__name__}: {error}): torch computes it by itself")
        route = None
    with _lock:
        decisions += 1
        if len(cache) >= _MOST_ROUTES:
            cache.clear()
        if settings.cache_decisions:
            cache[key] = route
        if len(routes) >= _MOST_ROUTES:
            routes.pop(next(iter(routes)))
        if route is not None:
            # The report sums over everything that was planned for the same problem under the same settings.
            known = routes.setdefault((route.key, settings.token), route)
            route.tally = known.tally
            known.plan, known.names, known.bypass = route.plan, route.names, route.bypass
    if route is not None and settings.verbose:
        say(f"{route.problem.key} -> {' then '.join(route.names)}: {route.plan.reason}")
    return route


def _plan(
    settings: Settings, direction: str, input: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry
) -> Route | None:
    tensors = [input, weight] if bias is None else [input, weight, bias]
    known = (
        input.dtype in DATA_TYPES
        and input.dim() in (3, 4)
        and all(tensor.dtype is input.dtype and tensor.device == input.device for tensor in tensors)
        and all(tensor.layout is torch.strided for tensor in tensors)
        and input.numel() > 0
    )
    if not known:
        return None
    memory_format = _memory_format(input, weight, bias, geometry)
    if input.dim() == 3:
        input, weight, geometry = _with_height(input), _with_height(weight), _geometry_with_height(geometry)
    try:
        problem = make_problem(input, weight, geometry, direction, memory_format)
    except (ValueError, IndexError):
        return None  # torch says what is wrong with it, in its own words
    current = state()
    from unhang import _situation  # late: it asks about engines, which import this module

    device = input.device.type
    situation = _situation.of(device, rehearsed=device in rehearsed, index=input.device.index)
    absent = {
        engine: ("absent", f"failed in this process: {detail}")
        for (failed, engine, where), detail in current.failures.items()
        if failed == problem.key and where == device
    }
    plan = current.planner.plan(
        problem,
        settings.strategy,
        settings.size_threshold,
        settings.cpu_fallback_enabled,
        settings.implicit_gemm,
        settings.tile_limit,
        device if device not in rehearsed else "accelerator",
        {**situation.engines, **absent},
        situation.families,
        device in rehearsed,
    )
    for warning in plan.warnings:
        warn_once(warning)
    route = Route(problem, plan, memory_format, geometry.padding)
    route.device, route.rehearsed = device, device in rehearsed
    route.workspace_limit = settings.workspace_limit << 20
    route.tune = settings.tune
    route.ready = input.device.type == "cpu" and all(
        tensor.is_contiguous(memory_format=memory_format) for tensor in (input, weight)
    )
    native = situation.native
    for name in plan.engines:
        if name == "tiled" and plan.tile is not None:
            inner, limit = plan.tile
            route.engines.append(TiledEngine(_ENGINES[inner], limit, settings.pad_channels))
            route.names.append(f"tiled({inner})")
            route.bypass.append(inner != native)
        elif name in _ENGINES:
            route.engines.append(_ENGINES[name])
            route.names.append(name)
            route.bypass.append(name != native)
    if not route.engines:
        return None
    route.engines = [_watchdog.watched(engine, name, route) for engine, name in zip(route.engines, route.names)]
    if device not in rehearsed:
        current.planner.saw(problem)
    return route


def _memory_format(input: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> torch.memory_format:
    """How the output is laid out: as FakeTensor predicts it, which compiled graphs rely on."""
    last = torch.channels_last
    if input.dim() != 4 or not any(
        tensor.is_contiguous(memory_format=last) and not tensor.is_contiguous() for tensor in (input, weight)
    ):
        return torch.contiguous_format
    if input.device.type == "cuda":
        # It depends on the vendor's library, its variables and the process's flags: only torch itself can tell.
        try:
            from torch._subclasses import FakeTensorMode

            with FakeTensorMode() as mode:
                fakes = [None if it is None else mode.from_tensor(it) for it in (input, weight, bias)]
                predicted = torch.ops.aten.convolution(*fakes, *geometry)
                is_last = predicted.stride() == torch.empty_like(predicted, memory_format=last).stride()
            return last if is_last else torch.contiguous_format
        except Exception:
            pass  # a torch without it, or arguments that it refuses: it will say so
    return last


def _with_height(tensor: Tensor) -> Tensor:
    return tensor.unsqueeze(2)


def _geometry_with_height(geometry: Geometry) -> Geometry:
    stride, padding, dilation, transposed, output_padding, groups = geometry
    return Geometry([1, *stride], [0, *padding], [1, *dilation], transposed, [0, *output_padding], groups)


def _sum_over_pixels(grad_output: Tensor) -> Tensor:
    return grad_output.sum([0, *range(2, grad_output.dim())])
