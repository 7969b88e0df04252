"""The engine ``jit``: our own GPU kernels, on torch's tensors in place, on torch's stream.

A convolution's kernels are looked up once and kept with its task (:class:`BoundJit`). Generic kernels serve a new
convolution while its own are compiled in the background and then swapped in. The first result of every kernel is
compared with the definition on a few elements, once for each card. A wrong one is never used again. While a graph is
recorded, nothing is compiled, loaded, compared or measured: what is not ready is declined, and the plan's next engine
computes.

With tuning, other candidates are compiled meanwhile. Each further call queues one round of measurements after its own
work and reads the times of the round before; nothing waits. The fastest is compared like any other kernel, kept as
evidence, and used from then on. The session decides who takes part and who has won. Then torch's own kernels are timed
against it in the same way, if they are the plan's next engine. The planner takes the fastest of what was measured."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable
from typing import Any, Protocol

import torch

from unhang import _core, _gpu, _watchdog
from unhang._engines import (
    AtenEngine,
    Engine,
    Geometry,
    Gradients,
    Mask,
    Task,
    deterministic,
    is_from_outside,
    problem_of,
)
from unhang._gpu import Loaded, stream_of
from unhang._state import is_unshielded, say, state

Tensor = torch.Tensor

# A message appears if this many kernels wait for compilation.
_MANY = 16
# Timed runs of our kernels and of torch's, in turns.
_TURNS = 5
#: Which kernels are the fastest for each convolution, if requested (``Settings.tune``, ``UNHANG_TUNE=1``).
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


def _words(error: BaseException) -> str:
    """An error's message, or its type."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def _is_timed_by_a_card(task: Task) -> bool:
    """Whether a time is meaningful: not on a rehearsed or emulated card."""
    return not (task.rehearsed or state().machine.emulated)


class WrongResult(RuntimeError):
    """A kernel's first result differs from the CPU's."""

    #: The verdict for evidence.
    verdict = "wrong"


class JitEngine:
    """Our GPU kernels. For a task that recurs, :meth:`bind` keeps what was loaded for it."""

    def bind(self, task: Task, lost: Callable[[], None] | None = None) -> BoundJit:
        """The engine for one task. With ``lost``, tuning also times torch's kernels, and calls it if they are
        faster."""
        return BoundJit(task, lost)

    def forward(self, task: Task, input: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
        """The output."""
        return BoundJit(task).forward(task, input, weight, bias, geometry)

    def backward(
        self, task: Task, grad_output: Tensor, input: Tensor, weight: Tensor, geometry: Geometry, mask: Mask
    ) -> Gradients:
        """The gradients that the mask requests."""
        return BoundJit(task).backward(task, grad_output, input, weight, geometry, mask)


class _Race:
    """Our kernels and torch's for one convolution, timed in turns on the program's stream."""

    def __init__(self) -> None:
        #: When each turn begins and ends. The first ones warm up and do not count.
        self.turns: list[tuple[_Event, _Event]] = []
        #: Held by the thread whose call advances it.
        self.claimed = threading.Lock()

    def queue(self, task: Task, problem: _core.Problem, loaded: Loaded, operands: _Operands) -> None:
        """Queues the runs on the stream. Raises if torch's result is wrong or proves nothing."""
        first, second, bias = operands
        aten = _watchdog.watched(AtenEngine(), "aten", task)
        calls: tuple[Callable[[], Tensor], Callable[[], Tensor]] = (
            lambda: _gpu.launch(loaded, task.memory_format, first, second, bias),
            lambda: _by_torch(aten, task, problem, operands),
        )
        right, detail = _gpu.compare(problem, first, second, bias, calls[1]())
        if not right:
            raise RuntimeError(f"their result is not comparable: {detail}" if right is None else f"wrong: {detail}")
        for call in calls * (1 + _TURNS):
            begin, end = _event(), _event()
            begin.record()
            call()
            end.record()
            self.turns.append((begin, end))

    def seconds(self) -> tuple[float, float] | None:
        """The time of one run of ours and of torch's; None until the device has reached the last one."""
        if not all(end.query() for _, end in self.turns):
            return None
        taken = [begin.elapsed_time(end) / 1e3 for begin, end in self.turns]
        return statistics.median(taken[2::2]), statistics.median(taken[3::2])


def _by_torch(aten: Engine, task: Task, problem: _core.Problem, operands: _Operands) -> Tensor:
    """One direction of a convolution on torch's kernels."""
    (first, second, bias), geometry = operands, Geometry(*problem.geometry)
    if problem.direction == "forward":
        return aten.forward(task, first, second, bias, geometry)
    # Of an operand that a direction does not read, only the shape matters.
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
    """Our GPU kernels for one task, with those loaded for it."""

    __slots__ = ("_lost", "_race", "loaded", "task", "workspace_limit")

    def __init__(self, task: Task, lost: Callable[[], None] | None = None) -> None:
        self.task = task
        self._lost = lost
        #: Exists from the moment our fastest kernels were found here until torch's are timed against them.
        self._race: _Race | None = None
        #: Replaced as a whole when others are swapped in; a call uses the one that it read.
        self.loaded: Loaded | None = None
        #: The most bytes of workspace; zero once memory has run short.
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
        """The gradients that the mask requests."""
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
        """What is loaded, if it is for this call (and not for another tile) and everything about it is settled."""
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
            return _gpu.launch(loaded, self.task.memory_format, first, second, bias)
        except _gpu.NoWorkspace as error:
            return self._without_workspace(error, loaded, first, second, bias)

    def _without_workspace(
        self, error: _gpu.NoWorkspace, loaded: Loaded, first: Tensor, second: Tensor, bias: Tensor | None
    ) -> Tensor:
        """Computes with kernels that need no workspace, from now on: memory that is short now will be short again."""
        self.workspace_limit = 0
        cause = error.__cause__ or error
        try:
            result = self._compute(loaded.problem, first, second, bias)
        except (_core.GpuDeclined, _core.GpuFailure, _gpu.NoWorkspace):
            raise cause from None
        say(f"{loaded.problem.key}: no memory for a workspace of {loaded.workspace} bytes; computed without one")
        return result

    def _compute(self, problem: _core.Problem, first: Tensor, second: Tensor, bias: Tensor | None) -> Tensor:
        """Loads what there is for the problem, computes with it, and compares its first result."""
        task, index = self.task, first.get_device()
        loaded = self._load(problem, index)
        known = state().session.first_result(loaded.kernel, index)
        if known not in (None, "works"):
            raise WrongResult(f"the first result of {loaded.kernel.choice} was wrong on this card")
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
            result = _gpu.launch(loaded, task.memory_format, first, second, bias)
        except _gpu.NoWorkspace as error:
            if self.workspace_limit == 0:
                raise (error.__cause__ or error) from None
            return self._without_workspace(error, loaded, first, second, bias)
        is_right = known is not None or self._prove(loaded, (first, second, bias, result))
        if is_right and self.loaded is loaded:
            self._settle(loaded, first, second, bias)
        return result

    def _prove(self, loaded: Loaded, tensors: tuple[Tensor, Tensor, Tensor | None, Tensor]) -> bool:
        """Whether the result that these kernels just computed is right; False if it could not be compared. Raises
        :class:`WrongResult` if it is wrong."""
        right, detail = _gpu.compare(loaded.problem, *tensors)
        if right is None:
            # Zeros, and values that are not finite, prove nothing, and layers that begin with zeros would be compared
            # at every call. Our own numbers decide at once. The CPU creates them if torch's kernels may hang. They are
            # from a generator of ours, because the program's random numbers must not move on.
            made_on = torch.device("cpu") if is_unshielded() else tensors[0].device
            form, generator = self.task.memory_format, torch.Generator(made_on).manual_seed(0)
            first, second = (
                torch.empty_like(it, dtype=torch.float32, memory_format=form, device=made_on)
                .normal_(generator=generator)
                .to(it.dtype)
                .to(it.device)
                for it in tensors[:2]
            )
            result = _gpu.launch(loaded, self.task.memory_format, first, second, None)
            right, detail = _gpu.compare(loaded.problem, first, second, None, result)
        if right is None:
            return False  # a type with too little range for a comparison: the next result may do
        state().session.keep_first_result(loaded.kernel, tensors[0].get_device(), right, detail)
        if not right:
            raise WrongResult(f"{loaded.kernel.choice} was wrong: {detail}")
        return True

    def _settle(self, loaded: Loaded, first: Tensor, second: Tensor, bias: Tensor | None) -> None:
        """Notes whether these kernels are final; their result was right and is queued."""
        if not self.task.tune or loaded.kernel.provisional:
            loaded.settled = not loaded.kernel.provisional
            return
        loaded.settled = self._tune(loaded, first, second, bias)

    def _tune(self, loaded: Loaded, first: Tensor, second: Tensor, bias: Tensor | None) -> bool:
        """Continues the measurements for a convolution whose own result was just queued. Returns whether nothing better
        than what computed it can come any more. Whatever goes wrong, that stays."""
        problem, index = loaded.problem, first.get_device()
        gpu = _gpu.gpu(index)
        # In deterministic mode, nothing is ever swapped.
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
        except (Exception, _core.Panic) as error:  # such as a lack of memory: the user's own result exists
            contest.end()
            if is_from_outside(error, of_engine=False):
                raise
            say(f"{problem.key}: its kernels were not tuned ({_words(error)}); the model's choice stays")
            return True
        finally:
            contest.release()
        if contest.over and self._lost is not None and _is_timed_by_a_card(self.task):
            self._race = _Race()
        # If another kernel won, the next call uses it.
        return contest.over and self._race is None and winner in (None, loaded.kernel.choice)

    def _measure(
        self, contest: _core.Contest, loaded: Loaded, first: Tensor, second: Tensor, bias: Tensor | None
    ) -> str | None:
        """One step: a round after the user's own work, on the very operands, into memory that nobody reads; or the
        winner, compared like any other kernel. None without a winner, or if the numbers cannot decide."""
        session, task, index = state().session, self.task, first.get_device()
        workspace_bytes = contest.poll(session, self.workspace_limit, task.rehearsed)
        if workspace_bytes is None:
            return None
        if _gpu.gpu(index).is_emulated:
            say("tuning on the emulated card: the times are the emulator's and say nothing about a real one")
        first, second = (_gpu.dense(it, task.memory_format) for it in (first, second))
        bias = bias if bias is None else bias.contiguous()
        scratch = _gpu.allocate(loaded.result_shape, loaded.result_stride, first.dtype, first.device)
        workspace = _gpu.allocate((max(workspace_bytes, 1),), (1,), torch.uint8, first.device)
        addresses = (
            first.data_ptr(), second.data_ptr(), 0 if bias is None else bias.data_ptr(), scratch.data_ptr(),
            workspace.data_ptr(), stream_of(index),
        )  # fmt: skip
        if contest.measure(session, index, addresses, _watchdog.current()):
            return None
        for kernel in contest.finalists():
            known = session.first_result(kernel, index)
            if known is None:
                kernel.launch(*addresses)
                right, detail = _gpu.compare(loaded.problem, first, second, bias, scratch)
                if right is None:
                    return None
                session.keep_first_result(kernel, index, right, detail)
                known = "works" if right else "wrong"
            if known == "works":
                contest.won(session, kernel)
                return kernel.choice
            contest.leave_out(kernel, "its first result was wrong")
        contest.end()
        return None

    def _is_raced(self, loaded: Loaded, first: Tensor, second: Tensor, bias: Tensor | None) -> bool:
        """Whether torch's kernels were timed against ours, or need not be. One call queues the runs after the user's
        own work, and a later one reads their times. Whatever goes wrong, ours stay."""
        race = self._race
        if race is None:
            return True
        if _is_capturing(first.get_device()) or not race.claimed.acquire(blocking=False):
            return False
        try:
            # Another thread may have ended it meanwhile. The events belong to the device that computes.
            with torch.cuda.device_of(first):
                return self._race is None or self._take_on(race, loaded, (first, second, bias))
        except (Exception, _core.Panic) as error:  # such as a lack of memory: the user's own result exists
            self._race = None
            if is_from_outside(error, of_engine=False):
                raise
            say(f"{loaded.problem.key}: torch's kernels were not timed ({_words(error)}); ours continue")
            return True
        finally:
            race.claimed.release()

    def _take_on(self, race: _Race, loaded: Loaded, operands: _Operands) -> bool:
        """Queues the runs, or reads their times. Returns whether it is over."""
        problem = loaded.problem
        if not race.turns:
            race.queue(self.task, problem, loaded, operands)
            return False
        found = race.seconds()
        if found is None:
            return False
        self._race = None
        ours, theirs = found
        if self._lost is not None and state().session.learn_race(problem, ours, theirs):
            say(f"{problem.key}: torch's own kernels are faster here ({theirs * 1e6:.0f} against {ours * 1e6:.0f} µs)")
            self._lost()
        return True

    def _load(self, problem: _core.Problem, index: int) -> Loaded:
        """The kernels of a problem: the task's own, or those of one of its tiles, or what is available meanwhile."""
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
