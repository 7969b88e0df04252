"""What was planned and computed in this process: forwards by layer, which Rust counts on both paths (``unhang-py``'s
``layers.rs``), and the report on all of it as data, text, and a page."""

from __future__ import annotations

import json
import os
import tempfile
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, overload

import torch

from unhang import _convolve, _core, _dispatch
from unhang._core import Settings
from unhang._state import renewed_after_fork, state, torch_build

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


# ---- the report ----


class Report:
    """A snapshot of this process."""

    def __init__(self, data: dict[str, Any], render: Callable[[str], str]) -> None:
        #: Everything, as plain values.
        self.data = data
        self._render = render

    def json(self) -> str:
        """The data as JSON."""
        return json.dumps(self.data, indent=2)

    def text(self) -> str:
        """Tables: what is known here, and the layers with their plans."""
        return self._render("text")

    @overload
    def html(self, path: None = None) -> str: ...

    @overload
    def html(self, path: str | Path) -> Path: ...

    def html(self, path: str | Path | None = None) -> str | Path:
        """One self-contained page. If a file is named, writes it completely or not at all, and returns its path."""
        page = self._render("html")
        if path is None:
            return page
        target = Path(path)
        # A name that nobody else could have taken, because the folder may be everybody's.
        handle, beside = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(page)
                os.fchmod(file.fileno(), 0o666 & ~_umask())
            os.replace(beside, target)
        except BaseException:
            os.unlink(beside)
            raise
        return target

    def _repr_html_(self) -> str:
        # In a notebook the page needs a separate frame, because it has its own styles and scripts.
        page = self._render("html").replace("&", "&amp;").replace('"', "&quot;")
        return f'<iframe srcdoc="{page}" style="width: 100%; height: 40em; border: 0" sandbox="allow-scripts"></iframe>'

    def __str__(self) -> str:
        return self.text()


def _umask() -> int:
    """The permissions that new files do not get. Read from the system if possible: setting the umask to read it would
    affect other threads for a moment."""
    try:
        for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    except (OSError, ValueError, IndexError):
        pass
    return 0o077


def _render(form: str) -> str:
    current = state()
    machine = current.machine
    described = ", ".join(machine.gpus) or "no GPU"
    line = f"{described}; {'affected' if machine.affected else 'not affected'}; torch {torch_build()}"
    if machine.described_by_folder:
        line += "; described by a folder"
    layers = []
    for name, _, layer in sorted(named_layers(), key=lambda item: item[0]):
        for problem in dict.fromkeys(problem for problem, _ in layer.counts if problem):
            engines = [(engine.partition("(")[0], n) for (of, engine), n in layer.counts.items() if of == problem]
            layers.append((name, problem, sum(n for _, n in engines), engines))
    for (key, _), route in sorted(_convolve.routes.copy().items()):
        if not key.startswith("forward") and route.tally.total:
            engines = [(name.partition("(")[0], n) for name, n in zip(route.names, route.tally.by_place) if n]
            layers.append(("(gradients)", key, route.tally.total, engines))
    plans = [(route.problem, route.plan) for route in list(_convolve.routes.values())]
    return current.session.render(line, layers, plans, _is_rehearsal(), form)


def _is_rehearsal() -> bool:
    return any(route.rehearsed for route in list(_convolve.routes.values()))


def report() -> Report:
    """What was planned and computed so far, by problem and by layer."""
    current = state()
    settings = _dispatch.settings_here() or Settings()
    problems = []
    for (key, token), route in sorted(_convolve.routes.copy().items()):
        problems.append(
            {
                "problem": key,
                "strategy": Settings.from_token(token).strategy,
                "engines": list(route.names),
                "counts": route.tally.by_place,
                "kernels": None if (kernel := route.kernel) is None else kernel.kernel.choice,
                "bypasses": route.tally.bypasses,
                "reason": route.plan.reason,
                "evidence": route.plan.evidence,
                "seconds": route.stopwatch.seconds if route.stopwatch.seconds < float("inf") else None,
            }
        )
    layers = [
        {"name": name, "kind": type(module).__name__, **layer.summary((layer.settings or settings).strategy)}
        for name, module, layer in named_layers()
        if layer.forwards
    ]
    return Report(
        {
            "schema": 1,
            "rehearsal": _is_rehearsal(),
            "machine": {
                "gpus": current.machine.gpus,
                "affected": current.machine.affected,
                "spoofed": current.machine.spoofed,
                "fingerprint": current.machine.fingerprint,
                "described_by_folder": current.machine.described_by_folder,
            },
            "strategy": settings.strategy,
            "tune": settings.tune,
            "problems": problems,
            "layers": layers,
            "redispatched": _convolve.redispatched.total,
            "failures": [
                {"problem": key, "engine": engine, "detail": detail}
                for key, engine, detail in current.session.failures()
            ],
        },
        _render,
    )
