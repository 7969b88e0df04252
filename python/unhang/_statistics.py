"""What was computed for which layer. Counting is atomic and happens in :mod:`unhang._convolve` alone."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from typing import Any

import torch

from unhang._settings import Settings
from unhang._state import renewed_after_fork

_lock = renewed_after_fork(__name__, "_lock", threading.Lock)
_current = threading.local()
# A layer that sees ever new sizes must not fill the memory: those beyond so many are counted by engine alone.
_MOST_SIZES = 1000


class Layer:
    """The forwards of one module."""

    def __init__(self) -> None:
        #: Forwards by convolution (empty where torch computed what our engines do not know, and where the layer saw
        #: more sizes than are told apart) and engine.
        self.counts: dict[tuple[str, str], int] = {}
        self.bypasses = 0
        self.settings: Settings | None = None

    def count(self, problem: str, engine: str, *, bypass: bool, settings: Settings) -> None:
        """Counts one forward of this layer."""
        with _lock:
            key = (problem, engine)
            if key not in self.counts and len(self.counts) >= _MOST_SIZES:
                key = ("", engine)
            self.counts[key] = self.counts.get(key, 0) + 1
            self.bypasses += bypass
            self.settings = settings

    def add(self, other: Layer) -> None:
        """Adds another layer's counts."""
        for key, count in other.counts.items():
            self.counts[key] = self.counts.get(key, 0) + count
        self.bypasses += other.bypasses

    @property
    def engines(self) -> dict[str, int]:
        """Forwards by engine."""
        totals: dict[str, int] = {}
        for (_, engine), count in self.counts.items():
            totals[engine] = totals.get(engine, 0) + count
        return totals

    @property
    def forwards(self) -> int:
        """All forwards so far."""
        return sum(self.counts.values())

    def summary(self, strategy: str) -> dict[str, Any]:
        """The numbers by the names that the bypass's users know."""
        with _lock:
            forwards, bypasses = self.forwards, self.bypasses
        rate = 100.0 * bypasses / forwards if forwards else 0.0
        return {
            "total_forwards": forwards,
            "bypass_count": bypasses,
            "bypass_rate": rate,
            "strategy": strategy,
            "engines": self.engines,
        }


# Beside the modules and not in them: a model that is saved or copied takes no counts along.
_layers: weakref.WeakKeyDictionary[torch.nn.Module, Layer] = weakref.WeakKeyDictionary()
_names: weakref.WeakKeyDictionary[torch.nn.Module, str] = weakref.WeakKeyDictionary()


def layer_of(module: torch.nn.Module) -> Layer:
    """The counts of a module."""
    layer = _layers.get(module)
    if layer is None:
        with _lock:
            layer = _layers.setdefault(module, Layer())
    return layer


def name(module: torch.nn.Module, text: str) -> None:
    """Gives a module the name under which reports show it."""
    _names[module] = text


def named_layers() -> Iterator[tuple[str, torch.nn.Module, Layer]]:
    """Every module that was counted or named, with its name."""
    for module, layer in list(_layers.items()):
        yield _names.get(module, f"(unnamed {type(module).__name__})"), module, layer


def current_layer() -> Layer | None:
    """The layer whose forward this thread is in, if any."""
    return getattr(_current, "layer", None)


def current_settings() -> Settings | None:
    """The settings of the layer whose forward this thread is in, if it has some of its own."""
    return getattr(_current, "settings", None)


class inside:
    """Marks this thread as being inside a module's forward, which may have settings of its own."""

    __slots__ = ("_before", "_layer", "_settings")

    def __init__(self, module: torch.nn.Module, settings: Settings | None = None) -> None:
        self._layer = layer_of(module)
        self._settings = settings

    def __enter__(self) -> None:
        before = self._before = (getattr(_current, "layer", None), getattr(_current, "settings", None))
        _current.layer = self._layer
        _current.settings = self._settings or (before[1] if before[0] is self._layer else None)

    def __exit__(self, *_: object) -> None:
        _current.layer, _current.settings = self._before
