"""The direct path: from torch 2.10 on, repeated convolutions are computed without Python.

Torch calls Rust kernels through its C interface. Calls that these do not know go to Python's kernels, which are
registered under a dispatch key that no device uses. Another such key leads to torch's own kernels. After a convolution
was planned and computed here, :func:`remember_forward` and :func:`remember_backward` say how to compute the same call
from then on. They do so if everything about it is settled. ``UNHANG_DIRECT=0`` leaves every call to Python.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection

import torch

from unhang import _core, _gpu
from unhang._engines import NO_FLAGS, AtenEngine, CpuEngine, Engine
from unhang._gpu import Route
from unhang._jit import BoundJit
from unhang._state import say, state
from unhang._talk import is_of_a_handler
from unhang._watchdog import WatchedEngine

Tensor = torch.Tensor

#: The dispatch keys of Python's kernels, by device type; set once the direct path is open.
PYTHON: dict[str, str] = {}
# Keys of devices that torch names and for which nobody has kernels.
_UNUSED = ("VE", "IPU", "PrivateUse3", "PrivateUse2", "MAIA", "HPU")
# Torch's table marks keys that lead to its own kernels in this way.
_TORCHS = "[default backend kernel]"
_OPS = ("aten::convolution", "aten::_convolution", "aten::convolution_backward")
# Torch's own kernels with the vendor's library off, as the engine ``aten`` calls them.
_ATEN_FLAGS = (False, False, False, True)

# The first and the last version of torch with which this was tested. A newer one is tried in a child first.
_TESTED = ((2, 10), (2, 15))

_is_open: bool | None = None
#: The dispatch keys that led to torch's own kernels, the current one last.
ORIGINAL: list[str] = []

_TORCH = _core.Label("", "torch")


def open_direct_path() -> bool:
    """Whether torch has what calls without Python need; determined once."""
    global _is_open
    if _is_open is None:
        _is_open = _open()
    return _is_open


def _open() -> bool:
    if os.environ.get("UNHANG_DIRECT", "1") == "0":
        return False
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if version < _TESTED[0] or len(_unused()) < 3:
        return False
    if version > _TESTED[1] and not _is_sound_in_a_child():
        return False
    return open_here()


def open_here() -> bool:
    """Opens the direct path in this process, if every entry of torch returns what is assumed."""
    original, *python = _unused()[:3]
    try:
        _core.open_direct_path(_keys(original), (_keys(python[0]), _keys(python[1])))
        _check_arguments()
    except RuntimeError as error:
        if is_of_a_handler(error):
            raise
        reason = str(error).partition("\n")[0]
        say(f"{reason}: convolutions go through Python, which costs some microseconds each")
        return False
    ORIGINAL.append(original)
    PYTHON.update(cpu=python[0], cuda=python[1])
    return True


def _unused() -> list[str]:
    """Dispatch keys under which nobody has registered a convolution."""
    found = torch._C._dispatch_has_kernel_for_dispatch_key
    return [key for key in _UNUSED if hasattr(torch._C.DispatchKey, key) and not any(found(op, key) for op in _OPS)]


def _keys(name: str) -> int:
    return int(torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, name)).raw_repr())


def _is_still_ours(key: str, mark: str) -> bool:
    """Whether torch's table leads from a borrowed key to the same place as when it was borrowed."""
    for op in _OPS:
        lines = torch._C._dispatch_dump_table(op).splitlines()
        if not any(line.startswith(f"{key}: ") and mark in line for line in lines):
            return False
    return True


def keep_keys_apart(registered: Collection[str], register: Callable[[str], None]) -> None:
    """Borrows other keys if somebody has since registered convolutions under ours, such as an extension for a device
    that torch names. ``register`` puts Python's kernels under the new key of a device type that has them."""
    if not _is_open:
        return
    marks = {name: "unhang" if name in registered else _TORCHS for name in PYTHON}
    moved = [name for name, key in PYTHON.items() if not _is_still_ours(key, marks[name])]
    lost = not _is_still_ours(ORIGINAL[-1], _TORCHS)
    if not moved and not lost:
        return
    unused = [key for key in _unused() if key not in (*PYTHON.values(), *ORIGINAL)]
    if len(unused) < len(moved) + lost:
        say("other extensions use the dispatch keys that unhang borrows, and none is left: disable one of them")
        return
    for name in moved:
        PYTHON[name] = unused.pop()
        if name in registered:
            register(name)
    if lost:
        ORIGINAL.append(unused.pop())
    _core.move_direct_path(_keys(ORIGINAL[-1]), (_keys(PYTHON["cpu"]), _keys(PYTHON["cuda"])))


# ---- whether torch is built as assumed ----

_ECHO = "(Tensor input, Tensor? other, SymInt[] numbers, SymInt[]? sizes, bool flag, SymInt number, bool[3] mask)"
_echoes: list[torch.library.Library] = []


def _check_arguments() -> None:
    """Has torch call a Rust kernel that returns its arguments. Raises ``RuntimeError`` if they differ."""
    name = f"echo_{len(_echoes)}"
    library = torch.library.Library("unhang", "FRAGMENT")
    library.define(f"{name}{_ECHO} -> (Tensor, Tensor)")
    _echoes.append(library)
    _core.register_echo(name)
    echo = getattr(torch.ops.unhang, name)
    # The program may have set another default device.
    input, other = torch.arange(3.0, device="cpu"), torch.arange(5.0, device="cpu")
    for given, numbers, sizes, flag, number, mask in (
        (other, [1], None, True, 3, [True, False, False]),
        (None, [1, -2, 3], [7], False, -5, [False, True, True]),
        (None, [], [], True, 2**40, [False, False, True]),
        (other, list(range(9)), [4, 5, 6, 7, 8], False, 0, [True, True, True]),
    ):
        same, read = echo(input, given, numbers, sizes, flag, number, mask)
        expected = [flag, number]
        for it in (numbers, sizes or [], mask):
            expected += [len(it), *it]
        if same is not (input if given is None else given) or read.tolist() != expected:
            raise RuntimeError("this torch passes arguments in a way that unhang does not know")


def _is_sound_in_a_child() -> bool:
    """Whether the direct path computes correctly with an untested torch. Tried in a child, once for this torch: it may
    crash if types have another layout in memory."""
    name = f"direct path, torch {torch.__version__} {torch.version.git_version}"
    known = state().session.canary(name)
    if known is None:
        say(
            f"torch {torch.__version__} is newer than unhang was tested with: trying the direct path in a child process"
        )
        outcome = _gpu.supervise_canary(["direct"], 60.0)
        known = outcome.canary()
        if outcome.began:
            state().session.keep_canary(name, *known, True)
        say(f"the direct path: {known[0]} ({known[1]})")
    return known[0] == "works"


def remember_forward(
    ticket: _core.Ticket, route: Route, tensors: tuple[Tensor, Tensor], bias: Tensor | None, output: Tensor
) -> None:
    """Says how to compute, from now on, the forward that its route's first engine just computed."""
    if bias is not None and not bias.is_contiguous():
        return
    step = _step(route, *tensors, output)
    if step is not None:
        ticket.remember_forward(step, route.labels[0])


def remember_redispatched(ticket: _core.Ticket, device: torch.device, tally: _core.Tally) -> None:
    """Says that torch computes the ticket's forward from now on, as it just did."""
    if device.type == "cpu":  # elsewhere the process's flags count, and may change
        ticket.remember_forward(_core.Step.original(NO_FLAGS, tally, False), _TORCH)


def remember_backward(
    ticket: _core.Ticket,
    routes: dict[str, Route],
    tensors: tuple[Tensor, Tensor, Tensor],
    data: Tensor | None,
    weights: Tensor | None,
) -> None:
    """Says how to compute, from now on, the gradients that the routes' first engines just computed. The tensors are
    gradient of the output, input and weight; the results are those that the caller gets."""
    grad_output, input, weight = tensors
    toward_data, toward_weights = routes.get("backward-data"), routes.get("backward-weights")
    steps: list[_core.Step | None] = [None, None]
    # A gradient with another layout is copied for each call, such as that of a sum, which is one expanded element.
    grad_output = grad_output.contiguous(memory_format=next(iter(routes.values())).task.memory_format)
    if toward_data is not None and data is not None:
        steps[0] = _step(toward_data, grad_output, weight, data)
        if steps[0] is None:
            return
    if toward_weights is not None and weights is not None:
        steps[1] = _step(toward_weights, input, grad_output, weights)
        if steps[1] is None:
            return
    if len({route.names[0] for route in routes.values()}) == 1:
        ticket.remember_backward(*steps)


def _step(route: Route, first: Tensor, second: Tensor, result: Tensor) -> _core.Step | None:
    """How a route's first engine computes operands with this layout; None if Python must do it."""
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
