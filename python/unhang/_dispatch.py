"""Our kernels in torch's dispatcher, and the op that carries a layer's settings in a token.

Kernels are registered once per device type and never removed, because another thread may be inside one at any time.
Whether they plan, and with which settings, is one value that each call reads once. Without it torch's own kernels
compute, as if ours were not there.

From torch 2.10 on, torch calls Rust kernels (``unhang-py``'s ``direct``), which compute what is known and leave the
rest to those here. Before, it calls those here (:mod:`unhang._direct`).

On an affected card MIOpen's own ops are ours too.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple, NoReturn

import torch

from unhang import _convolve, _core, _direct, _engines
from unhang._core import Settings, Ticket
from unhang._engines import (
    NO_FLAGS,
    Geometry,
    address_of,
    below_autograd,
    call_original_backward,
    call_with_flags,
    process_flags,
)
from unhang._state import renewed_after_fork, when_imported

Tensor = torch.Tensor
Gradients = tuple[Any, Any, Any]

#: Dispatch keys by device type. ROCm's tensors use CUDA's.
KEYS = {"cpu": "CPU", "cuda": "CUDA"}


_lock = renewed_after_fork(__name__, "_lock", threading.Lock)
# Collecting a library would unregister its kernels, so they are kept here for ever.
_libraries: dict[str, torch.library.Library] = {}
_behind: list[torch.library.Library] = []
#: The settings that are on in the process, for whichever device types. Layers without settings follow them.
process_settings: Settings | None = None
#: The settings for each device type's convolutions, if they are on.
active: dict[str, Settings] = {}
_is_tracing = torch._C._is_tracing
# Torch's function that sets what compiles this thread's frames, and returns what did. There is none before torch 2.
_frames = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
_set_frame_reader: Callable[[Any], Any] = getattr(_frames, "set_eval_frame", lambda _: None)
# What Inductor's C++ code passes to the dispatcher.
_CALLS_WITH_OPTIONAL_LISTS = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 12)
# Before torch 2, the switch that disables subclasses leaves modes on.
_MODES_STAY_ON = not hasattr(torch, "compile")


def _no_torch_function() -> AbstractContextManager[object]:
    """Keeps a user's torch function mode or tensor subclass from seeing what our kernels do inside: it would call the
    convolution again, and so us."""
    if _MODES_STAY_ON and torch._C._len_torch_function_stack():
        return _without_modes()
    return torch._C.DisableTorchFunction()


@contextmanager
def _without_modes() -> Iterator[None]:
    with torch._C.DisableTorchFunction():
        modes = [torch.overrides._pop_mode() for _ in range(torch._C._len_torch_function_stack())]
        try:
            yield
        finally:
            for mode in reversed(modes):
                torch.overrides._push_mode(mode)


class Entered(NamedTuple):
    """A block of :func:`unhang.enabled` that a thread is inside."""

    settings: Settings
    devices: tuple[str, ...]

    def by_device(self) -> _core.Block:
        """The settings of each device type."""
        return _core.Block(*(self.settings if device in self.devices else None for device in KEYS))


# Torch copies what is stored under this name to the threads on which autograd computes gradients. Before torch 2 there
# is no such place, and gradients are planned like the forward with the same weight.
_BLOCK = "unhang block"
_is_stored, _stored = getattr(torch._C, "_is_key_in_tls", None), getattr(torch._C, "_get_obj_in_tls", None)
_thread = threading.local()
_Found = tuple[Entered, _core.Block]


def _count(found: object) -> None:
    """Adds a reference, which somebody else drops."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(found))


def _takes_references() -> bool:
    """Whether torch takes over its caller's reference to what is stored: it drops one in the end, and some versions
    never counted it."""
    probe = object()
    before = sys.getrefcount(probe)
    torch._C._stash_obj_in_tls(_BLOCK, probe)
    takes = sys.getrefcount(probe) == before
    for stored in (probe, None) if takes else ():
        _count(stored)
    torch._C._stash_obj_in_tls(_BLOCK, None)
    return takes


_torch_takes_references = _is_stored is not None and _takes_references()


def _store(found: _Found | None) -> None:
    """Has torch carry this to the threads that compute gradients for this thread."""
    if _is_stored is not None:
        if _torch_takes_references:
            _count(found)
        torch._C._stash_obj_in_tls(_BLOCK, found)


def entered() -> Entered | None:
    """The block that this thread is inside, or the block that requested the gradients that it computes."""
    found: _Found | None = getattr(_thread, "block", None) or _stash()
    return None if found is None else found[0]


if _is_stored is not None and _stored is not None:
    _core.carry_blocks(_is_stored, _stored, _BLOCK)


def _stash() -> _Found | None:
    """What torch carried to this thread, or what a block of this thread left for torch to carry."""
    return _stored(_BLOCK) if _is_stored is not None and _stored is not None and _is_stored(_BLOCK) else None


def way_back() -> Callable[[], None]:
    """A function that puts this thread inside the block that it is inside now, or none. Ask for it before
    :func:`enter`: Ctrl-C may arrive at any moment after it. What torch carried to the thread is not its own: it leaves
    with the gradients that it came with."""
    own, carried = getattr(_thread, "block", None), _stash()
    return lambda: _put(own, carried)


def enter(block: Entered) -> None:
    """Puts this thread inside that block."""
    found = (block, block.by_device())
    _put(found, found)


def _put(own: _Found | None, carried: _Found | None) -> None:
    _thread.block = own
    _store(carried)
    _core.set_block(None if own is None else own[1])


def settings_here() -> Settings | None:
    """The settings that are on for this thread."""
    block = entered()
    return process_settings if block is None else block.settings


def prepare(devices: tuple[str, ...]) -> None:
    """Puts our kernels in front of torch's for those device types; they do nothing yet."""
    for device in devices:
        register(device)
    _direct.keep_keys_apart(_libraries, _register_for_python)


def activate(devices: tuple[str, ...], settings: Settings) -> None:
    """Plans the convolutions of those device types with these settings, on every thread, from the next call on."""
    for device in KEYS:
        _core.activate(device, settings if device in devices else None)
    active.update(dict.fromkeys(devices, settings))  # never empty in between: other threads look at it
    for device in active.keys() - set(devices):
        del active[device]


def deactivate() -> None:
    """Leaves convolutions to torch from the next call on."""
    active.clear()
    for device in KEYS:
        _core.activate(device, None)


def register(device: str) -> None:
    """Puts our kernels in front of torch's for a device type, once for the life of the process."""
    if device in _libraries:
        return
    with _lock:
        if device in _libraries:
            return
        library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            # On CUDA's key torch has its own kernel for the gradients, and replacing it is intended. Torch warns once
            # for all operators, so Rust's kernel, whose warning no filter would catch, comes after Python's.
            warnings.filterwarnings("ignore", category=UserWarning)
            is_direct = _direct.open_direct_path()
            for name, kernel in _kernels(device).items():
                if not is_direct or torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", KEYS[device]):
                    library.impl(name, kernel, KEYS[device])
        if is_direct:
            _direct.keep_keys_apart(_libraries, _register_for_python)
            _register_for_python(device)
            _core.register_direct_path(device, KEYS[device])
        _libraries[device] = library
    when_imported("torchgen.aoti.fallback_ops", _leave_gradients_to_the_dispatcher)
    when_imported("torch._inductor.config", _keep_compiled_code_apart)


def _leave_gradients_to_the_dispatcher(operators: Any) -> None:
    """Removes the gradients' op from the table of those that Inductor's ``cpp_wrapper`` calls directly, past the
    dispatcher. Before torch 2.12 it cannot call that op otherwise, and compiling ends with an error. On an affected
    card that is better than MIOpen."""
    if not (_CALLS_WITH_OPTIONAL_LISTS or _engines.miopens_ops_are_closed):
        return
    name, table = "aten.convolution_backward.default", getattr(operators, "inductor_fallback_ops", None)
    if isinstance(table, dict):
        table.pop(name, None)
    elif isinstance(table, set):
        table.discard(name)


def _keep_compiled_code_apart(config: Any) -> None:
    """Keeps Inductor's cache, whose key contains this setting, from returning what it compiled with the complete
    table."""
    name = "unsafe_marked_cacheable_functions"
    marked = getattr(config, name, None)
    if isinstance(marked, dict):
        setattr(config, name, {**marked, "unhang: gradients of convolutions through the dispatcher": "1"})


def _register_for_python(device: str) -> None:
    """Registers Python's kernels where Rust's find them: under a key that no device uses."""
    library = torch.library.Library("aten", "IMPL")
    for name, kernel in _kernels(device).items():
        library.impl(name, kernel, _direct.PYTHON[device])
    _behind.append(library)


def _kernel(compute: Callable[..., Any]) -> Callable[..., Any]:
    """What torch's dispatcher calls to have this computed, with the direct path's ticket first. Neither a user's torch
    function mode nor torch's compiler sees what happens inside: where the compiler left a function as it is, it reads
    those that are called there."""

    def kernel(*arguments: Any) -> Any:
        # First, so that whatever else runs on this thread meanwhile, such as a signal handler, finds none.
        ticket = _core.take_ticket()
        reader = _set_frame_reader(None)
        try:
            with _no_torch_function():
                return compute(ticket, *arguments)
        finally:
            _set_frame_reader(reader)

    # All kernels have the same code, and it is the code that is marked.
    when_imported("torch._dynamo.decorators", lambda marks: marks.skip(kernel) if hasattr(marks, "skip") else None)
    return kernel


def _kernels(device: str) -> dict[str, Any]:
    """Our kernels for a device type, each with its op."""

    planned_by = functools.partial(_core.forward_settings, device)
    planned_back_by = functools.partial(_core.backward_settings, device)
    on_cpu = device == "cpu"

    def convolution(
        ticket: Ticket | None, input: Tensor, weight: Tensor, bias: Tensor | None, *geometry: Any
    ) -> Tensor:
        if _is_tracing():
            # Torch's tracer does not record this op but the one with flags; that reaches us again, below the tracer.
            recorded: Tensor = torch.ops.aten._convolution(input, weight, bias, *geometry, *process_flags())
            return recorded
        settings = planned_by(address_of(weight))
        if settings is not None:
            return _convolve.forward(settings, input, weight, bias, Geometry(*geometry), ticket)
        # On CPU tensors the flags change nothing, and reading them takes as long as a small convolution.
        return call_with_flags(input, weight, bias, geometry, NO_FLAGS if on_cpu else process_flags())

    def convolution_with_flags(
        ticket: Ticket | None, input: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any
    ) -> Tensor:
        """The op that traced graphs call. Their flags say which vendor library the tracing process had; we decide
        that."""
        settings = planned_by(address_of(weight))
        if settings is None:
            return call_with_flags(input, weight, bias, rest[:6], rest[6:])
        return _convolve.forward(settings, input, weight, bias, Geometry(*rest[:6]), ticket)

    def convolution_backward(
        ticket: Ticket | None,
        grad_output: Tensor,
        input: Tensor,
        weight: Tensor,
        bias_sizes: list[int] | None,
        *rest: Any,
    ) -> Gradients:
        settings = planned_back_by(address_of(weight))
        geometry, output_mask = Geometry(*rest[:6]), rest[6]
        if settings is None:
            mask = (bool(output_mask[0]), bool(output_mask[1]), bool(output_mask[2]))
            return call_original_backward(grad_output, input, weight, geometry, mask, bias_sizes)
        return _convolve.backward(settings, grad_output, input, weight, bias_sizes, geometry, output_mask, ticket)

    return {
        "convolution": _kernel(convolution),
        "_convolution": _kernel(convolution_with_flags),
        "convolution_backward": _kernel(convolution_backward),
    }


# ---- MIOpen's own ops, closed on an affected card ----
#
# A saved graph contains ``cudnn_enabled=True`` for its batch norms, whatever the process's flag says, and every MIOpen
# op can be called by name. On an affected card those ops are replaced: by our planned convolutions, by torch's own
# batch norm, or by an error if torch has nothing of the same shape. They stay replaced for the life of the process.
#
# The replacements are in front of the backends' kernels and do not take their place. If the plan itself says MIOpen,
# torch calls the same op, which must reach MIOpen.

# Every call passes this key, on tensors of any device and in inference mode too. It is above the backends and below
# autograd.
_EVERY_CALL = "BackendSelect"


def close_miopens_ops() -> None:
    """Replaces MIOpen's own ops, once."""
    with _lock:
        if _engines.miopens_ops_are_closed:
            return
        library = torch.library.Library("aten", "IMPL")
        for name, kernel in _REPLACEMENTS.items():
            if hasattr(torch.ops.aten, name):
                library.impl(name, _unless_planned(name, kernel), _EVERY_CALL)
        _behind.append(library)
        _engines.miopens_ops_are_closed = True


def _unless_planned(name: str, replacement: Callable[..., Any]) -> Callable[..., Any]:
    """The replacement, or the original op if one of our engines computes with it."""

    @functools.wraps(replacement)
    def kernel(*arguments: Any) -> Any:
        if not _engines.reaches_miopen():
            return replacement(*arguments)
        op = getattr(torch.ops.aten, name).default
        return op._op_dk(getattr(torch._C.DispatchKey, KEYS[arguments[0].device.type]), *arguments)

    return kernel


def _batch_norm(*arguments: Any) -> Any:
    return torch.ops.aten.native_batch_norm(*arguments)


def _batch_norm_backward(input: Tensor, grad_output: Tensor, weight: Tensor, *rest: Any) -> Any:
    *statistics, epsilon = rest
    return torch.ops.aten.native_batch_norm_backward(
        grad_output, input, weight, *statistics, True, epsilon, [True, True, True]
    )


def _convolution(
    self: Tensor, weight: Tensor, bias: Tensor | None, padding: list[int], stride: list[int], *rest: Any
) -> Any:
    dilation, groups = rest[:2]
    no_padding = [0] * len(stride)
    return torch.ops.aten.convolution(self, weight, bias, stride, padding, dilation, False, no_padding, groups)


def _convolution_transpose(
    self: Tensor, weight: Tensor, bias: Tensor | None, padding: list[int], output_padding: list[int], *rest: Any
) -> Any:
    stride, dilation, groups = rest[:3]
    return torch.ops.aten.convolution(self, weight, bias, stride, padding, dilation, True, output_padding, groups)


def _convolution_relu(
    self: Tensor, weight: Tensor, bias: Tensor | None, stride: list[int], padding: list[int], *rest: Any
) -> Any:
    return _convolution(self, weight, bias, padding, stride, *rest).relu_()


def _convolution_add_relu(self: Tensor, weight: Tensor, z: Tensor, alpha: float | None, *rest: Any) -> Any:
    bias, stride, padding, *others = rest
    output = _convolution(self, weight, bias, padding, stride, *others)
    return output.add_(z, alpha=1.0 if alpha is None else alpha).relu_()


def _refuse(*_: Any) -> NoReturn:
    raise RuntimeError(
        "unhang: an RNN of MIOpen's was called by name on an affected card, where nothing of MIOpen runs unproven; "
        "nn.LSTM, nn.GRU and nn.RNN use torch's own kernels while torch.backends.cudnn.enabled is False"
    )


_REPLACEMENTS: dict[str, Callable[..., Any]] = {
    "miopen_batch_norm": _batch_norm,
    "miopen_batch_norm_backward": _batch_norm_backward,
    "miopen_convolution": _convolution,
    "miopen_depthwise_convolution": _convolution,
    "miopen_convolution_transpose": _convolution_transpose,
    "miopen_convolution_relu": _convolution_relu,
    "miopen_convolution_add_relu": _convolution_add_relu,
    "miopen_rnn": _refuse,
    "miopen_rnn_backward": _refuse,
}


# ---- our own op: a layer's settings travel through compiled and traced graphs as a token ----

# Before torch 2 sizes are plain numbers.
_INT = "SymInt" if hasattr(torch, "compile") else "int"
_GEOMETRY = (
    f"{_INT}[] stride, {_INT}[] padding, {_INT}[] dilation, bool transposed, {_INT}[] output_padding, {_INT} groups"
)
_ops = torch.library.Library("unhang", "DEF")
_ops.define(f"convolution(Tensor input, Tensor weight, Tensor? bias, {_GEOMETRY}, str token) -> Tensor")
_ops.define(
    f"convolution_backward(Tensor grad_output, Tensor input, Tensor weight, {_INT}[]? bias_sizes, {_GEOMETRY}, "
    "bool[3] output_mask, str token) -> (Tensor, Tensor, Tensor)"
)

_tokens: dict[str, Settings] = {}


def settings_of(token: str) -> Settings:
    """The settings whose text is this token."""
    if not token:  # a layer without settings
        return settings_here() or Settings()
    settings = _tokens.get(token)
    if settings is None:
        settings = _tokens[token] = Settings.from_token(token)
    return settings


def _token_forward(_: None, input: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any) -> Tensor:
    *geometry, token = rest
    return _convolve.forward(settings_of(token), input, weight, bias, Geometry(*geometry))


def _token_backward(
    _: None, grad_output: Tensor, input: Tensor, weight: Tensor, bias_sizes: list[int] | None, *rest: Any
) -> Gradients:
    *geometry, output_mask, token = rest
    gradients = _convolve.backward(
        settings_of(token), grad_output, input, weight, bias_sizes, Geometry(*geometry), output_mask
    )
    return _defined(gradients, input)


def _defined(gradients: Gradients, input: Tensor) -> Gradients:
    """Graphs have no undefined tensors, so an empty one stands for a gradient that was not requested."""
    data, weights, bias = (input.new_empty(0) if it is None else it for it in gradients)
    return data, weights, bias


def _fake_forward(input: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any) -> Tensor:
    output: Tensor = torch.ops.aten.convolution(input, weight, bias, *rest[:-1])
    return output


def _fake_backward(grad_output: Tensor, input: Tensor, *rest: Any) -> Gradients:
    output_mask = rest[-2]
    gradients = torch.ops.aten.convolution_backward(grad_output, input, *rest[:-1])
    data, weights, bias = (it if wanted else None for it, wanted in zip(gradients, output_mask))
    return _defined((data, weights, bias), input)


class _Convolution(torch.autograd.Function):
    """Keeps the token with the graph."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any) -> Tensor:
        ctx.save_for_backward(input, weight)
        ctx.save_for_forward(input, weight)
        ctx.rest = rest
        ctx.bias_sizes = None if bias is None else list(bias.shape)
        with below_autograd():
            output: Tensor = torch.ops.unhang.convolution(input, weight, bias, *rest)
        ctx.output_shape = output.shape
        return output

    @staticmethod
    def jvp(ctx: Any, input: Tensor | None, weight: Tensor | None, bias: Tensor | None, *_: None) -> Tensor:
        """The tangent of the output: a convolution is linear in each of its operands."""
        primal_input, primal_weight = ctx.saved_tensors
        parts = []
        if input is not None:
            parts.append(torch.ops.unhang.convolution(input, primal_weight, None, *ctx.rest))
        if weight is not None:
            parts.append(torch.ops.unhang.convolution(primal_input, weight, None, *ctx.rest))
        if bias is not None:
            parts.append(bias.view(1, -1, *[1] * (len(ctx.output_shape) - 2)).expand(ctx.output_shape))
        tangent: Tensor = functools.reduce(torch.add, parts)
        return tangent

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Any, ...]:
        input, weight = ctx.saved_tensors
        *geometry, token = ctx.rest
        mask = [
            ctx.needs_input_grad[0],
            ctx.needs_input_grad[1],
            ctx.bias_sizes is not None and ctx.needs_input_grad[2],
        ]
        gradients = torch.ops.unhang.convolution_backward(
            grad_output, input, weight, ctx.bias_sizes, *geometry, mask, token
        )
        wanted = [gradient if needed else None for gradient, needed in zip(gradients, mask)]
        return (*wanted, *[None] * len(ctx.rest))


class _ConvolutionBackward(torch.autograd.Function):
    """Gradients of gradients use aten's own formula, and so the process's settings, not the layer's."""

    @staticmethod
    def forward(ctx: Any, grad_output: Tensor, input: Tensor, weight: Tensor, *rest: Any) -> tuple[Tensor, ...]:
        ctx.save_for_backward(grad_output, input, weight)
        ctx.set_materialize_grads(False)
        ctx.rest = rest
        with below_autograd():
            gradients: tuple[Tensor, ...] = torch.ops.unhang.convolution_backward(grad_output, input, weight, *rest)
        return gradients

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        grad_output, input, weight = ctx.saved_tensors
        _, *geometry, mask, _ = ctx.rest
        asked = [grad if wanted else None for grad, wanted in zip(grads, mask)]
        needed = list(ctx.needs_input_grad[:3])
        results = torch.ops.aten._convolution_double_backward(*asked, grad_output, weight, input, *geometry, needed)
        return (*(it if wanted else None for it, wanted in zip(results, needed)), *[None] * len(ctx.rest))


def _autograd_forward(*arguments: Any) -> Tensor:
    output: Tensor = _Convolution.apply(*arguments)
    return output


def _autograd_backward(*arguments: Any) -> tuple[Tensor, ...]:
    gradients: tuple[Tensor, ...] = _ConvolutionBackward.apply(*arguments)
    return gradients


for _key in KEYS.values():
    _ops.impl("convolution", _kernel(_token_forward), _key)
    _ops.impl("convolution_backward", _kernel(_token_backward), _key)
_ops.impl("convolution", _autograd_forward, "Autograd")
_ops.impl("convolution_backward", _autograd_backward, "Autograd")
if hasattr(torch.library, "register_fake"):
    # Fake tensors name the device that they stand for, and torch's layout of the result depends on it.
    torch.library.register_fake("unhang::convolution", _fake_forward, lib=_ops)
    torch.library.register_fake("unhang::convolution_backward", _fake_backward, lib=_ops)
else:
    _ops.impl("convolution", _fake_forward, "Meta")
    _ops.impl("convolution_backward", _fake_backward, "Meta")


# ---- FLOPs of our own op ----


def _add_formulas(counter: Any) -> None:
    """Makes torch's FLOP counter treat our op as the convolution that it is. Its own formulas know no token."""
    registry = getattr(counter, "flop_registry", {})
    for name in ("convolution", "convolution_backward"):
        formula = registry.get(getattr(torch.ops.aten, name))
        if formula is not None:
            registry[getattr(torch.ops.unhang, name)] = functools.partial(_count_without_token, formula)


def _count_without_token(formula: Any, *arguments: Any, **options: Any) -> Any:
    return formula(*arguments[:-1], **options)


# Done when somebody imports it: importing it here would take longer than importing this package, because it imports
# Triton.
when_imported("torch.utils.flop_counter", _add_formulas)
