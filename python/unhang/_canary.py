"""The canary: on an affected card an engine computes in this process only after it did so in a child, with a deadline.

As a module (``python -m unhang._canary ENGINE``) this is the child: it computes a few small convolutions in all three
directions on the accelerator and compares them with the CPU, and answers with one line. `unhang doctor --self-test`
starts the same child, also for matrix products and half precision. What is said and what it means is the Rust side's.

Our own GPU kernels have one canary for each kernel family: one child tries them all and answers with a line for each as
it goes, so that a family that hangs is known by its name, and the others are not condemned with it.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from unhang import _core
    from unhang._engines import Engine

#: Seconds that one family may take in it, once everything is compiled.
FAMILY_LIMIT = 10.0
#: Makes a rehearsed canary behave as a bad card does: "hang", "crash" or "wrong".
REHEARSAL = "UNHANG_REHEARSE_CANARY"

#: Seconds that a canary may take in place of what its engine is given. For rehearsals.
deadline: float | None = None


def known(index: int, *, rehearsed: bool) -> list[tuple[str, str, tuple[str, str] | None]]:
    """The canaries that judge the engines on a device: engine, part of it, and verdict and detail where it ran."""
    from unhang import _gpu

    found: list[tuple[str, str, tuple[str, str] | None]] = [
        (engine, "", _known(_name(engine, index=index, rehearsed=rehearsed))) for engine in ("aten", "miopen")
    ]
    if _gpu.absence(index) is None:
        gpu = _gpu.gpu(index)
        for family in families(gpu):
            found.append(("jit", family, _known(_jit_name(gpu, family, index=index, rehearsed=rehearsed))))
    return found


def _deadline(engine: str) -> float:
    from unhang import _core

    return _core.canary_deadline(engine) if deadline is None else deadline


def _name(engine: str, *, index: int, rehearsed: bool) -> str:
    """What a canary's verdict is kept under. What a rehearsal finds is filed apart: a folder may describe the very
    machine that it is on. Where there are several cards, none vouches for another."""
    if rehearsed:
        return f"{engine} (rehearsed)"
    return f"{engine}{_place(index)}"


def _place(index: int) -> str:
    """Which of several cards a device is; empty where there is only one."""
    from unhang import _core
    from unhang._state import state

    if len(state().machine.gpus) < 2:
        return ""
    return f"@{_core.Machine.address_of(index) or index}"


# Verdicts of this process, for when there is no store to keep them in.
_known_here: dict[str, tuple[str, str]] = {}


def ensure(engine: str, *, index: int, rehearsed: bool) -> tuple[str, str]:
    """Runs the canary of an engine unless its verdict is known for this device, and keeps the verdict."""
    from unhang import _children
    from unhang._state import say, state

    name = _name(engine, index=index, rehearsed=rehearsed)
    known = _known(name)
    if known is not None:
        return known
    seconds = _deadline(engine)
    say(f"trying {engine} in a child process before it is used here (once for this machine, {seconds:.0f} s at most)")
    arguments = [engine, *(["--rehearsed"] if rehearsed else ["--device", str(index)])]
    outcome = _children.supervise_canary(arguments, seconds)
    verdict, detail = outcome.canary()
    _known_here[name] = (verdict, detail)
    if not outcome.began:
        say(f"canary of {engine}: {detail}; {engine} is not used in this process, and the next one tries again")
        return verdict, detail
    state().keep_canary(name, verdict, detail, wait=True)
    if name.partition("@")[0] == engine and name != engine and _known(engine) is None:
        # What `unhang plan` and the doctor go by, who do not look at single cards.
        state().keep_canary(engine, verdict, detail, wait=True)
    say(f"canary of {engine}: {verdict} ({detail})")
    return verdict, detail


# ---- our GPU kernels ----

# By a device's identity: its families.
_families: dict[str, list[str]] = {}


def ensure_jit(*, index: int, rehearsed: bool) -> None:
    """Runs the canaries of our kernel families that are not known for this device, and keeps their verdicts."""
    from unhang import _children, _gpu
    from unhang._state import say, state

    absence = _gpu.absence(index)
    if absence is not None:
        if not rehearsed:
            say(f"our GPU kernels are not used: {absence}")
        return
    gpu = _gpu.gpu(index)
    current = state()
    missing = [
        family for family in families(gpu) if _known(_jit_name(gpu, family, index=index, rehearsed=rehearsed)) is None
    ]
    seconds = _deadline("jit")
    while missing:
        say(
            f"trying our GPU kernels ({', '.join(missing)}) in a child process before they are used here (once for "
            f"this machine, {seconds:.0f} s at most)"
        )
        arguments = ["jit", *(["--rehearsed"] if rehearsed else ["--device", str(index)]), "--families", *missing]
        verdicts, hung = _children.supervise_canary(arguments, seconds).families(missing)
        for family, verdict, detail in verdicts:
            name = _jit_name(gpu, family, index=index, rehearsed=rehearsed)
            _known_here[name] = (verdict, detail)
            current.keep_canary(name, verdict, detail, wait=True)
            say(f"canary of jit, {family}: {verdict} ({detail})")
        # What `unhang plan` and the doctor go by, who do not look at families.
        found = [_known(_jit_name(gpu, family, index=index, rehearsed=rehearsed)) for family in families(gpu)]
        best = sorted(filter(None, found), key=lambda it: it[0] != "works")[:1]
        for verdict, detail in best:
            current.keep_canary("jit (rehearsed)" if rehearsed else "jit", verdict, detail, wait=True)
        done = {family for family, _, _ in verdicts}
        missing = [family for family in missing if family not in done]
        if (hung and missing) or not verdicts:
            why = "after a hang the card may need a reboot first" if verdicts else "the child was not done compiling"
            say(f"not tried: {', '.join(missing)}; {why}")
            return


def families(gpu: _core.Gpu) -> list[str]:
    """The kernel families that the canary tries, the plainest first."""
    known = _families.get(gpu.identity)
    if known is None:
        known = _families[gpu.identity] = list(dict.fromkeys(family for family, _, _ in _jit_tries(gpu)))
    return known


def _jit_tries(gpu: _core.Gpu) -> list[tuple[str, _core.Problem, str]]:
    """Family, problem and choice: what each family thinks best for each problem."""
    from unhang import _core

    tries = []
    for problem in map(_core.Problem.from_key, _core.canary_problems(gpu.is_emulated)):
        seen: set[str] = set()
        for choice, family, _, _ in gpu.candidates(problem):
            if family not in seen:
                seen.add(family)
                tries.append((family, problem, choice))
    return sorted(tries, key=lambda it: (it[0] != "plain", it[0]))


def _jit_name(gpu: _core.Gpu, family: str, *, index: int, rehearsed: bool = False) -> str:
    """Other sources, another compiler or another chip are other kernels."""
    return _name(f"jit:{family}:{gpu.identity}", index=index, rehearsed=rehearsed)


def _known(name: str) -> tuple[str, str] | None:
    from unhang._state import state

    return _known_here.get(name) or state().canary(name)


def _try_families(index: int, wanted: list[str]) -> tuple[str, str]:
    """In the child: tries families one after the other, each within a limit, and says of each how it did."""
    import threading
    from concurrent.futures import ThreadPoolExecutor

    from unhang import _core, _gpu

    gpu = _gpu.gpu(index)
    tries = [it for it in _jit_tries(gpu) if not wanted or it[0] in wanted]
    limit = 60.0 if gpu.is_emulated else FAMILY_LIMIT
    with ThreadPoolExecutor(4) as pool:
        kernels = list(pool.map(lambda it: gpu.prepare_as(it[1], it[2]), tries))

    def say(family: str, verdict: str, detail: str) -> None:
        name = _jit_name(gpu, family, index=index, rehearsed=index < 0)
        print(_core.canary_family(family, name, verdict, detail), flush=True)

    def give_up(family: str) -> None:
        say(family, "hangs", f"no answer within {limit:.0f} s")
        _answer("hangs", f"{family}: no answer within {limit:.0f} s")
        os._exit(1)

    worst, bad = 0.0, []
    for family in dict.fromkeys(it[0] for it in tries):
        print(_core.canary_begin(family), flush=True)
        timer = threading.Timer(limit, give_up, [family])
        timer.start()
        error = max(
            _error_of(kernel, it[1], index) for it, kernel in zip(tries, kernels) if it[0] == family
        )  # fmt: skip
        timer.cancel()
        right = error <= 1.0
        bad += [] if right else [family]
        worst = max(worst, error)
        say(family, "works" if right else "wrong", f"largest error {error:.2f} of what rounding explains")
    detail = f"largest error {worst:.2f} of what rounding explains, on {gpu.name}"
    return ("wrong", f"{', '.join(bad)}: {detail}") if bad else ("works", detail)


def _error_of(kernel: _core.Kernel, problem: _core.Problem, index: int) -> float:
    """The largest error of a result, relative to what its type and its sums allow."""
    import torch

    from unhang._engines import run_on_cpu
    from unhang._launch import compute

    half = ":f16:" in problem.key
    form = torch.channels_last if ":nhwc:" in problem.key else torch.contiguous_format
    weight_shape = problem.with_direction("backward-weights").result_shape
    shapes = {
        "forward": (problem.input_shape, weight_shape),
        "backward-data": (problem.output_shape, weight_shape),
        "backward-weights": (problem.input_shape, problem.output_shape),
    }[problem.direction]
    dtype = torch.float16 if half else torch.float32
    first, second = (torch.randn(shape).to(dtype).contiguous(memory_format=form) for shape in shapes)
    want = run_on_cpu(problem, first, second, None, form).double()
    device = "cpu" if index < 0 else f"cuda:{index}"
    got = compute(kernel, problem, first.to(device), second.to(device), form).to("cpu").double()
    return _error_beyond_rounding(got, want, dtype)


def _child(engine: str, *, rehearsed: bool, arguments: list[str]) -> tuple[str, str]:
    import torch

    from unhang import _core
    from unhang._engines import AtenEngine, MiopenEngine
    from unhang._state import torch_build

    print(_core.canary_torch(torch_build()), flush=True)
    mood = os.environ.get(REHEARSAL) if rehearsed else None
    if mood == "hang":
        import time

        while True:
            time.sleep(60)
    if mood == "crash":
        os.abort()
    runners: dict[str, Engine] = {"aten": AtenEngine(), "miopen": MiopenEngine()}
    trials = {"matmul": _try_matmul, "half": _try_half}
    if engine not in (*runners, *trials, "jit"):
        return "unsupported", f"{engine} has no canary: expected jit, {', '.join((*runners, *trials))}"
    if engine == "miopen" and torch.version.hip is None and not rehearsed:
        return "unsupported", "not here: this torch is not built for ROCm"
    if not rehearsed and not torch.cuda.is_available():
        return "unsupported", f"not here: torch {torch.__version__} sees no accelerator"
    if engine == "jit":
        return _jit_child(arguments, rehearsed=rehearsed)
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
    """Of a few convolutions in all three directions."""
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
        # Torch's own kernels look at tensors; what they are tried for is an affected card.
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
    """The largest error in half precision, with a convolution as torch computes it without its vendor's library."""
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
    """The largest error relative to what the type's rounding explains; infinite where a number is not finite."""
    from unhang import _core
    from unhang._engines import DATA_TYPES

    limit = _core.canary_tolerance(DATA_TYPES[dtype]) * want.abs().max()
    error = (got.to("cpu").double() - want).abs().max() / limit
    return error.item() if error.isfinite() else float("inf")


def _device_of(arguments: list[str]) -> int:
    return int(arguments[arguments.index("--device") + 1]) if "--device" in arguments else 0


def _jit_child(arguments: list[str], *, rehearsed: bool) -> tuple[str, str]:
    from unhang import _gpu

    index = _gpu.REHEARSED if rehearsed else _device_of(arguments)
    wanted = arguments[arguments.index("--families") + 1 :] if "--families" in arguments else []
    absence = _gpu.absence(index)
    if absence is not None:
        return "unsupported", f"not here: {absence}"
    return _try_families(index, wanted)


def _main(arguments: list[str]) -> None:
    try:
        verdict, detail = _child(arguments[0], rehearsed="--rehearsed" in arguments[1:], arguments=arguments[1:])
    except Exception as error:  # whatever torch raises: it returned, and says why
        lines = str(error).splitlines() or [""]
        verdict, detail = "error", f"{type(error).__name__}: {lines[0]}"
    _answer(verdict, detail)


def _answer(verdict: str, detail: str) -> None:
    from unhang import _core

    print(_core.canary_answer(verdict, detail), flush=True)


if __name__ == "__main__":
    _main(sys.argv[1:])
