"""The canary's child as `unhang doctor --self-test` starts it: one readable answer, whatever is here."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

from unhang import _core, _state, _trials


def ask(*arguments: str, **environment: str) -> tuple[list[str], dict[str, str]]:
    # None of this machine's accelerators: what is asked here must not depend on them.
    hidden = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-m", "unhang._trials", "canary", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env={**os.environ, **hidden, **environment},
    )
    lines = done.stdout.splitlines()
    (answer,) = (line for line in lines if line.startswith("unhang-canary "))
    return lines, json.loads(answer.partition(" ")[2])


def test_without_an_accelerator_it_declines_and_says_which_torch_it_has() -> None:
    lines, answer = ask("aten")
    assert answer["verdict"] == "unsupported"
    assert "no accelerator" in answer["detail"]
    assert lines[0] == f"unhang-torch {_state.torch_build()}"


@pytest.mark.skipif(torch.version.hip is not None, reason="this torch is built for ROCm")
def test_miopen_is_not_here_without_rocm() -> None:
    answer = ask("miopen")[1]
    assert (answer["verdict"], "ROCm" in answer["detail"]) == ("unsupported", True)


def test_miopen_can_be_rehearsed() -> None:
    assert ask("miopen", "--rehearsed")[1]["verdict"] == "works"
    assert ask("miopen", "--rehearsed", UNHANG_REHEARSE_CANARY="wrong")[1]["verdict"] == "wrong"


def test_it_ends_with_whoever_started_it() -> None:
    start = "import subprocess, sys; subprocess.run([sys.executable, '-m', 'unhang._trials', 'canary', 'aten', '--rehearsed'])"
    environment = {**os.environ, _trials.REHEARSAL: "hang"}
    parent = subprocess.Popen([sys.executable, "-c", start], stdout=subprocess.PIPE, text=True, env=environment)
    assert parent.stdout
    # It says which torch it has, and hangs.
    assert parent.stdout.readline().startswith("unhang-torch ")
    parent.kill()
    # The output ends when nobody is left who could write to it.
    assert parent.communicate(timeout=60)[0] == ""


@pytest.mark.parametrize("waited_for", [True, False])
def test_it_does_not_begin_once_its_parent_has_ended(waited_for: bool) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        if waited_for:
            ended.wait()
        environment = {**os.environ, "UNHANG_CHILD_OF": str(ended.pid)}
        command = [sys.executable, "-m", "unhang._trials", "canary", "aten", "--rehearsed"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert (done.returncode, done.stdout) == (1, "")


def test_an_exception_is_an_answer(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def raises(engine: str, *, rehearsed: bool, arguments: list[str]) -> tuple[str, str]:
        raise RuntimeError("HIP error: invalid device function\nmany more lines")

    monkeypatch.setattr(_trials, "_try_canary", raises)
    _trials.canary(["aten"])
    answer = _core.canary_answer("error", "RuntimeError: HIP error: invalid device function")
    assert capsys.readouterr().out == answer + "\n"


def test_a_child_without_torch_says_nothing_of_our_kernels() -> None:
    cannot = [sys.executable, "-c", "raise ImportError('libamdhip64.so.5')"]
    outcome = _core.supervise_canary(cannot, 60.0)
    assert (outcome.began, outcome.families(["plain", "gemm"])) == (False, ([], False))
    verdict, detail = outcome.canary()
    assert (verdict, "libamdhip64.so.5" in detail, "not evidence" in detail) == ("error", True, True)


@pytest.mark.parametrize("trial", ["matmul", "half"])
def test_what_a_model_rests_on_besides_convolutions_is_tried_too(trial: str) -> None:
    assert ask(trial)[1]["verdict"] == "unsupported"
    answer = ask(trial, "--rehearsed")[1]
    if trial == "half" and not hasattr(torch, "compile"):
        # Torch 1.13 has no such kernels for the CPU, which plays the card here; that is an answer too.
        assert (answer["verdict"], "not implemented for 'Half'" in answer["detail"]) == ("error", True)
        return
    assert (answer["verdict"], "rehearsed on the CPU" in answer["detail"]) == ("works", True)
    assert ask(trial, "--rehearsed", UNHANG_REHEARSE_CANARY="wrong")[1]["verdict"] == "wrong"
