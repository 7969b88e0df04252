"""The canary's child (``python -m unhang._canary ENGINE``): computes a few small convolutions in all three directions
on the accelerator, compares them with the CPU, and answers with one line.

`enable` starts it before an engine computes in its process (:mod:`unhang._gpu`). So does `unhang doctor
--self-test`, also for matrix products and half precision. ``direct`` tries the direct path (:mod:`unhang._direct`). The
Rust side tries our own kernel families, and defines every message and its meaning.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from unhang._engines import Engine

#: Makes a rehearsed canary behave like a bad card: "hang", "crash" or "wrong".
REHEARSAL = "UNHANG_REHEARSE_CANARY"


def _child(engine: str, *, rehearsed: bool, arguments: list[str]) -> tuple[str, str]:
    import torch

    from unhang import _core
    from unhang._engines import AtenEngine, MiopenEngine
    from unhang._state import torch_build

    print(_core.canary_torch(torch_build()), flush=True)
    mood = os.environ.get(REHEARSAL) if rehearsed else None
    if mood == "hang":
        import time

        while True:
            time.sleep(60)
    if mood == "crash":
        os.abort()
    runners: dict[str, Engine] = {"aten": AtenEngine(), "miopen": MiopenEngine()}
    trials = {"matmul": _try_matmul, "half": _try_half}
    if engine == "direct":
        return _direct_child()
    if engine not in (*runners, *trials, "jit"):
        return "unsupported", f"{engine} has no canary: expected jit, {', '.join((*runners, *trials))}"
    if engine == "miopen" and torch.version.hip is None and not rehearsed:
        return "unsupported", "not here: this torch is not built for ROCm"
    if not rehearsed and not torch.cuda.is_available():
        return "unsupported", f"not here: torch {torch.__version__} sees no accelerator"
    if engine == "jit":
        return _jit_child(arguments, rehearsed=rehearsed)
    device = "cpu" if rehearsed else f"cuda:{_device_of(arguments)}"
    if engine in trials:
        error = trials[engine](device)
        worst, limit, unit = error, 1.0, "of what rounding explains"
    else:
        limit = _core.canary_tolerance("f32")
        worst, unit = _largest_relative_error(runners[engine], device), "relative"
    if mood == "wrong":
        worst = 2.0 * limit
    prefix = "rehearsed on the CPU: " if rehearsed else ""
    said = f"largest error {worst:.2f} {unit}" if unit != "relative" else f"largest relative error {worst:.1e}"
    return "works" if worst <= limit else "wrong", prefix + said


def _largest_relative_error(runner: Engine, device: str) -> float:
    """The largest relative error of a few convolutions in all three directions."""
    import torch

    from unhang._engines import Geometry, Task, below_autograd

    worst = 0.0
    # Sizes on both sides of those that hang in users' reports, a stride and a group.
    for channels, size, stride, groups in ((16, 32, 1, 1), (16, 48, 1, 1), (32, 64, 2, 1), (32, 28, 1, 32)):
        x = torch.randn(1, channels, size, size)
        w = torch.randn(32, channels // groups, 3, 3)
        geometry = Geometry([stride, stride], [1, 1], [1, 1], False, [0, 0], groups)
        y = torch.nn.functional.conv2d(x, w, None, stride, 1, 1, groups)
        expected = torch.ops.aten.convolution_backward(y, x, w, None, *geometry, [True, True, False])[:2]
        # Torch's own kernels look at tensors; the trial is for an affected card.
        task = Task(None, torch.contiguous_format, [1, 1], affected=True)  # type: ignore[arg-type]
        on_device = [tensor.to(device) for tensor in (y, x, w)]
        # Engines compute below autograd, as they do when the dispatcher calls them.
        with below_autograd():
            output = runner.forward(task, on_device[1], on_device[2], None, geometry)
            gradients = runner.backward(task, on_device[0], on_device[1], on_device[2], geometry, (True, True, False))
        for got, want in ((output, y), (gradients[0], expected[0]), (gradients[1], expected[1])):
            assert got is not None
            error = (got.to("cpu") - want).abs().max() / want.abs().max()
            worst = max(worst, error.item() if error.isfinite() else float("inf"))
    return worst


# Rows, inner size and columns: square, a linear layer's, one row, sizes that no tile divides, a batch of attention.
_PRODUCTS = ((256, 256, 256), (64, 768, 3072), (1, 512, 1000), (129, 67, 33), (77, 64, 77))


def _try_matmul(device: str) -> float:
    """The largest error of matrix products in single precision, relative to what rounding explains."""
    import torch

    return max(_product_error(shape, torch.float32, device) for shape in _PRODUCTS)


def _try_half(device: str) -> float:
    """The largest error of matrix products in half precision, and of a convolution without the vendor's library."""
    import torch

    worst = max(_product_error(shape, torch.float16, device) for shape in _PRODUCTS)
    x, w = torch.randn(1, 32, 24, 24).half(), torch.randn(32, 32, 3, 3).half()
    with torch.backends.cudnn.flags(enabled=False):
        got = torch.nn.functional.conv2d(x.to(device), w.to(device), padding=1)
    want = torch.nn.functional.conv2d(x.double(), w.double(), padding=1)
    return max(worst, _error_beyond_rounding(got, want, torch.float16))


def _product_error(shape: tuple[int, int, int], dtype: torch.dtype, device: str) -> float:
    import torch

    rows, inner, columns = shape
    a, b = torch.randn(rows, inner).to(dtype), torch.randn(inner, columns).to(dtype)
    return _error_beyond_rounding(a.to(device) @ b.to(device), a.double() @ b.double(), dtype)


def _error_beyond_rounding(got: torch.Tensor, want: torch.Tensor, dtype: torch.dtype) -> float:
    """The largest error relative to what the type's rounding explains; infinite if a value is not finite."""
    from unhang import _core
    from unhang._engines import DATA_TYPES

    limit = _core.canary_tolerance(DATA_TYPES[dtype]) * want.abs().max()
    error = (got.to("cpu").double() - want).abs().max() / limit
    return error.item() if error.isfinite() else float("inf")


def _device_of(arguments: list[str]) -> int:
    return int(arguments[arguments.index("--device") + 1]) if "--device" in arguments else 0


def _jit_child(arguments: list[str], *, rehearsed: bool) -> tuple[str, str]:
    from unhang import _gpu
    from unhang._state import state

    index = _gpu.REHEARSED if rehearsed else _device_of(arguments)
    wanted = arguments[arguments.index("--families") + 1 :] if "--families" in arguments else []
    kernels = _gpu.found(index)
    if isinstance(kernels, str):
        return "unsupported", f"not here: {kernels}"
    return state().session.try_families(index, kernels, wanted)


def _direct_child() -> tuple[str, str]:
    """Tries the direct path with a torch with which nobody has tried it."""
    import torch

    from unhang import _core, _direct, _dispatch

    x, w, b = leaves = [torch.randn(it, requires_grad=True) for it in ((2, 4, 7, 6), (6, 2, 3, 2), (6,))]

    def compute() -> list[torch.Tensor]:
        y = torch.nn.functional.conv2d(x, w, b, stride=(2, 1), padding=(1, 0), groups=2)
        return [y, *torch.autograd.grad(y, leaves, torch.ones_like(y))]

    plain = compute()
    _direct._is_open = _direct.open_here()
    if not _direct._is_open:
        return "unsupported", "an entry of torch's is missing or returns something unexpected"
    _dispatch.register("cpu")
    for settings in (_core.Settings(strategy="cpu_fallback"), None):
        _core.activate("cpu", settings)
        for _ in range(8):
            error = max(float((got - want).abs().max()) for got, want in zip(compute(), plain))
            if not error < 1e-3:
                return "wrong", f"a result is off by {error:.1e}"
    return "works", "results and gradients are right"


def _main(arguments: list[str]) -> None:
    from unhang import _core

    try:
        verdict, detail = _child(arguments[0], rehearsed="--rehearsed" in arguments[1:], arguments=arguments[1:])
    except Exception as error:  # whatever torch raises, it returned and says why
        lines = str(error).splitlines() or [""]
        verdict, detail = "error", f"{type(error).__name__}: {lines[0]}"
    print(_core.canary_answer(verdict, detail), flush=True)


if __name__ == "__main__":
    from unhang._core import end_with_parent

    end_with_parent()
    _main(sys.argv[1:])
