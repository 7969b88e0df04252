"""How each engine computes a convolution on torch's tensors, and whose fault its errors are.

All of this runs below autograd: tensors have no graph on entry and none on return. An engine has two entries,
``forward`` and ``backward``; the latter computes the gradients that the mask requests (input, weight, bias). An engine
may leave the bias's to its caller, because it is a plain sum.

Tensors arrive four-dimensional; 1-d convolutions have already got a height of one.
"""

from __future__ import annotations

import ctypes
import enum
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, NamedTuple, Optional, Protocol

import torch

from unhang import _AT_BOUNDARY, _core
from unhang._state import renewed_after_fork, threads
from unhang._talk import is_of_a_handler

Tensor = torch.Tensor
Gradients = tuple[Optional[Tensor], Optional[Tensor], Optional[Tensor]]
Mask = tuple[bool, bool, bool]

_KEY = torch._C.DispatchKey.CompositeExplicitAutograd
# The kernels that torch would have run. They are called past the dispatcher, so that ours is not called again.
_original_forward = torch.ops.aten._convolution.default._op_dk
_original_backward = torch.ops.aten.convolution_backward.default._op_dk

_NOTHING = nullcontext()

DATA_TYPES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16", torch.float64: "f64"}


class Geometry(NamedTuple):
    """Everything about a convolution except its tensors, in the order of torch's own arguments."""

    stride: list[int]
    padding: list[int]
    dilation: list[int]
    transposed: bool
    output_padding: list[int]
    groups: int


class Task(NamedTuple):
    """What an engine must know about a convolution apart from its tensors: one value, created once for all calls."""

    problem: _core.Problem
    #: The layout of the result.
    memory_format: torch.memory_format
    padding: list[int]
    #: Where the tensors live, and whether they stand for a described card's.
    device: str = "cpu"
    rehearsed: bool = False
    #: Whether the card that would compute is affected.
    affected: bool = False
    #: Whether the tensors are the problem's own, whole, and where and how our CPU engine needs them. It is part of a
    #: route's key. Whoever passes on parts of them sets it to False.
    ready: bool = False
    #: The most bytes of workspace for our GPU kernels, and whether to measure candidates for them.
    workspace_limit: int = 0
    tune: bool = False

    @property
    def key(self) -> str:
        """The problem's key; each access creates a new text."""
        return self.problem.key


class Engine(Protocol):
    """Computes convolutions on torch's tensors."""

    def forward(self, task: Task, input: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
        """The output."""

    def backward(
        self, task: Task, grad_output: Tensor, input: Tensor, weight: Tensor, geometry: Geometry, mask: Mask
    ) -> Gradients:
        """The gradients of input, weight and bias that the mask requests; the bias's may be left out."""


@contextmanager
def below_autograd() -> Iterator[None]:
    """The context in which engines compute: as when the dispatcher calls them, below autograd's kernels."""
    guard = torch._C._AutoDispatchBelowAutograd()
    if hasattr(guard, "__enter__"):
        with guard:
            yield
    else:  # before torch 2, the object itself is the guard
        try:
            yield
        finally:
            del guard


def deterministic() -> bool:
    """Whether the user asked for the same bits every time."""
    return torch._C._get_cudnn_deterministic() or torch._C._get_deterministic_algorithms()


class AtenEngine:
    """Torch's own kernels, with the vendor's library off. On CPU tensors, this is what torch does by itself."""

    def forward(self, task: Task, input: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
        output: Tensor = _original_forward(_KEY, input, weight, bias, *geometry, False, False, False, True)
        return output

    def backward(
        self, task: Task, grad_output: Tensor, input: Tensor, weight: Tensor, geometry: Geometry, mask: Mask
    ) -> Gradients:
        if grad_output.device.type == "cpu":
            return call_original_backward(grad_output, input, weight, geometry, mask)
        with vendor_library(on=False):
            return call_original_backward(grad_output, input, weight, geometry, mask)


class MiopenEngine:
    """Torch with AMD's convolution library; on an affected card, never with its exhaustive search."""

    def forward(self, task: Task, input: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
        with planned(), reaching_miopen():
            output: Tensor = _original_forward(
                _KEY, input, weight, bias, *geometry, _may_search(task), deterministic(), True, allows_tf32()
            )
        return output

    def backward(
        self, task: Task, grad_output: Tensor, input: Tensor, weight: Tensor, geometry: Geometry, mask: Mask
    ) -> Gradients:
        with vendor_library(on=True, benchmark=_may_search(task)), planned(), reaching_miopen():
            return call_original_backward(grad_output, input, weight, geometry, mask)


def _may_search(task: Task) -> bool:
    """Whether the vendor's library may time its own kernels, as the user set it: on an affected card, some hang."""
    return torch.backends.cudnn.benchmark and not (task.affected or task.rehearsed)


class CpuEngine:
    """Our CPU engine. Tensors of an accelerator are copied to the CPU and the result back; no parameter is moved."""

    def forward(self, task: Task, input: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
        if task.ready:
            # The shortcut for a repeated convolution on CPU tensors.
            return run_on_cpu(task.problem, input, weight, bias, task.memory_format)
        problem = problem_of(task, input, weight, geometry)
        return _copy_and_run_cpu(task, problem, input, weight, bias).to(input.device)

    def backward(
        self, task: Task, grad_output: Tensor, input: Tensor, weight: Tensor, geometry: Geometry, mask: Mask
    ) -> Gradients:
        data = weights = None
        problem = problem_of(task, input, weight, geometry)
        if mask[0]:
            toward_data = problem.with_direction("backward-data")
            data = _copy_and_run_cpu(task, toward_data, grad_output, weight, None).to(input.device)
        if mask[1]:
            toward_weights = problem.with_direction("backward-weights")
            weights = _copy_and_run_cpu(task, toward_weights, input, grad_output, None).to(input.device)
        return data, weights, None


def problem_of(task: Task, input: Tensor, weight: Tensor, geometry: Geometry) -> _core.Problem:
    """The task's problem, or that of one of its tiles."""
    if tuple(input.shape) == task.problem.input_shape and geometry.padding == task.padding:
        return task.problem
    return make_problem(input, weight, geometry, task.problem.direction, task.memory_format)


def make_problem(
    input: Tensor, weight: Tensor, geometry: Geometry, direction: str, memory_format: torch.memory_format
) -> _core.Problem:
    """The problem of these tensors. Raises ``ValueError`` if our engines do not know it."""
    return _core.Problem(
        tuple(input.shape),
        tuple(weight.shape),
        *geometry,
        DATA_TYPES[input.dtype],
        "nhwc" if memory_format is torch.channels_last else "nchw",
        direction,
    )


def memory_format_of(input: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> torch.memory_format:
    """Torch's layout of the result, of the forward and of the gradients. It depends on the order of the operands'
    strides, with or without gaps, and on the kernel that torch would choose. Compiled graphs rely on it."""
    last = torch.channels_last_3d if input.dim() == 5 else torch.channels_last
    # Torch makes the input of a 1-d convolution contiguous before it adds a height, but leaves the weight unchanged.
    flat = input.dim() == 3
    wide = with_height(weight) if flat else weight
    if not _is_channels_last(wide) and (flat or not _is_channels_last(input)):
        return torch.contiguous_format
    try:
        if input.device.type != "cuda" and hasattr(torch._C, "_conv_determine_backend_memory_format"):
            backend = torch._C._select_conv_backend(input, weight, bias, *geometry)
            if flat:
                input = with_height(input.new_empty(input.shape))
            found: torch.memory_format = torch._C._conv_determine_backend_memory_format(input, wide, backend)
            return last if found is last else torch.contiguous_format
        if input.device.type == "cuda":
            # It depends on the vendor's library, its variables and the process's flags. With that library off, a
            # compiled graph expects another layout than torch's own kernel returns; the graph's expectation counts.
            from torch._subclasses import FakeTensorMode

            with FakeTensorMode() as mode:
                fakes = [None if it is None else mode.from_tensor(it) for it in (input, weight, bias)]
                predicted = torch.ops.aten.convolution(*fakes, *geometry)
                expected = torch.empty_like(with_height(predicted) if flat else predicted, memory_format=last)
                is_last = predicted.stride() == (expected.squeeze(2) if flat else expected).stride()
            return last if is_last else torch.contiguous_format
        if (flat and geometry.transposed) or input.dim() == 5:
            # Before torch had that function, its kernels for these followed the input, which is contiguous here, or
            # knew no other layout.
            return torch.contiguous_format
    except Exception as error:  # a torch without it, or arguments that it rejects: it will report that itself
        if is_from_outside(error, of_engine=False):
            raise
    return last


def with_height(tensor: Tensor) -> Tensor:
    """A 1-d convolution's tensor as a 2-d one's."""
    return tensor.unsqueeze(2)


def _is_channels_last(tensor: Tensor) -> bool:
    """Whether torch takes a tensor's strides for channels_last or channels_last_3d, by its own rules."""
    if tensor.dim() not in (4, 5) or tensor.stride(1) == 0:
        return False
    shape, strides = tensor.shape, tensor.stride()
    least = 0
    for dimension in (1, *range(tensor.dim() - 1, 1, -1), 0):
        if shape[dimension] == 0 or strides[dimension] < least:
            return False
        if dimension == 0 and least == strides[1]:
            return False  # N111 and similar could be either: torch says contiguous
        least = strides[dimension] * max(shape[dimension], 1)
    return True


def _copy_and_run_cpu(task: Task, problem: _core.Problem, first: Tensor, second: Tensor, bias: Tensor | None) -> Tensor:
    form = task.memory_format
    first, second = first.to("cpu").contiguous(memory_format=form), second.to("cpu").contiguous(memory_format=form)
    return run_on_cpu(problem, first, second, None if bias is None else bias.to("cpu"), form)


if hasattr(torch._C, "_data_address"):
    _storage_of: Callable[[Tensor], int] = torch._C._data_address

    def address_of(tensor: Tensor) -> int:
        """The address of a tensor's first element, for reading. Torch's own ``data_ptr()`` also allows writing, so it
        copies memory that is shared until written."""
        return _storage_of(tensor) + int(tensor.storage_offset()) * tensor.element_size()

else:  # before torch 2.3

    def address_of(tensor: Tensor) -> int:
        """The address of a tensor's first element."""
        return tensor.data_ptr()


def aligned(tensor: Tensor) -> Tensor:
    """A dense tensor with aligned elements: in somebody else's buffer they may not be."""
    return tensor if address_of(tensor) % tensor.element_size() == 0 else tensor.clone()


def run_on_cpu(
    problem: _core.Problem,
    first: Tensor,
    second: Tensor,
    bias: Tensor | None,
    memory_format: torch.memory_format,
    *,
    by_definition: bool = False,
) -> Tensor:
    """Computes on dense CPU tensors of that memory format; by definition, if the result judges another engine."""
    if memory_format is torch.contiguous_format:
        result = first.new_empty(problem.result_shape)
    else:
        result = torch.empty(problem.result_shape, dtype=first.dtype, device=first.device, memory_format=memory_format)
    if bias is not None:
        bias = aligned(bias.contiguous())
    first, second = aligned(first), aligned(second)
    _core.run_cpu(
        problem,
        (address_of(first), first.numel()),
        (address_of(second), second.numel()),
        None if bias is None else (address_of(bias), bias.numel()),
        (result.data_ptr(), result.numel()),
        threads(),
        by_definition,
    )
    return result


def call_original_backward(
    grad_output: Tensor,
    input: Tensor,
    weight: Tensor,
    geometry: Geometry,
    mask: Mask,
    bias_sizes: Sequence[int] | None = None,
    *,
    vendor: bool | None = None,
) -> Gradients:
    """Torch's own gradients, with the process's flags; ``vendor`` as in :func:`call_original_forward`."""
    if vendor is not None and torch.backends.cudnn.enabled is not vendor:
        with vendor_library(on=vendor):
            return call_original_backward(grad_output, input, weight, geometry, mask, bias_sizes)
    if bias_sizes is None and mask[2] and len(grad_output.shape) > 1:
        bias_sizes = [grad_output.shape[1]]
    with _device_of(grad_output):
        gradients = _original_backward(_KEY, grad_output, input, weight, bias_sizes, *geometry, list(mask))
    data, weights, bias = (gradient if wanted else None for gradient, wanted in zip(gradients, mask))
    return data, weights, bias


def _device_of(tensor: Tensor) -> AbstractContextManager[object]:
    """Makes a tensor's accelerator the current one. For gradients, torch has a kernel on CUDA's key that does so, and
    ours replaces it. In the forward direction, torch's kernels do it themselves."""
    if tensor.device.type != "cuda" or tensor.device.index == torch.cuda.current_device():
        return _NOTHING
    return torch.cuda.device(tensor.device)


def call_original_forward(
    input: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry, *, vendor: bool | None = None
) -> Tensor:
    """What torch would have done by itself, with the user's flags. ``vendor`` decides whether the vendor's library may
    compute, whatever the flag says."""
    benchmark, same, enabled, tf32 = NO_FLAGS if input.device.type == "cpu" else process_flags()
    enabled = enabled if vendor is None else vendor
    return call_with_flags(input, weight, bias, geometry, (benchmark, same, enabled, tf32))


def cudnn_flags() -> tuple[bool, bool]:
    """Whether the vendor's library may compute, and whether it measures."""
    return torch._C._get_cudnn_enabled(), torch._C._get_cudnn_benchmark()


def set_cudnn_flags(enabled: bool, benchmark: bool) -> None:
    """Sets both below ``torch.backends``, because its setters raise after ``torch.backends.disable_global_flags()``."""
    torch._C._set_cudnn_enabled(enabled)
    torch._C._set_cudnn_benchmark(benchmark)


#: Flags for CPU tensors, on which they change nothing.
NO_FLAGS = (False, False, False, False)


def process_flags() -> tuple[bool, bool, bool, bool]:
    """What torch itself passes with a convolution: benchmark, deterministic, vendor's library enabled, TF32 allowed."""
    return torch._C._get_cudnn_benchmark(), deterministic(), torch._C._get_cudnn_enabled(), allows_tf32()


def call_with_flags(
    input: Tensor, weight: Tensor, bias: Tensor | None, geometry: Sequence[Any], flags: Sequence[bool]
) -> Tensor:
    """What torch would have done by itself for a call with these flags. If the third is set, torch for HIP calls a
    MIOpen op, which would call this again if it were replaced."""
    output: Tensor
    if flags[2] and miopens_ops_are_closed:
        with reaching_miopen():
            output = _original_forward(_KEY, input, weight, bias, *geometry, *flags)
    else:
        output = _original_forward(_KEY, input, weight, bias, *geometry, *flags)
    return output


if hasattr(torch._C, "_get_fp32_precision_getter"):

    def allows_tf32() -> bool:
        """Whether convolutions may round to TF32. After use of the newer interface, the older one's flag raises."""
        return bool(torch._C._get_fp32_precision_getter("cuda", "conv") == "tf32")

else:  # before torch 2.9

    def allows_tf32() -> bool:
        """Whether convolutions may round to TF32."""
        return torch.backends.cudnn.allow_tf32


_flag_lock = renewed_after_fork(__name__, "_flag_lock", threading.RLock)


@contextmanager
def vendor_library(*, on: bool, benchmark: bool = False) -> Iterator[None]:
    """Turns torch's use of the vendor's convolution library on or off for one call.

    Torch has no argument for this in the backward direction, and the flag belongs to the process. While this is held,
    another thread's convolutions *outside* unhang, batch norms and RNNs see it too. The lock keeps our own calls apart.
    This is a generator, because an outside exception may arrive at any time: what began the change also ends it.
    """
    wanted = (on, benchmark)
    with _flag_lock:
        before = cudnn_flags()
        try:
            if before != wanted:
                set_cudnn_flags(*wanted)
            yield
        finally:
            if before != wanted:
                set_cudnn_flags(*before)


# ---- our own calls of MIOpen, which pass where the calls of others are planned first ----

#: Whether MIOpen's own ops in torch were replaced (:mod:`unhang._dispatch`).
miopens_ops_are_closed = False
_thread = threading.local()


def reaches_miopen() -> bool:
    """Whether MIOpen's own ops are the original ones on this thread."""
    return getattr(_thread, "is_open", False)


@contextmanager
def reaching_miopen() -> Iterator[None]:
    """While this is held, MIOpen's own ops are the original ones on this thread, because an engine needs them."""
    before = reaches_miopen()
    _thread.is_open = True
    try:
        yield
    finally:
        _thread.is_open = before


class planned:
    """While this is held, the thread's MIOpen calls count as already planned, and pass the library at MIOpen's boundary
    untouched."""

    __slots__ = ()

    _say: Callable[[int], None] | None = None
    _asked = False

    def __enter__(self) -> None:
        if not planned._asked:
            planned._say, planned._asked = _find_boundary(), True
        if planned._say is not None:
            planned._say(1)

    def __exit__(self, *_: object) -> None:
        if planned._say is not None:
            planned._say(0)


def _find_boundary() -> Callable[[int], None] | None:
    """The library's function, if the library is preloaded, was loaded before torch, or came with torch by auditing."""
    for name in (None, os.environ.get("UNHANG_MIOPEN"), _AT_BOUNDARY):
        # Finds only what is already loaded.
        mode = ctypes.DEFAULT_MODE if not name else os.RTLD_NOLOAD | os.RTLD_NOW
        with suppress(OSError, AttributeError):
            found = ctypes.CDLL(name or None, mode=mode).unhang_miopen_planned
            found.argtypes, found.restype = [ctypes.c_int], None
            say: Callable[[int], None] = found
            return say
    return None


# ---- whose fault an error is: only an engine's own counts against it ----

# A driver's messages when every later call fails too, whoever caused it: a device-side assert of the user's, or a
# kernel that wrote past its end earlier. (The names of CUDA's and HIP's errors, and torch's texts for them.)
_STICKY = (
    "device-side assert",
    "illegal memory access",
    "illegal address",
    "illegal instruction",
    "misaligned address",
    "unspecified launch failure",
    "launch_failed",
    "ecc error",
    "hardware exception",
)


class Fault(enum.Enum):
    """Who caused an error, and what follows from it."""

    #: The engine failed: the next one is tried, and this one not again.
    ENGINES = "engine's"
    #: Circumstances, or an engine that began nothing: the next one is tried, and this one is not blamed.
    NOBODYS = "nobody's"
    #: The program is out of memory, the device has failed for everybody, or the error is the program's own: the caller
    #: gets it unchanged.
    CALLERS = "caller's"


def fault_of(error: BaseException, device: torch.device) -> Fault:
    """Whose fault an engine's error on a device is."""
    if isinstance(error, _core.GpuDeclined):
        return Fault.NOBODYS  # it began nothing, so it may take the next call
    if isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError)) or is_from_outside(error):
        return Fault.CALLERS
    text = str(error).lower()
    if "out of memory" in text or "out_of_memory" in text or "outofmemory" in text or "can't allocate memory" in text:
        # The driver's own memory, for our kernels that it loads: another engine's may already be loaded.
        return Fault.NOBODYS if isinstance(error, _core.GpuFailure) else Fault.CALLERS
    if any(words in text for words in _STICKY) or not is_sound(device):
        return Fault.CALLERS
    return Fault.ENGINES


def is_from_outside(error: BaseException, *, of_engine: bool = True) -> bool:
    """Whether an error is the program's own and only came up while our code ran: its limit or filter, its
    class of errors (as another thread may raise here), or what its signal handler raised. What its filter makes of a
    warning is its own if an engine warns, not if our planning does."""
    if isinstance(error, _core.Panic):
        return False
    if isinstance(error, Warning):
        return of_engine
    if isinstance(error, RecursionError):
        return True
    if type(error).__module__.partition(".")[0] not in ("builtins", "torch", "unhang"):
        return True
    return is_of_a_handler(error)


def is_sound(device: torch.device) -> bool:
    """Whether a device still accepts work; after a sticky error no engine can compute on it. Does not wait."""
    if device.type != "cuda":
        return True
    try:
        torch.cuda.current_stream(device).query()
    except Exception as error:
        if is_of_a_handler(error):
            raise
        return False
    return True
