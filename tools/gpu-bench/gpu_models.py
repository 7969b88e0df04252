"""Whole models and torch's own checks with every convolution on our kernels, through torch's dispatcher.

    python3 tools/gpu-bench/gpu_models.py gradcheck
    python3 tools/gpu-bench/gpu_models.py models
    python3 tools/gpu-bench/gpu_models.py eager

`gradcheck` runs torch.autograd.gradcheck in double precision (our plain kernels). `models` times training steps of whole
networks, f32 with TF32 off, eager and as a replayed graph, against cuDNN with benchmark=True and cuDNN disabled. `eager`
times single calls from Python, where the host's work counts.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as functional
from torch.utils._python_dispatch import TorchDispatchMode
from unhang_ctypes import Engine, Problem, compile_ahead

NAMES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16", torch.float64: "f64"}


class Dispatcher:
    """Registers our kernels for `aten::convolution` and its backward on CUDA tensors while it is entered."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.prepared: dict[Any, tuple[int, int, list[int]]] = {}

    def run(
        self,
        direction: str,
        input: tuple[int, ...],
        weight: tuple[int, ...],
        first: torch.Tensor,
        second: torch.Tensor,
        bias: torch.Tensor | None,
        parameters: tuple[Any, ...],
    ) -> torch.Tensor:
        nhwc = first.is_contiguous(memory_format=torch.channels_last) and not first.is_contiguous()
        format = torch.channels_last if nhwc else torch.contiguous_format
        first, second = first.contiguous(memory_format=format), second.contiguous(memory_format=format)
        stride, padding, dilation, transposed, output_padding, groups = parameters
        lookup = (
            direction,
            nhwc,
            first.dtype,
            input,
            weight,
            *map(tuple, (stride, padding, dilation)),
            groups,
            transposed,
        )
        found = self.prepared.get(lookup)
        if found is None:
            channels = weight[1] * groups if transposed else weight[0]

            def times(values: Any) -> str:
                return "x".join(map(str, values))

            key = (
                f"{direction}:{NAMES[first.dtype]}:{'nhwc' if nhwc else 'nchw'}:{times(input)}:"
                f"{times((channels, *weight[2:]))}:s{times(stride)}:p{times(padding)}:d{times(dilation)}:g{groups}"
            )
            if transposed:
                key += f":t:o{times(output_padding)}"
            problem = Problem(key)
            shape = {"forward": problem.output, "backward-data": problem.input, "backward-weights": problem.weight}
            handle, workspace = self.engine.prepare(key)
            found = self.prepared[lookup] = (handle, workspace, shape[direction])
        handle, bytes_needed, shape_of_result = found
        result = torch.empty(shape_of_result, dtype=first.dtype, device=first.device, memory_format=format)
        workspace = torch.empty(bytes_needed, dtype=torch.uint8, device=first.device) if bytes_needed else None
        self.engine.launch(
            handle,
            first.data_ptr(),
            second.data_ptr(),
            bias.data_ptr() if bias is not None else 0,
            result.data_ptr(),
            workspace.data_ptr() if workspace is not None else 0,
            torch.cuda.current_stream().cuda_stream,
        )
        return result

    def forward(self, input: Any, weight: Any, bias: Any, *parameters: Any) -> torch.Tensor:
        return self.run("forward", tuple(input.shape), tuple(weight.shape), input, weight, bias, parameters)

    def backward(self, gradient: Any, input: Any, weight: Any, bias_sizes: Any, *rest: Any) -> tuple[Any, ...]:
        *parameters, mask = rest
        shapes = (tuple(input.shape), tuple(weight.shape))
        data = weights = bias = None
        if mask[0]:
            data = self.run("backward-data", *shapes, gradient, weight, None, tuple(parameters))
        if mask[1]:
            weights = self.run("backward-weights", *shapes, input, gradient, None, tuple(parameters))
        if mask[2]:
            bias = gradient.sum((0, 2, 3))
        return data, weights, bias

    @contextmanager
    def active(self) -> Iterator[None]:
        library = torch.library.Library("aten", "IMPL")
        library.impl("convolution", self.forward, "CUDA")
        library.impl("convolution_backward", self.backward, "CUDA")
        try:
            yield
        finally:
            library._destroy()


def gradcheck(dispatcher: Dispatcher) -> int:
    torch.manual_seed(2)
    checked = 0
    with dispatcher.active():
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

            def call(
                x: torch.Tensor,
                w: torch.Tensor,
                b: torch.Tensor,
                layer: Callable[..., torch.Tensor] = layer,
                options: dict[str, int] = options,
            ) -> torch.Tensor:
                return layer(x, w, b, **options)

            assert torch.autograd.gradcheck(call, (input, weight, bias))
            if not transposed:
                assert torch.autograd.gradgradcheck(call, (input, weight, bias))
            checked += 1
    print(f"gradcheck: {checked} layers right, and their second derivatives")
    return 0


def median_time(call: Callable[[], Any], rounds: int = 9) -> float:
    times = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        started = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - started) * 1000)
    return statistics.median(times)


def training_step(model: torch.nn.Module, input: torch.Tensor) -> Callable[[], None]:
    def step() -> None:
        for parameter in model.parameters():
            parameter.grad = None
        model(input).float().square().mean().backward()

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


def models(dispatcher: Dispatcher) -> int:
    import torchvision

    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    print("training step, f32, ms: model, ours eager / graph, cuDNN eager / graph, cuDNN off eager / graph")
    for name, batch, size in (
        ("resnet50", 32, 224),
        ("mobilenet_v2", 32, 224),
        ("vgg16", 16, 224),
        ("resnet18", 12, 224),
    ):
        torch.manual_seed(3)
        model = getattr(torchvision.models, name)(weights=None).cuda().train()
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        input = torch.randn(batch, 3, size, size, device="cuda")
        step = training_step(model, input)
        times, gradients = [], []
        for way in ("ours", "cudnn", "off"):
            if way == "ours":
                compile_model(dispatcher, step)
                with dispatcher.active(), torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=False):
                    step()
                    gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
                    times += [median_time(step), median_time(graph_of(step))]
            else:
                with torch.backends.cudnn.flags(enabled=way == "cudnn", benchmark=True, allow_tf32=False):
                    step()
                    gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
                    times += [median_time(step), median_time(graph_of(step))]
        away = max(((a - b).norm() / b.norm().clamp_min(1e-20)).item() for a, b in zip(gradients[0], gradients[1]))
        spread = max(((a - b).norm() / b.norm().clamp_min(1e-20)).item() for a, b in zip(gradients[2], gradients[1]))
        print(
            f"{name} b{batch}: "
            + " / ".join(f"{value:.2f}" for value in times)
            + f"; gradients away from cuDNN's by {away:.1e} at most (cuDNN off: {spread:.1e})",
            flush=True,
        )
    return 0


def compile_model(dispatcher: Dispatcher, step: Callable[[], None]) -> None:
    """Collects the problems of a step (run by torch itself), and compiles our choices for them in parallel."""
    keys: list[str] = []

    def times(values: Any) -> str:
        return "x".join(map(str, values))

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = function.overloadpacket.__name__
            if name in ("convolution", "convolution_backward"):
                offset = 0 if name == "convolution" else 1
                input, weight = args[offset], args[offset + 1]
                stride, padding, dilation, _, _, groups = args[offset + 3 : offset + 9]
                directions = ["forward"] if offset == 0 else ["backward-data", "backward-weights"]
                for direction in directions:
                    keys.append(
                        f"{direction}:f32:nchw:{times(input.shape)}:{times((weight.shape[0], *weight.shape[2:]))}:"
                        f"s{times(stride)}:p{times(padding)}:d{times(dilation)}:g{groups}"
                    )
            return function(*args, **(kwargs or {}))

    with Recorder():
        step()
    jobs = [(key, dispatcher.engine.candidates(key)[0][0]) for key in sorted(set(keys))]
    major, minor = torch.cuda.get_device_capability()
    started = time.time()
    failed = compile_ahead(jobs, f"sm_{major}{minor}")
    print(f"  compiled {len(jobs)} problems in {time.time() - started:.1f} s, {len(failed)} failed")


def eager(dispatcher: Dispatcher) -> int:
    print("one call from Python, us: layer, ours / cuDNN / cuDNN off")
    for name, channels, filters, size, kernel in (
        ("16-32@32 3x3", 16, 32, 32, 3),
        ("64-128@72 3x3", 64, 128, 72, 3),
        ("256-512@28 1x1", 256, 512, 28, 1),
    ):
        input = torch.randn(1, channels, size, size, device="cuda")
        weight = torch.randn(filters, channels, kernel, kernel, device="cuda")

        def call(input: torch.Tensor = input, weight: torch.Tensor = weight, pad: int = kernel // 2) -> None:
            for _ in range(200):
                functional.conv2d(input, weight, padding=pad)

        times = []
        with dispatcher.active():
            call()
            times.append(median_time(call) * 1000 / 200)
        for enabled in (True, False):
            with torch.backends.cudnn.flags(enabled=enabled, benchmark=True, allow_tf32=False):
                call()
                times.append(median_time(call) * 1000 / 200)
        print(f"{name}: " + " / ".join(f"{value:.1f}" for value in times))
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["gradcheck", "models", "eager"])
    arguments = parser.parse_args()
    dispatcher = Dispatcher(Engine())
    return {"gradcheck": gradcheck, "models": models, "eager": eager}[arguments.command](dispatcher)


if __name__ == "__main__":
    raise SystemExit(main())
