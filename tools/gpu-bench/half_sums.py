"""The accuracy of sums of f16 products in pairs, kept in f16: in direct products, in Winograd's, and in weight gradients.

What `v_pk_fma_f16` does is done here number by number: a product and a sum are rounded to f16 once, and after CHAIN of them
the sum goes to one in f32 (`HALF_CHAIN` in crates/unhang-gpu/kernels/tile.cuh). Errors are against double precision, relative
as in the suite: in L2, and the largest by the largest number. No GPU is needed.

    python tools/gpu-bench/half_sums.py
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench-cpu"))
from winograd import errors, transforms

#: Products of a sum in f16.
CHAIN = 32
#: The evaluation points, by the algorithm's name. F(2x2) has one point fewer on either side.
POINTS = {
    "F(2×2, 3×3): 0, ±1": ("0", "1", "-1"),
    "F(4×4, 3×3): 0, ±1, ±2": ("0", "1", "-1", "2", "-2"),
    "F(4×4, 3×3): 0, ±5/8, ±3/2": ("0", "5/8", "-5/8", "3/2", "-3/2"),
}


def sums(x: torch.Tensor, w: torch.Tensor, in_pairs: bool) -> torch.Tensor:
    """Matrix products `[..., m, c] x [..., c, n]` of f16, summed in f32, or in f16 for CHAIN products at a time."""
    if not in_pairs:
        return x.float() @ w.float()
    total = torch.zeros(*x.shape[:-1], w.shape[-1])
    for begin in range(0, x.shape[-1], CHAIN):
        part = torch.zeros_like(total).half()
        for channel in range(begin, min(begin + CHAIN, x.shape[-1])):
            product = x[..., channel, None].double() * w[..., channel, None, :].double()
            part = (part.double() + product).half()
        total += part.float()
    return total


def direct(x: torch.Tensor, w: torch.Tensor, in_pairs: bool) -> torch.Tensor:
    """A convolution without padding as a product of matrices."""
    columns = F.unfold(x.float(), w.shape[2:]).half().transpose(1, 2)
    result = sums(columns, w.flatten(1).T, in_pairs).half()
    return result.transpose(1, 2).reshape(x.shape[0], w.shape[0], *(size - 2 for size in x.shape[2:]))


def winograd(x: torch.Tensor, w: torch.Tensor, points: tuple[str, ...], in_pairs: bool) -> torch.Tensor:
    """A 3x3 convolution by Winograd's algorithm, with transformed tensors kept in f16 where products are in pairs."""
    of_input, of_filter, of_output = transforms(points) if len(points) == 5 else SMALL
    size, step = len(of_input), len(of_output)
    tiles = of_input.float() @ x.float().unfold(2, size, step).unfold(3, size, step) @ of_input.float().T
    filters = (of_filter @ w.double() @ of_filter.T).float()
    if in_pairs:
        tiles, filters = tiles.half(), filters.half()
    n, c, rows, columns = tiles.shape[:4]
    first = tiles.permute(4, 5, 0, 2, 3, 1).reshape(size, size, -1, c)
    products = sums(first, filters.permute(2, 3, 1, 0), in_pairs)
    products = products.reshape(size, size, n, rows, columns, -1).permute(2, 5, 3, 4, 0, 1)
    result = of_output.float() @ products @ of_output.float().T
    return result.transpose(3, 4).reshape(n, w.shape[0], rows * step, columns * step).half()


#: Transforms of F(2x2, 3x3).
SMALL = [
    torch.tensor(rows, dtype=torch.float64)
    for rows in (
        [[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]],
        [[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]],
        [[1, 1, 1, 0], [0, 1, -1, -1]],
    )
]


def weight_gradient(x: torch.Tensor, dy: torch.Tensor, in_pairs: bool) -> torch.Tensor:
    """The gradient of a 1x1 filter: sums over all pixels of all images."""
    return sums(dy.transpose(0, 1).flatten(1), x.transpose(0, 1).flatten(1).T, in_pairs).half()


def forward_table() -> None:
    """Prints a row for each algorithm."""
    cases = {}
    for channels in (64, 512):
        for positive in (False, True):
            x, w = torch.randn(1, channels, 18, 18), torch.randn(16, channels, 3, 3) / (9 * channels) ** 0.5
            name = f"{channels} channels" + (", none negative" if positive else "")
            cases[name] = ((x.relu() if positive else x).half(), w.half())
    wanted = [F.conv2d(x.double(), w.double()) for x, w in cases.values()]
    print("| 3×3 forward | " + " | ".join(cases) + " |\n|---|" + "---:|" * len(cases))
    ways = {"direct, sums in f32": (direct, False), "direct, in pairs": (direct, True)}
    rows = {name: [way(x, w, in_pairs) for x, w in cases.values()] for name, (way, in_pairs) in ways.items()}
    for name, points in POINTS.items():
        rows[f"{name}, sums in f32"] = [winograd(x, w, points, False) for x, w in cases.values()]
        rows[f"{name}, in pairs"] = [winograd(x, w, points, True) for x, w in cases.values()]
    for name, results in rows.items():
        print(f"| {name} | " + " | ".join(errors(got, want) for got, want in zip(results, wanted)) + " |")


def gradient_table() -> None:
    """Prints weight gradients of a 1x1 layer by the size of the output's gradient, which a loss scale makes large."""
    cases = {}
    for scale in (1.0, 256.0):
        x, dy = torch.randn(8, 32, 28, 28).relu(), torch.randn(8, 16, 28, 28) * scale
        cases[f"output's gradients of {scale:.0f}"] = (x.half(), dy.half())
    print("\n| 1×1 weight gradient, 6,272 pixels | " + " | ".join(cases) + " |\n|---|" + "---:|" * len(cases))
    wanted = [torch.einsum("ncyx,nkyx->kc", x.double(), dy.double()) for x, dy in cases.values()]
    for name, in_pairs in (("sums in f32", False), ("in pairs", True)):
        got = [weight_gradient(x, dy, in_pairs) for x, dy in cases.values()]
        print(f"| {name} | " + " | ".join(map(errors, got, wanted)) + " |")


def main() -> None:
    """Prints both tables."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    forward_table()
    gradient_table()


if __name__ == "__main__":
    main()
