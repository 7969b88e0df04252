"""The accuracy that Winograd's algorithm loses in single precision, by its evaluation points: F(4x4, 3x3), and along
one axis.

Errors are against double precision, relative as in the suite (L2, and the largest by the largest number). They are for
random filters and images, and for images without negative values. Filters are transformed in double precision and
rounded.
"""

from __future__ import annotations

from fractions import Fraction

import torch
import torch.nn.functional as F

#: Sets of points in addition to infinity; the engine uses the last.
POINTS = {
    "0, ±1, ±2": ("0", "1", "-1", "2", "-2"),
    "0, ±1, ±1/2": ("0", "1", "-1", "1/2", "-1/2"),
    "0, ±1, 1/2, -2": ("0", "1", "-1", "1/2", "-2"),
    "0, ±3/4, ±3/2": ("0", "3/4", "-3/4", "3/2", "-3/2"),
    "0, ±5/8, ±3/2": ("0", "5/8", "-5/8", "3/2", "-3/2"),
}
#: Along one axis, by the number of taps: the engine uses the first of each.
AXIS_POINTS = {
    3: [("0", "5/8", "-5/8", "3/2", "-3/2")],
    5: [("0", "1/2", "-1/2", "1", "-1", "2", "-2"), ("0", "1/2", "-1/2", "1", "-1", "3/2", "-3/2")],
    7: [
        ("0", "1/2", "-1/2", "3/4", "-3/4", "5/4", "-5/4", "5/2", "-5/2"),
        ("0", "1/2", "-1/2", "1", "-1", "3/2", "-3/2", "2", "-2"),
    ],
}


def polynomial(roots: list[Fraction]) -> list[Fraction]:
    """The coefficients of the polynomial with these roots, the lowest first."""
    coefficients = [Fraction(1)]
    for root in roots:
        shifted = [Fraction(0), *coefficients]
        coefficients = [high - root * low for high, low in zip(shifted, [*coefficients, Fraction(0)])]
    return coefficients


def transforms(names: tuple[str, ...], taps: int = 3) -> list[torch.Tensor]:
    """The transforms of input, filter and output for that many taps: two more points than taps, and infinity."""
    points = [Fraction(name) for name in names]
    of_input, of_filter = [], []
    for point in points:
        others = [other for other in points if other != point]
        scale = Fraction(1)
        for other in others:
            scale *= point - other
        of_input.append([*polynomial(others), Fraction(0)])
        of_filter.append([point**power / scale for power in range(taps)])
    of_input.append(polynomial(points))
    of_filter.append([*[Fraction(0)] * (taps - 1), Fraction(1)])
    of_output = [[*(point**power for point in points), Fraction(int(power == 3))] for power in range(4)]
    matrices = (of_input, of_filter, of_output)
    return [torch.tensor([[float(x) for x in row] for row in matrix], dtype=torch.float64) for matrix in matrices]


def winograd(x: torch.Tensor, w: torch.Tensor, matrices: list[torch.Tensor]) -> torch.Tensor:
    """A convolution without padding by F(4x4, 3x3), in single precision."""
    of_input, of_filter, of_output = matrices
    tiles = of_input.float() @ x.unfold(2, 6, 4).unfold(3, 6, 4) @ of_input.float().T
    filters = (of_filter @ w.double() @ of_filter.T).float()
    products = torch.zeros(x.shape[0], w.shape[0], *tiles.shape[2:])
    for channel in range(x.shape[1]):
        products += tiles[:, channel, None] * filters[None, :, channel, None, None]
    result = of_output.float() @ products @ of_output.float().T
    n, k, rows, columns, _, _ = result.shape
    return result.transpose(3, 4).reshape(n, k, rows * 4, columns * 4)


def winograd_axis(x: torch.Tensor, w: torch.Tensor, matrices: list[torch.Tensor]) -> torch.Tensor:
    """A convolution along the columns, for filters of one row."""
    of_input, of_filter, of_output = matrices
    tiles = x.unfold(3, len(of_input), 4) @ of_input.float().T
    filters = (w[:, :, 0].double() @ of_filter.T).float()
    products = torch.zeros(x.shape[0], w.shape[0], *tiles.shape[2:])
    for channel in range(x.shape[1]):
        products += tiles[:, channel, None] * filters[None, :, channel, None, None]
    return (products @ of_output.float().T).flatten(3)


def errors(got: torch.Tensor, want: torch.Tensor) -> str:
    """Relative error in L2 and of the largest number."""
    error = (got.double() - want).abs()
    return f"{(error.norm() / want.norm()).item():.1e}, {(error.max() / want.abs().max()).item():.1e}"


def cases_of(kernel: tuple[int, int]) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Images and filters, by name."""
    cases = {}
    for channels in (64, 512):
        for positive in (False, True):
            size = [16 + taps - 1 for taps in kernel]
            x, w = torch.randn(1, channels, *size), torch.randn(16, channels, *kernel)
            name = f"{channels} channels" + (", none negative" if positive else "")
            cases[name] = (x.relu() if positive else x, w)
    return cases


def main() -> None:
    """Prints one table for both axes, and one for a single axis."""
    torch.manual_seed(0)
    cases = cases_of((3, 3))
    print("| points | " + " | ".join(cases) + " |\n|---|" + "---:|" * len(cases))
    wanted = [F.conv2d(x.double(), w.double()) for x, w in cases.values()]
    direct = [errors(F.conv2d(x, w), want) for (x, w), want in zip(cases.values(), wanted)]
    print("| none: direct | " + " | ".join(direct) + " |")
    for name, points in POINTS.items():
        matrices = transforms(points)
        cells = [errors(winograd(x, w, matrices), want) for (x, w), want in zip(cases.values(), wanted)]
        print(f"| {name} | " + " | ".join(cells) + " |")
    print("\n| taps, points | " + " | ".join(cases) + " |\n|---|" + "---:|" * len(cases))
    for taps, sets in AXIS_POINTS.items():
        cases = cases_of((1, taps))
        for points in sets:
            matrices = transforms(points, taps)
            cells = [errors(winograd_axis(x, w, matrices), F.conv2d(x.double(), w.double())) for x, w in cases.values()]
            pairs = ", ".join(f"±{point}" for point in points[1::2])
            print(f"| {taps}: 0, {pairs} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
