#!/usr/bin/env python3
"""The cost of a call through unhang over plain torch, on a tiny convolution.

Times are processor times on one thread (the wall clock would also count other programs on a busy machine). Contenders
take turns within each round. It prints medians over rounds, and the 10th and 90th percentile of the difference. Plain
torch is measured in a separate process that never imports unhang: once registered, our kernels stay, and "off" is a
contender too.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import torch.nn.functional as F

ROUNDS, CALLS = 60, 400


def one_round(call) -> float:
    started = time.process_time()
    for _ in range(CALLS):
        call()
    return (time.process_time() - started) / CALLS * 1e6


def convolution():
    torch.set_num_threads(1)
    x, w, b = torch.randn(1, 1, 4, 4), torch.randn(1, 1, 3, 3), torch.randn(1)

    def call() -> torch.Tensor:
        return F.conv2d(x, w, b)

    for _ in range(20):
        call()
    return call


def serve_plain() -> None:
    """The process of plain torch: a round for each line that it reads."""
    call = convolution()
    with torch.no_grad():
        for _ in sys.stdin:
            print(one_round(call), flush=True)


def main() -> None:
    import unhang

    call = convolution()
    plain = subprocess.Popen(
        [sys.executable, __file__, "--plain"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )

    def without() -> float:
        assert plain.stdin is not None
        assert plain.stdout is not None
        print(file=plain.stdin, flush=True)
        return float(plain.stdout.readline())

    def within(strategy: str) -> float:
        with unhang.enabled(strategy, devices=("cpu",)):
            for _ in range(20):
                call()
            return one_round(call)

    contenders = {
        "plain torch": without,
        "after disable()": lambda: one_round(call),
        "enable('auto')": lambda: within("auto"),
        "enable('cpu_fallback')": lambda: within("cpu_fallback"),
    }
    within("auto")  # registers
    times: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    with torch.no_grad():
        for turn in range(ROUNDS):
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                times[name].append(contenders[name]())
    plain.communicate()
    print(f"torch {torch.__version__}, {ROUNDS} rounds of {CALLS} calls, microseconds a call")
    print(f"{'':24}{'median':>8}{'over plain':>12}{'10 % to 90 %':>16}")
    for name, values in times.items():
        over = sorted(a - b for a, b in zip(values, times["plain torch"]))
        tenth = len(over) // 10
        spread = f"{over[tenth]:.1f} to {over[-tenth - 1]:.1f}"
        print(f"{name:24}{statistics.median(values):8.2f}{statistics.median(over):12.2f}{spread:>16}")


if __name__ == "__main__":
    if "--plain" in sys.argv:
        serve_plain()
    else:
        with tempfile.TemporaryDirectory() as home:
            os.environ["UNHANG_HOME"] = home
            main()
