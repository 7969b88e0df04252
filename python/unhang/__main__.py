"""``python -m unhang``: the program, with this Python as its default."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from pathlib import Path


def main() -> int:
    """Replaces this process by the program that was installed with this package."""
    beside = Path(sysconfig.get_path("scripts")) / "unhang"
    program = str(beside) if beside.is_file() else shutil.which("unhang")
    if program is None:
        sys.stderr.write(
            f"unhang: the program is neither {beside} nor on PATH; the package alone is here. "
            "hint: install the wheel again, or build it with `make wheel`\n"
        )
        return 127
    os.execv(program, [program, *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
