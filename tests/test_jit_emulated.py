"""Our GPU kernels inside torch on the affected card of the reports, emulated: compiled for gfx1010 by hiprtc, audited,
tagged for the gfx1030 that the runtime believes in, and executed instruction by instruction. CPU tensors stand for the
card's. Skipped where hiprtc is not here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import unhang
from comparing import assert_close
from conftest import subprocess_environment
from emulating import emulated_card, let
from unhang import _commands, _convolve, _core, _direct, _gpu, _state, _watchdog


@pytest.fixture
def card(affected_machine: Path, kernels_of_this_file: Path) -> Iterator[_core.Gpu]:
    with emulated_card(kernels_of_this_file) as gpu:
        yield gpu


def test_kernels_are_for_the_chip_that_is_there(card: _core.Gpu) -> None:
    assert card.architectures == ("gfx1010", "gfx1030")
    assert card.name == "emulated gfx1010"


def test_auto_trains_a_layer_on_our_kernels(card: _core.Gpu, capsys: pytest.CaptureFixture) -> None:
    let(card)
    torch.manual_seed(0)
    x = torch.randn(1, 16, 6, 6, requires_grad=True)
    w = torch.randn(16, 16, 3, 3, requires_grad=True)
    b = torch.randn(16, requires_grad=True)
    y = F.conv2d(x.double(), w.double(), b.double(), padding=1)
    g = torch.randn_like(y).float()
    want = [y, *torch.autograd.grad(y, [x, w, b], g.double())]
    with unhang.enabled(rehearse=True):
        for turn in range(2):
            y = F.conv2d(x, w, b, padding=1)
            for ours, exact in zip([y, *torch.autograd.grad(y, [x, w, b], g)], want):
                assert_close(ours, exact, slack=2)
            if turn == 0:
                # The first call was the generic kernels'; the problem's own are swapped in when they are compiled.
                assert unhang.wait_for_kernels(120.0)
    routes = list(_convolve.routes.values())
    assert len(routes) == 3
    for route in routes:
        assert route.names[0] == "jit"
        assert route.tally.by_place == [2]
        assert route.kernel is not None
        assert route.kernel.settled
        assert not route.kernel.kernel.provisional
        assert "jit is available, and there is no evidence against it" in route.plan.reason
    assert not unhang.report().data["failures"]
    assert "rehearsal" in capsys.readouterr().err


def test_a_wrong_result_is_seen_and_torch_computes(card: _core.Gpu, monkeypatch, capsys) -> None:
    let(card)
    honest, lies = _gpu.launch, []

    def lying(loaded, *rest):
        result = honest(loaded, *rest)
        lies.append(loaded.problem.key)
        result[0, 0, 0, 0] += 1.0
        return result

    x, w = torch.randn(1, 8, 5, 5), torch.randn(4, 8, 3, 3)
    want = F.conv2d(x.double(), w.double())
    with monkeypatch.context() as patch, unhang.enabled(rehearse=True):
        patch.setattr(_gpu, "launch", lying)
        for _ in range(2):
            assert_close(F.conv2d(x, w), want)
    assert len(lies) == 1
    assert "was wrong" in capsys.readouterr().err
    assert unhang.report().data["failures"][0]["engine"] == "jit"


def test_unproven_families_stay_out_and_say_so(card: _core.Gpu) -> None:
    let(card, "hangs")
    with unhang.enabled(rehearse=True):
        F.conv2d(torch.randn(1, 8, 5, 5), torch.randn(4, 8, 3, 3))
    (route,) = _convolve.routes.values()
    assert "jit" not in route.names
    assert "canary" in route.plan.reason
    assert "hung in plain" in route.plan.reason


def test_the_canary_of_the_plain_family_passes_in_a_child(card: _core.Gpu) -> None:
    """The child that `enable` starts, with the family that compiles fastest."""
    command = [sys.executable, "-m", "unhang._trials", "canary", "jit", "--rehearsed", "--families", "plain"]
    outcome = _core.supervise(command, 170.0)
    verdicts, hung = outcome.families(["plain"])
    assert not hung
    assert [verdict for _, verdict, _ in verdicts] == ["works"], outcome.output


def test_a_comparison_that_says_nothing_leaves_the_kernel_open(card: _core.Gpu) -> None:
    let(card)
    compared = []
    original = _gpu.compare

    with pytest.MonkeyPatch.context() as patch, unhang.enabled(rehearse=True):
        patch.setattr(_gpu, "compare", lambda *it: compared.append(original(*it)) or compared[-1])
        w = torch.randn(4, 8, 3, 3)
        assert (F.conv2d(torch.zeros(1, 8, 5, 5), w) == 0).all()
        F.conv2d(torch.randn(1, 8, 5, 5), w)
    assert [right for right, _ in compared] == [None, True]


def test_bits_are_the_same_at_every_call(card: _core.Gpu) -> None:
    let(card)
    x, w = torch.randn(2, 16, 6, 6, requires_grad=True), torch.randn(16, 16, 3, 3, requires_grad=True)
    g, found = torch.randn(2, 16, 6, 6), []
    torch.use_deterministic_algorithms(True)
    try:
        with unhang.enabled(rehearse=True):
            for _ in range(4):
                y = F.conv2d(x, w, padding=1)
                found.append([y, *torch.autograd.grad(y, [x, w], g)])
    finally:
        torch.use_deterministic_algorithms(False)
    assert {route.names[0] for route in _convolve.routes.values()} == {"jit"}
    for again in found[1:]:
        assert all(torch.equal(ours, first) for ours, first in zip(again, found[0]))


def test_comparing_takes_none_of_the_programs_random_numbers(card: _core.Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    let(card)
    compared, original, w = [], _gpu.compare, torch.randn(4, 8, 3, 3)
    monkeypatch.setattr(_gpu, "compare", lambda *it: compared.append(original(*it)) or compared[-1])
    torch.manual_seed(3)
    want = torch.rand(4)
    with unhang.enabled(rehearse=True):
        torch.manual_seed(3)
        F.conv2d(torch.zeros(1, 8, 5, 5), w)
    assert [right for right, _ in compared] == [None, True], "on numbers of our own"
    assert torch.equal(torch.rand(4), want)


def test_zeros_are_compared_once_and_not_at_every_call(card: _core.Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    let(card)
    compared = []
    honest = _gpu.compare
    monkeypatch.setattr(_gpu, "compare", lambda *it: compared.append(honest(*it)) or compared[-1])
    x, w = torch.zeros(1, 8, 5, 5), torch.randn(4, 8, 3, 3)
    with unhang.enabled(rehearse=True):
        F.conv2d(x, w)
        assert unhang.wait_for_kernels(120.0)
        F.conv2d(x, w)
        so_far = len(compared)
        for _ in range(4):
            assert (F.conv2d(x, w) == 0).all()
    assert len(compared) == so_far, "each kernel is compared once, by numbers of our own"
    assert {right for right, _ in compared[1::2]} == {True}


@pytest.mark.parametrize("watched", [False, True])
def test_a_repeated_call_launches_our_kernels_without_python(
    card: _core.Gpu, watched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    let(card)
    if watched:
        monkeypatch.setenv("UNHANG_WATCHDOG", "1")
    entered: list[str] = []
    forward, backward = _convolve.forward, _convolve.backward
    monkeypatch.setattr(_convolve, "forward", lambda *it: entered.append("forward") or forward(*it))
    monkeypatch.setattr(_convolve, "backward", lambda *it: entered.append("backward") or backward(*it))
    torch.manual_seed(0)
    x, w = torch.randn(1, 8, 5, 5, requires_grad=True), torch.randn(4, 8, 3, 3, requires_grad=True)
    b = torch.randn(4, requires_grad=True)
    y = F.conv2d(x.double(), w.double(), b.double())
    want = [y, *torch.autograd.grad(y, [x, w, b], torch.ones_like(y))]
    try:
        with unhang.enabled(rehearse=True):
            for turn in range(5):
                y = F.conv2d(x, w, b)
                got = [y, *torch.autograd.grad(y, [x, w, b], torch.ones_like(y))]
                for ours, exact in zip(got, want):
                    assert_close(ours, exact, slack=2)
                if turn == 0:
                    assert unhang.wait_for_kernels(120.0)
                if turn == 2:
                    entered.clear()
            assert not entered or not _direct.open_direct_path()
            # A view that begins where our kernels cannot read is copied, and so Python's.
            shifted = torch.cat([torch.zeros(1), x.detach().flatten()])[1:].view_as(x)
            assert shifted.data_ptr() % _gpu.ALIGNMENT
            assert_close(F.conv2d(shifted, w, b), want[0], slack=2)
            assert entered == ["forward"] or not _direct.open_direct_path()
    finally:
        _watchdog.stop()
    assert all(route.tally.by_place == [5 + (route.key.startswith("forward"))] for route in _convolve.routes.values())
    assert {route.names[0] for route in _convolve.routes.values()} == {"jit"}


def test_what_is_compared_is_what_was_launched_though_another_thread_swaps_kernels(
    card: _core.Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    let(card)
    honest, launched, kept = _gpu.launch, [], []

    def swapping(loaded, *rest):
        launched.append(loaded.kernel)
        for route in _convolve.routes.values():
            route.engines[0].loaded = None  # as if another thread had put other kernels there
        return honest(loaded, *rest)

    monkeypatch.setattr(_gpu, "launch", swapping)
    honest_session = _state.state().session

    class Noting:
        def __getattr__(self, name: str) -> object:
            return getattr(honest_session, name)

        def keep_first_result(self, kernel: _core.Kernel, *_: object) -> None:
            kept.append(kernel)

    monkeypatch.setattr(_state.state(), "session", Noting())
    with unhang.enabled(rehearse=True):
        F.conv2d(torch.randn(1, 8, 5, 5), torch.randn(4, 8, 3, 3))
    assert launched
    assert kept == launched


def test_warming_without_a_gpu_says_so() -> None:
    environment = subprocess_environment(CUDA_VISIBLE_DEVICES="", HIP_VISIBLE_DEVICES="")
    done = subprocess.run(
        [sys.executable, "-m", "unhang._commands", "warm"], env=environment, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (3, "")
    assert "no accelerator" in done.stderr


def test_what_was_warmed_is_json_with_a_schema(
    card: _core.Gpu, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(_gpu, "found", lambda index: card)
    assert _commands.warm(["--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["schema"], found["compiler"], found["failed"]) == (1, card.compiler, [])


def test_a_device_that_is_not_there_is_declined_by_name() -> None:
    with pytest.raises(_core.GpuDeclined, match="UNHANG_REHEARSE_GPU"):
        _gpu.gpu(_gpu.REHEARSED)
    _gpu.close()
    if not torch.cuda.is_available():
        with pytest.raises(_core.GpuFailure, match=r"libcuda|cuInit|cuDeviceGet"):
            _core.Gpu.open_cuda(0)
        with pytest.raises(_core.GpuFailure, match=r"libamdhip64|hipInit|hipDeviceGetPCIBusId|is unknown"):
            _core.Gpu.open_hip(0, _core.Machine.inspect("none"))
    assert not os.environ.get("UNHANG_REHEARSE_GPU")
