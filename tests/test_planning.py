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
from unhang import (
    _canary,
    _convolve,
    _core,
    _dispatch,
    _launch,
    _state,
    _statistics,
)

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


# ---- stores, half-way, growth ----


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


# ---- several cards ----


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
