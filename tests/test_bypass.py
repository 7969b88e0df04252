"""The bypass of RDNA1's users: its ten test categories, its documents' code, its six settings."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import bypass_blocks
from comparing import assert_close, assert_same
from conv2d_fallback import (
    Conv2dBypassConfig,
    FallbackStrategy,
    SafeConv2d,
    disable_miopen_bypass,
    enable_miopen_bypass,
    get_bypass_stats,
    patch_model,
    print_bypass_report,
)
from unhang import _convolve


class YourModel(nn.Module):
    """What the document calls a model of yours."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 16, 3, stride=2, groups=2, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv2(self.conv1(x).relu())


def layer(strategy: FallbackStrategy, **options: object) -> SafeConv2d:
    return SafeConv2d(3, 4, 3, padding=1, config=Conv2dBypassConfig(strategy=strategy, **options))


def image(size: int) -> torch.Tensor:
    return torch.randn(1, 3, size, size)


# The ten categories of the bypass's own test suite, with numbers compared.


def test_1_basic_functionality() -> None:
    plain = nn.Conv2d(3, 4, 3, padding=1)
    safe = layer(FallbackStrategy.CPU_FALLBACK)
    safe.load_state_dict(plain.state_dict())
    x = image(16)
    assert_close(safe(x).detach(), plain.double()(x.double()).detach())


@pytest.mark.parametrize(("size", "bypassed"), [(32, 0), (42, 0), (43, 1), (44, 1)])
def test_2_size_threshold(size: int, bypassed: int) -> None:
    safe = layer(FallbackStrategy.SELECTIVE)
    safe(image(size))
    safe(torch.randn(1, 3, 8, size))  # the larger side decides
    assert safe.get_bypass_stats()["bypass_count"] == 2 * bypassed


@pytest.mark.parametrize(("strategy", "engine"), [
    (FallbackStrategy.AUTO, "aten"), (FallbackStrategy.IMPLICIT_GEMM, "aten"), (FallbackStrategy.CPU_FALLBACK, "cpu"),
    (FallbackStrategy.SELECTIVE, "cpu"), (FallbackStrategy.ATEN, "aten"), (FallbackStrategy.JIT, "aten"),
    (FallbackStrategy.TILED, "tiled(aten)"),
])  # fmt: skip
def test_3_strategy_selection(strategy: FallbackStrategy, engine: str) -> None:
    safe = layer(strategy)
    x = image(64)
    want = nn.functional.conv2d(x.double(), safe.weight.double(), safe.bias.double(), padding=1)
    assert_close(safe(x).detach(), want.detach())
    stats = safe.get_bypass_stats()
    assert stats["engines"] == {engine: 1}
    assert stats["strategy"] == strategy.value


def test_4_model_patching() -> None:
    model = nn.Sequential(YourModel(), nn.Sequential(nn.Conv2d(16, 2, 1)))
    patched = patch_model(model)
    assert sum(isinstance(m, SafeConv2d) for m in patched.modules()) == 3


def test_5_performance_is_measured_elsewhere_and_bounded_here() -> None:
    """Overhead has a separate benchmark (``make bench-overhead``); here only: a second call plans nothing."""
    safe = layer(FallbackStrategy.CPU_FALLBACK)
    safe(image(16))
    before = _convolve.decisions
    for _ in range(10):
        safe(image(16))
    assert _convolve.decisions == before


@pytest.mark.parametrize("options", [{"stride": 2}, {"groups": 3}, {"dilation": 2}, {"bias": False}], ids=str)
def test_6_edge_cases(options: dict) -> None:
    safe = SafeConv2d(3, 6, 3, config=Conv2dBypassConfig(strategy=FallbackStrategy.CPU_FALLBACK), **options)
    x = image(21)
    plain = nn.Conv2d(3, 6, 3, **options)
    plain.load_state_dict(safe.state_dict())
    assert_close(safe(x).detach(), plain.double()(x.double()).detach())


def test_7_integration_is_in_test_models() -> None:
    """Real models are in ``test_models.py``; here: patched and global give the same as plain."""
    torch.manual_seed(0)
    model, x = YourModel(), image(48)
    want = model(x)
    enable_miopen_bypass(strategy=FallbackStrategy.CPU_FALLBACK)
    torch.testing.assert_close(model(x), want)
    disable_miopen_bypass()
    patch_model(model, config=Conv2dBypassConfig(strategy=FallbackStrategy.CPU_FALLBACK))
    torch.testing.assert_close(model(x), want)


def test_8_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MIOPEN_DEBUG_CONV_IMPLICIT_GEMM", raising=False)
    monkeypatch.delenv("MIOPEN_DEBUG_CONV_GEMM", raising=False)
    enable_miopen_bypass()
    assert os.environ["MIOPEN_DEBUG_CONV_IMPLICIT_GEMM"] == "1"
    assert os.environ["MIOPEN_DEBUG_CONV_GEMM"] == "0", "a 1 alone does nothing: the others' 0 is what acts"
    disable_miopen_bypass()
    assert "MIOPEN_DEBUG_CONV_IMPLICIT_GEMM" not in os.environ


def test_9_gradient_flow() -> None:
    safe = layer(FallbackStrategy.CPU_FALLBACK)
    parameters = {name: id(p) for name, p in safe.named_parameters()}
    x = image(20).requires_grad_()
    safe(x).square().sum().backward()
    want = torch.autograd.grad(
        nn.functional.conv2d(x, safe.weight, safe.bias, padding=1).square().sum(), [x, safe.weight, safe.bias]
    )
    for got, plain in zip((x.grad, safe.weight.grad, safe.bias.grad), want):
        assert_same(got, plain)
    assert {name: id(p) for name, p in safe.named_parameters()} == parameters, "no parameter is moved or replaced"


def test_10_memory_is_in_test_dispatch() -> None:
    """1,000 steps are in ``test_dispatch.py``; here: layers that are gone take their counts with them."""
    import gc
    import weakref

    safe = layer(FallbackStrategy.CPU_FALLBACK)
    safe(image(8))
    gone = weakref.ref(safe)
    del safe
    gc.collect()
    assert gone() is None


# The documents' code, as it stands.


@pytest.fixture
def scope(monkeypatch: pytest.MonkeyPatch) -> dict:
    if not torch.cuda.is_available():
        monkeypatch.setattr(nn.Module, "cuda", lambda self: self)
        monkeypatch.setattr(torch.Tensor, "cuda", lambda self: self)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return {"YourModel": YourModel, "torch": torch}


def test_code_of_the_strategies(scope: dict) -> None:
    for block, engine in zip(bypass_blocks.STRATEGIES, ("cpu", "cpu", "aten")):
        exec(block, scope)
        conv = nn.Conv2d(3, 4, 3)
        conv(image(64))
        assert conv.get_bypass_stats()["engines"] == {engine: 1}


def test_code_of_the_quick_start(scope: dict) -> None:
    exec(bypass_blocks.QUICK_START[0], scope)
    device = next(scope["model"].parameters()).device
    scope["model"](image(24).to(device))
    assert scope["model"].conv1.get_bypass_stats()["total_forwards"] == 1
    disable_miopen_bypass()
    for block in bypass_blocks.QUICK_START[1:]:
        exec(block, scope)
    assert isinstance(scope["model"].conv2, SafeConv2d)
    assert scope["conv"](image(24).to(device)).shape == (1, 64, 24, 24)


def test_code_of_configuration_report_and_troubleshooting(scope: dict, capsys: pytest.CaptureFixture) -> None:
    exec(bypass_blocks.CONFIGURATION, scope)
    assert scope["config"] == Conv2dBypassConfig(verbose=True)
    scope["model"] = patch_model(YourModel(), config=scope["config"])
    scope["model"](image(24))
    exec(bypass_blocks.REPORT, scope)
    printed = capsys.readouterr().out
    for line in ("Conv2d Bypass Report", "conv1:", "  Forwards: 1", "  Bypasses: 0 (0.0%)", "Total Conv2d layers: 2",
                 "SafeConv2d layers: 2", "Standard Conv2d layers: 0", "Total forward passes: 2", "Total bypasses: 0 (0.0%)"):  # fmt: skip
        assert line in printed.splitlines(), printed
    scope["SafeConv2d"] = SafeConv2d
    for block in bypass_blocks.TROUBLESHOOTING[:2]:
        exec(block, scope)
    if torch.cuda.is_available():
        return  # its last block looks at the gradient of a tensor that .cuda() made no leaf: it fails with any layer
    exec(bypass_blocks.TROUBLESHOOTING[2], scope)
    assert "Gradients OK" in capsys.readouterr().out


# Six settings, each of which changes what happens.


def test_strategy_changes_the_engine() -> None:
    engines = set()
    for strategy in (FallbackStrategy.AUTO, FallbackStrategy.CPU_FALLBACK):
        safe = layer(strategy)
        safe(image(16))
        engines |= set(safe.get_bypass_stats()["engines"])
    assert engines == {"aten", "cpu"}


def test_size_threshold_changes_the_boundary() -> None:
    for threshold, engine in ((15, "cpu"), (16, "aten")):
        safe = layer(FallbackStrategy.SELECTIVE, size_threshold=threshold)
        safe(image(16))
        assert safe.get_bypass_stats()["engines"] == {engine: 1}


def test_enable_implicit_gemm_changes_the_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MIOPEN_DEBUG_CONV_WINOGRAD", raising=False)
    seen = []
    for wanted in (False, True):
        enable_miopen_bypass(config=Conv2dBypassConfig(enable_implicit_gemm=wanted))
        seen.append(os.environ.get("MIOPEN_DEBUG_CONV_WINOGRAD"))
        disable_miopen_bypass()
    assert seen == [None, "0"]


def test_cpu_fallback_enabled_changes_who_takes_large_inputs() -> None:
    for allowed, engine in ((True, "cpu"), (False, "aten")):
        safe = layer(FallbackStrategy.SELECTIVE, cpu_fallback_enabled=allowed)
        safe(image(64))
        assert safe.get_bypass_stats()["engines"] == {engine: 1}


def test_verbose_changes_what_is_printed(capsys: pytest.CaptureFixture) -> None:
    for verbose in (False, True):
        safe = layer(FallbackStrategy.CPU_FALLBACK, verbose=verbose)
        safe(image(19))
        safe(image(19))
        printed = capsys.readouterr().err
        assert printed.count("1x3x19x19") == verbose
    assert "cpu_fallback computes everything on the CPU" in printed


def test_cache_decisions_changes_how_often_is_planned() -> None:
    for keep, plans in ((True, 1), (False, 3)):
        safe = layer(FallbackStrategy.CPU_FALLBACK, cache_decisions=keep, size_threshold=7)
        before = _convolve.decisions
        for _ in range(3):
            safe(image(18))
        assert _convolve.decisions - before == plans


# After a global enable every layer is counted, once.


def test_plain_layers_are_counted_after_a_global_enable() -> None:
    made_before = YourModel()
    enable_miopen_bypass(strategy=FallbackStrategy.SELECTIVE)
    made_after = YourModel()
    for model in (made_before, made_after):
        for _ in range(3):
            model(image(64))
        assert model.conv1.get_bypass_stats() == {
            "total_forwards": 3, "bypass_count": 3, "bypass_rate": 100.0, "strategy": "selective", "engines": {"cpu": 3},
        }  # fmt: skip
        assert model.conv2.get_bypass_stats()["engines"] == {"cpu": 3}
        assert get_bypass_stats(model)["total_forwards"] == 6
    assert get_bypass_stats()["total_forwards"] >= 12


def test_the_report_counts_plain_and_safe_layers(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(3, 3, 1), SafeConv2d(3, 3, 1))
    enable_miopen_bypass(strategy=FallbackStrategy.CPU_FALLBACK)
    model(image(8))
    with open(tmp_path / "report.txt", "w") as file:
        print_bypass_report(model, file=file)
    lines = (tmp_path / "report.txt").read_text().splitlines()
    for line in ("SafeConv2d layers: 1", "Standard Conv2d layers: 1", "Total forward passes: 2",
                 "Total bypasses: 2 (100.0%)", "  Engine: cpu (1)"):  # fmt: skip
        assert line in lines
    assert lines[0] == "=" * 70
