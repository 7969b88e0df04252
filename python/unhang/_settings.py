"""How convolutions are to be planned: a value, and its text form that travels through torch's dispatcher.

Defaults, validation and the text form are Rust's (``unhang_plan::ProcessSettings``), the same for every face.
"""

from __future__ import annotations

from typing import Any

from unhang._core import STRATEGIES, Settings

__all__ = ["STRATEGIES", "Settings", "settings_from"]


def settings_from(given: Any, name: str) -> Settings:
    """The settings that an argument of that name holds: :class:`unhang.Settings`, or a ``Conv2dBypassConfig``."""
    if isinstance(given, Settings):
        return given
    convert = getattr(given, "settings", None)
    settings = convert() if callable(convert) else None
    if not isinstance(settings, Settings):
        hint = f": {name}=unhang.Settings(strategy={given!r})" if isinstance(given, str) and given in STRATEGIES else ""
        raise TypeError(
            f"{name} must be unhang.Settings or Conv2dBypassConfig, not {type(given).__name__} {given!r:.80}{hint}"
        )
    return settings
