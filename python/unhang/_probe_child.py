"""The child of ``unhang probe``: tries convolutions on engines through torch, one after another, as requested.

``python -m unhang._probe_child --device cuda|cpu`` speaks the prober's protocol (``protocol.rs`` of ``unhang-probe``):
one JSON value a line over the socket that is its standard input. What torch and the GPU's libraries print goes wherever
the prober sent standard output and error. ``--describe`` says which torch this is; ``--record MODULE:FACTORY --input
SHAPE`` says which convolutions a model uses. Both answer with one line.

On a GPU a call that returns has only been queued, so an event follows each and is polled, never waited for: this
process stays able to say that it lives. Our CPU engine says whether the numbers are right.
"""

from __future__ import annotations

import argparse
import collections
import importlib
import json
import math
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from unhang import _core
    from unhang._engines import Task

#: The prefix of the one-line answers of ``--describe`` and ``--record``.
_ANSWER = "unhang-probe "
#: Seconds between two heartbeats.
_HEARTBEAT = 1.0
#: The time limit in seconds, and the limit on repetitions, for timing a convolution.
_TIMING_SECONDS = 0.2
_TIMING_CALLS = 10


class _Wire:
    """The prober's socket. Lines from several threads do not mix."""

    def __init__(self) -> None:
        # Libraries may read standard input, and children inherit it; neither may touch the socket.
        self._socket = socket.socket(fileno=os.dup(0))
        self._lines = self._socket.makefile("r", encoding="utf-8")
        self._lock = threading.Lock()
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)

    def say(self, **message: Any) -> None:
        line = json.dumps(message, allow_nan=False).encode() + b"\n"
        with self._lock:
            self._socket.sendall(line)

    def requests(self) -> Any:
        for line in self._lines:
            yield json.loads(line)


def _heartbeats(wire: _Wire) -> None:
    def beat() -> None:
        while True:
            time.sleep(_HEARTBEAT)
            try:
                wire.say(say="heartbeat")
            except OSError:
                return

    threading.Thread(target=beat, daemon=True).start()


def _serve(device: str) -> None:
    from unhang import _core

    _core.end_with_parent()
    wire = _Wire()
    _heartbeats(wire)
    import torch

    from unhang._state import torch_build

    if device == "cuda":
        torch.cuda.init()
    wire.say(say="ready", about=f"torch {torch_build()} on {device}")
    for request in wire.requests():
        answer = {"say": "answer", "id": request["id"], "ended": "computed"}
        try:
            if request.get("canary"):
                _canary(device)
            else:
                stage = _stage_teller(wire, request["id"])
                answer.update(_attempt(request["problem"], request["engine"], device, stage))
        except Exception as error:  # whatever torch raises, it returned and says why
            answer.update(_failure(error))
        wire.say(**answer)


def _failure(error: Exception) -> dict[str, Any]:
    from unhang import _core

    text = " ".join(str(error).split())[:1000]
    if isinstance(error, _core.GpuDeclined):
        return {"ended": "unsupported", "detail": text}
    # Our GPU kernels compare their first result themselves, and raise if it is wrong: the values exist, but are not
    # right.
    wrong = getattr(error, "verdict", None) == "wrong"
    return {"ended": "computed" if wrong else "error", "detail": f"{type(error).__name__}: {text}"}


def _stage_teller(wire: _Wire, number: int) -> Callable[[str], None]:
    return lambda stage: wire.say(say="stage", id=number, stage=stage)


def _canary(device: str) -> None:
    """Shows that the device computes at all: a copy there, an addition, a copy back."""
    import torch

    numbers = torch.arange(1024, dtype=torch.float32)
    on_device = numbers.to(device)
    if not torch.equal((on_device + on_device).to("cpu"), numbers + numbers):
        raise RuntimeError("a sum on the device is wrong")


def _attempt(key: str, engine_name: str, device: str, stage: Callable[[str], None]) -> dict[str, Any]:
    import torch

    from unhang import _core
    from unhang._convolve import _ENGINES
    from unhang._core import Settings
    from unhang._engines import Task, below_autograd

    problem = _core.Problem.from_key(key)
    engine = _ENGINES.get(engine_name)
    if engine is None:
        return {"ended": "unsupported", "detail": f"this unhang has no engine {engine_name} for torch"}
    if engine_name == "miopen" and torch.version.hip is None:
        return {"ended": "unsupported", "detail": "this torch is not built for ROCm"}
    if engine_name in ("miopen", "jit") and device == "cpu":
        return {"ended": "unsupported", "detail": f"{engine_name} does not compute on CPU tensors"}
    case = _Case(problem)
    expected = case.expected()
    on_device = case.to(device)
    task = Task(
        problem,
        case.memory_format,
        case.geometry.padding,
        device.partition(":")[0],
        affected=device != "cpu",
        workspace_limit=Settings().workspace_limit << 20,
    )

    def once() -> torch.Tensor:
        if problem.direction == "forward":
            return engine.forward(task, on_device.input, on_device.weight, None, case.geometry)
        mask = (problem.direction == "backward-data", problem.direction == "backward-weights", False)
        gradients = engine.backward(task, on_device.grad_output, on_device.input, on_device.weight, case.geometry, mask)
        found = gradients[0] if mask[0] else gradients[1]
        assert found is not None
        return found

    with below_autograd():
        # MIOpen compiles and searches, running candidates, inside the first call; the others compile at most.
        stage("find" if engine_name == "miopen" else "compile")
        began = time.perf_counter()
        if engine_name == "jit":
            _compile(task)
        result = once()
        stage("run")
        _wait(device)
        first = time.perf_counter() - began
        seconds = _time(once, device)
    result = result.to("cpu")
    stage("check")
    error, not_numbers = _compare(result, expected)
    return {
        "first_seconds": first,
        "seconds": seconds,
        "relative_error": error,
        "not_numbers": not_numbers,
        "detail": "" if device != "cpu" else "on CPU tensors",
    }


def _compile(task: Task) -> None:
    """Compiles our GPU kernels for this exact problem; generic ones would serve in the meantime."""
    import torch

    from unhang import _gpu

    stream = torch.cuda.current_stream().cuda_stream
    _gpu.gpu(torch.cuda.current_device()).prepare(task.problem, stream, task.workspace_limit, True)


class _Case:
    """The tensors of a problem, with reproducible values."""

    def __init__(self, problem: _core.Problem) -> None:
        import torch

        from unhang._engines import DATA_TYPES, Geometry

        self.problem = problem
        self.geometry = Geometry(*problem.geometry)
        data_type = next(dtype for dtype, name in DATA_TYPES.items() if name == problem.data_type)
        self.memory_format = torch.channels_last if problem.layout == "nhwc" else torch.contiguous_format
        generator = torch.Generator().manual_seed(1)

        def numbers(shape: tuple[int, ...]) -> torch.Tensor:
            made = torch.rand(shape, generator=generator).mul_(2).sub_(1).to(data_type)
            return made.contiguous(memory_format=self.memory_format)

        self.input = numbers(problem.input_shape)
        self.weight = numbers(problem.weight_shape)
        self.grad_output = self.input if problem.direction == "forward" else numbers(problem.output_shape)

    def operands(self) -> tuple[torch.Tensor, torch.Tensor]:
        if self.problem.direction == "forward":
            return self.input, self.weight
        if self.problem.direction == "backward-data":
            return self.grad_output, self.weight
        return self.input, self.grad_output

    def expected(self) -> torch.Tensor:
        """The correct result, from our CPU engine."""
        import torch

        from unhang import _core

        first, second = self.operands()
        result = torch.empty(self.problem.result_shape, dtype=first.dtype)
        result = result.contiguous(memory_format=self.memory_format)
        _core.run_cpu(
            self.problem,
            (first.data_ptr(), first.numel()),
            (second.data_ptr(), second.numel()),
            None,
            (result.data_ptr(), result.numel()),
            torch.get_num_threads(),
            by_definition=True,
        )
        return result

    def to(self, device: str) -> _Case:
        other = object.__new__(_Case)
        other.__dict__.update(self.__dict__)
        if device != "cpu":
            for name in ("input", "weight", "grad_output"):
                setattr(other, name, getattr(self, name).to(device))
        return other


def _wait(device: str) -> None:
    """Polls until all queued work is done: a thread that waits inside the driver reports nothing."""
    if device == "cpu":
        return
    import torch

    event = torch.cuda.Event()
    event.record()
    pause = 20e-6
    while not event.query():
        time.sleep(pause)
        pause = min(pause * 1.5, 5e-3)


def _time(once: Callable[[], torch.Tensor], device: str) -> float:
    """Seconds of one warm call: the best of a few."""
    best, spent, calls = math.inf, 0.0, 0
    while calls < _TIMING_CALLS and (spent < _TIMING_SECONDS or calls == 0):
        if device == "cpu":
            began = time.perf_counter()
            once()
            seconds = time.perf_counter() - began
        else:
            import torch

            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            once()
            end.record()
            _wait(device)
            seconds = begin.elapsed_time(end) / 1e3
        best, spent, calls = min(best, seconds), spent + max(seconds, 1e-6), calls + 1
    return best


def _compare(found: torch.Tensor, expected: torch.Tensor) -> tuple[float | None, int]:
    """The largest error of the finite values, relative to the largest expected one, and how many are not finite."""
    found, expected = found.double(), expected.double()
    if found.shape != expected.shape:
        raise RuntimeError(f"the result has the shape {tuple(found.shape)} instead of {tuple(expected.shape)}")
    finite = found.isfinite()
    scale = max(expected.abs().max().item(), sys.float_info.min)
    error = (found - expected).abs()[finite]
    worst = error.max().item() / scale if error.numel() else 0.0
    not_numbers = int((~finite & expected.isfinite()).sum().item())
    return (worst if math.isfinite(worst) else None), not_numbers


def _describe() -> dict[str, Any]:
    import torch

    from unhang._state import torch_build

    return {
        "torch": torch_build(),
        "accelerator": torch.cuda.is_available(),
        "rocm": torch.version.hip is not None,
    }


def _record(model: str, shape: str) -> dict[str, Any]:
    """Every convolution of a model that runs forward and backward once, on the CPU, with its number of uses."""
    try:
        module, _, factory = model.partition(":")
        sizes = [int(size) for size in shape.split("x")]
        if not factory or not sizes or min(sizes) < 1:
            raise ValueError(f"expected MODULE:FACTORY and a shape such as 1x3x224x224, found {model!r} and {shape!r}")
        # The model is the user's own, in the working folder. Torch has been found elsewhere by then.
        importlib.import_module("torch")
        sys.path.append(os.getcwd())
        made = getattr(importlib.import_module(module), factory)()
        return {"problems": [{"problem": key, "count": count} for key, count in _convolutions(made, sizes)]}
    except Exception as error:  # the user's own code may raise anything
        return {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"}


def _convolutions(model: Any, sizes: list[int]) -> list[tuple[str, int]]:
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    from unhang._convolve import _geometry_with_height
    from unhang._engines import DATA_TYPES, Geometry, make_problem, memory_format_of

    counts: collections.Counter[str] = collections.Counter()
    left_out = 0

    def note(directions: list[str], x: torch.Tensor, weight: torch.Tensor, geometry: Geometry) -> None:
        nonlocal left_out
        if x.dtype not in DATA_TYPES or x.dim() not in (3, 4):
            left_out += 1
            return
        if x.dim() == 3:
            x, weight, geometry = x.unsqueeze(2), weight.unsqueeze(2), _geometry_with_height(geometry)
        memory_format = memory_format_of(x, weight, None, geometry)
        for direction in directions:
            counts[make_problem(x, weight, geometry, direction, memory_format).key] += 1

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = getattr(function, "overloadpacket", function)
            if name is torch.ops.aten.convolution:
                note(["forward"], args[0], args[1], Geometry(*args[3:9]))
            elif name is torch.ops.aten.convolution_backward:
                wanted = [it for it, on in zip(("backward-data", "backward-weights"), args[10]) if on]
                note(wanted, args[1], args[2], Geometry(*args[4:10]))
            return function(*args, **(kwargs or {}))

    model.train()
    with Recorder():  # type: ignore[no-untyped-call]  # torch's class has no types
        output = model(torch.randn(sizes))
        _sum(output).backward()
    if left_out:
        from unhang import _talk

        _talk.write(f"{left_out} convolutions are of a kind that unhang leaves to torch\n")
    return counts.most_common()


def _sum(output: Any) -> torch.Tensor:
    """One number that depends on everything that a model returned."""
    import torch

    if isinstance(output, torch.Tensor):
        return output.sum() if output.is_floating_point() else torch.zeros((), requires_grad=True)
    parts = list(output.values()) if isinstance(output, dict) else list(output)
    total: torch.Tensor = torch.stack([_sum(part) for part in parts]).sum()
    return total


def _answer(answer: dict[str, Any]) -> None:
    from unhang import _core

    print(_core.child_answer(_ANSWER + json.dumps(answer)), flush=True)


def _main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m unhang._probe_child", description=__doc__)
    parser.add_argument("--describe", action="store_true")
    parser.add_argument("--record", metavar="MODULE:FACTORY")
    parser.add_argument("--input", metavar="SHAPE", default="")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    given = parser.parse_args(arguments)
    if given.describe:
        _answer(_describe())
    elif given.record is not None:
        _answer(_record(given.record, given.input))
    else:
        _serve(given.device)


if __name__ == "__main__":
    _main(sys.argv[1:])
