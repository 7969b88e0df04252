"""Measured tuning on first use: candidates for a convolution are timed on the user's GPU, between the user's calls.

Off unless asked for (``Settings.tune``, ``UNHANG_TUNE=1``). A new convolution runs as always, by the model's choice.
Meanwhile other candidates are compiled in the background. When they are there, each further call of the convolution
puts one round of measurements into the stream behind its own work, and reads what the round before took: nothing waits.
Candidates compute on the very operands, into memory from torch's allocator that nobody reads. The fastest is compared
like any other kernel, kept as evidence, and used from then on; the next start takes it at once.

Nothing is measured while a graph is recorded, nor in deterministic mode, where nothing is ever swapped; and only kernel
families that may run here at all come into question. Whatever goes wrong, the model's choice stays. If a candidate
does not return, the watchdog (where that is on) names it and records it as evidence, and it is not measured again for
the convolution.
"""

from __future__ import annotations

import threading
import time
from typing import NamedTuple

import torch

from unhang import _core, _gpu, _launch, _verify, _watchdog
from unhang._engines import Geometry, Task, deterministic
from unhang._state import renewed_after_fork, say, state

Tensor = torch.Tensor

#: Seconds of the GPU's time that the measurements of one convolution may take. One round is always finished.
BUDGET = 0.2
#: The model's first candidates that are measured, beside the first of each other kernel family.
CANDIDATES = 4
#: Rounds in which every candidate has its turn; the first one warms up.
ROUNDS = 6
# The most runs of a candidate in one turn.
_MOST_REPEATS = 10
# Candidates that take this many times as long as the best one are dropped.
_HOPELESS = 2.0
# Seconds after which candidates that are still not compiled are left out.
_COMPILING = 300.0
# Seconds after which a measurement that the GPU has not come to is given up.
_WAITING = 60.0


class _Contest:
    """The candidates for one convolution on one device, and what they took so far."""

    def __init__(self, gpu: _core.Gpu, problem: _core.Problem) -> None:
        self.gpu = gpu
        self.problem = problem
        self.lock = threading.Lock()
        self.begun = self.over = False
        #: Those that may still win.
        self.choices: list[str] = []
        #: What everything took that was timed, the model's choice first.
        self.times: dict[str, list[float]] = {}
        self.kernels: dict[str, _core.Kernel] = {}
        self.failures: list[str] = []
        self.waiting: list[tuple[str, _core.Timing]] = []
        self.repeats = 1
        self.rounds = 0
        self.spent = 0.0
        self.since = time.monotonic()

    def begin(self, workspace_limit: int, *, rehearsed: bool) -> None:
        """Has the candidates compiled, without those that hung or were wrong when they were measured before."""
        self.begun = True
        self.choices = self.gpu.shortlist(self.problem, workspace_limit, CANDIDATES)
        planner = state().planner
        for choice in [it for it in self.choices if planner.refuses(self.problem, "jit", it, rehearsed)]:
            self.leave_out(choice, "it did not return when it was measured before")
        self.times = {choice: [] for choice in self.choices}
        for choice in list(self.choices):
            try:
                self.gpu.compile_later(self.problem, choice)
            except _core.GpuDeclined as declined:  # as many kernels are loaded as may be
                self.leave_out(choice, declined)
        if self.gpu.is_emulated:
            say("tuning on the emulated card: the times are the emulator's and say nothing about a real one")

    def leave_out(self, choice: str, why: object) -> None:
        self.choices.remove(choice)
        self.failures.append(f"{choice}: {why}".splitlines()[0][:200])

    def load(self) -> bool:
        """Loads what is compiled; whether the measurements can begin."""
        late = time.monotonic() - self.since > _COMPILING
        for choice in [it for it in self.choices if it not in self.kernels]:
            try:
                if self.gpu.is_at_hand(self.problem, choice):
                    self.kernels[choice] = self.gpu.prepare_as(self.problem, choice)
                elif late:
                    self.leave_out(choice, f"not compiled within {_COMPILING:.0f} s")
                else:
                    return False
            except (_core.GpuFailure, _core.GpuDeclined) as error:
                self.leave_out(choice, error)
        return True

    def read(self) -> bool:
        """Takes the times of the last round; whether there is none left to wait for."""
        while self.waiting:
            choice, timing = self.waiting[0]
            seconds = timing.seconds()
            if seconds is None:
                if time.monotonic() - self.since > _WAITING:
                    raise TimeoutError(f"the GPU did not come to the measurement within {_WAITING:.0f} s")
                return False
            self.waiting.pop(0)
            self.times[choice].append(seconds)
            self.spent += seconds * (self.repeats + 1)
        return True

    def next_round(self) -> None:
        """Who takes part in the next round, and how often."""
        medians = {choice: self.median(choice) for choice in self.choices if self.times[choice]}
        if medians:
            best = min(medians.values())
            self.choices = [it for it in self.choices if medians.get(it, 0.0) <= _HOPELESS * best]
            each = sum(medians[it] for it in self.choices) * (ROUNDS - self.rounds)
            fits = (BUDGET - self.spent) / each - 1 if each > 0.0 else _MOST_REPEATS
            self.repeats = max(1, min(_MOST_REPEATS, int(fits)))
        self.rounds += 1
        self.since = time.monotonic()

    def is_measured(self) -> bool:
        return self.rounds > 0 and (self.rounds == ROUNDS or self.spent >= BUDGET or len(self.choices) < 2)

    def median(self, choice: str) -> float:
        # Its import takes longer than those of this package together, and few programs tune.
        import statistics

        seconds = self.times[choice]
        return statistics.median(seconds[1:] or seconds)


# By device and convolution. A program that sees ever new sizes must not fill its memory with them.
_MOST_CONTESTS = 10_000
_contests: dict[tuple[int, str], _Contest] = {}
_lock = renewed_after_fork(__name__, "_lock", threading.Lock)


class Subject(NamedTuple):
    """The convolution that is tuned, the kernels that compute it meanwhile, and the most workspace that others may
    take."""

    task: Task
    loaded: _launch.Loaded
    workspace_limit: int


def step(subject: Subject, first: Tensor, second: Tensor, bias: Tensor | None, geometry: Geometry) -> bool:
    """Goes on with the measurements for a convolution whose own result was just queued; whether nothing better can come
    any more than what computed it."""
    index = first.get_device()
    gpu, problem = _gpu.gpu(index), subject.loaded.problem
    if gpu.is_tuned(problem) or deterministic():
        return True
    key = (index, problem.key)
    contest = _contests.get(key)
    if contest is None or contest.gpu is not gpu:
        with _lock:
            if len(_contests) >= _MOST_CONTESTS:
                _contests.pop(next(iter(_contests)))
            contest = _contests[key] = _Contest(gpu, problem)
    if contest.over:
        return True
    if gpu.is_capturing(_launch.stream_of(index)) or not contest.lock.acquire(blocking=False):
        return False
    try:
        winner = _go_on(contest, subject, first, second, bias, geometry)
    except Exception as error:
        # Short memory, a driver that fails: the user's own result is there, and what computed it stays.
        contest.over = True
        say(f"{problem.key}: its kernels were not tuned ({f'{error}'.splitlines()[0][:200]}); the model's choice stays")
        return True
    finally:
        contest.lock.release()
    if winner is None:
        return contest.over
    contest.over = True
    contest.kernels.clear()
    gpu.prefer(problem, winner)
    times = [(choice, seconds) for choice, seconds in contest.times.items() if seconds]
    gpu.keep_tuning(state().store, problem, times, winner, "; ".join(contest.failures))
    # Others than those that computed just now are taken by the next call.
    return winner == subject.loaded.kernel.choice


def _go_on(
    contest: _Contest,
    subject: Subject,
    first: Tensor,
    second: Tensor,
    bias: Tensor | None,
    geometry: Geometry,
) -> str | None:
    """One step; the winner when there is one. A contest without rivals is over without."""
    if not contest.begun:
        contest.begin(subject.workspace_limit, rehearsed=subject.task.rehearsed)
    if len(contest.choices) < 2 and contest.rounds == 0:
        contest.over = True
        return None
    if not contest.load() or not contest.read():
        return None
    form, loaded = subject.task.memory_format, subject.loaded
    first, second = _launch.dense(first, form), _launch.dense(second, form)
    bias = bias if bias is None else bias.contiguous()
    device = first.device
    scratch = _launch.allocate(loaded.result_shape, loaded.result_stride, first.dtype, device)
    most = max((contest.kernels[choice].workspace_bytes for choice in contest.choices), default=0)
    workspace = _launch.allocate((max(most, 1),), (1,), torch.uint8, device)
    addresses = (
        first.data_ptr(), second.data_ptr(), 0 if bias is None else bias.data_ptr(), scratch.data_ptr(),
        workspace.data_ptr(), _launch.stream_of(first.get_device()),
    )  # fmt: skip
    if contest.is_measured():
        return _decide(contest, subject.task, addresses, (first, second, bias, scratch), geometry)
    contest.next_round()
    # In turns, and each round begins with another one.
    turn = contest.rounds % len(contest.choices)
    for choice in contest.choices[turn:] + contest.choices[:turn]:
        place = (first.get_device(), addresses[-1])
        with _watchdog.candidate(contest.problem, choice, *place, rehearsed=subject.task.rehearsed):
            timing = contest.kernels[choice].time(*addresses, contest.repeats)
        contest.waiting.append((choice, timing))
    return None


def _decide(
    contest: _Contest,
    task: Task,
    addresses: tuple[int, int, int, int, int, int],
    tensors: tuple[Tensor, Tensor, Tensor | None, Tensor],
    geometry: Geometry,
) -> str | None:
    """The fastest whose first result is right; None where that cannot be told with these numbers."""
    for choice in sorted(contest.choices, key=contest.median):
        kernel = contest.kernels[choice]
        verdict = _launch.verdict(task, kernel)
        if verdict is None:
            kernel.launch(*addresses)
            finding = _verify.compare(contest.problem.direction, geometry, *tensors)
            if finding.right is None:
                return None
            _launch.keep_verdict(task, kernel, contest.problem, finding)
            verdict = "works" if finding.right else "wrong"
        if verdict == "works":
            return choice
        contest.leave_out(choice, "its first result was wrong")
    contest.over = True
    return None
