"""What tests of our GPU kernels on the emulated card share: the card, opened and closed, and its canaries' verdicts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from conftest import make_up
from unhang import _core, _gpu, _state


@contextmanager
def emulated_card(kernels: Path) -> Iterator[_core.Gpu]:
    """The card of the machine that ``UNHANG_ROOT`` describes, which keeps compiled kernels in that folder. Skips where
    hiprtc is not here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNHANG_REHEARSE_GPU", "emulator")
        patch.setenv("XDG_CACHE_HOME", str(kernels))
        forget_card()
        try:
            try:
                card = _gpu.gpu(_gpu.REHEARSED)
            except _core.GpuDeclined as declined:
                pytest.skip(str(declined))
            yield card
        finally:
            forget_card()


def forget_card() -> None:
    """What a new process does not know of any card."""
    for gpu in _gpu.opened():
        gpu.close(60.0)
    _gpu.close()


def let(gpu: _core.Gpu, verdict: str = "works", **others: str) -> None:
    """What the families' canaries would say (they are tried in a separate test): one verdict for all, but where a
    family has another."""
    for family in gpu.families:
        make_up(_state.state().session.canary_name(_gpu.REHEARSED, family, gpu), others.get(family, verdict))
    make_up("aten (rehearsed)")
