"""The library at MIOpen's boundary (``libunhang_miopen.so``): loaded before torch, and informed about what is planned
here.

It plans what torch's dispatcher does not see (saved graphs, C++ extensions, ``aten::miopen_*``), with the same planner.
A call that was already planned here passes it untouched. See ``docs/internals/miopen-bypass.md``."""

from __future__ import annotations

import os
import sys

from unhang import _core

TYPE_CHECKING = False  # typing's own would import it, and every program would wait for that
if TYPE_CHECKING:
    from collections.abc import Callable

_FILE = os.path.join(os.path.dirname(__file__), "libunhang_miopen.so")


def load_before_torch() -> None:
    """Loads the library for everything that is loaded after it, on a machine with an affected card and before torch.
    Torch's references to MIOpen then lead to it."""
    if "torch" in sys.modules or not os.path.exists(_FILE):
        return
    if os.environ.get("UNHANG_MIOPEN") == "0" or os.environ.get("UNHANG_DISABLE", "0") not in ("", "0"):
        return
    machine = _core.Machine.inspect("")
    if not machine.affected or machine.described_by_folder:
        return
    # Imported here, because few programs need them and every program would wait for them.
    import contextlib
    import ctypes

    # Another architecture, or a C library that is too old: torch is still reached through its dispatcher.
    with contextlib.suppress(OSError):
        ctypes.CDLL(_FILE, mode=ctypes.RTLD_GLOBAL)


def _find() -> Callable[[int], None] | None:
    """The library's function, if the library is preloaded, was loaded before torch, or came with torch by auditing."""
    import contextlib
    import ctypes

    for name in (None, os.environ.get("UNHANG_MIOPEN"), _FILE):
        # Finds only what is already loaded.
        mode = ctypes.DEFAULT_MODE if not name else os.RTLD_NOLOAD | os.RTLD_NOW
        with contextlib.suppress(OSError, AttributeError):
            found = ctypes.CDLL(name or None, mode=mode).unhang_miopen_planned
            found.argtypes, found.restype = [ctypes.c_int], None
            say: Callable[[int], None] = found
            return say
    return None


class planned:
    """While this is held, the thread's MIOpen calls count as already planned."""

    __slots__ = ()

    _say: Callable[[int], None] | None = None
    _asked = False

    def __enter__(self) -> None:
        if not planned._asked:
            planned._say, planned._asked = _find(), True
        if planned._say is not None:
            planned._say(1)

    def __exit__(self, *_: object) -> None:
        if planned._say is not None:
            planned._say(0)
