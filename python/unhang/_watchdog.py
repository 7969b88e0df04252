"""The watchdog: names a convolution that hangs, keeps it as evidence, and ends the process.

On an accelerator, markers go into the stream before and after each call. Threads that need no interpreter check whether
they complete (``unhang._core.Watchdog``; ``docs/run.md`` says how a hang differs from a long compilation). In a
rehearsal, a call on CPU tensors stands for the card's, and is over when it returns.

It is on under ``unhang run`` and with ``UNHANG_WATCHDOG=1``.
"""

from __future__ import annotations

import atexit
import faulthandler
import os
import signal

import torch

from unhang import _core, _is_on
from unhang._engines import Engine, Geometry, Gradients, Mask, Task
from unhang._state import say, state

Tensor = torch.Tensor

_watchdog: _core.Watchdog | None = None


def ensure() -> None:
    """Starts the watchdog of this process if it is wanted and not running."""
    global _watchdog
    if _watchdog is not None or not _is_on("UNHANG_WATCHDOG"):
        return
    process = state()
    if process.forked:
        return
    number = _stack_signal()
    # In C and without the interpreter's lock, which a hanging thread may hold for ever.
    faulthandler.register(number, file=2, all_threads=True, chain=False)
    _watchdog = _core.Watchdog(
        process.store,
        process.machine,
        _deadlines(),
        os.environ.get("UNHANG_RUN_FOLDER") or None,
        number,
        torch.version.hip is not None,
    )
    # Drivers are unloaded when the process ends, and must not be called then.
    atexit.register(stop)


def stop() -> None:
    """Stops the watchdog of this process."""
    global _watchdog
    watchdog, _watchdog = _watchdog, None
    if watchdog is not None:
        watchdog.stop(1.0)


def _after_fork_in_child() -> None:
    # Its threads stayed with the parent. It is kept alive, because dropping it would wait for them.
    global _watchdog
    _inherited.append(_watchdog)
    _watchdog = None


_inherited: list[_core.Watchdog | None] = []
os.register_at_fork(after_in_child=_after_fork_in_child)


def _stack_signal() -> int:
    """A signal that programs do not use; libraries have habits with the highest ones."""
    return int(signal.SIGRTMAX) - 7


def _deadlines() -> tuple[float, float, float]:
    """The deadlines of a convolution, of other work on the accelerator, and of a call on the host."""
    deadlines, wrong = _core.hang_deadlines()
    for message in wrong:
        say(message)
    return deadlines


def watched(engine: Engine, name: str, task: Task) -> Engine:
    """The engine for that task, watched if the watchdog is on. CPU tensors are not watched: torch's CPU kernels
    return."""
    if _watchdog is None or (task.device == "cpu" and not task.rehearsed):
        return engine
    return WatchedEngine(engine, name.partition("(")[0], task)


def current() -> _core.Watchdog | None:
    """The watchdog of this process, if there is one."""
    return _watchdog


def _subject(problems: list[_core.Problem], engine: str, *, rehearsed: bool) -> _core.Watched:
    """The watched subject. Its end on an emulated card is filed as a rehearsal, like everything that such a card
    does."""
    return _core.Watchdog.watched(problems, engine, rehearsed or state().machine.emulated)


class WatchedEngine:
    """Another engine with each call watched."""

    def __init__(self, inner: Engine, name: str, task: Task) -> None:
        self.inner = inner
        self._rehearsed = task.rehearsed
        problem = task.problem
        self._single = _subject([problem], name, rehearsed=task.rehearsed)
        self._both = self._single
        if problem.direction != "forward":
            # One call may compute both gradients; if it hangs, it may be either.
            gradients = [problem.with_direction("backward-data"), problem.with_direction("backward-weights")]
            self._both = _subject(gradients, name, rehearsed=task.rehearsed)

    def forward(self, task: Task, input: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
        watchdog = _watchdog
        call = None if watchdog is None else self._begin(watchdog, self._single, input)
        try:
            return self.inner.forward(task, input, weight, bias, geometry)
        finally:
            if watchdog is not None and call is not None:
                watchdog.end(call)

    def backward(
        self, task: Task, grad_output: Tensor, input: Tensor, weight: Tensor, geometry: Geometry, mask: Mask
    ) -> Gradients:
        watchdog = _watchdog
        subject = self._both if mask[0] and mask[1] else self._single
        call = None if watchdog is None else self._begin(watchdog, subject, input)
        try:
            return self.inner.backward(task, grad_output, input, weight, geometry, mask)
        finally:
            if watchdog is not None and call is not None:
                watchdog.end(call)

    def subject(self) -> tuple[_core.Watchdog, _core.Watched] | None:
        """What watches one direction, for calls without Python."""
        return None if _watchdog is None else (_watchdog, self._single)

    def _begin(self, watchdog: _core.Watchdog, subject: _core.Watched, input: Tensor) -> _core.WatchedCall | None:
        if self._rehearsed:
            return watchdog.begin_host(subject)
        device = input.get_device()
        return watchdog.begin(subject, device, torch._C._cuda_getCurrentRawStream(device))
