#!/usr/bin/env python3
"""The cost between a program and our GPU kernels: small convolutions and whole training steps in eager mode.

On an NVIDIA GPU, f32, TF32 off: unhang's ``jit``, and torch with cuDNN without our kernels, each in a separate process.
They take turns in every round, and the ratio is taken within rounds. It prints medians, and the 10th and 90th
percentile of the ratio (above 1: unhang is faster). ``--only NAME`` runs one of them.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F


def small() -> Callable[[], object]:
    x, w, b = torch.randn(1, 16, 32, 32), torch.randn(32, 16, 3, 3), torch.randn(32)
    x, w, b = x.cuda(), w.cuda(), b.cuda()

    def call() -> None:
        with torch.no_grad():
            for _ in range(100):
                F.conv2d(x, w, b, padding=1)

    return call


def training(make: Callable[[], torch.nn.Module], batch: int, size: int) -> Callable[[], object]:
    torch.manual_seed(0)
    model = make().cuda().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    x = torch.randn(batch, 3, size, size, device="cuda")

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        total(model(x)).backward()
        optimizer.step()

    return step


def total(output: object) -> torch.Tensor:
    if isinstance(output, torch.Tensor):
        return output.float().square().mean()
    values = output.values() if isinstance(output, dict) else output
    return sum((total(it) for it in values), torch.zeros((), device="cuda"))  # type: ignore[union-attr]


def network(name: str) -> Callable[[], torch.nn.Module]:
    def make() -> torch.nn.Module:
        import torchvision

        return getattr(torchvision.models, name)()

    return make


def yolo() -> torch.nn.Module:
    """Its layers in plain torch: ultralytics may be missing, and nothing of it is measured."""
    sys.path.insert(0, str(Path(__file__).parent / "gpu-bench"))
    from yolov8n import YoloV8n

    return YoloV8n()


CASES: dict[str, Callable[[], Callable[[], object]]] = {
    "small convolution, 100 calls": small,
    "ResNet-18 step, 2 at 64x64": lambda: training(network("resnet18"), 2, 64),
    "ResNet-18 step, 4 at 320x320": lambda: training(network("resnet18"), 4, 320),
    "YOLOv8n step, 4 at 640x640": lambda: training(yolo, 4, 640),
    "ResNet-50 step, 32 at 224x224": lambda: training(network("resnet50"), 32, 224),
}


def seconds(call: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return time.perf_counter() - began


def serve(contender: str, name: str) -> None:
    """One contender's process: a round for each line that it reads. The one of torch with cuDNN never imports
    unhang."""
    call = CASES[name]()
    if contender == "ours":
        import unhang

        unhang.enable("jit", devices=("cuda",))
        for _ in range(3):
            call()
        unhang.wait_for_kernels(600.0)
    for _ in range(4):
        call()
    print("ready", flush=True)
    for _ in sys.stdin:
        call()
        print(seconds(call), flush=True)


class Contender:
    """A process that runs a round on request."""

    def __init__(self, contender: str, name: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--serve", contender, "--only", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        if self.line() != "ready":
            raise RuntimeError(f"{contender} did not come up for {name}")

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def round(self) -> float:
        assert self.process.stdin is not None
        print(file=self.process.stdin, flush=True)
        return float(self.line())


def compare(name: str, rounds: int) -> None:
    contenders = {contender: Contender(contender, name) for contender in ("plain", "ours")}
    times: dict[str, list[float]] = {contender: [] for contender in contenders}
    for turn in range(rounds):
        for contender in ("ours", "plain") if turn % 2 else ("plain", "ours"):
            times[contender].append(contenders[contender].round())
    for contender in contenders.values():
        contender.process.communicate(timeout=60)
    ours, plain = times["ours"], times["plain"]
    ratios = sorted(b / a for a, b in zip(ours, plain))
    tenth = len(ratios) // 10
    print(
        f"{name:32}{statistics.median(plain) * 1e3:10.3f}{statistics.median(ours) * 1e3:10.3f}"
        f"{statistics.median(ratios):8.2f}   {ratios[tenth]:.2f} to {ratios[-tenth - 1]:.2f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(CASES), action="append")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--serve", choices=["ours", "plain"], help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    if chosen.serve:
        serve(chosen.serve, chosen.only[0])
        return
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}, {chosen.rounds} rounds, milliseconds")
    print(f"{'':32}{'cuDNN':>10}{'unhang':>10}{'ratio':>8}   10 % to 90 %")
    for name in chosen.only or CASES:
        compare(name, chosen.rounds)


if __name__ == "__main__":
    import os

    with tempfile.TemporaryDirectory() as home:
        os.environ["UNHANG_HOME"] = home
        main()
