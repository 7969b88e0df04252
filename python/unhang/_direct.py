"""The direct path: from torch 2.10 on, a repeated convolution is computed without Python.

Torch calls kernels of Rust's through its C interface. What these do not know goes to Python's kernels, which are
registered under a dispatch key that no device uses; torch's own kernels are reached through another such key. After a
convolution was planned and computed here, :func:`remember_forward` and :func:`remember_backward` say how the same
call is computed from then on, if nothing about it is open any more. ``UNHANG_DIRECT=0`` leaves every call to Python.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch

from unhang import _core
from unhang._engines import NO_FLAGS, AtenEngine, CpuEngine, Engine
from unhang._jit import BoundJit
from unhang._state import say
from unhang._watchdog import WatchedEngine

if TYPE_CHECKING:
    from unhang._convolve import Route

Tensor = torch.Tensor

#: The dispatch keys that Python's kernels are registered under, by device type; once the face is open.
PYTHON: dict[str, str] = {}
# Keys of devices that torch has names for and that nobody has kernels for.
_UNUSED = ("VE", "IPU", "PrivateUse3", "PrivateUse2", "MAIA", "HPU")
_OPS = ("aten::convolution", "aten::_convolution", "aten::convolution_backward")
# Torch's own kernels with the vendor's library off, as the engine ``aten`` calls them.
_ATEN_FLAGS = (False, False, False, True)

_is_open: bool | None = None

_TORCH = _core.Label("", "torch")


def open_face() -> bool:
    """Whether torch has what calls without Python need; asked of it once."""
    global _is_open
    if _is_open is None:
        _is_open = _open()
    return _is_open


def _open() -> bool:
    if os.environ.get("UNHANG_DIRECT", "1") == "0":
        return False
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 10):
        return False
    found = torch._C._dispatch_has_kernel_for_dispatch_key
    unused = [key for key in _UNUSED if hasattr(torch._C.DispatchKey, key) and not any(found(op, key) for op in _OPS)]
    if len(unused) < 3:
        return False
    sets = [int(torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key)).raw_repr()) for key in unused[:3]]
    try:
        _core.open_face(sets[0], (sets[1], sets[2]))
    except RuntimeError as error:
        say(f"{error}: convolutions go through Python, which costs some microseconds each")
        return False
    PYTHON.update(cpu=unused[1], cuda=unused[2])
    return True


def remember_forward(route: Route, tensors: tuple[Tensor, Tensor], bias: Tensor | None, output: Tensor) -> None:
    """Says how the forward that was just computed by its route's first engine is computed from now on."""
    if bias is not None and not bias.is_contiguous():
        return
    step = _step(route, *tensors, output)
    if step is not None:
        _core.remember_forward(step, route.labels[0])


def remember_redispatched(device: torch.device, tally: _core.Tally) -> None:
    """Remembers a forward that is torch's own to compute."""
    if device.type == "cpu":  # elsewhere the process's flags count, and may change
        _core.remember_forward(_core.Step.original(NO_FLAGS, tally, False), _TORCH)


def remember_backward(
    routes: dict[str, Route],
    tensors: tuple[Tensor, Tensor, Tensor],
    data: Tensor | None,
    weights: Tensor | None,
) -> None:
    """Says how the gradients that were just computed by the routes' first engines are computed from now on. The tensors
    are gradient of the output, input and weight; the results are as the caller gets them."""
    grad_output, input, weight = tensors
    toward_data, toward_weights = routes.get("backward-data"), routes.get("backward-weights")
    steps: list[_core.Step | None] = [None, None]
    if toward_data is not None and data is not None:
        steps[0] = _step(toward_data, grad_output, weight, data)
        if steps[0] is None:
            return
    if toward_weights is not None and weights is not None:
        steps[1] = _step(toward_weights, input, grad_output, weights)
        if steps[1] is None:
            return
    if len({route.names[0] for route in routes.values()}) == 1:
        _core.remember_backward(*steps)


def _step(route: Route, first: Tensor, second: Tensor, result: Tensor) -> _core.Step | None:
    """How a route's first engine computes operands that lie as these do; None where Python has to."""
    engine: Engine = route.engines[0]
    task, tally, bypass = route.task, route.tally, route.bypass[0]
    if type(engine) is AtenEngine:
        return _core.Step.original(_ATEN_FLAGS, tally, bypass) if first.device.type == "cpu" else None
    form = task.memory_format
    if not first.is_contiguous(memory_format=form) or not second.is_contiguous(memory_format=form):
        return None
    layout = (list(result.shape), list(result.stride()))
    if type(engine) is CpuEngine and task.ready:
        return _core.Step.cpu(task.problem, *layout, tally, bypass)
    watched = None
    if type(engine) is WatchedEngine:
        watched, engine = engine.subject(), engine.inner
    if type(engine) is BoundJit:
        loaded = engine.loaded
        if loaded is not None and loaded.settled and loaded.problem == task.problem:
            return _core.Step.gpu(loaded.kernel, *layout, tally, bypass, watched)
    return None
