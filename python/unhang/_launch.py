"""Our GPU kernels on torch's tensors: operands as the kernels want them, memory from torch's allocator, torch's stream,
and elements of a result to compare."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch

from unhang import _core
from unhang._engines import Engine, Task, address_of, aligned
from unhang._state import is_unshielded

Tensor = torch.Tensor

# Our kernels read and write four elements at a time.
ALIGNMENT = 16

try:
    _raw_stream: Callable[[int], int] = torch._C._cuda_getCurrentRawStream
    _current_device: Callable[[], int] = torch._C._cuda_getDevice
except AttributeError:  # a torch without CUDA and ROCm: only rehearsals come here, and they have neither
    pass
try:
    # What compiled graphs allocate by: it goes past the dispatcher, where most of an allocation's time is spent.
    _empty_strided: Callable[..., Tensor] | None = getattr(torch._C._dynamo.guards, "_empty_strided_cuda", None)
except AttributeError:  # before torch 2.0
    _empty_strided = None


def stream_of(index: int) -> int:
    """The stream that torch queues work on now. The CPU tensors of a rehearsal have none."""
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
        except RuntimeError:  # a torch that has the name and not the function
            _empty_strided = None
    return torch.empty_strided(shape, stride, dtype=dtype, device=device)


def dense(tensor: Tensor, form: torch.memory_format) -> Tensor:
    """The tensor as our kernels read it: in that order, without gaps, aligned."""
    if not tensor.is_contiguous(memory_format=form):
        tensor = tensor.contiguous(memory_format=form)
    # A view that begins in the middle of another tensor: separate memory is aligned.
    return tensor.clone(memory_format=form) if address_of(tensor) % ALIGNMENT else tensor


class Loaded:
    """The kernels of one convolution, ready to be launched."""

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
    """Queues the kernels on torch's stream and returns where their result will be. Raises torch's own error when there
    is no memory for it; :class:`NoWorkspace` when there is none for the workspace only."""
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
    """There is no memory for a kernel's workspace; kernels that need none may do."""


def compare(
    problem: _core.Problem, first: Tensor, second: Tensor, bias: Tensor | None, result: Tensor
) -> tuple[bool | None, str]:
    """Whether a few elements of a result are right (None: they cannot be compared), and how far they are off. Which
    ones, and what of the operands they depend on, is the session's to say; torch cuts it out and brings it to the CPU.

    By slices, and by one copy: each copy waits for the device, and loading torch's kernels for lists of indices took
    longer than all else that a first step does here.
    """
    sample = _core.Sample(problem, bias is not None)
    if is_unshielded():
        # Torch's kernels are code for another chip here, and one that hangs would be taken for ours: whole tensors are
        # brought to the CPU, which is a copy.
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
    """How fast a route's first engine is; only where a call's return means that the work is done."""

    __slots__ = ("calls", "seconds")

    def __init__(self) -> None:
        self.calls = 0
        self.seconds = float("inf")


class Route(NamedTuple):
    """One direction of one convolution, planned: who computes it, in which order they are asked, and why. Never changed
    once it is made: when evidence changes another one takes its place, and calls that are under way keep theirs."""

    task: Task
    #: The problem's key.
    key: str
    plan: _core.Plan
    names: tuple[str, ...]
    engines: tuple[Engine, ...]
    bypass: tuple[bool, ...]
    #: What a layer counts a forward under, by engine.
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
        """The kernels of ours that are loaded for it, if they compute it."""
        for engine in self.engines:
            loaded = getattr(getattr(engine, "inner", engine), "loaded", None)
            if loaded is not None:
                assert isinstance(loaded, Loaded)
                return loaded
        return None
