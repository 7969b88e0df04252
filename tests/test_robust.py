"""A fault in unhang never breaks a user's training."""

from __future__ import annotations

import itertools
import os
import signal
import stat
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import unhang
from comparing import assert_close, difference, engines_used
from conftest import MACHINES, subprocess_environment
from unhang import _convolve, _core, _engines, _state, _talk

X, W = torch.randn(2, 4, 12, 12), torch.randn(8, 4, 3, 3, requires_grad=True)


def python(code: str, **variables: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], env=subprocess_environment(**variables),
        capture_output=True, text=True, timeout=180,
    )  # fmt: skip


def test_an_engine_that_fails_is_replaced_recorded_and_told_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    calls = []

    def broken(*_):
        calls.append(1)
        raise RuntimeError("the kernel fell over")

    monkeypatch.setattr(_core, "run_cpu", broken)
    want = F.conv2d(X.double(), W.double()).detach()
    with unhang.enabled("cpu_fallback", devices=("cpu",)):
        for _ in range(5):
            assert_close(F.conv2d(X, W).detach(), want)
    assert len(calls) == 1, "an engine that failed on a problem is not tried for it again"
    said = capsys.readouterr().err
    assert said.count("the kernel fell over") == 1
    assert "next engine" in said
    (failure,) = unhang.report().data["failures"]
    assert failure["engine"] == "cpu"
    # The verdict is kept: another process does not try it either.
    monkeypatch.undo()
    _state.forget()
    with unhang.enabled("auto", devices=("cpu",)):
        F.conv2d(X, W)
    assert "cpu" not in next(
        iter(route.plan.engines for (_, token), route in _convolve.routes.items() if "auto" in token)
    )


def test_out_of_memory_is_raised_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    error = torch.cuda.OutOfMemoryError("HIP out of memory. Tried to allocate 2.00 GiB")

    def starved(*_):
        raise error

    monkeypatch.setattr(_core, "run_cpu", starved)
    with unhang.enabled("cpu_fallback", devices=("cpu",)), pytest.raises(torch.cuda.OutOfMemoryError) as raised:
        F.conv2d(X, W)
    assert raised.value is error
    assert not unhang.report().data["failures"], "too little memory says nothing about an engine"


def test_frozen_flags_make_the_next_engine_compute(monkeypatch: pytest.MonkeyPatch, affected_machine: Path) -> None:
    class Frozen:
        def __init__(self, **_):
            pass

        def __enter__(self):
            raise RuntimeError("not allowed to set torch.backends.cudnn flags after disable_global_flags")

        def __exit__(self, *_):
            pass

    monkeypatch.setattr(_engines, "vendor_library", Frozen)
    with pytest.warns(_state.UnhangWarning), unhang.enabled("implicit_gemm", rehearse=True):
        F.conv2d(X, W).sum().backward()
    assert W.grad is not None


@pytest.mark.parametrize("fault", ["garbage", "truncated", "a folder", "read-only", "unwritable home"])
def test_a_bad_store_stops_nothing(own_home: Path, fault: str) -> None:
    code = """
        import torch, unhang, torch.nn.functional as F
        x, w = torch.randn(1, 2, 8, 8), torch.randn(2, 2, 3, 3)
        with unhang.enabled("cpu_fallback", devices=("cpu",)):
            for _ in range(6):
                y = F.conv2d(x, w)
        torch.testing.assert_close(y, F.conv2d(x, w))
        print("right")
    """
    first = python(code, UNHANG_HOME=str(own_home))
    assert first.returncode == 0, first.stderr
    databases = [
        path for path in own_home.iterdir() if path.is_file() and path.suffix in (".sqlite", ".db", ".sqlite3")
    ]
    assert databases, sorted(own_home.iterdir())
    database = databases[0]
    if fault == "garbage":
        database.write_bytes(os.urandom(8192))
    elif fault == "truncated":
        database.write_bytes(database.read_bytes()[:700])
    elif fault == "a folder":
        database.unlink()
        database.mkdir()
    elif fault == "read-only":
        database.chmod(stat.S_IRUSR)
    else:
        own_home = Path("/proc/unhang-cannot-write-here")
    again = python(code, UNHANG_HOME=str(own_home))
    assert again.returncode == 0, again.stderr
    assert again.stdout == "right\n"
    assert len([line for line in again.stderr.splitlines() if line.startswith("unhang:")]) <= 1, again.stderr


def test_forked_children_compute_without_store_or_threads(own_home: Path) -> None:
    code = """
        import os, torch, unhang, torch.nn.functional as F
        torch.set_num_threads(2)
        x, w = torch.randn(4, 8, 32, 32), torch.randn(8, 8, 3, 3)
        unhang.enable("cpu_fallback", devices=("cpu",))
        want = F.conv2d(x, w)          # starts the thread pool and the store's writer in the parent
        for _ in range(3):
            child = os.fork()
            if child == 0:
                torch.set_num_threads(1)
                ok = torch.equal(F.conv2d(x, w), want)
                y = F.conv2d(torch.randn(1, 3, 9, 9), torch.randn(2, 3, 3, 3))
                os._exit(0 if ok else 7)
            assert os.waitpid(child, 0)[1] == 0
        assert torch.equal(F.conv2d(x, w), want)
        unhang.disable()
        print("right")
    """
    ended = python(code, UNHANG_HOME=str(own_home))
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "right\n"


def test_a_fork_while_another_thread_holds_every_lock() -> None:
    """What the child finds locked would stay locked for ever: the thread that holds it is not in the child."""
    code = """
        import os, threading, torch, unhang, torch.nn.functional as F
        from unhang import _convolve, _enable, _engines, _state, _statistics
        x, w = torch.randn(1, 2, 8, 8), torch.randn(2, 2, 3, 3)
        torch.set_num_threads(1)
        unhang.enable("cpu_fallback", devices=("cpu",))
        F.conv2d(x, w)
        holding, done = threading.Event(), threading.Event()
        def hold():
            with _convolve._lock, _enable._lock, _engines._flag_lock, _state._lock, _statistics._lock:
                holding.set()
                done.wait()
        threading.Thread(target=hold).start()
        holding.wait()
        child = os.fork()
        if child == 0:
            conv = torch.nn.Conv2d(2, 2, 3)
            conv(torch.randn(1, 2, 9, 9))
            unhang.report()
            os._exit(0)
        done.set()
        assert os.waitpid(child, 0)[1] == 0
        print("returned")
    """
    ended = python(code)
    assert ended.stdout == "returned\n", ended.stderr


def test_ever_new_sizes_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_convolve, "_MOST_ROUTES", 10)
    with unhang.enabled("cpu_fallback", devices=("cpu",)):
        for size in range(3, 40):
            F.conv2d(torch.ones(1, 1, size, size), torch.ones(1, 1, 3, 3))
            assert len(_convolve._forward_routes) <= 10
    assert len(_convolve.routes) <= 10


class Images(torch.utils.data.Dataset):
    """A data set whose items are made by a convolution, in the worker."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        blur = torch.ones(1, 1, 3, 3) / 9
        return F.conv2d(torch.full((1, 1, 8, 8), float(index)), blur, padding=1)[0]


def test_convolutions_in_data_loader_workers() -> None:
    want = [Images()[i] for i in range(12)]
    with unhang.enabled("cpu_fallback", devices=("cpu",)):
        F.conv2d(X, W)
        loader = torch.utils.data.DataLoader(Images(), batch_size=3, num_workers=2)
        got = torch.cat(list(loader))
        F.conv2d(X, W)
    torch.testing.assert_close(got, torch.stack(want))


def test_many_threads_at_once() -> None:
    want = F.conv2d(X, W).detach()
    wrong = []

    def work() -> None:
        for _ in range(50):
            if difference(F.conv2d(X, W), want) is not None:
                wrong.append(1)

    unhang.enable("cpu_fallback", devices=("cpu",))
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    (route,) = _convolve.routes.values()
    assert route.tally.total == 200, "no count is lost between threads"


def test_distributed_training_gives_the_same_gradients(own_home: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent("""
        import os, pathlib, sys, time, torch, torch.distributed as dist, torch.nn as nn
        rank, where, on = int(sys.argv[1]), sys.argv[2], sys.argv[3] == "on"
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"file://{where}", rank=rank, world_size=2)
        if on:
            import unhang
            unhang.enable("cpu_fallback", devices=("cpu",))
        torch.manual_seed(0)
        model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3)).double())
        torch.manual_seed(rank)
        for _ in range(3):
            model.zero_grad()
            model(torch.randn(2, 3, 9, 9, dtype=torch.float64)).square().sum().backward()
        if on:
            counts = unhang.get_bypass_stats()
            assert counts["total_forwards"] == 6, counts
            unhang.disable()
        if rank == 0:
            torch.save([p.grad for p in model.parameters()], sys.argv[4])
        # gloo's barrier fails now and then where one rank closes its sockets while the other still reads: neither leaves before both are done.
        pathlib.Path(f"{where}-done-{rank}").touch()
        deadline = time.monotonic() + 120
        while not pathlib.Path(f"{where}-done-{1 - rank}").exists():
            assert time.monotonic() < deadline, "the other rank did not finish"
            time.sleep(0.01)
        sys.stdout.flush()
        os._exit(0)
    """)
    )
    results = []
    for mode in ("off", "on"):
        file = tmp_path / f"{mode}.pt"
        processes = [
            subprocess.Popen(
                [sys.executable, str(script), str(rank), str(tmp_path / f"meet-{mode}"), mode, str(file)],
                env=subprocess_environment(UNHANG_HOME=str(own_home), GLOO_SOCKET_IFNAME="lo"),
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )
            for rank in range(2)
        ]  # fmt: skip
        for process in processes:
            output = process.communicate(timeout=180)[0]
            assert process.returncode == 0, output
        results.append(torch.load(file))
    for plain, ours in zip(*results):
        assert_close(ours, plain, slack=100)


def test_unhang_disable_switches_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNHANG_DISABLE", "1")
    unhang.enable("cpu_fallback", devices=("cpu",))
    F.conv2d(X, W)
    assert not _convolve.routes
    assert not unhang.is_enabled()


def test_what_an_emulated_card_did_is_a_rehearsal(monkeypatch: pytest.MonkeyPatch) -> None:
    """As under `unhang card run`: the emulated card goes by it, and a real one never does."""
    problem = _core.Problem.from_key("forward:f32:nchw:1x3x16x16:2x3x3:s1x1:p0x0:d1x1:g1")

    def evidence() -> list[str]:
        _state.forget()
        situation = _core.Situation("accelerator", affected=True)
        return _state.state().session.plan(problem, "cuda", unhang.Settings(), situation).evidence

    monkeypatch.setenv("UNHANG_CARD_ROOT", str(MACHINES / "rx5700xt-native"))
    assert evidence() == []
    emulated = _state.state()
    assert emulated.machine.emulated
    emulated.session.learn(problem, "miopen", "hangs", None, "as the emulated card did")
    assert [line for line in evidence() if "miopen hangs (rehearsal," in line]
    monkeypatch.delenv("UNHANG_CARD_ROOT")
    assert evidence() == []
    assert _state.state().machine.fingerprint != emulated.machine.fingerprint


def test_evidence_of_one_run_serves_the_next(own_home: Path) -> None:
    x = torch.randn(1, 3, 16, 16)
    with unhang.enabled("cpu_fallback", devices=("cpu",)):
        for _ in range(8):
            nn.functional.conv2d(x, torch.ones(2, 3, 3, 3))
    _state.state().store.flush(5.0)
    _state.forget()
    plan = _state.state().session.plan(
        _core.Problem.from_key("forward:f32:nchw:1x3x16x16:2x3x3:s1x1:p0x0:d1x1:g1"),
        "cpu",
        unhang.Settings(),
        _core.Situation("cpu"),
    )
    assert any("works" in line and "cpu" in line for line in plan.evidence), plan.evidence


class Late(Exception):
    """A program's own."""


@pytest.mark.parametrize(
    ("moment", "kind"),
    [
        *itertools.product(["planning", "computing"], [TimeoutError, RuntimeError, Late, "class", "recursion"]),
        ("computing", "warning"),  # what a filter makes of a warning of our planning is nobody's wish
    ],
)
def test_an_error_of_the_programs_own_reaches_it_and_is_held_against_no_engine(
    moment: str, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal handler's, another thread's, a filter's or a limit's, which comes up while our code runs."""
    x, w = torch.randn(1, 2, 7, 7), torch.randn(3, 2, 3, 3)

    def handler(*_: object) -> None:
        raise kind("too late")

    def meanwhile(*_: object) -> None:
        if kind == "class":
            raise Late("too late")
        if kind == "warning":
            raise UserWarning("too late")
        if kind == "recursion":
            raise RecursionError("too late")
        signal.raise_signal(signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with unhang.enabled("cpu_fallback", devices=("cpu",)):
            with monkeypatch.context() as patch:
                if moment == "planning":
                    patch.setattr(_convolve, "_plan", meanwhile)
                else:
                    patch.setattr(_core, "run_cpu", meanwhile)
                with pytest.raises(Exception, match=r"^too late$"):
                    torch.nn.functional.conv2d(x, w)
            assert not _state.state().session.failures()
            assert_close(torch.nn.functional.conv2d(x, w), torch.nn.functional.conv2d(x.double(), w.double()))
            assert engines_used() == {"cpu"}, "and it is planned as before"
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("moment", ["a shape", "an engine", "a message"])
def test_what_a_handler_in_torch_raises_reaches_the_program(moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as a DataLoader's, when a worker was killed."""
    home: dict[str, Any] = {"__name__": "torch.utils.data"}
    exec("def handler(number, frame):\n    raise ValueError('a worker was killed')", home)

    def interrupted(*_: object) -> None:
        signal.raise_signal(signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, home["handler"])
    try:
        with unhang.enabled("cpu_fallback", devices=("cpu",)), monkeypatch.context() as patch:
            if moment == "a shape":
                patch.setattr(_convolve, "make_problem", interrupted)
            elif moment == "an engine":
                patch.setattr(_core, "run_cpu", interrupted)
            else:
                patch.setattr(_convolve, "_plan", lambda *_: _talk.write("text", SimpleNamespace(write=interrupted)))
            with pytest.raises(ValueError, match="a worker was killed"):
                torch.nn.functional.conv2d(torch.randn(1, 2, 7, 7), torch.randn(3, 2, 3, 3))
            assert not _state.state().session.failures()
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_watched_call_that_is_lost_ends_nothing() -> None:
    """A handler that raises while the call begins, and a program that goes on."""
    code = """
        import signal, sys, time
        from unhang import _core, _state
        watchdog = _core.Watchdog(_core.Store.none(), _state.state().machine, (1.0, 1.0, 1.0), None, signal.SIGURG, False)
        problem = _core.Problem.from_key("forward:f32:nchw:1x4x10x10:8x3x3:s1x1:p0x0:d1x1:g1")
        call = watchdog.begin_host(_core.Watchdog.watched([problem], "cpu", True))
        if len(sys.argv) == 1:
            del call
        time.sleep(4 if len(sys.argv) == 1 else 60)
        print("went on")
    """
    lost = python(code)
    assert (lost.returncode, lost.stdout) == (0, "went on\n"), lost.stderr
    held = python(code.replace("len(sys.argv) == 1", "False"))
    assert held.returncode == 86, "a call that lasts is a hang"


def test_a_default_device_of_the_programs_leaves_the_direct_path_open() -> None:
    if not hasattr(torch, "set_default_device"):
        pytest.skip("torch 2 and newer")
    code = """
        import torch
        torch.set_default_device("meta")
        from unhang import _direct
        print(_direct.open_here())
    """
    meta, plain = python(code), python(code.replace('torch.set_default_device("meta")', ""))
    assert plain.returncode == 0, plain.stderr
    assert meta.stdout == plain.stdout, meta.stderr


def test_a_program_that_enables_nothing_leaves_no_store(tmp_path: Path) -> None:
    home = tmp_path / "home"
    ended = python("import unhang; unhang.SafeConv2d(1, 1, 1)", UNHANG_HOME=str(home))
    assert (ended.returncode, ended.stderr) == (0, "")
    assert not home.exists()
