"""How convolutions are to be planned: a value, and its text form that travels through torch's dispatcher.

Defaults, validation and the text form are Rust's (``unhang_plan::ProcessSettings``), the same for every face.
"""

from __future__ import annotations

from unhang._core import STRATEGIES, Settings

__all__ = ["STRATEGIES", "Settings"]
