"""unhang under the name that the scripts of the MIOpen bypass import."""

from unhang._bypass import (
    Conv2dBypassConfig,
    FallbackStrategy,
    SafeConv2d,
    disable_miopen_bypass,
    enable_miopen_bypass,
    get_bypass_stats,
    patch_model,
    print_bypass_report,
    unpatch_model,
)

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
