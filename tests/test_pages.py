"""What the pages show of Python can be run: every block, page by page, in a fresh interpreter."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import unhang

ROOT = Path(__file__).resolve().parent.parent
MACHINE = ROOT / "crates" / "unhang-machine" / "fixtures" / "rx5600xt-rocm5.7"
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])

# What the pages take for granted: a model that somebody has, and that has computed something.
BEFORE = """
import torch
from torch import nn
model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 1))
model(torch.ones(1, 3, 16, 16))
"""
# Names of calls that are shown with their parameters, as a manual has them.
SIGNATURE = re.compile(r"^unhang\.(\w+)\((.*\*, .*)\)$")


def blocks(page: Path) -> list[str]:
    """The blocks of Python on a page."""
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S)


def can_run(block: str) -> bool:
    """Signatures are no calls, and a training of YOLO fetches data (``tests/test_models.py`` has it)."""
    return not SIGNATURE.match(block.strip()) and "ultralytics" not in block


WITH_BLOCKS = [page for page in PAGES if any(map(can_run, blocks(page)))]


@pytest.mark.parametrize("page", WITH_BLOCKS, ids=lambda page: page.name)
def test_blocks_of_python_run(page: Path, tmp_path: Path) -> None:
    source = "\n".join([BEFORE, "import unhang", *filter(can_run, blocks(page))])
    variables = {**os.environ, "UNHANG_HOME": str(tmp_path), "HOME": str(tmp_path)}
    if "rehearse=True" in source:
        variables["UNHANG_ROOT"] = str(MACHINE)
    ended = subprocess.run(
        [sys.executable, "-c", source], env=variables, capture_output=True, text=True, timeout=300, cwd=tmp_path
    )
    assert ended.returncode == 0, f"{source}\n{ended.stderr}"


def test_signatures_are_those_of_the_package() -> None:
    shown = [SIGNATURE.match(block.strip()) for page in PAGES for block in blocks(page)]
    found = [(match[1], match[2]) for match in shown if match]
    assert found, "no page shows the parameters of anything"
    for name, parameters in found:
        plain = [
            parameter.replace(annotation=inspect.Parameter.empty)
            for parameter in inspect.signature(getattr(unhang, name)).parameters.values()
        ]
        assert str(inspect.Signature(plain))[1:-1].replace("'", '"') == parameters


def test_some_pages_show_python() -> None:
    assert {"README.md", "python.md", "getting-started.md"} <= {page.name for page in WITH_BLOCKS}
