"""The child in which the direct path is tried with a torch that nobody has tried it with: see :mod:`unhang._direct`."""

from __future__ import annotations

import torch

from unhang import _core, _direct, _dispatch
from unhang._core import Settings
from unhang._state import torch_build


def _judge() -> tuple[str, str]:
    x, w, b = leaves = [torch.randn(it, requires_grad=True) for it in ((2, 4, 7, 6), (6, 2, 3, 2), (6,))]

    def compute() -> list[torch.Tensor]:
        y = torch.nn.functional.conv2d(x, w, b, stride=(2, 1), padding=(1, 0), groups=2)
        return [y, *torch.autograd.grad(y, leaves, torch.ones_like(y))]

    plain = compute()
    _direct._is_open = _direct.open_here()
    if not _direct._is_open:
        return "unsupported", "an entry of torch's is missing or gives something else"
    _dispatch.register("cpu")
    for settings in (Settings(strategy="cpu_fallback"), None):
        _core.activate("cpu", settings)
        for _ in range(8):
            error = max(float((got - want).abs().max()) for got, want in zip(compute(), plain))
            if not error < 1e-3:
                return "wrong", f"a result is off by {error:.1e}"
    return "works", "results and gradients are right"


if __name__ == "__main__":
    print(_core.canary_torch(torch_build()), flush=True)
    print(_core.canary_answer(*_judge()), flush=True)
