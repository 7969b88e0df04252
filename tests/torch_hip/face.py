"""What torch's users do with convolutions apart from calling them, on the card, with unhang on: `python3 face.py [PART …]`.

Each part is compared with the same on the CPU. The tests of `tests/` say more, and take hours on the emulator; these are small and few.
"""

from __future__ import annotations

import copy
import sys
import threading
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import unhang

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from comparing import engines_used

CARD = torch.device("cuda")
#: Relative to the largest element.
LIMITS = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 6e-2, torch.float64: 1e-10}


def apart(ours: Tensor, exact: Tensor, dtype: torch.dtype = torch.float32) -> None:
    """Raises where a result of the card is further from the CPU's than its type explains."""
    ours, exact = ours.detach().cpu().double(), exact.detach().double()
    assert ours.shape == exact.shape, (ours.shape, exact.shape)
    error = float((ours - exact).abs().max() / exact.abs().max().clamp(min=1e-6))
    assert error <= LIMITS[dtype], f"error {error:.1e}"


def leaves(*tensors: Tensor) -> list[Tensor]:
    return [tensor.detach().requires_grad_() for tensor in tensors]


def three_directions(call: Callable[..., Tensor], *tensors: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """A convolution and its gradients, on the card and on the CPU in double precision; twice, for the direct path."""
    exact_leaves = leaves(*(tensor.double() for tensor in tensors))
    exact = call(*exact_leaves)
    gradient = torch.randn(exact.shape, dtype=torch.float64).to(dtype)
    exact_gradients = torch.autograd.grad(exact, exact_leaves, gradient.double())
    for _ in range(2):
        # As they lie: a copy to the card keeps the order of dimensions.
        ours_leaves = leaves(*(tensor.to(dtype).to(CARD) for tensor in tensors))
        ours = call(*ours_leaves)
        found = torch.autograd.grad(ours, ours_leaves, gradient.to(CARD))
        for got, want in zip((ours, *found), (exact, *exact_gradients)):
            apart(got, want, dtype)
    return ours


def forms() -> str:
    """Every form of convolution in unmodified code."""
    x, w, b = torch.randn(2, 8, 9, 7), torch.randn(8, 8, 3, 3), torch.randn(8)
    half = w[:, :4].contiguous()
    cases: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = {
        "bias": (lambda x, w, b: F.conv2d(x, w, b, padding=1), (x, w, b)),
        "stride": (lambda x, w: F.conv2d(x, w, None, (2, 3), (0, 2)), (x, w)),
        "dilation": (lambda x, w: F.conv2d(x, w, None, 1, 3, 2), (x, w)),
        "groups": (lambda x, w: F.conv2d(x, w, groups=2), (x, half)),
        "depthwise": (lambda x, w: F.conv2d(x, w, padding=1, groups=8), (x, w[:, :1].contiguous())),
        "transposed": (lambda x, w: F.conv_transpose2d(x, w, None, 2, 1, 1), (x, w)),
        "one dimension": (lambda x, w: F.conv1d(x, w, None, 2, 1), (x[:, :, 0].contiguous(), w[:, :, 0].contiguous())),
        "same": (lambda x, w: F.conv2d(x, w, padding="same"), (x, w)),
        "one image": (lambda x, w: F.conv2d(x, w), (x[0], w)),
        "three dimensions": (lambda x, w: F.conv3d(x, w, padding=1), (torch.randn(1, 2, 4, 5, 5), torch.randn(2, 2, 3, 3, 3))),
    }  # fmt: skip
    for name, (call, tensors) in cases.items():
        began = time.monotonic()
        three_directions(call, *tensors)
        print(f"  {name}: {time.monotonic() - began:.1f} s", flush=True)
    return f"{len(cases)} forms in three directions"


def layouts() -> str:
    """Results lie as torch's own would: torch's meta kernels say how."""
    x, w = torch.randn(2, 8, 9, 7), torch.randn(8, 8, 3, 3)
    last = torch.channels_last
    wide = torch.randn(2, 16, 9, 7).to(CARD).to(memory_format=last)
    forms = {
        "channels_last": (x.to(CARD).to(memory_format=last), w.to(CARD).to(memory_format=last)),
        "channels_last input": (x.to(CARD).to(memory_format=last), w.to(CARD)),
        "half of channels_last": (wide[:, :8], w.to(CARD)),
        "transposed": (x.to(CARD).transpose(2, 3), w.to(CARD)),
    }
    for name, (input, weight) in forms.items():
        ours = F.conv2d(input, weight, padding=1)
        apart(ours, F.conv2d(input.cpu(), weight.cpu(), padding=1))
        expected = last if "channels_last" in name else torch.contiguous_format
        assert ours.is_contiguous(memory_format=expected), (name, ours.stride())
    line = x[:, :, 0].to(CARD).transpose(1, 2).contiguous().transpose(1, 2)
    apart(F.conv1d(line, w[:, :, 0].to(CARD)), F.conv1d(line.cpu(), w[:, :, 0]))
    return f"{len(forms)} layouts and a transposed line"


def types() -> str:
    """Half precision, asked for and by autocast; double precision."""
    x, w = torch.randn(1, 8, 8, 8), torch.randn(8, 8, 3, 3)
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        three_directions(lambda x, w: F.conv2d(x, w, padding=1), x, w, dtype=dtype)
    for dtype in (torch.float16, torch.bfloat16):
        layer = nn.Conv2d(8, 8, 3, padding=1)
        ours = copy.deepcopy(layer).to(CARD)
        with torch.autocast("cuda", dtype=dtype):
            found = ours(x.to(CARD))
        assert found.dtype == dtype
        apart(found, layer(x), dtype)
        found.float().backward(torch.ones_like(found, device="cpu", dtype=torch.float32).to(CARD))
        layer(x).sum().backward()
        apart(ours.weight.grad, layer.weight.grad, dtype)
    return "float16, bfloat16, float64, and autocast in both halves with gradients"


def derivatives() -> str:
    """A gradient of a gradient."""
    found = []
    x, w = torch.randn(1, 4, 6, 6, dtype=torch.float64), torch.randn(4, 4, 3, 3, dtype=torch.float64)
    for device in ("cpu", CARD):
        x_, w_ = leaves(x.to(device), w.to(device))
        y = F.conv2d(x_, w_)
        (first,) = torch.autograd.grad(y, x_, y, create_graph=True)
        found.append(torch.autograd.grad(first, [x_, w_], torch.ones(first.shape, dtype=torch.float64).to(device)))
    for exact, ours in zip(*found):
        apart(ours, exact, torch.float64)
    return "second derivatives in double precision"


def streams() -> str:
    """Streams, events and threads."""
    x, w = torch.randn(2, 8, 12, 12), torch.randn(8, 8, 3, 3)
    exact, failed = F.conv2d(x, w, padding=1), []
    on_card = x.to(CARD), w.to(CARD)

    def work() -> None:
        try:
            stream, event = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True)
            stream.wait_stream(torch.cuda.default_stream())
            with torch.cuda.stream(stream):
                for _ in range(3):
                    y = F.conv2d(*on_card, padding=1)
                event.record()
            event.synchronize()
            assert event.query()
            apart(y, exact)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed
    return "three threads with their own streams and events"


def graphs() -> str:
    """A graph of HIP's that holds our kernels, replayed on new numbers."""
    w = torch.randn(8, 8, 3, 3)
    x, weight = torch.randn(2, 8, 10, 10).to(CARD), w.to(CARD)
    with torch.no_grad():
        F.conv2d(x, weight, padding=1)
        unhang.wait_for_kernels()
        F.conv2d(x, weight, padding=1)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = F.conv2d(x, weight, padding=1)
        fresh = torch.randn(2, 8, 10, 10)
        x.copy_(fresh)
        graph.replay()
        torch.cuda.synchronize()
    apart(y, F.conv2d(fresh, w, padding=1))
    return "recorded, and replayed on new numbers"


def compiled() -> str:
    """torch.compile with the backends that need no compiler."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 3))
    x = torch.randn(2, 3, 10, 10)
    exact = model(x)
    exact.sum().backward()
    # Torch's part that traces gradients imports Triton where there is a GPU.
    backends = ("eager", "aot_eager") if find_spec("triton") else ("eager",)
    for backend in backends:
        ours = copy.deepcopy(model).to(CARD)
        ours.zero_grad()
        found = torch.compile(ours, backend=backend)(x.to(CARD))
        apart(found, exact)
        found.backward(torch.ones(found.shape).to(CARD))
        for got, want in zip(ours.parameters(), model.parameters()):
            apart(got.grad, want.grad)
    return f"{' and '.join(backends)}, with gradients"


def tuning() -> str:
    """Tuning on first use: whatever wins is right. (Times are the emulator's.)"""
    x, w = torch.randn(2, 16, 10, 10), torch.randn(16, 16, 3, 3)
    with unhang.enabled("jit", tune=True):
        on_card = x.to(CARD), w.to(CARD)
        for _ in range(40):
            y = F.conv2d(*on_card, padding=1)
            unhang.wait_for_kernels()
    apart(y, F.conv2d(x, w, padding=1))
    return "40 calls while candidates are measured"


PARTS = (forms, layouts, types, derivatives, streams, graphs, compiled, tuning)


def main() -> int:
    wanted = sys.argv[1:] or [part.__name__ for part in PARTS]
    unhang.enable()
    failed = 0
    for part in PARTS:
        if part.__name__ not in wanted:
            continue
        torch.manual_seed(0)
        began = time.monotonic()
        try:
            said = part()
            print(f"{part.__name__}: right, {said} ({time.monotonic() - began:.0f} s)", flush=True)
        except Exception as error:
            failed += 1
            print(f"{part.__name__}: WRONG, {type(error).__name__}: {str(error)[:400]}", flush=True)
    engines = engines_used()
    failed += engines != {"jit"}
    print(
        f"{'wrong' if failed else 'right'}: {len(wanted) - failed} of {len(wanted)} parts, computed by {', '.join(sorted(engines))}"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
