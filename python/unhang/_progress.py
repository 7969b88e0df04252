"""How far something has come that takes a while: a line that moves on a terminal, else a plain one now and then."""

from __future__ import annotations

import sys
import threading
import time

from unhang import _talk

# Seconds between plain lines.
_PLAIN_LINES = 10.0


def _is_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except Exception:  # closed, or not there at all
        return False


def _draw(line: str) -> None:
    try:
        sys.stderr.write(f"\r{_talk.printable(line)}")
        sys.stderr.flush()
    except Exception:
        pass  # where nobody can be told, nobody is


class Progress:
    """Talk on standard error. It may be told from several threads."""

    def __init__(self, what: str, total: int) -> None:
        self._what = what
        self._total = total
        self._moving = _is_terminal()
        self._lock = threading.Lock()
        self._done = 0
        self._drawn = False
        self._said = time.monotonic()

    def one_more(self) -> None:
        """One more is done."""
        with self._lock:
            self._tell(self._done + 1)

    def at(self, done: int) -> None:
        """That many are done."""
        with self._lock:
            if done > self._done:
                self._tell(done)

    def end(self) -> None:
        """Nothing more comes: the moving line is left behind."""
        if self._drawn:
            _talk.write("\n")

    def _tell(self, done: int) -> None:
        self._done = done
        line = f"{self._what} {done} of {self._total}"
        if self._moving:
            _draw(line)
            self._drawn = True
        elif done < self._total and time.monotonic() - self._said >= _PLAIN_LINES:
            _talk.say(line)
            self._said = time.monotonic()
