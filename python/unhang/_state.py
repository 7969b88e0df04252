"""What this process knows: the machine, the store, the session on them. Made on first use, once per process.

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
from typing import Any, ClassVar, NoReturn, TypeVar

import torch

from unhang import _core, _talk

Lock = TypeVar("Lock")


class UnhangWarning(RuntimeWarning):
    """Something that unhang says once."""


class State:
    """One process's machine, store and session; what torch says of the machine."""

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
        """Whether torch's device of that number is an RDNA1 card. A torch for CUDA never computes on one."""
        if not self.machine.affected or torch.version.hip is None:
            return False
        known = self._affected.get(index)
        if known is None:
            known = self._affected[index] = self.machine.is_affected_at(index)
        return known

    @functools.cached_property
    def learns_from_cpu(self) -> bool:
        """Whether what CPU tensors show may be kept. Evidence is about a machine, and where it has an accelerator it is
        about that: how torch's CPU kernels fare must not prove its GPU kernels.

        Asked when it matters: torch's answer fixes which GPUs the process sees, and the program may still choose.
        """
        return not self.machine.affected and not torch.cuda.is_available()


def torch_build() -> str:
    """The torch that is here, as it enters the machine's fingerprint: evidence of one build says little of another."""
    vendor = (
        f"hip{torch.version.hip}" if torch.version.hip else f"cuda{torch.version.cuda}" if torch.version.cuda else "cpu"
    )
    return f"{torch.__version__} {vendor}"


def renewed_after_fork(module: str, name: str, make: Callable[[], Lock]) -> Lock:
    """A lock for a module's variable of that name. A forked child gets a new one: at the moment of the fork another
    thread of the parent may have held it, and would never let go of the child's copy."""
    os.register_at_fork(after_in_child=lambda: setattr(sys.modules[module], name, make()))
    return make()


class _Awaited:
    """Finds a module as it would have been found, and acts when it has been imported."""

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
    """Acts on a module of torch's: now where it is imported already, or else when somebody imports it."""
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
# What is said names the convolution, and a program may see ever new sizes.
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
    """Drops the state, after writing what is queued; the next use makes a new one. For tests and `disable`."""
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
    """Threads that our CPU engine may use now: torch's own number, and one in a forked child."""
    return 1 if _forked else torch.get_num_threads()


def _is_new(message: str) -> bool:
    """Whether a message was not said yet; it counts as said from now on."""
    if message in _said:
        return False
    if len(_said) >= _MOST_SAID:
        _said.clear()
    _said.add(message)
    return True


def say(message: str) -> None:
    """Says something once per process, so that a training log is not flooded."""
    if _is_new(f"unhang: {message}"):
        _talk.say(message)


def warn_once(message: str) -> None:
    """Issues a warning, once per process."""
    if _is_new(message):
        try:
            _talk.warn(message, UnhangWarning)
        except UnhangWarning:
            # Where warnings are errors: a convolution must not fail for what unhang has to say.
            say(message)


def refuse(message: str) -> NoReturn:
    """Raises for a call that asks for what cannot be."""
    raise RuntimeError(f"unhang: {message}")


def settings_from(given: Any, name: str) -> _core.Settings:
    """The settings that an argument of that name holds: :class:`unhang.Settings`, or a ``Conv2dBypassConfig``."""
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


def environment_variable(name: str) -> Any:
    """A variable's value, or None when unset or empty."""
    return os.environ.get(name) or None
