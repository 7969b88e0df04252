"""Which engines are there for tensors of a device, which are proven, and what torch would do by itself."""

from __future__ import annotations

import torch

from unhang import _canary, _core, _environment, _gpu
from unhang._state import state

#: An engine's standing: "available", "absent" or "unproven", and why.
Standing = tuple[str, str]


def of(device: str, *, rehearsed: bool, index: int | None = None) -> _core.Situation:
    """The situation for tensors of that device type, and of that device of the type."""
    if device == "cpu" and not rehearsed:
        return _core.Situation("cpu")
    return _on_accelerator(_gpu.REHEARSED if device == "cpu" else index or 0, rehearsed=rehearsed)


def is_endangered(device: torch.device, *, rehearsed: bool) -> bool:
    """Whether an RDNA1 card would compute on tensors of that device, or is played by it."""
    if rehearsed:
        return state().machine.affected
    return device.type == "cuda" and state().is_affected(device.index or 0)


def _on_accelerator(index: int, *, rehearsed: bool) -> _core.Situation:
    current = state()
    affected = current.machine.affected if rehearsed else current.is_affected(index)
    engines: dict[str, Standing] = {"jit": _canary.jit_standing(index, rehearsed=rehearsed)}
    miopen_here = torch.version.hip is not None or rehearsed
    if not miopen_here:
        engines["miopen"] = ("absent", "this torch is not built for ROCm")
    elif affected:
        engines["miopen"] = ("unproven", "MIOpen was not tried on this card in a child process")
    if affected:
        engines["aten"] = _canary.standing("aten", index=index, rehearsed=rehearsed)
    return _core.Situation(
        "affected" if affected else "accelerator",
        engines,
        spoofed=affected and current.machine.spoofed,
        families=_environment.solver_families() if miopen_here else None,
        rehearsed=rehearsed,
    )
