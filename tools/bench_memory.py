#!/usr/bin/env python3
"""Checks whether memory grows, over many calls of one convolution and over ever new sizes.

Prints the process's resident memory after each tenth, and exits with 1 if the second half took more than the limit. The
first half fills the tables that hold a bounded number of plans.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import tempfile

import torch


def resident() -> float:
    """Megabytes."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def watch(name: str, total: int, call, limit: float) -> bool:
    seen = []
    for part in range(10):
        for turn in range(total // 10):
            call(part * (total // 10) + turn)
        gc.collect()
        seen.append(resident())
    growth = seen[-1] - max(seen[4], seen[5])
    print(f"{name:32}{total:10}  MB after each tenth: {' '.join(f'{it:.0f}' for it in seen)}; last half {growth:+.1f}")
    return growth <= limit


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--sizes", type=int, default=100_000)
    parser.add_argument("--limit", type=float, default=8.0, help="megabytes that the second half may take")
    parser.add_argument("--most-routes", type=int, help="that many plans are kept, instead of what is built in")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--strategy", default="cpu_fallback")
    chosen = parser.parse_args()

    import unhang
    from unhang import _convolve

    if chosen.most_routes:
        _convolve._MOST_ROUTES = chosen.most_routes
    torch.set_num_threads(1)
    layer = torch.nn.Conv2d(1, 1, 3).to(chosen.device)
    unhang.enable(chosen.strategy, devices=(chosen.device,))
    x = torch.randn(1, 1, 8, 8, device=chosen.device)
    storage = torch.randn(1024 * 1024, device=chosen.device)

    def same(_: int) -> None:
        layer(x).sum().backward()

    def new(turn: int) -> None:
        # Each of 100,000 sizes once, large and small ones alternating.
        which = turn * 7919 % 100_000
        batch, height, width = 1 + which % 10, 3 + which // 10 % 100, 3 + which // 1000
        layer(storage[: batch * height * width].view(batch, 1, height, width))

    print(f"torch {torch.__version__}, {chosen.strategy} on {chosen.device}")
    flat = watch("one convolution, with gradients", chosen.calls, same, chosen.limit)
    return 0 if watch("ever new sizes", chosen.sizes, new, chosen.limit) and flat else 1


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as home:
        os.environ["UNHANG_HOME"] = home
        status = main()
    sys.exit(status)
