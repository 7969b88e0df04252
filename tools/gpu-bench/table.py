"""Makes the tables of docs/benchmarks/gpu.md out of the files of `gpu_bench.py bench --json`.

python3 tools/gpu-bench/table.py bench.json
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

DIRECTIONS = ("forward", "backward-data", "backward-weights")


def mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def main() -> None:
    data: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    rows = data["rows"]
    print(f"{data['device']}, torch {data['torch']}\n")
    print("| direction | first choice / cuDNN | best measured / cuDNN | first choice / cuDNN off | slowest layer |")
    print("|---|---|---|---|---|")
    for direction in DIRECTIONS:
        these = [row for row in rows if row["key"].startswith(direction + ":")]
        first = [next(iter(row["ours"].values()))["us"] for row in these]
        best = [min(value["us"] for value in row["ours"].values()) for row in these]
        ratios = [row["cudnn_us"] / us for row, us in zip(these, first)]
        slowest = min(range(len(these)), key=lambda i: ratios[i])
        print(
            f"| {direction} | {mean(ratios):.2f} | {mean([r['cudnn_us'] / b for r, b in zip(these, best)]):.2f}"
            f" | {mean([r['off_us'] / f for r, f in zip(these, first)]):.2f}"
            f" | {these[slowest]['layer']} {ratios[slowest]:.2f} |"
        )
    print("\n| layer | forward | backward-data | backward-weights |")
    print("|---|---|---|---|")
    for name in dict.fromkeys(row["layer"] for row in rows):
        cells = []
        for direction in DIRECTIONS:
            row = next((r for r in rows if r["layer"] == name and r["key"].startswith(direction + ":")), None)
            if row is None or not row["ours"]:
                cells.append("")
                continue
            choice, value = next(iter(row["ours"].items()))
            family = choice.split(":")[0]
            cells.append(
                f"{value['us']:.1f} / {row['cudnn_us']:.1f} / {row['off_us']:.1f}"
                f" ({row['cudnn_us'] / value['us']:.2f}, {family})"
            )
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
