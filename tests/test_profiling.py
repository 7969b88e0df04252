"""What torch's own tools show of convolutions that unhang computes: profiler records and FLOP counts."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

import unhang
from conftest import subprocess_environment
from unhang import _core


def _records(compute: object, calls: int = 1) -> dict[str, int]:
    """How often each of our engines shows in a profile."""
    assert callable(compute)
    with torch.autograd.profiler.profile() as found:
        for _ in range(calls):
            compute()
    return {it.key: it.count for it in found.key_averages() if it.key.startswith("unhang::")}


@pytest.mark.parametrize(("strategy", "engine"), [("cpu_fallback", "cpu"), ("aten", "aten"), ("tiled", "tiled(aten)")])
def test_a_profile_names_the_engine_that_computed(strategy: str, engine: str) -> None:
    x, w = torch.randn(1, 2, 9, 9, requires_grad=True), torch.randn(3, 2, 3, 3, requires_grad=True)

    def step() -> None:
        F.conv2d(x, w).sum().backward()

    step()
    assert _records(step) == {}, "while unhang is off"
    with unhang.enabled(strategy, devices=("cpu",), tile_limit=4):
        records = _records(step)
        assert set(records) == {f"unhang::{engine}"}
        for _ in range(8):
            step()
        assert _core.known_calls() > 0 or strategy == "tiled" or not unhang._direct._is_open
        again = _records(step, 3)
        assert again == {f"unhang::{engine}": 3 * records[f"unhang::{engine}"]}, "without Python as with it"


def test_a_profile_shows_no_engine_for_what_torch_computes() -> None:
    x, w = torch.ones(1, 1, 5, 5).long(), torch.ones(1, 1, 3, 3).long()
    with unhang.enabled("cpu_fallback", devices=("cpu",)):
        for _ in range(3):
            assert _records(lambda: F.conv2d(x, w)) == {}


def test_an_engines_record_lies_within_torchs_own() -> None:
    x, w = torch.randn(1, 2, 9, 9), torch.randn(3, 2, 3, 3)
    with unhang.enabled("cpu_fallback", devices=("cpu",)):
        for _ in range(8):
            F.conv2d(x, w)
        with torch.autograd.profiler.profile() as found:
            F.conv2d(x, w)
    (ours,) = (it for it in found.function_events if it.name == "unhang::cpu")
    assert ours.cpu_parent is not None
    assert ours.cpu_parent.name == "aten::convolution"


FLOPS = """
import sys
FIRST
import torch
from unhang import SafeConv2d, Settings, _dispatch
assert "triton" not in sys.modules or "flop" in FIRST_TEXT
from torch.utils.flop_counter import FlopCounterMode

def flops(compute):
    with FlopCounterMode(display=False) as counter:
        compute()
    return counter.get_total_flops()

geometry = ([2, 1], [1, 0], [1, 1], TRANSPOSED, [0, 0], 2)
x = torch.randn(2, 4, 7, 6, requires_grad=True)
w = torch.randn(*((4, 3, 3, 2) if TRANSPOSED else (6, 2, 3, 2)), requires_grad=True)
token = Settings(strategy="cpu_fallback").token
ops = (
    lambda: torch.ops.aten.convolution(x, w, None, *geometry),
    lambda: torch.ops.unhang.convolution(x, w, None, *geometry, token),
)
forward = [flops(op) for op in ops]
both = [flops(lambda: op().sum().backward()) for op in ops]
assert forward[0] == forward[1] > 0, forward
assert both[0] == both[1] > forward[0], both
"""


@pytest.mark.skipif(not hasattr(torch, "compile"), reason="torch 2.1 and newer")
@pytest.mark.parametrize("first", ["", "import torch.utils.flop_counter"])
@pytest.mark.parametrize("transposed", [False, True])
def test_flops_of_our_op_are_those_of_torchs_convolution(first: str, transposed: bool) -> None:
    """Whichever is imported first, the counter or this package, which does not import it."""
    script = FLOPS.replace("FIRST_TEXT", repr(first)).replace("FIRST", first).replace("TRANSPOSED", str(transposed))
    command = [sys.executable, "-c", script]
    result = subprocess.run(command, env=subprocess_environment(), capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
