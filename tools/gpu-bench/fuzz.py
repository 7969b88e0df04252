"""Times convolutions drawn from whole model zoos (population.tsv) against cuDNN and against torch without it, to find
where we are slow.

    python3 tools/gpu-bench/fuzz.py [--sample N] [--layout nhwc] [--seconds S] [--losers N] [--before FILE] [--json FILE]

Times are those of `gpu_bench.py bench`: graphs of 20 calls, replayed in turns, f32 without TF32. Each drawn problem
runs with the model's choice. It ends with the geometric means and the worst 50. It also prints the shares of layers
below 0.85 and 0.5 of cuDNN and below 0.95 of torch with cuDNN off. With --losers, layers below --below of cuDNN are
timed again with that many other choices. That tells a bad choice of the model from slow kernels.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from gpu_bench import DIRECTIONS, Case, architecture, errors, geometric_mean, replay_time
from unhang_ctypes import Engine, GpuError, Problem, compile_ahead, read_tolerances

POPULATION = Path(__file__).resolve().parent / "population.tsv"
# The largest operands to draw: three sets of them fit every card that we measure on.
MOST_BYTES = 3 << 30


def draw(arguments: argparse.Namespace) -> list[tuple[str, Problem]]:
    """Random problems, all directions of each, in one order whatever the sample's size."""
    rows = [line.split("\t") for line in Path(arguments.population).read_text().splitlines()]
    random.Random(arguments.seed).shuffle(rows)
    found: list[tuple[str, Problem]] = []
    for first, _, key in rows:
        if arguments.only and not any(word in f"{first} {key}" for word in arguments.only.split(",")):
            continue
        key = key.replace(":nchw:", f":{arguments.layout}:").replace(":f32:", f":{arguments.dtype}:")
        problem = Problem(key)
        elements = sum(math.prod(shape) for shape in (problem.input, problem.weight, problem.output))
        if elements * 4 > MOST_BYTES:
            continue
        for direction in arguments.directions.split(","):
            found.append((first, Problem(key.replace("forward:", direction + ":", 1))))
        if len(found) >= arguments.sample * len(arguments.directions.split(",")):
            break
    return found


def others(engine: Engine, problem: Problem, taken: str, count: int) -> list[str]:
    """Other choices: the first of each family and tile by the model."""
    names = [
        name for name, _, _ in engine.candidates(problem.key) if not name.startswith(("half:", "general:", "plain"))
    ]
    seen, found = {":".join(taken.split(":")[:2])}, []
    for name in names:
        head = ":".join(name.split(":")[:2])
        if head not in seen and len(found) < count:
            seen.add(head)
            found.append(name)
    return found


def first_choices(engine: Engine, problems: list[tuple[str, Problem]]) -> list[tuple[str, str]]:
    """Each problem with the model's choice for it."""
    found = []
    for _, problem in problems:
        names = [name for name, _, _ in engine.candidates(problem.key) if not name.startswith(("half:", "general:"))]
        found += [(problem.key, name) for name in names[:1]]
    return found


def measure(
    engine: Engine, before: Engine | None, name: str, problem: Problem, arguments: argparse.Namespace
) -> dict[str, Any]:
    rounds = arguments.rounds
    case = Case(problem)
    expected = case.reference()
    run, result, choice = case.prepared(engine, None)
    microseconds = replay_time(run, rounds)
    l2, largest = errors(result, expected)
    del expected
    row: dict[str, Any] = {
        "first": name,
        "key": problem.key,
        "choice": choice,
        "us": microseconds,
        "l2": l2,
        "max": largest,
    }
    if before is not None:
        run, _, row["before_choice"] = case.prepared(before, None)
        row["before_us"] = replay_time(run, rounds)
    with torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=False):
        row["cudnn_us"] = replay_time(case.torch, rounds)
    row["off_us"] = math.nan
    if not arguments.skip_off:
        with torch.backends.cudnn.flags(enabled=False):
            row["off_us"] = replay_time(case.torch, rounds)
    return row


def summary(rows: list[dict[str, Any]]) -> None:
    """Prints the results, next to those of the earlier library if that was timed."""
    earlier = [{**row, "us": row["before_us"]} for row in rows if "before_us" in row]
    for title, these in (("before, ", earlier), ("", rows)):
        if these:
            print_directions(title, these)


def print_directions(title: str, rows: list[dict[str, Any]]) -> None:
    for direction in DIRECTIONS:
        of_direction = [row for row in rows if row["key"].startswith(direction + ":")]
        if not of_direction:
            continue
        ratios = [row["cudnn_us"] / row["us"] for row in of_direction]
        against_off = [row["off_us"] / row["us"] for row in of_direction]

        def share(values: list[float], bound: float) -> str:
            return f"{100 * sum(value < bound for value in values) / len(values):.1f} %"

        print(
            f"{title}{direction}: {len(ratios)} layers, {geometric_mean(ratios):.3f} of cuDNN, median {statistics.median(ratios):.2f},"
            f" below 0.85 {share(ratios, 0.85)}, below 0.5 {share(ratios, 0.5)}; off {geometric_mean(against_off):.2f},"
            f" below 0.95 {share(against_off, 0.95)}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--population", default=str(POPULATION))
    parser.add_argument("--sample", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--layout", default="nchw")
    parser.add_argument("--dtype", default="f32")
    parser.add_argument("--directions", default=",".join(DIRECTIONS))
    parser.add_argument("--only", help="words of which a model's name or a key has one")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1e9, help="draw no further problem after that long")
    parser.add_argument("--losers", type=int, default=0)
    parser.add_argument("--below", type=float, default=0.85)
    parser.add_argument("--worst", type=int, default=50)
    parser.add_argument("--before", help="a library of another state of the sources, to be timed too")
    parser.add_argument("--skip-off", action="store_true", help="do not time torch with cuDNN disabled")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    torch.manual_seed(1)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    started = time.time()
    engine = Engine()
    before = Engine(arguments.before) if arguments.before else None
    tolerance = read_tolerances()[arguments.dtype]
    problems = draw(arguments)
    jobs = first_choices(engine, problems)
    failures = compile_ahead(jobs, architecture())
    if before is not None:
        failures += compile_ahead(first_choices(before, problems), architecture(), arguments.before)
    print(f"compiled {len(jobs)} jobs in {time.time() - started:.0f} s", flush=True)
    rows: list[dict[str, Any]] = []
    for index, (name, problem) in enumerate(problems):
        if time.time() - started > arguments.seconds:
            break
        if index % 900 == 899:
            engine = Engine()
            before = Engine(arguments.before) if arguments.before else None
        try:
            row = measure(engine, before, name, problem, arguments)
        except (GpuError, RuntimeError) as error:
            failures.append(f"{problem.key}: {str(error)[:300]}")
            continue
        if row["l2"] > tolerance[0] or row["max"] > tolerance[1]:
            failures.append(f"{problem.key} {row['choice']}: wrong by {row['l2']:.2e} in L2, {row['max']:.2e} at most")
        rows.append(row)
    summary(rows)
    if arguments.losers:
        lost = [row for row in rows if row["cudnn_us"] / row["us"] < arguments.below]
        again = [
            (row, name) for row in lost for name in others(engine, Problem(row["key"]), row["choice"], arguments.losers)
        ]
        failures += compile_ahead([(row["key"], name) for row, name in again], architecture())
        for row, name in again:
            if time.time() - started > arguments.seconds + 120:
                break
            try:
                run, _, _ = Case(Problem(row["key"])).prepared(engine, name)
                row.setdefault("others", {})[name] = replay_time(run, arguments.rounds)
            except (GpuError, RuntimeError) as error:
                failures.append(str(error)[:300])
    if arguments.json:
        Path(arguments.json).write_text(
            json.dumps({"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows})
        )
    for row in sorted(rows, key=lambda row: row["cudnn_us"] / row["us"])[: arguments.worst]:
        best = min(row.get("others", {}).items(), key=lambda item: item[1], default=("", math.nan))
        print(
            f"{row['cudnn_us'] / row['us']:5.2f} {row['off_us'] / row['us']:5.2f} {row['us']:8.1f} us {row['key']} {row['choice']}"
            f"  best other {best[1]:.1f} {best[0]}"
        )
    for failure in failures[:20]:
        print("FAILED", failure[:600])
    print(f"{len(rows)} problems in {time.time() - started:.0f} s, {len(failures)} failures")
    return bool(failures)


if __name__ == "__main__":
    raise SystemExit(main())
