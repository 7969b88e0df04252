"""Real models: forward and backward through unhang equal plain torch."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

import bypass_blocks
import unhang
from conftest import subprocess_environment
from unhang import _convolve


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "mobilenet_v2", "efficientnet_b0", "vgg16"])
def test_torchvision_models(name: str) -> None:
    models = pytest.importorskip("torchvision.models")
    torch.manual_seed(0)
    # In double precision the two must agree to many digits; in single, noise through 50 layers would hide mistakes.
    model = getattr(models, name)(num_classes=10).double().eval()
    x = torch.randn(1, 3, 64, 64, dtype=torch.float64, requires_grad=True)

    def compute():
        model.zero_grad()
        y = model(x)
        (gradient,) = torch.autograd.grad(y.square().sum(), [x], retain_graph=True)
        y.square().sum().backward()
        return y.detach(), gradient, [p.grad.clone() for p in model.parameters() if p.grad is not None]

    x.grad = None
    want = compute()
    with unhang.enabled("cpu_fallback", devices=("cpu",)):
        got = compute()
    torch.testing.assert_close(got[0], want[0], rtol=1e-9, atol=1e-10)
    for ours, plain in zip((got[1], *got[2]), (want[1], *want[2])):
        scale = plain.abs().max().clamp(min=1e-12)
        assert ((ours - plain).abs().max() / scale).item() < 1e-7
    assert {route.names[0] for route in _convolve.routes.values()} == {"cpu"}
    convolutions = sum(isinstance(m, torch.nn.Conv2d) for m in model.modules())
    assert unhang.get_bypass_stats(model)["total_forwards"] == convolutions


YOLO = """
import os
os.environ["YOLO_OFFLINE"] = "true"
import torch
from pathlib import Path
import numpy as np
from PIL import Image

torch.set_num_threads(2)
# Weights made from the model's own description, saved and loaded again; a data set made on the spot.
from ultralytics import YOLO
YOLO("yolov8n.yaml").save("yolov8n.pt")
for part, count in (("train", 8), ("val", 2)):
    for kind in ("images", "labels"):
        Path(kind, part).mkdir(parents=True)
    for i in range(count):
        Image.fromarray(np.random.default_rng(i).integers(0, 255, (640, 640, 3), dtype=np.uint8)).save(f"images/{part}/{i}.jpg")
        Path(f"labels/{part}/{i}.txt").write_text("0 0.5 0.5 0.3 0.3\\n")
Path("ltdv2.yaml").write_text(f"path: {os.getcwd()}\\ntrain: images/train\\nval: images/val\\nnames: [thing]\\n")
"""

COUNTS = """
import unhang
stats = unhang.get_bypass_stats()
print("forwards", stats["total_forwards"], stats["engines"])
report = unhang.report().data
backward = sum(sum(p["counts"]) for p in report["problems"] if p["problem"].startswith("backward-weights"))
print("weight gradients", backward)
assert stats["total_forwards"] >= 2 * 57 and backward >= 2 * 57, "two steps at least went through unhang"
assert not report["failures"], report["failures"]
print("trained")
"""


@pytest.mark.parametrize("strategy", ["AUTO", "CPU_FALLBACK"])
def test_yolo_trains_unmodified(tmp_path: Path, own_home: Path, strategy: str) -> None:
    """The document's training script at its own sizes, with its data set, epochs and device set aside."""
    pytest.importorskip("ultralytics")
    script = bypass_blocks.TRAINING.replace("epochs=50", "epochs=1, workers=2, plots=False, val=False, verbose=False")
    script = script.replace("device=0", "device='cpu'").replace("FallbackStrategy.AUTO", f"FallbackStrategy.{strategy}")
    assert script != bypass_blocks.TRAINING
    (tmp_path / "train.py").write_text(textwrap.dedent(YOLO) + script + COUNTS)
    ended = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=900,
        env=subprocess_environment(UNHANG_HOME=str(own_home), YOLO_CONFIG_DIR=str(tmp_path), MPLCONFIGDIR=str(tmp_path)),
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    assert ended.stdout.endswith("trained\n")
