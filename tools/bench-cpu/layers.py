"""The layer tables for the benchmark."""

from __future__ import annotations

import random
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
#: The suite's tables: the one behind most figures, what that one lacks, and layers that nothing was tuned on.
TABLES = {"layers": "layers.tsv", "more": "more_layers.tsv", "other": "other_layers.tsv"}
#: Layers of whole model zoos; `--sample` draws some of them.
POPULATION = ROOT / "tools/gpu-bench/population.tsv"
#: Larger layers are not drawn: with one thread, a call would take a second.
MOST_FLOPS = 8e9
DIRECTIONS = ("forward", "backward-data", "backward-weights")
#: One of each kind, for `--quick`.
QUICK = [
    "seed.16-32@64",
    "seed.64-128@72",
    "seed.3-64@224",
    "resnet50.1.reduce",
    "resnet50.1.3x3",
    "resnet50.2.3x3s2",
    "resnet50.3.3x3",
    "resnet50.3.expand",
    "resnet50.4.3x3",
    "yolov8n.0",
    "yolov8n.2",
    "mobilenetv2.dw",
    "mobilenetv2.project",
    "efficientnetb0.dw5",
    "dilated.3x3",
]


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

    @property
    def is_dense_3x3(self) -> bool:
        """Whether it is one of those that should reach four fifths of the peak."""
        return (self.r, self.s) == (3, 3) and self.groups == 1 and min(self.c, self.k) >= 64


def layer_of(key: str, batch: int | None) -> Layer:
    """A layer from its key, which is also its name."""
    _, _, _, image, window, stride, padding, dilation, groups = key.split(":")
    n, c, h, w = map(int, image.split("x"))
    k, r, s = map(int, window.split("x"))
    pairs = [tuple(map(int, text[1:].split("x"))) for text in (stride, padding, dilation)]
    return Layer(key.split(":", 3)[3], batch or n, c, h, w, k, r, s, *pairs, int(groups[1:]))  # type: ignore[arg-type]


def drawn(sample: int, seed: int, batch: int | None) -> list[Layer]:
    """Random layers, in one order whatever the sample's size."""
    keys = [line.split("\t")[2] for line in POPULATION.read_text().splitlines()]
    # A transposed layer's directions are those of an ordinary one.
    found = [layer_of(key, batch) for key in keys if ":t:" not in key]
    found = [layer for layer in found if layer.flops() <= MOST_FLOPS]
    random.Random(seed).shuffle(found)
    return found[:sample]


def layers(table: str, batch: int | None, sample: int = 0, seed: int = 1) -> list[Layer]:
    """A layer table, with its own batch or another."""
    if table == "population":
        return drawn(sample, seed, batch)
    result = []
    for line in (ROOT / "crates/unhang-suite" / TABLES[table]).read_text().splitlines():
        words = line.split()
        if not words or line.startswith("#"):
            continue
        n = [int(word) for word in words[1:]]
        n[0] = batch or n[0]
        result.append(Layer(words[0], *n[:7], (n[7], n[8]), (n[9], n[10]), (n[11], n[12]), n[13]))
    return result
