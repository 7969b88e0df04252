"""``unhang.enabled``: a block, or a decorated function, on its own thread."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import unhang
from conftest import make_up
from unhang import SafeConv2d, Settings, _convolve, _core, _dispatch, _enable

X, W = torch.randn(1, 2, 9, 9), torch.randn(3, 2, 3, 3, requires_grad=True)


def _on_another_thread(work: Callable[[], object]) -> None:
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


def _strategies() -> dict[str, int]:
    """Calls by the strategy that they were planned by."""
    found: dict[str, int] = {}
    for (_, token), route in _convolve.routes.items():
        strategy = Settings.from_token(token).strategy
        found[strategy] = found.get(strategy, 0) + route.tally.total
    return found


def test_a_block_is_for_its_own_thread() -> None:
    seen = []
    with unhang.enabled("cpu_fallback", devices=("cpu",)):
        for _ in range(8):  # also without Python
            F.conv2d(X, W)
            _on_another_thread(lambda: F.conv2d(X, W))
        _on_another_thread(lambda: seen.append(unhang.is_enabled()))
        assert unhang.is_enabled()
    assert _strategies() == {"cpu_fallback": 8}
    assert seen == [False]
    assert not unhang.is_enabled()


def test_other_threads_keep_to_the_process() -> None:
    unhang.enable("aten", devices=("cpu",))
    with unhang.enabled("cpu_fallback", devices=("cpu",)):
        for _ in range(8):
            F.conv2d(X, W)
            _on_another_thread(lambda: F.conv2d(X, W))
            _on_another_thread(lambda: nn.Conv2d(2, 3, 3)(X))
    F.conv2d(X, W)
    assert _strategies() == {"cpu_fallback": 8, "aten": 17}


def test_blocks_of_two_threads_overlap() -> None:
    barrier = threading.Barrier(2, timeout=30)

    def other() -> None:
        with unhang.enabled("aten", devices=("cpu",)):
            barrier.wait()
            F.conv2d(X, W)
            barrier.wait()
        barrier.wait()

    thread = threading.Thread(target=other)
    thread.start()
    with unhang.enabled("cpu_fallback", devices=("cpu",)):
        barrier.wait()
        F.conv2d(X, W)
        barrier.wait()
        barrier.wait()
        F.conv2d(X, W)
    thread.join()
    assert _strategies() == {"cpu_fallback": 2, "aten": 1}


def test_blocks_nest_and_end_by_an_exception() -> None:
    with unhang.enabled("aten", devices=("cpu",)):
        with pytest.raises(RuntimeError), unhang.enabled("cpu_fallback", devices=("cpu",)):
            F.conv2d(F.conv2d(X, W), W)
        F.conv2d(X, W)
        with unhang.enabled(devices=()):
            F.conv2d(X, W)
    F.conv2d(X, W)
    assert _strategies() == {"cpu_fallback": 1, "aten": 1}


def test_a_function_is_decorated() -> None:
    @unhang.enabled("cpu_fallback", devices=("cpu",))
    def convolve(times: int) -> int:
        F.conv2d(X, W)
        return times if times == 1 else convolve(times - 1)

    assert convolve(3) == 1
    F.conv2d(X, W)
    assert _strategies() == {"cpu_fallback": 3}


def test_a_decorated_function_does_not_plan_anew_each_time() -> None:
    @unhang.enabled("cpu_fallback", devices=("cpu",))
    def convolve() -> None:
        F.conv2d(X, W)

    convolve()
    decided = _convolve.decisions
    for _ in range(5):
        convolve()
    assert _convolve.decisions == decided


@pytest.mark.skipif(not hasattr(torch._C, "_stash_obj_in_tls"), reason="torch 2.0 and newer")
def test_gradients_of_a_block_are_planned_by_it_on_autograds_threads() -> None:
    """A GPU's gradients are computed on a thread of autograd's, to which torch carries its thread's state. Without a GPU that is
    played: a thread with that state and nothing else."""
    found: list[object] = []
    with unhang.enabled("cpu_fallback", devices=("cpu",)):
        stored = torch._C._get_obj_in_tls(_dispatch._BLOCK)

        def as_autograd() -> None:
            _dispatch._store(stored)
            found.append((_core.backward_settings("cpu", 0), _core.backward_settings("cuda", 0), _dispatch.entered()))
            _dispatch._store(None)
            found.append(_core.backward_settings("cpu", 0))

        _on_another_thread(as_autograd)
    assert found == [(stored[0].settings, None, stored[0]), None]
    assert not torch._C._is_key_in_tls(_dispatch._BLOCK) or torch._C._get_obj_in_tls(_dispatch._BLOCK) is None


@pytest.mark.skipif(not hasattr(torch._C, "_stash_obj_in_tls"), reason="torch 2.0 and newer")
def test_a_block_on_autograds_thread_leaves_what_was_carried_there_to_torch() -> None:
    """A decorated function that autograd computes anew, within the gradients of another block."""
    found: list[object] = []
    with unhang.enabled("cpu_fallback", devices=("cpu",)):
        stored = torch._C._get_obj_in_tls(_dispatch._BLOCK)

        def as_autograd() -> None:
            _dispatch._store(stored)
            with unhang.enabled("aten", devices=("cpu",)):
                pass
            found.append(_dispatch.entered())
            _dispatch._store(None)
            found.append(_dispatch.entered())

        _on_another_thread(as_autograd)
    assert found == [stored[0], None]


@pytest.mark.skipif(not hasattr(torch._C, "_stash_obj_in_tls"), reason="torch 2.0 and newer")
def test_a_torch_that_takes_references_over_gets_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some versions (2.11) drop a reference that they never counted. Others play such a torch."""
    counting = torch._C._stash_obj_in_tls

    def taking(key: str, stored: object) -> None:
        counting(key, stored)
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(stored))

    if not _dispatch._torch_takes_references:
        monkeypatch.setattr(torch._C, "_stash_obj_in_tls", taking)
        monkeypatch.setattr(_dispatch, "_torch_takes_references", True)
    assert _dispatch._takes_references()
    with unhang.enabled("cpu_fallback", devices=("cpu",)):
        stored = torch._C._get_obj_in_tls(_dispatch._BLOCK)
        with unhang.enabled("aten", devices=("cpu",)):
            pass
    assert sys.getrefcount(stored) == 2, "this function's own, and that of the call"


def test_the_process_is_enabled_at_the_first_use_even_within_a_block() -> None:
    with unhang.enabled("aten", devices=("cpu",)):
        _enable.enable_unless_enabled("cpu_fallback", devices=("cpu",))
        assert unhang.is_enabled()
        assert _dispatch.settings_here().strategy == "aten"
        _on_another_thread(lambda: F.conv2d(X, W))
    assert _strategies() == {"cpu_fallback": 1}
    unhang.disable()


def test_layers_without_settings_follow_the_block() -> None:
    layer = SafeConv2d(2, 3, 3)
    with unhang.enabled("cpu_fallback", devices=("cpu",)):
        layer(X).sum().backward()
        assert layer.get_bypass_stats()["strategy"] == "cpu_fallback"
    assert _strategies() == {"cpu_fallback": 2}
    assert layer.get_bypass_stats()["engines"] == {"cpu": 1}


def test_what_torch_has_once_is_given_back_by_the_last_block(affected_machine: Path) -> None:
    make_up("aten (rehearsed)")
    before = torch.backends.cudnn.enabled
    outer, inner = (unhang.enabled(rehearse=True, implicit_gemm=True) for _ in range(2))
    with outer:
        assert not torch.backends.cudnn.enabled
        with inner:
            pass
        assert not torch.backends.cudnn.enabled
        assert os.environ["MIOPEN_DEBUG_CONV_GEMM"] == "0"
        assert _convolve.rehearsed == {"cpu"}
    assert torch.backends.cudnn.enabled == before
    assert "MIOPEN_DEBUG_CONV_GEMM" not in os.environ
    assert not _convolve.rehearsed


@pytest.mark.skipif(not hasattr(torch, "compile"), reason="torch 2 and newer")
def test_a_compiled_layer_follows_whoever_runs_it_without_compiling_again() -> None:
    import torch._dynamo.testing

    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(SafeConv2d(2, 3, 3), backend=counter)
    for limit in range(4, 12):
        with unhang.enabled("tiled", devices=("cpu",), tile_limit=limit):
            compiled(X).sum().backward()
    with unhang.enabled("cpu_fallback", devices=("cpu",)):
        compiled(X).sum().backward()
    assert counter.frame_count == 1
    assert _strategies() == {"tiled": 16, "cpu_fallback": 2}
