"""What is there for tensors of a device, as torch knows it; what that allows is the session's to say. And the canaries,
without which nothing runs on an affected card, with how Python children of ours are started."""

from __future__ import annotations

import os
import sys

import torch

from unhang import _core, _gpu
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
    return state().session.ensure_canary(index, engine, supervise_canary, say, deadline)


def ensure_families(index: int) -> None:
    """Runs the canaries of our kernel families that are not known for that device, and keeps their verdicts."""
    kernels = _gpu.found(index)
    if not isinstance(kernels, str):
        state().session.ensure_families(index, kernels, supervise_canary, say, deadline)
    elif index != _gpu.REHEARSED:
        say(f"our GPU kernels are not used: {kernels}")


# ---- Python children: torch and unhang are found as they are here, nothing in the working folder ----
#
# ``python -m`` and ``python -c`` import from the working folder first; in one that others can write that would be their
# code. What the child does about it, and why it does not use ``-P`` or ``-I``, is the Rust side's (``python.rs`` of
# ``unhang-probe``). Here is added where this process imports from, which a program may have changed since it started.


def start(module: str, arguments: list[str]) -> tuple[list[str], list[tuple[str, str | None]]]:
    """The command that runs a module, and the variables to change for it."""
    # As ASCII: a path need not be text.
    command, changes = _core.python_start(sys.executable, ascii(_folders()), module, arguments)
    if sys.flags.no_user_site:
        changes.append(("PYTHONNOUSERSITE", "1"))
    return command, changes


def supervise_canary(arguments: list[str], seconds: float) -> _core.Outcome:
    """Runs the canary's module to its end within a deadline, which counts from when it has imported torch."""
    command, changes = start("unhang._canary", arguments)
    return _core.supervise_canary(command, seconds, changes)


def changed(variables: dict[str, str], changes: list[tuple[str, str | None]]) -> dict[str, str]:
    """The variables with the changes made, for a child that nobody supervises."""
    unset = {name for name, value in changes if value is None}
    values = {name: value for name, value in changes if value is not None}
    return {name: value for name, value in {**variables, **values}.items() if name not in unset}


def _folders() -> list[str]:
    """Where this process imports from. The working folder is among them only where the user named it in PYTHONPATH by
    its full path, or where this very package was imported from it."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    named = {package, *os.environ.get("PYTHONPATH", "").split(os.pathsep)}
    kept = [it for it in sys.path if isinstance(it, str) and os.path.isabs(it) and (it in named or not _is_here(it))]
    return kept if package in kept else [*kept, package]


def _is_here(folder: str) -> bool:
    try:
        return os.path.samefile(folder, ".")
    except OSError:
        return False  # one of the two is gone, or an archive that is not a folder
