"""``import unhang.auto``: turns unhang on as `unhang run` does, for a notebook or a script that you can edit.

It obeys the same variables (``UNHANG_STRATEGY``, ``UNHANG_REHEARSE``, ``UNHANG_DISABLE``) and waits for torch's first
use of the GPU. Errors here do not stop the program: they are reported, and torch is left alone.
"""

from __future__ import annotations

from unhang import _is_on, _run, _talk

if not _is_on("UNHANG_DISABLE"):
    try:
        _run.after_torch()
    except ModuleNotFoundError as error:
        _talk.say(f"{error}: install torch in this Python first (`unhang doctor` says which)")
    except Exception as error:
        _talk.say(f"could not be switched on ({type(error).__name__}: {error}): torch is left alone")
