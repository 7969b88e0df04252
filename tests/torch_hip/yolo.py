"""Trains YOLOv8n with ultralytics as it is, on a few images made on the spot: `python3 yolo.py cuda|cpu|cpu-plain FILE`.

Saved are the losses and the model, as train.py saves them. `cpu-plain` is the CPU without oneDNN: the same sums in another order.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

#: What changes images at random. On the CPU ultralytics loads them without workers, and so with other random numbers.
AUGMENTATIONS = ("hsv_h", "hsv_s", "hsv_v", "translate", "scale", "fliplr", "erasing")


def data_set(folder: Path) -> Path:
    """Four images to train with, two to validate with, and a box in each."""
    for part, count in (("train", 4), ("val", 2)):
        for kind in ("images", "labels"):
            (folder / kind / part).mkdir(parents=True)
        for number in range(count):
            pixels = np.random.default_rng(number).integers(0, 255, (64, 64, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "images" / part / f"{number}.png")
            (folder / "labels" / part / f"{number}.txt").write_text("0 0.5 0.5 0.4 0.6\n")
    description = folder / "data.yaml"
    description.write_text(f"path: {folder}\ntrain: images/train\nval: images/val\nnames: [thing]\n")
    return description


def main() -> None:
    where, target = sys.argv[1:]
    folder = Path(tempfile.mkdtemp())
    os.environ.update(YOLO_CONFIG_DIR=str(folder), MPLCONFIGDIR=str(folder))
    from ultralytics import YOLO

    torch.backends.mkldnn.enabled = where != "cpu-plain"
    losses: list[float] = []

    def after_batch(trainer: Any) -> None:
        losses.append(float(trainer.loss))
        print(f"batch {len(losses)}: loss {losses[-1]:.5f}", flush=True)

    def after_epoch(trainer: Any) -> None:
        state = {name: tensor.detach().cpu().clone() for name, tensor in trainer.model.state_dict().items()}
        torch.save({"losses": losses, "model": state}, target)

    torch.manual_seed(0)
    model = YOLO("yolov8n.yaml")
    model.add_callback("on_train_batch_end", after_batch)
    model.add_callback("on_train_epoch_end", after_epoch)
    try:
        model.train(
            data=str(data_set(folder)), epochs=1, imgsz=64, batch=2, nbs=2, device="cpu" if where.startswith("cpu") else 0, workers=2,
            amp=False, optimizer="SGD", lr0=0.001, warmup_epochs=0, mosaic=0, plots=False, verbose=False, deterministic=False,
            project=str(folder), **dict.fromkeys(AUGMENTATIONS, 0.0),
        )  # fmt: skip
        print("trained and validated", flush=True)
    except NotImplementedError as error:
        if "torchvision::nms" not in str(error):
            raise
        print(
            "trained; to validate, torchvision's own kernels would be needed, which Debian builds for the CPU",
            flush=True,
        )


if __name__ == "__main__":
    main()
