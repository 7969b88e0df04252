"""Whose fault an error is: what a program raises reaches it, and what unhang or an engine raises does not."""

from __future__ import annotations

import dis
import functools
import gc
import signal
import sys
import types
import weakref
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import unhang
from comparing import assert_close, engines_used
from unhang import (
    SafeConv2d,
    Settings,
    _convolve,
    _core,
    _dispatch,
    _enable,
    _engines,
    _state,
)

NEW_TORCH = hasattr(torch, "compile")
OURS = Settings(strategy="cpu_fallback")


# ---- whose fault ----


@pytest.mark.parametrize("error", [_core.Panic("index out of bounds"), UserWarning("deprecated"), ValueError("no")])
def test_what_planning_raises_never_reaches_the_program(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, capsys: pytest.CaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise error

    x, w = torch.randn(1, 2, 6, 6), torch.randn(2, 2, 3, 3)
    with monkeypatch.context() as patch, unhang.enabled("cpu_fallback", devices=("cpu",)):
        patch.setattr(_convolve, "_plan", broken)
        assert_close(F.conv2d(x, w), F.conv2d(x.double(), w.double()))
    assert f"could not plan a convolution ({type(error).__name__}: {error})" in capsys.readouterr().err


def test_a_panic_of_the_last_engine_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise _core.Panic("index out of bounds")

    x, w = torch.randn(1, 2, 6, 6), torch.randn(2, 2, 3, 3)
    with unhang.enabled("cpu_fallback", devices=("cpu",)):
        monkeypatch.setattr(_core, "run_cpu", broken)
        monkeypatch.setattr(_engines.AtenEngine, "forward", broken)
        with pytest.raises(RuntimeError, match="unhang failed: index out of bounds"):
            F.conv2d(x, w)


def test_a_failing_engine_keeps_no_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("the kernel fell over")

    x, w = torch.randn(1, 2, 6, 6), torch.randn(2, 2, 3, 3)
    held = weakref.ref(x)
    gc.disable()
    try:
        with monkeypatch.context() as patch, unhang.enabled("cpu_fallback", devices=("cpu",)):
            patch.setattr(_core, "run_cpu", broken)
            F.conv2d(x, w)
        assert unhang.report().data["failures"]
        del x
        assert held() is None
    finally:
        gc.enable()


def test_a_plan_from_before_a_change_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = _convolve._plan

    def overtaken(*arguments: object) -> object:
        route = plan(*arguments)
        _convolve.replan()
        return route

    x, w = torch.randn(1, 2, 6, 6), torch.randn(2, 2, 3, 3)
    with unhang.enabled("cpu_fallback", devices=("cpu",)):
        with monkeypatch.context() as patch:
            patch.setattr(_convolve, "_plan", overtaken)
            F.conv2d(x, w)
            assert not _convolve._forward_routes
        F.conv2d(x, w)
        assert len(_convolve._forward_routes) == 1


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (RuntimeError("CUDA error: device-side assert triggered"), _engines.Fault.CALLERS),
        (_core.GpuFailure("cuLaunchKernel: an illegal memory access was encountered"), _engines.Fault.CALLERS),
        (torch.cuda.OutOfMemoryError("HIP out of memory. Tried to allocate 2.00 GiB"), _engines.Fault.CALLERS),
        (_core.GpuFailure("cuModuleLoadData: CUDA_ERROR_OUT_OF_MEMORY"), _engines.Fault.NOBODYS),
        (_core.GpuDeclined("a graph is being recorded"), _engines.Fault.NOBODYS),
        (RuntimeError("the kernel fell over"), _engines.Fault.ENGINES),
        (_core.Panic("index out of bounds"), _engines.Fault.ENGINES),
    ],
)
def test_only_an_engines_own_failures_are_held_against_it(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, fault: _engines.Fault
) -> None:
    x, w = torch.randn(1, 2, 6, 6), torch.randn(2, 2, 3, 3)

    def broken(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch, unhang.enabled("cpu_fallback", devices=("cpu",)):
        patch.setattr(_core, "run_cpu", broken)
        if fault is _engines.Fault.CALLERS:
            with pytest.raises(type(error)) as raised:
                F.conv2d(x, w)
            assert raised.value is error
        else:
            assert_close(F.conv2d(x, w), F.conv2d(x.double(), w.double()))
    assert bool(unhang.report().data["failures"]) == (fault is _engines.Fault.ENGINES)
    _state.state().store.flush(5.0)
    _state.forget()
    _convolve.replan()
    _convolve.routes.clear()
    with unhang.enabled("cpu_fallback", devices=("cpu",)):
        F.conv2d(x, w)
    # Where there is an accelerator, CPU tensors teach nothing.
    is_learned = fault is _engines.Fault.ENGINES and not torch.cuda.is_available()
    assert engines_used() == ({"aten"} if is_learned else {"cpu"}), "what the next process does"


def test_after_a_sticky_error_of_the_device_nothing_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_engines, "is_sound", lambda device: False)
    assert _engines.fault_of(RuntimeError("anything"), torch.device("cpu")) is _engines.Fault.CALLERS


# ---- exceptions from outside ----


# After these the interpreter looks whether a signal has come, and raises what its handler raises.
_LOOKS = {"CALL", "CALL_FUNCTION", "CALL_FUNCTION_EX", "CALL_FUNCTION_KW", "CALL_KW", "CALL_METHOD", "RESUME"}


@pytest.mark.parametrize("kind", ["safe", "plain", "transposed"])
def test_an_interrupt_leaves_no_layer_entered(kind: str) -> None:
    """Ctrl-C may arrive wherever the interpreter looks for it: here it does, at each such place of a forward in turn."""
    own = Settings(strategy="aten")
    layer = SafeConv2d(2, 3, 3, config=own) if kind == "safe" else nn.Conv2d(2, 3, 3)
    if kind == "transposed":
        layer = nn.ConvTranspose2d(2, 3, 3)
    x, w = torch.randn(1, 2, 7, 7), torch.randn(3, 2, 3, 3)
    with unhang.enabled(settings=OURS, devices=("cpu",)), torch.no_grad():
        for _ in range(3):
            layer(x)
        interrupted = 0
        for moment in range(1, 400):
            interrupt = _Interrupt(moment)
            sys.settrace(interrupt.look)
            try:
                layer(x)
            except KeyboardInterrupt:
                interrupted += 1
            finally:
                sys.settrace(None)
            before = _unhang_forwards(layer)
            F.conv2d(x, w)
            assert _unhang_forwards(layer) == before, f"the thread is still in the layer, by moment {moment}"
            settings = _core.forward_settings("cpu", w.data_ptr())
            assert settings is not None
            assert settings.strategy == "cpu_fallback", f"the layer's settings stayed, by moment {moment}"
    assert interrupted >= 5


def test_an_interrupt_leaves_no_block_entered() -> None:
    """Ctrl-C while a block begins."""
    w = torch.randn(3, 2, 3, 3)
    with unhang.enabled(settings=OURS, devices=("cpu",)):
        pass  # what is done once is done
    interrupted = entered = 0
    for moment in range(1, 2000):
        sys.settrace(_Interrupt(moment).look)
        try:
            with unhang.enabled(settings=OURS, devices=("cpu",)):
                sys.settrace(None)
                entered += 1
        except KeyboardInterrupt:
            interrupted += 1
        finally:
            sys.settrace(None)
        assert _dispatch.entered() is None, f"the thread is still in the block, by moment {moment}"
        assert _core.forward_settings("cpu", w.data_ptr()) is None, f"and so are its convolutions, by moment {moment}"
        assert not _enable._blocks
        if entered:
            break
    assert interrupted >= 20
    assert entered == 1


class _Preempted(Exception):
    """What a program's handler raises."""


@pytest.mark.skipif(not NEW_TORCH, reason="torch 2 and newer")
def test_what_a_handler_raises_in_backward_is_never_lost() -> None:
    """A signal may arrive wherever the interpreter looks for it: here it does, at each such place of a backward."""
    # Without remembered decisions every call goes through Python.
    layer = SafeConv2d(4, 6, 3, config=Settings(strategy="aten", cache_decisions=False))
    x = torch.randn(2, 4, 24, 24)
    raised = caught = 0

    def preempt(*_: object) -> None:
        nonlocal raised
        raised += 1
        raise _Preempted

    before = signal.signal(signal.SIGALRM, preempt)
    gc.collect()
    gc.disable()  # what is raised while garbage is collected goes nowhere
    try:
        with unhang.enabled(settings=OURS, devices=("cpu",)):
            layer(x).sum().backward()  # what torch imports at its first backward may not be interrupted
            for moment in range(1, 1000):
                loss = layer(x).sum()
                sys.settrace(_Interrupt(moment, lambda: signal.raise_signal(signal.SIGALRM)).look)
                try:
                    loss.backward()
                    break
                except _Preempted:
                    caught += 1
                finally:
                    sys.settrace(None)
                assert raised == caught == moment
    finally:
        gc.enable()
        signal.signal(signal.SIGALRM, before)
    assert raised == caught >= 20, "what was raised reached the program"


def _ctrl_c() -> None:
    raise KeyboardInterrupt


class _Interrupt:
    """Interrupts at the given one of the places in our files where the interpreter looks for signals."""

    def __init__(self, moment: int, interrupt: Callable[[], None] = _ctrl_c) -> None:
        self.left = moment
        self.interrupt = interrupt
        self.last: dict[object, str] = {}

    def look(self, frame, event, _):
        if frame.f_globals.get("__name__", "").partition(".")[0] != "unhang":
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            names = _names_of(frame.f_code)
            if self.last.get(frame) in _LOOKS:
                self.left -= 1
                if self.left == 0:
                    self.interrupt()
            self.last[frame] = names[frame.f_lasti]
        return self.look


@functools.cache
def _names_of(code: types.CodeType) -> dict[int, str]:
    return {it.offset: it.opname for it in dis.get_instructions(code)}


def _unhang_forwards(layer: nn.Module) -> int:
    return unhang._statistics.layer_of(layer).forwards


def test_a_tensor_that_is_not_aligned_is_held_against_no_engine() -> None:
    memory = bytearray(4 * 200 + 1)
    x = torch.frombuffer(memory, dtype=torch.float32, count=2 * 49, offset=1).view(1, 2, 7, 7)
    x.copy_(torch.randn(1, 2, 7, 7))
    w, b = torch.randn(3, 2, 3, 3), torch.randn(3)
    assert x.data_ptr() % 4
    want = F.conv2d(x, w, b)
    with unhang.enabled(settings=OURS, devices=("cpu",)):
        for _ in range(6):
            assert_close(F.conv2d(x, w, b), want.double(), slack=3)
            assert_close(F.conv2d(x.clone(), w, b), want.double(), slack=3)
        assert not _state.state().session.failures()
        assert engines_used() == {"cpu"}
