"""Our GPU kernels as torch's convolutions, on a real GPU. Skipped without one."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import unhang
from comparing import assert_close
from conftest import enabled_everywhere, make_up, subprocess_environment
from unhang import Settings, _convolve, _core, _divided, _gpu, _jit, _state
from unhang._engines import Geometry

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that torch can use is here")

TYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.fixture(autouse=True)
def nothing_known() -> None:
    """No verdict of another test; full precision in what is compared with."""
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False


def engines() -> set[str]:
    """The engines that computed: every route's first, and none fell through."""
    for route in _convolve.routes.values():
        assert len(route.tally.by_place) == 1, (route.key, route.names, route.tally.by_place)
    return {route.names[0] for route in _convolve.routes.values()}


def gradients(x, w, b, *geometry, **options):
    y = F.conv2d(x, w, b, *geometry, **options)
    return y, *torch.autograd.grad(y.double().sin().sum(), [x, w, b])


def random_cases(count: int) -> list[dict]:
    chance = random.Random(5)
    cases = []
    while len(cases) < count:
        groups = chance.choice([1, 1, 1, 2, 4])
        channels, filters = groups * chance.choice([1, 3, 4, 8, 17]), groups * chance.choice([1, 4, 6, 16])
        if chance.random() < 0.2:
            channels = filters = groups = chance.choice([5, 16, 24])
        kernel = [chance.choice([1, 2, 3, 3, 5, 7]) for _ in range(2)]
        options = {
            "stride": [chance.choice([1, 1, 2, 3]) for _ in range(2)],
            "padding": [chance.choice([0, 1, 2]) for _ in range(2)],
            "dilation": [chance.choice([1, 1, 2]) for _ in range(2)],
            "groups": groups,
        }
        size = [chance.randint(9, 40) for _ in range(2)]
        reach = [d * (k - 1) + 1 for d, k in zip(options["dilation"], kernel)]
        if all(n + 2 * p >= r for n, p, r in zip(size, options["padding"], reach)):
            shapes = {"x": (chance.choice([1, 2, 3]), channels, *size), "w": (filters, channels // groups, *kernel)}
            cases.append({**shapes, **options})
    return cases


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("channels_last", [False, True])
def test_random_problems_in_all_directions(dtype: torch.dtype, channels_last: bool) -> None:
    torch.manual_seed(0)
    for case in random_cases(14):
        form = torch.channels_last if channels_last else torch.contiguous_format
        x = torch.randn(case["x"], device="cuda").to(dtype).contiguous(memory_format=form).requires_grad_()
        w = torch.randn(case["w"], device="cuda").to(dtype).contiguous(memory_format=form).requires_grad_()
        b = torch.randn(case["w"][0], device="cuda").to(dtype).requires_grad_()
        options = {name: case[name] for name in ("stride", "padding", "dilation", "groups")}
        y = F.conv2d(x.double(), w.double(), b.double(), **options)
        g = torch.randn_like(y).to(dtype)
        want = [y, *torch.autograd.grad(y, [x, w, b], g.double())]
        plain = F.conv2d(x, w, b, **options)
        # Twice: by the generic kernels at first, then by the problem's own.
        for _ in range(2):
            with unhang.enabled("jit"):
                y = F.conv2d(x, w, b, **options)
                got = [y, *torch.autograd.grad(y, [x, w, b], g)]
                unhang.wait_for_kernels()
            for name, ours, exact in zip("ydwb", got, want):
                assert_close(ours, exact, slack=4 if name == "b" else 2)
            assert got[0].stride() == plain.stride(), "laid out as torch lays it out"
    assert engines() == {"jit"}
    assert not unhang.report().data["failures"]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_transposed_one_dimensional_and_views(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 6, 9, 8, device="cuda").to(dtype)
    w = torch.randn(6, 5, 3, 3, device="cuda").to(dtype)
    b = torch.randn(5, device="cuda").to(dtype)
    line, taps = torch.randn(2, 6, 40, device="cuda").to(dtype), torch.randn(8, 6, 5, device="cuda").to(dtype)
    # Begins in the middle of another tensor, at an address that four elements do not fit.
    odd = torch.randn(1 + 2 * 6 * 9 * 8, device="cuda").to(dtype)[1:].view(2, 6, 9, 8)
    strided = torch.randn(2, 6, 18, 8, device="cuda").to(dtype)[:, :, ::2]

    def compute(kind):
        x_, w_, b_, line_, taps_, odd_, strided_ = (it.to(kind) for it in (x, w, b, line, taps, odd, strided))
        v_ = w_[:, :, :, :].transpose(0, 1).contiguous()
        return [
            F.conv_transpose2d(x_, w_, b_, stride=2, padding=1, output_padding=1),
            F.conv1d(line_, taps_, stride=2, padding=2),
            F.conv2d(odd_, v_, padding=1),
            F.conv2d(strided_, v_, padding=1),
            F.conv2d(x_[0], v_),
        ]

    want = compute(torch.float64)
    with unhang.enabled("jit"):
        got = compute(dtype)
        unhang.wait_for_kernels()
        again = compute(dtype)
    for results in (got, again):
        for ours, exact in zip(results, want):
            assert_close(ours, exact)
    assert engines() == {"jit"}


def test_gradients_of_gradients() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 4, 7, 6, device="cuda", requires_grad=True)
    w = torch.randn(5, 4, 3, 2, device="cuda", requires_grad=True)

    def compute(x, w):
        y = F.conv2d(x, w, stride=2, padding=1)
        first = torch.autograd.grad(y.square().sum(), [x, w], create_graph=True)
        return torch.autograd.grad(sum(it.square().sum() for it in first), [x, w])

    want = compute(x.double(), w.double())
    with unhang.enabled("jit"):
        got = compute(x, w)
    for ours, exact in zip(got, want):
        assert_close(ours, exact, slack=10)


def test_gradcheck_in_double_precision() -> None:
    x = torch.randn(2, 4, 6, 5, dtype=torch.float64, device="cuda", requires_grad=True)
    w = torch.randn(4, 2, 3, 2, dtype=torch.float64, device="cuda", requires_grad=True)
    b = torch.randn(4, dtype=torch.float64, device="cuda", requires_grad=True)
    with unhang.enabled("jit"):
        assert torch.autograd.gradcheck(lambda *it: F.conv2d(*it, stride=2, padding=1, groups=2), (x, w, b))
        assert torch.autograd.gradgradcheck(lambda *it: F.conv2d(*it, padding=1, groups=2), (x, w, b))


def small_model() -> nn.Module:
    torch.manual_seed(3)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, groups=16, padding=1),
        nn.Conv2d(16, 24, 1), nn.ReLU(), nn.Conv2d(24, 8, 3, stride=2),
    )  # fmt: skip
    return model.cuda()


def test_graphs_record_what_is_ready_and_decline_what_is_not(capsys: pytest.CaptureFixture) -> None:
    x = torch.randn(2, 3, 32, 32, device="cuda")
    model = small_model().eval()
    with torch.no_grad():
        want = model.double()(x.double())
        model.float()
        with unhang.enabled("aten"):
            model(x)  # what torch's own kernels need is not made while a graph is recorded either
        _convolve.routes.clear()
        with unhang.enabled("jit"):
            unready = torch.cuda.CUDAGraph()
            with torch.cuda.graph(unready):
                early = model(x)
            names = {route.names[0]: route.tally.by_place for route in _convolve.routes.values()}
            assert all(counts[0] == 0 and counts[1] == 1 for counts in names.values()), "the next engine computed"
            model(x)
            unhang.wait_for_kernels()
            model(x)
            compiled = sum(gpu.compiled for gpu in _gpu.opened())
            counts = {key: route.tally.by_place[0] for key, route in _convolve.routes.items()}
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                late = model(x)
            assert all(route.tally.by_place[0] == counts[key] + 1 for key, route in _convolve.routes.items())
            assert sum(gpu.compiled for gpu in _gpu.opened()) == compiled
        for captured, replayed in ((early, unready), (late, graph)):
            replayed.replay()
            torch.cuda.synchronize()
            assert_close(captured, want, slack=3)
    assert not unhang.report().data["failures"]


def test_a_training_step_as_a_graph() -> None:
    model = small_model()
    x = torch.randn(4, 3, 32, 32, device="cuda")

    def step():
        for parameter in model.parameters():
            parameter.grad = None
        model(x).square().mean().backward()

    with unhang.enabled("jit"):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            step()
            unhang.wait_for_kernels()
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        want = [parameter.grad.clone() for parameter in model.parameters()]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        graph.replay()
        torch.cuda.synchronize()
    assert engines() == {"jit"}
    for parameter, expected in zip(model.parameters(), want):
        torch.testing.assert_close(parameter.grad, expected, rtol=1e-3, atol=1e-4)


def test_streams_and_threads() -> None:
    x, w = torch.randn(4, 16, 40, 40, device="cuda"), torch.randn(32, 16, 3, 3, device="cuda")
    want = F.conv2d(x.double(), w.double(), padding=1)
    failures = []

    def work():
        try:
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.default_stream())
            with torch.cuda.stream(stream):
                for _ in range(10):
                    y = F.conv2d(x, w, padding=1)
            stream.synchronize()
            assert_close(y, want)
        except BaseException as error:
            failures.append(error)

    with enabled_everywhere("jit"):
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures
    assert engines() == {"jit"}


def test_autocast_and_training_changes_the_model_as_torch_does() -> None:
    x = torch.randn(4, 3, 32, 32, device="cuda")
    losses = {}
    for way in ("torch", "jit"):
        model = small_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if way == "jit":
            unhang.enable("jit")
        try:
            for _ in range(5):
                optimizer.zero_grad()
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = model(x).float().square().mean()
                loss.backward()
                optimizer.step()
        finally:
            unhang.disable()
        losses[way] = loss.item()
    assert losses["jit"] == pytest.approx(losses["torch"], rel=0.05)
    assert all(":f16:" in key for key, _ in _convolve.routes)
    assert engines() == {"jit"}


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("cudnn", [True, False])
def test_compiled_models(channels_last: bool, cudnn: bool) -> None:
    import torch._dynamo

    torch._dynamo.reset()
    model = small_model()
    x = torch.randn(4, 3, 32, 32, device="cuda")
    if channels_last:
        model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    with torch.backends.cudnn.flags(enabled=cudnn, allow_tf32=False), unhang.enabled("jit"):
        model(x).square().mean().backward()
        want = [parameter.grad.clone() for parameter in model.parameters()]
        for parameter in model.parameters():
            parameter.grad = None
        compiled = torch.compile(model)
        compiled(x).square().mean().backward()
    assert "jit" in engines()
    for parameter, expected in zip(model.parameters(), want):
        # The first bias is followed by a batch norm: its gradient is nothing but rounding.
        torch.testing.assert_close(parameter.grad, expected, rtol=1e-3, atol=1e-4)


def test_deterministic_mode_gives_the_same_bits_from_the_first_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    x = torch.randn(2, 20, 24, 24, device="cuda", requires_grad=True)
    w = torch.randn(28, 20, 3, 3, device="cuda", requires_grad=True)
    b = torch.randn(28, device="cuda", requires_grad=True)
    torch.use_deterministic_algorithms(True)
    try:
        with unhang.enabled("jit"):
            runs = [gradients(x, w, b, padding=1) for _ in range(4)]
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(one, other) for run in runs[1:] for one, other in zip(run, runs[0]))
    assert engines() == {"jit"}


def test_ddp(tmp_path: Path) -> None:
    import torch.distributed as dist

    if not dist.is_available():
        pytest.skip("this torch has no torch.distributed")
    dist.init_process_group(
        "nccl" if dist.is_nccl_available() else "gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1
    )
    try:
        model = nn.parallel.DistributedDataParallel(small_model(), device_ids=[0])
        with unhang.enabled("jit"):
            for _ in range(3):
                model(torch.randn(4, 3, 32, 32, device="cuda")).square().mean().backward()
    finally:
        dist.destroy_process_group()
    assert engines() == {"jit"}
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_out_of_memory_for_the_workspace_is_done_without(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    x, w = torch.randn(8, 64, 28, 28, device="cuda"), torch.randn(64, 64, 3, 3, device="cuda", requires_grad=True)
    want = torch.autograd.grad(F.conv2d(x.double(), w.double(), padding=1).sum(), w)[0]
    denied = []
    original = _gpu.allocate

    def allocate(shape, stride, dtype, device):
        if dtype is torch.uint8:
            denied.append(shape)
            raise torch.cuda.OutOfMemoryError("CUDA out of memory (as the test has it)")
        return original(shape, stride, dtype, device)

    with unhang.enabled("jit"):
        y = F.conv2d(x, w, padding=1)
        torch.autograd.grad(y.sum(), w, retain_graph=True)
        unhang.wait_for_kernels()
        monkeypatch.setattr(_gpu, "allocate", allocate)
        for _ in range(3):
            assert_close(torch.autograd.grad(y.sum(), w, retain_graph=True)[0], want, slack=3)
    assert len(denied) == 1, "memory that is short is not asked for again"
    assert "computed without one" in capsys.readouterr().err
    assert engines() == {"jit"}


def test_out_of_memory_for_the_result_is_the_users() -> None:
    x = torch.empty(1, 1, 1, 1, device="cuda").expand(60000, 64, 300, 300)
    with unhang.enabled("jit"), pytest.raises(torch.cuda.OutOfMemoryError):
        F.conv2d(x, torch.ones(64, 64, 3, 3, device="cuda"))
    assert not unhang.report().data["failures"]


def test_the_workspace_setting_bounds_it() -> None:
    x, w = torch.randn(8, 64, 28, 28, device="cuda"), torch.randn(64, 64, 3, 3, device="cuda", requires_grad=True)
    with unhang.enabled(settings=Settings(strategy="jit", workspace_limit=0)):
        F.conv2d(x, w, padding=1).sum().backward()
        unhang.wait_for_kernels()
        F.conv2d(x, w, padding=1).sum().backward()
    assert engines() == {"jit"}
    assert all(route.kernel.workspace == 0 for route in _convolve.routes.values() if route.kernel is not None)


def test_a_wrong_first_result_is_quarantined(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    x, w = torch.randn(2, 8, 20, 20, device="cuda"), torch.randn(8, 8, 3, 3, device="cuda")
    want = F.conv2d(x.double(), w.double())
    honest, lies = _gpu.launch, []

    def lying(loaded, *rest):
        result = honest(loaded, *rest)
        lies.append(loaded.kernel)
        result[-1, -1, -1, -1] += 100.0
        return result

    with monkeypatch.context() as patch, unhang.enabled("jit"):
        patch.setattr(_gpu, "launch", lying)
        for _ in range(3):
            assert_close(F.conv2d(x, w), want)
    assert len(lies) == 1
    assert "was wrong" in capsys.readouterr().err
    # Kept: another process does not use it for this problem, nor the same kernels for another.
    _state.state().store.flush(5.0)
    _state.forget()
    assert _state.state().session.first_result(lies[0], 0) == "wrong"
    _convolve.routes.clear()
    _convolve.replan()
    with unhang.enabled("jit"):
        assert_close(F.conv2d(x, w), want)
    (route,) = _convolve.routes.values()
    assert route.names[0] != "jit"
    assert "wrong" in route.plan.reason


def test_every_kernels_first_result_is_compared_once_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    original = _gpu.compare
    monkeypatch.setattr(_gpu, "compare", lambda *it: compared.append(it) or original(*it))
    w = torch.randn(16, 12, 3, 3, device="cuda")

    def compute(batch: int, size: int) -> None:
        for _ in range(3):
            F.conv2d(torch.randn(batch, 12, size, size, device="cuda"), w, padding=1)
            unhang.wait_for_kernels()

    with unhang.enabled("jit"):
        compute(2, 24)
        assert 1 <= len(compared) <= 2, "the generic kernels and the problem's own"
    _state.state().store.flush(5.0)
    _state.forget()
    _convolve.replan()
    compared.clear()
    with unhang.enabled("jit"):
        compute(2, 24)
    assert not compared, "known from the run before"


def test_new_sizes_are_not_compiled_anew() -> None:
    w = torch.randn(64, 32, 3, 3, device="cuda")
    with unhang.enabled("jit"):
        seen: set[str] = set()
        gpu = _gpu.gpu(0)
        for size in (40, 41, 44, 48, 52, 56):
            x = torch.randn(4, 32, size, size, device="cuda")
            before = gpu.compiled
            F.conv2d(x, w, padding=1)
            unhang.wait_for_kernels()
            F.conv2d(x, w, padding=1)
            route = list(_convolve.routes.values())[-1]
            new = gpu.compiled - before
            assert new == 0 or route.kernel.kernel.kernels not in seen
            seen.add(route.kernel.kernel.kernels)
    assert len(seen) < 6


RUN = """
import os, sys, torch, torch.nn.functional as F
import unhang
from unhang import _gpu
x, w = torch.randn(2, 24, 20, 20, device="cuda"), torch.randn(40, 24, 3, 3, device="cuda", requires_grad=True)
unhang.enable("jit")
for _ in range(2):
    F.conv2d(x, w, padding=1).sum().backward()
    if "leave" not in sys.argv:
        unhang.wait_for_kernels()
print("compiled", _gpu.gpu(0).compiled)
"""


def test_a_second_start_compiles_nothing_and_an_end_does_not_wait(tmp_path: Path) -> None:
    def start(*arguments: str) -> str:
        folder = tmp_path / "-".join(["cache", *arguments])
        environment = subprocess_environment(XDG_CACHE_HOME=str(folder), UNHANG_HOME=str(tmp_path / "home"))
        done = subprocess.run(
            [sys.executable, "-c", RUN, *arguments], env=environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    start("leave")
    assert start() != "compiled 0\n"
    assert start() == "compiled 0\n"
    mode = (tmp_path / "cache" / "unhang" / "kernels").stat().st_mode & 0o777
    assert mode == 0o700
    # What was seen is compiled ahead, for a process that never saw it.
    environment = subprocess_environment(XDG_CACHE_HOME=str(tmp_path / "warm"), UNHANG_HOME=str(tmp_path / "home"))
    for at_least in (2, 0):
        warm = subprocess.run(
            [sys.executable, "-m", "unhang._commands", "warm", "--json"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        found = json.loads(warm.stdout)
        assert found["problems"] >= 2
        assert not found["failed"]
        assert found["kernels"] >= at_least
    assert found["kernels"] == 0


def test_a_backward_that_comes_first_on_autograds_thread() -> None:
    """No context of the driver is current there before the first kernel."""
    code = """
    import torch, torch.nn.functional as F
    import unhang
    from unhang import _convolve
    x = torch.randn(1, 4, 8, 8, device="cuda", requires_grad=True)
    w, g = torch.randn(4, 4, 3, 3, device="cuda", requires_grad=True), torch.randn(1, 4, 6, 6, device="cuda")
    unhang.enable("jit")
    torch.autograd.grad(F.conv2d(x, w), [x, w], g)
    torch.cuda.synchronize()
    print({route.names[0] for route in _convolve.routes.values()}, unhang.report().data["failures"])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=subprocess_environment(), capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.stdout == "{'jit'} []\n", done.stderr[-2000:]


def test_a_forked_child_declines() -> None:
    code = """
    import os, torch, torch.nn.functional as F
    import unhang
    from unhang import _core, _gpu
    x, w = torch.randn(1, 4, 8, 8, device="cuda"), torch.randn(4, 4, 3, 3, device="cuda")
    unhang.enable("jit", devices=("cuda", "cpu"))
    F.conv2d(x, w)
    gpu = _gpu.gpu(0)
    torch.cuda.synchronize()
    child = os.fork()
    if child == 0:
        refused = 0
        for ask in (lambda: _gpu.gpu(0), lambda: gpu.is_capturing(0)):
            try:
                ask()
            except _core.GpuDeclined:
                refused += 1
        y = F.conv2d(torch.randn(1, 4, 8, 8), torch.randn(4, 4, 3, 3))
        os._exit(0 if refused == 2 and y.shape == (1, 4, 6, 6) else 1)
    assert os.waitpid(child, 0)[1] == 0
    print("fine")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=subprocess_environment(), capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.stdout == "fine\n", done.stderr[-2000:]


ENDLESS = """
import torch
source = 'extern "C" __global__ void endless(volatile float* flag) { while (flag[0] == 0.0f) {} }'
kernel = torch.cuda._compile_kernel(source, "endless")
flag = torch.zeros(1, device="cuda")
kernel(grid=(1, 1, 1), block=(32, 1, 1), args=(flag,))
print("launched", flush=True)
torch.cuda.synchronize()
print("returned", flush=True)
"""


@pytest.mark.skipif(not hasattr(torch.cuda, "_compile_kernel"), reason="this torch compiles no source")
def test_an_endless_kernel_in_a_child_is_ended_and_the_gpu_works_on() -> None:
    outcome = _core.supervise([sys.executable, "-c", ENDLESS], 20.0)
    assert outcome.ended == "timed-out"
    assert "launched" in outcome.output
    assert "returned" not in outcome.output
    x, w = torch.randn(1, 4, 8, 8, device="cuda"), torch.randn(4, 4, 3, 3, device="cuda")
    with unhang.enabled("jit"):
        assert_close(F.conv2d(x, w), F.conv2d(x.double(), w.double()))


def test_the_canary_tries_every_family() -> None:
    gpu = _gpu.gpu(0)
    asked = gpu.families
    assert asked[0] == "plain"
    assert {"gemm", "weights", "depthwise", "winograd"} <= set(asked)
    command = [sys.executable, "-m", "unhang._trials", "canary", "jit", "--device", "0", "--families", *asked]
    outcome = _core.supervise(command, 120.0)
    verdicts, hung = outcome.families(asked)
    assert not hung
    assert {family: verdict for family, verdict, _ in verdicts} == dict.fromkeys(asked, "works"), outcome.output


def test_only_proven_families_run_on_an_affected_card(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """This GPU plays the affected card; the verdicts of its canaries are made up, the kernels and their results real."""
    from unhang import _gpu

    gpu = _gpu.gpu(0)

    x, w = torch.randn(2, 32, 20, 20, device="cuda"), torch.randn(48, 32, 3, 3, device="cuda")
    want = F.conv2d(x.double(), w.double())
    current = _state.state()
    monkeypatch.setattr(current, "is_affected", lambda index: True)
    problem = _core.Problem.from_key(KEY)

    def engines_planned() -> list[str]:
        situation = _gpu.situation_of("cuda", rehearsed=False, index=0)
        return current.session.plan(problem, "cuda", Settings(), situation).engines

    assert "jit" not in engines_planned()
    try:
        for passed in (["plain"], ["plain", "gemm"]):
            for family in passed:
                make_up(current.session.canary_name(0, family, gpu))
            make_up(current.session.canary_name(0, "winograd", gpu), "hangs")
            assert engines_planned()[0] == "jit"
            kernel = gpu.prepare(problem, 0, 1 << 30, True)
            assert kernel.family in passed
            loaded = _gpu.Loaded(kernel, problem, torch.contiguous_format)
            assert_close(_gpu.launch(loaded, torch.contiguous_format, x, w, None), want)
    finally:
        gpu.allow(None)


KEY = "forward:f32:nchw:2x32x20x20:48x3x3:s1x1:p0x0:d1x1:g1"


@pytest.mark.skipif(torch.version.hip is not None, reason="this torch is built for ROCm")
def test_auto_leaves_a_machine_that_is_not_affected_alone() -> None:
    unhang.enable()
    F.conv2d(torch.randn(1, 4, 8, 8, device="cuda"), torch.randn(4, 4, 3, 3, device="cuda"))
    assert not _convolve.routes


def test_bindings_refuse_what_cannot_be() -> None:
    gpu = _gpu.gpu(0)
    problem = _core.Problem.from_key(KEY)
    with pytest.raises(ValueError, match="names no choice"):
        gpu.prepare_as(problem, "fastest")
    with pytest.raises(_core.GpuDeclined, match="depthwise"):
        gpu.prepare_as(problem, "depthwise:4:s1")
    kernel = gpu.prepare_as(problem, "plain")
    with pytest.raises(ValueError, match="no address"):
        kernel.launch(0, 0, 0, 0, 0, 0)
    with pytest.raises(_core.GpuFailure, match="no driver" if torch.version.hip else "cuDeviceGet"):
        _core.Gpu.open_cuda(99)


def test_other_engines_still_compute_what_jit_is_kept_from() -> None:
    """Tiles of our kernels, and a layer with its own settings."""
    with unhang.enabled("jit"):  # an affected card tries its kernels
        pass
    x = torch.randn(1, 8, 70, 70, device="cuda", requires_grad=True)
    layer = unhang.SafeConv2d(8, 8, 3, padding=1, config=Settings(strategy="jit")).cuda()
    y = layer(x)
    y.sum().backward()
    assert engines() == {"jit"}
    tiled = _divided.TiledEngine(_jit.JitEngine(), 32, pad_channels=False)
    with torch.no_grad():
        route = next(iter(_convolve.routes.values()))
        geometry = Geometry([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
        got = tiled.forward(route.task, x.detach(), layer.weight.detach(), layer.bias.detach(), geometry)
    assert_close(got, y.detach().double(), slack=3)


def test_nothing_of_this_is_slow_by_accident() -> None:
    """A repeated call goes from Python to the kernel without preparing anything."""
    x, w = torch.randn(1, 16, 32, 32, device="cuda"), torch.randn(32, 16, 3, 3, device="cuda")
    with unhang.enabled("jit"):
        F.conv2d(x, w)
        unhang.wait_for_kernels()
        F.conv2d(x, w)
        (route,) = _convolve.routes.values()
        assert route.kernel is not None
        assert route.kernel.settled
        assert not route.kernel.kernel.provisional
