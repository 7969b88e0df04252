"""On a real GPU: the same loop on an accelerator's tensors, backward on autograd's own threads. Skipped without one."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import unhang
from comparing import assert_close
from unhang import SafeConv2d, Settings, _convolve

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that torch can use is here")

STRATEGIES = ["jit", "aten", "cpu_fallback", "tiled", "selective", "implicit_gemm"]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("channels_last", [False, True])
def test_forward_and_backward(strategy: str, channels_last: bool) -> None:
    torch.manual_seed(0)
    torch.backends.cudnn.allow_tf32 = False
    x = torch.randn(2, 8, 50, 44, device="cuda")
    w = torch.randn(12, 4, 3, 3, device="cuda")
    if channels_last:
        x, w = x.to(memory_format=torch.channels_last), w.to(memory_format=torch.channels_last)
    b = torch.randn(12, device="cuda")
    x, w, b = (tensor.requires_grad_() for tensor in (x, w, b))

    def compute(x, w, b):
        y = F.conv2d(x, w, b, stride=2, padding=1, groups=2)
        return y, *torch.autograd.grad(y.sin().sum(), [x, w, b])

    want = compute(x.double(), w.double(), b.double())
    with unhang.enabled(strategy, devices=("cuda",)):
        got = compute(x, w, b)
    for ours, plain in zip(got, want):
        assert ours.device == plain.device
        assert_close(ours, plain, slack=3)
    expected = {"jit": "jit", "cpu_fallback": "cpu", "selective": "cpu", "tiled": "tiled(aten)"}
    if torch.version.hip:  # on an affected card
        expected |= {"tiled": "tiled(jit)", "implicit_gemm": "miopen"}
    assert {route.names[0] for route in _convolve.routes.values()} == {expected.get(strategy, "aten")}
    assert len(_convolve.routes) == 3


def test_parameters_stay_where_they_are() -> None:
    layer = SafeConv2d(3, 4, 3, config=Settings(strategy="cpu_fallback")).cuda()
    before = [(id(p), p.data_ptr(), p.device) for p in layer.parameters()]
    x = torch.randn(1, 3, 20, 20, device="cuda", requires_grad=True)
    layer(x).sum().backward()
    assert [(id(p), p.data_ptr(), p.device) for p in layer.parameters()] == before
    assert x.grad is not None
    assert x.grad.is_cuda
    assert layer.weight.grad is not None
    assert layer.weight.grad.is_cuda
    assert {route.names[0] for route in _convolve.routes.values()} == {"cpu"}, (
        "the backward's thread knows the layer's plan"
    )


def test_autocast_on_the_gpu() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3)).cuda()
    x = torch.randn(1, 3, 20, 20, device="cuda")
    with unhang.enabled("cpu_fallback", devices=("cuda",)), torch.autocast("cuda", dtype=torch.float16):
        y = model(x)
    assert y.dtype == torch.float16
    torch.testing.assert_close(y.float(), model(x), rtol=0.05, atol=0.05)
    assert all(":f16:" in key for key, _ in _convolve.routes)


def test_flags_are_as_they_were() -> None:
    flags = torch.backends.cudnn
    before = flags.enabled, flags.benchmark
    x, w = torch.randn(1, 3, 9, 9, device="cuda"), torch.randn(4, 3, 3, 3, device="cuda", requires_grad=True)
    with unhang.enabled("aten", devices=("cuda",)):
        F.conv2d(x, w).sum().backward()
    assert (flags.enabled, flags.benchmark) == before


def test_cuda_graphs_with_torchs_own_kernels() -> None:
    x, w = torch.randn(1, 8, 16, 16, device="cuda"), torch.randn(8, 8, 3, 3, device="cuda")
    with unhang.enabled("aten", devices=("cuda",)):
        want = F.conv2d(x, w)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = F.conv2d(x, w)
        graph.replay()
        torch.cuda.synchronize()
    torch.testing.assert_close(captured, want)


def test_out_of_memory_reaches_the_user() -> None:
    x = torch.empty(1, 1, 1, 1, device="cuda").expand(60000, 64, 300, 300)
    with unhang.enabled("aten", devices=("cuda",)), pytest.raises(torch.cuda.OutOfMemoryError):
        F.conv2d(x, torch.ones(64, 64, 3, 3, device="cuda"))
    assert not unhang.report().data["failures"]
