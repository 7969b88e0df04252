"""Talk: lines on standard error, through the logger ``unhang``, that never raise and never drive the terminal.

By default the logger has one handler, which prints ``unhang: ...``. A program that logs in its own way takes it over:
``logging.getLogger("unhang").propagate = True`` hands lines to its own handlers, ``setLevel`` makes unhang silent.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
import warnings
from typing import Any

from unhang import _core

logger = logging.getLogger("unhang")
# Seconds between plain lines of something that takes a while.
_PLAIN_LINES = 10.0


class _StandardError(logging.Handler):
    """Standard error as it is at that moment; where it is closed, full or not there, nothing is printed."""

    def emit(self, record: logging.LogRecord) -> None:
        write(f"unhang: {record.getMessage()}\n")


def write(text: str, stream: Any = None) -> None:
    """Writes to standard error, or to another stream, what may be shown of a text. Failing is no reason to fail."""
    out = stream if stream is not None else sys.stderr
    if out is None:
        return
    try:
        out.write(printable(text))
        out.flush()
    except Exception:
        pass  # closed, full, or an encoding that has no such character: talk is not worth a program's end


def printable(text: str) -> str:
    """The text without what could drive a terminal or disguise what is written; the program's own filter."""
    # What Python holds of undecodable file names is no text that could be handed on.
    return _core.printable(text.encode("utf-8", "replace").decode("utf-8"))


def say(message: str, level: int = logging.INFO) -> None:
    """One line, for whoever reads the logger ``unhang``."""
    # A handler of the program's own may fail.
    with contextlib.suppress(Exception):
        logger.log(level, "%s", message)


def warn(message: str, category: type[Warning]) -> None:
    """A warning that points at the line of the program that led to it, not at one of ours or of torch's."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("unhang", "torch"):
        frame = frame.f_back
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    module = frame.f_globals.get("__name__") or "unhang"
    try:
        warnings.warn_explicit(message, category, frame.f_code.co_filename, frame.f_lineno, module, registry)
    except Warning:
        raise  # the program has made errors of warnings
    except Exception:
        pass  # standard error is closed or broken: nobody can be told


def _is_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except Exception:  # closed, or not there at all
        return False


def _draw(line: str) -> None:
    try:
        sys.stderr.write(f"\r{printable(line)}")
        sys.stderr.flush()
    except Exception:
        pass  # where nobody can be told, nobody is


class Progress:
    """How far something is that takes a while: a line that moves on a terminal, else a plain one now and then. Several
    threads may use it."""

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
            write("\n")

    def _tell(self, done: int) -> None:
        self._done = done
        line = f"{self._what} {done} of {self._total}"
        if self._moving:
            _draw(line)
            self._drawn = True
        elif done < self._total and time.monotonic() - self._said >= _PLAIN_LINES:
            say(line)
            self._said = time.monotonic()


if not logger.handlers:
    logger.addHandler(_StandardError())
    logger.propagate = False
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
