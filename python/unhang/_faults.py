"""Whose fault an error is: only an engine's own is held against it."""

from __future__ import annotations

import enum

import torch

from unhang import _core

# What a driver says when every later call fails too, whoever caused it: a device-side assert of the user's, a kernel
# that wrote past its end earlier. (The names of CUDA's and HIP's errors, and torch's texts for them.)
_STICKY = (
    "device-side assert",
    "illegal memory access",
    "illegal address",
    "illegal instruction",
    "misaligned address",
    "unspecified launch failure",
    "launch_failed",
    "ecc error",
    "hardware exception",
)


class Fault(enum.Enum):
    """Who caused an error, and so what follows from it."""

    #: The engine failed: the next one is asked, and this one not again.
    ENGINES = "engine's"
    #: Circumstances, or an engine that began nothing: the next one is asked, and nothing is held against this one.
    NOBODYS = "nobody's"
    #: The program's memory is short, or the device has failed for everybody: the caller gets the error as it is.
    CALLERS = "caller's"


def fault_of(error: Exception, device: torch.device) -> Fault:
    """Whose fault an error is that an engine raised on a device."""
    text = str(error).lower()
    if isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError)):
        return Fault.CALLERS
    if isinstance(error, _core.GpuDeclined):
        return Fault.NOBODYS  # it began nothing: it may take the next call
    if "out of memory" in text or "out_of_memory" in text or "outofmemory" in text or "can't allocate memory" in text:
        # The driver's own memory, for kernels of ours that it loads: another engine's may be loaded already.
        return Fault.NOBODYS if isinstance(error, _core.GpuFailure) else Fault.CALLERS
    if any(words in text for words in _STICKY) or not is_sound(device):
        return Fault.CALLERS
    return Fault.ENGINES


def is_sound(device: torch.device) -> bool:
    """Whether a device still takes work; after a sticky error no engine can compute on it. Does not wait."""
    if device.type != "cuda":
        return True
    try:
        torch.cuda.current_stream(device).query()
    except Exception:
        return False
    return True
