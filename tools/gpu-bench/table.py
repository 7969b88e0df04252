"""Makes the tables of docs/internals/benchmarks/gpu.md out of the files of `gpu_bench.py bench --json` and `eager --json`.

python3 tools/gpu-bench/table.py bench.json                     # means, and every layer
python3 tools/gpu-bench/table.py --means NAME=FILE ...           # one line for each file and direction
python3 tools/gpu-bench/table.py --storage f32.json f16.json     # 16 bits against 32, layers bound by memory first
python3 tools/gpu-bench/table.py --eager eager.json
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

DIRECTIONS = ("forward", "backward-data", "backward-weights")
# The measured limits of an H200: multiply-adds by cuBLAS in f32, and a copy.
FLOPS, BANDWIDTH = 51e12, 4.3e12


def mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def read(file: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(Path(file).read_text())
    for row in data["rows"]:
        # Not measured: null in the file.
        row.update({name: math.nan for name, value in row.items() if value is None})
    return data


def unasked(row: dict[str, Any]) -> dict[str, Any]:
    """What the engine may choose by itself: no products of f16 in pairs."""
    return {name: value for name, value in row["ours"].items() if not name.startswith("half:")}


def first_us(row: dict[str, Any]) -> float:
    us: float = next(iter(row["ours"].values()))["us"]
    return us


def best_us(row: dict[str, Any]) -> float:
    return min(value["us"] for value in unasked(row).values())


def means(name: str, rows: list[dict[str, Any]]) -> None:
    for direction in DIRECTIONS:
        these = [row for row in rows if row["key"].startswith(direction + ":")]
        ratios = [row["cudnn_us"] / first_us(row) for row in these]
        slowest = min(range(len(these)), key=lambda i: ratios[i])
        below = sum(ratio < 0.8 for ratio in ratios)
        print(
            f"| {name}{direction} | {mean(ratios):.2f} | {mean([r['cudnn_us'] / best_us(r) for r in these]):.2f}"
            f" | {mean([r['off_us'] / first_us(r) for r in these]):.2f}"
            f" | {mean([best_us(r) / first_us(r) for r in these]):.3f}"
            f" | {below} | {these[slowest]['layer']} {ratios[slowest]:.2f} |"
        )


def means_head() -> None:
    print(
        "| direction | first choice / cuDNN | best measured / cuDNN | first choice / cuDNN off"
        " | first choice / best | layers under 0.8 of cuDNN | slowest layer |"
    )
    print("|---|---|---|---|---|---|---|")


def layers(rows: list[dict[str, Any]]) -> None:
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


def storage(wide: list[dict[str, Any]], narrow: list[dict[str, Any]]) -> None:
    """f32 and 16-bit times of the best choices; how long the bytes of f32 would take over the operations."""
    by_key = {row["key"].replace(":f32:", ":"): row for row in wide}
    found = []
    for row in narrow:
        dtype = row["key"].split(":")[1]
        other = by_key[row["key"].replace(f":{dtype}:", ":")]
        parts = other["key"].split(":")
        n, c, h, w = map(int, parts[3].split("x"))
        k, r, s = map(int, parts[4].split("x"))
        groups = int(parts[8][1:])
        outputs = other["flops"] / 2 / (c // groups * r * s)
        read_and_written = 4 * (n * c * h * w + outputs + k * c // groups * r * s)
        bound = (read_and_written / BANDWIDTH) / (other["flops"] / FLOPS)
        halves = [value["us"] for name, value in row["ours"].items() if name.startswith("half:")]
        found.append((bound, row, best_us(other), best_us(row), min(halves) if halves else None))
    found.sort(key=lambda item: -item[0])
    print("\n| layer | direction | bytes / operations | f32 | 16 bits | times as fast | products in pairs |")
    print("|---|---|---|---|---|---|---|")
    for bound, row, wide_us, narrow_us, half in found:
        if bound >= 0.9:
            pairs = f"{half:.1f} ({wide_us / half:.2f})" if half else ""
            print(
                f"| {row['layer']} | {row['key'].split(':')[0]} | {bound:.1f} | {wide_us:.1f} | {narrow_us:.1f}"
                f" | {wide_us / narrow_us:.2f} | {pairs} |"
            )


def eager(rows: list[dict[str, Any]]) -> None:
    print("\n| layer | ours | cuDNN | cuDNN off |")
    print("|---|---|---|---|")
    for row in rows:
        print(f"| {row['layer']} | {row['ours_us']:.1f} | {row['cudnn_us']:.1f} | {row['off_us']:.1f} |")


def main() -> None:
    what, files = sys.argv[1], sys.argv[2:]
    if what == "--means":
        means_head()
        for argument in files:
            name, file = argument.split("=", 1)
            means(f"{name}, ", read(file)["rows"])
    elif what == "--storage":
        storage(read(files[0])["rows"], read(files[1])["rows"])
    elif what == "--eager":
        eager(read(files[0])["rows"])
    else:
        data = read(what)
        print(f"{data['device']}, torch {data['torch']}\n")
        means_head()
        means("", data["rows"])
        layers(data["rows"])


if __name__ == "__main__":
    main()
