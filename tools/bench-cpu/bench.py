"""Times the CPU engine against torch and other engines on the same cores, in turns, in one process per setting.

Every round times each contender once, and the order rotates by one each round. A ratio is the other's time divided by
ours within the same round. Its value is the median over rounds, and its spread the 10th and 90th percentile; above 1 we
are faster. With one thread, the processor time of the process counts, which leaves out waiting for a core; with more,
the wall clock.

Without a choice of settings everything is measured: batch as in the table and 1, one and two threads, and the machine's
best instructions and AVX2 forced on both sides. Forward is also measured against onnxruntime, tract, rten and candle.

    python tools/bench-cpu/bench.py --setup --markdown build/bench-cpu.md     everything (an hour on two quiet cores)
    python tools/bench-cpu/bench.py --quick --markdown build/bench-cpu.md     a selection of layers (minutes)
    python tools/bench-cpu/bench.py --batch 1 --threads 1 --isa best          one setting, all layers
    python tools/bench-cpu/bench.py --table more --against torch              the second table of layers
    python tools/bench-cpu/bench.py --table population --sample 300 --against torch --threads 1 --isa best
                                                                             layers drawn from whole model zoos; closes with
                                                                             the shares of slow ones and the worst 50
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable

HERE = Path(__file__).resolve().parent
#: Limits both sides to AVX2. Torch computes some 1x1 convolutions by MKL, which has a separate variable.
AVX2 = {
    "UNHANG_CPU_ISA": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
}


def measure(
    calls: list[Callable[[], Any]], rounds: int, at_least: float, clock: Callable[[], float]
) -> list[list[float]]:
    """Seconds of one call, per contender and round."""
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


def ratio(ours: list[float], other: list[float]) -> list[float]:
    """Median, 10th and 90th percentile of the other's times divided by ours, round by round."""
    ratios = sorted(t / o for o, t in zip(ours, other))
    return [statistics.median(ratios), *(ratios[round(q * (len(ratios) - 1))] for q in (0.1, 0.9))]


def run_setting(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Measures one setting and returns a record for each layer, direction and layout."""
    for name in ("RTEN_NUM_THREADS", "RAYON_NUM_THREADS"):
        os.environ[name] = str(arguments.threads)
    sys.path.append(str(arguments.packages))
    import torch
    from contenders import load_engine, load_others, others, ours_and_torch
    from layers import QUICK, layers

    torch.set_num_threads(arguments.threads)
    clock = time.process_time if arguments.threads == 1 else time.perf_counter
    engine = load_engine(arguments.library)
    library = load_others(arguments.others) if arguments.others and arguments.others.exists() else None
    wanted = arguments.layers.split(",") if arguments.layers else QUICK if arguments.quick else [""]
    chosen = [
        layer
        for layer in layers(arguments.table, arguments.batch, arguments.sample, arguments.seed)
        if any(word in layer.name for word in wanted)
    ]
    records = []
    torch.set_grad_enabled(False)
    for layer in chosen:
        for direction in arguments.directions.split(","):
            for layout in arguments.layouts.split(","):
                ours, theirs = ours_and_torch(engine, layer, direction, layout, arguments.threads)
                calls = {"torch": theirs}
                if arguments.against == "others":
                    calls.update(others(library, layer, arguments.threads))
                mine = ours()
                for name, call in calls.items():
                    error = ((mine - call()).abs().max() / mine.abs().max()).item()
                    # torch's own sums over a million pixels are off by 3e-5, ours by 1e-6 (against double precision).
                    if not error < 1e-4:
                        sys.exit(f"{layer.key(direction, layout)}: ours differs from {name}'s by {error:.1e}")
                peak = engine.unhang_peak(3)
                times = measure([ours, *calls.values()], arguments.rounds, arguments.at_least, clock)
                peak = max(peak, engine.unhang_peak(3))
                seconds = statistics.median(times[0])
                record = {
                    "layer": layer.name,
                    "dense_3x3": layer.is_dense_3x3,
                    "direction": direction,
                    "layout": layout,
                    "milliseconds": seconds * 1e3,
                    "gflops": layer.flops() / seconds / 1e9,
                    "peak": peak,
                    "ratios": {name: ratio(times[0], other) for name, other in zip(calls, times[1:])},
                }
                records.append(record)
                shown = "  ".join(f"{n} {r[0]:.2f} ({r[1]:.2f}–{r[2]:.2f})" for n, r in record["ratios"].items())
                print(
                    f"{layer.name:20} {direction:16} {layout} {seconds * 1e3:9.3f} ms {record['gflops']:7.1f} GFLOP/s  {shown}",
                    file=sys.stderr,
                    flush=True,
                )
    return records


def settings(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """The settings of a whole run, each of which is a separate process."""
    batches = [arguments.batch] if arguments.batch else [None, 1]
    threads = [arguments.threads] if arguments.threads else [1, 2]
    isas = [arguments.isa] if arguments.isa else ["best", "avx2"]
    wanted = []
    for isa in isas:
        for count in threads:
            wanted += [{"batch": b, "threads": count, "isa": isa, "against": "torch"} for b in batches]
    if arguments.against == "others":
        wanted += [{"batch": 1, "threads": count, "isa": isas[0], "against": "others"} for count in threads]
    return wanted


def run_all(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Runs every setting in a separate process."""
    from contenders import build

    library = arguments.library or build(HERE / "Cargo.toml", "unhang_bench_cpu")
    if arguments.setup:
        packages = ["-m", "pip", "install", "--quiet", "--upgrade", "--disable-pip-version-check"]
        requirements = ["--target", str(arguments.packages), "-r", str(HERE / "requirements.txt")]
        try:
            subprocess.run([sys.executable, *packages, *requirements], check=True)
            arguments.others = build(HERE / "contenders" / "Cargo.toml", "unhang_bench_contenders")
        except subprocess.CalledProcessError as error:
            print(f"some of the other engines are not measured: {error}", file=sys.stderr)
    runs = []
    for setting in settings(arguments):
        print(f"\n== {setting}", file=sys.stderr)
        command = [sys.executable, str(Path(__file__)), "--one", "--library", str(library)]
        for name in ("rounds", "at_least", "table", "sample", "seed", "layers", "packages"):
            command += [f"--{name.replace('_', '-')}", str(getattr(arguments, name))]
        command += ["--quick"] if arguments.quick else []
        command += ["--others", str(arguments.others)] if arguments.others else []
        command += ["--threads", str(setting["threads"]), "--against", setting["against"]]
        command += ["--batch", str(setting["batch"])] if setting["batch"] else []
        only = ("forward", "nchw") if setting["against"] == "others" else (arguments.directions, arguments.layouts)
        command += ["--directions", only[0], "--layouts", only[1]]
        environment = {**os.environ, **(AVX2 if setting["isa"] == "avx2" else {})}
        ended = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
        load = os.getloadavg()
        runs.append({**setting, "table": arguments.table, "load": load[0], "records": json.loads(ended.stdout)})
        if arguments.json:
            arguments.json.write_text(json.dumps(runs))
    return runs


def main() -> None:
    """Measures, prints Markdown tables; with --json also writes every figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a selection of layers")
    parser.add_argument("--setup", action="store_true", help="install and build the other engines first")
    parser.add_argument("--threads", type=int, help="only this many")
    parser.add_argument("--batch", type=int, help="only this batch, instead of the table's and 1")
    parser.add_argument("--isa", choices=["best", "avx2"], help="only these instructions")
    parser.add_argument("--against", choices=["torch", "others"], default="others", help="torch: no other engines")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--at-least", type=float, default=0.02, help="seconds of each timing")
    parser.add_argument(
        "--table", choices=["layers", "more", "other", "population"], default="layers", help="which table of layers"
    )
    parser.add_argument("--sample", type=int, default=300, help="how many layers of the population")
    parser.add_argument("--seed", type=int, default=1, help="which of them")
    parser.add_argument("--layers", default="", help="only layers whose name contains one of these, comma-separated")
    parser.add_argument("--directions", default="forward,backward-data,backward-weights")
    parser.add_argument("--layouts", default="nchw,nhwc")
    parser.add_argument("--library", type=Path, help="libunhang_bench_cpu.so; built if not given")
    parser.add_argument("--others", type=Path, help="libunhang_bench_contenders.so; --setup builds it")
    parser.add_argument("--packages", type=Path, default=HERE.parents[1] / "build" / "bench-python")
    parser.add_argument("--json", type=Path, help="write every figure there")
    parser.add_argument("--markdown", type=Path, help="write the tables there instead of to standard output")
    parser.add_argument("--from-json", type=Path, help="measure nothing: make the tables of an earlier run's --json")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    sys.path.insert(0, str(HERE))
    if arguments.one:
        json.dump(run_setting(arguments), sys.stdout)
        return
    from tables import markdown

    runs = json.loads(arguments.from_json.read_text()) if arguments.from_json else run_all(arguments)
    text = markdown(runs)
    if arguments.markdown:
        arguments.markdown.parent.mkdir(parents=True, exist_ok=True)
        arguments.markdown.write_text(text)
    else:
        print(text)


if __name__ == "__main__":
    main()
