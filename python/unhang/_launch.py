"""Launching our GPU kernels on torch's tensors: operands as the kernels want them, memory from torch's allocator,
torch's stream, and what is known of each kernel's first result."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

from unhang import _core
from unhang._engines import Task, address_of, aligned
from unhang._state import renewed_after_fork, state
from unhang._verify import Finding

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


# What is known of kernels on this machine, by what they are: the verdict on their first result.
_verdicts: dict[str, str] = {}
# A program that sees ever new sizes has ever new kernels; a verdict that is dropped here is the state's to know, or is
# found again.
_MOST_VERDICTS = 10_000
_lock = renewed_after_fork(__name__, "_lock", threading.Lock)


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


def compute(
    kernel: _core.Kernel, problem: _core.Problem, first: Tensor, second: Tensor, form: torch.memory_format
) -> Tensor:
    """What these kernels make of dense operands, whatever is known of them: for the canary."""
    result = torch.empty(problem.result_shape, dtype=first.dtype, device=first.device, memory_format=form)
    workspace = first.new_empty(max(kernel.workspace_bytes, 1), dtype=torch.uint8)
    stream = stream_of(first.get_device())
    kernel.launch(first.data_ptr(), second.data_ptr(), 0, result.data_ptr(), workspace.data_ptr(), stream)
    return result


def label(task: Task, kernel: _core.Kernel) -> str:
    """What verdicts on kernels are kept under. A rehearsal's are filed apart."""
    return f"jit:kernel:{kernel.kernels}{' (rehearsed)' if task.rehearsed else ''}"


def verdict(task: Task, kernel: _core.Kernel) -> str | None:
    """What is known of the first result of kernels on this machine; None where there was none."""
    name = label(task, kernel)
    known = _verdicts.get(name)
    if known is None:
        found = state().canary(name)
        if found is not None:
            known = found[0]
            _note(name, known)
    return known


def _note(name: str, known: str) -> None:
    with _lock:
        if len(_verdicts) >= _MOST_VERDICTS:
            _verdicts.pop(next(iter(_verdicts)))
        _verdicts[name] = known


def keep_verdict(task: Task, kernel: _core.Kernel, problem: _core.Problem, finding: Finding) -> None:
    """Keeps how the first result of kernels compared, in this process and in the store."""
    current = state()
    name = label(task, kernel)
    verdict = "works" if finding.right else "wrong"
    _note(name, verdict)
    detail = f"{kernel.choice}, first result: {finding.detail}"
    current.keep_canary(name, verdict, detail)
    if finding.right and not task.rehearsed:
        current.planner.learn(problem, "jit", "works", None, detail)
