"""``tools/test`` names what failed. ``--stress`` finds what fails in one of several rounds, and leaves no process behind."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.skipif(sys.version_info < (3, 11), reason="tools/test needs Python 3.11")


@pytest.fixture
def tool(tmp_path: Path) -> ModuleType:
    """The program as a module, with its logs elsewhere."""
    loader = importlib.machinery.SourceFileLoader("tools_test", str(ROOT / "tools" / "test"))
    spec = importlib.util.spec_from_loader("tools_test", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    before = sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    try:
        loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = before
    module.LOGS = tmp_path
    return module


def test_a_round_that_fails_is_named(tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = f"import sys; print('1 passed in 0.1s'); sys.exit(len(list(__import__('pathlib').Path({str(tmp_path)!r}).iterdir())) == 2)"
    totals = tool.Totals()
    tool.stress([lambda totals: tool.run("sample", [sys.executable, "-c", script], totals)], totals, rounds=3)
    assert (totals.passed, totals.failed) == (3, 1)
    printed = capsys.readouterr().out
    assert "== under load rounds that failed: 2 of 3" in printed, printed
    assert [(tmp_path / f"round-{number}" / "sample.log").is_file() for number in (1, 2, 3)] == [True] * 3


def test_every_core_is_busy_meanwhile_and_none_afterwards(tool: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    def busy() -> int:
        listed = subprocess.run(["ps", "--ppid", str(os.getpid()), "-o", "args="], capture_output=True, text=True)
        return sum("getppid" in line for line in listed.stdout.splitlines())

    seen = []
    tool.stress([lambda _: seen.append(busy())], tool.Totals(), rounds=2)
    assert seen == [os.cpu_count()] * 2
    assert busy() == 0
    assert "all 2 rounds are green" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("printed", "named"),
    [
        ("test pooling::max ... ok\ntest pooling::mean ... FAILED\ntest result: FAILED. 1 passed; 1 failed; 0 ignored", ["pooling::mean"]),
        ("error: 1 target failed:\n    `-p unhang-gpu --test ahead`", ["-p unhang-gpu --test ahead"]),
        ("FAILED tests/test_run.py::test_a - assert 1 == 2\n1 failed, 2 passed in 0.10s", ["tests/test_run.py::test_a"]),
        ("no word about it", ["code 1"]),
    ],
)  # fmt: skip
def test_what_failed_is_named(tool: ModuleType, printed: str, named: list[str]) -> None:
    totals = tool.Totals()
    tool.run("sample", [sys.executable, "-c", f"print({printed!r}); raise SystemExit(1)"], totals)
    assert totals.failures == [f"sample: {name}" for name in named]
    assert totals.failed == 1
