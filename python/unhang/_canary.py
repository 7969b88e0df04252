"""The canary: on an affected card an engine computes in this process only after it did so in a child, with a deadline.

As a module (``python -m unhang._canary ENGINE``) this is the child: it computes a few small convolutions in all three
directions on the accelerator and compares them with the CPU. It answers with one line of JSON. `unhang doctor
--self-test` starts the same child.

Our own GPU kernels have one canary for each kernel family: one child tries them all and answers with a line for each as
it goes, so that a family that hangs is known by its name, and the others are not condemned with it.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unhang import _core

#: Seconds that a canary may take in all: start of Python and torch, and the convolutions.
DEADLINE = 30.0
#: Seconds that the child of our GPU kernels may take: it compiles a few dozen of them first.
JIT_DEADLINE = 180.0
#: Seconds that one family may take in it, once everything is compiled.
FAMILY_LIMIT = 10.0
#: Makes a rehearsed canary behave as a bad card does: "hang", "crash" or "wrong".
REHEARSAL = "UNHANG_REHEARSE_CANARY"

_ANSWER = "unhang-canary "
# The line that says which torch the child has comes before the accelerator is touched: a child that hangs said it too.
_TORCH = "unhang-torch "
_FAMILY = "unhang-family "
# The line before a family is run: from there on it is that family which hangs or crashes, and not a compiler.
_BEGIN = "unhang-begin "

# What the families of our GPU kernels are tried on, in all three directions: an ordinary convolution, one with a stride
# and few channels, a depthwise one.
_JIT_PROBLEMS = (
    "forward:f32:nchw:2x32x20x20:48x3x3:s1x1:p1x1:d1x1:g1",
    "forward:f32:nchw:1x3x37x41:16x7x7:s2x2:p3x3:d1x1:g1",
    "forward:f32:nchw:2x32x28x28:32x3x3:s1x1:p1x1:d1x1:g32",
    "forward:f16:nhwc:2x32x20x20:48x3x3:s1x1:p1x1:d1x1:g1",
)
# The same for an emulated card, which takes its time.
_SMALL_PROBLEMS = (
    "forward:f32:nchw:1x16x6x6:16x3x3:s1x1:p1x1:d1x1:g1",
    "forward:f32:nchw:1x4x8x8:4x3x3:s1x1:p1x1:d1x1:g4",
)
_DIRECTIONS = ("forward", "backward-data", "backward-weights")


def standing(engine: str, *, index: int, rehearsed: bool) -> tuple[str, str]:
    """What is known of an engine on a device: ("available" | "absent" | "unproven", why)."""
    found = _known(_name(engine, index=index, rehearsed=rehearsed))
    if found is None:
        return "unproven", f"no canary of {engine} has run on this machine yet"
    verdict, detail = found
    if verdict == "works":
        return "available", detail
    return "absent", f"its canary {_WORDS[verdict]} in a child process: {detail}"


_WORDS = {
    "hangs": "hung",
    "crashes": "crashed",
    "wrong": "gave wrong numbers",
    "error": "failed",
    "unsupported": "declined",
}


def _name(engine: str, *, index: int, rehearsed: bool) -> str:
    """What a canary's verdict is kept under. What a rehearsal finds is filed apart: a folder may describe the very
    machine that it lies on. Where there are several cards, none vouches for another."""
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
    from unhang import _core
    from unhang._state import say, state

    name = _name(engine, index=index, rehearsed=rehearsed)
    known = _known(name)
    if known is not None:
        return known
    say(f"trying {engine} in a child process before it is used here (once for this machine, {DEADLINE:.0f} s at most)")
    command = [sys.executable, "-m", "unhang._canary", engine]
    command += ["--rehearsed"] if rehearsed else ["--device", str(index)]
    ended, code, output = _core.supervise(command, DEADLINE)
    verdict, detail = _judge(ended, code, output)
    _known_here[name] = (verdict, detail)
    state().keep_canary(name, verdict, detail, wait=True)
    if name.partition("@")[0] == engine and name != engine and _known(engine) is None:
        # What `unhang plan` and the doctor go by, who do not look at single cards.
        state().keep_canary(engine, verdict, detail, wait=True)
    say(f"canary of {engine}: {verdict} ({detail})")
    return verdict, detail


def _judge(ended: str, code: int, output: str) -> tuple[str, str]:
    if ended in ("timed-out", "unkillable"):
        return "hangs", f"no answer within {DEADLINE:.0f} s" + (
            ", and it cannot be killed" if ended == "unkillable" else ""
        )
    if ended == "signalled":
        return "crashes", f"ended by signal {code}"
    for answer in _answers(output, _ANSWER):
        return str(answer["verdict"]), str(answer["detail"])
    return "crashes", f"ended with code {code} and no answer"


def _answers(output: str, prefix: str) -> list[dict[str, Any]]:
    """What a child said behind a prefix, as far as it can be read."""
    answers = []
    for line in output.splitlines():
        if line.startswith(prefix):
            try:
                answer = json.loads(line[len(prefix) :])
            except ValueError:
                continue
            if isinstance(answer, dict) and {"verdict", "detail"} <= answer.keys():
                answers.append(answer)
    return answers


# ---- our GPU kernels ----

# By a device's identity: its families, and those that may run.
_families: dict[str, list[str]] = {}
_allowed: dict[str, set[str]] = {}


def jit_standing(index: int, *, rehearsed: bool) -> tuple[str, str]:
    """What is known of our GPU kernels on a device. On an affected card this also lets the proven families run."""
    from unhang import _gpu
    from unhang._state import state

    absence = _gpu.absence(index)
    if absence is not None:
        return "absent", absence
    if not rehearsed and not state().is_affected(index):
        return "available", ""
    gpu = _gpu.gpu(index)
    known = {family: _known(_jit_name(gpu, family, index=index, rehearsed=rehearsed)) for family in families(gpu)}
    passed = {family for family, found in known.items() if found is not None and found[0] == "works"}
    if _allowed.get(gpu.identity) != passed:
        gpu.allow(passed)
        _allowed[gpu.identity] = passed
    if passed:
        return "available", f"the canaries of {', '.join(sorted(passed))} passed"
    failed = [f"{family} {_WORDS[found[0]]}: {found[1]}" for family, found in known.items() if found is not None]
    if failed:
        return "absent", f"its canary in a child process: {'; '.join(failed)}"
    return "unproven", "no canary of jit has run on this machine yet"


def ensure_jit(*, index: int, rehearsed: bool) -> None:
    """Runs the canaries of our kernel families that are not known for this device, and keeps their verdicts."""
    from unhang import _core, _gpu
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
    while missing:
        say(
            f"trying our GPU kernels ({', '.join(missing)}) in a child process before they are used here (once for "
            f"this machine, {JIT_DEADLINE:.0f} s at most)"
        )
        command = [sys.executable, "-m", "unhang._canary", "jit"]
        command += ["--rehearsed"] if rehearsed else ["--device", str(index)]
        command += ["--families", *missing]
        verdicts, hung = _judge_families(missing, *_core.supervise(command, JIT_DEADLINE))
        for family, (verdict, detail) in verdicts.items():
            name = _jit_name(gpu, family, index=index, rehearsed=rehearsed)
            _known_here[name] = (verdict, detail)
            current.keep_canary(name, verdict, detail, wait=True)
            say(f"canary of jit, {family}: {verdict} ({detail})")
        # What `unhang plan` and the doctor go by, who do not look at families.
        found = [_known(_jit_name(gpu, family, index=index, rehearsed=rehearsed)) for family in families(gpu)]
        best = sorted(filter(None, found), key=lambda it: it[0] != "works")[:1]
        for verdict, detail in best:
            current.keep_canary("jit (rehearsed)" if rehearsed else "jit", verdict, detail, wait=True)
        missing = [family for family in missing if family not in verdicts]
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
    for key in _SMALL_PROBLEMS if gpu.name.startswith("emulated") else _JIT_PROBLEMS:
        for direction in _DIRECTIONS:
            problem = _core.Problem.from_key(key).with_direction(direction)
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


def _judge_families(asked: list[str], ended: str, code: int, output: str) -> tuple[dict[str, tuple[str, str]], bool]:
    """The verdict on each family that the child got to, and whether one hung."""
    verdicts: dict[str, tuple[str, str]] = {}
    for answer in _answers(output, _FAMILY):
        verdicts[str(answer.get("family"))] = (str(answer["verdict"]), str(answer["detail"]))
    verdicts = {
        family: found for family, found in verdicts.items() if family in asked and found[0] in ("works", *_WORDS)
    }
    silent = [family for family in asked if family not in verdicts]
    begun = [line[len(_BEGIN) :] for line in output.splitlines() if line.startswith(_BEGIN)]
    if silent and not begun:
        if ended in ("timed-out", "unkillable"):
            return (
                {},
                True,
            )  # still compiling, which says nothing of the kernels: the next start finds them in the cache
        verdicts.update(dict.fromkeys(silent, _judge(ended, code, output)))
    elif begun and begun[-1] in silent:
        verdict, detail = _judge(ended, code, output)
        verdicts[begun[-1]] = ("crashes" if verdict == "works" else verdict, detail)
    return verdicts, any(verdict == "hangs" for verdict, _ in verdicts.values())


def _try_families(index: int, wanted: list[str]) -> tuple[str, str]:
    """In the child: tries families one after the other, each within a limit, and says of each how it did."""
    import threading
    from concurrent.futures import ThreadPoolExecutor

    from unhang import _gpu

    gpu = _gpu.gpu(index)
    tries = [it for it in _jit_tries(gpu) if not wanted or it[0] in wanted]
    limit = FAMILY_LIMIT if index >= 0 else 60.0
    with ThreadPoolExecutor(4) as pool:
        kernels = list(pool.map(lambda it: gpu.prepare_as(it[1], it[2]), tries))

    def say(family: str, verdict: str, detail: str) -> None:
        print(_FAMILY + json.dumps({"family": family, "verdict": verdict, "detail": detail}), flush=True)

    def give_up(family: str) -> None:
        say(family, "hangs", f"no answer within {limit:.0f} s")
        _answer("hangs", f"{family}: no answer within {limit:.0f} s")
        os._exit(1)

    worst, bad = 0.0, []
    for family in dict.fromkeys(it[0] for it in tries):
        print(_BEGIN + family, flush=True)
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
    limit = (2e-3 if half else 1e-4) * want.abs().max().item()
    error = (got - want).abs().max().item() / limit
    return error if error == error else float("inf")


def _child(engine: str, *, rehearsed: bool, arguments: list[str]) -> tuple[str, str]:
    import torch

    from unhang._engines import AtenEngine, Engine, Geometry, MiopenEngine, Task, below_autograd
    from unhang._state import torch_build

    print(_TORCH + torch_build(), flush=True)
    mood = os.environ.get(REHEARSAL) if rehearsed else None
    if mood == "hang":
        import time

        while True:
            time.sleep(60)
    if mood == "crash":
        os.abort()
    runners: dict[str, Engine] = {"aten": AtenEngine(), "miopen": MiopenEngine()}
    if engine not in (*runners, "jit"):
        return "unsupported", f"{engine} has no canary: expected jit or {' or '.join(runners)}"
    if engine == "miopen" and torch.version.hip is None and not rehearsed:
        return "unsupported", "not here: this torch is not built for ROCm"
    if not rehearsed and not torch.cuda.is_available():
        return "unsupported", f"not here: torch {torch.__version__} sees no accelerator"
    if engine == "jit":
        return _jit_child(arguments, rehearsed=rehearsed)
    device = "cpu" if rehearsed else f"cuda:{_device_of(arguments)}"
    worst = 0.0
    runner = runners[engine]
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
    if mood == "wrong":
        worst = 1.0
    verdict = "works" if worst <= 1e-4 else "wrong"
    prefix = "rehearsed on the CPU: " if rehearsed else ""
    return verdict, f"{prefix}largest relative error {worst:.1e}"


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
    except Exception as error:  # whatever torch raises: it came back, and says why
        lines = str(error).splitlines() or [""]
        verdict, detail = "error", f"{type(error).__name__}: {lines[0]}"
    _answer(verdict, detail)


def _answer(verdict: str, detail: str) -> None:
    print(_ANSWER + json.dumps({"verdict": verdict, "detail": detail}), flush=True)


if __name__ == "__main__":
    _main(sys.argv[1:])
