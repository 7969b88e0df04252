"""A layer's settings in the graph of its gradients.

Backward runs on autograd's own threads, on a weight that may lie elsewhere by then or belong to several layers. So a
layer that has settings of its own puts them into the node of the graph that its forward made, and a convolution's
gradients are planned by what the node that is being evaluated holds. Gradients of gradients too; derivatives of a
higher order than the second go by the process's settings.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from unhang import _core
from unhang._core import Settings

Tensor = torch.Tensor

_KEY = "unhang settings"
# From torch 2.1 on; before, Rust looks settings up by the weight's address.
_current_node = getattr(torch._C, "_current_autograd_node", None)
# Between a layer's result and its convolution: what takes away the batch that an unbatched input was given, and views.
_NODES_BETWEEN = 4


def _settings_here() -> Settings | None:
    """The settings in the node that this thread evaluates."""
    assert _current_node is not None
    node = _current_node()
    found: Settings | None = None if node is None else node.metadata.get(_KEY)
    return found


if _current_node is not None:
    _core.carry_in_graphs(_settings_here)


def carry(output: Any, settings: Settings) -> None:
    """Puts a layer's settings into the graph of its output."""
    if _current_node is None or not isinstance(output, Tensor) or not output.requires_grad:
        return
    node: Any = output.grad_fn
    for _ in range(_NODES_BETWEEN):
        if node is None or node.name() == "ConvolutionBackward0":
            break
        node = node.next_functions[0][0] if node.next_functions else None
    if node is not None and _KEY not in node.metadata:
        node.metadata[_KEY] = settings
        node.register_hook(functools.partial(_carry_on, settings))
        _core.carried(False)


def _carry_on(settings: Settings, gradients: Sequence[Tensor | None], _: object) -> None:
    """Puts them into the graph that a gradient has, where the user asked for one."""
    for gradient in gradients:
        node: Any = None if gradient is None else gradient.grad_fn
        if node is not None and node.name() == "ConvolutionBackwardBackward0":
            node.metadata[_KEY] = settings
            _core.carried(True)
