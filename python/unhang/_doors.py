"""MIOpen's other entries, closed on an affected card.

Convolutions come through :mod:`unhang._dispatch`. But a saved graph contains ``cudnn_enabled=True`` for its batch
norms, whatever the process's flag says, and every MIOpen op can be called by name. On an affected card those ops are
replaced: by our planned convolutions, by torch's own batch norm, or by an error if torch has nothing of the same shape.
They stay replaced for the life of the process.

The replacements are in front of the backends' kernels, under a key that every call passes, and do not take their place.
If the plan itself says MIOpen, torch calls the same op, which must reach MIOpen."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch

from unhang._state import renewed_after_fork

Tensor = torch.Tensor

#: Every call passes it, on tensors of any device and in inference mode too. It is above the backends and below
#: autograd.
_KEY = "BackendSelect"
_BACKENDS = {"cpu": "CPU", "cuda": "CUDA"}
_library: torch.library.Library | None = None
_lock = renewed_after_fork(__name__, "_lock", threading.Lock)
_thread = threading.local()


def close() -> None:
    """Replaces MIOpen's own ops, once."""
    global _library
    with _lock:
        if _library is not None:
            return
        library = torch.library.Library("aten", "IMPL")
        for name, kernel in _REPLACEMENTS.items():
            if hasattr(torch.ops.aten, name):
                library.impl(name, _unless_planned(name, kernel), _KEY)
        _library = library


def are_closed() -> bool:
    """Whether MIOpen's own ops were replaced."""
    return _library is not None


@contextmanager
def open_for_this_thread() -> Iterator[None]:
    """While this is held, MIOpen's ops are the original ones on this thread, because an engine needs them."""
    before = getattr(_thread, "is_open", False)
    _thread.is_open = True
    try:
        yield
    finally:
        _thread.is_open = before


def _unless_planned(name: str, replacement: Callable[..., Any]) -> Callable[..., Any]:
    """The replacement, or the original op if one of our engines computes with it."""

    @functools.wraps(replacement)
    def kernel(*arguments: Any) -> Any:
        if not getattr(_thread, "is_open", False):
            return replacement(*arguments)
        op = getattr(torch.ops.aten, name).default
        return op._op_dk(getattr(torch._C.DispatchKey, _BACKENDS[arguments[0].device.type]), *arguments)

    return kernel


def _batch_norm(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    exponential_average_factor: float,
    epsilon: float,
) -> tuple[Tensor, Tensor, Tensor]:
    found: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.native_batch_norm(
        input, weight, bias, running_mean, running_var, training, exponential_average_factor, epsilon
    )
    return found


def _batch_norm_backward(
    input: Tensor,
    grad_output: Tensor,
    weight: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    save_mean: Tensor | None,
    save_var: Tensor | None,
    epsilon: float,
) -> tuple[Tensor, Tensor, Tensor]:
    found: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.native_batch_norm_backward(
        grad_output, input, weight, running_mean, running_var, save_mean, save_var, True, epsilon, [True, True, True]
    )
    return found


def _convolution(
    self: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    padding: list[int],
    stride: list[int],
    dilation: list[int],
    groups: int,
    *_: bool,
) -> Tensor:
    output: Tensor = torch.ops.aten.convolution(
        self, weight, bias, stride, padding, dilation, False, [0] * len(stride), groups
    )
    return output


def _convolution_transpose(
    self: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    padding: list[int],
    output_padding: list[int],
    stride: list[int],
    dilation: list[int],
    groups: int,
    *_: bool,
) -> Tensor:
    output: Tensor = torch.ops.aten.convolution(
        self, weight, bias, stride, padding, dilation, True, output_padding, groups
    )
    return output


def _convolution_relu(
    self: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> Tensor:
    return _convolution(self, weight, bias, padding, stride, dilation, groups).relu_()


def _convolution_add_relu(
    self: Tensor,
    weight: Tensor,
    z: Tensor,
    alpha: float | None,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> Tensor:
    output = _convolution(self, weight, bias, padding, stride, dilation, groups)
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
