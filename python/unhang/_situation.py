"""What is there for tensors of a device, as torch knows it; what that allows is the session's to say. And the canaries,
without which nothing runs on an affected card."""

from __future__ import annotations

import torch

from unhang import _children, _core, _gpu
from unhang._state import say, state

#: Seconds that a canary may take in place of what its engine is given. For rehearsals.
deadline: float | None = None


def of(device: str, *, rehearsed: bool, index: int | None = None) -> _core.Situation:
    """The situation for tensors of that device type, and of that device of the type. Lets our kernels run there as far
    as their canaries passed."""
    if device == "cpu" and not rehearsed:
        return _core.Situation("cpu")
    current, place = state(), _gpu.REHEARSED if device == "cpu" else index or 0
    affected = current.machine.affected if rehearsed else current.is_affected(place)
    is_hip = torch.version.hip is not None
    return current.session.situation(place, _gpu.found(place), affected=affected, is_hip=is_hip)


def is_endangered(device: torch.device, *, rehearsed: bool) -> bool:
    """Whether an RDNA1 card would compute on tensors of that device, or is played by it."""
    if rehearsed:
        return state().machine.affected
    return device.type == "cuda" and state().is_affected(device.index or 0)


def ensure_canary(engine: str, index: int) -> tuple[str, str]:
    """Runs the canary of an engine of torch's unless its verdict is known for that device, and keeps the verdict."""
    return state().session.ensure_canary(index, engine, _children.supervise_canary, say, deadline)


def ensure_families(index: int) -> None:
    """Runs the canaries of our kernel families that are not known for that device, and keeps their verdicts."""
    kernels = _gpu.found(index)
    if not isinstance(kernels, str):
        state().session.ensure_families(index, kernels, _children.supervise_canary, say, deadline)
    elif index != _gpu.REHEARSED:
        say(f"our GPU kernels are not used: {kernels}")
