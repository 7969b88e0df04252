"""An affected card, rehearsed: CPU tensors stand for those of the machine in the reports, described by a folder."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import conftest
import unhang
from comparing import assert_close
from unhang import _convolve, _core, _dispatch, _enable, _gpu, _run, _state

X, W = torch.randn(1, 16, 48, 48), torch.randn(32, 16, 3, 3)


def engine_of(strategy: str = "auto", **options: object) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", _state.UnhangWarning)
        with unhang.enabled(strategy, rehearse=True, **options):
            y = F.conv2d(X, W, padding=1)
    assert_close(y, F.conv2d(X.double(), W.double(), padding=1))
    (route,) = _convolve.routes.values()
    return route.names[0]


def test_the_folder_is_an_affected_machine(affected_machine: Path) -> None:
    machine = _state.state().machine
    assert machine.affected
    assert machine.spoofed
    assert machine.described_by_folder
    assert "gfx1010" in machine.gpus[0]
    assert "gfx1030" in machine.gpus[0]


def test_a_card_that_torch_does_not_see_is_named(
    affected_machine: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with unhang.enabled():
        pass
    said = capsys.readouterr().err
    assert "an RDNA1 card is here, but this torch sees no GPU" in said
    assert "no affected card" not in said


def test_a_rehearsal_needs_a_machine_to_play() -> None:
    with pytest.raises(ValueError, match="UNHANG_ROOT"):
        unhang.enable(rehearse=True)


def test_auto_uses_torchs_kernels_once_their_canary_passed(
    affected_machine: Path, capsys: pytest.CaptureFixture
) -> None:
    assert engine_of() == "aten"
    said = capsys.readouterr().err
    assert "rehearsal" in said
    assert "canary of aten: works" in said
    # Kept: the second process would not run it again.
    _state.forget()
    _state._said.clear()
    _convolve.routes.clear()
    assert engine_of() == "aten"
    assert "child process" not in capsys.readouterr().err


def test_what_the_shield_would_make_safe_is_said_once_where_it_is_off(
    affected_machine: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine_of()
    engine_of()
    assert capsys.readouterr().err.count("the shield is off") == 1
    (route,) = _convolve.routes.values()
    assert any("without the shield" in warning for warning in route.plan.warnings)
    _state._said.clear()
    _state.forget()
    _convolve.replan()
    _convolve.routes.clear()
    monkeypatch.setenv("HSA_TOOLS_LIB", "/somewhere/libunhang_shield.so")
    engine_of()
    assert "the shield is off" not in capsys.readouterr().err
    (route,) = _convolve.routes.values()
    assert not any("shield" in warning for warning in route.plan.warnings)


@pytest.mark.parametrize("mood", ["crash", "wrong"])
def test_a_canary_that_dies_or_lies_keeps_everything_on_the_cpu(
    affected_machine: Path, monkeypatch: pytest.MonkeyPatch, mood: str
) -> None:
    monkeypatch.setenv("UNHANG_REHEARSE_CANARY", mood)
    assert engine_of() == "cpu"
    (route,) = _convolve.routes.values()
    assert "canary" in route.plan.reason
    assert route.plan.engines == ["cpu"] or route.plan.engines[0] == "cpu"


def test_a_canary_that_hangs_is_ended(
    affected_machine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setenv("UNHANG_REHEARSE_CANARY", "hang")
    monkeypatch.setattr(_gpu, "canary_deadline", 3.0)
    assert engine_of() == "cpu"
    assert "canary of aten: hangs (no answer within 3 s" in capsys.readouterr().err


def test_the_users_strategies_are_literal_and_warn_once(affected_machine: Path) -> None:
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        unhang.enable("selective", rehearse=True, size_threshold=48)
        F.conv2d(X, W)
        F.conv2d(X, W, padding=1)
        F.conv2d(torch.randn(1, 16, 49, 49), W)
    assert len([w for w in warned if "MIOpen" in str(w.message)]) == 1
    by_size = {key.split(":")[3]: route.names[0] for (key, _), route in _convolve.routes.items()}
    assert by_size == {"1x16x48x48": "miopen", "1x16x49x49": "cpu"}


def test_a_problem_without_a_solver_is_planned_elsewhere(affected_machine: Path) -> None:
    with pytest.warns(_state.UnhangWarning):
        unhang.enable("implicit_gemm", rehearse=True, implicit_gemm=True)
        F.conv2d(torch.randn(1, 3, 16, 16), torch.randn(64, 3, 3, 3))
        F.conv2d(X, W)
    chosen = {key.split(":")[3]: route for (key, _), route in _convolve.routes.items()}
    assert chosen["1x3x16x16"].names[0] != "miopen"
    assert "solver" in chosen["1x3x16x16"].plan.reason
    assert chosen["1x16x48x48"].names[0] == "miopen"


def test_other_layers_are_kept_off_miopen_and_given_back(affected_machine: Path) -> None:
    flags = torch.backends.cudnn
    before = flags.enabled, flags.benchmark
    try:
        flags.enabled, flags.benchmark = True, True
        with unhang.enabled(rehearse=True):
            assert (flags.enabled, flags.benchmark) == (False, False)
        assert (flags.enabled, flags.benchmark) == (True, True)
        with unhang.enabled(rehearse=True, protect_other_layers=False):
            assert (flags.enabled, flags.benchmark) == (True, True)
    finally:
        flags.enabled, flags.benchmark = before


def test_miopens_backward_holds_the_flag_for_its_call_only(
    affected_machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from unhang import _engines

    seen = []
    original = _engines._original_backward

    def spy(*arguments):
        seen.append((torch.backends.cudnn.enabled, torch.backends.cudnn.benchmark))
        return original(*arguments)

    monkeypatch.setattr(_engines, "_original_backward", spy)
    w = W.clone().requires_grad_()
    with pytest.warns(_state.UnhangWarning), unhang.enabled("implicit_gemm", rehearse=True):
        F.conv2d(X, w).sum().backward()
        assert torch.backends.cudnn.enabled is False
    assert seen == [(True, False)]


def test_a_run_leaves_a_program_alone_that_is_enabling(affected_machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`unhang run` acts at torch's first use of the GPU, and that may be within the program's own enable()."""
    uses = []

    def use_the_gpu(*_: object, **__: object) -> None:
        uses.append("canary")
        if len(uses) == 1:
            _run._enable("auto", rehearse=True)

    monkeypatch.setattr(_gpu, "ensure_canary", use_the_gpu)
    monkeypatch.setattr(_gpu, "ensure_families", lambda _: None)
    unhang.enable("selective", rehearse=True)
    assert uses == ["canary"]
    assert _dispatch.process_settings is not None
    assert _dispatch.process_settings.strategy == "selective"
    unhang.disable()
    # A block is for its own thread: the process is enabled behind its beginning.
    uses.clear()
    with unhang.enabled("selective", rehearse=True):
        assert uses == ["canary"] * 2
        settings = _dispatch.settings_here()
        assert settings is not None
        assert settings.strategy == "selective"
        assert _dispatch.process_settings is not None
        assert _dispatch.process_settings.strategy == "auto"
    unhang.disable()


class _FirstUse:
    """Torch's first use of the GPU, played on a torch for HIP with one healthy GPU. As in torch, it happens under a lock,
    and `unhang run` enables inside."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_over = False
        self.lock = threading.Lock()
        self.thread = threading.local()
        #: What the thread that comes first does under the lock before it enables, and any other before it waits.
        self.inside: Callable[[], object] = bool
        self.before: Callable[[], object] = bool
        monkeypatch.setattr(torch.version, "hip", "5.7.31921")
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        monkeypatch.setattr(torch.cuda, "init", self.happen)
        monkeypatch.setattr(_gpu, "ensure_families", lambda _: self.happen())
        monkeypatch.setattr(_dispatch, "prepare", lambda _: None)

    def happen(self) -> None:
        """Initializes, once."""
        if self.is_over or hasattr(self.thread, "is_inside"):
            return
        if self.lock.locked():
            self.before()
        if not self.lock.acquire(timeout=20):
            raise TimeoutError("two threads wait for each other")
        try:
            if not self.is_over:
                self.thread.is_inside = True
                self.inside()
                _run._enable("auto", devices=("cuda",))
                self.is_over = True
        finally:
            self.lock.release()


@pytest.mark.parametrize("form", [conftest.enabled_everywhere, unhang.enabled])
def test_enabling_waits_for_no_thread_that_uses_the_gpu_first(monkeypatch: pytest.MonkeyPatch, form: Callable) -> None:
    first, inside, waiting = _FirstUse(monkeypatch), threading.Event(), threading.Event()

    def wait() -> None:
        inside.set()
        assert waiting.wait(20)

    first.inside, first.before = wait, waiting.set
    thread = threading.Thread(target=first.happen, daemon=True)
    thread.start()
    assert inside.wait(20)
    with form("jit", devices=("cuda",)):
        thread.join(20)
        assert first.is_over
        settings = _dispatch.settings_here()
        assert settings is not None
        assert settings.strategy == "jit"


def test_a_run_leaves_a_program_alone_whose_enabling_is_the_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared, prepare = [], _enable._prepare

    def noted(current: _enable._Enabled) -> None:
        prepared.append(current.settings.strategy)
        prepare(current)

    monkeypatch.setattr(_enable, "_prepare", noted)
    first = _FirstUse(monkeypatch)
    unhang.enable("jit", devices=("cuda",))
    assert first.is_over
    assert prepared == ["jit"]
    unhang.disable()
    prepared.clear()
    _FirstUse(monkeypatch)
    with unhang.enabled("jit", devices=("cuda",)):
        assert prepared == ["auto", "jit"]
        assert _dispatch.process_settings is not None
        assert _dispatch.process_settings.strategy == "auto"


def test_a_first_use_by_enabling_is_not_too_late_for_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    first = _FirstUse(monkeypatch)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: first.is_over)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with unhang.enabled("jit", devices=("cuda",), implicit_gemm=True):
            assert first.is_over
            assert os.environ["MIOPEN_DEBUG_CONV_GEMM"] == "0"


def test_variables_for_miopen_are_set_and_given_back(affected_machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIOPEN_DEBUG_CONV_GEMM", "1")
    monkeypatch.delenv("MIOPEN_DEBUG_CONV_WINOGRAD", raising=False)
    with unhang.enabled(rehearse=True, implicit_gemm=True):
        assert os.environ["MIOPEN_DEBUG_CONV_GEMM"] == "0"
        assert os.environ["MIOPEN_DEBUG_CONV_WINOGRAD"] == "0"
        assert os.environ["MIOPEN_DEBUG_CONV_IMPLICIT_GEMM"] == "1"
    assert os.environ["MIOPEN_DEBUG_CONV_GEMM"] == "1"
    assert "MIOPEN_DEBUG_CONV_WINOGRAD" not in os.environ


def test_variables_that_come_too_late_are_said_to(affected_machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "5.7.31921")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with unhang.enabled(rehearse=True, implicit_gemm=True):
            pass
    assert [w for w in warned if "may have no effect" in str(w.message)]


def test_a_rehearsal_leaves_no_evidence(affected_machine: Path, own_home: Path) -> None:
    engine_of()
    _state.state().store.flush(5.0)
    _state.forget()
    plan = plan_on_an_affected_card()
    assert not [line for line in plan.evidence if "timed" in line]


def test_cpu_tensors_prove_nothing_about_the_card(affected_machine: Path) -> None:
    """Torch's CPU kernels returned: that says nothing of its GPU kernels, and CPU times nothing of the card's."""
    for strategy in ("auto", "cpu_fallback"):
        with unhang.enabled(strategy, devices=("cpu",)):
            for _ in range(8):
                F.conv2d(X, W, padding=1)
    _state.forget()
    plan = plan_on_an_affected_card()
    assert plan.engines == ["cpu"]
    assert "canary" in plan.reason
    assert not [line for line in plan.evidence if "timed" in line]


def test_a_block_inside_a_rehearsal_leaves_it_on(affected_machine: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", _state.UnhangWarning)
        with unhang.enabled(rehearse=True):
            with unhang.enabled("cpu_fallback", rehearse=True):
                pass
            F.conv2d(X, W)
    (route,) = _convolve.routes.values()
    assert route.rehearsed
    assert unhang.report().data["rehearsal"], "also after it is off"


def plan_on_an_affected_card() -> _core.Plan:
    problem = _core.Problem.from_key("forward:f32:nchw:1x16x48x48:32x3x3:s1x1:p1x1:d1x1:g1")
    situation = _core.Situation("accelerator", affected=True)
    return _state.state().session.plan(problem, "cuda", unhang.Settings(), situation)
