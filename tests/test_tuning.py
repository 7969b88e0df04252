"""Tuning on first use: candidates are timed between calls, and the fastest is kept as evidence. Here on the emulated card
of the reports, whose times are the emulator's; on a GPU where there is one (the tests at the end)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import unhang
from comparing import assert_close
from emulating import emulated_card, forget_card, let
from unhang import _convolve, _core, _direct, _gpu, _jit, _state

X, W, B = torch.randn(2, 16, 12, 12), torch.randn(32, 16, 3, 3), torch.randn(32)
WANT = F.conv2d(X.double(), W.double(), B.double(), padding=1)


@pytest.fixture
def card(affected_machine: Path, kernels_of_this_file: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[_core.Gpu]:
    """The emulated card, with all kernel families but one that passed their canaries."""
    monkeypatch.setattr(_jit, "contests", _core.Contests())
    forget()
    with emulated_card(kernels_of_this_file) as gpu:
        let(gpu, winograd="hangs")
        yield gpu
    forget()


def forget() -> None:
    """What a new process does not know."""
    forget_card()
    _convolve.routes.clear()
    _state.forget()


def calls(count: int) -> None:
    for _ in range(count):
        assert_close(F.conv2d(X, W, B, padding=1), WANT, slack=2)
        assert unhang.wait_for_kernels(120.0)


def kernel() -> _gpu.Loaded:
    (route,) = _convolve.routes.values()
    assert route.names[0] == "jit"
    assert route.kernel is not None
    return route.kernel


def contest() -> _core.Contest:
    (only,) = _jit.contests.all()
    return only


def test_the_fastest_is_found_compared_and_taken_at_the_next_start(
    card: _core.Gpu, kernels_of_this_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    with unhang.enabled(rehearse=True, tune=True):
        calls(1)
        assert kernel().kernel.provisional, "a new convolution runs as always"
        assert not _jit.contests.all()
        calls(6)
    found = contest()
    assert found.over
    assert not found.failures
    assert len(found.times) >= 2
    assert all(len(seconds) >= 1 for seconds in found.times.values())
    # The first round warms up, and there are two.
    best = min(found.times, key=lambda choice: found.times[choice][-1])
    assert found.ranked[0] == best
    assert kernel().kernel.choice == best
    assert kernel().settled
    assert _state.state().session.first_result(kernel().kernel, _gpu.REHEARSED) == "works"
    report = unhang.report().data
    assert report["problems"][0]["kernels"] == best
    assert "emulated card: the times are the emulator's" in capsys.readouterr().err

    # Another process, in which the compiled kernels are gone too: the winner is evidence, and no part of the cache.
    forget()
    shutil.rmtree(kernels_of_this_file / "unhang")
    monkeypatch.setattr(_jit, "contests", _core.Contests())
    with unhang.enabled(rehearse=True):
        calls(2)
    assert _gpu.gpu(_gpu.REHEARSED).is_tuned(kernel().problem)
    assert kernel().kernel.choice == best
    # What is known is not measured again.
    _convolve.routes.clear()
    with unhang.enabled(rehearse=True, tune=True):
        calls(1)
    assert kernel().settled
    assert not _jit.contests.all()


def test_off_unless_asked_for(card: _core.Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    with unhang.enabled(rehearse=True):
        calls(2)
        assert not unhang.report().data["tune"]
    assert kernel().settled
    assert not _jit.contests.all()
    monkeypatch.setenv("UNHANG_TUNE", "1")
    _convolve.routes.clear()
    with unhang.enabled(rehearse=True):
        calls(1)
        assert unhang.report().data["tune"]
    assert _jit.contests.all()


def test_a_wrong_candidate_never_wins(card: _core.Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    with unhang.enabled(rehearse=True, tune=True):
        calls(2)
        own = kernel().kernel.choice
        honest, finalists = _gpu.compare, _core.Contest.finalists

        def strict(*arguments: object) -> tuple[bool, str]:
            assert honest(*arguments)[0]
            return False, "as the test has it"

        monkeypatch.setattr(_gpu, "compare", strict)
        # As if the others were faster than what computes now, which was compared before.
        monkeypatch.setattr(
            _core.Contest, "finalists", lambda self: sorted(finalists(self), key=lambda it: it.choice == own)
        )
        calls(6)
    assert contest().over
    assert len(contest().failures) == len(contest().times) - 1
    assert kernel().kernel.choice == own
    assert not unhang.report().data["failures"]


class Clock:
    """Events by which every run of ours and of torch's takes the time that the test gives them."""

    def __init__(self, ours: float, theirs: float) -> None:
        self.times = (ours, theirs)
        self.events = 0
        self.is_reached = False

    def event(self) -> Event:
        self.events += 1
        return Event(self, (self.events - 1) // 2 % 2)


class Event:
    def __init__(self, clock: Clock, whose: int) -> None:
        self.clock, self.whose = clock, whose

    def record(self) -> None:
        pass

    def query(self) -> bool:
        return self.clock.is_reached

    def elapsed_time(self, end: object) -> float:
        return self.clock.times[self.whose]


@pytest.mark.parametrize("theirs", [0.5, 0.95, 2.0])
def test_torchs_kernels_are_timed_too_and_taken_where_they_are_faster(
    card: _core.Gpu, theirs: float, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    clock, learnt, learn = Clock(1.0, theirs), [], _core.Session.learn_race

    def noting(session: _core.Session, problem: _core.Problem, *seconds: float) -> bool:
        is_lost = learn(session, problem, *seconds)
        learnt.append((problem.direction, *seconds, is_lost))
        return is_lost

    monkeypatch.setattr(_core.Session, "learn_race", noting)
    monkeypatch.setattr(_jit, "_is_timed_by_a_card", lambda task: True)
    monkeypatch.setattr(_jit, "_event", clock.event)
    x, w = X.clone().requires_grad_(), W.clone().requires_grad_()
    want = torch.autograd.grad(F.conv2d(x.double(), w.double(), B.double(), padding=1).sum(), (x, w))

    def step() -> None:
        y = F.conv2d(x, w, B, padding=1)
        assert_close(y, WANT, slack=2)
        for found, expected in zip(torch.autograd.grad(y.sum(), (x, w)), want, strict=True):
            assert_close(found, expected, slack=3)
        assert unhang.wait_for_kernels(120.0)

    with unhang.enabled(rehearse=True, tune=True):
        for _ in range(7):
            step()
        assert all(it.over for it in _jit.contests.all())
        assert clock.events == 3 * 2 * 2 * 6, "each direction: five turns and one that warms up, for both"
        assert not any(route.kernel.settled for route in _convolve.routes.values()), "the device has not reached them"
        clock.is_reached = True
        decisions = _convolve.decisions
        for _ in range(3):
            step()
        # The evidence of a rehearsal is another one, so that the new plan is the old one here.
        assert _convolve.decisions - decisions == (3 if theirs < 0.9 else 0), "planned anew where torch's are faster"
        assert all(route.kernel.settled for route in _convolve.routes.values())
        assert clock.events == 3 * 2 * 2 * 6, "nothing is timed twice"
    directions = ("forward", "backward-data", "backward-weights")
    assert sorted(learnt) == sorted((direction, 1e-3, theirs / 1e3, theirs < 0.9) for direction in directions)
    assert ("faster here (500 against 1000 µs)" in capsys.readouterr().err) == (theirs < 0.9)
    assert not unhang.report().data["failures"]


def test_torchs_kernels_are_not_taken_where_they_cannot_be_timed(
    card: _core.Gpu, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def no_memory(*_: object) -> torch.Tensor:
        raise MemoryError

    monkeypatch.setattr(_jit, "_is_timed_by_a_card", lambda task: True)
    monkeypatch.setattr(_jit, "_by_torch", no_memory)
    with unhang.enabled(rehearse=True, tune=True):
        calls(9)
    assert kernel().settled
    assert "torch's kernels were not timed (MemoryError)" in capsys.readouterr().err
    assert not unhang.report().data["failures"]


@pytest.mark.parametrize("trouble", ["memory", "deterministic"])
def test_what_goes_wrong_leaves_the_models_choice(
    card: _core.Gpu, trouble: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    with unhang.enabled(rehearse=True, tune=True):
        calls(2)
        own = kernel().kernel.choice
        if trouble == "memory":

            def allocate(*_: object) -> torch.Tensor:
                raise torch.cuda.OutOfMemoryError("out of memory (as the test has it)")

            monkeypatch.setattr(_gpu, "allocate", only_for_tuning(allocate))
        else:
            monkeypatch.setattr(_jit, "deterministic", lambda: True)
        calls(3)
    assert kernel().kernel.choice == own
    assert kernel().settled
    said = capsys.readouterr().err
    assert ("were not tuned" in said) == (trouble != "deterministic")
    assert not _gpu.gpu(_gpu.REHEARSED).is_tuned(kernel().problem)
    assert not unhang.report().data["failures"]


def only_for_tuning(replacement):
    """A function in place of `_gpu.allocate` for whoever asks on behalf of the measurements."""
    import sys

    original = _gpu.allocate
    return lambda *it: (replacement if sys._getframe(1).f_code.co_name == "_measure" else original)(*it)


def test_nothing_is_measured_while_a_graph_is_recorded(card: _core.Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    with unhang.enabled(rehearse=True, tune=True):
        calls(2)
        rounds = contest().rounds
        assert not contest().over
        monkeypatch.setattr(_jit, "_is_capturing", lambda index: True)
        calls(3)
    assert (contest().rounds, contest().over) == (rounds, False)


def test_a_candidate_that_hung_when_it_was_measured_is_left_out_by_its_name(
    card: _core.Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = _core.Problem.from_key("forward:f32:nchw:2x16x12x12:32x3x3:s1x1:p1x1:d1x1:g1")
    refused = card.candidates(problem)[1][0]
    # What `unhang run` says to a process that it starts again, where no store could keep it.
    monkeypatch.setenv("UNHANG_QUARANTINE", f"jit/{refused}@{problem.key}")
    _state.forget()
    contest = _jit.contests.of(card, problem)
    contest.poll(_state.state().session, 1 << 28, True)
    assert contest.failures == [f"{refused}: it did not return when it was last measured"]


def test_families_without_a_canary_are_not_measured(card: _core.Gpu) -> None:
    with unhang.enabled(rehearse=True, tune=True):
        calls(2)
    families = {choice.partition(":")[0] for choice in contest().times}
    assert len(families) >= 2
    assert "winograd" not in families
    everything = {family for _, family, _, _ in _core.Gpu.open_emulated(_state.state().machine).candidates(
        kernel().problem)}  # fmt: skip
    assert "winograd" in everything


def test_without_memory_for_a_workspace_another_kernel_computes(
    card: _core.Gpu, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """The gradient of the weights is summed in planes, which need a workspace; the plain kernels need none."""
    w = W.clone().requires_grad_()
    want = torch.autograd.grad(F.conv2d(X.double(), w.double(), padding=1).sum(), w)[0]
    original, denied = _gpu.allocate, []
    # Rust takes its workspaces from torch by itself.
    monkeypatch.setattr(_direct, "remember_backward", lambda *_: None)

    def allocate(shape, stride, dtype, device):
        if dtype is torch.uint8:
            denied.append(shape)
            raise torch.cuda.OutOfMemoryError("out of memory (as the test has it)")
        return original(shape, stride, dtype, device)

    with unhang.enabled(rehearse=True):
        y = F.conv2d(X, w, padding=1)
        torch.autograd.grad(y.sum(), w, retain_graph=True)
        assert unhang.wait_for_kernels(120.0)
        monkeypatch.setattr(_gpu, "allocate", allocate)
        for _ in range(3):
            assert_close(torch.autograd.grad(y.sum(), w, retain_graph=True)[0], want, slack=3)
    assert len(denied) == 1, "memory that is short is not asked for again"
    (route,) = (route for route in _convolve.routes.values() if route.key.startswith("backward-weights"))
    assert route.names[0] == "jit"
    assert route.tally.by_place == [4], "it is still our kernels that compute"
    assert route.kernel is not None
    assert route.kernel.workspace == 0
    assert "computed without one" in capsys.readouterr().err


def test_progress_moves_on_a_terminal_and_speaks_rarely_elsewhere(monkeypatch, capsys) -> None:
    from unhang._talk import Progress

    progress = Progress("compiling:", 3)
    for _ in range(2):
        progress.one_more()
    progress.end()
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr("unhang._talk._PLAIN_LINES", 0.0)
    progress = Progress("compiling:", 3)
    for _ in range(3):
        progress.one_more()
    progress.end()
    assert capsys.readouterr() == ("", "unhang: compiling: 1 of 3\nunhang: compiling: 2 of 3\n")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    progress = Progress("compiling:", 2)
    for done in (1, 2, 1):
        progress.at(done)
    progress.end()
    assert capsys.readouterr().err == "\rcompiling: 1 of 2\rcompiling: 2 of 2\n"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that torch can use is here")
def test_on_a_gpu_the_fastest_is_found_and_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_jit, "contests", _core.Contests())
    forget()
    torch.manual_seed(0)
    x = torch.randn(8, 64, 56, 56, device="cuda")
    w = torch.randn(64, 64, 3, 3, device="cuda", requires_grad=True)
    want = F.conv2d(x.double(), w.double(), padding=1)
    want_gradient = torch.autograd.grad(want.sum(), w)[0]
    torch.cuda.synchronize()
    with unhang.enabled("jit", tune=True):
        for turn in range(14):
            y = F.conv2d(x, w, padding=1)
            assert_close(y, want, slack=2)
            assert_close(torch.autograd.grad(y.sum(), w)[0], want_gradient, slack=3)
            if turn < 2:
                unhang.wait_for_kernels()
            torch.cuda.synchronize()
        assert [contest.over for contest in _jit.contests.all()] == [True, True]
        for route in _convolve.routes.values():
            found = _jit.contests.of(_gpu.gpu(0), route.problem)
            assert route.kernel.settled
            assert route.kernel.kernel.choice == found.ranked[0]
            assert sum(map(sum, found.times.values())) < 0.4
            print(route.key, found.times)
        # A graph keeps what is there, and nothing is measured in it.
        graph = torch.cuda.CUDAGraph()
        F.conv2d(x[:4], w, padding=1)
        unhang.wait_for_kernels()
        F.conv2d(x[:4], w, padding=1)
        rounds = {contest: contest.rounds for contest in _jit.contests.all()}
        with torch.cuda.graph(graph):
            inside = F.conv2d(x[:4], w, padding=1)
        assert {contest: contest.rounds for contest in _jit.contests.all()} == rounds
        graph.replay()
        torch.cuda.synchronize()
        assert_close(inside, want[:4], slack=2)
    chosen = {route.key: route.kernel.kernel.choice for route in _convolve.routes.values() if route.kernel.settled}
    assert len(chosen) >= 2
    forget()
    with unhang.enabled("jit"):
        for _ in range(2):
            F.conv2d(x, w, padding=1)
            unhang.wait_for_kernels()
    (route,) = _convolve.routes.values()
    assert route.kernel.kernel.choice == chosen[route.key]
    forget()
