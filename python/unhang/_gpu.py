"""The GPUs of this process for our kernels: torch's loaded driver, opened once per device, and the elements of a result
to compare. Also what is allowed on a device, and the canaries without which nothing runs on an affected card. Kernels
are launched on torch's tensors, with memory from torch's allocator and on torch's stream."""

from __future__ import annotations

import atexit
import glob
import math
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from unhang import _core
from unhang._engines import Engine, Task, address_of, aligned
from unhang._state import is_unshielded, renewed_after_fork, say, state
from unhang._talk import Progress

Tensor = torch.Tensor

# How many seconds the end of a process may wait for a kernel that is being compiled: a compiler must not be running
# while the libraries under it are unloaded.
_PATIENCE_AT_EXIT = 10.0

# Seconds between checks of how many kernels are left to compile.
_LOOKS_EVERY = 0.5

#: If it is "emulator", our GPU kernels compute a rehearsal's CPU tensors on an emulated card: the described one,
#: instruction by instruction, many thousand times slower than a real one.
REHEARSAL = "UNHANG_REHEARSE_GPU"
#: The index of the card that a rehearsal plays: torch's index of the CPU tensors' device.
REHEARSED = -1

# The general kernels of the package, if it was built with them.
_SHIPPED = os.path.join(os.path.dirname(__file__), "kernels")

# By device index: the open device, or why it could not be opened.
_opened: dict[int, _core.Gpu | str] = {}
_lock = renewed_after_fork(__name__, "_lock", threading.Lock)
os.register_at_fork(after_in_child=_opened.clear)


def found(index: int) -> _core.Gpu | str:
    """The device with that index, or why our kernels cannot be used on it."""
    known = _opened.get(index)
    if known is None:
        with _lock:
            known = _opened.get(index)
            if known is None:
                known = _open(index)
                if not isinstance(known, str):
                    known.take_tunings(state().store)  # what was measured before on this device
                _opened[index] = known
    return known


def gpu(index: int) -> _core.Gpu:
    """The device with that index. Raises ``GpuDeclined`` if our kernels cannot be used on it."""
    known = found(index)
    if isinstance(known, str):
        raise _core.GpuDeclined(known)
    return known


def close() -> None:
    """Forgets the open devices. For tests."""
    with _lock:
        _opened.clear()


def opened() -> list[_core.Gpu]:
    """The open devices."""
    return [device for device in _opened.values() if not isinstance(device, str)]


def _open(index: int) -> _core.Gpu | str:
    if state().forked:
        return "a forked child cannot use the GPU that its parent opened"
    try:
        if index == REHEARSED:
            if os.environ.get(REHEARSAL) != "emulator":
                return f"a rehearsal computes on CPU tensors, and our GPU kernels need a GPU, or {REHEARSAL}=emulator"
            return _core.Gpu.open_emulated(state().machine, shipped_folder=_SHIPPED)
        if torch.version.hip is not None:
            reported = getattr(torch.cuda.get_device_properties(index), "gcnArchName", None)
            return _core.Gpu.open_hip(index, state().machine, reported, shipped_folder=_SHIPPED)
        _name_nvrtc()
        return _core.Gpu.open_cuda(index)  # the driver counts as torch does: what CUDA_VISIBLE_DEVICES leaves
    except _core.GpuFailure as error:
        return str(error)


def _name_nvrtc() -> None:
    """Names the compiler in torch's own packages, for a process that has not loaded it yet."""
    if "UNHANG_NVRTC" in os.environ:
        return
    major = (torch.version.cuda or "").partition(".")[0]
    for folder in sys.path:
        compilers = sorted(glob.glob(f"{folder}/nvidia/*/lib/libnvrtc.so.{major}*"), key=len)
        if compilers:
            os.environ["UNHANG_NVRTC"] = compilers[0]
            return


def wait_for_kernels(seconds: float = 600.0) -> bool:
    """Waits until nothing is being compiled in the background; False if that many seconds passed first.

    A new convolution is computed by generic kernels until its own are compiled. Call this after a first pass where
    that matters: before recording a CUDA graph, and before measuring.
    """
    devices = opened()
    deadline = time.monotonic() + seconds
    total = sum(device.waiting for device in devices)
    progress = Progress("compiling kernels:", total)
    while True:
        left = deadline - time.monotonic()
        settled = all(device.settle(min(max(left, 0.0), _LOOKS_EVERY)) for device in devices)
        progress.at(total - sum(device.waiting for device in devices))
        if settled or left <= 0.0:
            progress.end()
            return settled


@atexit.register
def _close() -> None:
    for device in opened():
        device.close(_PATIENCE_AT_EXIT)


# ---- what a device allows, and the canaries that have to pass first ----

#: Seconds that a canary may take, instead of its engine's own limit. For rehearsals.
canary_deadline: float | None = None


def situation_of(device: str, *, rehearsed: bool, index: int | None = None) -> _core.Situation:
    """The situation for tensors of that device type, and of that device. Allows our kernels whose canaries passed."""
    if device == "cpu" and not rehearsed:
        return _core.Situation("cpu")
    current, place = state(), REHEARSED if device == "cpu" else index or 0
    affected = current.machine.affected if rehearsed else current.is_affected(place)
    is_hip = torch.version.hip is not None
    return current.session.situation(place, found(place), affected=affected, is_hip=is_hip)


def is_endangered(device: torch.device, *, rehearsed: bool) -> bool:
    """Whether tensors of that device would be computed by an RDNA1 card, or play one."""
    if rehearsed:
        return state().machine.affected
    return device.type == "cuda" and state().is_affected(device.index or 0)


def ensure_canary(engine: str, index: int) -> tuple[str, str]:
    """Runs the canary of one of torch's engines unless its verdict for that device is known, and keeps the verdict."""
    return state().session.ensure_canary(index, engine, supervise_canary, say, canary_deadline)


def ensure_families(index: int) -> None:
    """Runs the canaries of our kernel families that are not yet known for that device, and keeps their verdicts."""
    kernels = found(index)
    if not isinstance(kernels, str):
        state().session.ensure_families(index, kernels, supervise_canary, say, canary_deadline)
    elif index != REHEARSED:
        say(f"our GPU kernels are not used: {kernels}")


# ---- Python children: they find torch and unhang as this process does, and nothing in the working folder ----
#
# ``python -m`` and ``python -c`` import from the working folder first; if others can write it, that would be their
# code. The Rust side (``python.rs`` of ``unhang-probe``) defines what the child does about that, and why it does not
# use ``-P`` or ``-I``. This adds the folders from which this process imports, which a program may have changed since it
# started.


def start_python(module: str, arguments: list[str]) -> tuple[list[str], list[tuple[str, str | None]]]:
    """The command that runs a module, and the variables to change for it."""
    # As ASCII, because a path may not be valid text.
    command, changes = _core.python_start(sys.executable, ascii(_folders()), module, arguments)
    if sys.flags.no_user_site:
        changes.append(("PYTHONNOUSERSITE", "1"))
    return command, changes


def supervise_canary(arguments: list[str], seconds: float) -> _core.Outcome:
    """Runs a canary to its end within a deadline, which starts when it has imported torch."""
    command, changes = start_python("unhang._trials", ["canary", *arguments])
    return _core.supervise_canary(command, seconds, changes)


def changed_variables(variables: dict[str, str], changes: list[tuple[str, str | None]]) -> dict[str, str]:
    """The variables with these changes, for a child that nobody supervises."""
    unset = {name for name, value in changes if value is None}
    values = {name: value for name, value in changes if value is not None}
    return {name: value for name, value in {**variables, **values}.items() if name not in unset}


def _folders() -> list[str]:
    """The folders from which this process imports. The working folder is included only if the user named it in
    PYTHONPATH by its full path, or this very package was imported from it."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    named = {package, *os.environ.get("PYTHONPATH", "").split(os.pathsep)}
    kept = [it for it in sys.path if isinstance(it, str) and os.path.isabs(it) and (it in named or not _is_here(it))]
    return kept if package in kept else [*kept, package]


def _is_here(folder: str) -> bool:
    try:
        return os.path.samefile(folder, ".")
    except OSError:
        return False  # one of the two is gone, or an archive that is not a folder


# ---- launching kernels on torch's tensors ----

# Our kernels read and write four elements at a time.
ALIGNMENT = 16

try:
    _raw_stream: Callable[[int], int] = torch._C._cuda_getCurrentRawStream
    _current_device: Callable[[], int] = torch._C._cuda_getDevice
except AttributeError:  # a torch without CUDA and ROCm: only rehearsals get here, and they have neither
    pass
try:
    # The allocation of compiled graphs: it bypasses the dispatcher, which takes most of an allocation's time.
    _empty_strided: Callable[..., Tensor] | None = getattr(torch._C._dynamo.guards, "_empty_strided_cuda", None)
except AttributeError:  # before torch 2.0
    _empty_strided = None


def stream_of(index: int) -> int:
    """The stream on which torch queues work now. The CPU tensors of a rehearsal have none."""
    if index < 0:
        return 0
    return _raw_stream(index)


def allocate(shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Memory from torch's allocator, on its current stream."""
    global _empty_strided
    index = device.index
    if _empty_strided is not None and index is not None and index == _current_device():
        try:
            return _empty_strided(shape, stride, dtype)
        except torch.cuda.OutOfMemoryError:
            raise
        except RuntimeError:  # a torch that has the name but not the function
            _empty_strided = None
    return torch.empty_strided(shape, stride, dtype=dtype, device=device)


def dense(tensor: Tensor, form: torch.memory_format) -> Tensor:
    """The tensor as our kernels read it: in that layout, without gaps, aligned."""
    if not tensor.is_contiguous(memory_format=form):
        tensor = tensor.contiguous(memory_format=form)
    # A view may begin in the middle of another tensor; separate memory is aligned.
    return tensor.clone(memory_format=form) if address_of(tensor) % ALIGNMENT else tensor


class Loaded:
    """The kernels of one convolution, ready to launch."""

    __slots__ = (
        "direction",
        "input_shape",
        "kernel",
        "launch",
        "problem",
        "result_shape",
        "result_stride",
        "settled",
        "workspace",
    )

    def __init__(self, kernel: _core.Kernel, problem: _core.Problem, form: torch.memory_format) -> None:
        self.kernel = kernel
        self.problem = problem
        self.direction = problem.direction
        self.launch = kernel.launch
        self.input_shape = problem.input_shape
        self.result_shape = problem.result_shape
        self.result_stride = torch.empty(problem.result_shape, device="meta", memory_format=form).stride()
        self.workspace = kernel.workspace_bytes
        #: Whether nothing better is being compiled, and the first result was right.
        self.settled = False


def launch(loaded: Loaded, form: torch.memory_format, first: Tensor, second: Tensor, bias: Tensor | None) -> Tensor:
    """Queues the kernels on torch's stream and returns their future result. Raises torch's own error if there is no
    memory for it, and :class:`NoWorkspace` if there is only none for the workspace."""
    first_address, second_address = address_of(first), address_of(second)
    if (
        (first_address | second_address) % ALIGNMENT
        or not first.is_contiguous(memory_format=form)
        or not second.is_contiguous(memory_format=form)
    ):
        first, second = dense(first, form), dense(second, form)
        first_address, second_address = address_of(first), address_of(second)
    if bias is not None:
        bias = aligned(bias.contiguous())
    device = first.device
    result = allocate(loaded.result_shape, loaded.result_stride, first.dtype, device)
    workspace = None
    if loaded.workspace:
        try:
            workspace = allocate((loaded.workspace,), (1,), torch.uint8, device)
        except torch.cuda.OutOfMemoryError as error:
            raise NoWorkspace(str(error)) from error
    loaded.launch(
        first_address,
        second_address,
        0 if bias is None else address_of(bias),
        result.data_ptr(),
        0 if workspace is None else workspace.data_ptr(),
        stream_of(first.get_device()),
    )
    return result


class NoWorkspace(torch.cuda.OutOfMemoryError):
    """There is no memory for a kernel's workspace; kernels without one may still work."""


def compare(
    problem: _core.Problem, first: Tensor, second: Tensor, bias: Tensor | None, result: Tensor
) -> tuple[bool | None, str]:
    """Whether a few elements of a result are right (None: they cannot be compared), and how far they are off. The
    session decides which ones, and which parts of the operands they depend on; torch cuts those out and copies them to
    the CPU.

    It uses slices and one copy. Each copy waits for the device, and loading torch's kernels for lists of indices took
    longer than everything else in a first step here.
    """
    sample = _core.Sample(problem, bias is not None)
    if is_unshielded():
        # Torch's kernels are code for another chip here, and one that hangs would be blamed on ours. So whole tensors
        # are copied to the CPU.
        first, second, result = (it.to("cpu") for it in (first, second, result))
        bias = bias if bias is None else bias.to("cpu")
    tensors = (first, second, bias, result)
    parcel = result.new_zeros(len(sample))
    for begin, shape, pieces in sample.parts():
        part = parcel[begin : begin + math.prod(shape)].view(shape)
        for which, source, to in pieces:
            tensor = tensors[which]
            assert tensor is not None
            part[to] = tensor[source]
    parcel = parcel.to("cpu")
    return sample.finding((parcel.data_ptr(), parcel.numel()))


class Stopwatch:
    """How fast a route's first engine is; only if a call's return means that its work is done."""

    __slots__ = ("calls", "seconds")

    def __init__(self) -> None:
        self.calls = 0
        self.seconds = float("inf")


class Route(NamedTuple):
    """The plan for one direction of one convolution: which engines compute it, in which order, and why. It never
    changes: when evidence changes, another one replaces it, and calls under way keep theirs."""

    task: Task
    #: The problem's key.
    key: str
    plan: _core.Plan
    names: tuple[str, ...]
    engines: tuple[Engine, ...]
    bypass: tuple[bool, ...]
    #: The labels under which a layer counts a forward, by engine.
    labels: tuple[_core.Label, ...]
    tally: _core.Tally
    stopwatch: Stopwatch

    @property
    def problem(self) -> _core.Problem:
        """The convolution."""
        return self.task.problem

    @property
    def rehearsed(self) -> bool:
        """Whether the tensors stand for a described card's."""
        return self.task.rehearsed

    @property
    def kernel(self) -> Loaded | None:
        """Our kernels that are loaded for it, if they compute it."""
        for engine in self.engines:
            loaded = getattr(getattr(engine, "inner", engine), "loaded", None)
            if loaded is not None:
                assert isinstance(loaded, Loaded)
                return loaded
        return None
