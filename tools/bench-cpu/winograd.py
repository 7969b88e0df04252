"""What Winograd's algorithm would lose and gain: its error in single precision, and its arithmetic, for 3x3 filters.

Errors are against double precision, relative as in the suite (L2, and the largest by the largest number), for random
numbers. The bound on speed counts the products alone; transforms are counted beside them, in operations.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

#: Transforms of input, filter and output for F(2x2, 3x3) and F(4x4, 3x3).
TRANSFORMS = {
    2: (
        [[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]],
        [[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]],
        [[1, 1, 1, 0], [0, 1, -1, -1]],
    ),
    4: (
        [
            [4, 0, -5, 0, 1, 0],
            [0, -4, -4, 1, 1, 0],
            [0, 4, -4, -1, 1, 0],
            [0, -2, -1, 2, 1, 0],
            [0, 2, -1, -2, 1, 0],
            [0, 4, 0, -5, 0, 1],
        ],
        [
            [1 / 4, 0, 0],
            [-1 / 6, -1 / 6, -1 / 6],
            [-1 / 6, 1 / 6, -1 / 6],
            [1 / 24, 1 / 12, 1 / 6],
            [1 / 24, -1 / 12, 1 / 6],
            [0, 0, 1],
        ],
        [[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]],
    ),
}


def winograd(x: torch.Tensor, w: torch.Tensor, size: int) -> torch.Tensor:
    """A convolution without padding by F(size x size, 3x3), in the type of its operands."""
    of_input, of_filter, of_output = (torch.tensor(matrix, dtype=x.dtype) for matrix in TRANSFORMS[size])
    tiles = x.unfold(2, size + 2, size).unfold(3, size + 2, size)
    tiles = of_input @ tiles @ of_input.T
    filters = of_filter @ w @ of_filter.T
    products = torch.einsum("ncyxij,kcij->nkyxij", tiles, filters)
    result = of_output @ products @ of_output.T
    n, k, rows, columns, _, _ = result.shape
    return result.transpose(3, 4).reshape(n, k, rows * size, columns * size)


def errors(got: torch.Tensor, want: torch.Tensor) -> tuple[float, float]:
    """Relative error in L2 and of the largest number."""
    error = (got.double() - want).abs()
    return (error.norm() / want.norm()).item(), (error.max() / want.abs().max()).item()


def main() -> None:
    """Prints a table."""
    torch.manual_seed(0)
    print("| channels | direct | F(2x2) | F(4x4) |\n|---:|---:|---:|---:|")
    for channels in (64, 256, 512):
        x, w = torch.randn(1, channels, 18, 18), torch.randn(64, channels, 3, 3)
        want = F.conv2d(x.double(), w.double())
        cells = [F.conv2d(x, w), *(winograd(x, w, size) for size in TRANSFORMS)]
        print(f"| {channels} | " + " | ".join("{:.1e}, {:.1e}".format(*errors(cell, want)) for cell in cells) + " |")


if __name__ == "__main__":
    main()
