"""unhang: keeps PyTorch from hanging on AMD RDNA1 cards.

PyTorch on AMD RDNA1 cards (RX 5500 to 5700), where MIOpen hangs, crashes or computes nonsense. Every convolution of the
process, in unmodified code, runs on the fastest path that is known to be safe on this machine::

    import unhang
    unhang.enable()

Importing this package does not import torch; calling something that needs it does.
"""

from __future__ import annotations

import importlib
import os
import sys

from unhang import _core
from unhang._core import __version__

TYPE_CHECKING = False  # typing's own would import it, which takes half of this package's import time
if TYPE_CHECKING:
    from typing import Any

    from unhang._bypass import (
        Conv2dBypassConfig,
        FallbackStrategy,
        disable_miopen_bypass,
        enable_miopen_bypass,
        get_bypass_stats,
        print_bypass_report,
    )
    from unhang._core import Settings
    from unhang._enable import disable, enable, enabled, is_enabled
    from unhang._gpu import wait_for_kernels
    from unhang._layers import SafeConv2d, patch_model, track, unpatch_model
    from unhang._statistics import Report, report

# Where each public name is defined. __getattr__ reads it, so that torch is imported only for a name that needs it.
_HOMES = {
    "Conv2dBypassConfig": "_bypass",
    "FallbackStrategy": "_bypass",
    "Report": "_statistics",
    "SafeConv2d": "_layers",
    "Settings": "_core",
    "disable": "_enable",
    "disable_miopen_bypass": "_bypass",
    "enable": "_enable",
    "enable_miopen_bypass": "_bypass",
    "enabled": "_enable",
    "get_bypass_stats": "_bypass",
    "is_enabled": "_enable",
    "patch_model": "_layers",
    "print_bypass_report": "_bypass",
    "report": "_statistics",
    "track": "_layers",
    "unpatch_model": "_layers",
    "wait_for_kernels": "_gpu",
}

__all__ = [
    "Conv2dBypassConfig",
    "FallbackStrategy",
    "Report",
    "SafeConv2d",
    "Settings",
    "__version__",
    "disable",
    "disable_miopen_bypass",
    "enable",
    "enable_miopen_bypass",
    "enabled",
    "get_bypass_stats",
    "is_enabled",
    "patch_model",
    "print_bypass_report",
    "report",
    "track",
    "unpatch_model",
    "wait_for_kernels",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'unhang' has no attribute {name!r}")
    _load_before_torch()
    try:
        value = getattr(importlib.import_module(f"unhang.{home}"), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ModuleNotFoundError(
            f"unhang.{name} needs torch, and {sys.executable} has none: start the Python that has it, or see `unhang "
            "doctor` for which torch to install",
            name="torch",
        ) from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _is_on(variable: str) -> bool:
    """Whether the user switched something on by a variable."""
    return os.environ.get(variable, "0") not in ("", "0")


# The library at MIOpen's boundary. It plans what torch's dispatcher does not see (saved graphs, C++ extensions,
# ``aten::miopen_*``), with the same planner: ``docs/internals/miopen-bypass.md``.
_AT_BOUNDARY = os.path.join(os.path.dirname(__file__), "libunhang_miopen.so")


def _load_before_torch() -> None:
    """Loads the library at MIOpen's boundary for everything that is loaded after it, on a machine with an affected card
    and before torch. Torch's references to MIOpen then lead to it."""
    if "torch" in sys.modules or not os.path.exists(_AT_BOUNDARY):
        return
    if os.environ.get("UNHANG_MIOPEN") == "0" or _is_on("UNHANG_DISABLE"):
        return
    machine = _core.Machine.inspect("")
    if not machine.affected or machine.described_by_folder:
        return
    # Imported here, because few programs need them and every program would wait for them.
    import contextlib
    import ctypes

    # Another architecture, or a C library that is too old: torch is still reached through its dispatcher.
    with contextlib.suppress(OSError):
        ctypes.CDLL(_AT_BOUNDARY, mode=ctypes.RTLD_GLOBAL)


_core.refuse_free_threaded()
