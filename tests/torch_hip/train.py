"""An ordinary training script, which knows nothing of unhang: `python3 train.py MODEL --device cuda --save FILE`.

Two steps on a few small images that are the same everywhere. What has to be compared is saved: losses and the model.
"""

from __future__ import annotations

import argparse
import time

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Residual(nn.Module):
    """A block of a diffusion model: two convolutions, and the time between them."""

    def __init__(self, inputs: int, outputs: int, times: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.GroupNorm(4, inputs), nn.SiLU(), nn.Conv2d(inputs, outputs, 3, padding=1))
        self.time = nn.Linear(times, outputs)
        self.second = nn.Sequential(nn.GroupNorm(4, outputs), nn.SiLU(), nn.Conv2d(outputs, outputs, 3, padding=1))
        self.skip = nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        hidden = self.first(x) + self.time(F.silu(time))[:, :, None, None]
        return self.second(hidden) + self.skip(x)


class Attention(nn.Module):
    """Every pixel looks at every other."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(4, channels)
        self.into, self.out = nn.Conv2d(channels, 3 * channels, 1), nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.into(self.norm(x)).flatten(2).transpose(1, 2).chunk(3, -1)
        weights = torch.softmax(query @ key.transpose(1, 2) / query.shape[-1] ** 0.5, -1)
        return x + self.out((weights @ value).transpose(1, 2).reshape(x.shape))


class UNet(nn.Module):
    """A small model of noise, as diffusion trains it."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Conv2d(3, 16, 3, padding=1)
        self.down, self.smaller = Residual(16, 32, 32), nn.Conv2d(32, 32, 3, stride=2, padding=1)
        self.middle, self.attention = Residual(32, 32, 32), Attention(32)
        self.larger, self.refine = nn.ConvTranspose2d(32, 32, 4, stride=2, padding=1), nn.Conv2d(32, 32, 3, padding=1)
        self.up, self.leave = Residual(64, 16, 32), nn.Conv2d(16, 3, 3, padding=1)

    def forward(self, x: Tensor, steps: Tensor) -> Tensor:
        rates = torch.exp(torch.arange(16, device=x.device) * -0.5)
        angles = steps[:, None] * rates
        time = torch.cat([angles.sin(), angles.cos()], 1)
        high = self.down(self.enter(x), time)
        low = self.attention(self.middle(self.smaller(high), time))
        wide = self.refine(F.interpolate(low, scale_factor=2, mode="nearest")) + self.larger(low)
        return self.leave(self.up(torch.cat([wide, high], 1), time))


def model_of(name: str) -> nn.Module:
    """Without random numbers in the forward pass, which are other ones on another device."""
    if name == "unet":
        return UNet()
    from torchvision import models

    if name == "vgg11_bn":
        full = models.vgg11_bn(num_classes=10)
        return nn.Sequential(full.features, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))
    options = {"mobilenet_v2": {"dropout": 0.0}, "efficientnet_b0": {"dropout": 0.0, "stochastic_depth_prob": 0.0}}
    model: nn.Module = getattr(models, name)(num_classes=10, **options.get(name, {}))
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--save", required=True)
    parser.add_argument("--double", action="store_true", help="in double precision")
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--steps", type=int, default=2)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    model = model_of(arguments.model)
    images = torch.randn(arguments.batch, 3, arguments.size, arguments.size)
    classes = torch.arange(arguments.batch) % 10
    noise, steps = torch.randn_like(images), torch.arange(arguments.batch) * 10.0
    device = torch.device(arguments.device)
    if arguments.double:
        model, images, noise, steps = model.double(), images.double(), noise.double(), steps.double()
    model = model.to(device)
    diffusion = arguments.model == "unet"
    optimizer: torch.optim.Optimizer
    if diffusion:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9, weight_decay=1e-4)
    losses = []
    for step in range(arguments.steps):
        began = time.monotonic()
        optimizer.zero_grad()
        if diffusion:
            loss = F.mse_loss(model(images.to(device) + noise.to(device), steps.to(device)), noise.to(device))
        else:
            loss = F.cross_entropy(model(images.to(device)), classes.to(device))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        print(f"step {step}: loss {losses[-1]:.6f}, {time.monotonic() - began:.1f} s", flush=True)
    torch.save({"losses": losses, "model": model.cpu().state_dict()}, arguments.save)


if __name__ == "__main__":
    main()
