"""Times the CPU engine against torch on the same cores, in turns, in one process.

Every round times each contender once, in an order that turns by one each round. A ratio is the median over rounds of
torch's time by ours within the same round; its spread is the 10th and 90th percentile. Outputs are allocated inside
of the timed call on both sides, as they are in use.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Callable, NamedTuple

import torch

ROOT = Path(__file__).resolve().parents[2]
DIRECTIONS = ("forward", "backward-data", "backward-weights")
LAYOUTS = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}


class Layer(NamedTuple):
    """One line of the layer table."""

    name: str
    n: int
    c: int
    h: int
    w: int
    k: int
    r: int
    s: int
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int

    def key(self, direction: str, layout: str) -> str:
        """The problem's key, as the engine reads it."""
        sizes = f"{self.n}x{self.c}x{self.h}x{self.w}:{self.k}x{self.r}x{self.s}"
        (sh, sw), (ph, pw), (dh, dw) = self.stride, self.padding, self.dilation
        return f"{direction}:f32:{layout}:{sizes}:s{sh}x{sw}:p{ph}x{pw}:d{dh}x{dw}:g{self.groups}"

    def flops(self) -> float:
        """Floating-point operations of the direct computation."""
        spans = [d * (t - 1) + 1 for d, t in zip(self.dilation, (self.r, self.s))]
        out = [
            (size + 2 * pad - span) // stride + 1
            for size, pad, span, stride in zip((self.h, self.w), self.padding, spans, self.stride)
        ]
        return 2.0 * self.n * self.k * out[0] * out[1] * self.c / self.groups * self.r * self.s


def layers(batch: int | None) -> list[Layer]:
    """The layer table, with the batch as given there or with another."""
    result = []
    for line in (ROOT / "crates/unhang-suite/layers.tsv").read_text().splitlines():
        words = line.split()
        if not words or line.startswith("#"):
            continue
        n = [int(word) for word in words[1:]]
        n[0] = batch or n[0]
        result.append(Layer(words[0], *n[:7], (n[7], n[8]), (n[9], n[10]), (n[11], n[12]), n[13]))
    return result


def load_engine(path: Path) -> ctypes.CDLL:
    """The engine's library, with its C functions declared."""
    engine = ctypes.CDLL(str(path))
    engine.unhang_problem.restype = ctypes.c_void_p
    engine.unhang_problem.argtypes = [ctypes.c_char_p]
    engine.unhang_run.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_size_t]
    return engine


def build_engine() -> Path:
    """Builds the engine's library, in a folder of its own, and says where it is."""
    here = Path(__file__).resolve().parent
    target = ROOT / "target" / "bench-cpu"
    command = ["cargo", "build", "--release", "--manifest-path", here / "Cargo.toml", "--target-dir", target]
    subprocess.run(command, check=True)
    return target / "release" / "libunhang_bench_cpu.so"


def contenders(
    engine: ctypes.CDLL, layer: Layer, direction: str, layout: str, threads: int
) -> tuple[Callable[[], torch.Tensor], Callable[[], torch.Tensor]]:
    """Ours and torch's: each computes the layer once and returns the result."""
    memory = LAYOUTS[layout]
    torch.manual_seed(0)
    x = torch.randn(layer.n, layer.c, layer.h, layer.w).to(memory_format=memory)
    w = torch.randn(layer.k, layer.c // layer.groups, layer.r, layer.s).to(memory_format=memory)
    settings = (layer.stride, layer.padding, layer.dilation)

    def forward() -> torch.Tensor:
        return torch.nn.functional.conv2d(x, w, None, *settings, layer.groups)

    y = torch.randn(forward().shape).to(memory_format=memory)

    def backward(mask: list[bool]) -> Callable[[], torch.Tensor]:
        arguments = (*map(list, settings), False, [0, 0], layer.groups, mask)
        place = mask.index(True)
        return lambda: torch.ops.aten.convolution_backward(y, x, w, None, *arguments)[place]

    if direction == "forward":
        theirs, operands, like = forward, (x, w), y
    elif direction == "backward-data":
        theirs, operands, like = backward([True, False, False]), (y, w), x
    else:
        theirs, operands, like = backward([False, True, False]), (x, y), w
    problem = engine.unhang_problem(layer.key(direction, layout).encode())
    if not problem:
        sys.exit(f"not a problem: {layer.key(direction, layout)}")

    def ours() -> torch.Tensor:
        result = torch.empty_like(like, memory_format=torch.preserve_format)
        code = engine.unhang_run(problem, operands[0].data_ptr(), operands[1].data_ptr(), result.data_ptr(), threads)
        if code:
            sys.exit(f"the engine failed on {layer.key(direction, layout)}")
        return result

    return ours, theirs


def measure(
    calls: list[Callable[[], torch.Tensor]], rounds: int, at_least: float, clock: Callable[[], float]
) -> list[list[float]]:
    """Seconds of one call for each contender and round."""
    times: list[list[float]] = [[] for _ in calls]
    for call in calls:
        call()
    for round_ in range(rounds):
        for turn in range(len(calls)):
            index = (round_ + turn) % len(calls)
            count, started = 0, clock()
            while count == 0 or clock() - started < at_least:
                calls[index]()
                count += 1
            times[index].append((clock() - started) / count)
    return times


def geometric_mean(values: list[float]) -> float:
    """What ratios are averaged with."""
    return math.exp(statistics.fmean(math.log(value) for value in values))


def main() -> None:
    """Measures and prints a table; with --json also writes every figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=Path, help="libunhang_bench_cpu.so; built if not given")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch", type=int, help="instead of the table's")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--at-least", type=float, default=0.02, help="seconds of each timing")
    parser.add_argument("--layers", default="", help="only layers whose name contains one of these, comma-separated")
    parser.add_argument("--directions", default=",".join(DIRECTIONS))
    parser.add_argument("--layouts", default="nchw,nhwc")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall", help="cpu: this thread's own time")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.clock == "cpu" and arguments.threads != 1:
        parser.error("--clock cpu counts the calling thread only: use it with --threads 1")
    clock = time.thread_time if arguments.clock == "cpu" else time.perf_counter
    torch.set_num_threads(arguments.threads)
    print(f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}, clock: {arguments.clock}")
    engine = load_engine(arguments.library or build_engine())
    wanted = arguments.layers.split(",")
    chosen = [layer for layer in layers(arguments.batch) if any(word in layer.name for word in wanted)]
    records = []
    with torch.no_grad():
        for direction in arguments.directions.split(","):
            for layout in arguments.layouts.split(","):
                rows = []
                print(
                    f"\n{direction}, {layout}, {arguments.threads} thread(s), batch {arguments.batch or 'of the table'}"
                )
                print(f"{'layer':22}{'ours ms':>10}{'torch ms':>10}{'GFLOP/s':>9}{'ratio':>7}  10 %–90 %")
                for layer in chosen:
                    ours, theirs = contenders(engine, layer, direction, layout, arguments.threads)
                    a, b = ours(), theirs()
                    error = ((a - b).abs().max() / b.abs().max()).item()
                    if not error < 3e-5:
                        sys.exit(f"{layer.key(direction, layout)}: ours differs from torch's by {error:.1e}")
                    own, other = measure([ours, theirs], arguments.rounds, arguments.at_least, clock)
                    ratios = sorted(t / o for o, t in zip(own, other))
                    low, high = (ratios[round(q * (len(ratios) - 1))] for q in (0.1, 0.9))
                    ratio, mine = statistics.median(ratios), statistics.median(own)
                    rows.append(ratio)
                    print(
                        f"{layer.name:22}{mine * 1e3:10.3f}{statistics.median(other) * 1e3:10.3f}"
                        f"{layer.flops() / mine / 1e9:9.1f}{ratio:7.2f}  {low:.2f}–{high:.2f}",
                        flush=True,
                    )
                    records.append(
                        {
                            "layer": layer.name,
                            "direction": direction,
                            "layout": layout,
                            "batch": layer.n,
                            "threads": arguments.threads,
                            "ours_s": own,
                            "torch_s": other,
                            "ratio": ratio,
                            "low": low,
                            "high": high,
                        }
                    )
                print(f"{'geometric mean':51}{geometric_mean(rows):7.2f}  least {min(rows):.2f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(records))


if __name__ == "__main__":
    main()
