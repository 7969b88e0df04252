"""The prober's child with a real torch: it speaks the protocol, its numbers are judged by our CPU engine."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import subprocess_environment
from unhang import _core

PATIENCE = 120.0
FORWARD = "f32:nchw:2x4x9x8:6x3x3:s1x1:p1x1:d1x1:g1"


class Child:
    """The child of the prober, spoken to as the prober does."""

    def __init__(self, ours: socket.socket) -> None:
        ours.settimeout(PATIENCE)
        self._socket = ours
        self._lines = ours.makefile("r", encoding="utf-8")

    def next(self) -> dict[str, Any]:
        while True:
            message: dict[str, Any] = json.loads(self._lines.readline())
            if message != {"say": "heartbeat"}:
                return message

    def ask(self, number: int, problem: str, engine: str, **more: Any) -> tuple[list[str], dict[str, Any]]:
        request = {"id": number, "problem": problem, "engine": engine, "variant": "", **more}
        self._socket.sendall(json.dumps(request).encode() + b"\n")
        stages = []
        while True:
            message = self.next()
            assert message["id"] == number
            if message["say"] == "answer":
                return stages, message
            stages.append(message["stage"])


@contextmanager
def child() -> Iterator[Child]:
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", "unhang._trials", "probe", "--device", "cpu"]
    process = subprocess.Popen(
        command,
        stdin=theirs,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=subprocess_environment(OMP_NUM_THREADS="1"),
    )
    theirs.close()
    try:
        spoken = Child(ours)
        ready = spoken.next()
        assert ready["say"] == "ready"
        assert torch.__version__ in ready["about"]
        yield spoken
    finally:
        # A prober that goes away, however it does, is how the child ends: nobody is left behind.
        ours.shutdown(socket.SHUT_RDWR)
        ours.close()
        try:
            assert process.wait(PATIENCE) is not None
        finally:
            process.kill()
            process.wait()


def test_engines_are_tried_in_every_direction_type_and_layout() -> None:
    number = 0
    with child() as it:
        assert it.ask(1000, "", "", canary=True)[1]["ended"] == "computed"
        for engine in ("cpu", "aten"):
            for direction in ("forward", "backward-data", "backward-weights"):
                for rest in (
                    FORWARD,
                    FORWARD.replace("nchw", "nhwc"),
                    FORWARD.replace("f32", "f64"),
                    "f32:nchw:1x6x7x7:6x3x3:s2x2:p1x1:d1x1:g6",
                ):
                    number += 1
                    stages, answer = it.ask(number, f"{direction}:{rest}", engine)
                    assert stages == ["compile", "run", "check"]
                    assert answer["ended"] == "computed", answer
                    largest = _core.engine_tolerance(rest.partition(":")[0])[1]
                    assert answer["relative_error"] <= largest, (engine, direction, answer)
                    assert answer["not_numbers"] == 0
                    assert answer["seconds"] > 0
                    assert answer["first_seconds"] > 0
        for engine, ended in (("miopen", "unsupported"), ("jit", "unsupported"), ("magic", "unsupported")):
            assert it.ask(2000, f"forward:{FORWARD}", engine)[1]["ended"] == ended
        assert it.ask(2001, "nonsense", "aten")[1]["ended"] == "error"
        # And it goes on after that.
        assert it.ask(2002, f"forward:{FORWARD}", "aten")[1]["ended"] == "computed"


def test_wrong_numbers_are_measured() -> None:
    from unhang._trials import _compare

    right = torch.tensor([1.0, -4.0, 2.0, 0.5])
    assert _compare(right, right) == (0.0, 0)
    assert _compare(torch.tensor([1.0, -4.0, 3.0, 0.5]), right) == (0.25, 0)
    assert _compare(torch.tensor([1.0, float("nan"), 2.0, float("inf")]), right) == (0.0, 2)
    with pytest.raises(RuntimeError, match="shape"):
        _compare(right[:2], right)


def ask_once(*arguments: str, folder: Path) -> Any:
    command = [sys.executable, "-m", "unhang._trials", "probe", *arguments]
    environment = subprocess_environment()
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    (answer,) = [line for line in done.stdout.splitlines() if line.startswith("unhang-probe ")]
    return json.loads(answer.partition(" ")[2])


def test_it_says_which_torch_it_has(tmp_path: Path) -> None:
    from unhang._state import torch_build

    told = ask_once("--describe", folder=tmp_path)
    assert told["torch"] == torch_build()
    assert told["rocm"] == (torch.version.hip is not None)


def test_the_convolutions_of_a_model_are_recorded_with_their_use(tmp_path: Path) -> None:
    (tmp_path / "mymodel.py").write_text(
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.first = torch.nn.Conv2d(3, 8, 3, padding=1)\n"
        "        self.again = torch.nn.Conv2d(8, 8, 3, padding=1)\n"
        "        self.up = torch.nn.ConvTranspose2d(8, 2, 2, stride=2)\n"
        "    def forward(self, x):\n"
        "        x = self.again(self.again(self.first(x)))\n"
        "        return {'image': self.up(x), 'mean': x.mean()}\n"
        "def make():\n"
        "    return Net()\n"
    )
    told = ask_once("--record", "mymodel:make", "--input", "2x3x16x12", folder=tmp_path)
    counts = {it["problem"]: it["count"] for it in told["problems"]}
    first = "f32:nchw:2x3x16x12:8x3x3:s1x1:p1x1:d1x1:g1"
    again = "f32:nchw:2x8x16x12:8x3x3:s1x1:p1x1:d1x1:g1"
    # The input of the first wants no gradient, so nobody computes one.
    assert counts[f"forward:{first}"] == 1
    assert counts[f"backward-weights:{first}"] == 1
    assert f"backward-data:{first}" not in counts
    for direction in ("forward", "backward-data", "backward-weights"):
        assert counts[f"{direction}:{again}"] == 2
    assert sum(":t:" in key for key in counts) == 3, counts
    assert "no module" in ask_once("--record", "nothere:make", "--input", "1x3", folder=tmp_path)["error"].lower()
    assert "MODULE:FACTORY" in ask_once("--record", "mymodel", "--input", "1x3", folder=tmp_path)["error"]
