"""Messages: lines on standard error, through the logger ``unhang``, that never raise and never drive the terminal.
Only what a signal's handler raises meanwhile is passed on: that is the program's own.

By default the logger has one handler, which prints ``unhang: ...``. A program with its own logging can take over:
``logging.getLogger("unhang").propagate = True`` passes lines to its handlers, and ``setLevel`` silences unhang.
"""

from __future__ import annotations

import inspect
import logging
import signal
import sys
import threading
import time
import types
import warnings
from typing import Any

from unhang import _core

logger = logging.getLogger("unhang")
# Seconds between plain progress lines.
_PLAIN_LINES = 10.0


class _StandardError(logging.Handler):
    """The current standard error; if it is closed, full or missing, nothing is printed."""

    def emit(self, record: logging.LogRecord) -> None:
        write(f"unhang: {record.getMessage()}\n")


def write(text: str, stream: Any = None) -> None:
    """Writes the printable part of a text to standard error, or to another stream. Never raises."""
    out = stream if stream is not None else sys.stderr
    if out is None:
        return
    try:
        out.write(printable(text))
        out.flush()
    except Exception as error:  # closed, full, or an encoding without the character: that must not end a program
        if is_of_a_handler(error):
            raise


def printable(text: str) -> str:
    """The text without anything that could drive a terminal or disguise text, by the program's own filter."""
    # Python's form of undecodable file names is not text that can be passed on.
    return _core.printable(text.encode("utf-8", "replace").decode("utf-8"))


def say(message: str, level: int = logging.INFO) -> None:
    """One line, for readers of the logger ``unhang``."""
    try:
        logger.log(level, "%s", message)
    except Exception as error:  # a program's own handler of messages may fail
        if is_of_a_handler(error):
            raise


def warn(message: str, category: type[Warning]) -> None:
    """A warning that points at the program's own line, not at one of ours or of torch's."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("unhang", "torch"):
        frame = frame.f_back
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    module = frame.f_globals.get("__name__") or "unhang"
    try:
        warnings.warn_explicit(message, category, frame.f_code.co_filename, frame.f_lineno, module, registry)
    except Warning:
        raise  # the program has turned warnings into errors
    except Exception as error:  # standard error is closed or broken: there is nowhere to print
        if is_of_a_handler(error):
            raise


def is_of_a_handler(error: BaseException) -> bool:
    """Whether a handler of the program for signals raised an error."""
    if isinstance(error, RecursionError):
        return False  # there is no room to look
    trace, handlers = error.__traceback__, _code_of_handlers()
    while trace is not None:
        frame = trace.tb_frame
        if frame.f_code in handlers or _was_given_its_caller(frame):
            return True
        trace = trace.tb_next
    return False


def _code_of_handlers() -> set[types.CodeType]:
    found = set()
    for number in signal.valid_signals():
        handler: Any = signal.getsignal(number)
        handler = getattr(handler, "func", handler)  # functools.partial
        handler = getattr(handler, "__func__", handler)
        called = (vars(kind)["__call__"] for kind in type(handler).__mro__ if "__call__" in vars(kind))
        code = getattr(handler, "__code__", None) or getattr(next(called, None), "__code__", None)
        if isinstance(code, types.CodeType):
            found.add(code)
    return found


def _was_given_its_caller(frame: types.FrameType) -> bool:
    """Whether a frame has its caller's frame among its arguments, as handlers of signals do. Reading the names of a
    frame that still runs makes it keep its tensors, so those of ours and torch's are not read."""
    if str(frame.f_globals.get("__name__")).partition(".")[0] in ("torch", "unhang"):
        return False
    code = frame.f_code
    several = bool(code.co_flags & inspect.CO_VARARGS)
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + several]
    values = [frame.f_locals.get(name) for name in names]
    found = [it for value in values for it in (value if type(value) is tuple else (value,))]
    return frame.f_back is not None and any(it is frame.f_back for it in found)


def _is_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except Exception:  # closed, or missing
        return False


def _draw(line: str) -> None:
    try:
        sys.stderr.write(f"\r{printable(line)}")
        sys.stderr.flush()
    except Exception as error:  # there is nowhere to print
        if is_of_a_handler(error):
            raise


class Progress:
    """The progress of something that takes a while: a moving line on a terminal, otherwise a plain one now and then.
    Several threads may use it."""

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
        """Ends the moving line."""
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
