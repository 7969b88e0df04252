"""The engine ``jit``: our own GPU kernels, on torch's tensors as they lie, on torch's stream.

A convolution's kernels are looked up once and kept with its task (:class:`BoundJit`). A new convolution is served by
generic kernels while its own are compiled in the background, then these are swapped in. The first result of every
kernel is compared with the definition on a few elements, once for this machine; a wrong one is never used again.
While a graph is recorded nothing is compiled, loaded, compared or measured: what is not ready is declined, and the
plan's next engine computes.

Where tuning is asked for, other candidates are compiled meanwhile, and each further call puts one round of measurements
into the stream behind its own work and reads what the round before took: nothing waits. The fastest is compared like
any other kernel, kept as evidence, and used from then on. Who takes part and who has won is the session's to say."""

from __future__ import annotations

import torch

from unhang import _core, _gpu, _launch, _watchdog
from unhang._engines import Geometry, Gradients, Mask, Task, deterministic, problem_of
from unhang._launch import Loaded, stream_of
from unhang._state import is_unshielded, say, state

Tensor = torch.Tensor

# If this many kernels wait to be compiled, a line says so.
_MANY = 16
#: Which kernels are the fastest for each convolution, where that is asked for (``Settings.tune``, ``UNHANG_TUNE=1``).
contests = _core.Contests()


class WrongResult(RuntimeError):
    """A kernel's first result differs from the CPU's."""

    #: What evidence is to say of it.
    verdict = "wrong"


class JitEngine:
    """Our GPU kernels. For a task that is computed again and again, :meth:`bind` keeps what was loaded for it."""

    def bind(self, task: Task) -> BoundJit:
        """The engine for one task."""
        return BoundJit(task)

    def forward(self, task: Task, input: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
        """The output."""
        return BoundJit(task).forward(task, input, weight, bias, geometry)

    def backward(
        self, task: Task, grad_output: Tensor, input: Tensor, weight: Tensor, geometry: Geometry, mask: Mask
    ) -> Gradients:
        """The gradients that the mask asks for."""
        return BoundJit(task).backward(task, grad_output, input, weight, geometry, mask)


class BoundJit:
    """Our GPU kernels for one task, with those that are loaded for it."""

    __slots__ = ("loaded", "task", "workspace_limit")

    def __init__(self, task: Task) -> None:
        self.task = task
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
        if gpu.is_tuned(problem) or deterministic():
            return True
        contest = contests.of(gpu, problem)
        if contest.over:
            return True
        if _is_capturing(index) or not contest.claim():
            return False
        try:
            winner = self._measure(contest, loaded, first, second, bias)
        except Exception as error:  # short memory, a driver that fails: the user's own result is there
            contest.end()
            detail = f"{error}".splitlines()[0][:200]
            say(f"{problem.key}: its kernels were not tuned ({detail}); the model's choice stays")
            return True
        finally:
            contest.release()
        # Others than those that computed just now are taken by the next call.
        return contest.over if winner is None else winner == loaded.kernel.choice

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
