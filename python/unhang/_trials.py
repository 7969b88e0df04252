"""The children in which convolutions are tried on engines, because a trial may hang, crash or compute nonsense.

``python -m unhang._trials canary ENGINE`` computes a few small convolutions in all three directions on the accelerator,
compares them with the CPU, and answers with one line. `enable` starts it before an engine computes in its process
(:mod:`unhang._gpu`). So does `unhang doctor --self-test`, also for matrix products and half precision. ``direct`` tries
the direct path (:mod:`unhang._direct`). The Rust side tries our own kernel families, and defines every message and its
meaning.

``python -m unhang._trials probe --device cuda|cpu`` is the child of ``unhang probe``. It tries convolutions one after
another, as requested, in the prober's protocol (``protocol.rs`` of ``unhang-probe``): one JSON value a line over the
socket that is its standard input. What torch and the GPU's libraries print goes wherever the prober sent standard
output and error. ``--describe`` says which torch this is; ``--record MODULE:FACTORY --input SHAPE`` says which
convolutions a model uses. Both answer with one line.

Torch is imported late: a child can say that it lives, and end with its parent, while that takes its time.
"""

from __future__ import annotations

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
    from unhang._engines import Engine, Task

# ---- the canary ----

#: Makes a rehearsed canary behave like a bad card: "hang", "crash" or "wrong".
REHEARSAL = "UNHANG_REHEARSE_CANARY"


def _try_canary(engine: str, *, rehearsed: bool, arguments: list[str]) -> tuple[str, str]:
    import torch

    from unhang import _core
    from unhang._engines import AtenEngine, MiopenEngine
    from unhang._state import torch_build

    print(_core.canary_torch(torch_build()), flush=True)
    mood = os.environ.get(REHEARSAL) if rehearsed else None
    if mood == "hang":
        while True:
            time.sleep(60)
    if mood == "crash":
        os.abort()
    runners: dict[str, Engine] = {"aten": AtenEngine(), "miopen": MiopenEngine()}
    trials = {"matmul": _try_matmul, "half": _try_half}
    if engine == "direct":
        return _try_direct()
    if engine not in (*runners, *trials, "jit"):
        return "unsupported", f"{engine} has no canary: expected jit, {', '.join((*runners, *trials))}"
    if engine == "miopen" and torch.version.hip is None and not rehearsed:
        return "unsupported", "not here: this torch is not built for ROCm"
    if not rehearsed and not torch.cuda.is_available():
        return "unsupported", f"not here: torch {torch.__version__} sees no accelerator"
    if engine == "jit":
        return _try_families(arguments, rehearsed=rehearsed)
    device = "cpu" if rehearsed else f"cuda:{_device_of(arguments)}"
    if engine in trials:
        error = trials[engine](device)
        worst, limit, unit = error, 1.0, "of what rounding explains"
    else:
        limit = _core.canary_tolerance("f32")
        worst, unit = _largest_relative_error(runners[engine], device), "relative"
    if mood == "wrong":
        worst = 2.0 * limit
    prefix = "rehearsed on the CPU: " if rehearsed else ""
    said = f"largest error {worst:.2f} {unit}" if unit != "relative" else f"largest relative error {worst:.1e}"
    return "works" if worst <= limit else "wrong", prefix + said


def _largest_relative_error(runner: Engine, device: str) -> float:
    """The largest relative error of a few convolutions in all three directions."""
    import torch

    from unhang._engines import Geometry, Task, below_autograd

    worst = 0.0
    # Sizes on both sides of those that hang in users' reports, a stride and a group.
    for channels, size, stride, groups in ((16, 32, 1, 1), (16, 48, 1, 1), (32, 64, 2, 1), (32, 28, 1, 32)):
        x = torch.randn(1, channels, size, size)
        w = torch.randn(32, channels // groups, 3, 3)
        geometry = Geometry([stride, stride], [1, 1], [1, 1], False, [0, 0], groups)
        y = torch.nn.functional.conv2d(x, w, None, stride, 1, 1, groups)
        expected = torch.ops.aten.convolution_backward(y, x, w, None, *geometry, [True, True, False])[:2]
        # Torch's own kernels look at tensors; the trial is for an affected card.
        task = Task(None, torch.contiguous_format, [1, 1], affected=True)  # type: ignore[arg-type]
        on_device = [tensor.to(device) for tensor in (y, x, w)]
        # Engines compute below autograd, as they do when the dispatcher calls them.
        with below_autograd():
            output = runner.forward(task, on_device[1], on_device[2], None, geometry)
            gradients = runner.backward(task, on_device[0], on_device[1], on_device[2], geometry, (True, True, False))
        for got, want in ((output, y), (gradients[0], expected[0]), (gradients[1], expected[1])):
            assert got is not None
            error = (got.to("cpu") - want).abs().max() / want.abs().max()
            worst = max(worst, error.item() if error.isfinite() else float("inf"))
    return worst


# Rows, inner size and columns: square, a linear layer's, one row, sizes that no tile divides, a batch of attention.
_PRODUCTS = ((256, 256, 256), (64, 768, 3072), (1, 512, 1000), (129, 67, 33), (77, 64, 77))


def _try_matmul(device: str) -> float:
    """The largest error of matrix products in single precision, relative to what rounding explains."""
    import torch

    return max(_product_error(shape, torch.float32, device) for shape in _PRODUCTS)


def _try_half(device: str) -> float:
    """The largest error of matrix products in half precision, and of a convolution without the vendor's library."""
    import torch

    worst = max(_product_error(shape, torch.float16, device) for shape in _PRODUCTS)
    x, w = torch.randn(1, 32, 24, 24).half(), torch.randn(32, 32, 3, 3).half()
    with torch.backends.cudnn.flags(enabled=False):
        got = torch.nn.functional.conv2d(x.to(device), w.to(device), padding=1)
    want = torch.nn.functional.conv2d(x.double(), w.double(), padding=1)
    return max(worst, _error_beyond_rounding(got, want, torch.float16))


def _product_error(shape: tuple[int, int, int], dtype: torch.dtype, device: str) -> float:
    import torch

    rows, inner, columns = shape
    a, b = torch.randn(rows, inner).to(dtype), torch.randn(inner, columns).to(dtype)
    return _error_beyond_rounding(a.to(device) @ b.to(device), a.double() @ b.double(), dtype)


def _error_beyond_rounding(got: torch.Tensor, want: torch.Tensor, dtype: torch.dtype) -> float:
    """The largest error relative to what the type's rounding explains; infinite if a value is not finite."""
    from unhang import _core
    from unhang._engines import DATA_TYPES

    limit = _core.canary_tolerance(DATA_TYPES[dtype]) * want.abs().max()
    error = (got.to("cpu").double() - want).abs().max() / limit
    return error.item() if error.isfinite() else float("inf")


def _device_of(arguments: list[str]) -> int:
    return int(arguments[arguments.index("--device") + 1]) if "--device" in arguments else 0


def _try_families(arguments: list[str], *, rehearsed: bool) -> tuple[str, str]:
    from unhang import _gpu
    from unhang._state import state

    index = _gpu.REHEARSED if rehearsed else _device_of(arguments)
    wanted = arguments[arguments.index("--families") + 1 :] if "--families" in arguments else []
    kernels = _gpu.found(index)
    if isinstance(kernels, str):
        return "unsupported", f"not here: {kernels}"
    return state().session.try_families(index, kernels, wanted)


def _try_direct() -> tuple[str, str]:
    """Tries the direct path with a torch with which nobody has tried it."""
    import torch

    from unhang import _core, _direct, _dispatch

    x, w, b = leaves = [torch.randn(it, requires_grad=True) for it in ((2, 4, 7, 6), (6, 2, 3, 2), (6,))]

    def compute() -> list[torch.Tensor]:
        y = torch.nn.functional.conv2d(x, w, b, stride=(2, 1), padding=(1, 0), groups=2)
        return [y, *torch.autograd.grad(y, leaves, torch.ones_like(y))]

    plain = compute()
    _direct._is_open = _direct.open_here()
    if not _direct._is_open:
        return "unsupported", "an entry of torch's is missing or returns something unexpected"
    _dispatch.register("cpu")
    for settings in (_core.Settings(strategy="cpu_fallback"), None):
        _core.activate("cpu", settings)
        for _ in range(8):
            error = max(float((got - want).abs().max()) for got, want in zip(compute(), plain))
            if not error < 1e-3:
                return "wrong", f"a result is off by {error:.1e}"
    return "works", "results and gradients are right"


def canary(arguments: list[str]) -> None:
    """Tries what the first argument names, and answers with one line."""
    from unhang import _core

    try:
        verdict, detail = _try_canary(arguments[0], rehearsed="--rehearsed" in arguments[1:], arguments=arguments[1:])
    except Exception as error:  # whatever torch raises, it returned and says why
        lines = str(error).splitlines() or [""]
        verdict, detail = "error", f"{type(error).__name__}: {lines[0]}"
    print(_core.canary_answer(verdict, detail), flush=True)


# ---- the probe ----
#
# On a GPU a call that returns has only been queued, so an event follows each and is polled, never waited for: this
# process stays able to say that it lives. Our CPU engine says whether the numbers are right.

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
                _show_that_it_computes(device)
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


def _show_that_it_computes(device: str) -> None:
    """A copy to the device, an addition, a copy back."""
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
    case.move_to(device)
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
            return engine.forward(task, case.input, case.weight, None, case.geometry)
        mask = (problem.direction == "backward-data", problem.direction == "backward-weights", False)
        gradients = engine.backward(task, case.grad_output, case.input, case.weight, case.geometry, mask)
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

    def expected(self) -> torch.Tensor:
        """The correct result, from our CPU engine."""
        from unhang._engines import run_on_cpu

        first, second = {
            "forward": (self.input, self.weight),
            "backward-data": (self.grad_output, self.weight),
            "backward-weights": (self.input, self.grad_output),
        }[self.problem.direction]
        return run_on_cpu(self.problem, first, second, None, self.memory_format, by_definition=True)

    def move_to(self, device: str) -> None:
        """Moves the tensors to that device."""
        self.input, self.weight, self.grad_output = (
            it.to(device) for it in (self.input, self.weight, self.grad_output)
        )


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


def probe(arguments: list[str]) -> None:
    """Serves a prober, or answers a single question."""
    import argparse

    parser = argparse.ArgumentParser(prog="python -m unhang._trials probe")
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
    what, *rest = sys.argv[1:]
    if what == "canary":
        from unhang._core import end_with_parent

        end_with_parent()
        canary(rest)
    else:
        probe(rest)
