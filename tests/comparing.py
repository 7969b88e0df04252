"""What tests of the torch face share: the suite's tolerances for comparing with torch, and which engines computed."""

from __future__ import annotations

import torch

#: Relative error in L2 and of the largest number, by type; the same numbers as unhang-suite's.
TOLERANCES = {
    torch.float64: (1e-13, 1e-12),
    torch.float32: (1e-5, 3e-5),
    torch.float16: (5e-4, 1e-3),
    torch.bfloat16: (4e-3, 8e-3),
}


def assert_close(got: torch.Tensor, want: torch.Tensor, slack: float = 1.0) -> None:
    """Compares with a result of higher precision; ``slack`` for what was computed in several steps."""
    l2, largest = (limit * slack for limit in TOLERANCES[got.dtype])
    assert got.shape == want.shape
    error = (got.double() - want.double()).abs()
    scale, norm = want.double().abs().max().clamp(min=1e-300), want.double().norm().clamp(min=1e-300)
    assert torch.isfinite(got).all() == torch.isfinite(want).all()
    assert (error.max() / scale).item() <= largest, f"largest error {(error.max() / scale).item():.2e}"
    assert (error.norm() / norm).item() <= l2, f"error in L2 {(error.norm() / norm).item():.2e}"


def engines_used() -> set[str]:
    """The engines that have computed something since the routes were last cleared."""
    from unhang import _convolve

    return {name for route in _convolve.routes.values() for name, n in zip(route.names, route.tally.by_place) if n}
