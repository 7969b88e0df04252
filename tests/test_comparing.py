"""What the other tests compare by is itself held to cases that must pass and cases that must not."""

from __future__ import annotations

import pytest
import torch

from comparing import difference

INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_what_is_not_finite_hides_no_error_beside_it(dtype: torch.dtype) -> None:
    want = torch.tensor([1.0, 2.0, INF, -INF, NAN], dtype=dtype)
    assert difference(want.clone(), want) is None
    for wrong in ([1.0, 2.5, INF, -INF, NAN], [1.0, 2.0, -INF, -INF, NAN], [1.0, 2.0, 5.0, -INF, NAN]):
        assert difference(torch.tensor(wrong, dtype=dtype), want) is not None
    for wrong in ([1.0, INF, INF, -INF, NAN], [1.0, NAN, INF, -INF, NAN], [1.0, 2.0, NAN, -INF, NAN]):
        assert difference(torch.tensor(wrong, dtype=dtype), want) is not None


def test_shapes_and_types_are_compared() -> None:
    want = torch.ones(2, 3)
    assert difference(want.T, want) is not None
    assert difference(want.double(), want) is not None
    assert difference(want + 0.1j, want + 0.0j) is not None
    assert difference(torch.empty(0), torch.empty(0)) is None
