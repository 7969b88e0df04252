"""What `unhang run` does in each Python that it starts, right after torch was imported: see ``docs/run.md``.

Nothing here may break the program: errors are reported, and the program runs as it would have without unhang.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import sys
from typing import Any

from unhang import _is_on, _talk

#: The oldest torch whose dispatcher accepts our kernels.
OLDEST_TORCH = (1, 13)


def after_torch() -> None:
    """Called by the sitecustomize of a run when torch has been imported."""
    main = sys.modules.get("__main__")
    started_as = getattr(getattr(main, "__spec__", None), "name", "") or ""
    if started_as.partition(".")[0] == "unhang":
        return  # a canary or another child of our own
    import torch

    from unhang import _core

    found = re.match(r"(\d+)\.(\d+)", torch.__version__)
    if found is None or tuple(map(int, found.groups())) < OLDEST_TORCH:
        _say_once("torch", f"torch {torch.__version__} is too old for unhang: it is left alone")
        return
    strategy = os.environ.get("UNHANG_STRATEGY") or "auto"
    rehearse = _is_on("UNHANG_REHEARSE")
    # Reads files only: torch must not look at the GPU before the program does, because the program may still choose
    # one.
    wanted = _core.Machine.inspect("").affected or strategy != "auto"
    has_accelerator = torch.version.hip is not None or torch.version.cuda is not None
    if not rehearse and not (wanted and has_accelerator):
        return
    if rehearse:
        _enable(strategy, rehearse=True)
    else:
        # At torch's first use of the GPU, in the process that uses it: a program that only prepares may still choose a
        # GPU, or fork.
        torch.cuda._lazy_call(lambda: _enable(strategy, devices=("cuda",)))


def _enable(strategy: str, **options: Any) -> None:
    from unhang import _enable as enabling

    try:
        enabling.enable_unless_enabled(strategy, **options)
    except Exception as error:
        _say_once("failed", f"could not be switched on ({type(error).__name__}: {error}): left alone")
        return
    atexit.register(_write_summary)


def _write_summary() -> None:
    """For the last line of `unhang run`: the number of layers by the engine that computed most of their calls."""
    folder = os.environ.get("UNHANG_RUN_FOLDER")
    if not folder:
        return
    try:
        from unhang import _statistics

        layers: dict[str, int] = {}
        for engines in _statistics.engines_by_layer():
            if engines:
                most = max(engines, key=lambda name: engines[name])
                layers[most] = layers.get(most, 0) + 1
        if layers:
            path = os.path.join(folder, f"done-{os.getpid()}.json")
            with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
                json.dump({"layers": layers}, file)
    except Exception:
        pass  # the run is over, or its disk is full: the program has still ended well


def _say_once(name: str, message: str) -> None:
    """Prints a message once in a whole run, however many processes it has."""
    folder = os.environ.get("UNHANG_RUN_FOLDER")
    if folder:
        try:
            os.close(os.open(os.path.join(folder, f"said-{name}"), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            return
        except OSError:
            pass  # the disk is full, or the run is over: better twice than never
    _talk.say(message)
