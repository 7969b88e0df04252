#!/usr/bin/env python3
"""Fetches Triton (188 MB, by hash) and compiles kernels for gfx1010 into build/triton/objects, without a GPU.

``make test-all`` runs it before the tests of the crates, which run the kernels on the emulated card. The torch of the
Python that runs it, which is .venv's there, writes some of them.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
FOLDER = HERE.parent.parent / "build" / "triton"


def main() -> int:
    """Creates the environment once, and the objects each time."""
    if sys.version_info[:2] != (3, 11):
        print(
            f"error: tools/triton/requirements.txt pins a wheel for Python 3.11; this is {sys.version.split()[0]}",
            file=sys.stderr,
        )
        return 2
    torch = importlib.util.find_spec("torch")
    if torch is None or torch.origin is None:
        print(f"error: {sys.executable} has no torch, which writes kernels; hint: tools/setup python", file=sys.stderr)
        return 2
    environment, stamp = FOLDER / "venv", FOLDER / "installed"
    python = environment / "bin" / "python"
    wanted = (HERE / "requirements.txt").read_text()
    if not stamp.is_file() or stamp.read_text() != wanted:
        venv.create(environment, with_pip=True, clear=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*install, "--require-hashes", "-r", str(HERE / "requirements.txt")], check=True, timeout=1200)
        stamp.write_text(wanted)
    objects = FOLDER / "objects"
    subprocess.run([str(python), str(HERE / "compile.py"), str(objects)], check=True, timeout=1200)
    packages = Path(torch.origin).parent.parent
    inductor = [str(python), str(HERE / "inductor.py"), str(packages), str(objects / "inductor")]
    subprocess.run(inductor, check=True, timeout=1200)
    return 0


if __name__ == "__main__":
    sys.exit(main())
