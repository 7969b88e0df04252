"""``SafeConv2d`` wherever ``nn.Conv2d`` goes: torch.func, compiled, exported, traced, fused, saved."""

from __future__ import annotations

import io
import warnings

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad

import unhang
from comparing import assert_same, engines_used
from unhang import SafeConv2d, Settings, _convolve

OURS = Settings(strategy="cpu_fallback")
new_torch = pytest.mark.skipif(not hasattr(torch, "compile"), reason="torch 2 and newer")


def _same(compute, layer: nn.Conv2d) -> None:
    want = compute(layer)
    got = compute(unhang.patch_model(layer, OURS))
    for ours, plain in zip(got, want):
        assert ours.dtype == plain.dtype
        assert_same(ours, plain)


def test_safe_layers_under_autocast() -> None:
    x = torch.randn(1, 2, 6, 6)

    def twice(layer: nn.Module) -> list[torch.Tensor]:
        layer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = layer(layer(x))
        y.float().sum().backward()
        return [y, layer.weight.grad.clone()]

    def double(layer: nn.Module) -> list[torch.Tensor]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return [layer.double()(x.double())]

    # The gradient is single precision, and sums what was rounded to bfloat16: by torch once or twice, as the processor
    # has it.
    _same(lambda it: [t.to(torch.bfloat16) for t in twice(it)], nn.Conv2d(2, 2, 3, padding=1))
    _same(double, nn.Conv2d(2, 2, 3, padding=1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_recorded_safe_layers_under_autocast(dtype: torch.dtype) -> None:
    """A recorded graph holds our op, which torch's autocast does not know."""
    x = torch.randn(1, 2, 6, 6, dtype=dtype)

    def recorded(layer: nn.Module) -> list[torch.Tensor]:
        with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
            return [torch.jit.trace(layer, x)(x)]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _same(recorded, nn.Conv2d(2, 2, 3, dtype=dtype))
        layer = unhang.patch_model(nn.Conv2d(2, 2, 3, dtype=dtype), OURS)
        assert recorded(layer)[0].dtype == (torch.float64 if dtype is torch.float64 else torch.bfloat16)


def test_safe_layers_on_meta_and_on_complex_numbers() -> None:
    layer = SafeConv2d(2, 3, 3, config=OURS, device="meta")
    assert layer(torch.randn(1, 2, 6, 6, device="meta")).shape == (1, 3, 4, 4)
    _same(lambda it: [torch.view_as_real(it(torch.randn(1, 2, 6, 6, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))))],
          nn.Conv2d(2, 3, 3, dtype=torch.complex64))  # fmt: skip


def test_safe_layers_with_forward_gradients() -> None:
    import torch.autograd.forward_ad as forward

    x, tangent = torch.randn(1, 2, 6, 6), torch.randn(1, 2, 6, 6)

    def compute(layer: nn.Module) -> list[torch.Tensor]:
        with forward.dual_level():
            primal, moved = forward.unpack_dual(layer(forward.make_dual(x, tangent)))
            assert moved is not None
            return [primal.detach(), moved.detach()]

    _same(compute, nn.Conv2d(2, 3, 3))


@new_torch
def test_safe_layers_under_torch_func() -> None:
    from torch import func

    x = torch.randn(1, 1, 4, 4, dtype=torch.float64)

    def compute(layer: nn.Module) -> list[torch.Tensor]:
        parameters = {name: it.detach() for name, it in layer.named_parameters()}

        def loss(parameters: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
            return func.functional_call(layer, parameters, (x,)).sin().sum()

        grads = func.grad(loss)(parameters, x)
        per_sample = func.vmap(func.grad(loss), (None, 0))(parameters, torch.stack([x, 2 * x]))
        hessian = func.hessian(lambda x: loss(parameters, x))(x)
        jacobian = func.jacrev(lambda x: layer(x))(x)
        _, moved = func.jvp(lambda x: layer(x), (x,), (torch.ones_like(x),))
        return [*grads.values(), *per_sample.values(), hessian, jacobian.detach(), moved.detach()]

    _same(compute, nn.Conv2d(1, 2, 3).double())


@new_torch
def test_safe_layers_compile_whole_and_export() -> None:
    torch._dynamo.reset()
    x = torch.randn(1, 2, 6, 6)
    layer = unhang.patch_model(nn.Conv2d(2, 3, 3), OURS)
    want = layer(x)
    _convolve.routes.clear()
    _convolve.replan()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.testing.assert_close(torch.compile(layer, backend="aot_eager", fullgraph=True)(x), want)
        assert engines_used() == {"cpu"}, "the compiled graph holds the layer's settings"
        for strict in (True, False):
            exported = torch.export.export(layer, (x,), strict=strict)
            assert "unhang" not in exported.graph_module.code, "what is exported runs where unhang is not"
            torch.testing.assert_close(exported.module()(x), want)


@new_torch
@pytest.mark.filterwarnings("ignore")
def test_safe_layers_under_torch_func_in_what_is_compiled() -> None:
    from torch import func

    x = torch.randn(3, 1, 1, 4, 4, dtype=torch.float64)

    def compute(layer: nn.Module) -> list[torch.Tensor]:
        def transform(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            grads = func.vmap(func.grad(lambda x: layer(x).sin().sum()))(x)
            return func.vmap(layer)(x), grads, func.jvp(layer, (x[0],), (x[1],))[1]

        torch._dynamo.reset()
        return list(torch.compile(transform, backend="aot_eager")(x))

    _same(compute, nn.Conv2d(1, 2, 3).double().requires_grad_(False))


@pytest.mark.filterwarnings("ignore")
def test_safe_layers_are_exported_to_onnx_as_torchs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's older exporter, which traces; the newer one is an export like those above. Newer torch asks for a package
    to write the file."""
    layer, x = unhang.patch_model(nn.Conv2d(2, 3, 3), OURS), torch.randn(1, 2, 6, 6)
    if not hasattr(torch, "compile"):
        written = io.BytesIO()
        torch.onnx.export(layer, (x,), written)
        assert b"Conv" in written.getvalue()
        assert b"unhang" not in written.getvalue()
    monkeypatch.setattr(torch.onnx, "is_in_onnx_export", lambda: True)
    assert "unhang::convolution" not in str(torch.jit.trace(layer, x).graph)
    monkeypatch.undo()
    assert "unhang::convolution" in str(torch.jit.trace(layer, x).graph)


def test_safe_layers_in_fx() -> None:
    from torch import fx

    model = unhang.patch_model(nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU()), OURS)
    x = torch.randn(1, 2, 6, 6)
    torch.testing.assert_close(fx.symbolic_trace(model)(x), model(x))


@pytest.mark.filterwarnings("ignore")
def test_safe_layers_are_fused_with_batch_norms() -> None:
    from torch.ao.quantization import fuse_modules

    def make() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU()).eval()

    x = torch.randn(1, 2, 6, 6)
    want = fuse_modules(make(), ["0", "1", "2"])(x)
    fused = fuse_modules(unhang.patch_model(make(), OURS), ["0", "1", "2"])
    assert_same(fused(x), want)
    assert [type(it) for it in fused.modules() if isinstance(it, nn.Conv2d)] == [SafeConv2d]
    assert engines_used() == {"cpu"}


def test_settings_are_values_that_can_be_copied_saved_and_compared() -> None:
    import copy
    import pickle

    settings = Settings(strategy="TILED", tile_limit=9, verbose=True)
    assert (settings.strategy, settings.tile_limit, settings.verbose, settings.tune) == ("tiled", 9, True, False)
    for copied in (
        copy.deepcopy(settings),
        pickle.loads(pickle.dumps(settings, 2)),
        Settings.from_token(settings.token),
    ):
        assert copied == settings
        assert hash(copied) == hash(settings)
    assert settings.changed(verbose=False) != settings
    assert repr(settings).startswith("Settings(strategy='tiled', size_threshold=42")
    with pytest.raises(AttributeError):
        settings.tile_limit = 3  # type: ignore[misc]
    with pytest.raises(ValueError, match="unknown setting 'colour'"):
        Settings(colour="red")  # type: ignore[call-arg]


@pytest.mark.skipif(not hasattr(torch.library, "opcheck"), reason="torch 2.4 and newer")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
def test_our_op_passes_torchs_own_check(form: torch.memory_format) -> None:
    x = torch.randn(2, 4, 6, 6).to(memory_format=form).requires_grad_()
    w, b = torch.randn(4, 2, 3, 3).to(memory_format=form).requires_grad_(), torch.randn(4, requires_grad=True)
    geometry = ([1, 1], [1, 1], [1, 1], False, [0, 0], 2)
    torch.library.opcheck(torch.ops.unhang.convolution.default, (x, w, b, *geometry, OURS.token))
    g = torch.randn(2, 4, 6, 6).to(memory_format=form)
    torch.library.opcheck(
        torch.ops.unhang.convolution_backward.default,
        (g, x.detach(), w.detach(), [4], *geometry, [True, True, True], OURS.token),
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("of", ["input", "weight", "bias", "all"])
def test_forward_gradients_of_a_traced_safe_layer(of: str) -> None:
    layer, x = SafeConv2d(2, 3, 3, config=Settings(strategy="cpu_fallback")).double(), torch.randn(1, 2, 7, 7).double()
    operands = {"input": x, "weight": layer.weight.detach().clone(), "bias": layer.bias.detach().clone()}
    tangents = {name: torch.randn_like(it) for name, it in operands.items() if of in (name, "all")}
    token, geometry = Settings(strategy="cpu_fallback").token, ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    found = []
    for call in (
        lambda *it: torch.nn.functional.conv2d(*it),
        lambda *it: torch.ops.unhang.convolution(*it, *geometry, token),
    ):
        with forward_ad.dual_level():
            duals = [
                forward_ad.make_dual(it, tangents[name]) if name in tangents else it for name, it in operands.items()
            ]
            found.append(forward_ad.unpack_dual(call(*duals)))
    for ours, plain in zip(found[1], found[0]):
        torch.testing.assert_close(ours, plain)
