"""How a step of tools/test-rocm and tools/test-frameworks is judged, and that it ends with all that it started."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))

import rocm_steps
from rocm_steps import (
    FAILED,
    LATE,
    NO_MIOPEN,
    NOT_RUN,
    PASSED,
    REFUSED,
    STOPPED,
    Result,
    Setting,
    Stage,
    Step,
    judge,
    run_until,
    written,
)

STEP = Step("one", "", prints=r"^([0-9]+) of \1 parts", refuses="no kernel for gfx1010[^\n]*")
HAZARD = "kernel f: hazard vmem-to-scalar-write at 0x40 `s_mov`\n3 of 3 parts\n"


@pytest.mark.parametrize(
    ("code", "text", "ended"),
    [
        (0, "3 of 3 parts\n", PASSED),
        (1, "3 of 3 parts\n", FAILED),
        (0, "2 of 3 parts\n", FAILED),
        (0, HAZARD, STOPPED),
        (None, "", LATE),
        (1, "no kernel for gfx1010 here\n", REFUSED),
        (0, "skipped: it is not in this root\n", NOT_RUN),
    ],
)
def test_a_step_is_judged_by_its_code_and_what_it_printed(code, text, ended):
    assert judge(STEP, code, text)[0] == ended


@pytest.mark.parametrize("tool", ["test-rocm", "test-torch", "test-frameworks"])
def test_each_tool_says_what_it_would_run(tool):
    command = [sys.executable, Path(__file__).resolve().parent.parent / "tools" / tool, "--list"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) > 2


def test_a_late_step_ends_with_what_it_started(tmp_path):
    (tmp_path / "log").write_text("")
    with (tmp_path / "log").open("wb") as log:
        began = time.monotonic()
        assert run_until(["sh", "-c", "sleep 612 & echo $!; wait"], 3, log.fileno()) is None
        assert time.monotonic() - began < 60
    child = (tmp_path / "log").read_text().strip()
    assert child, "it was started"
    ask = ["ps", "-o", "stat=", "-p", child]
    while (state := subprocess.run(ask, capture_output=True, text=True).stdout.strip()) and not state.startswith("Z"):
        assert time.monotonic() - began < 60, state
        time.sleep(0.1)


def test_a_program_without_miopen_does_not_run_wrong_on_purpose(tmp_path, monkeypatch):
    ran = []
    monkeypatch.setattr(rocm_steps, "REPOSITORY", tmp_path)
    monkeypatch.setattr(Stage, "run", lambda _, step, setting: ran.append(setting) or Result(PASSED, "", 1.0))
    (tmp_path / "build").mkdir()
    stage = Stage(tmp_path, "", {"native": Setting(), "wrong": Setting()}, "tried")
    assert stage.run_all([Step("one", "", expected=(PASSED, NO_MIOPEN))], ["native", "wrong"]) == 0
    assert ran == ["native"]
    assert (tmp_path / "build" / "tried.md").read_text().endswith("| one | passed | calls no MIOpen |\n")


def test_the_table_has_a_row_for_each_step_that_ran():
    results = {("one", "native"): Result(REFUSED, "no a|b", 1.0)}
    assert written([STEP, Step("two", "")], results, ["native", "shield"]).splitlines() == [
        "| step | native | shield |",
        "|---|---|---|",
        "| one | refused: no a/b | not run |",
    ]
