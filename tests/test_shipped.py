"""The kernels that come with the package: listed, intact, proven, and enough without any compiler."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import unhang
from conftest import MACHINES, subprocess_environment

ROOT = Path(__file__).parent.parent
KERNELS = Path(unhang.__file__).parent / "kernels"
PROGRAM = ROOT / ".venv" / "bin" / "unhang"

# A layer is trained on the emulated card of the reports, under its spoof; nothing may be compiled.
TRAINING = """
import sys, torch, torch.nn.functional as F, unhang
from unhang import _convolve, _core, _gpu, _state
_gpu._SHIPPED = sys.argv[1]
card = _gpu.gpu(_gpu.REHEARSED)
session = _state.state().session
for name in ["aten (rehearsed)", *(session.canary_name(_gpu.REHEARSED, family, card) for family in card.families)]:
    session.keep_canary(name, "works", "not asked for in this test", True)
torch.manual_seed(0)
x, w = torch.randn(2, 16, 9, 8, requires_grad=True), torch.randn(24, 16, 3, 3, requires_grad=True)
g = torch.randn(2, 24, 5, 4)
def step(x, w, g):
    y = F.conv2d(x, w, stride=2, padding=1)
    return [y, *torch.autograd.grad(y, [x, w], g)]
want = step(x.double(), w.double(), g.double())
with unhang.enabled(rehearse=True):
    for ours, exact in zip(step(x, w, g), want):
        error = float((ours.detach().double() - exact.detach()).norm() / exact.detach().norm())
        assert error < _core.engine_tolerance("f32")[0], error
places = [(route.names, route.tally.by_place) for route in _convolve.routes.values()]
computed = sorted({name for names, counts in places for name, count in zip(names, counts) if count})
print(card.architectures, card.compiled, computed, len(places))
"""


@pytest.fixture(scope="module")
def listed() -> dict:
    if not (KERNELS / "kernels.json").exists():
        pytest.skip("no kernels came with the package: it was built without clang 15")
    return json.loads((KERNELS / "kernels.json").read_text())


def test_every_object_is_listed_with_its_hash_and_was_right_on_the_emulated_chip(listed: dict) -> None:
    # `make test` makes the part in single and double precision, `make wheel` all of them.
    assert len(listed["objects"]) > 140
    for entry in listed["objects"]:
        assert len(entry["sha256"]) == 64
        assert entry["emulated"] > 0, entry
        assert entry["vgprs"] <= 128, entry
    names = [entry["name"] for entry in listed["objects"]]
    for name in ("normalization_apply.f32", "pooling_mean.f32", "pooling_mean.f64", "reduction_sum.f32"):
        assert name in names
    chips = {chip for entry in listed["objects"] for chip in entry["chips"]}
    assert {"gfx1010", "gfx1011", "gfx1012", "gfx1013"} <= chips
    for family in ("plain", "gemm", "direct", "weights", "depthwise", "depthwise_quads", "winograd", "fused", "pack"):
        assert any(entry["name"].startswith(family) for entry in listed["objects"]), family


def train(folder: Path, home: Path) -> subprocess.CompletedProcess[str]:
    environment = subprocess_environment(
        UNHANG_COMPILE="0",
        UNHANG_HOME=str(home),
        UNHANG_ROOT=str(MACHINES / "rx5600xt-rocm5.7"),
        UNHANG_REHEARSE_GPU="emulator",
        XDG_CACHE_HOME=str(home / "cache"),
    )
    command = [sys.executable, "-c", TRAINING, str(folder)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


def test_a_layer_is_trained_with_them_and_no_compiler_at_all(listed: dict, tmp_path: Path) -> None:
    done = train(KERNELS, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "('gfx1010', 'gfx1030') 0 ['jit'] 3\n"


def test_without_them_and_without_a_compiler_our_kernels_are_declined(tmp_path: Path) -> None:
    done = train(tmp_path / "nothing", tmp_path)
    assert done.returncode != 0
    assert "UNHANG_COMPILE=0 declines it" in done.stderr


def test_an_altered_byte_is_noticed_and_its_object_is_not_loaded(listed: dict, tmp_path: Path) -> None:
    copy = shutil.copytree(KERNELS, tmp_path / "kernels")
    objects = bytearray((copy / "kernels.bin").read_bytes())
    # One byte in the middle of every object: then none may run, not even the plain ones.
    for entry in listed["objects"]:
        objects[entry["offset"] + entry["packed_bytes"] // 2] ^= 0x20
    (copy / "kernels.bin").write_bytes(objects)
    done = train(copy, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "'jit'" not in done.stdout, "torch computes instead"
    if PROGRAM.exists():
        command = [str(PROGRAM), "kernels", "list", "--shipped", "--json", "--folder"]
        shown = subprocess.run([*command, str(copy)], capture_output=True, text=True, timeout=120)
        assert shown.returncode == 1
        assert not any(entry["intact"] for entry in json.loads(shown.stdout)["objects"])
        assert subprocess.run([*command, str(KERNELS)], capture_output=True, timeout=120).returncode == 0


def test_the_wheel_carries_them_and_is_under_25_megabytes(listed: dict) -> None:
    wheels = sorted((ROOT / "dist").glob("unhang-*.whl"))
    if not wheels:
        pytest.skip("no wheel in dist/: make wheel builds one, and make test does")
    assert wheels[0].stat().st_size < 25_000_000
    with zipfile.ZipFile(wheels[0]) as content:
        assert json.loads(content.read("unhang/kernels/kernels.json")) == listed
        assert content.read("unhang/kernels/kernels.bin") == (KERNELS / "kernels.bin").read_bytes()
