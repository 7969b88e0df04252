"""``import unhang.auto``: switches unhang on as `unhang run` does, for a notebook or a script that one may edit.

The same variables count (``UNHANG_STRATEGY``, ``UNHANG_REHEARSE``, ``UNHANG_DISABLE``), torch's first use of the GPU is
waited for, and nothing that goes wrong here stops the program: it is said, and torch is left alone.
"""

from __future__ import annotations

import os

from unhang import _run, _talk

if os.environ.get("UNHANG_DISABLE", "0") in ("", "0"):
    try:
        _run.after_torch()
    except ModuleNotFoundError as error:
        _talk.say(f"{error}: install torch in this Python first (`unhang doctor` says which)")
    except Exception as error:
        _talk.say(f"could not be switched on ({type(error).__name__}: {error}): torch is left alone")
