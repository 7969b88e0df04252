"""What was planned and computed in this process: data, text, and a page."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, overload

from unhang import _convolve, _enable, _statistics
from unhang._core import Settings
from unhang._state import state, torch_build


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
    for name, _, layer in sorted(_statistics.named_layers(), key=lambda item: item[0]):
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
    settings = _enable.enabled_settings() or Settings()
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
        for name, module, layer in _statistics.named_layers()
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
