"""Switching unhang on and off for the whole process."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from unhang import _convolve, _core, _dispatch, _engines, _gpu, _is_on, _layers, _watchdog
from unhang._core import Settings
from unhang._state import (
    is_unshielded,
    renewed_after_fork,
    say,
    settings_from,
    state,
    warn_once,
)

_lock = renewed_after_fork(__name__, "_lock", threading.RLock)


class _Enabled:
    """What was requested, and what of the process must be restored."""

    def __init__(self, settings: Settings, devices: tuple[str, ...], *, protect: bool, rehearse: bool) -> None:
        self.settings = settings
        self.devices = devices
        self.protect = protect
        self.rehearse = rehearse
        #: Whether the GPU was in use before.
        self.follows_first_use = torch.version.hip is not None and torch.cuda.is_initialized()
        #: Whether torch's flags were changed for it.
        self.keeps_flags = False


#: What is on for every thread, and the open blocks of all threads.
_enabled: _Enabled | None = None
_blocks: list[_Enabled] = []
_cudnn_before: tuple[bool, bool] | None = None
#: The GPUs whose canaries were requested in this process.
_tried: set[int] = set()
#: Whether something is being switched on. Read it with the lock held.
_under_way = False
#: What :func:`enable_unless_enabled` was asked to do while a block began.
_postponed: Callable[[], None] | None = None
_thread = threading.local()


def enable(
    strategy: Any = "auto",
    *,
    devices: Sequence[str] | str | None = None,
    settings: Settings | None = None,
    protect_other_layers: bool = True,
    rehearse: bool = False,
    **changes: Any,
) -> None:
    """Plans every convolution of this process from now on, in unmodified code, forward and backward.

    ``devices`` are the device types whose tensors go through unhang: "cuda" (which is ROCm's name in torch too) and
    "cpu". Without it the accelerator's tensors go through unhang on an affected card, or if you name a strategy. If
    there is no accelerator, ``cpu_fallback`` takes the CPU's. On a machine that is not affected, ``auto`` leaves torch
    alone and costs nothing.

    ``settings``, or single fields of :class:`unhang.Settings` by name (``size_threshold=64``), say how to plan.

    On an affected card this also keeps batch norms and RNNs off MIOpen (``torch.backends.cudnn.enabled``), unless
    ``protect_other_layers`` is False. :func:`disable` restores it.

    ``rehearse=True`` lets CPU tensors stand for those of the card that ``UNHANG_ROOT`` describes: torch's CPU kernels
    play the card's engines. Everything then says that it is a rehearsal.
    """
    global _postponed
    current = _asked(strategy, devices, settings, protect_other_layers, rehearse, changes)
    if current is None:
        return
    _thread.is_enabling = True
    try:
        _initialize_gpu(current)
    finally:
        _thread.is_enabling = False
    with _lock:
        before = _enabled  # in force until the other one is ready: canaries may take minutes
        try:
            _prepare(current)
            _put_in_force(current)
        except BaseException:
            _put_in_force(before)  # all or nothing
            raise
        finally:
            _postponed = None


@contextmanager
def enabled(
    strategy: Any = "auto",
    *,
    devices: Sequence[str] | str | None = None,
    settings: Settings | None = None,
    protect_other_layers: bool = True,
    rehearse: bool = False,
    **changes: Any,
) -> Iterator[None]:
    """:func:`enable` for a block, or for the calls of a function that it decorates, on this thread alone. Gradients
    that are asked for in the block are planned by it, on whichever thread autograd computes them. Other threads, also
    those that the block starts, go on as before: they follow :func:`enable`.

    Flags and variables that torch has only one of (``torch.backends.cudnn.enabled``, MIOpen's variables) are changed
    for every thread as long as a block needs them.
    """
    leave, current = None, None
    try:
        current = _asked(strategy, devices, settings, protect_other_layers, rehearse, changes)
        if current is not None:
            _initialize_gpu(current)
            with _lock:
                _prepare(current)
                _blocks.append(current)
                if current.rehearse:
                    _convolve.replan()
                _enable_if_postponed()
                leave = _dispatch.way_back()
                _dispatch.enter(_dispatch.Entered(current.settings, current.devices))
        yield
    finally:
        if leave is not None:
            leave()
        if current is not None:
            with _lock:
                if current in _blocks:
                    _blocks.remove(current)
                _give_back()


def _asked(
    strategy: Any,
    devices: Sequence[str] | str | None,
    settings: Settings | None,
    protect_other_layers: bool,
    rehearse: bool,
    changes: dict[str, Any],
) -> _Enabled | None:
    """What the arguments of :func:`enable` request; None if the user declined."""
    chosen = _chosen(strategy, settings, changes)
    if _is_on("UNHANG_DISABLE"):
        say("UNHANG_DISABLE is set: torch is left alone")
        return None
    machine = state().machine
    if rehearse and not machine.described_by_folder:
        raise ValueError("a rehearsal needs a machine to play: set UNHANG_ROOT to a folder that describes one")
    if devices is None:
        devices = ("cpu",) if rehearse else _devices(chosen.strategy, affected=machine.affected)
    if isinstance(devices, str):
        devices = (devices,)
    unknown = set(devices) - set(_dispatch.KEYS)
    if unknown:
        raise ValueError(f"unknown device {sorted(unknown)[0]!r}: expected {' or '.join(sorted(_dispatch.KEYS))}")
    return _Enabled(chosen, tuple(devices), protect=protect_other_layers, rehearse=rehearse)


def enable_unless_enabled(strategy: str, **options: Any) -> None:
    """Enables, unless the program did or is about to. This runs at the first use of the GPU, which may be inside the
    program's own call of :func:`enable`. Inside the beginning of a block, it waits until that is over."""
    global _postponed
    if getattr(_thread, "is_enabling", False):
        return
    with _lock:
        if _under_way:
            _postponed = lambda: enable(strategy, **options)  # noqa: E731
        elif _enabled is None:
            enable(strategy, **options)


def _enable_if_postponed() -> None:
    global _postponed
    postponed, _postponed = _postponed, None
    if postponed is not None and _enabled is None:
        postponed()


def _chosen(strategy: Any, settings: Settings | None, changes: dict[str, Any]) -> Settings:
    """The requested settings; raises if one of them is invalid."""
    given = Settings() if settings is None else settings_from(settings, "settings")
    chosen = given.changed(**changes) if changes else given
    if strategy != "auto" or settings is None:
        chosen = chosen.changed(strategy=strategy)
    if _is_on("UNHANG_TUNE"):
        chosen = chosen.changed(tune=True)
    return chosen


def _initialize_gpu(current: _Enabled) -> None:
    """Initializes the GPU if :func:`_prepare` uses it. Torch holds a lock meanwhile, under which `unhang run` enables.
    So this must not begin where our lock is held."""
    if not state().forked and {*_endangered(current), *_for_our_kernels(current)} - {_gpu.REHEARSED}:
        torch.cuda.init()


def _prepare(current: _Enabled) -> None:
    """Does what must come before any planning, for all threads: canaries, closed entries, flags, kernels in torch's
    dispatcher."""
    global _under_way, _cudnn_before
    chosen, devices, rehearse = current.settings, current.devices, current.rehearse
    _under_way = True
    try:
        if rehearse:
            _convolve.rehearsed.update(devices)
            say("rehearsal: CPU tensors stand for those of the machine that UNHANG_ROOT describes")
        if chosen.implicit_gemm:
            _narrow_to_implicit_gemm(came_late=current.follows_first_use)
        endangered = _endangered(current)
        if endangered:
            _say_what_stays_unsafe()
        for index in endangered:
            _gpu.ensure_canary("aten", index)
        gpus = {*endangered, *_for_our_kernels(current)}
        for index in sorted(gpus):
            _gpu.ensure_families(index)
        if not _tried.issuperset(gpus):
            _tried.update(gpus)
            _convolve.replan()  # there are new verdicts
        if endangered:
            _dispatch.close_miopens_ops()
            if current.protect:
                if _cudnn_before is None:
                    _cudnn_before = _engines.cudnn_flags()
                current.keeps_flags = True
                _engines.set_cudnn_flags(False, False)
        if devices:
            _watchdog.ensure()
        _layers.count_every_layer()
        _dispatch.prepare(devices)
    finally:
        _under_way = False
    _say_what_is_planned(chosen, devices)


def _say_what_is_planned(chosen: Settings, devices: tuple[str, ...]) -> None:
    """Says so if nothing is planned."""
    if devices:
        return
    if state().machine.affected and not torch.cuda.is_available():
        say("an RDNA1 card is here, but this torch sees no GPU, so nothing is planned: `unhang doctor` says why")
    elif chosen.strategy != "auto":
        say(f"torch sees no GPU here: {chosen.strategy} has nothing to plan; devices=['cpu'] plans CPU tensors")
    elif chosen.verbose:
        say("no affected card is here: torch is left alone (enable(devices=...) or a strategy changes that)")


def _endangered(current: _Enabled) -> list[int]:
    """The RDNA1 cards that torch sees, by number; each has its own canaries."""
    process = state()
    if not process.machine.affected:
        return []
    if current.rehearse:
        return [_gpu.REHEARSED]
    if "cuda" not in current.devices or not torch.cuda.is_available():
        return []
    return [index for index in range(torch.cuda.device_count()) if process.is_affected(index)]


def _for_our_kernels(current: _Enabled) -> list[int]:
    """GPUs of a torch for ROCm, affected or not, if our kernels may compute there. They are compiled for such chips but
    were rarely seen to run there."""
    if current.settings.strategy not in ("auto", "jit", "selective"):
        return []
    if "cuda" not in current.devices or torch.version.hip is None or not torch.cuda.is_available():
        return []
    return list(range(torch.cuda.device_count()))


def _say_what_stays_unsafe() -> None:
    """Our kernels are compiled for the true chip; in a spoofed process, the code below them is not."""
    if is_unshielded():
        say(
            "HSA_OVERRIDE_GFX_VERSION is set and the shield is off: unhang's own kernels are safe on this chip, "
            "but HIP's copies and fills, torch's other kernels and rocBLAS are code for another chip and may hang "
            "or compute nonsense. Start the program with `unhang run -- python …`, or use a torch with code for "
            "this chip and no override"
        )


def _devices(strategy: str, *, affected: bool) -> tuple[str, ...]:
    """The default device types of a strategy."""
    if torch.cuda.is_available():
        return ("cuda",) if affected or strategy != "auto" else ()
    return ("cpu",) if strategy == "cpu_fallback" else ()


# The original values of MIOpen's variables.
_variables_before: dict[str, str | None] = {}


def _narrow_to_implicit_gemm(*, came_late: bool) -> None:
    """Turns off every other solver family of MIOpen. The value 0 does that; the value 1 does nothing. Says so if MIOpen
    may already have read its variables."""
    if came_late:
        warn_once(
            "the GPU was in use before MIOpen's other solver families could be switched off: MIOpen reads its "
            "variables once, so this may have no effect; call enable_miopen_bypass() before the first use of the GPU"
        )
    for family, variable in _core.SOLVER_FAMILIES.items():
        _variables_before.setdefault(variable, os.environ.get(variable))
        os.environ[variable] = "1" if family == "implicit-gemm" else "0"


def _restore_variables() -> None:
    for variable, value in _variables_before.items():
        if value is None:
            os.environ.pop(variable, None)
        else:
            os.environ[variable] = value
    _variables_before.clear()


def disable() -> None:
    """Gives torch back as it was: kernels, flags and variables. Counts and evidence stay, and so do blocks of
    :func:`enabled` until they end.

    Calls of other threads that are under way end as they began. On an affected card ops that are MIOpen's own
    (``aten::miopen_batch_norm`` and the like) stay with what took their place.
    """
    with _lock:
        if _enabled is not None:
            _put_in_force(None)
            state().store.flush(2.0)


def _put_in_force(wanted: _Enabled | None) -> None:
    """Plans by that from the next call on, or not at all. Undoes what :func:`enable` did for anything else, even if it
    did not finish."""
    global _enabled
    _enabled = wanted
    if wanted is None:
        _dispatch.process_settings = None
        _dispatch.deactivate()
    else:
        _dispatch.process_settings = wanted.settings
        _dispatch.activate(wanted.devices, wanted.settings)
    _give_back()
    _convolve.replan()


def _give_back() -> None:
    """Restores what nobody in the process needs changed any longer."""
    global _cudnn_before
    left = [*_blocks, *([] if _enabled is None else [_enabled])]
    rehearsed = {device for it in left if it.rehearse for device in it.devices}
    if rehearsed != _convolve.rehearsed:
        _convolve.rehearsed.intersection_update(rehearsed)
        _convolve.replan()
    if not any(it.settings.implicit_gemm for it in left):
        _restore_variables()
    if _cudnn_before is not None and not any(it.keeps_flags for it in left):
        _engines.set_cudnn_flags(*_cudnn_before)
        _cudnn_before = None
    if not left:
        _layers.count_no_layer()


def is_enabled() -> bool:
    """Whether convolutions of this thread are being planned."""
    return _enabled is not None or _dispatch.entered() is not None
