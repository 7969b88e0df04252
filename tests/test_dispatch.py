"""Unmodified code goes through unhang, and gives the same numbers."""

from __future__ import annotations

import copy
import io
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import unhang
from comparing import assert_close, assert_same
from conftest import subprocess_environment
from unhang import _convolve, _engines

NEW_TORCH = hasattr(torch, "compile")
# Those that compute on CPU tensors with something of ours in the path.
OURS = ["cpu_fallback", "tiled"]


def computed_by() -> set[str]:
    return {route.names[0] for route in _convolve.routes.values() if route.tally.total}


def both(function, strategy: str):
    """What a function gives without unhang and with it."""
    plain = function()
    with unhang.enabled(strategy, devices=("cpu",)):
        ours = function()
    assert computed_by(), "nothing went through unhang"
    return plain, ours


@pytest.mark.parametrize("strategy", OURS)
@pytest.mark.parametrize(
    "case",
    [
        "conv2d",
        "stride",
        "dilation",
        "groups",
        "depthwise",
        "no bias",
        "transposed",
        "transposed groups",
        "conv1d",
        "transposed 1d",
        "unbatched",
        "same",
        "same even",
        "1x1",
        "channels_last",
        "channels_last weight",
    ],
)
def test_functional_forms(strategy: str, case: str) -> None:
    torch.manual_seed(0)
    double = {"dtype": torch.float64}
    x = torch.randn(2, 8, 13, 11, **double, requires_grad=True)
    w, b = torch.randn(12, 8, 3, 3, **double, requires_grad=True), torch.randn(12, **double, requires_grad=True)
    grouped = torch.randn(12, 4, 3, 3, **double, requires_grad=True)
    calls = {
        "conv2d": lambda: F.conv2d(x, w, b, padding=1),
        "stride": lambda: F.conv2d(x, w, b, stride=(2, 3), padding=(0, 2)),
        "dilation": lambda: F.conv2d(x, w, b, dilation=2, padding=3),
        "groups": lambda: F.conv2d(x, grouped, b, groups=2),
        "depthwise": lambda: F.conv2d(x, torch.cat([w[:, :1]] * 2)[:16], None, padding=1, groups=8),
        "no bias": lambda: F.conv2d(x, w, None),
        "transposed": lambda: F.conv_transpose2d(x, w.transpose(0, 1), b, stride=2, padding=1, output_padding=1),
        "transposed groups": lambda: F.conv_transpose2d(x, grouped[:8], None, stride=2, groups=4),
        "conv1d": lambda: F.conv1d(x[:, :, 0], w[:, :, 0], b, stride=2, padding=1),
        "transposed 1d": lambda: F.conv_transpose1d(x[:, :, 0], w[:8, :, 0], None, stride=2, output_padding=1),
        "unbatched": lambda: F.conv2d(x[0], w, b, padding=1),
        "same": lambda: F.conv2d(x, w, b, padding="same"),
        "same even": lambda: F.conv2d(x, w[:, :, :2, :2], b, padding="same"),
        "1x1": lambda: F.conv2d(x, w[:, :, :1, :1], b),
        "channels_last": lambda: F.conv2d(x.contiguous(memory_format=torch.channels_last), w, b, padding=1),
        "channels_last weight": lambda: F.conv2d(x, w.contiguous(memory_format=torch.channels_last), b, padding=1),
    }

    def compute():
        y = calls[case]()
        return (y, *torch.autograd.grad(y.sin().sum(), [x, w, b, grouped], allow_unused=True))

    plain, ours = both(compute, strategy)
    assert ours[0].stride() == plain[0].stride(), "the layout that torch gives"
    for got, want in zip(ours, plain):
        assert (got is None) == (want is None)
        if want is not None:
            assert_close(got, want, slack=10)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("transposed", [False, True])
def test_tiles_with_padded_channels_are_exact(groups: int, transposed: bool) -> None:
    """Channel counts that are powers of two get one more, of zeros, in each group: the results stay the same."""
    torch.manual_seed(3)
    x = torch.randn(2, 8, 19, 17, dtype=torch.float64, requires_grad=True)
    w = torch.randn(8, 4, 3, 3, dtype=torch.float64, requires_grad=True)
    b = torch.randn(4 * groups if transposed else 8, dtype=torch.float64, requires_grad=True)
    w_used = w if transposed or groups == 2 else torch.cat([w, w], 1)
    seen = []

    def compute():
        form = F.conv_transpose2d if transposed else F.conv2d
        y = form(x, w_used, b, padding=1, groups=groups)
        return (y, *torch.autograd.grad(y.sin().sum(), [x, w, b]))

    want = compute()
    with unhang.enabled("tiled", devices=("cpu",), pad_channels=True, tile_limit=9):
        original = _engines._original_forward

        def spy(key, input, *rest):
            seen.append(input.shape[1])
            return original(key, input, *rest)

        _engines._original_forward = spy
        try:
            got = compute()
        finally:
            _engines._original_forward = original
    for ours, plain in zip(got, want):
        assert_close(ours, plain, slack=10)
    if not transposed:
        assert set(seen) == {8 + groups}, "the inner engine saw the padded channels"


def test_what_our_engines_do_not_know_goes_to_torch() -> None:
    complex_x, complex_w = (
        torch.randn(1, 2, 5, 5, dtype=torch.complex64),
        torch.randn(3, 2, 3, 3, dtype=torch.complex64),
    )
    empty = torch.randn(0, 3, 8, 8)
    calls = [
        lambda: F.conv2d(complex_x, complex_w),
        lambda: F.conv2d(empty, torch.ones(4, 3, 3, 3)),
        lambda: F.conv2d(torch.ones(1, 1, 4, 4, dtype=torch.int64), torch.ones(1, 1, 2, 2, dtype=torch.int64)),
    ]
    for call in calls:
        want = call()
        with unhang.enabled("cpu_fallback", devices=("cpu",)):
            torch.testing.assert_close(call(), want)  # complex ones reach us again as real parts


def test_errors_are_torchs_own() -> None:
    for call in (
        lambda: F.conv2d(torch.ones(1, 3, 8, 8), torch.ones(4, 2, 3, 3)),
        lambda: F.conv2d(torch.ones(1, 3, 2, 2), torch.ones(4, 3, 3, 3)),
        lambda: F.conv2d(torch.ones(1, 3, 8, 8), torch.ones(4, 3, 3, 3, dtype=torch.float64)),
        lambda: F.conv2d(torch.ones(1, 3, 8, 8), torch.ones(4, 3, 3, 3), stride=0),
    ):
        with pytest.raises(RuntimeError) as plain:
            call()
        with unhang.enabled("cpu_fallback", devices=("cpu",)), pytest.raises(RuntimeError) as ours:
            call()
        assert str(ours.value) == str(plain.value)


@pytest.mark.parametrize("strategy", ["cpu_fallback", "aten"])
def test_wrong_lists_are_refused_although_their_numbers_are_those_of_a_known_call(strategy: str) -> None:
    x, w, g, wide = torch.randn(1, 2, 6, 6), torch.randn(3, 2, 3, 3), torch.randn(1, 3, 6, 6), torch.randn(1, 2, 6)
    geometry, wrong = [[1, 1], [1, 1], [1, 1], False, [0, 0], 1], [[1], [1, 1, 1], [1, 1], False, [0, 0], 1]
    for_all = [[1], [1], [1], False, [0], 1]
    calls = [
        lambda: torch.ops.aten.convolution(x, w, None, *wrong),
        lambda: torch.ops.aten.convolution_backward(g, x, w, [3], *wrong, [True, True, True]),
        lambda: torch.ops.aten.convolution(wide, w, None, *wrong),
        lambda: torch.ops.aten.convolution(x, w[0, 0], None, *for_all),
        lambda: torch.ops.aten.convolution(x[0, 0], w, None, *for_all),
        lambda: torch.ops.aten.convolution_backward(torch.ones(()), x, w[0, 0], None, *for_all, [True, True, True]),
    ]

    def words() -> list[str]:
        found = []
        for call in calls:
            with pytest.raises(RuntimeError) as error:
                call()
            found.append(str(error.value))
        return found

    plain = words()
    with unhang.enabled(strategy, devices=("cpu",)):
        for _ in range(6):
            torch.ops.aten.convolution(x, w, None, *geometry)
            torch.ops.aten.convolution_backward(g, x, w, [3], *geometry, [True, True, True])
            assert words() == plain


@pytest.mark.parametrize("strategy", OURS)
def test_gradcheck_and_gradgradcheck(strategy: str) -> None:
    torch.manual_seed(1)
    x = torch.randn(1, 2, 4, 5, dtype=torch.float64, requires_grad=True)
    w = torch.randn(4, 1, 3, 2, dtype=torch.float64, requires_grad=True)
    b = torch.randn(4, dtype=torch.float64, requires_grad=True)
    wt = torch.randn(2, 2, 3, 2, dtype=torch.float64, requires_grad=True)
    with unhang.enabled(strategy, devices=("cpu",), tile_limit=4):
        forms = [
            lambda x, w, b: F.conv2d(x, w, b, stride=(2, 1), padding=(1, 2), dilation=(1, 2), groups=2),
            lambda x, w, b: F.conv_transpose2d(x, w, b, stride=2, padding=1, output_padding=(1, 0), groups=2),
        ]
        for form, weight in zip(forms, (w, wt)):
            assert torch.autograd.gradcheck(form, (x, weight, b))
            assert torch.autograd.gradgradcheck(form, (x, weight, b))
    assert any(name.startswith(("cpu", "tiled")) for name in computed_by())


def test_gradients_that_nobody_asked_for_are_not_computed() -> None:
    x, w = torch.randn(1, 2, 6, 6), torch.randn(3, 2, 3, 3, requires_grad=True)
    with unhang.enabled("cpu_fallback", devices=("cpu",)):
        F.conv2d(x, w).sum().backward()
        F.conv2d(x.requires_grad_(), w.detach(), torch.ones(3, requires_grad=True)).sum().backward()
    directions = [key.split(":")[0] for key, _ in _convolve.routes]
    assert sorted(directions) == ["backward-data", "backward-weights", "forward"]
    totals = {key.split(":")[0]: route.tally.total for (key, _), route in _convolve.routes.items()}
    assert totals == {"forward": 2, "backward-weights": 1, "backward-data": 1}


def test_autocast() -> None:
    model = nn.Conv2d(4, 8, 3, padding=1)
    x = torch.randn(2, 4, 9, 9, requires_grad=True)

    def compute():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = model(x)
        return y, *torch.autograd.grad(y.float().sum(), [x, model.weight])

    plain, ours = both(compute, "cpu_fallback")
    assert ours[0].dtype == torch.bfloat16
    assert any(":bf16:" in key for key, _ in _convolve.routes)
    for got, want in zip(ours, plain):
        # Gradients are handed out in single precision, and computed in the other.
        assert_same(got.bfloat16(), want.bfloat16())


def test_vmap() -> None:
    vmap = torch.func.vmap if hasattr(torch, "func") else pytest.importorskip("functorch").vmap
    x, w = torch.randn(5, 2, 3, 8, 8, dtype=torch.float64), torch.randn(5, 4, 3, 3, 3, dtype=torch.float64)
    plain, ours = both(lambda: vmap(F.conv2d)(x, w), "cpu_fallback")
    assert_close(ours, plain, slack=10)


def test_jit_trace_and_freeze() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 1)).double().eval()
    x = torch.randn(1, 3, 8, 8, dtype=torch.float64)
    want = model(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(model, x)
        saved = io.BytesIO()
        torch.jit.save(torch.jit.freeze(traced), saved)
        saved.seek(0)
        loaded = torch.jit.load(saved)
    for form in (traced, loaded):
        with unhang.enabled("cpu_fallback", devices=("cpu",)):
            before = _convolve.redispatched.total
            assert_close(form(x), want, slack=10)
        assert _convolve.redispatched.total == before
    assert computed_by() == {"cpu"}


@pytest.mark.skipif(not NEW_TORCH, reason="torch.compile came with torch 2")
@pytest.mark.parametrize("channels_last", [False, True])
def test_compiled_models(channels_last: bool) -> None:
    torch._dynamo.reset()
    torch.manual_seed(2)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 3, stride=2))
    x = torch.randn(2, 3, 16, 16)
    if channels_last:
        model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)

    def compute(form):
        form.zero_grad()
        y = form(x)
        y.square().sum().backward()
        return [y.detach(), *(p.grad.clone() for p in model.parameters())]

    want = compute(model)
    with unhang.enabled("cpu_fallback", devices=("cpu",)), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        got = compute(torch.compile(model))
    assert sum(route.tally.total for route in _convolve.routes.values()) >= 5, "compiled code went past unhang"
    for ours, plain in zip(got, want):
        assert_same(ours, plain)


@pytest.mark.skipif(not NEW_TORCH, reason="torch.compile came with torch 2")
@pytest.mark.filterwarnings("ignore")
def test_the_compiler_reads_nothing_of_ours_below_a_function_that_it_leaves_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It compiled some fifty pieces of our functions there, and torch 2.6's failed at one of them."""
    from torch._dynamo import convert_frame
    from torch._dynamo.decorators import skip

    torch._dynamo.reset()
    read, compile_frame = [], convert_frame._compile

    def reading(code, *rest, **options):
        read.append(code.co_filename)
        return compile_frame(code, *rest, **options)

    monkeypatch.setattr(convert_frame, "_compile", reading)
    weight = torch.randn(3, 2, 3, 3, requires_grad=True)

    @skip
    def left_alone(x: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x, weight)

    def function(x: torch.Tensor) -> torch.Tensor:
        return left_alone(x + 1) * 2

    x = torch.randn(1, 2, 6, 6)
    with unhang.enabled("cpu_fallback", devices=("cpu",)):
        got = torch.compile(function, backend="eager")(x)
        got.sum().backward()
    assert_same(got.detach(), function(x).detach())
    assert computed_by() == {"cpu"}
    assert set(read) == {__file__}


@pytest.mark.skipif(not NEW_TORCH, reason="torch.compile came with torch 2")
def test_a_compiled_wrapper_in_cpp_is_planned_backward_too(tmp_path: Path) -> None:
    """Inductor keeps what it compiled: the first process leaves code that calls gradients past the dispatcher."""
    code = """if True:
        import sys, torch, unhang
        if sys.argv[1] == "on":
            unhang.enable("cpu_fallback", devices=("cpu",))
        layer = torch.nn.Conv2d(3, 4, 3)
        compiled = torch.compile(layer, options={"cpp_wrapper": True})
        x = torch.randn(1, 3, 8, 8, requires_grad=True)
        compiled(x).square().sum().backward()
        from unhang import _convolve
        print([key for (key, _), route in _convolve.routes.items() if route.tally.total])
        unhang.disable()
        wanted, = torch.autograd.grad(layer(x).square().sum(), x)
        torch.testing.assert_close(x.grad, wanted)
    """
    environment = subprocess_environment(TORCHINDUCTOR_CACHE_DIR=str(tmp_path))
    for state in ("off", "on"):
        command = [sys.executable, "-c", code, state]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
        assert done.returncode == 0, done.stderr
    # From torch 2.5 on, and before 2.12, compiled code cannot call the op otherwise: better past unhang than not at all.
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    assert ("backward-weights" in done.stdout) == (not (2, 5) <= version < (2, 12)), "compiled code went past unhang"


def test_models_that_were_saved_and_copied() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).double().eval()
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    want = model(x)
    with unhang.enabled("cpu_fallback", devices=("cpu",)):
        saved = io.BytesIO()
        torch.save(model, saved)
        saved.seek(0)
        options = {"weights_only": False} if NEW_TORCH else {}
        for form in (torch.load(saved, **options), copy.deepcopy(model)):
            assert_close(form(x), want, slack=10)
            assert form[0].get_bypass_stats()["total_forwards"] == 1


def test_off_means_off() -> None:
    conv = nn.Conv2d(3, 4, 3)
    x = torch.randn(1, 3, 8, 8)
    forward = nn.Conv2d._conv_forward
    for _ in range(3):
        unhang.enable("cpu_fallback", devices=("cpu",))
        assert unhang.is_enabled()
        conv(x)
        unhang.disable()
    count = sum(route.tally.total for route in _convolve.routes.values())
    assert count == 3
    conv(x)
    assert sum(route.tally.total for route in _convolve.routes.values()) == count
    assert nn.Conv2d._conv_forward is forward
    assert not unhang.is_enabled()


def test_enabled_nests_and_restores() -> None:
    x, w = torch.randn(1, 1, 5, 5), torch.randn(1, 1, 3, 3)
    unhang.enable("aten", devices=("cpu",))
    with unhang.enabled("cpu_fallback", devices=("cpu",)):
        F.conv2d(x, w)
    F.conv2d(x, w)
    assert {route.names[0]: route.tally.total for route in _convolve.routes.values()} == {"cpu": 1, "aten": 1}


def test_a_machine_that_is_not_affected_is_left_alone() -> None:
    unhang.enable()
    F.conv2d(torch.randn(1, 1, 5, 5), torch.randn(1, 1, 3, 3))
    assert not _convolve.routes
    assert unhang.is_enabled()


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here, and is what a strategy is for")
def test_the_cpu_is_asked_for_where_there_is_no_gpu(capfd: pytest.CaptureFixture[str]) -> None:
    x, w = torch.randn(1, 1, 5, 5), torch.randn(1, 1, 3, 3)
    unhang.enable("cpu_fallback")
    F.conv2d(x, w)
    assert [route.names[0] for route in _convolve.routes.values()] == ["cpu"]
    assert "nothing to plan" not in capfd.readouterr().err
    _convolve.routes.clear()
    unhang.enable("jit")
    F.conv2d(x, w)
    assert not _convolve.routes
    assert "torch sees no GPU here: jit has nothing to plan" in capfd.readouterr().err


@pytest.mark.parametrize(
    "options",
    [{"strategy": "fastest"}, {"devices": ("tpu",)}, {"size_threshold": -1}, {"tile_limit": 0}, {"tune": "yes"}],
)
def test_wrong_options_are_named(options: dict) -> None:
    with pytest.raises(ValueError, match=r"fastest|tpu|size_threshold|tile_limit|tune is 'yes'"):
        unhang.enable(**options)
    assert not unhang.is_enabled()


def test_a_thousand_steps_keep_memory_flat() -> None:
    import resource

    conv = nn.Conv2d(4, 4, 3, padding=1)
    x = torch.randn(2, 4, 16, 16)

    def steps(count: int) -> None:
        for _ in range(count):
            conv.zero_grad()
            conv(x).square().sum().backward()

    with unhang.enabled("cpu_fallback", devices=("cpu",)):
        steps(200)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        routes = len(_convolve.routes)
        steps(1000)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 4096, f"grew by {grown} KiB in 1,000 steps"
    assert len(_convolve.routes) == routes
