"""The comparison of a GPU kernel's first result with the definition, on results that are right and that are wrong.

It looks at tensors wherever they lie, so torch's CPU convolutions play the GPU kernel here.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from unhang import _gpu
from unhang._engines import Geometry, make_problem

CASES = {
    "plain": ((3, 8, 13, 11), (12, 8, 3, 3), Geometry([1, 1], [1, 1], [1, 1], False, [0, 0], 1)),
    "stride": ((2, 3, 40, 41), (16, 3, 7, 7), Geometry([2, 2], [3, 3], [1, 1], False, [0, 0], 1)),
    "stride without reach": ((2, 6, 17, 16), (4, 6, 1, 1), Geometry([3, 2], [0, 0], [1, 1], False, [0, 0], 1)),
    "dilation": ((1, 4, 20, 24), (6, 4, 3, 2), Geometry([1, 2], [4, 0], [2, 3], False, [0, 0], 1)),
    "groups": ((2, 12, 9, 9), (18, 4, 3, 3), Geometry([1, 1], [1, 0], [1, 1], False, [0, 0], 3)),
    "depthwise": ((2, 10, 12, 12), (10, 1, 5, 5), Geometry([1, 1], [2, 2], [1, 1], False, [0, 0], 10)),
    "more padding than image": ((1, 2, 3, 3), (3, 2, 3, 3), Geometry([1, 1], [7, 5], [1, 1], False, [0, 0], 1)),
    "transposed": ((2, 6, 9, 8), (6, 5, 3, 3), Geometry([2, 2], [1, 1], [1, 1], True, [1, 1], 1)),
    "transposed in groups": ((2, 6, 5, 7), (6, 4, 4, 3), Geometry([3, 1], [0, 1], [1, 2], True, [0, 0], 2)),
}


def operands(case: str, direction: str, dtype: torch.dtype) -> list[torch.Tensor]:
    """First and second operand, bias, and the right result."""
    torch.manual_seed(1)
    input_shape, weight_shape, geometry = CASES[case]
    x, w = torch.randn(input_shape).to(dtype), torch.randn(weight_shape).to(dtype)
    channels = weight_shape[1] * geometry.groups if geometry.transposed else weight_shape[0]
    b = torch.randn(channels).to(dtype)
    y = torch.ops.aten.convolution(x.double(), w.double(), b.double(), *geometry)
    if direction == "forward":
        return [x, w, b, y.to(dtype)]
    g = torch.randn_like(y).to(dtype)
    gradients = torch.ops.aten.convolution_backward(
        g.double(), x.double(), w.double(), None, *geometry, [True, True, False]
    )
    if direction == "backward-data":
        return [g, w, None, gradients[0].to(dtype)]
    return [x, g, None, gradients[1].to(dtype)]


def right(case: str, direction: str, first, second, bias, result) -> bool | None:
    """What is found of a result: whether it is right."""
    input_shape, weight_shape, geometry = CASES[case]
    x, w = (torch.empty(shape, dtype=result.dtype, device="meta") for shape in (input_shape, weight_shape))
    problem = make_problem(x, w, geometry, direction, torch.contiguous_format)
    return _gpu.compare(problem, first, second, bias, result)[0]


class OnCard(torch.Tensor):
    """A tensor that notes what torch is asked to compute with it."""

    asked: ClassVar[set[str]] = set()

    @classmethod
    def __torch_function__(cls, function, types, arguments=(), options=None):
        cls.asked.add(function.__name__)
        found = super().__torch_function__(function, types, arguments, options or {})
        return found.as_subclass(torch.Tensor) if function.__name__ == "to" else found


@pytest.mark.parametrize("shield", ["", "/usr/lib/libunhang_shield.so"])
def test_without_the_shield_a_comparison_runs_no_kernel_of_torchs(
    shield: str, affected_machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are code for another chip: a fill that hangs was taken for our kernel."""
    monkeypatch.setenv("HSA_TOOLS_LIB", shield)
    OnCard.asked.clear()
    tensors = [it.as_subclass(OnCard) for it in operands("plain", "forward", torch.float32)]
    OnCard.asked.clear()
    assert right("plain", "forward", *tensors)
    looks = {"__get__", "dtype", "shape", "device", "is_contiguous", "stride", "dim", "size"}
    computed = OnCard.asked - looks
    assert ("new_zeros" in computed) if shield else (computed == {"to"}), computed


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("direction", ["forward", "backward-data", "backward-weights"])
def test_right_results_pass_and_wrong_ones_do_not(case: str, direction: str) -> None:
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        first, second, bias, result = operands(case, direction, dtype)
        assert right(case, direction, first, second, bias, result)
        # Off by a factor; one channel of the filter forgotten; the corner of the last image wrong; a number missing.
        last = result.clone()
        last[-1, -1, -1, -1] += last.abs().max()
        first_one = result.clone()
        first_one[0, 0, 0, 0] = float("nan")
        for wrong in (result * 1.1, last, first_one):
            assert right(case, direction, first, second, bias, wrong) is False


def test_a_forgotten_channel_is_seen() -> None:
    for direction in ("forward", "backward-data"):
        first, second, bias, _ = operands("plain", direction, torch.float32)
        geometry = CASES["plain"][2]
        less = first.clone()
        less[:, -1] = 0
        if direction == "forward":
            wrong = torch.ops.aten.convolution(less, second, bias, *geometry)
        else:
            x = torch.empty(CASES["plain"][0])
            wrong = torch.ops.aten.convolution_backward(less, x, second, None, *geometry, [True, False, False])[0]
        assert right("plain", direction, first, second, bias, wrong) is False


def test_numbers_that_cannot_be_compared_prove_nothing() -> None:
    first, second, bias, result = operands("plain", "forward", torch.float32)
    assert right("plain", "forward", first * 0, second, None, result * 0) is None
    infinite = first.clone()
    infinite[0, 0, 0, 0] = float("inf")
    assert right("plain", "forward", infinite, second, bias, result) is None
    large = [it.half() for it in (first * 3e3, second * 3e3)]
    assert right("plain", "forward", *large, None, result.half()) is None


def test_gradients_among_the_smallest_numbers_are_right() -> None:
    """In f16 without loss scaling: what is rounded away there is no mistake."""
    geometry = CASES["plain"][2]
    for direction in ("forward", "backward-data", "backward-weights"):
        first, second, _, _ = operands("plain", direction, torch.float32)
        x, w = torch.randn(CASES["plain"][0]), torch.randn(CASES["plain"][1])
        first, second = (first * 1e-4).half(), (second * 1e-4).half()
        if direction == "forward":
            result = torch.ops.aten.convolution(first.double(), second.double(), None, *geometry)
        elif direction == "backward-data":
            result = torch.ops.aten.convolution_backward(
                first.double(), x.double(), second.double(), None, *geometry, [True, False, False]
            )[0]
        else:
            result = torch.ops.aten.convolution_backward(
                second.double(), first.double(), w.double(), None, *geometry, [False, True, False]
            )[1]
        assert right("plain", direction, first, second, None, result.half())


def test_layouts_do_not_matter() -> None:
    for pick in itertools.product((torch.contiguous_format, torch.channels_last), repeat=3):
        first, second, bias, result = operands("plain", "forward", torch.float32)
        first, second, result = (it.contiguous(memory_format=form) for it, form in zip((first, second, result), pick))
        assert right("plain", "forward", first, second, bias, result)
