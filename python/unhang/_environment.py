"""MIOpen's switches, set for it before its first use and given back afterwards.

MIOpen's ``MIOPEN_DEBUG_CONV_*`` variables switch solver families *off* when they are 0; setting 1 does nothing. So
"use implicit GEMM" means: the other families to 0.
"""

from __future__ import annotations

import os

import torch

from unhang import _core
from unhang._state import warn_once

#: The variable of each solver family.
FAMILIES = _core.SOLVER_FAMILIES

_before: dict[str, str | None] = {}


def narrow_to_implicit_gemm() -> None:
    """Switches every other family off. Says so when MIOpen may already have read its variables."""
    if torch.version.hip is not None and torch.cuda.is_initialized():
        warn_once(
            "the GPU was in use before MIOpen's other solver families could be switched off: MIOpen reads its "
            "variables once, so this may have no effect; call enable_miopen_bypass() before the first use of the GPU"
        )
    for family, variable in FAMILIES.items():
        _before.setdefault(variable, os.environ.get(variable))
        os.environ[variable] = "1" if family == "implicit-gemm" else "0"


def restore() -> None:
    """Puts every variable back as it was."""
    for variable, value in _before.items():
        if value is None:
            os.environ.pop(variable, None)
        else:
            os.environ[variable] = value
    _before.clear()


def solver_families() -> list[str] | None:
    """The families that are left, or None when none is switched off."""
    left = [family for family, variable in FAMILIES.items() if os.environ.get(variable) != "0"]
    return left if len(left) < len(FAMILIES) else None
