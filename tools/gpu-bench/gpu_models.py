"""Whole models, torch's own checks and single calls with every convolution on our kernels: `unhang.enable("jit")`.

    python3 tools/gpu-bench/gpu_models.py models [NAME…]
    python3 tools/gpu-bench/gpu_models.py eager
    python3 tools/gpu-bench/gpu_models.py gradcheck
    python3 tools/gpu-bench/gpu_models.py first [NAME…]
    python3 tools/gpu-bench/gpu_models.py tuned [NAME…]

`models` times training steps (forward, a mean square as the loss, backward, SGD with momentum) of whole networks, f32 with
TF32 off. They run eager and as a replayed graph, against cuDNN with benchmark=True and cuDNN disabled, taking turns. It
also measures what a first start costs. `eager` times single calls from Python, where the host's work counts.
`gradcheck` runs torch's own checks in double precision. `first` is a first start with nothing but general kernels in
the cache, as a package carries them for AMD chips: what the first step takes, and a graph that is recorded after one
step. `tuned` trains until every convolution was tuned on first use. It times replayed graphs of a step from before and
after it in turns (name an empty UNHANG_HOME: what was tuned once is taken at once). unhang must be importable:
installed, or PYTHONPATH=python beside a built extension.
"""

from __future__ import annotations

import argparse
import functools
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as functional
from yolov8n import YoloV8n

import unhang
from unhang import _convolve, _gpu, _jit

WAYS = ("ours", "cuDNN", "cuDNN off")
MODELS = {
    "resnet50": (32, 224),
    "yolov8n": (4, 640),
    "mobilenet_v2": (32, 224),
    "vgg16": (16, 224),
    "resnet18": (12, 224),
}


@contextmanager
def way(name: str) -> Iterator[None]:
    """Convolutions by our kernels, by cuDNN, or by torch without it; batch norms by cuDNN if convolutions may use
    it."""
    with torch.backends.cudnn.flags(enabled=name != "cuDNN off", benchmark=True, allow_tf32=False):
        if name in ("ours", "ours, tuned"):
            with unhang.enabled("jit", tune=name != "ours"):
                yield
        else:
            yield


def milliseconds(call: Callable[[], object], repeats: int = 10) -> float:
    """The median of several calls, each waited for."""
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        started = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - started) * 1000)
    return statistics.median(times)


def make_model(name: str) -> torch.nn.Module:
    if name == "yolov8n":
        return YoloV8n().cuda().train()
    import torchvision

    model: torch.nn.Module = getattr(torchvision.models, name)(weights=None).cuda().train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return model


def gradients_of(model: torch.nn.Module, input: torch.Tensor) -> list[torch.Tensor]:
    for parameter in model.parameters():
        parameter.grad = None
    outputs = model(input)
    outputs = outputs if isinstance(outputs, list) else [outputs]
    sum(output.float().square().mean() for output in outputs).backward()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def training_step(model: torch.nn.Module, input: torch.Tensor) -> Callable[[], None]:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)

    def step() -> None:
        gradients_of(model, input)
        optimizer.step()

    return step


def graph_of(step: Callable[[], None]) -> Callable[[], None]:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def replayed_in_turns(graphs: dict[str, Callable[[], None]], turns: int) -> dict[str, list[float]]:
    """Milliseconds of each graph, after a turn that warms up."""
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for turn in range(1 + turns):
        for name, graph in graphs.items():
            graph()
            if turn:
                times[name].append(milliseconds(graph, 5))
    return times


def seconds(call: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    started = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return time.perf_counter() - started


def distance(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> float:
    """The relative distance of all gradients together: a single one may be pure rounding, such as that of a bias before
    a norm."""
    apart = sum((a - b).double().square().sum() for a, b in zip(ours, theirs))
    return float((apart / sum(b.double().square().sum() for b in theirs)).sqrt())


def models(names: list[str]) -> int:
    torch.backends.cuda.matmul.allow_tf32 = False
    for name in names or MODELS:
        batch, size = MODELS[name]
        torch.manual_seed(3)
        model = make_model(name)
        input = torch.randn(batch, 3, size, size, device="cuda")
        step = training_step(model, input)
        with way("ours"):
            before = _gpu.gpu(0).compiled
            first = seconds(step)
            settled = seconds(lambda: unhang.wait_for_kernels())
            swapped = seconds(step)
            compiled = _gpu.gpu(0).compiled - before
        gradients = {}
        for name_of_way in WAYS:
            with way(name_of_way):
                gradients[name_of_way] = [it.clone() for it in gradients_of(model, input)]
        away, spread = (distance(gradients[it], gradients["cuDNN"]) for it in ("ours", "cuDNN off"))
        gradients.clear()
        eager: dict[str, list[float]] = {it: [] for it in WAYS}
        for turn in range(4):
            for name_of_way in WAYS:
                with way(name_of_way):
                    step()
                    if turn:
                        eager[name_of_way].append(milliseconds(step, 5))
        graphs = {}
        for name_of_way in WAYS:
            with way(name_of_way):
                graphs[name_of_way] = graph_of(step)
        replayed = replayed_in_turns(graphs, 3)
        print(f"{name} b{batch}@{size}, training step in ms:")
        for kind, times in (("eager", eager), ("graph", replayed)):
            medians = {it: statistics.median(times[it]) for it in WAYS}
            against = [f"{medians[it] / medians['ours']:.2f}x {it}" for it in WAYS[1:]]
            print(
                f"  {kind}: " + ", ".join(f"{it} {medians[it]:.2f}" for it in WAYS) + "; ours is " + ", ".join(against)
            )
        print(f"  gradients away from cuDNN's by {away:.1e} (cuDNN off: {spread:.1e})")
        print(
            f"  first start: {compiled} kernels compiled; first step {first:.2f} s by the generic kernels, then {settled:.2f} s "
            f"until all are compiled, next step (first results compared) {swapped:.2f} s"
        )
        fallen = [route.key for route in _convolve.routes.values() if sum(route.tally.by_place[1:])]
        print(f"  not computed by ours: {fallen or 'none'}", flush=True)
        _convolve.routes.clear()
    return 0


def eager() -> int:
    print("one call from Python, us: layer and direction, " + " / ".join(WAYS))
    for name, channels, filters, size, kernel in (
        ("16-32@32 3x3", 16, 32, 32, 3),
        ("64-128@72 3x3", 64, 128, 72, 3),
        ("256-512@28 1x1", 256, 512, 28, 1),
    ):
        input = torch.randn(1, channels, size, size, device="cuda")
        weight = torch.randn(filters, channels, kernel, kernel, device="cuda", requires_grad=True)
        trained = input.clone().requires_grad_()
        gradient = torch.randn_like(functional.conv2d(input, weight, padding=kernel // 2))

        def forward(input: torch.Tensor = input, weight: torch.Tensor = weight, pad: int = kernel // 2) -> None:
            with torch.no_grad():
                for _ in range(200):
                    functional.conv2d(input, weight, padding=pad)

        def both(
            x: torch.Tensor = trained, w: torch.Tensor = weight, g: torch.Tensor = gradient, pad: int = kernel // 2
        ) -> None:
            for _ in range(200):
                torch.autograd.grad(functional.conv2d(x, w, padding=pad), [x, w], g)

        for label, call in (("forward", forward), ("forward and backward", both)):
            times: dict[str, list[float]] = {it: [] for it in WAYS}
            for turn in range(4):
                for it in WAYS:
                    with way(it):
                        call()
                        if it == "ours" and turn == 0:
                            unhang.wait_for_kernels()
                        elif turn:
                            times[it].append(milliseconds(call, 3) * 1000 / 200)
            print(f"{name} {label}: " + " / ".join(f"{statistics.median(times[it]):.1f}" for it in WAYS), flush=True)
    return 0


def gradcheck() -> int:
    torch.manual_seed(2)
    with unhang.enabled("jit"):
        for stride, padding, dilation, groups, transposed in (
            (1, 1, 1, 1, False),
            (2, 0, 1, 2, False),
            (1, 2, 2, 1, False),
            (2, 1, 1, 1, True),
            (3, 1, 2, 2, True),
        ):
            input = torch.randn(2, 4, 7, 6, dtype=torch.float64, device="cuda", requires_grad=True)
            weight = torch.randn(4, 4 // groups, 3, 2, dtype=torch.float64, device="cuda", requires_grad=True)
            bias = torch.randn(4, dtype=torch.float64, device="cuda", requires_grad=True)
            layer = functional.conv_transpose2d if transposed else functional.conv2d
            options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
            call = functools.partial(layer, **options)
            torch.autograd.gradcheck(call, (input, weight, bias))
            torch.autograd.gradgradcheck(call, (input, weight, bias))
    computed = {route.names[0] for route in _convolve.routes.values()}
    print(f"gradcheck and gradgradcheck: right, computed by {', '.join(sorted(computed))}")
    return 0


def seen(name: str) -> None:
    """Prints the keys of a model's convolutions, in all directions."""
    step, _ = prepared_step(name)
    with way("ours"):
        step()
    for route in _convolve.routes.values():
        print("seen", route.key)
    sys.stdout.flush()
    os._exit(0)  # what is being compiled is not needed


def prepared_step(name: str) -> tuple[Callable[[], None], float]:
    """A training step, and the milliseconds of one by cuDNN: everything except our kernels is loaded."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(3)
    batch, size = MODELS[name]
    step = training_step(make_model(name), torch.randn(batch, 3, size, size, device="cuda"))
    with way("cuDNN"):
        for _ in range(3):
            step()
        return step, milliseconds(step, 3)


@contextmanager
def clocked(owner: Any, name: str) -> Iterator[list[float]]:
    """Milliseconds of each call of a function while the block runs."""
    function, took = getattr(owner, name), list[float]()

    @functools.wraps(function)
    def timed(*arguments: Any) -> Any:
        begun = time.perf_counter()
        try:
            return function(*arguments)
        finally:
            took.append((time.perf_counter() - begun) * 1000)

    setattr(owner, name, timed)
    try:
        yield took
    finally:
        setattr(owner, name, function)


def started(name: str) -> None:
    """Runs in a separate process, with only general kernels in the cache."""
    step, theirs = prepared_step(name)
    with way("ours"):
        with clocked(_jit.BoundJit, "_load") as loads, clocked(_gpu, "compare") as comparisons:
            first = seconds(step) * 1000
        second = seconds(step) * 1000
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        provisional = sum(route.kernel.kernel.provisional for route in _convolve.routes.values() if route.kernel)
        early = milliseconds(graph.replay, 5)
        unhang.wait_for_kernels()
        for _ in range(2):
            step()
        warm, late = milliseconds(step, 5), milliseconds(graph_of(step), 5)
        again = milliseconds(graph.replay, 5)
    print(
        f"{name}, ms: first step {first:.1f} ({sum(loads):.1f} for {len(loads)} loads, {sum(comparisons):.1f} for"
        f" {len(comparisons)} comparisons), second {second:.1f}, warm {warm:.1f} (cuDNN {theirs:.1f}); graph recorded after two"
        f" steps {early:.1f} ({provisional} of {len(_convolve.routes)} convolutions by general kernels), the same replayed when all is"
        f" compiled {again:.1f}, graph recorded then {late:.1f}: {again / late:.2f} times",
        flush=True,
    )


def first(names: list[str]) -> int:
    from unhang_ctypes import CACHE, Engine, compile_ahead

    major, minor = torch.cuda.get_device_capability()
    engine = Engine()
    for name in names or ["resnet50"]:
        with tempfile.TemporaryDirectory() as folder:
            environment = {**os.environ, "XDG_CACHE_HOME": folder + "/other", "UNHANG_HOME": folder + "/home"}
            command = [sys.executable, __file__]
            said = subprocess.run([*command, "seen", name], env=environment, capture_output=True, text=True, check=True)
            keys = [line.split()[1] for line in said.stdout.splitlines() if line.startswith("seen ")]
            general = {
                key: next((choice for choice, _, _ in engine.candidates(key) if choice.startswith("general:")), "plain")
                for key in keys
            }
            failures = compile_ahead(list(general.items()), f"sm_{major}{minor}")
            print(f"{len(keys)} convolutions, {len(failures)} without general kernels")
            os.makedirs(folder + "/cache/unhang", mode=0o700)
            shutil.copytree(CACHE, folder + "/cache/unhang/kernels")
            environment["XDG_CACHE_HOME"] = folder + "/cache"
            subprocess.run([*command, "started", name], env=environment, check=True)
    return 0


def tuned(names: list[str]) -> int:
    torch.backends.cuda.matmul.allow_tf32 = False
    for name in names or ["resnet50", "yolov8n"]:
        batch, size = MODELS[name]
        torch.manual_seed(3)
        step = training_step(make_model(name), torch.randn(batch, 3, size, size, device="cuda"))
        graphs, ways = {}, ("cuDNN", "ours", "ours, tuned")
        for name_of_way in ways:
            with way(name_of_way):
                begun, steps, left = time.monotonic(), 0, 1
                while left and time.monotonic() - begun < 100:
                    step()
                    unhang.wait_for_kernels()
                    steps += 1
                    kernels = [route.kernel for route in _convolve.routes.values() if route.kernel]
                    left = sum(not kernel.settled for kernel in kernels) if name_of_way != "cuDNN" else 0
                took = time.monotonic() - begun
                graphs[name_of_way] = graph_of(step)
        times = replayed_in_turns(graphs, 5)
        medians = {it: statistics.median(times[it]) for it in ways}
        print(
            f"{name} b{batch}@{size}, replayed step in ms: "
            + ", ".join(f"{it} {medians[it]:.2f} ({min(times[it]):.2f}-{max(times[it]):.2f})" for it in ways)
            + f"; tuned is {medians['ours'] / medians['ours, tuned']:.3f} times as fast; {steps} steps, {took:.0f} s, "
            f"{left} convolutions not done",
            flush=True,
        )
        _convolve.routes.clear()
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["gradcheck", "models", "eager", "first", "tuned", "seen", "started"])
    parser.add_argument("names", nargs="*", choices=[*MODELS, []], help="models; all of them if none is named")
    arguments = parser.parse_args()
    if arguments.command in ("models", "first", "tuned"):
        return {"models": models, "first": first, "tuned": tuned}[arguments.command](arguments.names)
    if arguments.command in ("seen", "started"):
        {"seen": seen, "started": started}[arguments.command](arguments.names[0])
        return 0
    return {"gradcheck": gradcheck, "eager": eager}[arguments.command]()


if __name__ == "__main__":
    raise SystemExit(main())
