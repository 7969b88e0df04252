"""Our kernels in torch's dispatcher, and the op that carries a layer's settings in a token."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from unhang import _convolve
from unhang._engines import below_autograd
from unhang._settings import Settings

Tensor = torch.Tensor

#: Dispatch keys by device type. ROCm's tensors use CUDA's.
KEYS = {"cpu": "CPU", "cuda": "CUDA"}

_library: torch.library.Library | None = None
_settings = Settings()


def register(devices: tuple[str, ...], settings: Settings) -> None:
    """Puts our kernels in the place of torch's for those devices."""
    global _library, _settings
    unregister()
    _settings = settings
    # Collecting the library would unregister the kernels, so it is kept here.
    _library = torch.library.Library("aten", "IMPL")
    try:
        with warnings.catch_warnings():
            # On CUDA's key torch has a kernel of its own for the gradients: replacing it is what is meant.
            warnings.filterwarnings("ignore", category=UserWarning)
            for device in devices:
                _library.impl("convolution", _convolution, KEYS[device])
                _library.impl("_convolution", _convolution_with_flags, KEYS[device])
                _library.impl("convolution_backward", _convolution_backward, KEYS[device])
    except BaseException:
        unregister()  # all or nothing
        raise


def unregister() -> None:
    """Gives torch its own kernels back."""
    global _library
    library, _library = _library, None
    if library is None:
        return
    destroy = getattr(library, "_destroy", None)
    if destroy is not None:
        destroy()
    else:
        library.m = None  # before torch 2.0 this is all that holds the registration


def _convolution(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
) -> Tensor:
    return _convolve.forward(
        _settings, input, weight, bias, stride, padding, dilation, transposed, output_padding, groups
    )


def _convolution_with_flags(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
    *flags: bool,
) -> Tensor:
    """What traced graphs call. Their flags say which vendor library the tracing process had: that is ours to decide."""
    return _convolve.forward(
        _settings, input, weight, bias, stride, padding, dilation, transposed, output_padding, groups
    )


def _convolution_backward(*arguments: Any) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    return _convolve.backward(_settings, *arguments)


_GEOMETRY = "int[] stride, int[] padding, int[] dilation, bool transposed, int[] output_padding, int groups"
_ops = torch.library.Library("unhang", "DEF")
_ops.define(f"convolution(Tensor input, Tensor weight, Tensor? bias, {_GEOMETRY}, str token) -> Tensor")
_ops.define(
    f"convolution_backward(Tensor grad_output, Tensor input, Tensor weight, int[]? bias_sizes, {_GEOMETRY}, "
    "bool[3] output_mask, str token) -> (Tensor, Tensor, Tensor)"
)

_tokens: dict[str, Settings] = {}


def _settings_of(token: str) -> Settings:
    settings = _tokens.get(token)
    if settings is None:
        settings = _tokens[token] = Settings.from_token(token)
    return settings


def _token_forward(input: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any) -> Tensor:
    *geometry, token = rest
    return _convolve.forward(_settings_of(token), input, weight, bias, *geometry)


def _token_backward(*arguments: Any) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    *rest, token = arguments
    return _convolve.backward(_settings_of(token), *rest)


def _meta_forward(input: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any) -> Tensor:
    output: Tensor = torch.ops.aten.convolution(input, weight, bias, *rest[:-1])
    return output


def _meta_backward(grad_output: Tensor, input: Tensor, weight: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    output_mask = rest[-2]
    return (
        torch.empty_like(input) if output_mask[0] else input.new_empty(0),
        torch.empty_like(weight) if output_mask[1] else input.new_empty(0),
        grad_output.new_empty(grad_output.shape[1]) if output_mask[2] else input.new_empty(0),
    )


class _Convolution(torch.autograd.Function):
    """Keeps the token with the graph: backward runs on autograd's own threads, where no thread-local would reach."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any) -> Tensor:
        ctx.save_for_backward(input, weight)
        ctx.rest = rest
        ctx.bias_sizes = None if bias is None else list(bias.shape)
        with below_autograd():
            output: Tensor = torch.ops.unhang.convolution(input, weight, bias, *rest)
            return output

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
    """Gradients of gradients go through aten's own formula, and so under the process's settings, not the layer's."""

    @staticmethod
    def forward(ctx: Any, grad_output: Tensor, input: Tensor, weight: Tensor, *rest: Any) -> tuple[Tensor, ...]:
        ctx.save_for_backward(grad_output, input, weight)
        ctx.rest = rest
        with below_autograd():
            gradients = torch.ops.unhang.convolution_backward(grad_output, input, weight, *rest)
        # An undefined tensor cannot leave a Function: an empty one stands for what was not asked for.
        return tuple(input.new_empty(0) if gradient is None else gradient for gradient in gradients)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        *rest, mask, _ = ctx.rest
        with torch.enable_grad():
            operands = [tensor.detach().requires_grad_() for tensor in ctx.saved_tensors]
            gradients = torch.ops.aten.convolution_backward(*operands, *rest, mask)
            pairs = [(out, grad) for out, grad, wanted in zip(gradients, grads, mask) if wanted]
            results = torch.autograd.grad(
                [out for out, _ in pairs], operands, [grad for _, grad in pairs], allow_unused=True, create_graph=True
            )
        return (*results, *[None] * len(ctx.rest))


def _autograd_forward(*arguments: Any) -> Tensor:
    output: Tensor = _Convolution.apply(*arguments)
    return output


def _autograd_backward(*arguments: Any) -> tuple[Tensor, ...]:
    gradients: tuple[Tensor, ...] = _ConvolutionBackward.apply(*arguments)
    return gradients


for _key in ("CPU", "CUDA"):
    _ops.impl("convolution", _token_forward, _key)
    _ops.impl("convolution_backward", _token_backward, _key)
_ops.impl("convolution", _meta_forward, "Meta")
_ops.impl("convolution_backward", _meta_backward, "Meta")
_ops.impl("convolution", _autograd_forward, "Autograd")
_ops.impl("convolution_backward", _autograd_backward, "Autograd")
