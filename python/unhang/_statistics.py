"""What was computed for which layer. Rust counts (``unhang-py``'s ``layers.rs``), on both paths."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch

from unhang import _core
from unhang._core import Settings
from unhang._state import renewed_after_fork

_lock = renewed_after_fork(__name__, "_lock", threading.Lock)


class Layer:
    """The forwards of one module."""

    __slots__ = ("_more", "_more_bypasses", "counted")

    def __init__(self) -> None:
        #: Counted in Rust, whichever path a convolution takes.
        self.counted = _core.LayerCounts()
        self._more: dict[tuple[str, str], int] = {}
        self._more_bypasses = 0

    @property
    def counts(self) -> dict[tuple[str, str], int]:
        """Forwards by convolution and engine. The convolution is empty if torch computed something that our engines do
        not know, or if the layer saw more sizes than are counted separately."""
        counts = self.counted.by_label
        for key, count in self._more.items():
            counts[key] = counts.get(key, 0) + count
        return counts

    @property
    def bypasses(self) -> int:
        """Forwards that something other than torch's own choice computed."""
        return self.counted.bypasses + self._more_bypasses

    @property
    def settings(self) -> Settings | None:
        """The settings of the last forward."""
        return self.counted.settings

    def add(self, other: Layer) -> None:
        """Adds another layer's current counts."""
        for key, count in other.counts.items():
            self._more[key] = self._more.get(key, 0) + count
        self._more_bypasses += other.bypasses

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
        """The numbers under the names that the bypass's users know."""
        engines, bypasses = self.engines, self.bypasses
        forwards = sum(engines.values())
        rate = 100.0 * bypasses / forwards if forwards else 0.0
        return {
            "total_forwards": forwards,
            "bypass_count": bypasses,
            "bypass_rate": rate,
            "strategy": strategy,
            "engines": engines,
        }


# Kept next to the modules, not in them: a saved or copied model takes no counts along.
_layers: weakref.WeakKeyDictionary[torch.nn.Module, Layer] = weakref.WeakKeyDictionary()
_names: weakref.WeakKeyDictionary[torch.nn.Module, str] = weakref.WeakKeyDictionary()


def layer_of(module: torch.nn.Module) -> Layer:
    """The counts of a module."""
    layer = _layers.get(module)
    if layer is None:
        with _lock:
            layer = _layers.setdefault(module, Layer())
    return layer


# Layers by the module's address, which is quicker to look up, at every forward of every layer.
_by_address: dict[int, _core.LayerCounts] = {}

# Counts of modules that are gone: a script that trains in a function has no modules left when it ends. At most this
# many are kept.
_ended: deque[_core.LayerCounts] = deque(maxlen=4096)


def counts_of(module: torch.nn.Module) -> _core.LayerCounts:
    """The counter for the forwards of a module."""
    counted = _by_address.get(id(module))
    if counted is None:
        counted = layer_of(module).counted
        _by_address[id(module)] = counted
        weakref.finalize(module, _end, id(module)).atexit = False
    return counted


def _end(address: int) -> None:
    """Called when a module is collected, wherever that happens, so it must not wait."""
    counted = _by_address.pop(address, None)
    if counted is not None:
        _ended.append(counted)


def engines_by_layer() -> Iterator[dict[str, int]]:
    """The forwards by engine of each module so far, including those that are gone."""
    counted = [layer.counts for _, _, layer in named_layers()] + [gone.by_label for gone in list(_ended)]
    for counts in counted:
        engines: dict[str, int] = {}
        for (_, engine), count in counts.items():
            name = engine.partition("(")[0]
            engines[name] = engines.get(name, 0) + count
        yield engines


def name(module: torch.nn.Module, text: str) -> None:
    """Gives a module the name under which reports show it."""
    _names[module] = text


def named_layers() -> Iterator[tuple[str, torch.nn.Module, Layer]]:
    """Every module that was counted or named, with its name."""
    for reference in _layers.keyrefs():  # a copy, made in one step: other threads may add layers meanwhile
        module = reference()
        layer = None if module is None else _layers.get(module)
        if module is not None and layer is not None:
            yield _names.get(module, f"(unnamed {type(module).__name__})"), module, layer
