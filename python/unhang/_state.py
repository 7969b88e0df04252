"""What this process knows: the machine, the store, and the session on them. Created on first use, once per process.

A forked child (a DataLoader's worker) gets a separate state, without the store and with one thread: SQLite handles,
writer threads and thread pools do not survive a fork.
"""

from __future__ import annotations

import functools
import importlib.machinery
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import torch

from unhang import _core, _talk

Lock = TypeVar("Lock")


class UnhangWarning(RuntimeWarning):
    """A warning that unhang issues once."""


class State:
    """One process's machine, store and session, and what torch says about the machine."""

    def __init__(self, *, forked: bool) -> None:
        self.process = os.getpid()
        self.forked = forked
        self.machine = _core.Machine.inspect(torch_build())
        self.store = _core.Store.none() if forked else _core.Store.open()
        self.session = _core.Session(self.machine, self.store)
        self._affected: dict[int, bool] = {}
        for notice in self.store.notices():
            say(notice)

    def is_affected(self, index: int) -> bool:
        """Whether torch's device with that number is an RDNA1 card. A torch for CUDA never computes on one."""
        if not self.machine.affected or torch.version.hip is None:
            return False
        known = self._affected.get(index)
        if known is None:
            known = self._affected[index] = self.machine.is_affected_at(index)
        return known

    @functools.cached_property
    def learns_from_cpu(self) -> bool:
        """Whether observations on CPU tensors may be kept. Evidence is about a machine and, if it has one, about its
        accelerator: results of torch's CPU kernels must not prove its GPU kernels.

        Evaluated when needed: torch's answer fixes which GPUs the process sees, and the program may still choose.
        """
        return not self.machine.affected and not torch.cuda.is_available()


def torch_build() -> str:
    """This torch, as in the machine's fingerprint: evidence about one build says little about another."""
    vendor = (
        f"hip{torch.version.hip}" if torch.version.hip else f"cuda{torch.version.cuda}" if torch.version.cuda else "cpu"
    )
    return f"{torch.__version__} {vendor}"


def renewed_after_fork(module: str, name: str, make: Callable[[], Lock]) -> Lock:
    """A lock for a module's variable with that name. A forked child gets a new one. Another thread of the parent may
    have held it during the fork, and would never release the child's copy."""
    os.register_at_fork(after_in_child=lambda: setattr(sys.modules[module], name, make()))
    return make()


class _Awaited:
    """Finds a module as it would have been found, and acts once it has been imported."""

    actions: ClassVar[dict[str, Callable[[Any], None]]] = {}

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> Any:
        action = cls.actions.get(name)
        spec = None if action is None else importlib.machinery.PathFinder.find_spec(name, path, target)
        if action is not None and spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                execute(module)
                try:
                    action(module)
                except Exception as error:  # torch's own module works without us
                    warn_once(f"unhang does not know this {name}: {error!r}; it is left as it is")

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def when_imported(name: str, action: Callable[[Any], None]) -> None:
    """Acts on a module of torch: now if it is already imported, otherwise when somebody imports it."""
    if name in sys.modules:
        action(sys.modules[name])
        return
    if not _Awaited.actions:
        sys.meta_path.insert(0, _Awaited)
    _Awaited.actions[name] = action


_lock = renewed_after_fork(__name__, "_lock", threading.RLock)
_state: State | None = None
_forked = False
_said: set[str] = set()
# Messages name the convolution, and a program may see ever new sizes.
_MOST_SAID = 10_000


def state() -> State:
    """This process's state."""
    current = _state
    if current is None:
        return _make()
    return current


def _make() -> State:
    global _state
    with _lock:
        if _state is None:
            _state = State(forked=_forked)
        return _state


def forget() -> None:
    """Drops the state after writing what is queued; the next use creates a new one. For tests and `disable`."""
    global _state
    with _lock:
        if _state is not None:
            _state.store.flush(2.0)
        _state = None


def _after_fork_in_child() -> None:
    global _state, _forked
    _forked = True
    # Kept alive on purpose: dropping the parent's store here would touch its database.
    if _state is not None:
        _inherited.append(_state)
    _state = None


_inherited: list[State] = []
os.register_at_fork(after_in_child=_after_fork_in_child)


def threads() -> int:
    """The number of threads that our CPU engine may use now: torch's number, or one in a forked child."""
    return 1 if _forked else torch.get_num_threads()


def _is_new(message: str) -> bool:
    """Whether a message is new; it counts as printed from now on."""
    if message in _said:
        return False
    if len(_said) >= _MOST_SAID:
        _said.clear()
    _said.add(message)
    return True


def say(message: str) -> None:
    """Prints a message once per process, so that a training log is not flooded."""
    if _is_new(f"unhang: {message}"):
        _talk.say(message)


def warn_once(message: str) -> None:
    """Issues a warning, once per process."""
    if _is_new(message):
        try:
            _talk.warn(message, UnhangWarning)
        except UnhangWarning:
            # If warnings are errors: a convolution must not fail because of a message from unhang.
            say(message)


def settings_from(given: Any, name: str) -> _core.Settings:
    """The settings in an argument of that name: :class:`unhang.Settings`, or a ``Conv2dBypassConfig``."""
    if isinstance(given, _core.Settings):
        return given
    convert = getattr(given, "settings", None)
    settings = convert() if callable(convert) else None
    if not isinstance(settings, _core.Settings):
        is_strategy = isinstance(given, str) and given in _core.STRATEGIES
        hint = f": {name}=unhang.Settings(strategy={given!r})" if is_strategy else ""
        raise TypeError(
            f"{name} must be unhang.Settings or Conv2dBypassConfig, not {type(given).__name__} {given!r:.80}{hint}"
        )
    return settings


def is_unshielded() -> bool:
    """Whether torch's kernels are code for another chip than the card's, and nothing repairs them."""
    return state().machine.spoofed and "libunhang_shield" not in os.environ.get("HSA_TOOLS_LIB", "")
