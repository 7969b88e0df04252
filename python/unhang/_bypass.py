"""The API of the bypass that RDNA1 users wrote for themselves, with the behaviour that its documents describe.

``conv2d_fallback`` is this module under the name that their scripts import.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import nn

from unhang import _dispatch, _enable, _statistics, _talk
from unhang._core import Settings
from unhang._layers import SafeConv2d, patch_model, unpatch_model

__all__ = [
    "Conv2dBypassConfig",
    "FallbackStrategy",
    "SafeConv2d",
    "disable_miopen_bypass",
    "enable_miopen_bypass",
    "get_bypass_stats",
    "patch_model",
    "print_bypass_report",
    "unpatch_model",
]


class FallbackStrategy(Enum):
    """How a convolution is computed; the last three are ours."""

    AUTO = "auto"
    IMPLICIT_GEMM = "implicit_gemm"
    CPU_FALLBACK = "cpu_fallback"
    SELECTIVE = "selective"
    ATEN = "aten"
    JIT = "jit"
    TILED = "tiled"


@dataclass
class Conv2dBypassConfig:
    """The bypass's configuration, with the fields that its users know."""

    #: How to plan.
    strategy: FallbackStrategy = FallbackStrategy.AUTO
    #: ``SELECTIVE`` computes inputs with a larger side above this on the CPU.
    size_threshold: int = 42
    #: Switch MIOpen's other solver families off before its first use.
    enable_implicit_gemm: bool = True
    #: Allow the CPU at all.
    cpu_fallback_enabled: bool = True
    #: Print each decision once.
    verbose: bool = False
    #: Keep decisions instead of planning every call again.
    cache_decisions: bool = True

    def settings(self) -> Settings:
        """These settings as :class:`unhang.Settings`."""
        return Settings(
            strategy=FallbackStrategy(self.strategy).value,
            size_threshold=self.size_threshold,
            cpu_fallback_enabled=self.cpu_fallback_enabled,
            implicit_gemm=self.enable_implicit_gemm,
            verbose=self.verbose,
            cache_decisions=self.cache_decisions,
        )


def enable_miopen_bypass(strategy: Any = None, config: Conv2dBypassConfig | None = None, **options: Any) -> None:
    """Plans and counts every convolution of the process, on the accelerator and on the CPU.

    ``strategy`` overrides the configuration's. ``options`` are those of :func:`unhang.enable`.
    """
    settings = (config or Conv2dBypassConfig()).settings()
    if strategy is not None:
        settings = settings.changed(strategy=strategy)
    if "devices" not in options and not options.get("rehearse"):
        options["devices"] = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    _enable.enable(settings=settings, **options)


def disable_miopen_bypass() -> None:
    """Restores torch as it was."""
    _enable.disable()


def get_bypass_stats(model: nn.Module | None = None) -> dict[str, Any]:
    """The sum over a model's ``nn.Conv2d`` layers, or over every counted layer of the process."""
    total = _statistics.Layer()
    for layer in _statistics_of(model):
        total.add(layer)
    settings = _dispatch.settings_here() or Settings()
    return total.summary(settings.strategy)


def _statistics_of(model: nn.Module | None) -> list[_statistics.Layer]:
    if model is None:
        return [layer for _, _, layer in _statistics.named_layers()]
    return [_statistics.layer_of(module) for module in model.modules() if isinstance(module, nn.Conv2d)]


def print_bypass_report(model: nn.Module, file: Any = None) -> None:
    """Prints forwards and bypasses for each ``nn.Conv2d`` of a model, and which engine computed them.

    A bypass is a forward that something other than torch's own choice computed: on a ROCm device, other than MIOpen.
    """
    line = "=" * 70
    text = f"{line}\nConv2d Bypass Report\n{line}\n\n"
    safe = standard = 0
    for name, module in model.named_modules():
        if not isinstance(module, nn.Conv2d):
            continue
        safe += isinstance(module, SafeConv2d)
        standard += not isinstance(module, SafeConv2d)
        layer = _statistics.layer_of(module)
        numbers = layer.summary("")
        text += f"{name or type(module).__name__}:\n"
        text += f"  Forwards: {numbers['total_forwards']}\n"
        text += f"  Bypasses: {numbers['bypass_count']} ({numbers['bypass_rate']:.1f}%)\n"
        engines = ", ".join(f"{engine} ({count})" for engine, count in sorted(numbers["engines"].items()))
        text += f"  Engine: {engines or '-'}\n\n"
    total = get_bypass_stats(model)
    text += (
        f"{line}\nTotal Conv2d layers: {safe + standard}\nSafeConv2d layers: {safe}\n"
        f"Standard Conv2d layers: {standard}\n\nTotal forward passes: {total['total_forwards']}\n"
        f"Total bypasses: {total['bypass_count']} ({total['bypass_rate']:.1f}%)\n{line}\n"
    )
    out = file if file is not None else sys.stdout
    if out is not None:
        # A layer's name may be any text from a checkpoint.
        _talk.write(text, out)
