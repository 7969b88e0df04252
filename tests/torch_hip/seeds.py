"""The scripts of the five reports, as they are printed there: `python3 seeds.py plain|profiles|bypass`.

`plain` are those that know torch alone: the test for hangs with its alarm, the table of sizes, and the check of an installation.
`profiles` are the reports' sets of variables, each for a convolution in a separate process. `bypass` are the blocks of the bypass's
document. Every result is also compared with the CPU's, which the reports did not do.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import bypass_blocks

#: As the reports export them; the override and the card are the step's.
PROFILES = {
    "GEMM alone": (
        "MIOPEN_DEBUG_CONV_GEMM=1 MIOPEN_DEBUG_CONV_IMPLICIT_GEMM=0 MIOPEN_DEBUG_CONV_WINOGRAD=0 MIOPEN_DEBUG_CONV_DIRECT=0 "
        "MIOPEN_DEBUG_CONV_FFT=0 MIOPEN_FIND_MODE=NORMAL MIOPEN_FIND_ENFORCE=NONE MIOPEN_DISABLE_CACHE=0 MIOPEN_LOG_LEVEL=3 "
        "PYTORCH_ROCM_ARCH=gfx1030 HIP_VISIBLE_DEVICES=0 HSA_ENABLE_SDMA=0 HSA_USE_SVM=0 HSA_XNACK=0 HIP_FORCE_COARSE_GRAIN=1"
    ),
    "IMPLICIT_GEMM": "MIOPEN_DEBUG_CONV_IMPLICIT_GEMM=1 MIOPEN_DEBUG_CONV_GEMM=0 MIOPEN_FIND_MODE=normal",
}


def convolve(inputs: int, outputs: int, size: int) -> float:
    """A layer on the card and on the CPU: their largest difference."""
    torch.manual_seed(size)
    conv = nn.Conv2d(inputs, outputs, 3, padding=1)
    x = torch.randn(1, inputs, size, size)
    with torch.no_grad():
        expected = conv(x)
        found = conv.cuda()(x.cuda()).cpu()
    return float((found - expected).abs().max())


def hang_test(in_ch: int, out_ch: int, h: int, w: int, timeout: int) -> tuple[bool, str]:
    """The third report's, with its alarm."""

    def handler(signum: int, frame: object) -> None:
        raise TimeoutError(f"Conv2d hung: {in_ch}→{out_ch}, {h}x{w}")

    signal.signal(signal.SIGALRM, handler)
    signal.alarm(timeout)
    try:
        x = torch.randn(1, in_ch, h, w).cuda()
        conv = torch.nn.Conv2d(in_ch, out_ch, 3, padding=1).cuda()
        conv(x)
        signal.alarm(0)
        return True, "Works"
    except TimeoutError as e:
        return False, str(e)
    except Exception as e:
        return False, f"Error: {e}"


def plain() -> None:
    worst = 0.0
    # Sizes of the reports' tables; 128 and more take minutes each on the emulator.
    for inputs, outputs in ((3, 16), (1, 32), (16, 32), (32, 64)):
        for size in (32, 42, 44, 48, 64):
            began = time.monotonic()
            error = convolve(inputs, outputs, size)
            worst = max(worst, error)
            print(f"{inputs}→{outputs} {size}x{size}: error {error:.0e}, {time.monotonic() - began:.1f} s", flush=True)
    works, message = hang_test(16, 32, 64, 64, timeout=300)
    print(f"Result: {message}")
    assert works
    assert worst < 1e-4, worst
    print(f"right: 20 cells of the tables within {worst:.0e}, the hang test says {message}")


def profiles() -> None:
    for name, variables in PROFILES.items():
        environment = {**os.environ, **dict(variable.split("=") for variable in variables.split())}
        statement = "import seeds; error = seeds.convolve(16, 32, 48); print(f'error {error:.0e}'); assert error < 1e-4"
        here = Path(__file__).resolve().parent
        ended = subprocess.run([sys.executable, "-c", statement], env=environment, cwd=here, timeout=900, check=False)
        assert ended.returncode == 0, f"{name}: ended with {ended.returncode}"
        print(f"{name}: right", flush=True)
    print(f"right: 16→32 48x48 with {len(PROFILES)} sets of variables")


def bypass() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.conv2 = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.conv2(torch.relu(self.conv1(x)))

    names: dict[str, object] = {"YourModel": Model, "torch": torch}
    worst = 0.0
    reference = Model()

    def run(block: str) -> None:
        nonlocal worst
        exec(block, names)
        model = names.get("model")
        if isinstance(model, nn.Module):
            model.load_state_dict(reference.state_dict())
            for size in (20, 50):
                x = torch.randn(1, 3, size, size)
                worst = max(worst, float((model(x.cuda()).cpu() - reference(x)).abs().max()))

    for block in (
        *bypass_blocks.STRATEGIES,
        *bypass_blocks.QUICK_START,
        bypass_blocks.CONFIGURATION,
        bypass_blocks.REPORT,
    ):
        run(block)
    run(bypass_blocks.TROUBLESHOOTING[0])
    run(bypass_blocks.TROUBLESHOOTING[1])
    # Its test of gradients looks at a tensor that is no leaf: on a card `.grad` is None whatever computes the convolution.
    try:
        run(bypass_blocks.TROUBLESHOOTING[2])
    except AssertionError as error:
        print(f"the gradient script cannot pass on a card: {error}")
    assert worst < 1e-4, worst
    print(f"right: every block ran, models within {worst:.0e} of the CPU")


if __name__ == "__main__":
    {"plain": plain, "profiles": profiles, "bypass": bypass}[sys.argv[1]]()
