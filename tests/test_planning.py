"""Plans that change while others compute, stores that are locked, an `enable()` that fails half-way, growth, several cards."""

from __future__ import annotations

import sqlite3
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import unhang
from comparing import engines_used
from conftest import enabled_everywhere, make_up
from unhang import _convolve, _core, _dispatch, _enable, _state, _statistics

# ---- replanning ----


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
            _state.state().session.forget_failures()
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

    with enabled_everywhere("cpu_fallback", devices=("cpu",)):
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


# ---- stores, half-way, growth ----


def test_a_locked_store_stalls_no_plan(own_home: Path, affected_machine: Path) -> None:
    make_up("aten (rehearsed)")
    _state.state().store.flush(5.0)
    database = next(path for path in own_home.iterdir() if path.suffix in (".sqlite", ".db", ".sqlite3"))
    with unhang.enabled(rehearse=True):
        F.conv2d(torch.randn(1, 2, 7, 7), torch.randn(2, 2, 3, 3))
        holder = sqlite3.connect(database)
        holder.execute("BEGIN EXCLUSIVE")
        try:
            took = []
            for size in range(8, 14):
                began = time.monotonic()
                F.conv2d(torch.randn(1, 2, size, size), torch.randn(2, 2, 3, 3))
                took.append(time.monotonic() - began)
            # The quickest of six: a busy machine may delay some, and a lock delays all.
            assert min(took) < 0.6, took
        finally:
            holder.rollback()
            holder.close()


def test_a_session_asks_its_store_once(affected_machine: Path) -> None:
    current = _state.state()
    other = _core.Session(current.machine, _core.Store.open())
    other.keep_canary("aten (rehearsed)", "works", "made up", True)
    assert current.session.canary("aten (rehearsed)") is None, "a plan waits for nobody"
    assert other.canary("aten (rehearsed)") == ("works", "made up")
    _state.forget()
    assert _state.state().session.canary("aten (rehearsed)") == ("works", "made up")


def test_an_enable_that_fails_half_way_changes_nothing(monkeypatch: pytest.MonkeyPatch, affected_machine: Path) -> None:
    flags, before = torch.backends.cudnn, torch.backends.cudnn.enabled
    make_up("aten (rehearsed)")
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


def test_enabling_anew_leaves_no_moment_without_protection(monkeypatch: pytest.MonkeyPatch) -> None:
    w, seen, prepare, activate = torch.randn(1, 1, 3, 3), [], _enable._prepare, _core.activate

    def look() -> None:
        settings = _core.forward_settings("cpu", w.data_ptr())
        seen.append(None if settings is None else settings.strategy)

    def prepared(*arguments: object) -> None:
        prepare(*arguments)
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()

    def activated(*arguments: object) -> None:
        activate(*arguments)
        look()

    unhang.enable("cpu_fallback", devices=("cpu",))
    monkeypatch.setattr(_enable, "_prepare", prepared)
    monkeypatch.setattr(_core, "activate", activated)
    unhang.enable("aten", devices=("cpu",))
    assert seen == ["cpu_fallback", "aten", "aten"]
    unhang.enable("aten", devices=())
    look()
    assert seen[-1] is None


def test_an_enable_that_fails_leaves_what_was_on(monkeypatch: pytest.MonkeyPatch, affected_machine: Path) -> None:
    import os

    flags, before = torch.backends.cudnn, torch.backends.cudnn.enabled
    make_up("aten (rehearsed)")
    plain = nn.Conv2d._conv_forward

    def broken(*_: object) -> None:
        raise KeyboardInterrupt

    unhang.enable("cpu_fallback", devices=("cpu",))
    with monkeypatch.context() as patch:
        patch.setattr(_dispatch, "prepare", broken)
        with pytest.raises(KeyboardInterrupt):
            unhang.enable("implicit_gemm", rehearse=True, implicit_gemm=True)
    assert flags.enabled is before
    assert "MIOPEN_DEBUG_CONV_GEMM" not in os.environ
    assert not _convolve.rehearsed
    layer = nn.Conv2d(1, 1, 3)
    layer(torch.randn(1, 1, 5, 5))
    assert layer.get_bypass_stats()["engines"] == {"cpu": 1}
    settings = _dispatch.settings_here()
    assert settings is not None
    assert settings.strategy == "cpu_fallback"
    unhang.disable()
    assert nn.Conv2d._conv_forward is plain


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


def test_ever_new_messages_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_state, "_MOST_SAID", 5)

    def broken(*_: object) -> None:
        raise RuntimeError("the kernel fell over")

    with unhang.enabled("cpu_fallback", devices=("cpu",)):
        monkeypatch.setattr(_core, "run_cpu", broken)
        for size in range(3, 23):
            F.conv2d(torch.ones(1, 1, size, size), torch.ones(1, 1, 3, 3))
        assert len(_state.state().session.failures()) == 20
    assert 0 < len(_state._said) <= 5


# ---- several cards ----


def test_whether_a_card_is_affected_is_asked_of_that_card(
    monkeypatch: pytest.MonkeyPatch, affected_machine: Path
) -> None:
    machine = type("Two", (), {"affected": True, "is_affected_at": lambda _, at: at == 1})()
    monkeypatch.setattr(_state.state(), "machine", machine)
    monkeypatch.setattr(torch.version, "hip", "5.7")
    assert [_state.state().is_affected(index) for index in (0, 1)] == [False, True]
    monkeypatch.setattr(torch.version, "hip", None)
    assert not _state.state().is_affected(1), "a torch for CUDA computes on no such card"
