"""Which engines are there for tensors of a device, which are proven, and what torch would do by itself."""

from __future__ import annotations

from typing import NamedTuple

import torch

from unhang import _canary, _environment, _gpu
from unhang._state import state

#: An engine's standing: "available", "absent" or "unproven", and why.
Standing = tuple[str, str]


class Situation(NamedTuple):
    """What a planner needs to know besides the problem and the evidence."""

    engines: dict[str, Standing]
    #: The engine that torch uses by itself: computing there is no bypass.
    native: str
    #: MIOpen's solver families that are left, or None where nothing narrows them.
    families: list[str] | None


def of(device: str, *, rehearsed: bool, index: int | None = None) -> Situation:
    """The situation for tensors of that device type, and of that device of the type."""
    if device == "cpu" and not rehearsed:
        return _on_cpu()
    return _on_accelerator(_gpu.REHEARSED if device == "cpu" else index or 0, rehearsed=rehearsed)


def _on_cpu() -> Situation:
    return Situation(
        engines={
            "jit": ("absent", "our GPU kernels do not run on CPU tensors"),
            "miopen": ("absent", "MIOpen does not compute on CPU tensors"),
            "aten": ("available", ""),
            "tiled": ("available", ""),
            "cpu": ("available", ""),
        },
        native="aten",
        families=None,
    )


def is_endangered(device: torch.device, *, rehearsed: bool) -> bool:
    """Whether an RDNA1 card would compute on tensors of that device, or is played by it."""
    if rehearsed:
        return state().machine.affected
    return device.type == "cuda" and state().is_affected(device.index or 0)


def _on_accelerator(index: int, *, rehearsed: bool) -> Situation:
    current = state()
    miopen_here = torch.version.hip is not None or rehearsed
    engines: dict[str, Standing] = {
        "jit": _canary.jit_standing(index, rehearsed=rehearsed),
        "miopen": ("available", "") if miopen_here else ("absent", "this torch is not built for ROCm"),
        "aten": ("available", ""),
        "tiled": ("available", ""),
        "cpu": ("available", ""),
    }
    if current.machine.affected if rehearsed else current.is_affected(index):
        engines["miopen"] = ("unproven", "MIOpen was not tried on this card in a child process")
        engines["aten"] = _canary.standing("aten", index=index, rehearsed=rehearsed)
    native = "miopen" if miopen_here else "aten"
    return Situation(engines, native, _environment.solver_families() if miopen_here else None)
