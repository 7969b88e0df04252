"""The direct path: what is known is computed without Python, and nothing else changes by it."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import textwrap
import threading
import weakref
from itertools import chain
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import unhang
from comparing import assert_close, difference
from conftest import enabled_everywhere, subprocess_environment
from unhang import Settings, _convolve, _core, _direct, _dispatch, _gpu
from unhang._engines import Geometry

NEW = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 10)
pytestmark = [
    pytest.mark.skipif(not NEW, reason="torch 2.10 and newer"),
    pytest.mark.skipif(os.environ.get("UNHANG_DIRECT") == "0", reason="the direct path is off"),
]


class Python:
    """How often Python's part is entered."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.forwards = self.backwards = 0
        forward, backward = _convolve.forward, _convolve.backward

        def counted_forward(*arguments):
            self.forwards += 1
            return forward(*arguments)

        def counted_backward(*arguments):
            self.backwards += 1
            return backward(*arguments)

        monkeypatch.setattr(_convolve, "forward", counted_forward)
        monkeypatch.setattr(_convolve, "backward", counted_backward)


@pytest.fixture
def python(monkeypatch: pytest.MonkeyPatch) -> Python:
    return Python(monkeypatch)


def test_this_torch_has_what_the_direct_path_needs() -> None:
    _dispatch.register("cpu")
    assert _direct.open_direct_path()


@pytest.mark.parametrize("strategy", ["cpu_fallback", "aten"])
@pytest.mark.parametrize("form", ["plain", "bias", "1d", "groups", "transposed", "half", "channels_last"])
def test_a_repeated_convolution_does_not_enter_python(strategy: str, form: str, python: Python) -> None:
    x, w, b, options = torch.randn(2, 4, 9, 9), torch.randn(6, 4, 3, 3), None, {}
    call = F.conv2d
    if form == "bias":
        b = torch.randn(6)
    elif form == "1d":
        call, x, w, b = F.conv1d, torch.randn(2, 4, 9), torch.randn(6, 4, 3), torch.randn(6)
    elif form == "groups":
        w, options = torch.randn(8, 2, 3, 3), {"groups": 2, "stride": 2, "padding": 1, "dilation": 2}
    elif form == "transposed":
        call, w, options = F.conv_transpose2d, torch.randn(4, 5, 3, 3), {"stride": 2, "output_padding": 1}
    elif form == "half":
        x, w = x.bfloat16(), w.bfloat16()
    elif form == "channels_last":
        x, w = x.to(memory_format=torch.channels_last), w.to(memory_format=torch.channels_last)
    parameters = [it.requires_grad_() for it in (x, w, b) if it is not None]

    def compute() -> list[torch.Tensor]:
        y = call(x, w, b, **options)
        return [y, *torch.autograd.grad(y, parameters, torch.ones_like(y))]

    plain = compute()
    with unhang.enabled(strategy, devices=("cpu",)):
        for _ in range(8):
            compute()
        entered = (python.forwards, python.backwards)
        assert entered[0] < 8
        assert entered[1] < 8
        counted = {key: sum(route.tally.by_place) for (key, _), route in _convolve.routes.items()}
        for _ in range(5):
            ours = compute()
        assert (python.forwards, python.backwards) == entered, "Python is not entered any more"
        after = {key: sum(route.tally.by_place) for (key, _), route in _convolve.routes.items()}
    assert after == {key: count + 5 for key, count in counted.items()}, "and every call is counted"
    for got, want in zip(ours, plain):
        assert got.stride() == want.stride()
        assert_close(got, want.double(), slack=3)


@pytest.mark.parametrize("form", ["plain", "1d", "channels_last"])
def test_the_gradient_of_a_sum_stays_on_the_direct_path(form: str, python: Python) -> None:
    """It is one element, expanded to the output's sizes; other gradients have gaps."""
    x, w, call = torch.randn(2, 4, 9, 9), torch.randn(6, 4, 3, 3), F.conv2d
    if form == "1d":
        x, w, call = torch.randn(2, 4, 9), torch.randn(6, 4, 3), F.conv1d
    elif form == "channels_last":
        x, w = x.to(memory_format=torch.channels_last), w.to(memory_format=torch.channels_last)
    parameters = [x.requires_grad_(), w.requires_grad_(), torch.randn(6, requires_grad=True)]

    def compute() -> list[torch.Tensor]:
        y = call(*parameters)
        return [*torch.autograd.grad(y.sum(), parameters, retain_graph=True),
                *torch.autograd.grad(y[..., ::2].sum() + y.mT.sum(), parameters)]  # fmt: skip

    plain = compute()
    with unhang.enabled("cpu_fallback", devices=("cpu",)):
        for _ in range(8):
            compute()
        entered = python.backwards
        for _ in range(5):
            ours = compute()
        assert python.backwards == entered, "Python is not entered any more"
    for got, want in zip(ours, plain, strict=True):
        assert got.stride() == want.stride()
        assert_close(got, want.double(), slack=3)


def test_layers_are_counted_by_name_on_the_direct_path(python: Python) -> None:
    model = unhang._layers.track(nn.Sequential(nn.Conv2d(2, 3, 3), nn.Conv2d(3, 2, 3)))
    x = torch.randn(1, 2, 9, 9)
    with unhang.enabled("cpu_fallback", devices=("cpu",)):
        for _ in range(20):
            model(x)
        assert python.forwards < 20
        for layer in model:
            assert layer.get_bypass_stats()["engines"] == {"cpu": 20}
            assert layer.get_bypass_stats()["bypass_count"] == 20


def test_a_layers_own_settings_hold_on_the_direct_path_backward_too(python: Python) -> None:
    ours = unhang.patch_model(nn.Conv2d(2, 3, 3), Settings(strategy="cpu_fallback"))
    plain = nn.Conv2d(2, 3, 3)
    x = torch.randn(1, 2, 9, 9)
    with unhang.enabled("aten", devices=("cpu",)):
        for _ in range(12):
            ours(x).sum().backward()
            plain(x).sum().backward()
    assert python.backwards < 24
    counts = {
        (key.partition(":")[0], Settings.from_token(token).strategy): route
        for (key, token), route in _convolve.routes.items()
    }
    for direction in ("forward", "backward-weights"):
        for strategy, engine in (("cpu_fallback", "cpu"), ("aten", "aten")):
            route = counts[(direction, strategy)]
            assert dict(zip(route.names, route.tally.by_place)) == {engine: 12}


@pytest.mark.parametrize("strategy", ["cpu_fallback", "aten", "off"])
def test_errors_keep_their_types_and_texts(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = torch.randn(1, 3, 5, 5), torch.randn(4, 2, 3, 3)
    with pytest.raises(RuntimeError) as plain:
        F.conv2d(x, w)
    unhang.enable("cpu_fallback" if strategy == "off" else strategy, devices=("cpu",))
    if strategy == "off":
        unhang.disable()
    for _ in range(3):
        with pytest.raises(RuntimeError) as ours:
            F.conv2d(x, w)
        assert str(ours.value) == str(plain.value)
        assert type(ours.value) is type(plain.value)
    if strategy == "off":
        return

    class Own(Exception):
        pass

    error = torch.OutOfMemoryError("of the accelerator's") if strategy == "aten" else Own("a user's own")

    def broken(*_):
        raise error

    monkeypatch.setattr(_convolve, "forward", broken)
    with pytest.raises(type(error)) as raised:
        F.conv2d(torch.randn(1, 2, 7, 7), torch.randn(1, 2, 3, 3))
    assert raised.value is error


def test_an_error_in_backward_reaches_the_caller_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = torch.randn(1, 2, 7, 7), torch.randn(1, 2, 3, 3, requires_grad=True)
    error = torch.OutOfMemoryError("of the accelerator's")

    def broken(*_):
        raise error

    with unhang.enabled("cpu_fallback", devices=("cpu",)):
        y = F.conv2d(x, w).sum()
        monkeypatch.setattr(_convolve, "backward", broken)
        with pytest.raises(torch.OutOfMemoryError, match="of the accelerator's"):
            y.backward()


def test_after_disable_no_python_is_entered_and_nothing_is_counted(python: Python) -> None:
    x, w = torch.randn(1, 2, 7, 7), torch.randn(3, 2, 3, 3, requires_grad=True)
    want = F.conv2d(x, w)
    unhang.enable("cpu_fallback", devices=("cpu",))
    unhang.disable()
    y = F.conv2d(x, w)
    y.sum().backward()
    assert torch.equal(y, want)
    assert (python.forwards, python.backwards) == (0, 0)
    assert not _convolve.routes


def test_what_is_known_is_forgotten_when_plans_are(python: Python) -> None:
    x, w = torch.randn(1, 2, 7, 7), torch.randn(3, 2, 3, 3)
    with unhang.enabled("cpu_fallback", devices=("cpu",)):
        for _ in range(8):
            F.conv2d(x, w)
        assert _core.known_calls() == 1
        _convolve.replan()
        assert _core.known_calls() == 0
        before = python.forwards
        F.conv2d(x, w)
        assert python.forwards == before + 1


def test_decisions_that_are_not_to_be_kept_are_made_each_time(python: Python) -> None:
    x, w = torch.randn(1, 2, 7, 7), torch.randn(3, 2, 3, 3)
    with unhang.enabled("cpu_fallback", devices=("cpu",), cache_decisions=False):
        for _ in range(8):
            F.conv2d(x, w)
    assert python.forwards == 8
    assert _core.known_calls() == 0


def test_another_stride_type_or_bias_is_another_call(python: Python) -> None:
    x, w, b = torch.randn(1, 2, 8, 8), torch.randn(3, 2, 3, 3), torch.randn(3)
    calls = [
        lambda: F.conv2d(x, w),
        lambda: F.conv2d(x, w, b),
        lambda: F.conv2d(x, w, torch.randn(6)[::2].copy_(b)),
        lambda: F.conv2d(x.transpose(2, 3), w),
        lambda: F.conv2d(x[:, :, ::2], w),
        lambda: F.conv2d(x.double(), w.double()),
        lambda: F.conv2d(x, w, stride=2),
        lambda: F.conv2d(x, w, padding=(1, 0)),
        lambda: F.conv2d(x, w, padding=(0, 1)),
        lambda: F.conv2d(x, w, dilation=2),
        lambda: F.conv2d(x.to(memory_format=torch.channels_last), w),
        lambda: F.conv_transpose2d(x, torch.cat([w, w])[:2, :2]),
        lambda: F.conv2d(x, torch.cat([w, w])[:2, :2]),
        lambda: F.conv_transpose2d(x, torch.cat([w, w])[:2], stride=2),
        lambda: F.conv_transpose2d(x, torch.cat([w, w])[:2], stride=2, output_padding=1),
    ]
    want = [call() for call in calls]
    with unhang.enabled("cpu_fallback", devices=("cpu",)):
        for _ in range(8):
            got = [call() for call in calls]
        entered = python.forwards
        for call in calls:
            call()
        # Some have gaps, which Python copies: each of the others is known as what it is.
        assert python.forwards - entered == 4
    for ours, plain in zip(got, want):
        assert ours.stride() == plain.stride()
        assert_close(ours, plain.double(), slack=3)


@pytest.mark.parametrize("wrong", [torch.randn(2), torch.randn(4), torch.randn(1, 3), torch.randn(3).double()])
def test_a_known_call_with_a_bias_of_the_wrong_shape_is_torchs_to_refuse(wrong: torch.Tensor) -> None:
    x, w, b = torch.randn(1, 2, 7, 7), torch.randn(3, 2, 3, 3), torch.randn(3)
    with pytest.raises(RuntimeError) as plain:
        F.conv2d(x, w, wrong)
    with unhang.enabled("cpu_fallback", devices=("cpu",)):
        for _ in range(8):
            F.conv2d(x, w, b)
        assert _core.known_calls() == 1
        with pytest.raises(RuntimeError) as ours:
            F.conv2d(x, w, wrong)
    assert str(ours.value) == str(plain.value)


def test_gradients_are_those_that_are_asked_for() -> None:
    x, w, b, g = torch.randn(1, 2, 7, 7), torch.randn(3, 2, 3, 3), torch.randn(3), torch.randn(1, 3, 5, 5)

    def gradients(*which: int) -> list[torch.Tensor]:
        leaves = [it.clone().requires_grad_(place in which) for place, it in enumerate((x, w, b))]
        return list(torch.autograd.grad(F.conv2d(*leaves), [leaves[place] for place in which], g))

    asked = [(0,), (1,), (0, 1), (2,), (0, 2), (1, 2), (0, 1, 2)]
    want = [gradients(*which) for which in asked]
    with unhang.enabled("cpu_fallback", devices=("cpu",)):
        for _ in range(8):
            got = [gradients(*which) for which in asked]
    for ours, plain in zip(chain(*got), chain(*want)):
        assert_close(ours, plain.double(), slack=3)


def test_what_was_planned_before_plans_were_forgotten_is_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = torch.randn(1, 2, 7, 7), torch.randn(3, 2, 3, 3)
    honest = _direct.remember_forward

    def interrupted(*arguments) -> None:
        _convolve.replan()  # as another thread may, whose engine failed
        honest(*arguments)

    with unhang.enabled("cpu_fallback", devices=("cpu",)):
        monkeypatch.setattr(_direct, "remember_forward", interrupted)
        for _ in range(5):
            F.conv2d(x, w)
        assert _core.known_calls() == 0


def test_a_call_that_torch_did_not_make_is_remembered_for_no_other() -> None:
    x, w = torch.randn(1, 2, 7, 7), torch.randn(3, 2, 3, 3)
    settings = Settings(strategy="cpu_fallback")
    with unhang.enabled(settings=settings, devices=("cpu",)):
        F.conv2d(x, w)
        assert _core.take_ticket() is None
        for _ in range(8):  # as our own op does in compiled graphs
            _convolve.forward(settings, x, w, None, Geometry([2, 2], [0, 0], [1, 1], False, [0, 0], 1))
        assert _core.known_calls() == 0
        with pytest.raises(RuntimeError, match="channels"):
            F.conv2d(x, w[:, :1])
        assert _core.take_ticket() is None, "nor after an error"


@pytest.mark.parametrize("nested", ["our own op", "plans"])
def test_a_convolution_that_another_one_is_planned_in_is_not_taken_for_it(
    nested: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A larger one in the middle of a smaller one's first computation, like a compiled graph in a signal's handler or
    in an object's finalizer: the smaller one must not be computed from then on as the larger one."""
    settings = Settings(strategy="cpu_fallback")
    x, w = torch.randn(1, 2, 5, 5), torch.randn(3, 2, 3, 3)
    large, filters = torch.randn(4, 16, 64, 64), torch.randn(32, 16, 3, 3)
    want, geometry = F.conv2d(x, w), ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    honest = _convolve._plan if nested == "plans" else _core.run_cpu
    inside = False
    found: list[object] = []

    def interrupted(*arguments):
        nonlocal inside
        found.append(_core.take_ticket())  # an error here would only have the next engine compute
        if not inside:
            inside = True
            for _ in range(8):
                torch.ops.unhang.convolution(large, filters, None, *geometry, settings.token)
            inside = False
        return honest(*arguments)

    if nested == "plans":
        monkeypatch.setattr(_convolve, "_plan", interrupted)
    else:
        monkeypatch.setattr(_core, "run_cpu", interrupted)
    with unhang.enabled(settings=settings, devices=("cpu",)):
        for _ in range(12):
            got = F.conv2d(x, w)
            assert got.shape == want.shape
            assert_close(got, want.double(), slack=3)
    assert found
    assert set(found) == {None}, "the ticket is with the call that it is for"


def test_a_step_is_held_against_the_tensors_that_it_gets() -> None:
    """Whatever a call was remembered as: a ticket is abused here to file a large convolution's step under a small one."""
    settings = Settings(strategy="cpu_fallback")
    small, w = torch.randn(1, 2, 5, 5), torch.randn(3, 2, 3, 3)
    large, filters = torch.randn(4, 16, 64, 64), torch.randn(32, 16, 3, 3)
    want, geometry = F.conv2d(small, w), Geometry([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    tickets: list[_core.Ticket] = []
    forward = _convolve.forward

    def keep(*arguments):
        if isinstance(arguments[-1], _core.Ticket):
            tickets.append(arguments[-1])
        return forward(*arguments)

    with pytest.MonkeyPatch.context() as patch, unhang.enabled(settings=settings, devices=("cpu",)):
        patch.setattr(_convolve, "forward", keep)
        F.conv2d(small, w)
        _convolve.forward(settings, large, filters, None, geometry)
        problem = next(it.problem for it in _convolve.routes.values() if it.problem.input_shape == (4, 16, 64, 64))
        sizes = [4, 32, 62, 62]
        step = _core.Step.cpu(problem, sizes, [32 * 62 * 62, 62 * 62, 62, 1], _core.Tally(["cpu"]), True)
        for ticket in tickets:
            ticket.remember_forward(step, _core.Label("made up", "cpu"))
        assert _core.known_calls() == 1
        for _ in range(3):
            assert_close(F.conv2d(small, w), want.double(), slack=3)
        for wrong in ([4, 32, 62, 61], [1, 3, 3, 3]):
            with pytest.raises(ValueError, match="is not that of"):
                _core.Step.cpu(problem, wrong, [32 * 62 * 62, 62 * 62, 62, 1], _core.Tally(["cpu"]), True)


def test_what_is_known_is_bounded_and_one_size_too_many_is_not_planned_for_ever(python: Python) -> None:
    """Convolutions of integers are torch's own, and known from the second call on."""
    w = torch.ones(1, 1, 1, 1).long()

    def round_trip() -> int:
        before = python.forwards
        for size in range(1, 10_002):
            F.conv2d(torch.ones(1, 1, 1, 1).long().expand(1, 1, 1, size), w)
        return python.forwards - before

    with unhang.enabled("cpu_fallback", devices=("cpu",)):
        assert round_trip() == 10_001
        assert _core.known_calls() == 10_000
        decisions = _convolve.decisions
        assert round_trip() < 100
        assert round_trip() < 100
        assert _core.known_calls() == 10_000
        assert _convolve.decisions - decisions < 200


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_trace_holds_a_convolution_that_is_known() -> None:
    model, x = nn.Conv2d(2, 3, 3), torch.randn(1, 2, 7, 7)
    other = torch.randn(1, 2, 7, 7)
    with unhang.enabled("cpu_fallback", devices=("cpu",)), torch.no_grad():
        for _ in range(8):
            model(x)
        assert _core.known_calls() == 1
        traced = torch.jit.trace(model, x, check_trace=False)
    assert_close(traced(other).detach(), model(other).detach().double(), slack=3)


def test_many_threads_at_once() -> None:
    torch.manual_seed(0)
    shapes = [(1, 2, 6 + n, 7) for n in range(6)]
    w = torch.randn(3, 2, 3, 3)
    cases = [(x, F.conv2d(x, w)) for x in map(torch.randn, shapes)]
    wrong: list[object] = []

    def work() -> None:
        for turn in range(300):
            x, want = cases[turn % len(cases)]
            try:
                if difference(F.conv2d(x, w), want) is not None:
                    wrong.append("another result")
            except Exception as error:
                wrong.append(error)

    with enabled_everywhere("cpu_fallback", devices=("cpu",)):
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(20):
            _convolve.replan()
        for thread in threads:
            thread.join()
        assert sum(route.tally.total for route in _convolve.routes.values()) == 1200
    assert not wrong, wrong[0]


def test_tensors_are_freed_hit_miss_and_error() -> None:
    alive: list[weakref.ref] = []

    def go() -> None:
        for size in (6, 7, 8):
            x, w = torch.randn(1, 2, size, size, requires_grad=True), torch.randn(3, 2, 3, 3, requires_grad=True)
            b, wrong = torch.randn(3, requires_grad=True), torch.randn(1, 1, size, size)
            for _ in range(8):
                y = F.conv2d(x, w, b)
                y.sum().backward()
                alive.extend(weakref.ref(it) for it in (y, x.grad))
            with pytest.raises(RuntimeError):
                F.conv2d(wrong, w, b)
            alive.extend(weakref.ref(it) for it in (x, w, b, wrong))

    with unhang.enabled("cpu_fallback", devices=("cpu",)):
        go()
        unhang.disable()
        go()
    gc.collect()
    assert not [it() for it in alive if it() is not None], "a tensor that torch still holds keeps its object"


class Heap(ctypes.Structure):
    """What glibc's ``mallinfo2`` tells."""

    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "in_use", "fordblks", "keepcost",
    )]  # fmt: skip


def test_what_torch_hands_over_with_a_call_is_given_back() -> None:
    """To the byte, which resident memory does not tell: a list and an optional argument are some dozen bytes each."""
    ask = ctypes.CDLL(None).mallinfo2
    ask.restype = Heap
    x, w, b = torch.randn(1, 1, 4, 4), torch.randn(1, 1, 3, 3, requires_grad=True), torch.randn(1, requires_grad=True)
    g = torch.randn(1, 1, 2, 2)

    def compute(times: int) -> None:
        for _ in range(times):
            torch.autograd.grad(F.conv2d(x, w, b), [w, b], g)

    with unhang.enabled("cpu_fallback", devices=("cpu",)):
        compute(500)
        assert _core.known_calls() == 2
        before = ask().in_use
        compute(5000)
        kept = (ask().in_use - before) / 5000
    assert kept < 16, f"{kept:.0f} bytes of every call"


def test_memory_stays_flat_over_many_calls_and_new_sizes() -> None:
    """Thousands here; a hundred thousand of each were measured once (docs/internals/benchmarks.md)."""
    tool = Path(__file__).parent.parent / "tools" / "bench_memory.py"
    ended = subprocess.run(
        [sys.executable, str(tool), "--calls", "20000", "--sizes", "3000", "--most-routes", "500"],
        env=subprocess_environment(), capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_a_fork_while_other_threads_convolve() -> None:
    code = """
        import os, threading, torch, unhang
        torch.set_num_threads(1)
        # Torch has its own locks in tensors that have gradients: the child gets others.
        conv, own, x = torch.nn.Conv2d(2, 2, 3), torch.nn.Conv2d(2, 2, 3), torch.randn(1, 2, 9, 9)
        unhang.enable("cpu_fallback", devices=("cpu",))
        for _ in range(8):
            conv(x)
        done = threading.Event()
        def work():
            with torch.no_grad():
                while not done.is_set():
                    conv(x)
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(30):
            child = os.fork()
            if child == 0:
                with torch.no_grad():
                    for _ in range(8):
                        own(x.clone())
                assert own.get_bypass_stats()["total_forwards"] == 8
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
        done.set()
        for thread in threads:
            thread.join()
        print("returned")
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=subprocess_environment(), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ended.stdout == "returned\n", ended.stderr


def run(code: str, **changes: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=subprocess_environment(**changes), capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip


def test_a_key_that_somebody_else_takes_later_is_given_up() -> None:
    """An extension for a device whose dispatch key nobody used when unhang was switched on."""
    code = """
        import torch, unhang, torch.nn.functional as F
        from unhang import _core, _direct
        x, w = torch.randn(1, 2, 7, 7), torch.randn(3, 2, 3, 3, requires_grad=True)
        want = F.conv2d(x, w)
        unhang.enable("cpu_fallback", devices=("cpu",))
        unhang.disable()
        before = [_direct.ORIGINAL[-1], _direct.PYTHON["cpu"], _direct.PYTHON["cuda"]]
        library = torch.library.Library("aten", "IMPL")
        def theirs(*arguments):
            raise RuntimeError("the kernel of another device")
        torch.library._impls.clear()  # an extension in C++ registers past this table, by which torch 2.11 refuses
        for key in before:
            for op in ("convolution", "_convolution", "convolution_backward"):
                library.impl(op, theirs, key)
        unhang.enable("cpu_fallback", devices=("cpu",))
        after = [_direct.ORIGINAL[-1], _direct.PYTHON["cpu"], _direct.PYTHON["cuda"]]
        assert not set(before) & set(after), (before, after)
        for turn in range(8):
            y = F.conv2d(x, w)
            y.sum().backward()
            assert torch.allclose(y, want, atol=1e-5)
        assert _core.known_calls() > 0
        unhang.disable()
        F.conv2d(x, w).sum().backward()
        print("computed")
    """
    ended = run(code)
    assert ended.stdout == "computed\n", ended.stderr


def test_a_torch_that_nobody_tried_is_tried_in_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    assert version <= _direct._TESTED[1], "add this version after the whole suite has passed with it"
    children: list[list[str]] = []
    honest = _core.supervise_canary

    def counted(command: list[str], seconds: float, changes: list[tuple[str, str | None]]):
        children.append(command)
        return honest(command, seconds, changes)

    monkeypatch.setattr(_core, "supervise_canary", counted)
    assert _direct._is_sound_in_a_child()
    assert _direct._is_sound_in_a_child()
    # Once for each torch, and as every child is: nothing is imported from the working folder.
    assert children == [_gpu.start_python("unhang._trials", ["canary", "direct"])[0]]


def test_a_child_that_crashes_leaves_every_call_to_python(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = _core.supervise_canary
    crash = [sys.executable, "-c", "import os; os.abort()"]
    monkeypatch.setattr(_core, "supervise_canary", lambda command, seconds, changes: honest(crash, seconds, changes))
    monkeypatch.setattr(_direct, "_TESTED", ((2, 10), (2, 10)))
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) > (2, 10):
        assert not _direct._open()


def test_entries_that_give_something_else_are_found() -> None:
    """A kernel of somebody's own under the borrowed key stands for a torch that computes something else."""
    code = """
        import torch, unhang
        from unhang import _direct
        library = torch.library.Library("aten", "IMPL")
        original = _direct._unused()[0]
        library.impl("OP", lambda *arguments: RESULT, original)
        _direct._unused = lambda: [original, *_direct._UNUSED[1:]]
        assert not _direct.open_here()
        print("refused")
    """
    for op, result in (
        ("convolution", "torch.zeros(1, 4, 3, 4)"),
        ("_convolution", "torch.zeros(1, 4, 3, 5)"),
        ("convolution_backward", "(torch.zeros(1, 2, 5, 6), torch.zeros(4, 1, 2, 3), torch.zeros(4))"),
    ):
        ended = run(code.replace("OP", op).replace("RESULT", result))
        assert ended.stdout == "refused\n", ended.stderr
        assert f"torch's {op} returns something unexpected" in ended.stderr
