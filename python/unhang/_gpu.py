"""The GPUs of this process as our kernels use them: the driver that torch has loaded, opened once for each device."""

from __future__ import annotations

import atexit
import glob
import os
import sys
import threading
import time

import torch

from unhang import _core
from unhang._state import renewed_after_fork, state
from unhang._talk import Progress

# Seconds that the end of a process may wait for a kernel that is being compiled: a compiler must not be at work while
# the libraries under it are taken down.
_PATIENCE_AT_EXIT = 10.0

# Seconds between looks at how many kernels are left to compile.
_LOOKS_EVERY = 0.5

#: Set to "emulator", it lets a rehearsal's CPU tensors be computed by our GPU kernels on an emulated card: the one that
#: is described, instruction by instruction, many thousand times slower than a real one.
REHEARSAL = "UNHANG_REHEARSE_GPU"
#: The index of the card that a rehearsal plays: what torch calls CPU tensors' device.
REHEARSED = -1

# The general kernels that came with the package, where it was built with them.
_SHIPPED = os.path.join(os.path.dirname(__file__), "kernels")

# By the device's index: the opened device, or why there is none.
_opened: dict[int, _core.Gpu | str] = {}
_lock = renewed_after_fork(__name__, "_lock", threading.Lock)
os.register_at_fork(after_in_child=_opened.clear)


def found(index: int) -> _core.Gpu | str:
    """The device of that index, or why our kernels cannot be used on it."""
    known = _opened.get(index)
    if known is None:
        with _lock:
            known = _opened.get(index)
            if known is None:
                known = _open(index)
                if not isinstance(known, str):
                    known.take_tunings(state().store)  # what was measured before on this device
                _opened[index] = known
    return known


def gpu(index: int) -> _core.Gpu:
    """The device of that index; raises ``GpuDeclined`` where our kernels cannot be used on it."""
    known = found(index)
    if isinstance(known, str):
        raise _core.GpuDeclined(known)
    return known


def close() -> None:
    """Forgets the devices that are open. For tests."""
    with _lock:
        _opened.clear()


def opened() -> list[_core.Gpu]:
    """The devices that are open."""
    return [device for device in _opened.values() if not isinstance(device, str)]


def _open(index: int) -> _core.Gpu | str:
    if state().forked:
        return "a forked child cannot use the GPU that its parent opened"
    try:
        if index == REHEARSED:
            if os.environ.get(REHEARSAL) != "emulator":
                return f"a rehearsal computes on CPU tensors, and our GPU kernels need a GPU, or {REHEARSAL}=emulator"
            return _core.Gpu.open_emulated(state().machine, shipped_folder=_SHIPPED)
        if torch.version.hip is not None:
            reported = getattr(torch.cuda.get_device_properties(index), "gcnArchName", None)
            return _core.Gpu.open_hip(index, state().machine, reported, shipped_folder=_SHIPPED)
        _name_nvrtc()
        return _core.Gpu.open_cuda(index)  # the driver counts as torch does: what CUDA_VISIBLE_DEVICES leaves
    except _core.GpuFailure as error:
        return str(error)


def _name_nvrtc() -> None:
    """Names the compiler that torch's own packages bring, for a process that has not loaded it yet."""
    if "UNHANG_NVRTC" in os.environ:
        return
    major = (torch.version.cuda or "").partition(".")[0]
    for folder in sys.path:
        compilers = sorted(glob.glob(f"{folder}/nvidia/*/lib/libnvrtc.so.{major}*"), key=len)
        if compilers:
            os.environ["UNHANG_NVRTC"] = compilers[0]
            return


def wait_for_kernels(seconds: float = 600.0) -> bool:
    """Waits until nothing is being compiled in the background; False if that many seconds passed first.

    A new convolution is computed by generic kernels until its own are compiled. Call this after a first pass where
    that matters: before recording a CUDA graph, and before measuring.
    """
    devices = opened()
    deadline = time.monotonic() + seconds
    total = sum(device.waiting for device in devices)
    progress = Progress("compiling kernels:", total)
    while True:
        left = deadline - time.monotonic()
        settled = all(device.settle(min(max(left, 0.0), _LOOKS_EVERY)) for device in devices)
        progress.at(total - sum(device.waiting for device in devices))
        if settled or left <= 0.0:
            progress.end()
            return settled


@atexit.register
def _close() -> None:
    if not state().forked:
        for device in opened():
            device.close(_PATIENCE_AT_EXIT)
