"""Layers: ``SafeConv2d``, patching a model in place, and names for the statistics."""

from __future__ import annotations

import copy
import functools
import inspect
import sys
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import nn

from unhang import _core, _dispatch, _statistics
from unhang._core import Settings
from unhang._state import settings_from, when_imported

Tensor = torch.Tensor
Model = TypeVar("Model", bound=nn.Module)

_CONFIG = "_unhang_config"
_TOKEN = "_unhang_token"
_ORIGINAL = "_unhang_original_class"

# Used at every forward of every layer, and counted inside it. It is a `with` and not a `try`: Ctrl-C may arrive between
# the beginning of a forward and a `try`, and the thread would be in the layer for ever.
_counts_of = _statistics.counts_of


def _settings_of(layer: nn.Module) -> Settings:
    """A layer's settings; the thread's and process's for a layer without any."""
    return _dispatch.settings_of(layer.__dict__.get(_TOKEN, ""))


def _configure(module: nn.Conv2d, config: Any) -> None:
    """Gives a layer its settings, as the text that graphs can hold. Eager code reads the text too: a
    ``Conv2dBypassConfig`` may be changed later, and graphs would not see that."""
    token = None if config is None else settings_from(config, "config").token
    module.__dict__[_CONFIG] = config
    module.__dict__.pop(_TOKEN, None)
    if token is not None:
        module.__dict__[_TOKEN] = token


class _GivenConfig:
    """The attribute ``config`` of a safe layer: what it was given, or None when it follows the process's settings.
    Settings that are assigned to it are the layer's from then on. A patched layer takes anything else as the program's
    own attribute of that name, which it may have without a patch too."""

    def __get__(self, layer: nn.Conv2d | None, kind: type[nn.Conv2d]) -> Any:
        if layer is None:
            return self
        own = layer.__dict__
        return own["config"] if "config" in own else own.get(_CONFIG)

    def __set__(self, layer: nn.Conv2d, value: Any) -> None:
        if _ORIGINAL in layer.__dict__:
            try:
                settings_from(value, "config")
            except TypeError:
                layer.__dict__["config"] = value
                return
        _configure(layer, value)
        layer.__dict__.pop("config", None)

    def __delete__(self, layer: nn.Conv2d) -> None:
        if layer.__dict__.pop("config", self) is self:
            raise AttributeError("config")


class SafeConv2d(nn.Conv2d):
    """A drop-in for ``nn.Conv2d``: same constructor, same parameters, same state_dict, planned by separate settings.

    ``config`` is a :class:`unhang.Conv2dBypassConfig` or :class:`unhang.Settings`; without one the layer follows the
    process's settings. Its backward keeps the layer's settings, on whichever thread autograd runs it.
    """

    config = _GivenConfig()

    def __init__(self, *arguments: Any, config: Any = None, **options: Any) -> None:
        super().__init__(*arguments, **options)
        _configure(self, config)

    def __init_subclass__(cls, **options: Any) -> None:
        """Keeps a class made here for a patched layer from what its family does with new classes, such as entering them
        in a registry."""
        if cls.__module__ != __name__:
            super().__init_subclass__(**options)

    def get_bypass_stats(self) -> dict[str, Any]:
        """Forwards of this layer, how many went past MIOpen, the rate in percent, and the strategy."""
        return _statistics.layer_of(self).summary(_settings_of(self).strategy)

    def __reduce_ex__(self, protocol: Any) -> Any:
        original = self.__dict__.get(_ORIGINAL)
        if original is None or type(self) is SafeConv2d or _is_parametrizing(type(self)):
            return super().__reduce_ex__(protocol)
        # The class of a patched subclass was created here, and no import would find it.
        make, arguments, *rest = cast(tuple[Any, ...], super().__reduce_ex__(max(protocol, 2)))
        make = original if make is type(self) else make
        if arguments and arguments[0] is type(self):
            arguments = (original, *arguments[1:])
        return _rebuild, (self.__dict__.get(_CONFIG), make, *arguments), *rest


# Torch's skip_init looks for `device` among the names of the arguments.
_PLAIN = inspect.signature(nn.Conv2d.__init__)
_CONFIG_ARGUMENT = inspect.Parameter("config", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Any)
SafeConv2d.__init__.__signature__ = _PLAIN.replace(  # type: ignore[attr-defined]
    parameters=[*_PLAIN.parameters.values(), _CONFIG_ARGUMENT]
)


def _scriptable(original: Callable[..., Any], replacement: Callable[..., Any]) -> Callable[..., Any]:
    """A method that does what the replacement does, and that torch.jit.script takes for the original: script reads the
    source of what is wrapped, and looks names up in the module that the function names."""

    def _conv_forward(self: Any, input: Any, weight: Any, bias: Any) -> Any:
        return replacement(self, input, weight, bias)

    def forward(self: Any, *inputs: Any, **options: Any) -> Any:
        return replacement(self, *inputs, **options)

    # A subclass's own method may have other arguments than torch's.
    is_torchs = original.__name__ == "_conv_forward" and original.__module__ == nn.Conv2d.__module__
    like = _conv_forward if is_torchs else forward
    home = original.__globals__
    made = types.FunctionType(like.__code__, home, original.__name__, None, like.__closure__)
    return functools.update_wrapper(made, original)


def _safe_forward(self: SafeConv2d, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Computes as torch does, with this layer's settings. It calls torch's own op, so that autocast, torch.func,
    forward gradients and everything else work as in torch. A graph that is being recorded gets our op, which holds the
    settings."""
    if _is_recording():
        return _recorded(self, input, weight, bias)
    if _is_compiling():  # an export uses torch's own op, and cannot contain a thread-local
        exported: Tensor = super(SafeConv2d, self)._conv_forward(input, weight, bias)
        return exported
    computed: Tensor = _with_settings(self, input, super(SafeConv2d, self)._conv_forward, (input, weight, bias), {})
    return computed


def _safe_own_forward(self: SafeConv2d, *inputs: Any, **options: Any) -> Any:
    """The forward of a subclass that has its own. What it computes by itself, and not by ``_conv_forward``, has the
    layer's settings too. In a graph that is being recorded it is torch's own op."""
    return _computed_by(super(SafeConv2d, self).forward, self, inputs, options)


def _safe_own_conv_forward(self: SafeConv2d, *inputs: Any, **options: Any) -> Any:
    """The ``_conv_forward`` of a subclass that has its own. Our op could not stand for it in a graph."""
    return _computed_by(super(SafeConv2d, self)._conv_forward, self, inputs, options)


def _computed_by(own: Callable[..., Any], self: SafeConv2d, inputs: tuple[Any, ...], options: dict[str, Any]) -> Any:
    if _is_compiling() or torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
        return own(*inputs, **options)
    first = next(_tensors_in((inputs, options)), None)
    return _with_settings(self, first, own, inputs, options, is_own=True)


def _with_settings(
    self: SafeConv2d,
    first: Tensor | None,
    compute: Callable[..., Any],
    inputs: tuple[Any, ...],
    options: dict[str, Any],
    *,
    is_own: bool = False,
) -> Any:
    """Computes with this layer's settings, and leaves them in the graph of the result's gradients. A subclass's own
    method may compute anything; torch's computes one convolution."""
    settings = _settings_of(self)
    device = first.device.type if isinstance(first, Tensor) else ""
    if device in _dispatch.KEYS:
        _dispatch.register(device)
    begin = _next_node()
    before = {tensor.grad_fn for tensor in _tensors_in((inputs, options))} if is_own else None
    with _counts_of(self).by(settings):
        output = compute(*inputs, **options)
    if first is not None and _dispatch.active.get(device) is not settings:
        _carry(output, settings, begin, before)
    return output


def _tensors_in(found: Any, depth: int = 4) -> Iterator[Tensor]:
    """The tensors in lists, tuples and dictionaries, which may contain themselves."""
    if isinstance(found, Tensor):
        yield found
    elif depth > 0 and isinstance(found, (list, tuple, dict)):
        for it in found.values() if isinstance(found, dict) else found:
            yield from _tensors_in(it, depth - 1)


SafeConv2d._conv_forward = _scriptable(nn.Conv2d._conv_forward, _safe_forward)  # type: ignore[method-assign]


def _recorded(self: SafeConv2d, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    padding = self.padding
    lower = _autocast_type(input)
    if input.dim() not in (3, 4) or input.device.type not in _dispatch.KEYS or input.dtype.is_complex:
        # Something that our engines do not know, or torch's own error message.
        plain: Tensor = super(SafeConv2d, self)._conv_forward(input, weight, bias)
        return plain
    if self.padding_mode != "zeros":
        input = F.pad(input, self._reversed_padding_repeated_twice, mode=self.padding_mode)
        padding = (0, 0)
    elif isinstance(padding, str):
        input, padding = _pad_as_named(input, padding, self.kernel_size, self.dilation)
    batched = input.dim() == 4
    if lower is not None:
        input, weight = input.to(lower), weight.to(lower)
        bias = None if bias is None else bias.to(lower)
    # Without a token, a graph follows whoever runs it; a text in it would cause a compilation for every other one.
    token = self.__dict__.get(_TOKEN, "")
    geometry = (list(self.stride), list(padding), list(self.dilation), False, [0, 0], self.groups)
    output: Tensor = torch.ops.unhang.convolution(
        input if batched else input.unsqueeze(0), weight, bias, *geometry, token
    )
    return output if batched else output.squeeze(0)


def _autocast_type(input: Tensor) -> torch.dtype | None:
    """The type in which autocast computes convolutions of this input, if it is on: torch does not do that for our op.
    Double precision stays."""
    device = input.device.type
    if input.dtype is torch.float64:
        return None
    if hasattr(torch, "get_autocast_dtype"):
        return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    if device == "cpu":  # before torch 2.4
        return torch.get_autocast_cpu_dtype() if torch.is_autocast_cpu_enabled() else None
    return torch.get_autocast_gpu_dtype() if torch.is_autocast_enabled() else None


def _rebuild(config: Any, make: Callable[..., nn.Conv2d], *arguments: Any) -> nn.Conv2d:
    """A patched layer from what its own class returned to be copied or saved by."""
    module = make(*arguments)
    if isinstance(module, nn.Conv2d) and not isinstance(module, SafeConv2d):
        _patch(module, config)
    return module


def _pad_as_named(
    input: Tensor, padding: str, kernel: tuple[int, ...], dilation: tuple[int, ...]
) -> tuple[Tensor, tuple[int, int]]:
    """Numbers for ``padding="valid"`` and ``"same"``. If "same" is uneven, the odd zero goes at the end, as in
    torch."""
    if padding == "valid":
        return input, (0, 0)
    totals = [spread * (taps - 1) for taps, spread in zip(kernel, dilation)]
    if any(total % 2 for total in totals):
        input = F.pad(input, (0, totals[1] % 2, 0, totals[0] % 2))
    return input, (totals[0] // 2, totals[1] // 2)


# Kept as long as somebody has such a layer: a class created for a user's subclass keeps that subclass alive.
_safe_classes: weakref.WeakValueDictionary[type[nn.Conv2d], type[nn.Conv2d]] = weakref.WeakValueDictionary()
_safe_classes[nn.Conv2d] = SafeConv2d


def _safe_class(original: type[nn.Conv2d]) -> type[nn.Conv2d]:
    """The class of a patched layer; for a subclass of ``nn.Conv2d``, one between it and its own behaviour."""
    safe = _safe_classes.get(original)
    if safe is None:
        members: dict[str, Any] = {"__module__": __name__}
        for name, safe_own in (("forward", _safe_own_forward), ("_conv_forward", _safe_own_conv_forward)):
            own = getattr(original, name)
            if isinstance(own, types.FunctionType) and own is not getattr(nn.Conv2d, name):
                members[name] = _scriptable(own, safe_own)
        if hasattr(original, "config"):
            members["config"] = inspect.getattr_static(original, "config")  # the subclass's own, whatever it is
        safe = _safe_classes[original] = type(f"Safe{original.__name__}", (SafeConv2d, original), members)
    return safe


def _is_parametrizing(kind: type) -> bool:
    """Whether torch created a class for one parametrized layer: above the layer's own, with a property per tensor."""
    return kind.__module__ == "torch.nn.utils.parametrize" and len(kind.__bases__) == 1


def _with_base(kind: type, base: type) -> type:
    """A class that torch created for a parametrized layer, above another class than the layer's own."""
    members = {name: it for name, it in vars(kind).items() if name not in ("__dict__", "__weakref__")}
    return type(kind.__name__, (base,), members)


def _exchange(module: nn.Module, kind: type) -> None:
    """Changes a layer's class; its parametrizations stay above it."""
    current = type(module)
    module.__class__ = _with_base(current, kind) if _is_parametrizing(current) else kind


def _own_class(module: nn.Module) -> type:
    """A layer's class without the one that torch puts above it for parametrizations."""
    kind = type(module)
    return kind.__bases__[0] if _is_parametrizing(kind) else kind


def _teach_fusing() -> None:
    """Makes ``torch.ao.quantization.fuse_modules`` treat a :class:`SafeConv2d` as the ``nn.Conv2d`` that it is: torch
    looks the exact class up in a table. The result is safe again."""
    mappings = sys.modules.get("torch.ao.quantization.fuser_method_mappings")
    for table in ("_DEFAULT_OP_LIST_TO_FUSER_METHOD", "DEFAULT_OP_LIST_TO_FUSER_METHOD"):
        methods = getattr(mappings, table, None)
        if isinstance(methods, dict):
            for kinds, method in list(methods.items()):
                if kinds[0] is nn.Conv2d:
                    ours = (SafeConv2d, *kinds[1:])
                    methods[ours] = _fusing(method)


def _fusing(method: Callable[..., Any]) -> Callable[..., Any]:
    def fuse(is_qat: bool, conv: nn.Module, *others: nn.Module) -> Any:
        conv.__class__ = nn.Conv2d
        try:
            fused = method(is_qat, conv, *others)
        finally:
            conv.__class__ = SafeConv2d
        for module in fused.modules():
            if type(module) is nn.Conv2d and _CONFIG in module.__dict__:
                module.__class__ = SafeConv2d
        return fused

    return fuse


_teach_fusing()


def _teach_quantizing() -> None:
    """Makes ``torch.ao.quantization``'s ``prepare``, ``prepare_qat`` and ``convert`` treat a :class:`SafeConv2d` as the
    ``nn.Conv2d`` that it is. The result is torch's quantized layer, which has no such settings."""
    mappings = sys.modules.get("torch.ao.quantization.quantization_mappings")
    for table in ("DEFAULT_STATIC_QUANT_MODULE_MAPPINGS", "DEFAULT_QAT_MODULE_MAPPINGS"):
        targets = getattr(mappings, table, None)
        if isinstance(targets, dict) and nn.Conv2d in targets:
            targets[SafeConv2d] = _quantizing(targets[nn.Conv2d])


def _quantizing(target: Any) -> type:
    class Quantized:
        """Turns a safe layer into torch's quantized one."""

        @staticmethod
        def from_float(mod: nn.Module, **options: Any) -> Any:
            mod.__class__ = nn.Conv2d
            try:
                return target.from_float(mod, **options)
            finally:
                mod.__class__ = SafeConv2d

    return Quantized


_teach_quantizing()


def _teach_tracing(tracer: Any) -> None:
    """Makes FX keep a :class:`SafeConv2d` whole, like an ``nn.Conv2d``: it traces into classes that are not torch's,
    and the layer's settings would be lost."""
    is_leaf = tracer.is_leaf_module

    def is_leaf_module(self: Any, m: nn.Module, module_qualified_name: str) -> bool:
        return type(m) is SafeConv2d or bool(is_leaf(self, m, module_qualified_name))

    tracer.is_leaf_module = is_leaf_module


when_imported("torch.fx", lambda fx: _teach_tracing(fx.Tracer))


def _teach_fx(quantize_fx: Any) -> None:
    """Makes ``prepare_fx``, ``prepare_qat_fx``, ``convert_fx`` and ``fuse_fx`` treat a :class:`SafeConv2d` as the
    ``nn.Conv2d`` that it is: torch compares the exact class. What ``fuse_fx`` returns is safe again. What is prepared
    is torch's, and follows the process's settings."""
    fuse, prepare = quantize_fx._fuse_fx, quantize_fx.prepare
    _teach_tracing(quantize_fx.QuantizationTracer)

    def fuse_plain(model: Any, *arguments: Any, **options: Any) -> Any:
        fused = fuse(_with_plain_layers(model), *arguments, **options)
        for module in fused.modules():
            if type(module) is nn.Conv2d and _CONFIG in module.__dict__:
                module.__class__ = SafeConv2d
        return fused

    def prepare_plain(model: Any, *arguments: Any, **options: Any) -> Any:
        return prepare(_with_plain_layers(model), *arguments, **options)

    quantize_fx._fuse_fx, quantize_fx.prepare = fuse_plain, prepare_plain


def _with_plain_layers(model: Any) -> Any:
    """A graph with plain layers in place of safe ones, with the same parameters. The user's own layers stay
    unchanged."""
    called = {node.target for node in model.graph.nodes if node.op == "call_module"}
    for name, module in list(model.named_modules()):
        parent, _, own = name.rpartition(".")
        # It is the graph's own, or in a module into which torch fused it; other modules are the user's.
        is_fused = parent in called and type(model.get_submodule(parent)).__module__.startswith("torch.")
        if type(module) is SafeConv2d and (name in called or is_fused):
            plain: nn.Module = copy.copy(module)
            plain.__class__ = nn.Conv2d
            plain._parameters = module._parameters.copy()
            setattr(model.get_submodule(parent), own, plain)
    return model


when_imported("torch.ao.quantization.quantize_fx", _teach_fx)


def patch_model(model: Model, config: Any = None) -> Model:
    """Makes every ``nn.Conv2d`` in the model, the root included, a :class:`SafeConv2d`, in place.

    The module objects stay the very same: parameters, hooks, flags, shared modules, parametrizations and the behaviour
    of subclasses are not touched. Lazy layers, whose sizes are not known yet, are left as they are.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"patch_model takes a torch.nn.Module, not {type(model).__name__} {model!r:.80}: load the model first"
        )
    if config is not None:
        settings_from(config, "config")
    for module in model.modules():
        if not isinstance(module, nn.Conv2d) or hasattr(type(module), "cls_to_become"):
            continue
        if not isinstance(module, SafeConv2d):
            _patch(module, config)
        elif config is not None:
            _configure(module, config)
    track(model)
    return model


def _patch(module: nn.Conv2d, config: Any) -> None:
    original = _own_class(module)
    module.__dict__[_ORIGINAL] = original
    _exchange(module, _safe_class(original))
    _configure(module, config)


def unpatch_model(model: Model) -> Model:
    """Undoes :func:`patch_model`, in place. A :class:`SafeConv2d` that was made as one stays one."""
    for module in model.modules():
        original = module.__dict__.pop(_ORIGINAL, None)
        if original is not None:
            _exchange(module, original)
            module.__dict__.pop(_CONFIG, None)
            module.__dict__.pop(_TOKEN, None)
    return model


def track(model: Model, prefix: str = "") -> Model:
    """Gives the model's layers their names in statistics and reports."""
    for name, module in model.named_modules():
        if isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.modules.conv._ConvTransposeNd)):
            _statistics.name(module, ".".join(filter(None, (prefix, name))) or type(module).__name__)
    return model


# While unhang is on, plain layers announce when they compute, so that statistics have layers. By class, with the method
# that tensors pass through.
_ANNOUNCED = (
    (nn.Conv1d, "_conv_forward"),
    (nn.Conv2d, "_conv_forward"),
    (nn.Conv3d, "_conv_forward"),
    (nn.ConvTranspose1d, "forward"),
    (nn.ConvTranspose2d, "forward"),
    (nn.ConvTranspose3d, "forward"),
)
# Our method for each, and the one that it announces. What others have put over ours since still calls it.
_announced: dict[tuple[type, str], tuple[Callable[..., Any], Callable[..., Any]]] = {}


def count_every_layer() -> None:
    """Makes the layers that our engines know announce themselves, and ``nn.Conv2d`` answer ``get_bypass_stats()``."""
    for kind, method in _ANNOUNCED:
        original = getattr(kind, method)
        if (kind, method) in _announced or not isinstance(original, types.FunctionType):
            continue
        ours = _announcing(original)
        _announced[kind, method] = ours, original
        setattr(kind, method, ours)
    if "get_bypass_stats" not in nn.Conv2d.__dict__:
        nn.Conv2d.get_bypass_stats = _get_bypass_stats  # type: ignore[attr-defined]


def count_no_layer() -> None:
    """Undoes :func:`count_every_layer`, except for ``get_bypass_stats()``, which still answers for what was counted. A
    method that somebody else has replaced since stays: taking it away is not ours to do."""
    for (kind, method), (ours, original) in list(_announced.items()):
        if getattr(kind, method) is ours:
            del _announced[kind, method]
            setattr(kind, method, original)


def _is_recording() -> bool:
    """Whether a graph is being recorded whose layers will not exist when it runs. Exported graphs contain torch's own
    ops, because they may run without unhang. So do those of ``torch.func``, which knows no rules for ours."""
    if _is_transforming():
        return False
    if torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
        onnx = sys.modules.get("torch.onnx")
        return onnx is None or not onnx.is_in_onnx_export()
    return (_is_compiling() or _is_run_to_be_recorded()) and not _is_exporting()


# Before torch 2.1 there is no such function, and nothing compiles.
_is_compiling: Callable[[], bool] = getattr(getattr(torch, "compiler", None), "is_compiling", bool)


def _is_exporting_by_flag() -> bool:
    # Reads the flag itself: in a torch whose compiler fixes the function's answer in advance (2.11), it is always True.
    return bool(torch.compiler._is_exporting_flag)


def _is_exporting_by_state() -> bool:
    # Torch's flag for compiling is set by export alone; where its compiler reads the code, it knows what for.
    tracer = getattr(getattr(sys.modules.get("torch._dynamo.symbolic_convert"), "tls", None), "current_tx", None)
    is_compiling = getattr(getattr(torch, "compiler", None), "_is_compiling_flag", False)
    return bool(getattr(tracer, "export", False) or is_compiling)


def _is_transforming_by_state() -> bool:
    return _are_transforms_active()


# Before torch 2.1 there is no such function, and nothing of torch.func is recorded.
_are_transforms_active: Callable[[], bool] = getattr(torch._C, "_are_functorch_transforms_active", bool)
# From torch 2.7 on there is a flag, and the compiler can read all of it. Older ones ask while they read.
_is_new = hasattr(getattr(torch, "compiler", None), "_is_exporting_flag")
for _asked in (_is_exporting_by_state, _is_transforming_by_state):
    _asked._dynamo_marked_constant = True  # type: ignore[attr-defined]
_is_exporting: Callable[[], bool] = _is_exporting_by_flag if _is_new else _is_exporting_by_state
_is_transforming: Callable[[], bool] = _are_transforms_active if _is_new else _is_transforming_by_state


def _is_run_by_torchs_recorder() -> bool:
    # The module is there if anything was ever recorded. Torch 1.13's has no such function, and nothing compiles there.
    recorder = sys.modules.get("torch.fx.experimental.proxy_tensor")
    mode: Callable[[], Any] = getattr(recorder, "get_innermost_proxy_mode", lambda: None)
    return mode() is not None


# Before torch 2.5 the compiler does not read methods of torch's own layers. It runs them and records the ops.
_is_run_to_be_recorded: Callable[[], bool] = bool if _is_new else _is_run_by_torchs_recorder


def _announcing(original: Callable[..., Any]) -> Callable[..., Any]:
    def announce(self: nn.Module, *inputs: Any, **options: Any) -> Any:
        # A compiled graph has no layers, and cannot contain a thread-local.
        if _is_compiling():
            return original(self, *inputs, **options)
        with _counts_of(self):
            output = original(self, *inputs, **options)
        return output

    return _scriptable(original, announce)


def _get_bypass_stats(self: nn.Module) -> dict[str, Any]:
    return _statistics.layer_of(self).summary(_dispatch.settings_of("").strategy)


# ---- a layer's settings in the graph of its gradients ----
#
# Backward runs on autograd's own threads, on a weight that may have moved by then or belong to several layers. So a
# layer with its own settings puts them into the node of the graph that its forward created. A convolution's gradients
# are planned with the settings of the node that is being evaluated. This includes gradients of gradients; derivatives
# of a higher order use the process's settings.

_NODES_KEY = "unhang settings"
# The number of the next node that this thread creates: from torch 2.1 on. Before, Rust looks settings up by the
# weight's address.
_next_node: Callable[[], int] = getattr(torch.autograd, "_get_sequence_nr", int)
_current_node = getattr(torch._C, "_current_autograd_node", None) if _next_node is not int else None
# A subclass's own forward may be a whole network.
_MOST_NODES = 1000


if _current_node is not None:
    _core.carry_in_graphs(_current_node, _NODES_KEY)


def _carry(output: Any, settings: Settings, begin: int, before: set[Any] | None) -> None:
    """Puts a layer's settings into the graph of its output: into those nodes that its forward created, which begin with
    that number. What torch's own method computes has one convolution, and nothing is looked for behind it. Otherwise
    ``before`` has the inputs' nodes: another thread that made them numbered them by itself."""
    if _current_node is None:
        return
    seen = set() if before is None else before
    left = [tensor.grad_fn for tensor in _tensors_in(output)]
    while left and len(seen) < _MOST_NODES:
        node: Any = left.pop()
        if node is None or node in seen or node._sequence_nr() < begin:
            continue
        seen.add(node)
        is_convolution = node.name() == "ConvolutionBackward0"
        if is_convolution and _NODES_KEY not in node.metadata:
            node.metadata[_NODES_KEY] = settings
            node.register_hook(functools.partial(_carry_on, settings))
            _core.carried(False)
        if before is not None or not is_convolution:
            left += [behind for behind, _ in node.next_functions]


def _carry_on(settings: Settings, gradients: Sequence[Tensor | None], _: object) -> None:
    """Puts them into the graph of a gradient, if the user requested one."""
    for gradient in gradients:
        node: Any = None if gradient is None else gradient.grad_fn
        if node is not None and node.name() == "ConvolutionBackwardBackward0":
            node.metadata[_NODES_KEY] = settings
            _core.carried(True)
