"""Correctness and speed of the GPU engine on a machine with torch and an NVIDIA GPU.

    python3 tools/gpu-bench/gpu_bench.py check [--problems N] [--choices N]
    python3 tools/gpu-bench/gpu_bench.py eager [--json FILE]
    python3 tools/gpu-bench/gpu_bench.py operations [--dtype f32] [--only WORDS] [--json FILE]
    python3 tools/gpu-bench/gpu_bench.py bench [--top N] [--dtype f32] [--layout nchw] [--json FILE] [--only WORDS]

`check` compares every problem with torch in double precision, cuDNN off. `bench` times by replay of captured graphs of
20 calls on the same tensors (so L2 is warm for what fits), TF32 off. In one run it compares with cuDNN with
benchmark=True and with torch with cuDNN disabled. `operations` does both for batch normalisation, pooling and 3-d
convolutions.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import other_operations
import torch
from unhang_ctypes import Engine, GpuError, Problem, compile_ahead, read_problems, read_tolerances

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "f64": torch.float64}
DIRECTIONS = ("forward", "backward-data", "backward-weights")
CALLS = 20
# An engine loads at most 2048 kernels, so each checks that many problems.
ENGINE_PROBLEMS = 300
FAMILIES = ("winograd", "fused", "depthwise", "quads", "narrow", "direct", "half")


def architecture() -> str:
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}"


def tensor(shape: list[int], dtype: torch.dtype, nhwc: bool, fill: float | None = None) -> torch.Tensor:
    """A dense tensor in the layout: random in -1 … 1, or full of one value."""
    size = [shape[0], shape[2], shape[3], shape[1]] if nhwc else shape
    if fill is None:
        values = torch.rand(size, device="cuda", dtype=torch.float32).mul_(2).sub_(1).to(dtype)
    else:
        values = torch.full(size, fill, device="cuda", dtype=dtype)
    return values.permute(0, 3, 1, 2) if nhwc else values


class Case:
    """A problem with its tensors."""

    def __init__(self, problem: Problem, with_bias: bool = False) -> None:
        self.problem = problem
        dtype, nhwc = DTYPES[problem.dtype], problem.nhwc
        self.input = tensor(problem.input, dtype, nhwc)
        self.weight = tensor(problem.weight, dtype, nhwc)
        self.gradient = tensor(problem.output, dtype, nhwc)
        with_bias = with_bias and problem.direction == "forward"
        self.bias = torch.rand(problem.out_channels, device="cuda").to(dtype) if with_bias else None
        operands = {
            "forward": (self.input, self.weight, problem.output),
            "backward-data": (self.gradient, self.weight, problem.input),
            "backward-weights": (self.input, self.gradient, problem.weight),
        }
        self.first, self.second, self.shape = operands[problem.direction]

    def torch(self, convert: Callable[[torch.Tensor], torch.Tensor] = lambda t: t) -> torch.Tensor:
        """Torch's result."""
        problem = self.problem
        if problem.direction == "forward":
            bias = convert(self.bias) if self.bias is not None else None
            result: torch.Tensor = torch.ops.aten.convolution(
                convert(self.input), convert(self.weight), bias, *problem.arguments()
            )
            return result
        data = problem.direction == "backward-data"
        result = torch.ops.aten.convolution_backward(
            convert(self.gradient),
            convert(self.input),
            convert(self.weight),
            None,
            *problem.arguments(),
            [data, not data, False],
        )[0 if data else 1]
        return result

    def result(self) -> torch.Tensor:
        return tensor(self.shape, DTYPES[self.problem.dtype], self.problem.nhwc, math.nan)

    def prepared(self, engine: Engine, choice: str | None) -> tuple[Callable[[], None], torch.Tensor, str]:
        """A function that runs our kernel, its result, and the choice."""
        handle, bytes_needed = engine.prepare(self.problem.key, choice)
        workspace = torch.empty(max(bytes_needed, 1), dtype=torch.uint8, device="cuda")
        result = self.result()
        bias = self.bias.data_ptr() if self.bias is not None else 0

        def run() -> None:
            stream = torch.cuda.current_stream().cuda_stream
            engine.launch(
                handle,
                self.first.data_ptr(),
                self.second.data_ptr(),
                bias,
                result.data_ptr(),
                workspace.data_ptr(),
                stream,
            )

        return run, result, engine.choice(handle)

    def reference(self) -> torch.Tensor:
        with torch.backends.cudnn.flags(enabled=False):
            return self.torch(lambda t: t.double().contiguous())


def errors(result: torch.Tensor, expected: torch.Tensor) -> tuple[float, float]:
    """L2 and largest error, relative; infinite if a number is not finite."""
    got = result.double()
    if not torch.isfinite(got).all():
        return math.inf, math.inf
    difference = got - expected
    scale = max(expected.abs().max().item(), 1e-300)
    norm = max(expected.norm().item(), 1e-300)
    return difference.norm().item() / norm, difference.abs().max().item() / scale


def check(arguments: argparse.Namespace) -> int:
    engine = Engine()
    tolerances = read_tolerances()
    chosen = random.Random(1)
    problems = [problem for _, problem in read_problems("random")]
    chosen.shuffle(problems)
    problems = problems[: arguments.problems]
    work: list[tuple[Problem, list[str]]] = []
    declined = 0
    for problem in problems:
        try:
            names = [name for name, _, _ in engine.candidates(problem.key)]
        except GpuError:
            declined += 1
            continue
        # Choices that are never used unasked are covered below, as one of the families.
        fast = [name for name in names if name != "plain" and not name.startswith(("half:", "general:"))]
        picked = fast[:1] + chosen.sample(fast[1:], min(len(fast) - 1, arguments.choices - 1)) if fast else []
        # Each family is covered: Winograd and depthwise would otherwise be lost among the tiles.
        for family in FAMILIES:
            picked += [name for name in names if name.split(":")[0] == family][:1]
        general: dict[str, list[str]] = {}
        for name in names:
            if name.startswith("general:"):
                general.setdefault(name.split(":")[1], []).append(name)
        for ways in general.values():
            picked += chosen.sample(ways, min(len(ways), arguments.general))
        work.append((problem, sorted({*picked, "plain"})))
    jobs = [(problem.key, choice) for problem, choices in work for choice in choices]
    started = time.time()
    failures = compile_ahead(jobs, architecture())
    print(f"compiled {len(jobs)} jobs in {time.time() - started:.1f} s, {len(failures)} failed")
    worst: dict[tuple[str, str], float] = {}
    counts: dict[str, int] = {}
    for seed, (problem, choices) in enumerate(work):
        if seed % ENGINE_PROBLEMS == ENGINE_PROBLEMS - 1:
            engine = Engine()
        case = Case(problem, with_bias=seed % 2 == 1)
        expected = case.reference()
        for choice in choices:
            try:
                run, result, _ = case.prepared(engine, choice)
                run()
                torch.cuda.synchronize()
            except GpuError as error:
                failures.append(str(error))
                continue
            l2, largest = errors(result, expected)
            family = ":".join(choice.split(":")[:2]) if choice.startswith("general:") else choice.split(":")[0]
            allowed = tolerances["bf16" if family == "half" else problem.dtype]
            worst[family, problem.dtype] = max(worst.get((family, problem.dtype), 0.0), l2 / allowed[0])
            counts[f"{family} {problem.direction} {problem.dtype}"] = (
                counts.get(f"{family} {problem.direction} {problem.dtype}", 0) + 1
            )
            if l2 > allowed[0] or largest > allowed[1]:
                failures.append(f"{problem.key} {choice}: wrong by {l2:.2e} in L2, {largest:.2e} at most")
    print(f"{len(work)} problems, {sum(counts.values())} runs, {declined} declined, {time.time() - started:.1f} s")
    print("  ".join(f"{name}:{count}" for name, count in sorted(counts.items())))
    print("largest L2 error over what is allowed:", {" ".join(k): round(v, 3) for k, v in sorted(worst.items())})
    for failure in failures[:25]:
        print("FAILED", failure[:1500])
    print("check:", "ok" if not failures else f"{len(failures)} failures")
    return bool(failures)


def replay_time(call: Callable[[], Any], rounds: int = 7) -> float:
    """Microseconds of one call, by replaying a graph of CALLS of them; the median of several replays."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            call()
    graph.replay()
    torch.cuda.synchronize()
    times = []
    for _ in range(rounds):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1000 / CALLS)
    return statistics.median(times)


def rotate(calls: list[Callable[[], Any]]) -> Callable[[], Any]:
    """Calls one of several functions at a time, in turn."""
    turns = itertools.cycle(calls)
    return lambda: next(turns)()


def copies_of(problem: Problem, cold: bool) -> int:
    """The number of tensor sets that calls use in turn; with --cold, as many as evict each other from the last
    cache."""
    if not cold:
        return 1
    elements = sum(math.prod(shape) for shape in (problem.input, problem.weight, problem.output))
    cache = torch.cuda.get_device_properties(0).L2_cache_size
    return min(CALLS, math.ceil(3 * cache / (elements * DTYPES[problem.dtype].itemsize)))


def geometric_mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def bench(arguments: argparse.Namespace) -> int:
    engine = Engine()
    layers: list[tuple[str, Problem]] = []
    for name, problem in read_problems(arguments.table):
        if arguments.only and not any(word in name for word in arguments.only.split(",")):
            continue
        if problem.direction not in arguments.directions.split(","):
            continue
        key = problem.key.replace(":f32:", f":{arguments.dtype}:").replace(":nchw:", f":{arguments.layout}:")
        layers.append((name, Problem(key)))
    picks: dict[str, list[tuple[str, float]]] = {}
    for _, problem in layers:
        found = [(name, seconds) for name, seconds, _ in engine.candidates(problem.key) if name != "plain"]
        asked = [(name, seconds) for name, seconds in found if name.startswith("half:")]
        general = [(name, seconds) for name, seconds in found if name.startswith("general:")]
        found = [(name, seconds) for name, seconds in found if not name.startswith(("half:", "general:"))]
        taken = found[: arguments.top]
        # The best of each family and tile, so that a wrong model is noticed.
        seen = {":".join(name.split(":")[:2]) for name, _ in taken}
        for name, seconds in found if arguments.top > 1 else []:
            head = ":".join(name.split(":")[:2])
            if head not in seen and len(taken) < arguments.top * 2:
                seen.add(head)
                taken.append((name, seconds))
        for family in FAMILIES if arguments.top > 1 else ():
            of_family = [item for item in found if item[0].split(":")[0] == family]
            taken += [item for item in of_family[: arguments.each] if item not in taken]
        taken += asked[: arguments.half] + general[: arguments.general]
        picks[problem.key] = taken
    started = time.time()
    jobs = [(key, choice) for key, taken in picks.items() for choice, _ in taken]
    failures = compile_ahead(jobs, architecture())
    print(f"compiled {len(jobs)} jobs in {time.time() - started:.1f} s", flush=True)
    rows = []
    tolerance, half_tolerance = read_tolerances()[arguments.dtype], read_tolerances()["bf16"]
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    for name, problem in layers:
        cases = [Case(problem) for _ in range(copies_of(problem, arguments.cold))]
        case = cases[0]
        row: dict[str, Any] = {"layer": name, "key": problem.key, "flops": problem.flops, "ours": {}}
        expected = case.reference()
        for choice, seconds in picks[problem.key]:
            try:
                runs = [it.prepared(engine, choice) for it in cases]
                _, result, taken = runs[0]
                microseconds = replay_time(rotate([run for run, _, _ in runs]), arguments.rounds)
                del runs
            except (GpuError, torch.OutOfMemoryError) as error:
                failures.append(str(error))
                continue
            l2, largest = errors(result, expected)
            allowed = half_tolerance if choice.startswith("half:") else tolerance
            if l2 > allowed[0] or largest > allowed[1]:
                failures.append(f"{problem.key} {choice}: wrong by {l2:.2e} in L2, {largest:.2e} at most")
            row["ours"][taken] = {"us": microseconds, "model_us": seconds * 1e6, "l2": l2, "max": largest}
        del expected
        torch.backends.cudnn.benchmark = True
        with torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=False):
            row["cudnn_us"] = replay_time(rotate([it.torch for it in cases]), arguments.rounds)
        row["off_us"] = math.nan
        if not arguments.skip_off:
            with torch.backends.cudnn.flags(enabled=False):
                row["off_us"] = replay_time(rotate([it.torch for it in cases]), arguments.rounds)
        rows.append(row)
    if arguments.json:
        with open(arguments.json, "w") as file:
            known = [{name: None if it != it else it for name, it in row.items()} for row in rows]
            json.dump({"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": known}, file)
    print(f"all in {time.time() - started:.1f} s")
    for direction in DIRECTIONS:
        print(f"{direction}: layer, ours first by model / best measured / cuDNN / off (us), TFLOP/s, ratio, best")
        ratios: dict[str, list[float]] = {"first": [], "best": [], "off": [], "general": [], "general/first": []}
        for row in rows:
            if not row["key"].startswith(direction + ":") or not row["ours"]:
                continue
            first = next(iter(row["ours"].values()))["us"]
            unasked = [item for item in row["ours"].items() if not item[0].startswith(("half:", "general:"))]
            general = next((it["us"] for name, it in row["ours"].items() if name.startswith("general:")), math.nan)
            if general == general:
                ratios["general"].append(row["cudnn_us"] / general)
                ratios["general/first"].append(first / general)
            best_name, best = min(unasked, key=lambda item: item[1]["us"])
            ratios["first"].append(row["cudnn_us"] / first)
            ratios["best"].append(row["cudnn_us"] / best["us"])
            ratios["off"].append(row["off_us"] / best["us"])
            if arguments.quiet:
                continue
            print(
                f"{row['layer']:20s} {first:8.1f} {best['us']:8.1f} {row['cudnn_us']:8.1f} {row['off_us']:8.1f}"
                f" {row['flops'] / best['us'] / 1e6:6.1f} {row['cudnn_us'] / best['us']:5.2f} {best_name}"
                f"  general {general:8.1f} {first / general:5.2f}"
            )
        if not ratios["first"]:
            continue
        print(
            f"  geometric mean against cuDNN: model's first {geometric_mean(ratios['first']):.3f}, best"
            f" {geometric_mean(ratios['best']):.3f}; best against cuDNN off {geometric_mean(ratios['off']):.3f};"
            f" general {geometric_mean(ratios['general']):.3f}, of the model's first"
            f" {geometric_mean(ratios['general/first']):.3f} ({len(ratios['general'])} layers)"
        )
    for failure in failures[:20]:
        print("FAILED", failure[:1000])
    return bool(failures)


def eager_time(call: Callable[[], Any], calls: int = 200) -> float:
    """Microseconds of one call, one after the other without waiting, host and device together."""
    for _ in range(20):
        call()
    times = []
    for _ in range(5):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) / calls * 1e6)
    return statistics.median(times)


def eager(arguments: argparse.Namespace) -> int:
    """Single calls, as in a program without graphs: small layers show the host's work."""
    engine = Engine()
    layers = [(name, problem) for name, problem in read_problems("layer") if problem.direction == "forward"]
    jobs = [(problem.key, engine.candidates(problem.key)[0][0]) for _, problem in layers]
    failures = compile_ahead(jobs, architecture())
    rows = []
    for (name, problem), (_, choice) in zip(layers, jobs):
        case = Case(problem)
        run, _, _ = case.prepared(engine, choice)
        row: dict[str, Any] = {"layer": name, "ours_us": eager_time(run)}
        with torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=False):
            row["cudnn_us"] = eager_time(case.torch)
        with torch.backends.cudnn.flags(enabled=False):
            row["off_us"] = eager_time(case.torch)
        rows.append(row)
        print(f"{name:20s} {row['ours_us']:8.1f} {row['cudnn_us']:8.1f} {row['off_us']:8.1f}")
    if arguments.json:
        with open(arguments.json, "w") as file:
            known = [{name: None if it != it else it for name, it in row.items()} for row in rows]
            json.dump({"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": known}, file)
    for failure in failures[:20]:
        print("FAILED", failure[:1000])
    return bool(failures)


def operations(arguments: argparse.Namespace) -> int:
    """Operations other than 2-d convolutions: compared with torch in double precision, and timed against torch."""
    torch.backends.cuda.matmul.allow_tf32 = False
    engine, rows, failures = Engine(), [], []
    print("operation, ours / torch (us), torch over ours, GB/s of what has to move, error over what is allowed")
    for case in other_operations.cases(engine, DTYPES[arguments.dtype], arguments.dtype):
        if arguments.only and not any(word in case.name for word in arguments.only.split(",")):
            continue
        try:
            with torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=False):
                ours, theirs = case.prepare()
                ours()
                theirs()
                torch.cuda.synchronize()
                share = case.error(read_tolerances()[arguments.dtype])
                us, torch_us = replay_time(ours, arguments.rounds), replay_time(theirs, arguments.rounds)
        except GpuError as error:
            failures.append(f"{case.name}: {error}")
            continue
        row = {"operation": case.name, "us": us, "torch_us": torch_us, "error": share, "gbps": case.bytes / us / 1e3}
        rows.append(row)
        print(
            f"{case.name:44s} {us:9.1f} {torch_us:9.1f} {torch_us / us:6.2f} {row['gbps']:7.0f} {share:7.3f}",
            flush=True,
        )
        if not share <= 1:
            failures.append(f"{case.name}: wrong, {share:.3g} of what is allowed")
        case.forget()
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump({"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}, file)
    print("\n| operation | cases | geometric mean of torch over ours | lowest | most of 4.3 TB/s |")
    print("|---|---|---|---|---|")
    for kind in dict.fromkeys(row["operation"].split(",")[0] for row in rows):
        these = [row for row in rows if row["operation"].split(",")[0] == kind]
        ratios = [row["torch_us"] / row["us"] for row in these]
        most = max(row["gbps"] for row in these) / 4300
        print(f"| {kind} | {len(these)} | {geometric_mean(ratios):.2f} | {min(ratios):.2f} | {most:.0%} |")
    for failure in failures[:20]:
        print("FAILED", failure[:1000])
    print("operations:", "ok" if not failures else f"{len(failures)} failures")
    return bool(failures)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    checking = commands.add_parser("check")
    checking.add_argument("--problems", type=int, default=600)
    checking.add_argument("--choices", type=int, default=2)
    checking.add_argument("--general", type=int, default=1, help="how many general choices of each family to check")
    benching = commands.add_parser("bench")
    benching.add_argument("--top", type=int, default=6)
    benching.add_argument("--dtype", default="f32")
    benching.add_argument("--layout", default="nchw")
    benching.add_argument("--rounds", type=int, default=7)
    benching.add_argument("--only")
    benching.add_argument("--general", type=int, default=1, help="how many choices with general kernels to time")
    benching.add_argument("--table", default="layer", help="layer (layers.tsv), more (more_layers.tsv) or other")
    benching.add_argument("--half", type=int, default=0, help="how many choices with packed f16 to time")
    benching.add_argument("--each", type=int, default=2, help="how many choices of each small family to time")
    benching.add_argument("--directions", default=",".join(DIRECTIONS))
    benching.add_argument(
        "--cold", action="store_true", help="let the calls take turns on tensors that do not fit L2 together"
    )
    benching.add_argument("--skip-off", action="store_true", help="do not time torch with cuDNN disabled")
    benching.add_argument("--quiet", action="store_true", help="print the means only")
    benching.add_argument("--json")
    eagerly = commands.add_parser("eager")
    eagerly.add_argument("--json")
    operating = commands.add_parser("operations")
    operating.add_argument("--dtype", default="f32")
    operating.add_argument("--rounds", type=int, default=7)
    operating.add_argument("--only")
    operating.add_argument("--json")
    arguments = parser.parse_args()
    torch.manual_seed(1)
    return {"check": check, "bench": bench, "eager": eager, "operations": operations}[arguments.command](arguments)


if __name__ == "__main__":
    raise SystemExit(main())
