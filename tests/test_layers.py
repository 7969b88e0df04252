"""``SafeConv2d`` and patched models: the same layer, planned by its own settings."""

from __future__ import annotations

import copy
import functools
import gc
import io
import threading
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import unhang
from comparing import assert_close
from unhang import Conv2dBypassConfig, FallbackStrategy, SafeConv2d, Settings

OURS = Settings(strategy="cpu_fallback")


class Scaled(nn.Conv2d):
    """A subclass with its own behaviour."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(input)


@pytest.mark.parametrize("options", [
    {"padding": 1}, {"stride": 2, "padding": (0, 1)}, {"dilation": 2}, {"groups": 2}, {"bias": False}, {"padding": "same"},
    {"padding": "valid"}, {"padding": "same", "dilation": 3}, {"padding": 2, "padding_mode": "reflect"},
    {"padding": 1, "padding_mode": "replicate"}, {"padding": "same", "padding_mode": "circular"},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("unbatched", [False, True])
def test_a_drop_in_for_conv2d(options: dict, unbatched: bool) -> None:
    torch.manual_seed(0)
    plain = nn.Conv2d(4, 6, (3, 2), **options).double()
    safe = SafeConv2d(4, 6, (3, 2), config=OURS, **options).double()
    safe.load_state_dict(plain.state_dict())
    assert list(safe.state_dict()) == list(plain.state_dict())
    x = torch.randn(*(() if unbatched else (2,)), 4, 9, 10, dtype=torch.float64, requires_grad=True)
    if unbatched and options.get("padding_mode") == "circular" and not hasattr(torch, "compile"):
        with pytest.raises(RuntimeError, match="Invalid padding size"):
            plain(x)
        with pytest.raises(RuntimeError, match="Invalid padding size"):
            safe(x)  # torch 1.13 does not take this one
        return
    results = []
    for layer in (plain, safe):
        y = layer(x)
        results.append((y, *torch.autograd.grad(y.sin().sum(), [x, *layer.parameters()])))
    for got, want in zip(results[1], results[0]):
        assert_close(got, want, slack=10)
    assert safe.get_bypass_stats() == {
        "total_forwards": 1, "bypass_count": 1, "bypass_rate": 100.0, "strategy": "cpu_fallback", "engines": {"cpu": 1},
    }  # fmt: skip


def test_double_backward() -> None:
    layer = SafeConv2d(2, 2, 3, config=OURS).double()
    x = torch.randn(1, 2, 5, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(layer, (x,))
    assert torch.autograd.gradgradcheck(layer, (x,))


def test_backward_keeps_the_layers_settings_on_another_thread() -> None:
    from unhang import _convolve

    layer = SafeConv2d(2, 2, 3, config=OURS)
    with unhang.enabled("aten", devices=("cpu",)):
        loss = layer(torch.randn(1, 2, 6, 6, requires_grad=True)).sum()
        thread = threading.Thread(target=loss.backward)
        thread.start()
        thread.join()
    assert {route.names[0] for route in _convolve.routes.values()} == {"cpu"}
    assert sorted(key.split(":")[0] for key, _ in _convolve.routes) == ["backward-data", "backward-weights", "forward"]


def test_a_layer_without_settings_follows_the_process() -> None:
    layer = SafeConv2d(1, 1, 3)
    x = torch.randn(1, 1, 8, 8)
    layer(x)
    with unhang.enabled("cpu_fallback", devices=("cpu",)):
        layer(x)
    assert layer.get_bypass_stats()["engines"] == {"aten": 1, "cpu": 1}


def test_a_config_that_is_changed_later_changes_no_layer() -> None:
    from unhang import _convolve

    config = Conv2dBypassConfig(strategy=FallbackStrategy.CPU_FALLBACK)
    layer, x = SafeConv2d(1, 1, 3, config=config), torch.randn(1, 1, 8, 8)
    config.strategy = FallbackStrategy.ATEN
    forms = [layer, copy.deepcopy(layer)]
    if hasattr(torch, "compile"):
        torch._dynamo.reset()
        forms.append(torch.compile(layer, backend="aot_eager"))
    for form in forms:
        _convolve.routes.clear()
        _convolve.replan()
        form(x)
        assert {route.names[0] for route in _convolve.routes.values()} == {"cpu"}
    assert layer.get_bypass_stats()["strategy"] == "cpu_fallback"
    unhang.patch_model(layer, config)
    assert layer.get_bypass_stats()["strategy"] == "aten"


def test_no_forward_is_counted_twice() -> None:
    layer = SafeConv2d(1, 1, 3, config=OURS)
    with unhang.enabled("cpu_fallback", devices=("cpu",)):
        layer(torch.randn(1, 1, 8, 8))
    assert layer.get_bypass_stats()["total_forwards"] == 1


def test_patching_changes_nothing_but_the_path() -> None:
    torch.manual_seed(1)
    shared = nn.Conv2d(4, 4, 3, padding=1)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.Sequential(shared, nn.ReLU(), shared), Scaled(4, 2, 1), nn.BatchNorm2d(2)
    )
    model[0].weight.requires_grad_(False)
    model.eval()
    calls = []
    model[0].register_forward_hook(lambda *_: calls.append("hook"))
    before = {name: id(parameter) for name, parameter in model.named_parameters()}
    objects = [id(module) for module in model.modules()]
    x = torch.randn(2, 3, 8, 8)
    want = model(x)

    assert unhang.patch_model(model, OURS) is model
    assert {name: id(parameter) for name, parameter in model.named_parameters()} == before
    assert [id(module) for module in model.modules()] == objects
    assert [type(m).__name__ for m in model.modules() if isinstance(m, SafeConv2d)] == [
        "SafeConv2d",
        "SafeConv2d",
        "SafeScaled",
    ]
    assert isinstance(model[2], Scaled)
    assert not model[0].weight.requires_grad
    assert not model[0].training
    torch.testing.assert_close(model(x), want)
    assert calls == ["hook", "hook"]
    assert shared.get_bypass_stats()["total_forwards"] == 2
    assert model[2].get_bypass_stats()["engines"] == {"cpu": 1}

    assert unhang.unpatch_model(model) is model
    assert [type(m) for m in model.modules() if isinstance(m, nn.Conv2d)] == [nn.Conv2d, nn.Conv2d, Scaled]
    assert not any(name.startswith("_unhang") for m in model.modules() for name in m.__dict__)
    torch.testing.assert_close(model(x), want)


def test_the_root_is_patched_too() -> None:
    root = unhang.patch_model(nn.Conv2d(1, 1, 3), OURS)
    assert isinstance(root, SafeConv2d)
    root(torch.randn(1, 1, 5, 5))
    assert root.get_bypass_stats()["bypass_count"] == 1
    assert type(unhang.unpatch_model(root)) is nn.Conv2d


def test_parametrized_layers_stay_parametrized() -> None:
    layer = nn.utils.parametrizations.spectral_norm(nn.Conv2d(2, 3, 3)).eval()
    x = torch.randn(1, 2, 6, 6)
    want = layer(x)
    unhang.patch_model(layer, OURS)
    torch.testing.assert_close(layer(x), want)
    assert nn.utils.parametrize.is_parametrized(layer)
    assert layer.get_bypass_stats()["engines"] == {"cpu": 1}


@pytest.mark.parametrize("order", ["patched first", "parametrized first", "removed in between"])
def test_unpatching_keeps_parametrizations(order: str) -> None:
    layer, x = nn.Conv2d(2, 3, 3).eval(), torch.randn(1, 2, 6, 6)
    parametrize = nn.utils.parametrize.register_parametrization
    if order == "patched first":
        unhang.patch_model(layer, OURS)
        parametrize(layer, "weight", Doubled())
    else:
        parametrize(layer, "weight", Doubled())
        unhang.patch_model(layer, OURS)
    assert isinstance(layer, SafeConv2d)
    want = F.conv2d(x, layer.weight, layer.bias)
    torch.testing.assert_close(layer(x), want)
    if order == "removed in between":
        nn.utils.parametrize.remove_parametrizations(layer, "weight")
        assert type(layer) is SafeConv2d
        torch.testing.assert_close(layer(x), want)
    unhang.unpatch_model(layer)
    assert not isinstance(layer, SafeConv2d)
    torch.testing.assert_close(layer(x), want)
    if order != "removed in between":
        assert nn.utils.parametrize.is_parametrized(layer, "weight")
        nn.utils.parametrize.remove_parametrizations(layer, "weight")
    assert type(layer) is nn.Conv2d
    torch.testing.assert_close(layer(x), want)


class Doubled(nn.Module):
    """A parametrization."""

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return 2 * weight


def test_a_class_that_was_made_for_a_layer_goes_with_it() -> None:
    def patch() -> list[weakref.ref]:
        own = type("Own", (nn.Conv2d,), {})
        layers = [own(1, 1, 1), nn.utils.parametrize.register_parametrization(nn.Conv2d(1, 1, 1), "weight", Doubled())]
        for layer in layers:
            unhang.patch_model(layer, OURS)
        return [weakref.ref(own), *(weakref.ref(type(layer)) for layer in layers)]

    classes = patch()
    gc.collect()
    gc.collect()  # the user's class is held by ours until that is gone
    assert [it() for it in classes] == [None] * 3


def test_transposed_layers_are_counted_and_reported() -> None:
    model = unhang._layers.track(
        nn.Sequential(nn.Conv2d(2, 3, 3), nn.ConvTranspose2d(3, 2, 3), nn.Flatten(2), nn.ConvTranspose1d(2, 2, 3))
    )
    x = torch.randn(1, 2, 9, 9)
    want = model(x)
    before = nn.ConvTranspose2d.forward
    with unhang.enabled(settings=OURS, devices=("cpu",)):
        for _ in range(8):
            assert_close(model(x), want.double(), slack=3)
        model[1](torch.randn(1, 3, 5, 5), output_size=(7, 7))
        found = {it["name"]: it["total_forwards"] for it in unhang.report().data["layers"]}
        assert {name: found[name] for name in ("0", "1", "3")} == {"0": 8, "1": 9, "3": 8}
        text = unhang.report().text()
        assert sum(":t:o" in line or "transposed" in line for line in text.splitlines()) >= 2, text
        scripted = torch.jit.script(nn.ConvTranspose2d(3, 2, 3))
        assert scripted(torch.randn(1, 3, 5, 5)).shape == (1, 2, 7, 7)
    assert nn.ConvTranspose2d.forward is before


def test_what_others_put_in_place_of_torchs_methods_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x, calls = nn.Conv2d(1, 1, 3), torch.randn(1, 1, 5, 5), []
    # Puts torch's own methods back in the end.
    for kind, method in unhang._layers._ANNOUNCED:
        monkeypatch.setattr(kind, method, getattr(kind, method))
    plain, transposed = nn.Conv2d._conv_forward, nn.ConvTranspose2d.forward
    unhang.enable(settings=OURS, devices=("cpu",))
    below = nn.Conv2d._conv_forward

    def others(self, *inputs):
        calls.append(self)
        return below(self, *inputs)

    nn.Conv2d._conv_forward = others
    for _ in range(2):
        layer(x)
        unhang.disable()
        assert nn.Conv2d._conv_forward is others
        assert nn.ConvTranspose2d.forward is transposed
        layer(x)
        unhang.enable(settings=OURS, devices=("cpu",))
    unhang.disable()
    assert len(calls) == 4
    assert layer.get_bypass_stats()["engines"] == {"cpu": 2}

    # Others may put ours back, and then it is ours to take away.
    nn.Conv2d._conv_forward = below
    unhang.enable(settings=OURS, devices=("cpu",))
    assert nn.Conv2d._conv_forward is below
    unhang.disable()
    assert nn.Conv2d._conv_forward is plain

    nn.Conv2d._conv_forward = functools.partialmethod(plain)  # no function of Python's
    unhang.enable(settings=OURS, devices=("cpu",))
    unhang.disable()


def _weights_settings(direction: str) -> dict[str, int]:
    """Calls of a direction by the strategy that they were planned by."""
    found: dict[str, int] = {}
    for (key, token), route in unhang._convolve.routes.items():
        if key.startswith(direction):
            strategy = Settings.from_token(token).strategy
            found[strategy] = found.get(strategy, 0) + sum(route.tally.by_place)
    return found


NODES = hasattr(torch.autograd, "_get_sequence_nr")


@pytest.mark.skipif(not NODES, reason="torch 2.1 and newer")
def test_tied_weights_keep_each_layers_settings_in_backward() -> None:
    first = SafeConv2d(2, 2, 3, padding=1, config=Settings(strategy="cpu_fallback"))
    second = SafeConv2d(2, 2, 3, padding=1, stride=2, config=Settings(strategy="aten"))
    second.weight = first.weight
    plain = nn.Conv2d(2, 2, 3, padding=1, dilation=2)
    plain.weight = first.weight
    x = torch.randn(1, 2, 9, 9)
    with unhang.enabled("tiled", devices=("cpu",), tile_limit=4):
        for _ in range(6):
            plain(second(first(x))).sum().backward()
    for direction in ("forward", "backward-weights"):
        assert _weights_settings(direction) == {"cpu_fallback": 6, "aten": 6, "tiled": 6}, direction


@pytest.mark.skipif(not NODES, reason="torch 2.1 and newer")
def test_settings_survive_a_weight_that_moves_before_backward() -> None:
    """As sharded training moves them: freed after the forward, gathered elsewhere before the backward."""
    layer, x = SafeConv2d(2, 3, 3, config=Settings(strategy="cpu_fallback")), torch.randn(1, 2, 9, 9)
    with unhang.enabled("aten", devices=("cpu",)):
        y = layer(x)
        kept = layer.weight.detach().clone()
        layer.weight.data.set_(torch.empty(1000)[100 : 100 + kept.numel()].view_as(kept).copy_(kept))
        y.sum().backward()
    assert _weights_settings("backward") == {"cpu_fallback": 1}


@pytest.mark.skipif(not NODES, reason="torch 2.1 and newer")
def test_double_backward_keeps_the_layers_settings() -> None:
    layer = SafeConv2d(2, 3, 3, config=Settings(strategy="cpu_fallback"))
    x = torch.randn(1, 2, 9, 9, requires_grad=True)
    with unhang.enabled("aten", devices=("cpu",)):
        for _ in range(2):
            y = layer(x).square().sum()
            (gradient,) = torch.autograd.grad(y, x, create_graph=True)
            gradient.square().sum().backward()
    assert set(_weights_settings("forward")) == {"cpu_fallback"}
    assert set(_weights_settings("backward")) == {"cpu_fallback"}


@pytest.mark.filterwarnings("ignore")
def test_safe_layers_are_quantized_as_torch_quantizes_its_own() -> None:
    quantization = torch.ao.quantization
    torch.manual_seed(0)
    model = nn.Sequential(quantization.QuantStub(), nn.Conv2d(2, 3, 3), nn.ReLU(), quantization.DeQuantStub())
    patched, x = unhang.patch_model(copy.deepcopy(model), OURS), torch.randn(1, 2, 9, 9)
    assert type(patched[1]) is SafeConv2d
    results = []
    for form in (model, patched):
        form.train()
        form.qconfig = quantization.get_default_qat_qconfig("fbgemm")
        trained = quantization.prepare_qat(form)
        trained(x)
        results.append((type(trained[1]), type(quantization.convert(trained.eval())[1])))
        form.eval()
        form.qconfig = quantization.get_default_qconfig("fbgemm")
        observed = quantization.prepare(form)
        observed(x)
        converted = quantization.convert(observed)
        results.append((type(converted[1]), converted(x)))
    assert results[0] == results[2]
    assert results[1][0] is results[3][0]
    torch.testing.assert_close(results[1][1], results[3][1])
    assert type(patched[1]) is SafeConv2d, "the model itself stays as it was"


class Block(nn.Module):
    """What FX fuses."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU())
        self.second = nn.Conv2d(3, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("is_trained", [False, True])
def test_fx_quantizes_safe_layers_as_torchs_own(is_trained: bool) -> None:
    from torch.ao.quantization import get_default_qat_qconfig_mapping, get_default_qconfig_mapping, quantize_fx

    torch.manual_seed(0)
    model, x = Block().train(is_trained), torch.randn(1, 2, 9, 9)
    patched = unhang.patch_model(copy.deepcopy(model), OURS)
    results = []
    for form in (model, patched):
        if is_trained:
            prepared = quantize_fx.prepare_qat_fx(form, get_default_qat_qconfig_mapping("fbgemm"), (x,))
        else:
            prepared = quantize_fx.prepare_fx(form, get_default_qconfig_mapping("fbgemm"), (x,))
        prepared(x)
        kinds = [type(it) for it in prepared.modules()]
        converted = quantize_fx.convert_fx(prepared.eval())
        results.append((kinds[1:], [type(it) for it in converted.modules()][1:], converted(x)))
    assert results[0][:2] == results[1][:2]
    torch.testing.assert_close(results[0][2], results[1][2])
    assert [type(patched.first[0]), type(patched.second)] == [SafeConv2d] * 2, "the model itself stays as it was"


@pytest.mark.filterwarnings("ignore")
def test_fx_fuses_safe_layers_into_safe_ones() -> None:
    from torch.ao.quantization import quantize_fx

    model, x = unhang.patch_model(Block().eval(), OURS), torch.randn(1, 2, 9, 9)
    want = model(x)
    fused = quantize_fx.fuse_fx(model)
    called = [fused.get_submodule(node.target) for node in fused.graph.nodes if node.op == "call_module"]
    used = [it for module in called for it in module.modules()]
    assert not any(isinstance(it, nn.BatchNorm2d) for it in used)
    safe = [it for it in used if isinstance(it, SafeConv2d)]
    assert [it.config for it in safe] == [OURS, OURS]
    torch.testing.assert_close(fused(x), want)
    assert all(it.get_bypass_stats()["engines"] == {"cpu": 1} for it in safe)
    assert [type(it) for it in model.modules() if isinstance(it, nn.Conv2d)] == [SafeConv2d] * 2


def test_patched_models_are_saved_and_copied() -> None:
    model = unhang.patch_model(nn.Sequential(nn.Conv2d(1, 2, 3), Scaled(2, 1, 1)), OURS)
    x = torch.randn(1, 1, 6, 6)
    want = model(x)
    saved = io.BytesIO()
    torch.save(model, saved)
    saved.seek(0)
    options = {"weights_only": False} if hasattr(torch, "compile") else {}
    for form in (torch.load(saved, **options), copy.deepcopy(model)):
        torch.testing.assert_close(form(x), want)
        assert isinstance(form[1], SafeConv2d)
        assert isinstance(form[1], Scaled)
        assert form[1].get_bypass_stats()["total_forwards"] == 1
    torch.testing.assert_close(unhang.unpatch_model(copy.deepcopy(model))(x), want)


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
def test_lazy_layers_are_left_alone() -> None:
    model = unhang.patch_model(nn.Sequential(nn.LazyConv2d(4, 3)), OURS)
    assert not isinstance(model[0], SafeConv2d)
    assert model(torch.randn(1, 2, 6, 6)).shape == (1, 4, 4, 4)


def test_safe_layers_trace_compile_and_autocast() -> None:
    import warnings

    layer = SafeConv2d(2, 3, 3, config=OURS)
    x = torch.randn(1, 2, 8, 8)
    want = layer(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.testing.assert_close(torch.jit.trace(layer, x)(x), want)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert layer(x).dtype == torch.bfloat16
        if hasattr(torch, "compile"):
            torch._dynamo.reset()
            compiled = torch.compile(layer, backend="aot_eager")
            got = compiled(x)
            got.sum().backward()
            torch.testing.assert_close(got, want)
            assert layer.weight.grad is not None


@pytest.mark.skipif(not hasattr(torch, "compile"), reason="torch 2 and newer")
@pytest.mark.parametrize(("thresholds", "graphs"), [([None] * 8, 1), ([20] * 8, 1), ([20, 24] * 4, 2)])
def test_compiled_layers_share_a_graph_where_their_settings_are_the_same(thresholds: list, graphs: int) -> None:
    import torch._dynamo.testing

    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("eager")
    x = torch.randn(1, 2, 8, 8)
    for threshold in thresholds:
        config = None if threshold is None else Settings(strategy="cpu_fallback", size_threshold=threshold)
        layer = SafeConv2d(2, 3, 3, config=config)
        layer.compile(backend=counter)
        assert_close(layer(x), F.conv2d(x, layer.weight, layer.bias))
    assert counter.frame_count == graphs


def test_tracking_names_the_layers() -> None:
    model = nn.Sequential(nn.Conv2d(1, 1, 3), nn.Sequential(nn.Conv2d(1, 1, 3)))
    unhang.track(model, "net")
    with unhang.enabled("cpu_fallback", devices=("cpu",)):
        model(torch.randn(1, 1, 8, 8))
    names = {
        layer["name"]: layer["engines"] for layer in unhang.report().data["layers"] if layer["name"].startswith("net")
    }
    assert names == {"net.0": {"cpu": 1}, "net.1.0": {"cpu": 1}}


@pytest.mark.parametrize("model", [nn.Conv2d(3, 4, 3), SafeConv2d(3, 4, 3)])
def test_wrong_inputs_get_torchs_own_words(model: nn.Module) -> None:
    with pytest.raises(RuntimeError, match=r"Expected 3D \(unbatched\) or 4D \(batched\) input"):
        model(torch.randn(2, 2, 3, 8, 8))
    with pytest.raises(RuntimeError, match="to have 3 channels"):
        model(torch.randn(1, 2, 8, 8))


def test_configurations_by_strategy_name_and_enum() -> None:
    for strategy in ("selective", "SELECTIVE", FallbackStrategy.SELECTIVE):
        assert Settings(strategy=strategy).strategy == "selective"
    assert Conv2dBypassConfig(strategy=FallbackStrategy.JIT).settings().strategy == "jit"
    settings = Settings(strategy="tiled", size_threshold=7, verbose=True, cache_decisions=False)
    assert Settings.from_token(settings.token) == settings
    with pytest.raises(ValueError, match="unknown setting 'colour'"):
        Settings.from_token("colour=red")
