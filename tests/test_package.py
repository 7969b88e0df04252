"""The package as users get it: imports, versions of Python, the wheel next to their own torch."""

from __future__ import annotations

import ast
import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import unhang
from conftest import subprocess_environment

ROOT = Path(__file__).parent.parent


def run(*command: object, timeout: float = 300, **options: object) -> str:
    words = [str(part) for part in command]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=timeout, **options)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_importing_unhang_does_not_import_torch() -> None:
    code = "import sys, unhang; print('torch' in sys.modules, 'numpy' in sys.modules); unhang.SafeConv2d; print('torch' in sys.modules)"
    assert run(sys.executable, "-c", code, env=subprocess_environment()).split() == ["False", "False", "True"]


def imported(module: Path) -> set[str]:
    """The modules of the package that a module imports while it is loaded."""
    found = set()
    for statement in ast.parse(module.read_text()).body:
        if isinstance(statement, ast.ImportFrom):
            whole = f"{'unhang.' * bool(statement.level)}{statement.module or ''}".strip(".")
            found |= {name.name for name in statement.names} if whole == "unhang" else {whole.removeprefix("unhang.")}
        elif isinstance(statement, ast.Import):
            found |= {name.name.removeprefix("unhang.") for name in statement.names}
    return found & {path.stem for path in module.parent.glob("*.py")}


def test_modules_import_each_other_in_no_circle_and_in_the_order_of_the_architecture() -> None:
    folder = ROOT / "python" / "unhang"
    needs = {path.stem: imported(path) for path in folder.glob("*.py")}
    assert "_engines" in needs["_convolve"], "imports are found"
    text = " ".join((ROOT / "ARCHITECTURE.md").read_text().split())
    order = re.findall(r"`(\w+)`", text.split("From the ground up:")[1].split("; the rest")[0])
    assert len(order) > 12
    for place, module in enumerate(order):
        above = needs[module] - set(order[:place])
        assert not above, f"{module} imports {sorted(above)}, which ARCHITECTURE.md does not list before it"
    rest = set(needs) - set(order)
    while rest:
        loaded = {module for module in rest if not needs[module] & rest}
        assert loaded, f"a circle among {sorted(rest)}"
        rest -= loaded


def test_without_torch_the_error_says_what_is_missing_and_where_to_get_it() -> None:
    package = str(Path(unhang.__file__).parent.parent)
    code = f"import sys; sys.path.insert(0, {package!r}); import unhang; unhang.enable()"
    ran = subprocess.run([sys.executable, "-S", "-I", "-c", code], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 1
    last = ran.stderr.strip().splitlines()[-1]
    assert "unhang.enable needs torch" in last, ran.stderr
    assert "unhang doctor" in last


def test_every_public_name_is_there_and_listed() -> None:
    for name in unhang.__all__:
        assert getattr(unhang, name) is not None
        assert name in dir(unhang)
    with pytest.raises(AttributeError, match="no attribute 'hang'"):
        unhang.hang  # noqa: B018


@pytest.mark.parametrize("version", ["3.9", "3.10", "3.11", "3.12", "3.13", "3.14"])
def test_the_extension_loads_in(version: str) -> None:
    """In every Python of the system and of pyenv; torch is not needed for it."""
    on_path = shutil.which(f"python{version}")
    found = [on_path] if on_path else []
    found += map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}"))
    working = [python for python in found if subprocess.run([python, "-c", ""], capture_output=True).returncode == 0]
    if not working:
        pytest.skip(f"Python {version} is not here")
    key = "forward:f32:nchw:1x1x1x1:1x1x1:s1x1:p0x0:d1x1:g1"
    code = f"import unhang; print(unhang.__version__, unhang._core.Problem.from_key({key!r}).key)"
    assert run(working[0], "-c", code, env=subprocess_environment()) == f"{unhang.__version__} {key}\n"


def test_a_free_threaded_python_is_refused() -> None:
    code = "import sys; sys.abiflags += 't'; import unhang"
    ended = subprocess.run([sys.executable, "-c", code], env=subprocess_environment(), capture_output=True, text=True)
    assert ended.returncode == 1
    assert "ImportError: unhang does not support free-threaded builds" in ended.stderr


@pytest.fixture(scope="session")
def wheel() -> Path:
    found = sorted((ROOT / "dist").glob("unhang-*.whl"))
    if not found:
        pytest.skip("no wheel in dist/: make wheel builds one, and make test does")
    return found[0]


def test_the_wheel_says_what_it_is(wheel: Path) -> None:
    assert "-cp39-abi3-manylinux_2_28_" in wheel.name
    with zipfile.ZipFile(wheel) as content:
        names = content.namelist()
        metadata = content.read(next(name for name in names if name.endswith("METADATA"))).decode()
    assert "unhang/_core.abi3.so" in names
    libraries = {f"unhang/libunhang_{name}.so" for name in ("shield", "card", "miopen", "miopen_audit")}
    assert libraries <= set(names)
    assert "unhang/py.typed" in names
    assert "conv2d_fallback/__init__.py" in names
    assert any(name.endswith("scripts/unhang") for name in names)
    assert not any(line.startswith("Requires-Dist") for line in metadata.splitlines()), (
        "a wheel that depends on torch may replace it"
    )


def contents(folder: Path) -> dict[str, str]:
    """A fingerprint of every file of torch that is not compiled Python; large ones by size and time."""
    result = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix != ".pyc":
            status = path.stat()
            small = status.st_size < 1 << 20
            result[str(path)] = (
                hashlib.sha256(path.read_bytes()).hexdigest() if small else f"{status.st_size} {status.st_mtime_ns}"
            )
    return result


def test_the_wheel_beside_this_torch(wheel: Path, tmp_path: Path) -> None:
    """Beside whichever torch runs these tests: the newest in .venv, and Debian's 1.13.1 in the second run."""
    import torch

    torch_folder = Path(torch.__file__).parent
    before = contents(torch_folder)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    # What a wheel's installer does: unpack, and lay the program where programs are.
    with zipfile.ZipFile(wheel) as content:
        content.extractall(site)
    (scripts,) = Path(site).glob("unhang-*.data/scripts")
    program = shutil.move(str(scripts / "unhang"), str(tmp_path / "venv" / "bin" / "unhang"))
    os.chmod(program, 0o755)
    Path(site, "torch-of-the-user.pth").write_text(str(torch_folder.parent) + "\n")
    code = """
import torch, unhang, torch.nn.functional as F
x, w = torch.randn(1, 3, 8, 8), torch.randn(4, 3, 3, 3)
with unhang.enabled("cpu_fallback", devices=("cpu",)):
    y = F.conv2d(x, w)
torch.testing.assert_close(y, F.conv2d(x, w))
print(unhang.__file__, torch.__version__)
"""
    where, version = run(python, "-c", code, env={**environment, "UNHANG_HOME": str(tmp_path / "home")}).split()
    assert where.startswith(site)
    assert version == torch.__version__
    assert run(program, "--version", env=environment) == f"unhang {unhang.__version__}\n"
    assert contents(torch_folder) == before, "torch is as it was"


def test_the_program_is_found_by_its_version() -> None:
    program = ROOT / ".venv" / "bin" / "unhang"
    if not program.exists():
        pytest.skip("the program was not built here")
    assert run(program, "--version") == f"unhang {unhang.__version__}\n"


def test_the_demo_runs_to_its_end(tmp_path: Path) -> None:
    program = ROOT / ".venv" / "bin" / "unhang"
    if not program.exists() or not hasattr(__import__("torch"), "compile"):
        pytest.skip("the program was not built here, or torch is old")
    environment = subprocess_environment(UNHANG_HOME=str(tmp_path), TMPDIR=str(tmp_path), OMP_NUM_THREADS="1")
    shown = run(program, "demo", "--python", sys.executable, env=environment, timeout=1500)
    for line in ("[measured]", "[rehearsed: a folder describes the machine]", "Verdict: affected",
                 "enable('cpu_fallback')", "canary of aten: hangs", "As a page: "):  # fmt: skip
        assert line in shown, shown
    plans = shown.partition("Which engine computes which layer here, and why")[2].partition("[rehearsed")[0]
    assert re.search(r"[a-z]:f32:.*\n +cpu, \d+ times: ", plans), plans
    page = Path(shown.rsplit("As a page: ", 1)[1].strip())
    assert page.read_text().startswith("<!doctype html>") or page.read_text().lower().startswith("<!doctype html>")


def test_what_may_write_a_release_fetches_no_tool() -> None:
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    jobs = re.split(r"^  (?=\w+:$)", text.partition("\njobs:\n")[2], flags=re.M)
    writers = [job for job in jobs if re.search(r"^ +\S+: write$", job, re.M)]
    assert [job.partition(":")[0] for job in writers] == ["publish"]
    for job in writers:
        assert not re.search(r"cargo |pip |npm |apt-get|curl|wget|make |tools/", job), job
    for line in re.findall(r"cargo install.*", text):
        assert re.search(r"--locked --version =\d", line), line
    for action in re.findall(r"uses: (\S+)", text):
        assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action), action


def test_whatever_is_fetched_from_an_index_has_a_hash() -> None:
    lines = (ROOT / "tools" / "setup").read_text().splitlines()
    fetching = [line for line in lines if re.search(r"-m pip (install|download) ", line)]
    assert len(fetching) >= 3
    for line in fetching:
        assert "--require-hashes" in line, line
