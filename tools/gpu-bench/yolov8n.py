"""YOLOv8n's layers in plain torch, for machines without ultralytics: the same convolutions, in the same order.

`python3 tools/gpu-bench/yolov8n.py` compares the convolutions and the parameters with ultralytics' own, if installed.
"""

from __future__ import annotations

import torch
from torch import nn


class Conv(nn.Module):
    """Convolution, batch norm, SiLU."""

    def __init__(self, channels: int, filters: int, kernel: int = 1, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, filters, kernel, stride, kernel // 2, bias=False)
        self.norm = nn.BatchNorm2d(filters, eps=0.001, momentum=0.03)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.silu(self.norm(self.conv(x)), inplace=True)


class Bottleneck(nn.Module):
    """Two convolutions, with or without the shortcut around them."""

    def __init__(self, channels: int, shortcut: bool) -> None:
        super().__init__()
        self.first, self.second, self.shortcut = Conv(channels, channels, 3), Conv(channels, channels, 3), shortcut

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.second(self.first(x))
        return x + y if self.shortcut else y


class C2f(nn.Module):
    """Half of the channels through bottlenecks, all stages kept."""

    def __init__(self, channels: int, filters: int, count: int, shortcut: bool) -> None:
        super().__init__()
        half = filters // 2
        self.first, self.last = Conv(channels, filters), Conv((2 + count) * half, filters)
        self.stages = nn.ModuleList(Bottleneck(half, shortcut) for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = list(self.first(x).chunk(2, 1))
        for stage in self.stages:
            parts.append(stage(parts[-1]))
        return self.last(torch.cat(parts, 1))


class Pooled(nn.Module):
    """Pooling over 5, 9 and 13 pixels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.last = Conv(channels, channels // 2), Conv(channels * 2, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = [self.first(x)]
        for _ in range(3):
            parts.append(nn.functional.max_pool2d(parts[-1], 5, 1, 2))
        return self.last(torch.cat(parts, 1))


class YoloV8n(nn.Module):
    """The backbone, the neck, and the heads of three scales, without decoding."""

    def __init__(self, classes: int = 80) -> None:
        super().__init__()
        self.backbone = nn.ModuleList([
            Conv(3, 16, 3, 2), Conv(16, 32, 3, 2), C2f(32, 32, 1, True), Conv(32, 64, 3, 2), C2f(64, 64, 2, True),
            Conv(64, 128, 3, 2), C2f(128, 128, 2, True), Conv(128, 256, 3, 2), C2f(256, 256, 1, True), Pooled(256),
        ])  # fmt: skip
        self.up = nn.ModuleList([C2f(384, 128, 1, False), C2f(192, 64, 1, False)])
        self.down = nn.ModuleList([Conv(64, 64, 3, 2), C2f(192, 128, 1, False)])
        self.further = nn.ModuleList([Conv(128, 128, 3, 2), C2f(384, 256, 1, False)])
        wide = max(64, min(classes, 100))
        self.boxes = nn.ModuleList(
            nn.Sequential(Conv(c, 64, 3), Conv(64, 64, 3), nn.Conv2d(64, 64, 1)) for c in (64, 128, 256)
        )
        self.classes = nn.ModuleList(
            nn.Sequential(Conv(c, wide, 3), Conv(wide, wide, 3), nn.Conv2d(wide, classes, 1)) for c in (64, 128, 256)
        )

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        kept = []
        for layer in self.backbone:
            x = layer(x)
            kept.append(x)
        enlarge = nn.functional.interpolate
        fourth, sixth, last = kept[4], kept[6], kept[9]
        middle = self.up[0](torch.cat([enlarge(last, scale_factor=2), sixth], 1))
        small = self.up[1](torch.cat([enlarge(middle, scale_factor=2), fourth], 1))
        medium = self.down[1](torch.cat([self.down[0](small), middle], 1))
        large = self.further[1](torch.cat([self.further[0](medium), last], 1))
        scales = (small, medium, large)
        return [torch.cat([box(y), kind(y)], 1) for box, kind, y in zip(self.boxes, self.classes, scales)]


def convolutions(model: nn.Module, size: int) -> list[tuple[object, ...]]:
    """What each convolution of a forward computes, sorted."""
    seen: list[tuple[object, ...]] = []

    def note(module: nn.Conv2d, inputs: tuple[torch.Tensor, ...]) -> None:
        seen.append((tuple(inputs[0].shape), tuple(module.weight.shape), module.stride, module.padding, module.groups))

    hooks = [m.register_forward_pre_hook(note) for m in model.modules() if isinstance(m, nn.Conv2d)]
    with torch.no_grad():
        model(torch.zeros(1, 3, size, size))
    for hook in hooks:
        hook.remove()
    return sorted(seen, key=str)


def main() -> int:
    try:
        from ultralytics import YOLO
    except ImportError:
        print("ultralytics is not here: nothing to compare with")
        return 1
    theirs, ours = YOLO("yolov8n.yaml").model.train(), YoloV8n().train()
    # Theirs has one more parameter, the fixed weights that decode boxes; it computes nothing in training.
    counts = [sum(p.numel() for p in model.parameters() if p.requires_grad) for model in (theirs, ours)]
    same = convolutions(theirs, 128) == convolutions(ours, 128)
    print(f"{len(convolutions(ours, 128))} convolutions, {'the same' if same else 'NOT THE SAME'}; parameters {counts}")
    return 0 if same and counts[0] == counts[1] else 1


if __name__ == "__main__":
    raise SystemExit(main())
