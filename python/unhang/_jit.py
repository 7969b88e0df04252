"""The engine ``jit``: our own GPU kernels, on torch's tensors as they lie, on torch's stream.

A convolution's kernels are looked up once and kept with its route. A new convolution is served by generic kernels while
its own are compiled in the background, then these are swapped in. The first result of every kernel is compared with our
CPU engine on a few elements, once for this machine; a wrong one is never used again. While a graph is recorded nothing
is compiled, loaded or compared: what is not ready is declined, and the plan's next engine computes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

from unhang import _core, _gpu, _verify
from unhang._engines import Geometry, Gradients, Mask, Route, deterministic, problem_of
from unhang._state import renewed_after_fork, say, state

Tensor = torch.Tensor

# Our kernels read and write four elements at a time.
_ALIGNMENT = 16
# So many kernels that are waiting to be compiled are worth a word.
_MANY = 16

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
    # A view that begins in the middle of another tensor: memory of its own is aligned.
    return tensor.clone(memory_format=form) if tensor.data_ptr() % _ALIGNMENT else tensor


class WrongResult(RuntimeError):
    """A kernel's first result differs from the CPU's."""

    #: What evidence is to say of it.
    verdict = "wrong"


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
_lock = renewed_after_fork(__name__, "_lock", threading.Lock)


class JitEngine:
    """Our GPU kernels."""

    def forward(self, route: Route, input: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
        loaded = route.kernel
        if (
            loaded is not None
            and loaded.settled
            and loaded.direction == "forward"
            and loaded.input_shape == input.shape
            and geometry.padding == route.padding
        ):
            return _launch(route, loaded, input, weight, bias, geometry)
        problem = problem_of(route, input, weight, geometry).with_direction("forward")
        return _load_and_launch(route, problem, input, weight, bias, geometry)

    def backward(
        self, route: Route, grad_output: Tensor, input: Tensor, weight: Tensor, geometry: Geometry, mask: Mask
    ) -> Gradients:
        loaded = route.kernel
        if (
            loaded is not None
            and loaded.settled
            and mask[0] != mask[1]
            and loaded.direction == ("backward-data" if mask[0] else "backward-weights")
            and loaded.input_shape == input.shape
            and geometry.padding == route.padding
        ):
            if mask[0]:
                return _launch(route, loaded, grad_output, weight, None, geometry), None, None
            return None, _launch(route, loaded, input, grad_output, None, geometry), None
        data = weights = None
        problem = problem_of(route, input, weight, geometry)
        if mask[0]:
            toward_data = problem.with_direction("backward-data")
            data = _load_and_launch(route, toward_data, grad_output, weight, None, geometry)
        if mask[1]:
            toward_weights = problem.with_direction("backward-weights")
            weights = _load_and_launch(route, toward_weights, input, grad_output, None, geometry)
        return data, weights, None


def _load_and_launch(
    route: Route, problem: _core.Problem, first: Tensor, second: Tensor, bias: Tensor | None, geometry: Geometry
) -> Tensor:
    loaded = _load(route, problem, first.get_device())
    known = verdict(route, loaded.kernel)
    if known == "works":
        if loaded.kernel.provisional and _is_capturing(first.get_device()):
            say(
                "a graph is being recorded while kernels are still being compiled: it keeps the generic ones, which "
                "are slower; call unhang.wait_for_kernels() after a first pass, and run one more, before recording"
            )
        result = _launch(route, loaded, first, second, bias, geometry)
        if route.kernel is loaded:
            _settle(route, loaded, first, second, bias, geometry)
        return result
    if known is not None:
        raise WrongResult(f"the first result of {loaded.kernel.choice} was wrong on this machine")
    if _is_capturing(first.get_device()):
        raise _core.GpuDeclined("a graph is being recorded, and the first result of these kernels was not compared yet")
    result = _launch(route, loaded, first, second, bias, geometry)
    if route.kernel is not loaded:
        return result  # others were taken, which need no workspace, and compared
    finding = _verify.compare(problem.direction, geometry, first, second, bias, result)
    if finding.right is None:
        return result  # numbers that cannot be compared: the next result may
    keep_verdict(route, loaded.kernel, problem, finding)
    if not finding.right:
        raise WrongResult(f"{loaded.kernel.choice} was wrong: {finding.detail}")
    _settle(route, loaded, first, second, bias, geometry)
    return result


def _settle(
    route: Route, loaded: Loaded, first: Tensor, second: Tensor, bias: Tensor | None, geometry: Geometry
) -> None:
    """Notes whether these kernels are the last word, whose result was right and is queued."""
    if not route.tune or loaded.kernel.provisional:
        loaded.settled = not loaded.kernel.provisional
        return
    from unhang import _tuning  # late: it measures with what is defined here

    loaded.settled = _tuning.step(route, loaded, first, second, bias, geometry)


def _is_capturing(index: int) -> bool:
    return _gpu.gpu(index).is_capturing(stream_of(index))


def _load(route: Route, problem: _core.Problem, index: int) -> Loaded:
    """The kernels of a problem: the route's own, or those of one of its tiles, or what is there meanwhile."""
    device = _gpu.gpu(index)
    before = route.kernel if route.kernel is not None and route.kernel.problem == problem else None
    try:
        kernel = device.prepare(problem, stream_of(index), route.workspace_limit, deterministic())
    except _core.GpuFailure as error:
        if before is None:
            raise
        say(f"{problem.key}: its own kernels cannot be had ({error}): the generic ones go on")
        before.settled = True
        return before
    if before is not None and before.kernel.kernels == kernel.kernels and before.workspace == kernel.workspace_bytes:
        return before
    if kernel.provisional and device.waiting >= _MANY:
        say(
            "many GPU kernels are being compiled in the background; generic ones serve meanwhile "
            "(unhang.wait_for_kernels() waits for them, `unhang kernels warm --seen` compiles ahead)"
        )
    loaded = route.kernel = Loaded(kernel, problem, route.memory_format)
    return loaded


def _launch(
    route: Route, loaded: Loaded, first: Tensor, second: Tensor, bias: Tensor | None, geometry: Geometry
) -> Tensor:
    form = route.memory_format
    first_address, second_address = first.data_ptr(), second.data_ptr()
    if (
        (first_address | second_address) % _ALIGNMENT
        or not first.is_contiguous(memory_format=form)
        or not second.is_contiguous(memory_format=form)
    ):
        first, second = dense(first, form), dense(second, form)
        first_address, second_address = first.data_ptr(), second.data_ptr()
    if bias is not None and not bias.is_contiguous():
        bias = bias.contiguous()
    device = first.device
    result = allocate(loaded.result_shape, loaded.result_stride, first.dtype, device)
    workspace = None
    if loaded.workspace:
        try:
            workspace = allocate((loaded.workspace,), (1,), torch.uint8, device)
        except torch.cuda.OutOfMemoryError as error:
            del result
            return _without_workspace(route, loaded, first, second, bias, geometry, error)
    loaded.launch(
        first_address,
        second_address,
        0 if bias is None else bias.data_ptr(),
        result.data_ptr(),
        0 if workspace is None else workspace.data_ptr(),
        stream_of(first.get_device()),
    )
    return result


def _without_workspace(
    route: Route,
    loaded: Loaded,
    first: Tensor,
    second: Tensor,
    bias: Tensor | None,
    geometry: Geometry,
    error: Exception,
) -> Tensor:
    """Computes with kernels that need none, from now on: memory that is short now will be short again."""
    route.workspace_limit = 0
    try:
        result = _load_and_launch(route, loaded.problem, first, second, bias, geometry)
    except (_core.GpuDeclined, _core.GpuFailure):
        raise error from None
    say(f"{loaded.problem.key}: no memory for a workspace of {loaded.workspace} bytes; computed without one")
    return result


def compute(
    kernel: _core.Kernel, problem: _core.Problem, first: Tensor, second: Tensor, form: torch.memory_format
) -> Tensor:
    """What these kernels make of dense operands, whatever is known of them: for the canary."""
    result = torch.empty(problem.result_shape, dtype=first.dtype, device=first.device, memory_format=form)
    workspace = first.new_empty(max(kernel.workspace_bytes, 1), dtype=torch.uint8)
    stream = stream_of(first.get_device())
    kernel.launch(first.data_ptr(), second.data_ptr(), 0, result.data_ptr(), workspace.data_ptr(), stream)
    return result


def _label(route: Route, kernel: _core.Kernel) -> str:
    """What verdicts on kernels are kept under. A rehearsal's are filed apart."""
    return f"jit:kernel:{kernel.kernels}{' (rehearsed)' if route.rehearsed else ''}"


def verdict(route: Route, kernel: _core.Kernel) -> str | None:
    """What is known of the first result of kernels on this machine; None where there was none."""
    return _verdict(_label(route, kernel))


def _verdict(label: str) -> str | None:
    known = _verdicts.get(label)
    if known is None:
        current = state()
        found = current.store.canary(current.machine.fingerprint, label)
        if found is not None:
            known = _verdicts[label] = found[0]
    return known


def keep_verdict(route: Route, kernel: _core.Kernel, problem: _core.Problem, finding: _verify.Finding) -> None:
    """Keeps how the first result of kernels compared, in this process and in the store."""
    current = state()
    label = _label(route, kernel)
    verdict = "works" if finding.right else "wrong"
    with _lock:
        _verdicts[label] = verdict
    detail = f"{kernel.choice}, first result: {finding.detail}"
    current.store.set_canary(current.machine.fingerprint, label, verdict, detail)
    if finding.right and not route.rehearsed:
        current.planner.learn(problem, "jit", "works", None, detail)
