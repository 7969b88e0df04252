"""Compiles in advance what earlier runs on this machine asked for: ``unhang kernels warm --seen`` starts this.

It runs in a Python with torch, because torch has its own compiler, and its output is filed under that compiler's
version. It asks the GPU what it is, but runs nothing on it.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor

from unhang import _talk

# The program's exit codes: something could not be compiled; it could not tell.
_FAILED, _CANNOT_TELL = 2, 3


def main(arguments: list[str]) -> int:
    """Compiles, prints how much, and returns the exit code."""
    try:
        import torch
    except ImportError:
        _talk.say(f"{sys.executable} has no torch: name another Python with --python")
        return _CANNOT_TELL

    from unhang import _core, _gpu
    from unhang._state import state

    gpu = _gpu.found(torch.cuda.current_device()) if torch.cuda.is_available() else "torch sees no accelerator"
    if isinstance(gpu, str):
        _talk.say(f"our GPU kernels cannot be compiled for this machine's GPU: {gpu}")
        return _CANNOT_TELL
    current = state()
    keys = [key for key, _ in current.store.seen(current.machine.fingerprint)]
    failures: list[str] = []
    progress = _talk.Progress(f"compiling for {gpu.name}:", len(keys))

    def warm(key: str) -> None:
        try:
            gpu.warm(_core.Problem.from_key(key))
        except (_core.GpuFailure, _core.GpuDeclined, ValueError) as error:
            failures.append(f"{key}: {error}")
        progress.one_more()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(warm, keys))
    progress.end()
    for failure in failures:
        _talk.say(failure)
    if "--json" in arguments:
        done = {"compiler": gpu.compiler, "problems": len(keys), "kernels": gpu.compiled, "failed": failures}
        print(json.dumps({"schema": 1, **done}))
    else:
        print(f"{len(keys)} convolutions seen on this machine, {gpu.compiled} kernels compiled now ({gpu.compiler})")
    return _FAILED if failures else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
