"""What was planned and computed in this process: data, text, and a page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from unhang import _convolve, _core, _enable, _statistics
from unhang._settings import Settings
from unhang._state import state


class Report:
    """A picture of this process at one moment."""

    def __init__(self, data: dict[str, Any]) -> None:
        #: Everything, as plain values.
        self.data = data

    def json(self) -> str:
        """The data as JSON."""
        return json.dumps(self.data, indent=2)

    def text(self) -> str:
        """The data as tables."""
        return _core.render_report(self.json(), "text")

    def html(self, path: str | Path | None = None) -> str:
        """The data as one page that needs nothing else; written to a file if one is named."""
        page = _core.render_report(self.json(), "html")
        if path is not None:
            target = Path(path)
            beside = target.with_name(f".{target.name}.new")
            beside.write_text(page)
            beside.replace(target)
        return page

    def __str__(self) -> str:
        return self.text()


def report() -> Report:
    """What was planned and computed so far, by problem and by layer."""
    current = state()
    settings = _enable.enabled_settings() or Settings()
    problems = []
    for (key, token), route in sorted(_convolve.routes.items()):
        problems.append(
            {
                "problem": key,
                "strategy": Settings.from_token(token).strategy,
                "engines": route.names,
                "counts": route.tally.by_place,
                "bypasses": route.tally.bypasses,
                "reason": route.plan.reason,
                "evidence": route.plan.evidence,
                "seconds": route.seconds if route.seconds < float("inf") else None,
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
            "rehearsal": bool(_convolve.rehearsed),
            "machine": {
                "gpus": current.machine.gpus,
                "affected": current.machine.affected,
                "spoofed": current.machine.spoofed,
                "fingerprint": current.machine.fingerprint,
                "described_by_folder": current.machine.described_by_folder,
            },
            "strategy": settings.strategy,
            "problems": problems,
            "layers": layers,
            "redispatched": _convolve.redispatched.total,
            "failures": [
                {"problem": key, "engine": engine, "detail": detail}
                for (key, engine), detail in current.failures.items()
            ],
        }
    )
