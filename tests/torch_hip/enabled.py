"""unhang.enable() in a script: canaries, three directions, a transposed convolution, batch normalisation, and where it all ran."""

from __future__ import annotations

import sys

import torch
import torch.nn.functional as F
from torch import nn

import unhang


def main() -> int:
    unhang.enable()
    torch.manual_seed(0)
    worst = 0.0
    models = []
    for transposed in (False, True):
        kind = nn.ConvTranspose2d if transposed else nn.Conv2d
        layer = nn.Sequential(kind(8, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        models.append(layer)
        x = torch.randn(2, 8, 12, 12)
        results = []
        for device in ("cpu", "cuda"):
            model = layer.to(device)
            model.zero_grad()
            input = x.clone().to(device).detach().requires_grad_()
            output = model(input)
            output.square().sum().backward()
            results.append(
                [output.detach().cpu(), input.grad.cpu(), *(p.grad.cpu().clone() for p in model.parameters())]
            )
        worst = max(worst, *(float((a - b).abs().max() / a.abs().max().clamp(min=1)) for a, b in zip(*results)))
    with torch.autocast("cuda", dtype=torch.float16):
        half = F.conv2d(torch.ones(1, 4, 6, 6).cuda(), torch.ones(4, 4, 3, 3).cuda())
    assert half.dtype == torch.float16
    assert float(half.float().max().cpu()) == 36.0
    statistics = unhang.get_bypass_stats()
    print(unhang.report())
    engines = {name.partition("(")[0] for name in statistics["engines"]}
    if worst > 1e-4 or not engines <= {"jit", "cpu"} or statistics["total_forwards"] < 2:
        print(f"wrong: error {worst}, {statistics}")
        return 1
    print(f"right: error {worst:.0e}, forwards by engine {statistics['engines']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
