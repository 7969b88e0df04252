"""Distributed training with gloo in two processes under `unhang run`: `python3 ddp.py UNHANG FOLDER`.

Every process has its own emulated card. After two steps the parameters have to be those of one process on the CPU that saw both halves
of the batch.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

RANKS = 2


def model_and_data() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 3, stride=2), nn.Flatten(), nn.Linear(64, 5)
    )
    return model, torch.randn(2 * RANKS, 3, 9, 9), torch.randn(2 * RANKS, 5)


def train(model: nn.Module, images: torch.Tensor, wanted: torch.Tensor) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(2):
        optimizer.zero_grad()
        (model(images) - wanted).square().mean().backward()
        optimizer.step()


def rank(number: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=number, world_size=RANKS)
    model, images, wanted = model_and_data()
    mine = slice(2 * number, 2 * number + 2)
    wrapped = nn.parallel.DistributedDataParallel(model.cuda(), device_ids=[0])
    train(wrapped, images[mine].cuda(), wanted[mine].cuda())
    torch.save(model.cpu().state_dict(), f"{folder}/{number}.pt")
    dist.destroy_process_group()


def main() -> int:
    if sys.argv[1] == "--rank":
        rank(int(sys.argv[2]), sys.argv[3])
        return 0
    unhang, folder = sys.argv[1:]
    ranks = []
    for number in range(RANKS):
        command = [unhang, "run", "--", sys.executable, __file__, "--rank", str(number), folder]
        with Path(folder, f"{number}.txt").open("wb") as log:
            ranks.append(
                subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"})
            )
    codes = [process.wait(800) for process in ranks]
    for number in range(RANKS):
        print(Path(folder, f"{number}.txt").read_text(errors="replace"))
    if any(codes):
        print(f"wrong: the processes ended with {codes}")
        return 1
    model, images, wanted = model_and_data()
    train(model, images, wanted)
    worst = 0.0
    for number in range(RANKS):
        found = torch.load(f"{folder}/{number}.pt")
        worst = max(worst, *(float((found[name] - it).abs().max()) for name, it in model.state_dict().items()))
    print(
        f"{'right' if worst < 1e-5 else 'wrong'}: {RANKS} processes, parameters within {worst:.0e} of one process's on the CPU"
    )
    return 0 if worst < 1e-5 else 1


if __name__ == "__main__":
    sys.exit(main())
