"""3-d convolutions: folded into 2-d ones and computed by our engines, as torch computes them."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import unhang
from comparing import assert_close, assert_same
from emulating import emulated_card, let
from unhang import _convolve, _core, _divided

LAST = torch.channels_last_3d
CASES = [
    "plain",
    "stride",
    "dilation",
    "groups",
    "depthwise",
    "1x1x1",
    "3x1x1",
    "1x3x3",
    "whole depth",
    "unbatched",
    "same",
    "transposed",
    "transposed groups",
    "transposed with gaps",
    "channels_last",
    "channels_last stride",
    "channels_last 1x3x3",
    "channels_last weight",
    "channels_last transposed",
    "view",
]


def _calls(dtype: torch.dtype, held: torch.dtype | None = None) -> dict[str, Callable[[], list[torch.Tensor]]]:
    """Calls on the same numbers in every type, as far as ``held`` holds them."""

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape).to(held or dtype).to(dtype)

    torch.manual_seed(0)
    x = randn(2, 6, 7, 6, 5)
    w, b = randn(8, 6, 3, 3, 3), randn(8)
    up, c = randn(6, 4, 3, 2, 3), randn(4)
    last, last_w, last_up = (it.to(memory_format=LAST) for it in (x, w, up))
    groups = randn(8, 3, 3, 2, 3)
    deep = randn(12, 1, 3, 3, 3)

    def case(op: Callable[..., torch.Tensor], *tensors: torch.Tensor | None, **options: object):
        def call() -> list[torch.Tensor]:
            given = [None if it is None else it.detach().requires_grad_() for it in tensors]
            y = op(*given, **options)
            torch.manual_seed(1)
            gradients = torch.autograd.grad(y, [it for it in given if it is not None], randn(*y.shape))
            return [y, *gradients]

        return call

    return {
        "plain": case(F.conv3d, x, w, b, padding=1),
        "stride": case(F.conv3d, x, w, b, stride=(2, 1, 2), padding=(1, 0, 2)),
        "dilation": case(F.conv3d, x, w, None, dilation=(2, 1, 2), padding=2),
        "groups": case(F.conv3d, x, groups, b, stride=(3, 1, 1), padding=(2, 1, 0), groups=2),
        "depthwise": case(F.conv3d, x, deep, None, padding=1, groups=6),
        "1x1x1": case(F.conv3d, x, w[:, :, :1, :1, :1], b),
        "3x1x1": case(F.conv3d, x, w[:, :, :, :1, :1], b, stride=(2, 1, 1), padding=(1, 0, 0)),
        "1x3x3": case(F.conv3d, x, w[:, :, :1], b, padding=(0, 1, 1)),
        "whole depth": case(F.conv3d, x[:, :, :3], w, b),
        "unbatched": case(F.conv3d, x[0], w, b, padding=1),
        "same": case(F.conv3d, x, w[:, :, :2], b, padding="same"),
        "transposed": case(F.conv_transpose3d, x, up, c, stride=2, padding=1, output_padding=(1, 0, 1)),
        "transposed groups": case(F.conv_transpose3d, x, up, None, stride=(1, 2, 1), dilation=(2, 1, 1), groups=2),
        # Depths that no tap meets have the bias alone.
        "transposed with gaps": case(F.conv_transpose3d, x, up[:, :, :2], c, stride=(4, 1, 1)),
        "channels_last": case(F.conv3d, last, last_w, b, padding=1),
        "channels_last stride": case(F.conv3d, last, last_w, b, stride=(2, 2, 1), padding=1),
        "channels_last 1x3x3": case(F.conv3d, last, last_w[:, :, :1], b, padding=(0, 1, 1)),
        "channels_last weight": case(F.conv3d, x, last_w, b, padding=1),
        "channels_last transposed": case(F.conv_transpose3d, last, last_up, c, stride=2, padding=1),
        "view": case(F.conv3d, x[:, :, 1:, ::2, 1:], w, b, padding=1),
    }


def computed_by() -> set[str]:
    return {route.names[0] for route in _convolve.routes.values() if route.tally.total}


def test_every_case_is_named() -> None:
    assert list(_calls(torch.float32)) == CASES


@pytest.mark.parametrize("case", CASES)
def test_results_and_gradients_are_torchs(case: str) -> None:
    plain = _calls(torch.float64)[case]()
    with unhang.enabled("cpu_fallback", devices=("cpu",)):
        before = _convolve.redispatched.total
        ours = _calls(torch.float64)[case]()
        assert _convolve.redispatched.total == before
    assert computed_by() == {"cpu"}
    for got, want in zip(ours, plain):
        torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-11)
        assert got.stride() == want.stride()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("case", ["plain", "stride", "transposed", "channels_last", "groups"])
def test_every_type_is_summed_as_exactly_as_in_two_dimensions(case: str, dtype: torch.dtype) -> None:
    exact = _calls(torch.float64, held=dtype)[case]()
    with unhang.enabled("cpu_fallback", devices=("cpu",)):
        ours = _calls(dtype)[case]()
    for got, want in zip(ours, exact):
        assert got.dtype is dtype
        assert_close(got, want, slack=2)


def test_a_layer_counts_one_forward_however_many_parts_it_has() -> None:
    gc.collect()  # layers of other tests count as long as they live
    model = nn.Sequential(nn.Conv3d(3, 4, 3, padding=1), nn.ConvTranspose3d(4, 2, 3, stride=2))
    x = torch.randn(1, 3, 5, 6, 6)
    with unhang.enabled("cpu_fallback", devices=("cpu",)):
        unhang.track(model)
        for _ in range(3):
            model(x).sum().backward()
        layers = {layer["name"]: layer for layer in unhang.report().data["layers"]}
    assert {name: layer["total_forwards"] for name, layer in layers.items()} == {"0": 3, "1": 3}
    assert {name: layer["engines"] for name, layer in layers.items()} == {"0": {"cpu": 3}, "1": {"cpu": 3}}
    assert "forward:f32:nchw:5x9x6x6:4x3x3" in unhang.report().text()


def test_large_ones_are_computed_in_parts() -> None:
    x, w = torch.randn(1, 32, 16, 32, 32), torch.randn(2, 32, 5, 1, 3)
    want = F.conv3d(x.double(), w.double(), padding=(2, 0, 1))
    with unhang.enabled("cpu_fallback", devices=("cpu",)):
        assert_close(F.conv3d(x, w, padding=(2, 0, 1)), want, slack=2)
        (folded,) = _convolve._volumes.values()
    assert folded is not None
    assert len(folded.parts) > 1
    most = max(1 << 20, 3 * (x.numel() + w.numel() + want.numel()))
    for problem, _ in folded.parts:
        shapes = (problem.input_shape, problem.weight_shape, problem.output_shape)
        assert sum(torch.Size(shape).numel() for shape in shapes) <= most


def test_derivatives_of_any_order() -> None:
    x = torch.randn(1, 2, 4, 3, 3, dtype=torch.float64, requires_grad=True)
    w = torch.randn(2, 2, 2, 2, 2, dtype=torch.float64, requires_grad=True)
    with unhang.enabled("cpu_fallback", devices=("cpu",)):
        for op in (F.conv3d, F.conv_transpose3d):
            assert torch.autograd.gradcheck(lambda x, w, op=op: op(x, w, stride=(2, 1, 1), padding=1), (x, w))
            assert torch.autograd.gradgradcheck(lambda x, w, op=op: op(x, w, padding=1), (x, w))


def test_what_torch_computes_by_itself_it_computes_whole() -> None:
    """No convolution is folded only to be computed by torch's own kernels."""
    x, w = torch.randn(1, 2, 4, 4, 4), torch.randn(3, 2, 3, 3, 3)
    want = F.conv3d(x, w)
    with unhang.enabled("aten", devices=("cpu",)):
        assert_same(F.conv3d(x, w), want)
        assert list(_convolve._volumes.values()) == [None]


def test_errors_are_torchs_own() -> None:
    for call in (
        lambda: F.conv3d(torch.ones(1, 3, 4, 4, 4), torch.ones(4, 2, 3, 3, 3)),
        lambda: F.conv3d(torch.ones(1, 3, 2, 2, 2), torch.ones(4, 3, 3, 3, 3)),
        lambda: F.conv3d(torch.ones(1, 3, 4, 4, 4), torch.ones(4, 3, 3, 3, 3), stride=0),
        lambda: F.conv3d(torch.ones(1, 3, 4, 4, 4), torch.ones(4, 3, 3, 3, 3), torch.ones(5)),
    ):
        with pytest.raises(RuntimeError) as plain:
            call()
        with unhang.enabled("cpu_fallback", devices=("cpu",)), pytest.raises(RuntimeError) as ours:
            call()
        assert str(ours.value) == str(plain.value)


@pytest.mark.skipif(not hasattr(torch, "compile"), reason="torch 2 and newer")
@pytest.mark.parametrize("last", [False, True])
def test_compiled_graphs_get_the_strides_that_they_expect(last: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv3d(4, 6, 3, padding=1, stride=(2, 1, 1)), nn.ReLU(), nn.ConvTranspose3d(6, 4, 2, 2))
    x = torch.randn(2, 4, 5, 6, 6)
    if last:
        model, x = model.to(memory_format=LAST), x.to(memory_format=LAST)
    plain, compiled = copy.deepcopy(model), torch.compile(model, backend="aot_eager")
    want = plain(x)
    want.sum().backward()
    with unhang.enabled("cpu_fallback", devices=("cpu",)):
        got = compiled(x)
        got.sum().backward()
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    assert got.stride() == want.stride()
    for ours, theirs in zip(model.parameters(), plain.parameters()):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-3)


def test_planes_that_are_not_there_are_zero() -> None:
    x = torch.arange(1.0, 13).reshape(1, 2, 3, 1, 2)
    for last in (False, True):
        # Depths -1, 1, 3 with the next ones as channels.
        got = _divided.gather(x, ((0, 1), (0, 2), -1, (2, 3), (1, 2)), last=last)
        want = [[0, 1, 0, 7], [3, 5, 9, 11], [0, 0, 0, 0]]
        assert got[:, :, 0, 0].tolist() == want
        assert got.is_contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)


def test_on_the_affected_card_our_kernels_compute(affected_machine: Path, kernels_of_this_file: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(1, 4, 4, 5, 6, requires_grad=True)
    w = torch.randn(6, 4, 3, 3, 3, requires_grad=True)
    b = torch.randn(6, requires_grad=True)
    options = {"stride": (2, 1, 1), "padding": 1}
    y = F.conv3d(x.double(), w.double(), b.double(), **options)
    g = torch.randn_like(y)
    want = [y, *torch.autograd.grad(y, [x, w, b], g)]
    with emulated_card(kernels_of_this_file) as card:
        let(card)
        with unhang.enabled(rehearse=True):
            y = F.conv3d(x, w, b, **options)
            for ours, exact in zip([y, *torch.autograd.grad(y, [x, w, b], g.float())], want):
                assert_close(ours, exact, slack=2)
        keys = {route.key: route.names[0] for route in _convolve.routes.values()}
    assert set(keys.values()) == {"jit"}
    assert "forward:f32:nchw:2x12x5x6:6x3x3:s1x1:p1x1:d1x1:g1" in keys
    assert sum(key.startswith("backward-data") for key in keys) == 2, "one for each remainder of the stride"
    assert isinstance(card, _core.Gpu)
