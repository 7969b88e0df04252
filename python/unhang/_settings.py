"""How convolutions are to be planned: a value, and its text form that travels through torch's dispatcher."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

#: The strategies that a plan can be made by; see ``docs/how-it-decides.md``.
STRATEGIES = ("auto", "implicit_gemm", "cpu_fallback", "selective", "aten", "jit", "tiled")


@dataclass(frozen=True)
class Settings:
    """How convolutions are planned. Equal settings are the same settings."""

    #: One of :data:`STRATEGIES`.
    strategy: str = "auto"
    #: ``selective`` keeps the CPU away from inputs whose larger side is at most this.
    size_threshold: int = 42
    #: Whether a plan may move a convolution to the CPU at all.
    cpu_fallback_enabled: bool = True
    #: Whether MIOpen's other solver families are switched off before its first use.
    implicit_gemm: bool = False
    #: Largest side of what a tile of the ``tiled`` strategy reads, halo included.
    tile_limit: int = 32
    #: Pad channel counts that are powers of two by one, inside ``tiled``.
    pad_channels: bool = False
    #: Most mebibytes of the GPU's memory that our kernels may take as workspace for one convolution.
    workspace_limit: int = 1024
    #: Whether our GPU kernels are tuned on first use: candidates are timed between calls, and the fastest is kept.
    tune: bool = False
    #: Print each decision once.
    verbose: bool = False
    #: Keep decisions; otherwise every call is planned anew.
    cache_decisions: bool = True

    def __post_init__(self) -> None:
        strategy = getattr(self.strategy, "value", self.strategy)
        if not isinstance(strategy, str) or strategy.lower() not in STRATEGIES:
            raise ValueError(f"unknown strategy {self.strategy!r}: expected one of {', '.join(STRATEGIES)}")
        object.__setattr__(self, "strategy", strategy.lower())
        for name in ("size_threshold", "tile_limit", "workspace_limit"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise ValueError(f"{name} is {value!r}: it must be a whole number, at least 0")
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(field.default, bool) and not isinstance(value, bool):
                raise ValueError(f"{field.name} is {value!r}: it must be True or False")
        if self.tile_limit == 0:
            raise ValueError("tile_limit is 0: a tile has at least one pixel")
        # Made once: every convolution asks for it.
        token = ";".join(f"{field.name}={getattr(self, field.name)}" for field in fields(self))
        object.__setattr__(self, "_token", token)

    @property
    def token(self) -> str:
        """The settings as text. It means the same in every process, so a traced and saved graph may hold it."""
        token: str = self.__dict__["_token"]
        return token

    @classmethod
    def from_token(cls, token: str) -> Settings:
        """Reads :attr:`token` back; a part that is unknown or unreadable is an error that names it."""
        values: dict[str, Any] = {}
        kinds = {field.name: field.default for field in fields(cls)}
        for part in filter(None, token.split(";")):
            name, _, text = part.partition("=")
            default = kinds.get(name)
            if default is None:
                raise ValueError(f"unknown setting {name!r} in token {token!r}")
            if isinstance(default, bool):
                values[name] = text == "True"
            else:
                values[name] = int(text) if isinstance(default, int) else text
        return cls(**values)

    def changed(self, **changes: Any) -> Settings:
        """A copy with some fields changed."""
        return replace(self, **changes)
