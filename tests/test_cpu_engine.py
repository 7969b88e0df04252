"""Our CPU engine through torch: packed filters are never stale, threads are those that may run, odd numbers go where
torch puts them."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import unhang
from comparing import assert_close, engines_used
from conftest import enabled_everywhere, subprocess_environment
from unhang import _core
from unhang._engines import run_on_cpu

#: Few pixels and many channels: filters that are worth keeping packed.
SHAPE, FILTER = (2, 48, 7, 7), (64, 48, 3, 3)
FORMATS = pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])


@pytest.fixture
def on_the_cpu() -> Iterator[None]:
    with enabled_everywhere("cpu_fallback", devices=("cpu",)):
        yield


def exact(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """A convolution with 3x3 filters and padding in double precision, without any convolution."""
    columns = F.unfold(x.double(), 3, padding=1)
    return (w.double().reshape(w.shape[0], -1) @ columns).reshape(x.shape[0], w.shape[0], *x.shape[2:])


@FORMATS
def test_filters_may_change_in_place_in_every_way(on_the_cpu: None, memory_format: torch.memory_format) -> None:
    x = torch.randn(SHAPE).to(memory_format=memory_format)
    w = torch.randn(FILTER).to(memory_format=memory_format)
    address, version = w.data_ptr(), w._version

    def check() -> None:
        assert_close(F.conv2d(x, w, padding=1), exact(x, w))
        assert w.data_ptr() == address

    check()
    check()
    w.data.mul_(-3)  # past autograd: torch's own version counter does not see it
    assert w._version == version
    check()
    w.numpy()[5, 7, 1, 1] = 100.0
    assert w._version == version
    check()
    w[[3, 4]] = w[[4, 3]]  # the same numbers in another order
    check()
    w.copy_(torch.randn(FILTER))
    check()


def test_other_filters_at_the_address_of_one_that_is_gone(on_the_cpu: None) -> None:
    x, memory = torch.randn(SHAPE), torch.empty(FILTER).view(-1)
    for _ in range(5):
        w = memory.view(FILTER)
        w.copy_(torch.randn(FILTER))
        assert_close(F.conv2d(x, w, padding=1), exact(x, w))
        other = memory.view(48, 64, 3, 3)  # another shape of the same memory
        y = torch.randn(2, 64, 7, 7)
        assert_close(F.conv2d(y, other, padding=1), exact(y, other))


@FORMATS
def test_training_follows_torch(memory_format: torch.memory_format) -> None:
    def losses() -> list[torch.Tensor]:
        torch.manual_seed(3)
        model = nn.Sequential(nn.Conv2d(48, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 1), nn.Conv2d(64, 8, 3))
        model = model.double() if exactly else model
        model = model.to(memory_format=memory_format)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        x = torch.randn(SHAPE).to(memory_format=memory_format)
        found = []
        for _ in range(6):
            optimizer.zero_grad()
            loss = model(x.double() if exactly else x).square().mean()
            loss.backward()
            optimizer.step()
            found.append(loss.detach())
        return found

    exactly = True
    want = losses()
    exactly = False
    with unhang.enabled("cpu_fallback", devices=("cpu",)):
        got = losses()
    for ours, theirs in zip(got, want):
        assert_close(ours, theirs, slack=10)
    assert want[-1] < want[0], "it learned"


def test_threads_that_change_their_own_filters(on_the_cpu: None) -> None:
    wrong = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        x, w = torch.randn(SHAPE, generator=generator), torch.randn(FILTER, generator=generator)
        first = F.conv2d(x, w, padding=1)
        for step in range(1, 20):
            w.data.mul_(2 if step % 2 else 0.5)
            if not torch.equal(F.conv2d(x, w, padding=1), first * (2 if step % 2 else 1)):
                wrong.append((seed, step))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_bits_are_the_same_at_every_call_on_every_thread_and_with_any_number_of_threads(on_the_cpu: None) -> None:
    x, w = torch.randn(SHAPE, requires_grad=True), torch.randn(FILTER, requires_grad=True)
    found: list[tuple[torch.Tensor, ...]] = []

    def work() -> None:
        for _ in range(3):
            y = F.conv2d(x, w, padding=1)
            found.append((y.detach(), *torch.autograd.grad(y.sin().sum(), (x, w))))

    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            other = threading.Thread(target=work)
            other.start()
            other.join()
            work()
    finally:
        torch.set_num_threads(before)
    assert len(found) == 18
    assert engines_used() == {"cpu"}
    for results in found:
        assert all(torch.equal(one, first) for one, first in zip(results, found[0]))


HELPERS = """
    import os, torch, unhang, torch.nn.functional as F

    def helpers():
        names = [open(f"/proc/self/task/{task}/comm").read() for task in os.listdir("/proc/self/task")]
        return sum(name.startswith("unhang-cpu") for name in names)

    x, w = torch.randn(8, 16, 32, 32), torch.randn(16, 16, 3, 3)
    unhang.enable("cpu_fallback", devices=("cpu",))
"""


def python(code: str, before: str = "", **variables: str) -> str:
    program = before + textwrap.dedent(HELPERS) + textwrap.dedent(code)
    environment = subprocess_environment(**variables)
    ended = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=180
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


needs_proc = pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="counts threads in /proc")


@needs_proc
def test_no_more_threads_than_may_run() -> None:
    # Torch counts processors when it is loaded, and takes any number that it is given; the mask allows one.
    code = """
        torch.set_num_threads(4)
        F.conv2d(x, w)
        print(torch.get_num_threads(), helpers())
    """
    limit = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
    assert python(code, before=limit) == "4 0"


@needs_proc
def test_torchs_number_of_threads_is_ours() -> None:
    assert python("torch.set_num_threads(1); F.conv2d(x, w); print(helpers())") == "0"
    assert python("F.conv2d(x, w); print(helpers())", OMP_NUM_THREADS="1") == "0"


@needs_proc
def test_we_compute_on_torchs_threads() -> None:
    # The first call starts whatever else there is, and so does setting a number; the second one more, which is OpenMP's.
    code = """
        torch.set_num_threads(1)
        want = F.conv2d(x, w)
        torch.set_num_threads(2)
        before = len(os.listdir("/proc/self/task"))
        assert torch.equal(F.conv2d(x, w), want)
        print(len(os.listdir("/proc/self/task")) - before, helpers())
    """
    several = len(os.sched_getaffinity(0)) > 1
    assert python(code) == f"{int(several)} 0"


@needs_proc
def test_autograds_threads_compute_the_same() -> None:
    code = """
        def gradients():
            a, b = x.clone().requires_grad_(), w.clone().requires_grad_()
            F.conv2d(a, b, padding=1).square().sum().backward()
            return a.grad, b.grad
        torch.set_num_threads(1)
        want = gradients()
        torch.set_num_threads(2)
        print(all(torch.equal(a, b) for a, b in zip(gradients(), want)))
    """
    assert python(code) == "True"


@needs_proc
def test_a_forked_child_computes_alone() -> None:
    code = """
        torch.set_num_threads(2)
        want = F.conv2d(x, w)
        child = os.fork()
        if child == 0:
            # Ours, then one of torch's own that takes all threads.
            same = torch.equal(F.conv2d(x, w), want)
            os._exit(0 if same and helpers() == 0 else 1)
        print(os.waitpid(child, 0)[1])
    """
    assert python(code) == "0"


@FORMATS
@pytest.mark.parametrize("direction", ["forward", "data", "weights"])
def test_numbers_that_are_not_finite_go_where_torch_puts_them(
    memory_format: torch.memory_format, direction: str
) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 6, 9, 11).to(memory_format=memory_format)
    w = torch.randn(5, 6, 3, 3).to(memory_format=memory_format)
    y = torch.randn(2, 5, 9, 11).to(memory_format=memory_format)
    first = y if direction == "data" else x
    first[0, 1, 4, 5], first[1, 2, 0, 0], first[1, 3, 8, 10] = float("nan"), float("inf"), float("-inf")
    mask = [direction == "data", direction == "weights", False]

    def compute() -> torch.Tensor:
        if direction == "forward":
            return F.conv2d(x, w, padding=1)
        arguments = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1, mask)
        return torch.ops.aten.convolution_backward(y, x, w, None, *arguments)[mask.index(True)]

    want = compute()
    with unhang.enabled("cpu_fallback", devices=("cpu",)):
        got = compute()
    assert torch.equal(got.isnan(), want.isnan())
    assert torch.equal(got.isinf() * got.sign(), want.isinf() * want.sign())
    assert not got.isfinite().all()


@pytest.mark.skipif(not hasattr(torch, "compile"), reason="torch 2 and newer")
@FORMATS
def test_results_are_on_the_cpu_whatever_the_default_device_is(memory_format: torch.memory_format) -> None:
    """A program may make its GPU the default for new tensors."""
    problem = _core.Problem((1, 2, 5, 5), (3, 2, 3, 3), [1, 1], [0, 0], [1, 1], False, [0, 0], 1, "f32",
                            "nchw" if memory_format is torch.contiguous_format else "nhwc", "forward")  # fmt: skip
    x, w = (torch.randn(shape).to(memory_format=memory_format) for shape in ((1, 2, 5, 5), (3, 2, 3, 3)))
    with torch.device("meta"):
        got = run_on_cpu(problem, x, w, None, memory_format)
    assert_close(got, F.conv2d(x.double(), w.double()))


def test_an_empty_batch(on_the_cpu: None) -> None:
    w = torch.randn(4, 3, 3, 3, requires_grad=True)
    empty = torch.zeros(0, 3, 8, 8, requires_grad=True)
    F.conv2d(empty, w, padding=1).sum().backward()
    assert empty.grad is not None
    assert empty.grad.shape == empty.shape
    assert w.grad is not None
    assert w.grad.eq(0).all()


@FORMATS
def test_a_single_pixel_and_a_huge_stride(on_the_cpu: None, memory_format: torch.memory_format) -> None:
    x = torch.randn(1, 3, 1, 1).to(memory_format=memory_format)
    w = torch.randn(4, 3, 3, 3).to(memory_format=memory_format)
    assert_close(F.conv2d(x, w, padding=1), exact(x, w))
    assert_close(F.conv2d(x, w, padding=1, stride=1 << 20), exact(x, w))
