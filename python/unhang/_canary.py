"""The canary: on an affected card an engine computes in this process only after it did so in a child, with a deadline.

As a module (``python -m unhang._canary ENGINE``) this is the child: it computes a few small convolutions in all three
directions on the accelerator and compares them with the CPU. It answers with one line of JSON. `unhang doctor
--self-test` starts the same child.
"""

from __future__ import annotations

import json
import os
import sys

#: Seconds that a canary may take in all: start of Python and torch, and the convolutions.
DEADLINE = 30.0
#: Makes a rehearsed canary behave as a bad card does: "hang", "crash" or "wrong".
REHEARSAL = "UNHANG_REHEARSE_CANARY"

_ANSWER = "unhang-canary "
# The line that says which torch the child has comes before the accelerator is touched: a child that hangs said it too.
_TORCH = "unhang-torch "


def standing(engine: str, *, rehearsed: bool) -> tuple[str, str]:
    """What is known of an engine on this machine: ("available" | "absent" | "unproven", why)."""
    from unhang._state import state

    current = state()
    name = _name(engine, rehearsed=rehearsed)
    found = current.store.canary(current.machine.fingerprint, name) or _known_here.get(name)
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


def _name(engine: str, *, rehearsed: bool) -> str:
    """What a rehearsal finds is filed apart: a folder may describe the very machine that it lies on."""
    return f"{engine} (rehearsed)" if rehearsed else engine


# Verdicts of this process, for when there is no store to keep them in.
_known_here: dict[str, tuple[str, str]] = {}


def ensure(engine: str, *, rehearsed: bool) -> tuple[str, str]:
    """Runs the canary of an engine unless its verdict is known for this machine, and keeps the verdict."""
    from unhang import _core
    from unhang._state import say, state

    current = state()
    name = _name(engine, rehearsed=rehearsed)
    known = current.store.canary(current.machine.fingerprint, name) or _known_here.get(name)
    if known is not None:
        return known
    say(f"trying {engine} in a child process before it is used here (once for this machine, {DEADLINE:.0f} s at most)")
    command = [sys.executable, "-m", "unhang._canary", engine]
    if rehearsed:
        command.append("--rehearsed")
    ended, code, output = _core.supervise(command, DEADLINE)
    verdict, detail = _judge(ended, code, output)
    _known_here[name] = (verdict, detail)
    current.store.set_canary(current.machine.fingerprint, name, verdict, detail)
    say(f"canary of {engine}: {verdict} ({detail})")
    return verdict, detail


def _judge(ended: str, code: int, output: str) -> tuple[str, str]:
    if ended in ("timed-out", "unkillable"):
        return "hangs", f"no answer within {DEADLINE:.0f} s" + (
            ", and it cannot be killed" if ended == "unkillable" else ""
        )
    if ended == "signalled":
        return "crashes", f"ended by signal {code}"
    for line in output.splitlines():
        if line.startswith(_ANSWER):
            try:
                answer = json.loads(line[len(_ANSWER) :])
                return str(answer["verdict"]), str(answer["detail"])
            except (ValueError, KeyError, TypeError):
                break
    return "crashes", f"ended with code {code} and no answer"


def _child(engine: str, *, rehearsed: bool) -> tuple[str, str]:
    import torch

    from unhang._engines import AtenEngine, Engine, Geometry, MiopenEngine, Route, below_autograd
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
    if engine not in runners:
        return "unsupported", f"{engine} has no canary: expected {' or '.join(runners)}"
    if engine == "miopen" and torch.version.hip is None and not rehearsed:
        return "unsupported", "not here: this torch is not built for ROCm"
    if not rehearsed and not torch.cuda.is_available():
        return "unsupported", f"not here: torch {torch.__version__} sees no accelerator"
    device = "cpu" if rehearsed else "cuda"
    worst = 0.0
    runner = runners[engine]
    # Sizes on both sides of those that hang in users' reports, a stride and a group.
    for channels, size, stride, groups in ((16, 32, 1, 1), (16, 48, 1, 1), (32, 64, 2, 1), (32, 28, 1, 32)):
        x = torch.randn(1, channels, size, size)
        w = torch.randn(32, channels // groups, 3, 3)
        geometry = Geometry([stride, stride], [1, 1], [1, 1], False, [0, 0], groups)
        y = torch.nn.functional.conv2d(x, w, None, stride, 1, 1, groups)
        expected = torch.ops.aten.convolution_backward(y, x, w, None, *geometry, [True, True, False])[:2]
        route: Route = None  # type: ignore[assignment]  # torch's own kernels look at tensors only
        on_device = [tensor.to(device) for tensor in (y, x, w)]
        # Engines compute below autograd, as they do when the dispatcher calls them.
        with below_autograd():
            output = runner.forward(route, on_device[1], on_device[2], None, geometry)
            gradients = runner.backward(route, on_device[0], on_device[1], on_device[2], geometry, (True, True, False))
        for got, want in ((output, y), (gradients[0], expected[0]), (gradients[1], expected[1])):
            assert got is not None
            error = (got.to("cpu") - want).abs().max() / want.abs().max()
            worst = max(worst, error.item() if error.isfinite() else float("inf"))
    if mood == "wrong":
        worst = 1.0
    verdict = "works" if worst <= 1e-4 else "wrong"
    prefix = "rehearsed on the CPU: " if rehearsed else ""
    return verdict, f"{prefix}largest relative error {worst:.1e}"


def _main(arguments: list[str]) -> None:
    try:
        verdict, detail = _child(arguments[0], rehearsed="--rehearsed" in arguments[1:])
    except Exception as error:  # whatever torch raises: it came back, and says why
        lines = str(error).splitlines() or [""]
        verdict, detail = "error", f"{type(error).__name__}: {lines[0]}"
    print(_ANSWER + json.dumps({"verdict": verdict, "detail": detail}), flush=True)


if __name__ == "__main__":
    _main(sys.argv[1:])
