"""The engine ``jit``: our own GPU kernels, on torch's tensors as they lie, on torch's stream.

A convolution's kernels are looked up once and kept with its task (:class:`BoundJit`). A new convolution is served by
generic kernels while its own are compiled in the background, then these are swapped in. The first result of every
kernel is compared with the definition on a few elements, once for this machine; a wrong one is never used again.
While a graph is recorded nothing is compiled, loaded, compared or measured: what is not ready is declined, and the
plan's next engine computes.

Where tuning is asked for, other candidates are compiled meanwhile, and each further call puts one round of measurements
into the stream behind its own work and reads what the round before took: nothing waits. The fastest is compared like
any other kernel, kept as evidence, and used from then on. Who takes part and who has won is the session's to say.
Then torch's own kernels are timed against it in the same way, where the plan has them as its next engine: of what was
measured, the planner takes the fastest."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable
from typing import Any, Protocol

import torch

from unhang import _core, _gpu, _launch, _watchdog
from unhang._engines import AtenEngine, Engine, Geometry, Gradients, Mask, Task, deterministic, problem_of
from unhang._launch import Loaded, stream_of
from unhang._state import is_unshielded, say, state

Tensor = torch.Tensor

# If this many kernels wait to be compiled, a line says so.
_MANY = 16
# Timed runs of our kernels and of torch's, in turns.
_TURNS = 5
# Torch's kernels are taken where they need at most this share of our time: their calls go through Python.
_PAYS = 0.9
#: Which kernels are the fastest for each convolution, where that is asked for (``Settings.tune``, ``UNHANG_TUNE=1``).
contests = _core.Contests()


_Operands = tuple[Tensor, Tensor, "Tensor | None"]


class _Event(Protocol):
    """A point in a stream."""

    def record(self) -> None: ...
    def query(self) -> bool: ...
    def elapsed_time(self, end: Any) -> float: ...


def _event() -> _Event:
    make: Callable[..., _Event] = torch.cuda.Event
    return make(enable_timing=True)


def _words(error: Exception) -> str:
    """What an error says, or which it is."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def _is_timed_by_a_card(task: Task) -> bool:
    """Whether a time says something: not where a card is rehearsed or emulated."""
    return not (task.rehearsed or state().machine.emulated)


class WrongResult(RuntimeError):
    """A kernel's first result differs from the CPU's."""

    #: What evidence is to say of it.
    verdict = "wrong"


class JitEngine:
    """Our GPU kernels. For a task that is computed again and again, :meth:`bind` keeps what was loaded for it."""

    def bind(self, task: Task, lost: Callable[[], None] | None = None) -> BoundJit:
        """The engine for one task. With a function for what to do where torch's kernels are measured as faster, tuning
        times them too."""
        return BoundJit(task, lost)

    def forward(self, task: Task, input: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
        """The output."""
        return BoundJit(task).forward(task, input, weight, bias, geometry)

    def backward(
        self, task: Task, grad_output: Tensor, input: Tensor, weight: Tensor, geometry: Geometry, mask: Mask
    ) -> Gradients:
        """The gradients that the mask asks for."""
        return BoundJit(task).backward(task, grad_output, input, weight, geometry, mask)


class _Race:
    """Our kernels and torch's for one convolution, timed in turns on the stream that the program uses."""

    def __init__(self) -> None:
        #: When each turn begins and ends; the first ones, which warm up, do not count.
        self.turns: list[tuple[_Event, _Event]] = []
        #: Held by the thread whose call takes it on.
        self.claimed = threading.Lock()

    def queue(self, task: Task, problem: _core.Problem, loaded: Loaded, operands: _Operands) -> None:
        """Puts the runs into the stream. Raises where torch's result is wrong or proves nothing."""
        first, second, bias = operands
        aten = _watchdog.watched(AtenEngine(), "aten", task)
        calls: tuple[Callable[[], Tensor], Callable[[], Tensor]] = (
            lambda: _launch.launch(loaded, task.memory_format, first, second, bias),
            lambda: _by_torch(aten, task, problem, operands),
        )
        right, detail = _launch.compare(problem, first, second, bias, calls[1]())
        if not right:
            raise RuntimeError(f"their result is not comparable: {detail}" if right is None else f"wrong: {detail}")
        for call in calls * (1 + _TURNS):
            begin, end = _event(), _event()
            begin.record()
            call()
            end.record()
            self.turns.append((begin, end))

    def seconds(self) -> tuple[float, float] | None:
        """What a run of ours and of torch's takes; none as long as the device has not reached the last one."""
        if not all(end.query() for _, end in self.turns):
            return None
        taken = [begin.elapsed_time(end) / 1e3 for begin, end in self.turns]
        return statistics.median(taken[2::2]), statistics.median(taken[3::2])


def _by_torch(aten: Engine, task: Task, problem: _core.Problem, operands: _Operands) -> Tensor:
    """One direction of a convolution on torch's kernels."""
    (first, second, bias), geometry = operands, Geometry(*problem.geometry)
    if problem.direction == "forward":
        return aten.forward(task, first, second, bias, geometry)
    # Of an operand that a direction does not read only the shape matters.
    if problem.direction == "backward-data":
        input = _laid_out(problem.input_shape, first, task)
        found = aten.backward(task, first, input, second, geometry, (True, False, False))[0]
    else:
        weight = _laid_out(problem.weight_shape, first, task)
        found = aten.backward(task, second, first, weight, geometry, (False, True, False))[1]
    assert found is not None
    return found


def _laid_out(shape: tuple[int, ...], like: Tensor, task: Task) -> Tensor:
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=task.memory_format)


class BoundJit:
    """Our GPU kernels for one task, with those that are loaded for it."""

    __slots__ = ("_lost", "_race", "loaded", "task", "workspace_limit")

    def __init__(self, task: Task, lost: Callable[[], None] | None = None) -> None:
        self.task = task
        self._lost = lost
        #: From when our fastest kernels were found here, until torch's are timed against them.
        self._race: _Race | None = None
        #: Replaced as a whole when others are swapped in; a call uses the one that it read.
        self.loaded: Loaded | None = None
        #: The most bytes of workspace; none from when memory was short.
        self.workspace_limit = task.workspace_limit

    def forward(self, task: Task, input: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
        """The output."""
        loaded = self._settled("forward", input, geometry)
        if loaded is not None:
            return self._compute_settled(loaded, input, weight, bias)
        problem = problem_of(task, input, weight, geometry).with_direction("forward")
        return self._compute(problem, input, weight, bias)

    def backward(
        self, task: Task, grad_output: Tensor, input: Tensor, weight: Tensor, geometry: Geometry, mask: Mask
    ) -> Gradients:
        """The gradients that the mask asks for."""
        data = weights = None
        for direction, wanted in zip(("backward-data", "backward-weights"), mask):
            if not wanted:
                continue
            operands = (grad_output, weight) if direction == "backward-data" else (input, grad_output)
            loaded = self._settled(direction, input, geometry)
            if loaded is not None:
                found = self._compute_settled(loaded, *operands, None)
            else:
                problem = problem_of(task, input, weight, geometry).with_direction(direction)
                found = self._compute(problem, *operands, None)
            if direction == "backward-data":
                data = found
            else:
                weights = found
        return data, weights, None

    def _settled(self, direction: str, input: Tensor, geometry: Geometry) -> Loaded | None:
        """What is loaded, if it is for this call (and not for another tile) and nothing about it is open any more."""
        loaded = self.loaded
        if (
            loaded is not None
            and loaded.settled
            and loaded.direction == direction
            and loaded.input_shape == input.shape
            and geometry.padding == self.task.padding
        ):
            return loaded
        return None

    def _compute_settled(self, loaded: Loaded, first: Tensor, second: Tensor, bias: Tensor | None) -> Tensor:
        try:
            return _launch.launch(loaded, self.task.memory_format, first, second, bias)
        except _launch.NoWorkspace as error:
            return self._without_workspace(error, loaded, first, second, bias)

    def _without_workspace(
        self, error: _launch.NoWorkspace, loaded: Loaded, first: Tensor, second: Tensor, bias: Tensor | None
    ) -> Tensor:
        """Computes with kernels that need none, from now on: memory that is short now will be short again."""
        self.workspace_limit = 0
        cause = error.__cause__ or error
        try:
            result = self._compute(loaded.problem, first, second, bias)
        except (_core.GpuDeclined, _core.GpuFailure, _launch.NoWorkspace):
            raise cause from None
        say(f"{loaded.problem.key}: no memory for a workspace of {loaded.workspace} bytes; computed without one")
        return result

    def _compute(self, problem: _core.Problem, first: Tensor, second: Tensor, bias: Tensor | None) -> Tensor:
        """Loads what there is for the problem, computes by it, and compares its first result."""
        task, index = self.task, first.get_device()
        loaded = self._load(problem, index)
        known = state().session.first_result(loaded.kernel, task.rehearsed)
        if known not in (None, "works"):
            raise WrongResult(f"the first result of {loaded.kernel.choice} was wrong on this machine")
        if _is_capturing(index):
            if known is None:
                raise _core.GpuDeclined(
                    "a graph is being recorded, and the first result of these kernels was not compared yet"
                )
            if loaded.kernel.provisional:
                say(
                    "a graph is being recorded while kernels are still being compiled: it keeps the generic ones, "
                    "which are slower; call unhang.wait_for_kernels() after a first pass, and run one more, before "
                    "recording"
                )
        try:
            result = _launch.launch(loaded, task.memory_format, first, second, bias)
        except _launch.NoWorkspace as error:
            if self.workspace_limit == 0:
                raise (error.__cause__ or error) from None
            return self._without_workspace(error, loaded, first, second, bias)
        if known is None:
            self._prove(loaded, (first, second, bias, result))
        if self.loaded is loaded:
            self._settle(loaded, first, second, bias)
        return result

    def _prove(self, loaded: Loaded, tensors: tuple[Tensor, Tensor, Tensor | None, Tensor]) -> None:
        """Compares the result that these kernels just gave; raises :class:`WrongResult` where it is wrong."""
        right, detail = _launch.compare(loaded.problem, *tensors)
        if right is None:
            # Zeros, or what is not finite, prove nothing, and layers that begin with zeros would be compared at every
            # call: numbers of our own tell at once.
            # Made by the CPU where torch's kernels may hang.
            made_on = "cpu" if is_unshielded() else None
            form = self.task.memory_format
            first, second = (
                torch.randn_like(it, memory_format=form, device=made_on).to(it.device) for it in tensors[:2]
            )
            result = _launch.launch(loaded, self.task.memory_format, first, second, None)
            right, detail = _launch.compare(loaded.problem, first, second, None, result)
        if right is None:
            return  # a type that holds too little for a comparison: the next result may
        state().session.keep_first_result(loaded.kernel, right, detail, self.task.rehearsed)
        if not right:
            raise WrongResult(f"{loaded.kernel.choice} was wrong: {detail}")

    def _settle(self, loaded: Loaded, first: Tensor, second: Tensor, bias: Tensor | None) -> None:
        """Notes whether these kernels are final; their result was right and is queued."""
        if state().session.first_result(loaded.kernel, self.task.rehearsed) is None:
            return
        if not self.task.tune or loaded.kernel.provisional:
            loaded.settled = not loaded.kernel.provisional
            return
        loaded.settled = self._tune(loaded, first, second, bias)

    def _tune(self, loaded: Loaded, first: Tensor, second: Tensor, bias: Tensor | None) -> bool:
        """Goes on with the measurements for a convolution whose own result was just queued; whether nothing better can
        come any more than what computed it. Whatever goes wrong, that stays."""
        problem, index = loaded.problem, first.get_device()
        gpu = _gpu.gpu(index)
        # In deterministic mode nothing is ever swapped.
        if deterministic():
            return True
        if gpu.is_tuned(problem):
            return self._is_raced(loaded, first, second, bias)
        contest = contests.of(gpu, problem)
        if contest.over:
            return self._is_raced(loaded, first, second, bias)
        if _is_capturing(index) or not contest.claim():
            return False
        try:
            winner = self._measure(contest, loaded, first, second, bias)
        except Exception as error:  # short memory, a driver that fails: the user's own result is there
            contest.end()
            say(f"{problem.key}: its kernels were not tuned ({_words(error)}); the model's choice stays")
            return True
        finally:
            contest.release()
        if contest.over and self._lost is not None and _is_timed_by_a_card(self.task):
            self._race = _Race()
        # Others than those that computed just now are taken by the next call.
        return contest.over and self._race is None and winner in (None, loaded.kernel.choice)

    def _measure(
        self, contest: _core.Contest, loaded: Loaded, first: Tensor, second: Tensor, bias: Tensor | None
    ) -> str | None:
        """One step: a round behind the user's own work, on the very operands, into memory that nobody reads; or the
        winner, compared like any other kernel. None without a winner, or where the numbers cannot tell."""
        session, task, index = state().session, self.task, first.get_device()
        workspace_bytes = contest.poll(session, self.workspace_limit, task.rehearsed)
        if workspace_bytes is None:
            return None
        if _gpu.gpu(index).is_emulated:
            say("tuning on the emulated card: the times are the emulator's and say nothing about a real one")
        first, second = (_launch.dense(it, task.memory_format) for it in (first, second))
        bias = bias if bias is None else bias.contiguous()
        scratch = _launch.allocate(loaded.result_shape, loaded.result_stride, first.dtype, first.device)
        workspace = _launch.allocate((max(workspace_bytes, 1),), (1,), torch.uint8, first.device)
        addresses = (
            first.data_ptr(), second.data_ptr(), 0 if bias is None else bias.data_ptr(), scratch.data_ptr(),
            workspace.data_ptr(), stream_of(index),
        )  # fmt: skip
        if contest.measure(session, index, addresses, _watchdog.current()):
            return None
        for kernel in contest.finalists():
            known = session.first_result(kernel, task.rehearsed)
            if known is None:
                kernel.launch(*addresses)
                right, detail = _launch.compare(loaded.problem, first, second, bias, scratch)
                if right is None:
                    return None
                session.keep_first_result(kernel, right, detail, task.rehearsed)
                known = "works" if right else "wrong"
            if known == "works":
                contest.won(session, kernel)
                return kernel.choice
            contest.leave_out(kernel, "its first result was wrong")
        contest.end()
        return None

    def _is_raced(self, loaded: Loaded, first: Tensor, second: Tensor, bias: Tensor | None) -> bool:
        """Whether torch's kernels were timed against ours, or are not to be. One call queues the runs behind the user's
        own work, a later one reads what they took. Whatever goes wrong, ours stay."""
        race = self._race
        if race is None:
            return True
        if _is_capturing(first.get_device()) or not race.claimed.acquire(blocking=False):
            return False
        try:
            # Another thread may have ended it meanwhile. The events are of the device that computes.
            with torch.cuda.device_of(first):
                return self._race is None or self._take_on(race, loaded, (first, second, bias))
        except Exception as error:  # short memory, a driver that fails: the user's own result is there
            self._race = None
            say(f"{loaded.problem.key}: torch's kernels were not timed ({_words(error)}); ours continue")
            return True
        finally:
            race.claimed.release()

    def _take_on(self, race: _Race, loaded: Loaded, operands: _Operands) -> bool:
        """Queues the runs, or reads what they took; whether it is over."""
        problem = loaded.problem
        if not race.turns:
            race.queue(self.task, problem, loaded, operands)
            return False
        found = race.seconds()
        if found is None:
            return False
        self._race = None
        ours, theirs = found
        if theirs <= ours * _PAYS and self._lost is not None:
            session = state().session
            session.learn(problem, "jit", "works", ours, "timed against aten when it was tuned")
            session.learn(problem, "aten", "works", theirs, "timed against jit when that was tuned")
            say(f"{problem.key}: torch's own kernels are faster here ({theirs * 1e6:.0f} against {ours * 1e6:.0f} µs)")
            self._lost()
        return True

    def _load(self, problem: _core.Problem, index: int) -> Loaded:
        """The kernels of a problem: the task's own, or those of one of its tiles, or what is there meanwhile."""
        device = _gpu.gpu(index)
        held = self.loaded
        before = held if held is not None and held.problem == problem else None
        try:
            kernel = device.prepare(problem, stream_of(index), self.workspace_limit, deterministic())
        except _core.GpuFailure as error:
            if before is None:
                raise
            say(f"{problem.key}: its own kernels are not available ({error}): the generic ones continue")
            before.settled = True
            return before
        if (
            before is not None
            and before.kernel.kernels == kernel.kernels
            and before.workspace == kernel.workspace_bytes
        ):  # fmt: skip
            return before
        if kernel.provisional and device.waiting >= _MANY:
            say(
                "many GPU kernels are being compiled in the background; generic ones serve meanwhile "
                "(unhang.wait_for_kernels() waits for them, `unhang kernels warm --seen` compiles ahead)"
            )
        loaded = self.loaded = Loaded(kernel, problem, self.task.memory_format)
        return loaded


def _is_capturing(index: int) -> bool:
    return _gpu.gpu(index).is_capturing(stream_of(index))
