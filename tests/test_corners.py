"""The corners of torch's convolutions: each of these once went wrong, in a way that its name tells."""

from __future__ import annotations

import io
import sqlite3
import threading
import time
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import unhang
from comparing import assert_close, assert_same, difference, engines_used
from unhang import (
    SafeConv2d,
    Settings,
    _canary,
    _convolve,
    _core,
    _dispatch,
    _engines,
    _faults,
    _launch,
    _state,
    _statistics,
)

NEW_TORCH = hasattr(torch, "compile")
OURS = Settings(strategy="cpu_fallback")
new_torch = pytest.mark.skipif(not NEW_TORCH, reason="torch 2 and newer")


# ---- 1: on and off while others compute ----


def test_switching_while_other_threads_convolve_changes_no_result() -> None:
    x, w = torch.randn(1, 4, 9, 9), torch.randn(6, 4, 3, 3, requires_grad=True)
    want = F.conv2d(x, w).detach()
    errors: list[object] = []
    done = threading.Event()

    def work() -> None:
        while not done.is_set():
            try:
                y = F.conv2d(x, w)
                y.sum().backward()
                if difference(y, want) is not None:
                    errors.append("another result")
            except Exception as error:
                errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    registered = []
    for turn in range(40):
        unhang.enable(("cpu_fallback", "aten", "tiled")[turn % 3], devices=("cpu",))
        registered.append(_dispatch._libraries["cpu"])
        unhang.disable()
    done.set()
    for thread in threads:
        thread.join()
    assert not errors, errors[0]
    assert len({id(library) for library in registered}) == 1, "registered once"


# ---- 2: shapes that torch refuses ----


@pytest.mark.parametrize("strategy", ["cpu_fallback", "tiled", "aten"])
@pytest.mark.parametrize("shape", [(5,), (3,), (1,), (4, 1), (1, 4)])
def test_a_bias_of_the_wrong_shape_is_torchs_to_refuse(strategy: str, shape: tuple[int, ...]) -> None:
    x, w, b = torch.ones(1, 3, 40, 40), torch.ones(4, 3, 3, 3), torch.ones(shape)
    with pytest.raises(RuntimeError) as plain:
        F.conv2d(x, w, b)
    with unhang.enabled(strategy, devices=("cpu",)), pytest.raises(RuntimeError) as ours:
        F.conv2d(x, w, b)
    assert str(ours.value) == str(plain.value)
    assert not unhang.report().data["failures"]


def test_a_gradient_of_the_wrong_shape_is_torchs_to_refuse() -> None:
    x, w, g = torch.ones(1, 3, 8, 8), torch.ones(4, 3, 3, 3), torch.ones(1, 4, 3, 3)
    arguments = (g, x, w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, False])
    with pytest.raises(RuntimeError) as plain:
        torch.ops.aten.convolution_backward(*arguments)
    with unhang.enabled("cpu_fallback", devices=("cpu",)), pytest.raises(RuntimeError) as ours:
        torch.ops.aten.convolution_backward(*arguments)
    assert str(ours.value) == str(plain.value)
    assert not unhang.report().data["failures"], "no engine was blamed for it"


# ---- 3, 11: layouts ----


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


# ---- 4: whose fault ----


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (RuntimeError("CUDA error: device-side assert triggered"), _faults.Fault.CALLERS),
        (_core.GpuFailure("cuLaunchKernel: an illegal memory access was encountered"), _faults.Fault.CALLERS),
        (torch.cuda.OutOfMemoryError("HIP out of memory. Tried to allocate 2.00 GiB"), _faults.Fault.CALLERS),
        (_core.GpuFailure("cuModuleLoadData: CUDA_ERROR_OUT_OF_MEMORY"), _faults.Fault.NOBODYS),
        (_core.GpuDeclined("a graph is being recorded"), _faults.Fault.NOBODYS),
        (RuntimeError("the kernel fell over"), _faults.Fault.ENGINES),
    ],
)
def test_only_an_engines_own_failures_are_held_against_it(
    monkeypatch: pytest.MonkeyPatch, error: Exception, fault: _faults.Fault
) -> None:
    x, w = torch.randn(1, 2, 6, 6), torch.randn(2, 2, 3, 3)

    def broken(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch, unhang.enabled("cpu_fallback", devices=("cpu",)):
        patch.setattr(_core, "run_cpu", broken)
        if fault is _faults.Fault.CALLERS:
            with pytest.raises(type(error)) as raised:
                F.conv2d(x, w)
            assert raised.value is error
        else:
            assert_close(F.conv2d(x, w), F.conv2d(x.double(), w.double()))
    assert bool(unhang.report().data["failures"]) == (fault is _faults.Fault.ENGINES)
    _state.state().store.flush(5.0)
    _state.forget()
    _convolve.routes.clear()
    with unhang.enabled("cpu_fallback", devices=("cpu",)):
        F.conv2d(x, w)
    # Where there is an accelerator, CPU tensors teach nothing.
    is_learned = fault is _faults.Fault.ENGINES and not torch.cuda.is_available()
    assert engines_used() == ({"aten"} if is_learned else {"cpu"}), "what the next process does"


def test_after_a_sticky_error_of_the_device_nothing_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_faults, "is_sound", lambda device: False)
    assert _faults.fault_of(RuntimeError("anything"), torch.device("cpu")) is _faults.Fault.CALLERS


# ---- 5: sums of tiles ----


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_tiles_are_added_up_in_single_precision(dtype: torch.dtype) -> None:
    if dtype is torch.float16 and not NEW_TORCH:
        pytest.skip("torch 1.13 has no half-precision convolution on the CPU")
    torch.manual_seed(0)
    x, w = torch.rand(2, 4, 64, 64).to(dtype), torch.rand(4, 4, 3, 3).to(dtype).requires_grad_()
    want = torch.autograd.grad(F.conv2d(x.double(), w.double()).sum(), w)[0].double()
    with unhang.enabled("tiled", devices=("cpu",), tile_limit=6):
        got = torch.autograd.grad(F.conv2d(x, w).sum(), w)[0]
    assert engines_used() == {"tiled(aten)"} or engines_used() == {"tiled(cpu)"}
    error = ((got.double() - want).abs() / want).max().item()
    # Each part is rounded once, and the sum once at the end, by half of this each: not at every one of the additions.
    assert error <= torch.finfo(dtype).eps, error


# ---- 6: derivatives of any order ----


def _third(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    (first,) = torch.autograd.grad(layer(x).pow(4).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.pow(2).sum(), x, create_graph=True)
    (third,) = torch.autograd.grad(second.pow(2).sum(), layer.weight)
    return third


def test_third_derivatives() -> None:
    layer = nn.Conv2d(1, 1, 2).double()
    x = torch.randn(1, 1, 3, 3, dtype=torch.float64, requires_grad=True)
    want = _third(layer, x)
    assert_close(_third(unhang.patch_model(layer, OURS), x), want, slack=100)


def test_third_derivatives_of_our_op() -> None:
    w0 = torch.randn(1, 1, 2, 2, dtype=torch.float64)
    x = torch.randn(1, 1, 3, 3, dtype=torch.float64, requires_grad=True)
    geometry = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)

    def third(op) -> torch.Tensor:
        w = w0.clone().requires_grad_()
        (first,) = torch.autograd.grad(op(x, w).pow(4).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.pow(2).sum(), x, create_graph=True)
        return torch.autograd.grad(second.pow(2).sum(), w)[0]

    want = third(lambda x, w: torch.ops.aten.convolution(x, w, None, *geometry))
    got = third(lambda x, w: torch.ops.unhang.convolution(x, w, None, *geometry, OURS.token))
    assert_close(got, want, slack=100)


# ---- 7: TF32 ----


@pytest.mark.skipif(not hasattr(torch._C, "_get_fp32_precision_getter"), reason="torch 2.9 and newer")
def test_torchs_new_tf32_interface_is_read() -> None:
    conv = torch.backends.cudnn.conv
    before = conv.fp32_precision
    try:
        for precision in ("ieee", "tf32"):
            conv.fp32_precision = precision
            from unhang import _engines

            assert _engines.allows_tf32() == (precision == "tf32")
            with unhang.enabled("cpu_fallback", devices=("cpu",)):
                F.conv3d(torch.ones(1, 1, 3, 3, 3), torch.ones(1, 1, 2, 2, 2))  # redispatched
    finally:
        conv.fp32_precision = before


# ---- 8: torch functions ----


def test_torch_function_modes_and_subclasses_see_one_convolution() -> None:
    from torch.overrides import TorchFunctionMode

    seen: list[str] = []

    class Mode(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.append(getattr(function, "__name__", str(function)))
            return function(*args, **(kwargs or {}))

    class Sub(torch.Tensor):
        pass

    w = torch.randn(3, 2, 3, 3, requires_grad=True)
    x = torch.randn(1, 2, 6, 6)
    for strategy in ("cpu_fallback", "aten", "tiled"):
        _convolve.routes.clear()
        seen.clear()
        with unhang.enabled(strategy, devices=("cpu",), tile_limit=4):
            with Mode():
                y = F.conv2d(x, w)
                seen_by_forward = list(seen)
                y.sum().backward()
            z = F.conv2d(x.as_subclass(Sub), w)
            # From C++ nobody takes the mode off the stack before our kernel is called.
            node, ones = F.conv2d(x, w).grad_fn, torch.ones_like(y)
            inside = len(seen)
            with Mode():
                node(ones)
        assert seen[inside:] == [], strategy
        assert [name for name in seen_by_forward if name != "__get__"] == ["conv2d"], strategy
        assert not {"conv2d", "convolution_backward", "contiguous", "_convolution"} & set(
            seen[len(seen_by_forward) : inside]
        )
        forwards = [route for route in _convolve.routes.values() if route.key.startswith("forward")]
        assert sum(route.tally.total for route in forwards) == 3, "each is counted once"
        torch.testing.assert_close(z.as_subclass(torch.Tensor), y)


# ---- 9: replanning ----


def test_counts_survive_a_plan_with_other_engines_in_another_order() -> None:
    first = _core.Tally(["cpu", "aten"])
    first.count(0, True)
    second = _core.Tally(["tiled(aten)", "aten", "cpu"], first)
    second.count(1, False)
    first.count(1, False)
    assert second.by_place == [0, 2, 1]
    assert first.by_place == [1, 2]
    assert (second.total, second.bypasses) == (3, 1)


def test_a_plan_with_more_engines_than_the_one_before_counts_each_under_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, w = torch.randn(1, 2, 8, 8), torch.randn(2, 2, 3, 3)
    honest = _convolve._plan

    def shorter(*arguments: object) -> _convolve.Route:
        route = honest(*arguments)
        assert route is not None
        return route._replace(
            names=route.names[1:], engines=route.engines[1:], bypass=route.bypass[1:], labels=route.labels[1:],
            tally=_core.Tally(list(route.names[1:])),
        )  # fmt: skip

    def broken(*_: object) -> None:
        raise _core.GpuDeclined("not now")

    with unhang.enabled("cpu_fallback", devices=("cpu",)):
        with monkeypatch.context() as patch:
            patch.setattr(_convolve, "_plan", shorter)
            F.conv2d(x, w)
        _convolve.replan()
        monkeypatch.setattr(_core, "run_cpu", broken)
        F.conv2d(x, w)
    (route,) = _convolve.routes.values()
    assert dict(zip(route.names, route.tally.by_place)) == {"cpu": 0, "aten": 2}


def test_replanning_while_others_compute_raises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = torch.randn(1, 2, 8, 8), torch.randn(2, 2, 3, 3)
    failing = threading.local()
    honest = _core.run_cpu

    def sometimes(*arguments: object) -> None:
        failing.turn = getattr(failing, "turn", 0) + 1
        if failing.turn % 3 == 0:
            _state.state().failures.clear()
            raise RuntimeError("now and then")
        honest(*arguments)

    monkeypatch.setattr(_core, "run_cpu", sometimes)
    errors: list[Exception] = []

    def work() -> None:
        for _ in range(100):
            try:
                F.conv2d(x, w)
            except Exception as error:
                errors.append(error)

    with unhang.enabled("cpu_fallback", devices=("cpu",)):
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(30):
            _convolve.replan()
            unhang.report()
        for thread in threads:
            thread.join()
    assert not errors, errors[0]
    assert sum(route.tally.total for route in _convolve.routes.values()) == 300


# ---- 10: scripts and traces; what a layer has to bear (12) is in test_drop_in.py ----


def test_convolutions_can_be_scripted_while_unhang_is_on() -> None:
    model = nn.Sequential(nn.Conv2d(2, 3, 3, padding="same"), nn.Conv2d(3, 1, 1, padding_mode="circular"))
    x = torch.randn(1, 2, 6, 6)
    want = model(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for on in (True, False):
            if on:
                unhang.enable("cpu_fallback", devices=("cpu",))
            scripted = torch.jit.script(model)
            torch.testing.assert_close(scripted(x), want)
            unhang.disable()
        unhang.patch_model(model, OURS)
        torch.testing.assert_close(torch.jit.script(model)(x), want)
    assert engines_used() == {"cpu"}


def test_traces_made_while_unhang_is_on_hold_the_convolution_and_not_its_result() -> None:
    model = nn.Conv2d(2, 3, 3).eval()
    x, other = torch.randn(1, 2, 6, 6), torch.randn(1, 2, 6, 6)
    want = model(other)
    with warnings.catch_warnings(), unhang.enabled("cpu_fallback", devices=("cpu",)):
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(model, x)
    assert "aten::_convolution" in str(traced.graph)
    torch.testing.assert_close(traced(other), want)


# ---- 13, 14, 15: stores, half-way, growth ----


def test_a_locked_store_stalls_no_plan(own_home: Path, affected_machine: Path) -> None:
    _canary._known_here["aten (rehearsed)"] = ("works", "made up")
    _state.state().store.flush(5.0)
    database = next(path for path in own_home.iterdir() if path.suffix in (".sqlite", ".db", ".sqlite3"))
    with unhang.enabled(rehearse=True):
        F.conv2d(torch.randn(1, 2, 7, 7), torch.randn(2, 2, 3, 3))
        holder = sqlite3.connect(database)
        holder.execute("BEGIN EXCLUSIVE")
        try:
            began = time.monotonic()
            for size in range(8, 14):
                F.conv2d(torch.randn(1, 2, size, size), torch.randn(2, 2, 3, 3))
            assert time.monotonic() - began < 4.0, "seconds for each of six new plans"
        finally:
            holder.rollback()
            holder.close()


def test_a_new_plan_asks_the_store_nothing(affected_machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _canary._known_here["aten (rehearsed)"] = ("works", "made up")
    asked: list[str] = []

    class Watched:
        def __getattr__(self, name: str) -> object:
            asked.append(name)
            return getattr(store, name)

    with unhang.enabled(rehearse=True):
        F.conv2d(torch.randn(1, 2, 7, 7), torch.randn(2, 2, 3, 3))
        store = _state.state().store
        monkeypatch.setattr(_state.state(), "store", Watched())
        for size in range(8, 14):
            F.conv2d(torch.randn(1, 2, size, size), torch.randn(2, 2, 3, 3))
        monkeypatch.undo()
    assert not {"canary", "canaries", "records"} & set(asked), asked


def test_an_enable_that_fails_half_way_changes_nothing(monkeypatch: pytest.MonkeyPatch, affected_machine: Path) -> None:
    flags, before = torch.backends.cudnn, torch.backends.cudnn.enabled
    _canary._known_here["aten (rehearsed)"] = ("works", "made up")
    forward = nn.Conv2d._conv_forward

    def broken(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(_dispatch, "activate", broken)
    with pytest.raises(KeyboardInterrupt):
        unhang.enable("implicit_gemm", rehearse=True, implicit_gemm=True)
    import os

    assert flags.enabled is before
    assert "MIOPEN_DEBUG_CONV_GEMM" not in os.environ
    assert not _convolve.rehearsed
    assert nn.Conv2d._conv_forward is forward
    assert not unhang.is_enabled()


def test_wrong_options_leave_what_is_on_as_it_is() -> None:
    unhang.enable("cpu_fallback", devices=("cpu",))
    with pytest.raises(ValueError, match="tpu"):
        unhang.enable("aten", devices=("tpu",))
    F.conv2d(torch.randn(1, 1, 5, 5), torch.randn(1, 1, 3, 3))
    assert engines_used() == {"cpu"}


def test_ever_new_sizes_do_not_fill_a_layers_counts() -> None:
    before = _core.set_most_sizes(5)
    layer = nn.Conv2d(1, 1, 3)
    try:
        with unhang.enabled("cpu_fallback", devices=("cpu",)):
            for size in range(3, 23):
                layer(torch.ones(1, 1, size, size))
    finally:
        _core.set_most_sizes(before)
    assert len(_statistics.layer_of(layer).counts) <= 6
    assert layer.get_bypass_stats()["engines"] == {"cpu": 20}
    unhang.report().text()


def test_ever_new_failures_and_verdicts_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_convolve, "_MOST_ROUTES", 5)
    monkeypatch.setattr(_state, "_MOST_SAID", 5)
    monkeypatch.setattr(_state, "_MOST_CANARIES", 5)
    monkeypatch.setattr(_launch, "_MOST_VERDICTS", 5)
    monkeypatch.setattr(_launch, "_verdicts", {})

    def broken(*_: object) -> None:
        raise RuntimeError("the kernel fell over")

    with unhang.enabled("cpu_fallback", devices=("cpu",)):
        monkeypatch.setattr(_core, "run_cpu", broken)
        for size in range(3, 23):
            F.conv2d(torch.ones(1, 1, size, size), torch.ones(1, 1, 3, 3))
            _state.state().keep_canary(f"jit:kernel:{size}", "works", "made up")
            _launch._note(f"jit:kernel:{size}", "works")
        found = {it: len(it_) for it, it_ in (
            ("failures", _state.state().failures), ("said", _state._said),
            ("canaries", _state.state()._canaries), ("verdicts", _launch._verdicts),
        )}  # fmt: skip
    assert all(0 < count <= 5 for count in found.values()), found


# ---- 16: several cards ----


def test_one_cards_canary_does_not_vouch_for_another(monkeypatch: pytest.MonkeyPatch, affected_machine: Path) -> None:
    machine = type(
        "Two",
        (),
        {"gpus": ["one", "two"], "affected": True, "fingerprint": "f", "is_affected_at": lambda _, at: at == 1},
    )()
    monkeypatch.setattr(_state.state(), "machine", machine)
    monkeypatch.setattr(_core, "Machine", type("M", (), {"address_of": staticmethod(lambda at: f"0000:0{at}:00.0")}))
    _canary._known_here["aten@0000:00:00.0"] = ("works", "made up")
    assert {engine: ended for engine, _, ended in _canary.known(0, rehearsed=False)}["aten"] == (
        "works",
        "made up",
    )
    assert {engine: ended for engine, _, ended in _canary.known(1, rehearsed=False)}["aten"] is None
    monkeypatch.setattr(torch.version, "hip", "5.7")
    assert [_state.state().is_affected(index) for index in (0, 1)] == [False, True]
    monkeypatch.setattr(torch.version, "hip", None)
    assert not _state.state().is_affected(1), "a torch for CUDA computes on no such card"


# ---- 19: other doors to MIOpen ----


def test_miopens_own_ops_do_not_reach_it_on_an_affected_card(affected_machine: Path) -> None:
    _canary._known_here["aten (rehearsed)"] = ("works", "made up")
    x, w, b = torch.randn(2, 4, 9, 9), torch.randn(6, 4, 3, 3), torch.randn(6)
    want = F.conv2d(x, w, b, padding=1)
    weight, bias, mean, var = torch.rand(4), torch.rand(4), torch.zeros(4), torch.ones(4)
    with unhang.enabled(rehearse=True):
        got = torch.ops.aten.miopen_convolution(x, w, b, [1, 1], [1, 1], [1, 1], 1, False, False)
        assert_same(got, want)
        assert engines_used() == {"aten"}
        wt = torch.randn(4, 2, 3, 3)
        got = torch.ops.aten.miopen_convolution_transpose(x, wt, None, [1, 1], [0, 0], [2, 2], [1, 1], 1, False, False)
        assert_same(got, F.conv_transpose2d(x, wt, stride=2, padding=1))
        found = torch.ops.aten.miopen_batch_norm(x, weight, bias, mean.clone(), var.clone(), True, 0.1, 1e-5)
        assert_same(found[0], F.batch_norm(x, None, None, weight, bias, True))
        with pytest.raises(RuntimeError, match="unproven"):
            torch.ops.aten.miopen_rnn(x, [w], 4, x, None, 0, 1, 1, False, 0.0, True, False, [], None)


def test_a_saved_graph_cannot_switch_the_vendors_library_on(
    affected_machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from unhang import _engines

    _canary._known_here["aten (rehearsed)"] = ("works", "made up")
    flags: list[bool] = []
    original = _engines._original_forward

    def spy(*arguments: object) -> object:
        flags.append(bool(arguments[-2]))
        return original(*arguments)

    monkeypatch.setattr(_engines, "_original_forward", spy)
    geometry = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    with unhang.enabled(rehearse=True, protect_other_layers=False):
        torch.ops.aten._convolution(
            torch.ones(1, 1, 5, 5), torch.ones(1, 1, 3, 3), None, *geometry, True, False, True, True
        )
        F.conv3d(torch.ones(1, 1, 3, 3, 3), torch.ones(1, 1, 2, 2, 2))  # none of ours: redispatched
    assert flags == [False, False]


def test_models_saved_with_a_patched_layer_load_and_count() -> None:
    model = unhang.patch_model(nn.Conv2d(1, 1, 3), OURS)
    saved = io.BytesIO()
    torch.save(model.state_dict(), saved)
    saved.seek(0)
    plain = nn.Conv2d(1, 1, 3)
    plain.load_state_dict(torch.load(saved))
    x = torch.randn(1, 1, 5, 5)
    assert_same(model(x), plain(x))


def test_frozen_flags_do_not_keep_unhang_from_an_affected_card(
    monkeypatch: pytest.MonkeyPatch, affected_machine: Path
) -> None:
    monkeypatch.setitem(torch.backends.flags_frozen.__globals__, "__allow_nonbracketed_mutation_flag", False)
    assert torch.backends.flags_frozen()
    with unhang.enabled("cpu_fallback", rehearse=True):
        assert not torch.backends.cudnn.enabled
    assert torch.backends.cudnn.enabled


# ---- arguments that are wrong are said at once ----


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: unhang.patch_model(nn.Conv2d(1, 1, 1), config="tiled"), r"unhang.Settings\(strategy='tiled'\)"),
        (lambda: unhang.patch_model(nn.Conv2d(1, 1, 1), config={"strategy": "tiled"}), "not dict"),
        (lambda: unhang.patch_model("yolov8n.pt"), "load the model first"),
        (lambda: SafeConv2d(1, 1, 1, config="cpu_fallback"), "config must be"),
        (lambda: unhang.enable(settings={"strategy": "aten"}), "settings must be"),
        (lambda: unhang.enable(settings="aten"), "settings must be"),
    ],
)
def test_wrong_arguments_are_refused_where_they_are_given(wrong, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        wrong()
    assert not unhang.is_enabled()


def test_one_device_can_be_named_without_a_list() -> None:
    with unhang.enabled("cpu_fallback", devices="cpu"):
        F.conv2d(torch.ones(1, 1, 5, 5), torch.ones(1, 1, 3, 3))
    assert engines_used() == {"cpu"}


# ---- 20: flags ----


def test_what_torch_computes_itself_gets_the_flags_that_the_user_set(monkeypatch: pytest.MonkeyPatch) -> None:
    from unhang import _engines

    with torch.backends.cudnn.flags(enabled=True, benchmark=True, deterministic=True):
        assert _engines.process_flags()[:3] == (True, True, True)
    with torch.backends.cudnn.flags(enabled=False, benchmark=False, deterministic=False):
        assert _engines.process_flags()[:3] == (False, False, False)
        torch.use_deterministic_algorithms(True)
        try:
            assert _engines.process_flags()[1], "deterministic, by torch's other way of saying it"
        finally:
            torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("current", [0, 1])
def test_gradients_by_torch_are_computed_on_the_device_of_their_tensors(
    monkeypatch: pytest.MonkeyPatch, current: int
) -> None:
    """Played: there is no second GPU. Torch's kernel that ours replaces makes the tensors' device the current one."""
    entered: list[object] = []

    class Device:
        def __init__(self, device: torch.device) -> None:
            self.device = device

        def __enter__(self) -> None:
            entered.append(self.device)

        def __exit__(self, *_: object) -> None:
            entered.append("left")

    def original(*_: object) -> tuple[None, None, None]:
        entered.append("computed")
        return None, None, None

    monkeypatch.setattr(torch.cuda, "current_device", lambda: current)
    monkeypatch.setattr(torch.cuda, "device", Device)
    monkeypatch.setattr(_engines, "_original_backward", original)
    there = SimpleNamespace(device=torch.device("cuda", 1), shape=(1, 1, 4, 4))
    geometry = _engines.Geometry([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    _engines.call_original_backward(there, there, there, geometry, (True, True, True))  # type: ignore[arg-type]
    assert entered == (["computed"] if current == 1 else [torch.device("cuda", 1), "computed", "left"])
