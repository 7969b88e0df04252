"""Markdown tables of the measurements."""

from __future__ import annotations

import math
import statistics
from typing import Any

from layers import DIRECTIONS

LAYOUTS = {"nchw": "NCHW", "nhwc": "NHWC"}
#: The bounds below which layers of a population are counted, and how many of the slowest are named.
BOUNDS = (1, 0.85, 0.7)
WORST = 50


def geometric_mean(values: list[float]) -> float:
    """The geometric mean, for averaging ratios."""
    return math.exp(statistics.fmean(math.log(value) for value in values))


def title(run: dict[str, Any]) -> str:
    """A setting in words."""
    threads = "one thread" if run["threads"] == 1 else f"{run['threads']} threads"
    batch = f"batch {run['batch']}" if run["batch"] else "batch of the table"
    isa = ", AVX2 forced on both sides" if run["isa"] == "avx2" else ""
    return f"{threads}, {batch}{isa}"


def ratio_text(ratio: list[float]) -> str:
    """A ratio with its spread."""
    return f"{ratio[0]:.2f} ({ratio[1]:.2f}–{ratio[2]:.2f})"


def markdown(runs: list[dict[str, Any]]) -> str:
    """All tables: means of every setting, then each setting layer by layer."""
    against_torch = [run for run in runs if run["against"] == "torch" and run["records"]]
    parts = [summary(against_torch)] if against_torch else []
    parts += [population_table(run) if is_population(run) else layer_table(run) for run in against_torch]
    parts += [other_table(run) for run in runs if run["against"] == "others" and run["records"]]
    return "\n".join(parts)


def columns_of(run: dict[str, Any]) -> list[tuple[str, str]]:
    """The measured directions and layouts."""
    measured = {(record["direction"], record["layout"]) for record in run["records"]}
    return [(d, layout) for d in DIRECTIONS for layout in LAYOUTS if (d, layout) in measured]


def of_column(run: dict[str, Any], column: tuple[str, str]) -> list[dict[str, Any]]:
    return [record for record in run["records"] if (record["direction"], record["layout"]) == column]


def mean_text(run: dict[str, Any], column: tuple[str, str]) -> str:
    """Geometric mean and least ratio against torch."""
    ratios = [record["ratios"]["torch"][0] for record in of_column(run, column)]
    return f"{geometric_mean(ratios):.2f}, least {min(ratios):.2f}" if ratios else ""


def peak_text(run: dict[str, Any]) -> str:
    """The share of the peak that dense 3x3 layers with 64 or more channels reach, with one thread."""
    shares = [r["gflops"] / r["peak"] for r in run["records"] if r["dense_3x3"] and r["direction"] == "forward"]
    if run["threads"] != 1 or not shares:
        return ""
    return f"{statistics.median(shares):.0%} ({min(shares):.0%}–{max(shares):.0%})"


def header(first: str, columns: list[str]) -> str:
    return f"| {first} | " + " | ".join(columns) + " |\n|---|" + "---:|" * len(columns) + "\n"


def summary(runs: list[dict[str, Any]]) -> str:
    columns = columns_of(runs[0])
    names = [f"{direction} {LAYOUTS[layout]}" for direction, layout in columns]
    text = "### Geometric means\n\n" + header(
        "setting", [*names, "dense 3×3 forward, of peak, direct-equivalent", "load"]
    )
    for run in runs:
        cells = [mean_text(run, column) for column in columns]
        text += f"| {title(run)} | " + " | ".join([*cells, peak_text(run), f"{run['load']:.1f}"]) + " |\n"
    return text


def layer_table(run: dict[str, Any]) -> str:
    columns = columns_of(run)
    names = [f"{direction} {LAYOUTS[layout]}" for direction, layout in columns]
    one_thread = run["threads"] == 1
    text = f"### {title(run).capitalize()}\n\n" + header(
        "layer", [*names, *(["of peak, direct-equivalent"] if one_thread else [])]
    )
    for layer in dict.fromkeys(record["layer"] for record in run["records"]):
        records = {(r["direction"], r["layout"]): r for r in run["records"] if r["layer"] == layer}
        cells = [ratio_text(records[column]["ratios"]["torch"]) if column in records else "" for column in columns]
        if one_thread:
            forward = [r["gflops"] / r["peak"] for (d, _), r in records.items() if d == "forward"]
            cells.append(f"{max(forward):.0%}" if forward else "")
        text += f"| {layer} | " + " | ".join(cells) + " |\n"
    means = [f"**{mean_text(run, column)}**" for column in columns]
    return text + "| **geometric mean** | " + " | ".join([*means, *([""] if one_thread else [])]) + " |\n"


def is_population(run: dict[str, Any]) -> bool:
    """Whether its layers were drawn from model zoos: too many for a line each."""
    return run.get("table") == "population"


def share_below(records: list[dict[str, Any]], bound: float) -> str:
    """The share of layers whose ratio to torch is below a bound."""
    return f"{sum(record['ratios']['torch'][0] < bound for record in records) / len(records):.1%}"


def population_table(run: dict[str, Any]) -> str:
    """Means and shares of slow layers for each direction and layout, then the worst layers overall."""
    text = f"### Layers of model zoos: {title(run)}\n\n" + header(
        "direction", ["layers", "geometric mean, least", *(f"below {bound}" for bound in BOUNDS)]
    )
    for column in columns_of(run):
        records = of_column(run, column)
        cells = [str(len(records)), mean_text(run, column), *(share_below(records, bound) for bound in BOUNDS)]
        text += f"| {column[0]} {LAYOUTS[column[1]]} | " + " | ".join(cells) + " |\n"
    worst = sorted(run["records"], key=lambda record: record["ratios"]["torch"][0])[:WORST]
    text += f"\nThe worst {len(worst)}:\n\n" + header(
        "layer", ["direction", "ratio to torch", "of peak", "milliseconds"]
    )
    for record in worst:
        cells = [
            f"{record['direction']} {LAYOUTS[record['layout']]}",
            ratio_text(record["ratios"]["torch"]),
            f"{record['gflops'] / record['peak']:.0%}" if run["threads"] == 1 else "",
            f"{record['milliseconds']:.3f}",
        ]
        text += f"| {record['layer']} | " + " | ".join(cells) + " |\n"
    return text


def other_table(run: dict[str, Any]) -> str:
    names = list(dict.fromkeys(name for record in run["records"] for name in record["ratios"]))
    text = f"### Forward, NCHW, against other engines: {title(run)}\n\n" + header("layer", names)
    for record in run["records"]:
        cells = [ratio_text(record["ratios"][name]) if name in record["ratios"] else "refused" for name in names]
        text += f"| {record['layer']} | " + " | ".join(cells) + " |\n"
    means = []
    for name in names:
        ratios = [record["ratios"][name][0] for record in run["records"] if name in record["ratios"]]
        means.append(f"**{geometric_mean(ratios):.2f}, least {min(ratios):.2f}**")
    return text + "| **geometric mean** | " + " | ".join(means) + " |\n"
