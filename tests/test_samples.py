"""Torch's own samples of every convolution: numbers, strides, gradients and errors are the same with unhang."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

_FILE = Path(__file__).parent.parent / "tools" / "check_samples.py"


@pytest.mark.skipif(not hasattr(torch, "func"), reason="torch 2 and newer")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("strategy", ["cpu_fallback"])
def test_torchs_own_samples(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Importing torch's own tests freezes its flags; they are given back for the tests that follow.
    monkeypatch.setitem(torch.backends.flags_frozen.__globals__, "__allow_nonbracketed_mutation_flag", True)
    spec = importlib.util.spec_from_file_location("check_samples", _FILE)
    assert spec is not None
    assert spec.loader is not None
    samples = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(samples)
    counts, wrong = samples.check("cpu", strategy, (torch.float32,))
    assert set(counts) == {*samples.OPERATORS, *samples.MODULES}
    assert not wrong, "\n".join(wrong)
