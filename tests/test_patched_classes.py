"""Patched subclasses of ``nn.Conv2d``: what their classes do by themselves, they still do."""

from __future__ import annotations

import copy
import inspect
import pickle
import threading
from collections.abc import Callable
from typing import Optional

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import unhang
from comparing import assert_close
from unhang import SafeConv2d, Settings, _convolve

OURS = Settings(strategy="cpu_fallback")
known_kinds: list[type] = []


class Padded(nn.Conv2d):
    """Convolves by itself, as timm's and detectron2's layers do."""

    def forward(self, input: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        padded = F.pad(input, [1, 1, 1, 1])
        return F.conv2d(padded, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups) * scale


class Standardized(nn.Conv2d):
    """Convolves with another weight, in the method that torch's own forward calls."""

    def _conv_forward(
        self,
        input: torch.Tensor,
        weight: torch.Tensor,
        bias: Optional[torch.Tensor],  # noqa: UP045 - torch 1.13's scripts do not know the other form
    ) -> torch.Tensor:
        return F.conv2d(input, weight - weight.mean(), bias, self.stride, self.padding, self.dilation, self.groups)


class Doubling(nn.Conv2d):
    """Adds something to what torch's method computes."""

    def _conv_forward(self, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return 2 * super()._conv_forward(input, weight, bias)


class WithConfig(nn.Conv2d):
    """Has its own ``config`` on each layer."""

    def __init__(self, *arguments: int) -> None:
        super().__init__(*arguments)
        self.config = {"scale": 2.0}

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return self.config["scale"] * self._conv_forward(input, self.weight, self.bias)


class WithConfigOfClass(nn.Conv2d):
    """Has one for all layers."""

    config = None


class WithConfigAsMethod(nn.Conv2d):
    """Has a method of that name."""

    def config(self) -> int:
        return self.in_channels


class WithConfigAsProperty(nn.Conv2d):
    """Has a property of that name, which can be set."""

    @property
    def config(self) -> int:
        return self.__dict__.get("own", 1)

    @config.setter
    def config(self, value: int) -> None:
        self.__dict__["own"] = value


class PassedBy(nn.Conv2d):
    """Convolves nothing."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return input


class Stateful(nn.Conv2d):
    """Has something that cannot be copied, and says what of it can."""

    def __init__(self, *arguments: int) -> None:
        super().__init__(*arguments)
        self.lock = threading.Lock()

    def __getstate__(self) -> dict:
        return {name: it for name, it in self.__dict__.items() if name != "lock"}

    def __setstate__(self, state: dict) -> None:
        super().__setstate__(state)
        self.lock = threading.Lock()


class Remade(nn.Conv2d):
    """Says itself how it is made again."""

    def __reduce__(self) -> tuple:
        return Remade, (self.in_channels, self.out_channels, self.kernel_size), {"_parameters": self._parameters}


class RemadeByClass(Remade):
    """Says it as Python's documentation does."""

    def __reduce__(self) -> tuple:
        return self.__class__, *super().__reduce__()[1:]


class Skipping(nn.Conv2d):
    """Adds what it convolves to another input."""

    def forward(self, x: torch.Tensor, skip: torch.Tensor) -> torch.Tensor:
        return skip + F.conv2d(x, self.weight, self.bias, padding=1)


class Listing(nn.Conv2d):
    """Takes all its inputs in one list."""

    def forward(self, all: list) -> torch.Tensor:
        return all[1] + F.conv2d(all[0], self.weight, self.bias, padding=1)


class Keeping(nn.Conv2d):
    """Keeps its result in what it was given, and adds what it has from elsewhere."""

    def forward(self, x: torch.Tensor, kept: list) -> torch.Tensor:
        kept.append(F.conv2d(x, self.weight, self.bias, padding=1) + self.skip)
        return kept[-1]


class Giving(nn.Conv2d):
    """Gives what it convolves in a form of the caller's choice."""

    def forward(self, x: torch.Tensor, form: Callable[[torch.Tensor], object]) -> object:
        return form(F.conv2d(x, self.weight, self.bias, padding=1))


class Deep(nn.Conv2d):
    """Convolves twice, and computes much in between."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            x = F.conv2d(x, self.weight, self.bias, padding=1)
            for _ in range(10):
                x = x.relu() + 1
        return x


class Family(nn.Conv2d):
    """Keeps a list of its descendants, each with a name."""

    def __init_subclass__(cls, *, kind: str, **options: object) -> None:
        super().__init_subclass__(**options)
        known_kinds.append(cls)


class Child(Family, kind="child"):
    """One of them."""


def _strategies() -> dict[str, set[str]]:
    """The strategies by which each direction was planned."""
    found: dict[str, set[str]] = {}
    for (key, token), route in _convolve.routes.items():
        if route.tally.total:
            found.setdefault(key.partition(":")[0], set()).add(Settings.from_token(token).strategy)
    return found


def test_what_a_forward_of_its_own_convolves_has_the_layers_settings() -> None:
    layer, x = Padded(2, 3, 3), torch.randn(1, 2, 6, 6)
    want = layer(x, scale=2.0)
    wanted = torch.autograd.grad(want.sum(), list(layer.parameters()))
    unhang.patch_model(layer, OURS)
    with unhang.enabled("aten", devices=("cpu",)):
        for _ in range(8):
            for got in (layer(x, scale=2.0), layer(input=x, scale=2.0), layer(x, 2.0)):
                assert_close(got, want.double(), slack=3)
                gradients = torch.autograd.grad(got.sum(), list(layer.parameters()))
                for ours, plain in zip(gradients, wanted):
                    assert_close(ours, plain.double(), slack=3)
    assert _strategies() == {"forward": {"cpu_fallback"}, "backward-weights": {"cpu_fallback"}}
    assert layer.get_bypass_stats()["engines"] == {"cpu": 24}
    unhang.unpatch_model(layer)
    assert type(layer) is Padded


@pytest.mark.skipif(not hasattr(torch.autograd, "_get_sequence_nr"), reason="torch 2.1 and newer")
def test_the_layer_before_one_that_convolves_nothing_keeps_its_settings() -> None:
    model = nn.Sequential(nn.Conv2d(2, 3, 3), PassedBy(3, 3, 3))
    unhang.patch_model(model[1], OURS)
    with unhang.enabled("aten", devices=("cpu",)):
        model(torch.randn(1, 2, 6, 6)).sum().backward()
    assert _strategies() == {"forward": {"aten"}, "backward-weights": {"aten"}}


@pytest.mark.skipif(not hasattr(torch.autograd, "_get_sequence_nr"), reason="torch 2.1 and newer")
@pytest.mark.parametrize("kind", [Skipping, Listing, Keeping])
def test_a_layers_settings_are_for_what_its_forward_created(kind: type[nn.Conv2d]) -> None:
    """And not for the layer that made another tensor of the sum, wherever its forward has that from."""
    before, layer, x = nn.Conv2d(2, 3, 5, padding=2), kind(3, 3, 3), torch.randn(1, 3, 6, 6)
    unhang.patch_model(layer, OURS)
    with unhang.enabled("aten", devices=("cpu",)):
        skip = layer.skip = before(torch.randn(1, 2, 6, 6))
        inputs = {Skipping: (x, skip), Listing: ([x, skip],), Keeping: (x, [])}
        layer(*inputs[kind]).sum().backward()
    strategies = {
        (key.split(":")[4], Settings.from_token(token).strategy)
        for (key, token), route in _convolve.routes.items()
        if route.tally.total and key.startswith("backward-weights:")
    }
    assert strategies == {("3x5x5", "aten"), ("3x3x3", OURS.strategy)}


def _weights_of(strategy: str) -> set[str]:
    """The filters whose gradients were planned by a strategy, as keys have them."""
    return {
        key.split(":")[4]
        for (key, token), route in _convolve.routes.items()
        if route.tally.total and key.startswith("backward-weights:") and Settings.from_token(token).strategy == strategy
    }


@pytest.mark.skipif(not hasattr(torch.autograd, "_get_sequence_nr"), reason="torch 2.1 and newer")
@pytest.mark.parametrize("form", [lambda y: (1, y), lambda y: [y], lambda y: {"y": y}, lambda y: {"all": [(y,)]}])
def test_a_forward_that_gives_no_plain_tensor_has_its_settings_in_backward(form: Callable) -> None:
    layer, x = unhang.patch_model(Giving(3, 3, 3), OURS), torch.randn(1, 3, 6, 6)
    with unhang.enabled("aten", devices=("cpu",)):
        (given,) = unhang._layers._tensors_in(layer(x, form))
        given.sum().backward()
    assert _weights_of(OURS.strategy) == {"3x3x3"}
    assert not _weights_of("aten")


@pytest.mark.skipif(not hasattr(torch.autograd, "_get_sequence_nr"), reason="torch 2.1 and newer")
def test_a_layers_settings_reach_all_that_its_forward_convolves() -> None:
    layer, x = unhang.patch_model(Deep(3, 3, 3), OURS), torch.randn(1, 3, 6, 6)
    with unhang.enabled("aten", devices=("cpu",)):
        layer(x).sum().backward()
    assert _strategies() == {name: {OURS.strategy} for name in ("forward", "backward-data", "backward-weights")}


@pytest.mark.skipif(not hasattr(torch.autograd, "_get_sequence_nr"), reason="torch 2.1 and newer")
@pytest.mark.parametrize("kind", [Deep, Skipping])
def test_what_another_thread_computed_for_a_layer_keeps_its_settings(kind: type[nn.Conv2d]) -> None:
    """A thread numbers the nodes that it makes by itself: later ones than those of the layer may have come first."""
    before, layer, made = nn.Conv2d(3, 3, 5, padding=2), unhang.patch_model(kind(3, 3, 3), OURS), []
    unhang.enable("aten", devices=("cpu",))
    x = torch.zeros(1, requires_grad=True)
    for _ in range(100):
        x = x + 1
    x = before(torch.randn(1, 3, 6, 6) + x)
    thread = threading.Thread(target=lambda: made.append(layer(*[x] * (1 + (kind is Skipping)))))
    thread.start()
    thread.join()
    made[0].sum().backward()
    assert _weights_of("aten") == {"3x5x5"}
    assert _weights_of(OURS.strategy) == {"3x3x3"}


def test_a_forward_of_its_own_is_scripted_and_traced_as_before() -> None:
    layer, x = Padded(2, 3, 3), torch.randn(1, 2, 6, 6)
    want = layer(x)
    unhang.patch_model(layer, OURS)
    assert inspect.signature(layer.forward) == inspect.signature(Padded(2, 3, 3).forward)
    for form in (torch.jit.script(layer), torch.jit.trace(layer, x), torch.fx.symbolic_trace(layer)):
        torch.testing.assert_close(form(x), want)
    if hasattr(torch, "compile"):
        torch._dynamo.reset()
        torch.testing.assert_close(torch.compile(layer, backend="aot_eager", fullgraph=True)(x), want)


@pytest.mark.parametrize("kind", [Standardized, Doubling])
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_a_conv_forward_of_its_own_is_kept_in_every_form(kind: type[nn.Conv2d]) -> None:
    layer, x = kind(2, 3, 3), torch.randn(1, 2, 6, 6)
    want = layer(x)
    unhang.patch_model(layer, OURS)
    with unhang.enabled("aten", devices=("cpu",)):
        assert_close(layer(x), want.double(), slack=3)
        layer(x).sum().backward()
    assert layer.get_bypass_stats()["engines"] == {"cpu": 2}
    if hasattr(torch.autograd, "_get_sequence_nr"):
        assert _strategies() == {"forward": {"cpu_fallback"}, "backward-weights": {"cpu_fallback"}}
    forms = [torch.jit.trace(layer, x), torch.fx.symbolic_trace(layer)]
    if kind is Standardized:  # scripts do not know super()
        forms.append(torch.jit.script(layer))
    if hasattr(torch, "compile"):
        torch._dynamo.reset()
        forms.append(torch.compile(layer, backend="aot_eager", fullgraph=True))
    for form in forms:
        torch.testing.assert_close(form(x), want)
    assert type(unhang.unpatch_model(layer)) is kind
    torch.testing.assert_close(layer(x), want)


def test_a_config_of_its_own_stays_what_it_is() -> None:
    x = torch.randn(1, 2, 6, 6)
    layer = WithConfig(2, 3, 3)
    want = layer(x)
    unhang.patch_model(layer, OURS)
    assert layer.config == {"scale": 2.0}
    forms = [copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))]
    if hasattr(torch, "compile"):
        torch._dynamo.reset()
        forms.append(torch.compile(layer, backend="aot_eager", fullgraph=True))
    for form in (layer, *forms):
        torch.testing.assert_close(form(x), want)
    assert forms[0].get_bypass_stats() == forms[1].get_bypass_stats()
    assert forms[0].get_bypass_stats()["engines"] == {"cpu": 1}
    assert layer.get_bypass_stats()["strategy"] == OURS.strategy

    assert unhang.patch_model(WithConfigOfClass(2, 3, 3), OURS).config is None
    assert unhang.patch_model(WithConfigAsMethod(2, 3, 3), OURS).config() == 2
    layer = unhang.patch_model(WithConfigAsProperty(2, 3, 3), OURS)
    assert layer.config == 1
    layer.config = 5
    assert layer.config == 5
    assert unhang.unpatch_model(layer).config == 5


def test_settings_that_are_assigned_are_the_layers_and_anything_else_is_the_programs() -> None:
    layer = SafeConv2d(2, 3, 3)
    layer.config = OURS
    layer(torch.randn(1, 2, 6, 6))
    assert layer.get_bypass_stats()["engines"] == {"cpu": 1}
    with pytest.raises(TypeError, match=r"config=unhang\.Settings\(strategy='cpu_fallback'\)"):
        layer.config = "cpu_fallback"
    patched = unhang.patch_model(nn.Conv2d(2, 3, 3), OURS)
    for own in ({"a": "tag"}, None):
        patched.config = own
        assert patched.config == own
        assert patched.get_bypass_stats()["strategy"] == OURS.strategy
    del patched.config
    assert patched.config == OURS
    with pytest.raises(AttributeError):
        del patched.config


@pytest.mark.parametrize("kind", [Stateful, Remade, RemadeByClass, Padded])
def test_a_layer_is_copied_and_saved_as_its_class_says(kind: type[nn.Conv2d]) -> None:
    layer, x = kind(2, 3, 3), torch.randn(1, 2, 6, 6)
    unhang.patch_model(layer, OURS)
    want = layer(x)
    for form in (copy.deepcopy(layer), *(pickle.loads(pickle.dumps(layer, protocol)) for protocol in (2, 5))):
        assert isinstance(form, SafeConv2d)
        assert isinstance(form, kind)
        assert form.config == OURS
        torch.testing.assert_close(form(x), want)
        assert form.get_bypass_stats()["engines"] == {"cpu": 1}
        assert type(unhang.unpatch_model(form)) is kind


def test_a_registry_of_classes_hears_nothing_of_a_patch() -> None:
    layer = unhang.patch_model(Child(2, 3, 3), OURS)
    assert known_kinds == [Child]
    assert isinstance(layer, SafeConv2d)

    class Own(SafeConv2d, Family, kind="own"):
        """A user's own class of both kinds."""

    assert known_kinds == [Child, Own]


def test_the_constructor_has_the_arguments_of_conv2d() -> None:
    ours, plain = inspect.signature(SafeConv2d), inspect.signature(nn.Conv2d)
    assert [name for name in ours.parameters if name != "config"] == list(plain.parameters)
    layer = nn.utils.skip_init(SafeConv2d, 2, 3, 3, config=OURS)
    assert layer.weight.device.type == "cpu"
    assert layer.config == OURS


def test_a_subclass_and_a_layer_have_signatures_of_their_kind() -> None:
    class Own(SafeConv2d):
        """A user's own class, with other arguments."""

        def __init__(self, width: int) -> None:
            super().__init__(width, width, 1)

    assert list(inspect.signature(Own).parameters) == ["width"]
    assert inspect.signature(SafeConv2d(1, 1, 1)) == inspect.signature(nn.Conv2d(1, 1, 1))
