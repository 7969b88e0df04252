"""The plain reference and the CPU engine against torch's own results, on random convolutions."""

from __future__ import annotations

import random

import pytest
import torch

from comparing import assert_close
from unhang import _core


def random_convolution(seed: int) -> dict[str, object]:
    """Numbers of a convolution; not all of them make one."""
    chance = random.Random(seed)
    groups = chance.choice([1, 1, 1, 2, 3])
    transposed = chance.random() < 0.4
    stride = [chance.randint(1, 3), chance.randint(1, 3)]
    return {
        "batch": chance.randint(1, 3),
        "channels": (groups * chance.randint(1, 4), groups * chance.randint(1, 4)),
        "size": [chance.randint(1, 12), chance.randint(1, 12)],
        "kernel": [chance.randint(1, 4), chance.randint(1, 4)],
        "stride": stride,
        "padding": [chance.randint(0, 3), chance.randint(0, 3)],
        "dilation": [chance.randint(1, 3), chance.randint(1, 3)],
        "output_padding": [chance.randrange(stride[0]), chance.randrange(stride[1])] if transposed else [0, 0],
        "groups": groups,
        "transposed": transposed,
    }


def run(function, problem, first, second, bias, memory_format, *threads):
    first, second = (tensor.contiguous(memory_format=memory_format) for tensor in (first, second))
    result = torch.full(problem.result_shape, float("nan"), dtype=first.dtype).contiguous(memory_format=memory_format)

    def memory(tensor):
        return None if tensor is None else (tensor.data_ptr(), tensor.numel())

    function(problem, memory(first), memory(second), memory(bias), memory(result), *threads)
    return result


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_three_directions_agree_with_torch(layout: str) -> None:
    memory_format = torch.channels_last if layout == "nhwc" else torch.contiguous_format
    checked = transposed = 0
    for seed in range(400):
        numbers = random_convolution(seed)
        torch.manual_seed(seed)
        (c, k), groups = numbers["channels"], numbers["groups"]
        x = torch.randn(numbers["batch"], c, *numbers["size"], dtype=torch.float64, requires_grad=True)
        shape = (c, k // groups) if numbers["transposed"] else (k, c // groups)
        w = torch.randn(*shape, *numbers["kernel"], dtype=torch.float64, requires_grad=True)
        b = torch.randn(k, dtype=torch.float64)
        geometry = [numbers[n] for n in ("stride", "padding", "dilation", "transposed", "output_padding", "groups")]
        try:
            want = torch.convolution(x, w, b, *geometry)
        except RuntimeError:
            with pytest.raises(ValueError, match=r"\d"):
                _core.Problem(tuple(x.shape), tuple(w.shape), *geometry, "f64", layout, "forward")
            continue
        gradient = torch.randn_like(want)
        want_x, want_w = torch.autograd.grad(want, [x, w], gradient)
        forward = _core.Problem(tuple(x.shape), tuple(w.shape), *geometry, "f64", layout, "forward")
        assert forward.output_shape == tuple(want.shape)
        x, w = x.detach(), w.detach()
        cases = [
            (forward, x, w, b, want.detach()),
            (forward.with_direction("backward-data"), gradient, w, None, want_x),
            (forward.with_direction("backward-weights"), x, gradient, None, want_w),
        ]
        for problem, first, second, bias, expected in cases:
            assert_close(run(_core.run_reference, problem, first, second, bias, memory_format), expected, slack=10)
            assert_close(run(_core.run_cpu, problem, first, second, bias, memory_format, 2), expected, slack=10)
        checked += 1
        transposed += numbers["transposed"]
    assert checked > 200
    assert transposed > 60


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_cpu_engine_in_other_types(dtype: torch.dtype) -> None:
    name = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}[dtype]
    for seed in range(100):
        torch.manual_seed(seed)
        x, w = torch.randn(2, 6, 9, 7).to(dtype), torch.randn(8, 3, 3, 3).to(dtype)
        want = torch.nn.functional.conv2d(x.double(), w.double(), None, 1, 1, 1, 2)
        problem = _core.Problem(
            tuple(x.shape), tuple(w.shape), [1, 1], [1, 1], [1, 1], False, [0, 0], 2, name, "nchw", "forward"
        )
        assert_close(run(_core.run_cpu, problem, x, w, None, torch.contiguous_format, 1), want)


def test_memory_that_does_not_fit_the_problem_is_refused() -> None:
    problem = _core.Problem.from_key("forward:f32:nchw:1x1x4x4:1x3x3:s1x1:p0x0:d1x1:g1")
    x, w, y = torch.zeros(16), torch.zeros(9), torch.zeros(4)
    right = [(t.data_ptr(), t.numel()) for t in (x, w)], (y.data_ptr(), y.numel())
    _core.run_cpu(problem, *right[0], None, right[1], 1)
    with pytest.raises(ValueError, match="result operand has 3"):
        _core.run_cpu(problem, *right[0], None, (y.data_ptr(), 3), 1)
    with pytest.raises(ValueError, match="first operand has 16 elements at 0x0"):
        _core.run_cpu(problem, (0, 16), right[0][1], None, right[1], 1)
    with pytest.raises(ValueError, match="bias"):
        _core.run_cpu(problem, *right[0], (y.data_ptr(), 4), right[1], 1)
