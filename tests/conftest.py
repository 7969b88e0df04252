"""Each test has its own store, and leaves torch as it found it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# On processors with AVX512-FP16 torch 2.15's oneDNN returns wrong results for dilated convolutions in half precision, and these
# are what ours are compared with. It reads the variable when torch is loaded.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import pytest
import torch

# Small convolutions on a busy machine spend their time in waking threads; what threads change is tested in Rust.
torch.set_num_threads(1)

MACHINES = Path(__file__).parent.parent / "crates" / "unhang-machine" / "fixtures"


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A store that no other test sees; unhang off, and nothing remembered, before and after."""
    from unhang import _convolve, _enable, _state

    home = tmp_path / "unhang-home"
    monkeypatch.setenv("UNHANG_HOME", str(home))
    # A torch for ROCm computes under the spoof that it was started with, and so do the children that are tried here.
    spoof = () if torch.version.hip else ("HSA_OVERRIDE_GFX_VERSION",)
    for name in ("UNHANG_ROOT", "UNHANG_DISABLE", *spoof):
        monkeypatch.delenv(name, raising=False)
    _enable.disable()
    _state.forget()
    _state._said.clear()
    _convolve.routes.clear()
    yield home
    _enable.disable()
    _state.forget()
    _convolve.replan()


@pytest.fixture(scope="module")
def kernels_of_this_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache of compiled kernels for all tests of a file: hiprtc takes a second a kernel."""
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture
def affected_machine(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The machine of the reports: an RX 5600 XT told to be gfx1030. A folder; every use of it is a rehearsal."""
    return on_machine("rx5600xt-rocm5.7", monkeypatch)


def on_machine(name: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Describes that machine to everything that asks, with no canary known."""
    from unhang import _state

    folder = MACHINES / name
    monkeypatch.setenv("UNHANG_ROOT", str(folder))
    _state.forget()
    return folder


def make_up(canary: str, verdict: str = "works") -> None:
    """What a canary would have said: in the store, so that it outlasts the process's state."""
    from unhang import _state

    _state.state().session.keep_canary(canary, verdict, "made up", True)


@contextmanager
def enabled_everywhere(*arguments: object, **options: object) -> Iterator[None]:
    """unhang on for every thread in a block; ``unhang.enabled`` is for its own."""
    import unhang

    unhang.enable(*arguments, **options)
    try:
        yield
    finally:
        unhang.disable()


def subprocess_environment(**changes: str) -> dict[str, str]:
    """The environment for a Python that a test starts: the package found as it is found here."""
    import unhang

    package = str(Path(unhang.__file__).parent.parent)
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path, **changes}
