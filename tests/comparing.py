"""What tests of the torch face share: comparing with torch, by the tolerances of ``unhang-engine``, and which engines computed."""

from __future__ import annotations

import torch

from unhang import _core
from unhang._engines import DATA_TYPES


def assert_close(got: torch.Tensor, want: torch.Tensor, slack: float = 1.0) -> None:
    """Compares with a result of higher precision; ``slack`` for what was computed in several steps."""
    l2, largest = (limit * slack for limit in _core.engine_tolerance(DATA_TYPES[got.dtype]))
    assert got.shape == want.shape
    # On the CPU: what is wrong with a GPU must not judge itself.
    got, want = got.detach().cpu(), want.detach().cpu()
    error = (got.double() - want.double()).abs()
    scale, norm = want.double().abs().max().clamp(min=1e-300), want.double().norm().clamp(min=1e-300)
    assert torch.isfinite(got).all() == torch.isfinite(want).all()
    assert (error.max() / scale).item() <= largest, f"largest error {(error.max() / scale).item():.2e}"
    assert (error.norm() / norm).item() <= l2, f"error in L2 {(error.norm() / norm).item():.2e}"


def difference(got: torch.Tensor, want: torch.Tensor) -> str | None:
    """How a result differs from torch's of the same type, where it does by more than both sides' rounding."""
    if (got.shape, got.dtype) != (want.shape, want.dtype):
        return f"{got.dtype} of {tuple(got.shape)}, not {want.dtype} of {tuple(want.shape)}"
    if got.numel() == 0:
        return None
    finite = want.isfinite()
    # Infinities are the same by their sign, NaN by their place.
    infinite = want.isinf()
    if not (got.isnan() == want.isnan()).all() or not got[infinite].equal(want[infinite]):
        return "not finite in the same places"
    exact = torch.complex128 if got.is_complex() else torch.float64
    off, scale = (got[finite].to(exact) - want[finite].to(exact)).abs(), want[finite].to(exact).abs()
    if off.numel() == 0:
        return None
    error, allowed = off.max().item(), _core.canary_tolerance(DATA_TYPES.get(got.dtype, "f32")) * scale.max().item()
    return f"off by {error:.1e} (allowed {allowed:.1e})" if error > allowed else None


def assert_same(got: torch.Tensor, want: torch.Tensor) -> None:
    """Compares with what torch computed in the same type."""
    assert difference(got, want) is None, difference(got, want)


def engines_used() -> set[str]:
    """The engines that have computed something since the routes were last cleared."""
    from unhang import _convolve

    return {name for route in _convolve.routes.values() for name, n in zip(route.names, route.tally.by_place) if n}
