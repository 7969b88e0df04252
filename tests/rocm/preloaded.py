"""Runs a program with a library in front of MIOpen, as in use."""

import os
import subprocess


def run(library: str, words: list[str], deadline: int, **variables: str) -> tuple[int, str]:
    """How it ended, and everything that it printed; 124 where it was ended, as timeout(1) has it."""
    preload = ":".join(it for it in (os.environ.get("LD_PRELOAD"), library) if it)
    environment = {**os.environ, "LD_PRELOAD": preload, **variables}
    try:
        ran = subprocess.run(
            words, env=environment, capture_output=True, text=True, timeout=deadline, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return 124, f"no end within {deadline} s"
    return ran.returncode, ran.stdout + ran.stderr
