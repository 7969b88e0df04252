"""What unhang says: to the logger `unhang`, never raising, and never driving a terminal."""

from __future__ import annotations

import io
import logging
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

import unhang
from conftest import subprocess_environment
from unhang import _state, _talk


def test_lines_go_to_standard_error_and_the_logger(capsys: pytest.CaptureFixture) -> None:
    _state.say("something")
    _state.say("something")
    assert capsys.readouterr().err == "unhang: something\n"
    heard: list[str] = []

    class Mine(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard.append(record.getMessage())

    handler = Mine()
    _talk.logger.addHandler(handler)
    try:
        _talk.say("more")
    finally:
        _talk.logger.removeHandler(handler)
    assert heard == ["more"]
    _talk.logger.setLevel(logging.ERROR)
    try:
        _talk.say("quiet")
    finally:
        _talk.logger.setLevel(logging.INFO)
    assert "quiet" not in capsys.readouterr().err


def test_nothing_drives_the_terminal(capsys: pytest.CaptureFixture) -> None:
    _talk.say("a\x1b[2Jb\u202ec\udcff")
    said = capsys.readouterr().err
    assert said.startswith("unhang: a\ufffd[2Jb\ufffdc")
    assert "\x1b" not in said
    assert "\u202e" not in said


def test_a_hostile_name_in_the_bypass_report() -> None:
    model = torch.nn.Sequential()
    model.add_module("evil\x1b[2J", torch.nn.Conv2d(1, 1, 1))
    out = io.StringIO()
    unhang.print_bypass_report(model, file=out)
    assert "evil\ufffd[2J" in out.getvalue()
    assert "\x1b" not in out.getvalue()


@pytest.mark.parametrize("stream", ["None", "open('/dev/full', 'w')", "closed()", "Broken()"])
def test_a_stream_that_takes_nothing_breaks_nothing(stream: str) -> None:
    code = f"""
import os, sys, torch
class Broken:
    def write(self, text): raise RuntimeError("no")
    def flush(self): raise RuntimeError("no")
    def isatty(self): raise RuntimeError("no")
def closed():
    file = open(os.devnull, "w")
    file.close()
    return file
import unhang
from unhang import _state, _talk
sys.stderr = {stream}
sys.stdout, out = {stream}, sys.stdout
_state.say("something")
_state.warn_once("a warning")
progress = _talk.Progress("compiling", 3)
progress.one_more()
progress.end()
unhang.enable("tiled", devices=("cpu",), verbose=True)
torch.nn.functional.conv2d(torch.ones(1, 1, 8, 8), torch.ones(1, 1, 3, 3))
unhang.print_bypass_report(torch.nn.Conv2d(1, 1, 1))
sys.stdout, sys.stderr = out, sys.__stderr__
print("reached the end", flush=True)
os._exit(0)
"""
    environment = subprocess_environment()
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300)
    assert "reached the end" in ended.stdout, ended.stderr


def test_a_warning_points_at_the_programs_line(tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        _state.warn_once("look here")
    assert [Path(one.filename).name for one in seen] == ["test_talk.py"]


def test_the_page_is_written_beside_nobodys_link(tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    secret = tmp_path / "secret"
    secret.write_text("mine")
    # As the name next to it was, for others to foresee.
    (tmp_path / ".page.html.new").symlink_to(secret)
    assert unhang.report().html(target) == target
    assert secret.read_text() == "mine"
    assert target.read_text().startswith("<!")
    assert unhang.report().html().startswith("<!")
    assert "<iframe" in unhang.report()._repr_html_()


def test_python_m_unhang_is_the_program(tmp_path: Path) -> None:
    program = tmp_path / "unhang"
    program.write_text("#!/bin/sh\necho program $@\n")
    program.chmod(0o755)
    environment = subprocess_environment(PATH=str(tmp_path))
    code = "import sysconfig, runpy, sys; sysconfig.get_path = lambda name: '/nowhere'; sys.argv = ['unhang', 'doctor']; runpy.run_module('unhang', run_name='__main__')"
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert ended.stdout == "program doctor\n", ended.stderr
