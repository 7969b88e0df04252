"""Every convolution that Python handles passes through here: plan, compute, count, and fall back if an engine fails.

Both entries lead here: the dispatcher's (:mod:`unhang._dispatch`, unmodified code) and that of our own op, which
compiled graphs call for a :class:`unhang.SafeConv2d`. The path of a repeated convolution touches memory only: one
look-up in a map of routes.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from unhang import _core, _direct, _divided, _gpu, _watchdog
from unhang._core import Settings, Ticket, count_layer
from unhang._engines import (
    DATA_TYPES,
    AtenEngine,
    CpuEngine,
    Engine,
    Fault,
    Geometry,
    Gradients,
    Mask,
    MiopenEngine,
    Task,
    call_original_backward,
    call_original_forward,
    fault_of,
    is_from_outside,
    make_problem,
    memory_format_of,
    with_height,
)
from unhang._gpu import Route, Stopwatch
from unhang._jit import JitEngine
from unhang._state import renewed_after_fork, say, state, warn_once
from unhang._talk import is_of_a_handler

Tensor = torch.Tensor
Result = TypeVar("Result")

_ENGINES: dict[str, Engine] = {
    "jit": JitEngine(),
    "aten": AtenEngine(),
    "miopen": MiopenEngine(),
    "cpu": CpuEngine(),
}
_is_profiled: Callable[[], bool] = torch._C._autograd._profiler_enabled
# A record of torch's profilers. The quick one (torch 2.2 and newer) bypasses the dispatcher.
_profiled: Any = getattr(torch._C, "_profiler", None)
_profiled = getattr(_profiled, "_RecordFunctionFast", torch.autograd.profiler.record_function)
# The number of calls of a route that are timed to learn its engine's speed; the first, which warms up, is not.
_TIMED_CALLS = 4


_lock = renewed_after_fork(__name__, "_lock", threading.Lock)
# A program with ever new sizes must not fill its memory with plans.
_MOST_ROUTES = 10_000


class _Routes(dict[Any, "Route | None"]):
    """The plans, by everything that a plan depends on. Cleared as a whole when evidence changes.

    A full map evicts a plan at evenly spread positions. In order of arrival, a program that cycles through a few more
    sizes than fit would lose every plan right before it is needed.
    """

    # 2^32 divided by the golden ratio: its multiples are spread evenly.
    _SPREAD = 2654435769

    def __init__(self) -> None:
        super().__init__()
        self._keys: list[Any] = []
        self._evictions = 0

    def keep(self, key: Any, route: Route | None) -> None:
        """Keeps a plan. Call it with the lock held."""
        if key not in self:
            if len(self._keys) < _MOST_ROUTES:
                self._keys.append(key)
            else:
                self._evictions += 1
                place = (self._evictions * self._SPREAD >> 8) % len(self._keys)
                self.pop(self._keys[place], None)
                self._keys[place] = key
        self[key] = route

    def clear(self) -> None:
        """Forgets all of them."""
        super().clear()
        self._keys.clear()


_forward_routes = _Routes()
_backward_routes = _Routes()
# What 3-d convolutions are folded into; None if torch computes them.
_volumes: dict[Any, _divided.Folded | None] = {}
# The keys of their parts.
_parts: set[str] = set()
#: Routes of this process for the report, by problem and settings. They outlive the maps above.
routes: dict[tuple[str, str], Route] = {}
#: The number of plans made, which ``cache_decisions`` changes.
decisions = 0
# How often plans were forgotten. A plan made before that is not kept after it.
_forgotten = 0
#: Counts convolutions that were redispatched to torch because our engines do not know them.
redispatched = _core.Tally()
_TORCH = _core.Label("", "torch")
#: Device types whose tensors stand for the described card's. Set only in a rehearsal.
rehearsed: set[str] = set()


def forward(
    settings: Settings,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    geometry: Geometry,
    ticket: Ticket | None = None,
    *,
    counted: bool = True,
) -> Tensor:
    """A convolution's output, by the plan of these settings. With a ticket, the direct path learns how to compute the
    same call from then on. A layer counts it, unless it is part of one that is already counted."""
    for_each = _for_each_axis(geometry, input.dim() - 2)
    if for_each is None:
        return call_original_forward(input, weight, bias, geometry, vendor=_vendor(input.device))
    as_called, geometry = geometry, for_each
    if input.dim() == 5:
        found = _forward_of_volume(settings, input, weight, bias, geometry)
        if found is not None:
            return found
    stride, padding, dilation, transposed, output_padding, groups = geometry
    device = input.device
    # Torch rejects a bias with more or fewer than one dimension, whatever its sizes. Comparing devices is quicker than
    # hashing.
    key = (
        settings.token, input.shape, input.stride(), weight.shape, weight.stride(), input.dtype, weight.dtype,
        None if bias is None else (bias.dim(), bias.numel(), bias.dtype, bias.device == device), device,
        weight.device == device, *stride, *padding, *dilation, transposed, *output_padding, groups,
    )  # fmt: skip
    try:
        route = _forward_routes[key]
    except KeyError:
        route = _route(_forward_routes, key, settings, "forward", (input, weight, bias), geometry)
    if route is None:
        redispatched.count(0, False)
        output = call_original_forward(input, weight, bias, as_called, vendor=_vendor(input.device))
        if counted:
            count_layer(_TORCH, False, settings)
        if ticket is not None and settings.cache_decisions:
            _direct.remember_redispatched(ticket, input.device, redispatched)
        return output
    task = route.task
    flat = input.dim() == 3
    as_given = input
    if flat:
        as_given, weight, geometry = with_height(input), with_height(weight), _geometry_with_height(geometry)
        input = _laid_out(input, task)
    started = time.perf_counter() if route.stopwatch.calls < _TIMED_CALLS else 0.0
    output, index = _computed(route, input.device, lambda engine: engine.forward(task, input, weight, bias, geometry))
    if started:
        _learn_time(route, index, time.perf_counter() - started, input)
    # The one place in Python where a forward is counted.
    route.tally.count(index, route.bypass[index])
    if counted:
        count_layer(route.labels[index], route.bypass[index], settings)
    result = output.squeeze(2) if flat else output
    if ticket is not None and index == 0 and not started and settings.cache_decisions:
        _direct.remember_forward(ticket, route, (as_given, weight), bias, result)
    return result


def backward(
    settings: Settings,
    grad_output: Tensor,
    input: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,
    geometry: Geometry,
    output_mask: Sequence[bool],
    ticket: Ticket | None = None,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """A convolution's gradients of input, weight and bias that the mask requests."""
    mask = (bool(output_mask[0]), bool(output_mask[1]), bool(output_mask[2]))
    for_each = _for_each_axis(geometry, input.dim() - 2)
    if for_each is None:
        vendor = _vendor(input.device)
        return call_original_backward(grad_output, input, weight, geometry, mask, bias_sizes, vendor=vendor)
    as_called, geometry = geometry, for_each
    stride, padding, dilation, transposed, output_padding, groups = geometry
    if input.dim() == 5:
        found = _backward_of_volume(settings, grad_output, input, weight, geometry, mask)
        if found is not None:
            return found
    key = (
        settings.token, input.shape, input.stride(), weight.shape, weight.stride(), input.dtype, weight.dtype,
        grad_output.shape, grad_output.dtype, grad_output.device, input.device, weight.device, *stride, *padding,
        *dilation, transposed, *output_padding, groups,
    )  # fmt: skip
    wanted = [name for name, asked in zip(("backward-data", "backward-weights"), mask) if asked]
    planned: dict[str, Route] = {}
    for direction in wanted:
        try:
            route = _backward_routes[(direction, key)]
        except KeyError:
            tensors = (input, weight, None, grad_output)
            route = _route(_backward_routes, (direction, key), settings, direction, tensors, geometry)
        if route is not None:
            planned[direction] = route
    if not wanted:
        return None, None, grad_output.sum([0, *range(2, grad_output.dim())]) if mask[2] else None
    if len(planned) < len(wanted):
        redispatched.count(0, False)
        return call_original_backward(
            grad_output, input, weight, as_called, mask, bias_sizes, vendor=_vendor(input.device)
        )
    # Torch's kernels compute both gradients in one call. Ours are two, each with its own verdict.
    first, *others = planned.values()
    flat = input.dim() == 3
    as_given = input
    if flat:
        grad_output, as_given, weight = with_height(grad_output), with_height(input), with_height(weight)
        input, geometry = _laid_out(input, first.task), _geometry_with_height(geometry)
    apart = bool(others) and (first.names[0] != others[0].names[0] or first.names[0] in ("jit", "cpu"))
    if apart:
        (data, _, bias), at = _backward(first, grad_output, input, weight, geometry, (True, False, False))
        (_, weights, bias), then = _backward(others[0], grad_output, input, weight, geometry, (False, True, mask[2]))
    else:
        (data, weights, bias), at = _backward(first, grad_output, input, weight, geometry, mask)
        then = 0
        if others:
            # The engine that computed both; another direction's plan may have it at another place, or not at all.
            name, names = first.names[at], others[0].names
            place = names.index(name) if name in names else 0
            others[0].tally.count(place, others[0].bypass[place])
    if bias is None and mask[2]:
        bias = grad_output.sum([0, 2, 3])
    four_dimensional = (grad_output, as_given, weight)
    if flat:
        data, weights = (None if gradient is None else gradient.squeeze(2) for gradient in (data, weights))
    if ticket is not None and at == then == 0 and settings.cache_decisions:
        _direct.remember_backward(ticket, planned, four_dimensional, data, weights)
    return data, weights, bias


def _backward(
    route: Route, grad_output: Tensor, input: Tensor, weight: Tensor, geometry: Geometry, mask: Mask
) -> tuple[Gradients, int]:
    """The gradients, and the index of the engine that computed them."""
    gradients, index = _computed(
        route,
        input.device,
        lambda engine: engine.backward(route.task, grad_output, input, weight, geometry, mask),
    )
    route.tally.count(index, route.bypass[index])
    return gradients, index


# ---- 3-d convolutions: folded into 2-d ones, each of which is planned and computed as any other ----


def _forward_of_volume(
    settings: Settings, input: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry
) -> Tensor | None:
    """A 3-d convolution's output; None if torch should compute it."""
    folded = _folded(settings, "forward", (input, weight, bias), geometry)
    if folded is None:
        return None
    counted = [True]  # its first part counts it

    def compute(problem: _core.Problem, first: Tensor, second: Tensor) -> Tensor:
        part = Geometry(*problem.geometry)
        output = forward(settings, first, second, bias, part, counted=counted[0])
        counted[0] = False
        return output

    return _divided.compute_folded(folded, (input, weight), compute, bias)


def _backward_of_volume(
    settings: Settings, grad_output: Tensor, input: Tensor, weight: Tensor, geometry: Geometry, mask: Mask
) -> Gradients | None:
    """A 3-d convolution's gradients; None if torch should compute them."""
    toward_data = toward_weights = None
    tensors = (input, weight, None, grad_output)
    if mask[0]:
        toward_data = _folded(settings, "backward-data", tensors, geometry)
    if mask[1]:
        toward_weights = _folded(settings, "backward-weights", tensors, geometry)
    if (mask[0] and toward_data is None) or (mask[1] and toward_weights is None) or not (mask[0] or mask[1]):
        return None

    def compute(problem: _core.Problem, first: Tensor, second: Tensor) -> Tensor:
        part = Geometry(*problem.geometry)
        # Of an operand that a direction does not read, only the shape matters.
        if problem.direction == "backward-data":
            of_shape = first.new_empty(1).expand(problem.input_shape)
            found = backward(settings, first, of_shape, second, None, part, (True, False, False))[0]
        elif problem.direction == "backward-weights":
            of_shape = first.new_empty(1).expand(problem.weight_shape)
            found = backward(settings, second, first, of_shape, None, part, (False, True, False))[1]
        else:
            found = forward(settings, first, second, None, part, counted=False)
        assert found is not None
        return found

    data = weights = None
    if toward_data is not None:
        data = _divided.compute_folded(toward_data, (grad_output, weight), compute)
    if toward_weights is not None:
        weights = _divided.compute_folded(toward_weights, (input, grad_output), compute)
    return data, weights, grad_output.sum([0, 2, 3, 4]) if mask[2] else None


def _folded(
    settings: Settings, direction: str, tensors: tuple[Tensor | None, ...], geometry: Geometry
) -> _divided.Folded | None:
    """What a 3-d convolution is folded into. None if torch computes it: our engines do not know it, or its parts would
    be torch's, which then has kernels for the whole."""
    stride, padding, dilation, transposed, output_padding, groups = geometry
    of_tensors = (None if it is None else (it.shape, it.stride(), it.dtype, it.device, it.layout) for it in tensors)
    key = (
        direction, settings.token, *of_tensors, *stride, *padding, *dilation, transposed, *output_padding, groups,
    )  # fmt: skip
    try:
        return _volumes[key]
    except KeyError:
        before = _forgotten
    try:
        folded = _fold(settings, direction, tensors, geometry)
    except (Exception, _core.Panic) as error:
        if is_from_outside(error, of_engine=False):
            raise
        say(f"could not plan a 3-d convolution ({type(error).__name__}: {error}): torch computes it by itself")
        folded = None
    if settings.cache_decisions:
        with _lock:
            if before != _forgotten:
                return folded
            if len(_volumes) >= _MOST_ROUTES:
                _volumes.pop(next(iter(_volumes)))
            _volumes[key] = folded
    return folded


def _fold(
    settings: Settings, direction: str, tensors: tuple[Tensor | None, ...], geometry: Geometry
) -> _divided.Folded | None:
    input, weight, bias, *gradient = tensors
    assert input is not None
    assert weight is not None
    if not _are_known(direction, tensors, geometry):
        return None
    memory_format = memory_format_of(input, weight, bias, geometry)
    try:
        folded = _divided.fold(direction, input, weight, geometry, memory_format)
    except ValueError as error:  # torch reports what is wrong, in its own words
        if is_of_a_handler(error):
            raise
        return None
    if bias is not None and tuple(bias.shape) != (folded.output_shape[1],):
        return None
    if any(it is not None and tuple(it.shape) != folded.output_shape for it in gradient):
        return None
    _parts.update(part.key for part, *_ in folded.parts)
    device = input.device.type
    situation = _gpu.situation_of(device, rehearsed=device in rehearsed, index=input.device.index)
    # The first part stands for all, because they differ only in their sizes.
    plan = state().session.plan(folded.parts[0][0], device, settings, situation)
    return None if not plan.engines or plan.engines[0] in ("aten", "miopen") else folded


def _vendor(device: torch.device) -> bool | None:
    """Whether torch may use the vendor's library for what our engines do not know; None leaves it to the user's flag.
    On an affected card nothing unproven of it runs, whatever the flags say."""
    return False if _gpu.is_endangered(device, rehearsed=device.type in rehearsed) else None


def _computed(route: Route, device: torch.device, call: Callable[[Engine], Result]) -> tuple[Result, int]:
    """The result of the first of the route's engines that does not fail, and its index. The last engine's error goes to
    the caller, and so does an error that is not an engine's. Profilers see which engine computes."""
    for index, engine in enumerate(route.engines):
        try:
            if not _is_profiled():
                return call(engine), index
            with _profiled(f"unhang::{route.names[index]}"):
                return call(engine), index
        except (Exception, _core.Panic) as error:
            fault = fault_of(error, device)
            if index + 1 == len(route.engines) or fault is Fault.CALLERS:
                if isinstance(error, _core.Panic):
                    raise RuntimeError(f"unhang failed: {error}") from error
                raise
            if fault is Fault.ENGINES:
                _note_failure(route, route.names[index], error)
    raise AssertionError("a route has engines")


def _learn_time(route: Route, index: int, seconds: float, input: Tensor) -> None:
    """Learns how fast an engine is: only when warm, and on the CPU, where a call that returned has done its work."""
    watch = route.stopwatch
    if input.device.type != "cpu" or not state().learns_from_cpu:
        watch.calls = _TIMED_CALLS
        return
    if watch.calls > 0 and index == 0:
        watch.seconds = min(watch.seconds, seconds)
    watch.calls += 1
    if watch.calls == _TIMED_CALLS and watch.seconds < float("inf"):
        state().session.learn(route.problem, route.plan.engines[0], "works", watch.seconds, "timed in a run")


def _note_failure(route: Route, engine: str, error: BaseException) -> None:
    """Records that an engine failed, reports it once, and clears all plans: the engine is now excluded for this
    problem."""
    detail = f"{type(error).__name__}: {error}".splitlines()[0][:300]
    current = state()
    name = engine.partition("(")[0]
    current.session.note_failure(route.problem, route.task.device, name, detail)
    if not route.task.rehearsed and (route.task.device != "cpu" or current.learns_from_cpu):
        current.session.learn(route.problem, name, getattr(error, "verdict", "error"), None, detail)
    say(f"{engine} failed on {route.key} ({detail}); computed by the next engine, and not tried for it again")
    replan()


def replan() -> None:
    """Forgets all plans, because evidence or circumstances have changed."""
    global _forgotten
    with _lock:
        _forgotten += 1
        _forward_routes.clear()
        _backward_routes.clear()
        _volumes.clear()
        _core.forget_calls()


def _replan_one(problem: _core.Problem) -> None:
    """Forgets the plans for one convolution, because another engine was measured as faster."""
    global _forgotten
    with _lock:
        _forgotten += 1
        for cache in (_forward_routes, _backward_routes):
            for key in [key for key, route in cache.items() if route is not None and route.problem == problem]:
                del cache[key]
        _core.forget_calls()


def _route(
    cache: _Routes,
    key: Any,
    settings: Settings,
    direction: str,
    tensors: tuple[Tensor | None, ...],
    geometry: Geometry,
) -> Route | None:
    """Plans a convolution; None if our engines do not know it, and torch computes it as it would anyway."""
    global decisions
    before = _forgotten
    try:
        route = _plan(settings, direction, tensors, geometry)
    except (Exception, _core.Panic) as error:
        if is_from_outside(error, of_engine=False):
            raise
        say(f"could not plan a convolution ({type(error).__name__}: {error}): torch computes it by itself")
        route = None
    with _lock:
        decisions += 1
        if route is not None:
            # The report sums over all plans for the same problem under the same settings.
            known = routes.get((route.key, settings.token))
            if known is not None:
                route = route._replace(tally=_core.Tally(list(route.names), known.tally))
            elif len(routes) >= _MOST_ROUTES:
                routes.pop(next(iter(routes)))
            routes[(route.key, settings.token)] = route
        if settings.cache_decisions and before == _forgotten:
            cache.keep(key, route)
    if route is not None and settings.verbose:
        say(f"{route.key} -> {' then '.join(route.names)}: {route.plan.reason}")
    return route


def _plan(settings: Settings, direction: str, tensors: tuple[Tensor | None, ...], geometry: Geometry) -> Route | None:
    task = _task(settings, direction, tensors, geometry)
    if task is None:
        return None
    input = tensors[0]
    assert input is not None
    situation = _gpu.situation_of(task.device, rehearsed=task.rehearsed, index=input.device.index)
    plan, planned, tally = state().session.route(task.problem, task.device, settings, situation)
    for warning in plan.warnings:
        warn_once(warning)
    if not planned:
        return None
    names, computing, limits, bypass, races, labels = zip(*planned)
    engines: list[Engine] = []
    for name, computes, limit, may_lose in zip(names, computing, limits, races):
        engine = _bound(computes, task, may_lose=may_lose)
        if limit is not None:
            engine = _divided.TiledEngine(engine, limit, settings.pad_channels)
        engines.append(_watchdog.watched(engine, name, task))
    return Route(task, task.key, plan, names, tuple(engines), bypass, labels, tally, Stopwatch())


def _bound(name: str, task: Task, *, may_lose: bool = False) -> Engine:
    """The engine for a task; an engine that keeps something per task returns a new instance. If torch's kernels are
    next in the plan, tuning times them too, and plans again if they are faster."""
    engine = _ENGINES[name]
    if not isinstance(engine, JitEngine):
        return engine
    # A part of a 3-d convolution says nothing about torch's kernel for the whole.
    may_lose = may_lose and task.key not in _parts
    return engine.bind(task, functools.partial(_replan_one, task.problem) if may_lose else None)


def _task(settings: Settings, direction: str, tensors: tuple[Tensor | None, ...], geometry: Geometry) -> Task | None:
    """The task of these tensors (input, weight, bias, gradient of the output), if our engines know the convolution."""
    input, weight, bias, *gradient = tensors
    assert input is not None
    assert weight is not None
    if input.dim() not in (3, 4) or not _are_known(direction, tensors, geometry):
        return None
    flat = input.dim() == 3
    memory_format = memory_format_of(input, weight, bias, geometry)
    if flat:
        input, weight, geometry = with_height(input), with_height(weight), _geometry_with_height(geometry)
    try:
        problem = make_problem(input, weight, geometry, direction, memory_format)
    except (ValueError, IndexError) as error:  # torch reports what is wrong, in its own words
        if is_of_a_handler(error):
            raise
        return None
    if bias is not None and tuple(bias.shape) != (problem.output_shape[1],):
        return None
    for tensor in gradient:
        if tensor is not None and tuple((with_height(tensor) if flat else tensor).shape) != problem.output_shape:
            return None
    device = input.device.type
    played = device in rehearsed
    return Task(
        problem,
        memory_format,
        geometry.padding,
        device,
        played,
        _gpu.is_endangered(input.device, rehearsed=played),
        device == "cpu" and all(it.is_contiguous(memory_format=memory_format) for it in (input, weight)),
        settings.workspace_limit << 20,
        settings.tune,
    )


def _are_known(direction: str, tensors: tuple[Tensor | None, ...], geometry: Geometry) -> bool:
    """Whether our engines know tensors of this kind (input, weight, bias, gradient of the output)."""
    input, weight = tensors[:2]
    assert input is not None
    assert weight is not None
    # An ordinary convolution does not use it. Torch checks it all the same: in backward for any.
    unused = [] if geometry.transposed else geometry.output_padding
    return (
        input.dtype in DATA_TYPES
        and weight.dim() == input.dim()
        and input.numel() > 0
        and min(unused, default=0) >= 0
        and not (direction != "forward" and any(unused))
        and all(
            tensor.dtype is input.dtype and tensor.device == input.device and tensor.layout is torch.strided
            for tensor in tensors
            if tensor is not None
        )
    )


def _for_each_axis(geometry: Geometry, axes: int) -> Geometry | None:
    """The geometry with one number per axis: torch also accepts one for all. None if torch refuses it."""
    stride, padding, dilation, transposed, output_padding, groups = geometry
    if len(stride) == len(padding) == len(dilation) == len(output_padding) == axes:
        return geometry
    each = [list(it) * axes if len(it) == 1 else list(it) for it in (stride, padding, dilation, output_padding)]
    if axes < 1 or any(len(it) != axes for it in each):
        return None
    return Geometry(each[0], each[1], each[2], transposed, each[3], groups)


def _laid_out(input: Tensor, task: Task) -> Tensor:
    """The input of a 1-d convolution with a height, made contiguous first if the result should be. Otherwise torch's
    kernels would go by its strides, choose the one for channels_last, and lay out the result that way."""
    return with_height(input.contiguous() if task.memory_format is torch.contiguous_format else input)


def _geometry_with_height(geometry: Geometry) -> Geometry:
    stride, padding, dilation, transposed, output_padding, groups = geometry
    return Geometry([1, *stride], [0, *padding], [1, *dilation], transposed, [0, *output_padding], groups)
