"""Torch's own samples of every convolution: numbers, strides, gradients and errors are the same with unhang. The
samples run on the CPU and by our GPU kernels on the emulated card, as new calls and as known ones."""

from __future__ import annotations

import importlib.util
import os
from itertools import cycle
from pathlib import Path
from types import ModuleType

import pytest
import torch

from comparing import engines_used
from conftest import on_machine
from emulating import emulated_card, let
from unhang import _convolve, _core, _direct, _jit

_FILE = Path(__file__).parent.parent / "tools" / "check_samples.py"
_ALL = bool(os.environ.get("UNHANG_TEST_ALL"))
# A rehearsal times nothing: the second call is remembered, the third computed without Python.
_TURNS = 3

pytestmark = [
    pytest.mark.skipif(not hasattr(torch, "func"), reason="torch 2 and newer"),
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture
def samples(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    # Importing torch's own tests freezes its flags; they are given back for the tests that follow.
    monkeypatch.setitem(torch.backends.flags_frozen.__globals__, "__allow_nonbracketed_mutation_flag", True)
    spec = importlib.util.spec_from_file_location("check_samples", _FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Entered:
    """How many forwards Python's part computed; of a 3-d one those that it is folded into."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.forwards = 0
        forward = _convolve.forward

        def counted(*arguments, **options):
            self.forwards += arguments[1].dim() < 5
            return forward(*arguments, **options)

        monkeypatch.setattr(_convolve, "forward", counted)

    def assert_some_did_not(self) -> None:
        computed = sum(route.tally.total for route in _convolve.routes.values() if route.key.startswith("forward"))
        assert computed > self.forwards > 0 or not _direct.open_direct_path()


def test_torchs_own_samples(samples: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    entered = Entered(monkeypatch)
    counts, wrong = samples.check(samples.samples("cpu", (torch.float32,)), "cpu_fallback", "cpu")
    assert set(counts) == {*samples.OPERATORS, *samples.MODULES}
    assert not wrong, "\n".join(wrong)
    entered.assert_some_did_not()


# Every sample in single precision on the card of the reports, told to be another; of the rest one in five.
@pytest.mark.parametrize(
    ("machine", "dtype", "every"),
    [
        ("rx5600xt-rocm5.7", torch.float32, 1),
        *(("rx5600xt-rocm5.7", dtype, 5) for dtype in (torch.float16, torch.bfloat16, torch.float64)),
        ("rx5700xt-native", torch.float32, 5),
        ("rx5700xt-native", torch.float16, 5),
    ],
    ids=lambda it: str(it).removeprefix("torch."),
)
def test_torchs_own_samples_on_the_emulated_card(
    samples: ModuleType,
    machine: str,
    dtype: torch.dtype,
    every: int,
    kernels_of_this_file: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    on_machine(machine, monkeypatch)
    entered = Entered(monkeypatch)
    listed = samples.samples("cpu", (dtype,))[:: 1 if _ALL else every]
    with emulated_card(kernels_of_this_file) as gpu:
        let(gpu)
        counts, wrong = samples.check(listed, "jit", "cpu", turns=_TURNS, rehearse=True)
    assert not wrong, "\n".join(wrong)
    if every == 1:
        assert set(counts) == {*samples.OPERATORS, *samples.MODULES}
    assert engines_used() == {"jit"}
    entered.assert_some_did_not()


def test_torchs_own_samples_by_every_kernel_family(
    samples: ModuleType, affected_machine: Path, kernels_of_this_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The samples are so small that the plain kernels would compute them all."""
    listed = samples.samples("cpu", (torch.float32,))[:: 1 if _ALL else 17]
    used: set[str] = set()
    with emulated_card(kernels_of_this_file) as gpu:
        let(gpu)
        prefer_in_turn(gpu, used, monkeypatch)
        _, wrong = samples.check(listed, "jit", "cpu", turns=_TURNS, rehearse=True)
    assert not wrong, "\n".join(wrong)
    assert used >= {"depthwise", "direct", "fused", "gemm", "quads", "weights"}


def prefer_in_turn(gpu: _core.Gpu, used: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Has each new problem computed by the next family in turn that has kernels for it; ``used`` are those that came up."""
    known: dict[str, str] = {}
    turn = cycle(("depthwise", "direct", "gemm", "quads", "weights", "fused", "winograd"))
    honest = _jit.BoundJit._load

    def load(self, problem, index):
        if problem.key not in known:
            choices = {family: choice for choice, family, _, _ in gpu.candidates(problem)}
            family = next((it for it in (next(turn) for _ in range(7)) if it in choices), "plain")
            known[problem.key] = family
            gpu.prefer(problem, choices[family])
        loaded = honest(self, problem, index)
        used.add(loaded.kernel.family)
        return loaded

    monkeypatch.setattr(_jit.BoundJit, "_load", load)
    # In deterministic mode nothing else serves while kernels are compiled.
    monkeypatch.setattr(_jit, "deterministic", lambda: True)
