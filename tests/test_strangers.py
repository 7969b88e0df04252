"""A neighbour on the same machine puts Python files into a folder that many may write, and a user works there.

Each command that starts a Python of ours is run in such a folder. Every file of the neighbour's leaves a mark when it is
imported, whatever it is named like.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from conftest import MACHINES, subprocess_environment
from unhang import _core, _gpu

PROGRAM = Path(__file__).parent.parent / ".venv" / "bin" / "unhang"
PATIENCE = 400
newest_torch = pytest.mark.skipif(
    not hasattr(torch, "compile"), reason="slow, and the same with every torch: run once, with the newest"
)
# What a child of ours imports early, what it imports late, and what belongs to us.
NAMES = ("runpy", "os", "json", "importlib", "typing", "argparse", "torch", "unhang", "numpy", "threading")


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """The folder. What is marked is in `marks`, next to it."""
    folder = tmp_path / "shared"
    folder.mkdir()
    mark = f"open({str(tmp_path / 'marks')!r}, 'a').write(__name__ + '\\n')\n"
    answer = 'print(\'unhang-canary {"verdict": "works", "detail": "theirs"}\')\n'
    for name in NAMES:
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(mark)
    for name in ("_trials", "_commands"):
        (folder / "unhang" / f"{name}.py").write_text(mark + answer)
    (folder / "sitecustomize.py").write_text(mark)
    return folder


def marks(shared: Path) -> str:
    left = shared.parent / "marks"
    return left.read_text() if left.exists() else ""


def test_the_canary_of_enable_imports_nothing_from_the_working_folder(shared: Path, tmp_path: Path) -> None:
    program = tmp_path / "own" / "program.py"
    program.parent.mkdir()
    program.write_text(
        "from unhang import _gpu\n_gpu.canary_deadline = 300.0\nprint(*_gpu.ensure_canary('aten', -1), sep='|')\n"
    )
    environment = subprocess_environment(UNHANG_ROOT=str(MACHINES / "rx5600xt-rocm5.7"))
    ran = subprocess.run(
        [sys.executable, str(program)], cwd=shared, env=environment, capture_output=True, text=True, timeout=PATIENCE
    )
    assert marks(shared) == ""
    assert ran.stdout.startswith("works|rehearsed on the CPU: "), ran.stdout + ran.stderr


@pytest.mark.skipif(not PROGRAM.exists(), reason="the program was not built here")
@pytest.mark.parametrize(
    "command",
    [
        ["doctor", "--self-test"],
        ["probe", "--layers", "layers.tsv", "--engines", "aten"],
        ["kernels", "warm", "--seen"],
        pytest.param(["demo", "--part", "torch"], marks=newest_torch),
    ],
    ids=["doctor", "probe", "kernels", "demo"],
)
def test_no_command_imports_from_the_working_folder(shared: Path, command: list[str]) -> None:
    (shared / "layers.tsv").write_text("small 1 8 6 6 8 3 3 1 1 1 1 1 1 1\n")
    # As `PYTHONPATH=$PYTHONPATH:/opt/mine` leaves it where it was not set: the empty entry is the working folder.
    environment = subprocess_environment()
    environment["PYTHONPATH"] += os.pathsep
    ran = subprocess.run(
        [str(PROGRAM), *command, "--python", sys.executable],
        cwd=shared, env=environment, capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert marks(shared) == "", ran.stdout + ran.stderr
    assert "theirs" not in ran.stdout
    assert "has no torch" not in ran.stdout + ran.stderr, "torch and unhang are found all the same"


@pytest.mark.skipif(not PROGRAM.exists(), reason="the program was not built here")
def test_a_model_of_the_user_is_found_where_they_stand(shared: Path) -> None:
    (shared / "mymodel.py").write_text("import torch\ndef make():\n    return torch.nn.Conv2d(3, 4, 3)\n")
    command = [str(PROGRAM), "probe", "--model", "mymodel:make", "--input", "1x3x8x8", "--engines", "cpu", "--json"]
    ran = subprocess.run(
        [*command, "--python", sys.executable],
        cwd=shared, env=subprocess_environment(), capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert marks(shared) == "", ran.stderr
    assert json.loads(ran.stdout)["records"], ran.stderr


def told(tmp_path: Path, *, path: list[str] | None = None) -> dict[str, object]:
    """What a child says that is started as ours are, by a program that added folders to its path when it ran."""
    module = tmp_path / "added" / "saying.py"
    module.parent.mkdir(exist_ok=True)
    module.write_text("import json, sys, unhang\nprint(json.dumps([sys.path, sys.argv, __name__, unhang.__file__]))\n")
    program = tmp_path / "program.py"
    program.write_text(
        "import subprocess, sys\n"
        f"sys.path[:0] = {path if path is not None else [str(module.parent)]!r}\n"
        "from unhang import _gpu\n"
        "import os\n"
        "command, changes = _gpu.start_python('saying', ['a b', '--c'])\n"
        "sys.exit(subprocess.run(command, env=_gpu.changed_variables(dict(os.environ), changes)).returncode)\n"
    )
    working = tmp_path / "working"
    working.mkdir(exist_ok=True)
    ran = subprocess.run(
        [sys.executable, str(program)],
        cwd=working, env=subprocess_environment(), capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    path_, arguments, name, unhang = json.loads(ran.stdout)
    return {"path": path_, "arguments": arguments[1:], "name": name, "unhang": unhang}


def test_a_child_finds_what_its_parent_finds(tmp_path: Path) -> None:
    import unhang

    child = told(tmp_path)
    assert child["arguments"] == ["a b", "--c"]
    assert child["name"] == "__main__"
    assert child["unhang"] == unhang.__file__
    path = child["path"]
    assert isinstance(path, list)
    assert path[0] == str(tmp_path / "added"), "first in the parent, first in the child"
    assert all(os.path.isabs(entry) for entry in path), path
    assert str(tmp_path / "working") not in path


def test_the_working_folder_is_handed_on_only_where_the_user_named_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", ".", "below", str(tmp_path), "/opt/elsewhere"])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["", "below"]))
    package = str(Path(_gpu.__file__).parent.parent)
    assert _gpu._folders() == ["/opt/elsewhere", package]
    assert dict(_gpu.start_python("x", [])[1])["PYTHONPATH"] is None
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["", str(tmp_path), "below"]))
    assert _gpu._folders() == [str(tmp_path), "/opt/elsewhere", package]
    assert dict(_gpu.start_python("x", [])[1])["PYTHONPATH"] == str(tmp_path)


def test_only_our_own_child_has_a_verdict() -> None:
    line = _core.canary_answer("works", "fine")
    forged = _core.supervise(["echo", line], 10.0)
    assert forged.canary()[0] == "crashes", forged.output
    ours = _core.supervise(["sh", "-c", f"echo \"$UNHANG_CHILD_NONCE\" '{line}'"], 10.0)
    assert ours.canary() == ("works", "fine")
