"""How results and gradients lie in memory: as torch lays them out, for every view, and in compiled graphs."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import unhang
from comparing import assert_close, assert_same, engines_used
from unhang import Settings

OURS = Settings(strategy="cpu_fallback")
new_torch = pytest.mark.skipif(not hasattr(torch, "compile"), reason="torch 2 and newer")


def _views() -> dict[str, torch.Tensor]:
    last = torch.randn(2, 16, 6, 5).to(memory_format=torch.channels_last)
    return {
        "chunk": last.chunk(2, 1)[1],
        "rows": last[:, :8, ::2],
        "columns": last[:, 4:12, :, 1:],
        "one image": last[:1, :8],
        "strided channels": last[:, ::2],
        "contiguous with gaps": torch.randn(2, 16, 6, 5)[:, :8],
        "transposed": torch.randn(2, 6, 5, 8).permute(0, 3, 1, 2),
    }


@pytest.mark.parametrize("view", list(_views()))
@pytest.mark.parametrize("filters", ["1x1", "3x3", "depthwise", "channels_last weight"])
@pytest.mark.parametrize("strategy", ["cpu_fallback", "tiled"])
def test_results_are_laid_out_as_torch_does(view: str, filters: str, strategy: str) -> None:
    torch.manual_seed(0)
    shapes = {"1x1": (4, 8, 1, 1), "3x3": (4, 8, 3, 3), "depthwise": (8, 1, 3, 3), "channels_last weight": (4, 8, 3, 3)}
    weight = torch.randn(shapes[filters])
    if filters == "channels_last weight":
        weight = weight.to(memory_format=torch.channels_last)
    groups = 8 if filters == "depthwise" else 1

    def compute() -> list[torch.Tensor]:
        x = _views()[view].detach().requires_grad_()
        w = weight.detach().requires_grad_()
        y = F.conv2d(x, w, padding=1, groups=groups)
        return [y, *torch.autograd.grad(y, [x, w], torch.ones_like(y))]

    torch.manual_seed(1)
    plain = compute()
    torch.manual_seed(1)
    with unhang.enabled(strategy, devices=("cpu",), tile_limit=4):
        ours = compute()
    assert ours[0].stride() == plain[0].stride()
    for got, want in zip(ours, plain):
        assert_close(got, want.double(), slack=3)


def _flat_inputs() -> dict[str, torch.Tensor]:
    return {
        "contiguous": torch.randn(2, 8, 7),
        "transposed": torch.randn(2, 7, 8).transpose(1, 2),
        "one sequence": torch.randn(1, 7, 8).transpose(1, 2),
        "permuted": torch.randn(7, 2, 8).permute(1, 2, 0),
        "a part": torch.randn(2, 7, 16).transpose(1, 2)[:, :8],
    }


@pytest.mark.parametrize("view", list(_flat_inputs()))
@pytest.mark.parametrize("filters", ["contiguous", "transposed", "one tap", "depthwise"])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("strategy", ["cpu_fallback", "aten", "tiled"])
def test_results_of_1d_convolutions_are_laid_out_as_torch_does(
    view: str, filters: str, transposed: bool, strategy: str
) -> None:
    torch.manual_seed(0)
    channels, taps, groups = 4, 1 if filters == "one tap" else 3, 1
    shape = (8, channels) if transposed else (channels, 8)
    if filters == "depthwise":
        shape, groups = (8, 1), 8
    weight = torch.randn(*shape, taps)
    if filters == "transposed":
        weight = torch.randn(shape[0], taps, shape[1]).transpose(1, 2)
    x = _flat_inputs()[view]

    def compute() -> list[torch.Tensor]:
        leaves = [x.detach().requires_grad_(), weight.detach().requires_grad_()]
        y = (F.conv_transpose1d if transposed else F.conv1d)(*leaves, groups=groups)
        return [y, *torch.autograd.grad(y, leaves, torch.ones_like(y))]

    plain = compute()
    with unhang.enabled(strategy, devices=("cpu",), tile_limit=4):
        for _ in range(6):  # the direct path knows it from the fifth on
            ours = compute()
            assert ours[0].stride() == plain[0].stride()
            for got, want in zip(ours, plain):
                assert_close(got, want.double(), slack=3)


@new_torch
@pytest.mark.parametrize("patched", [False, True])
def test_compiled_training_on_a_chunk_of_channels_last(patched: bool) -> None:
    torch._dynamo.reset()
    layer = nn.Conv2d(8, 4, 1)
    x = torch.randn(2, 16, 6, 6).to(memory_format=torch.channels_last)

    def compute(form) -> list[torch.Tensor]:
        layer.zero_grad()
        y = form(x.chunk(2, 1)[0])
        y.square().sum().backward()
        return [y.detach(), *(p.grad.clone() for p in layer.parameters())]

    want = compute(layer)
    if patched:
        unhang.patch_model(layer, OURS)
    else:
        unhang.enable("cpu_fallback", devices=("cpu",))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        got = compute(torch.compile(lambda x: layer(x), backend="aot_eager"))
    assert got[0].stride() == want[0].stride()
    for ours, plain in zip(got, want):
        assert_same(ours, plain)
    assert "cpu" in engines_used()


@new_torch
@pytest.mark.parametrize("form", ["channels_last", "chunk"])
def test_a_compiled_graph_expects_the_strides_that_it_gets(form: str) -> None:
    torch._dynamo.reset()
    layer = unhang.patch_model(nn.Conv2d(8, 4, 3), OURS)
    x = torch.randn(2, 16, 6, 6).to(memory_format=torch.channels_last)
    x = x.chunk(2, 1)[0] if form == "chunk" else x[:, :8].contiguous(memory_format=torch.channels_last)

    @torch.compile(backend="aot_eager", fullgraph=True)
    def compute(x: torch.Tensor) -> tuple[torch.Tensor, tuple[int, ...]]:
        y = layer(x)
        return y, y.stride()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        y, expected = compute(x)
    assert y.stride() == expected == nn.Conv2d.forward(layer, x).stride()
    assert y.is_contiguous(memory_format=torch.channels_last)
