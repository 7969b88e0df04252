#!/usr/bin/env python3
"""The cost of the watchdog per call: host time of a small convolution on a GPU, through unhang with and without it.

Contenders take turns. It prints the median over rounds, and the 10th and 90th percentile of the difference.
"""

from __future__ import annotations

import os
import statistics
import time

os.environ["UNHANG_WATCHDOG"] = "1"

import torch
import torch.nn.functional as F

import unhang
from unhang import _convolve, _watchdog

CALLS, ROUNDS = 500, 60


def per_call(x: torch.Tensor, w: torch.Tensor) -> float:
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(CALLS):
        F.conv2d(x, w)
    seconds = time.perf_counter() - started
    torch.cuda.synchronize()
    return seconds / CALLS * 1e6


def main() -> None:
    x, w = torch.randn(1, 8, 16, 16, device="cuda"), torch.randn(8, 8, 3, 3, device="cuda")
    unhang.enable("aten", devices=("cuda",))
    watchdog = _watchdog._watchdog
    times: dict[str, list[float]] = {"without": [], "with": []}
    for _ in range(ROUNDS):
        for name, current in (("without", None), ("with", watchdog)):
            _watchdog._watchdog = current
            _convolve.replan()
            F.conv2d(x, w)
            times[name].append(per_call(x, w))
    _watchdog._watchdog = watchdog
    differences = sorted(after - before for before, after in zip(times["without"], times["with"]))
    tenth = len(differences) // 10
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {CALLS} calls in each of {ROUNDS} rounds")
    for name, values in times.items():
        print(f"{name:8} {statistics.median(values):6.2f} µs a call")
    print(
        f"the watchdog {statistics.median(differences):.2f} µs a call "
        f"(10th to 90th percentile {differences[tenth]:.2f} to {differences[-tenth - 1]:.2f})"
    )


if __name__ == "__main__":
    main()
