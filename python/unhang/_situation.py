"""Which engines are there for tensors of a device, which are proven, and what torch would do by itself."""

from __future__ import annotations

import torch

from unhang import _canary, _core, _environment, _gpu
from unhang._state import state


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
    absent = {}
    missing = _gpu.absence(index)
    if missing is not None:
        absent["jit"] = missing
    miopen_here = torch.version.hip is not None or rehearsed
    if not miopen_here:
        absent["miopen"] = "this torch is not built for ROCm"
    return _core.Situation(
        "accelerator",
        affected=affected,
        spoofed=current.machine.spoofed,
        absent=absent,
        canaries=_canaries(index, affected=affected, rehearsed=rehearsed),
        families=_environment.solver_families() if miopen_here else None,
        rehearsed=rehearsed,
    )


def _canaries(index: int, *, affected: bool, rehearsed: bool) -> list[tuple[str, str, tuple[str, str] | None]]:
    """The canaries that count on a device: all on an affected card, those of our own kernels on AMD's other chips, on
    which few have seen them run."""
    if affected:
        return _canary.known(index, rehearsed=rehearsed)
    if torch.version.hip is None:
        return []
    return [canary for canary in _canary.known(index, rehearsed=rehearsed) if canary[0] == "jit"]


def let_proven_families_run(situation: _core.Situation, device: str, index: int | None) -> None:
    """Lets our GPU kernels run on an AMD device as far as their canaries passed."""
    place = _gpu.REHEARSED if device == "cpu" else index or 0
    needs_canaries = situation.affected or (device != "cpu" and torch.version.hip is not None)
    if not needs_canaries or _gpu.absence(place) is not None:
        return
    passed = set(situation.passed("jit"))
    gpu = _gpu.gpu(place)
    # By the device and not by its kind: two cards of one kind are opened apart, and each may be opened anew.
    if _allowed.get(place) != (id(gpu), passed):
        gpu.allow(passed)
        _allowed[place] = (id(gpu), passed)


# By a device's index: the device as it is open, and the kernel families that may run on it.
_allowed: dict[int, tuple[int, set[str]]] = {}
