"""`unhang run`: an unmodified program with the environment, unhang in each Python it starts, and the watchdog.

Cards that hang are rehearsed: CPU tensors stand for those of the machine in the reports, and an engine that never
returns plays torch's kernels on it. Hangs on the device itself are in crates/unhang-watchdog/tests, on a played device.
"""

from __future__ import annotations

import functools
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from conftest import MACHINES, subprocess_environment

ROOT = Path(__file__).parent.parent
PROGRAM = ROOT / ".venv" / "bin" / "unhang"
CARD = MACHINES / "rx5600xt-rocm5.7"
# For waits that are meant to end: nothing depends on how long they take.
PATIENCE = 400

pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason="the program was not built here")
newest_torch = pytest.mark.skipif(
    not hasattr(torch, "compile"), reason="slow, and the same with every torch: run once, with the newest"
)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    for name in ("temporary", "runtime"):
        (tmp_path / name).mkdir()
    found = subprocess_environment(
        TMPDIR=str(tmp_path / "temporary"), XDG_RUNTIME_DIR=str(tmp_path / "runtime"), OMP_NUM_THREADS="1"
    )
    # As most people have it: Python keeps compiled copies beside what it imports.
    found.pop("PYTHONDONTWRITEBYTECODE", None)
    return found


def left_behind(environment: dict[str, str]) -> list[str]:
    left = [name for name in os.listdir(environment["TMPDIR"]) if name.startswith("unhang")]
    runs = Path(environment["XDG_RUNTIME_DIR"]) / "unhang"
    return left + (os.listdir(runs) if runs.is_dir() else [])


def run(environment: dict[str, str], *command: object, **options: object) -> subprocess.CompletedProcess:
    ended = subprocess.run(
        [str(PROGRAM), "run", *map(str, command)],
        env=environment, capture_output=True, text=True, timeout=PATIENCE, **options,
    )  # fmt: skip
    # Helpers of multiprocessing outlive the program by a moment, and the folder stays for them; the next run takes it away.
    until = time.monotonic() + PATIENCE
    while left_behind(environment) and time.monotonic() < until:
        subprocess.run([str(PROGRAM), "run", "--", "true"], env=environment, capture_output=True, timeout=PATIENCE)
    assert left_behind(environment) == [], "nothing is left behind"
    return ended


# ---- the command, whatever it is ----


@pytest.mark.parametrize(
    ("line", "code"),
    [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", -signal.SIGTERM), ("kill -KILL $$", -signal.SIGKILL)],
)
def test_it_ends_as_the_program_does(environment: dict[str, str], line: str, code: int) -> None:
    assert run(environment, "--", "sh", "-c", line).returncode == code


def test_a_program_that_cannot_be_run(environment: dict[str, str], tmp_path: Path) -> None:
    ended = run(environment, "--", "no-such-program-anywhere")
    assert ended.returncode == 127
    assert "unhang: cannot run no-such-program-anywhere" in ended.stderr
    (tmp_path / "data").write_text("not a program")
    assert run(environment, "--", tmp_path / "data").returncode == 126
    assert run(environment).returncode == 2


def test_standard_streams_are_the_programs_own(environment: dict[str, str]) -> None:
    ended = run(environment, "--", "sh", "-c", "cat; echo told >&2", input="said\n")
    assert (ended.stdout, ended.stderr) == ("said\n", "told\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGINT])
def test_signals_are_handed_on(environment: dict[str, str], number: int) -> None:
    code = f"trap 'exit 9' {int(number)}; echo ready; while :; do sleep 0.05; done"
    command = [PROGRAM, "run", "--", "sh", "-c", code]
    # Whoever started the tests may ignore it (`nohup`), and what is ignored stays ignored.
    heeded = functools.partial(signal.signal, number, signal.SIG_DFL)
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, preexec_fn=heeded) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            process.send_signal(number)
            assert process.wait(PATIENCE) == 9
        finally:
            process.kill()


def test_what_was_ignored_stays_ignored(environment: dict[str, str]) -> None:
    line = f"trap '' HUP; exec {PROGRAM} run -- sh -c 'kill -HUP $$; exit 4'"
    assert subprocess.run(["sh", "-c", line], env=environment, timeout=PATIENCE).returncode == 4


def test_it_stops_and_goes_on(environment: dict[str, str]) -> None:
    command = [PROGRAM, "run", "--", "sh", "-c", "echo ready; read line; exit 3"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGTSTP)
        until = time.monotonic() + PATIENCE
        while Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "T":
            assert time.monotonic() < until
            time.sleep(0.01)
        process.send_signal(signal.SIGCONT)
        process.stdin.write(b"\n")
        process.stdin.close()
        assert process.wait(PATIENCE) == 3


def test_on_a_terminal_an_interrupt_comes_once(environment: dict[str, str]) -> None:
    code = (
        "import signal, sys, time\n"
        "seen = []\n"
        "signal.signal(signal.SIGINT, lambda *_: seen.append(1))\n"
        "print('terminal', sys.stdin.isatty(), sys.stdout.isatty(), flush=True)\n"
        "while not seen: time.sleep(0.01)\n"
        "time.sleep(0.5)\n"
        "print('interrupts', len(seen), flush=True)\n"
    )
    child, terminal = pty.fork()
    if child == 0:
        os.execve(PROGRAM, [str(PROGRAM), "run", "--", sys.executable, "-c", code], environment)
    shown = b""
    until = time.monotonic() + PATIENCE
    while not re.search(rb"interrupts \d", shown) and time.monotonic() < until:
        try:
            shown += os.read(terminal, 1000)
        except OSError:
            break
        if b"terminal True True" in shown and b"^C" not in shown:
            os.write(terminal, b"\x03")
            shown += b"^C"
    assert os.waitpid(child, 0)[1] == 0
    os.close(terminal)
    assert b"terminal True True" in shown
    assert b"interrupts 1" in shown, shown


def test_a_terminal_that_goes_away_is_told_to_the_program(environment: dict[str, str], tmp_path: Path) -> None:
    # As the leader of its session (`ssh host unhang run ...`) `unhang run` alone hears of it. The program is in a group of
    # its own here, as after `set -m`, so that nobody else can tell it.
    told = tmp_path / "told"
    code = (
        "import os, signal, sys, time\n"
        "os.setpgid(0, 0)\n"
        f"signal.signal(signal.SIGHUP, lambda *_: (open({str(told)!r}, 'w').close(), os._exit(0)))\n"
        "os.write(1, b'ready')\n"
        "while True: time.sleep(0.02)\n"
    )
    child, terminal = pty.fork()
    if child == 0:
        # Under `nohup` it would be ignored all the way down.
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        os.execve(PROGRAM, [str(PROGRAM), "run", "--", sys.executable, "-c", code], environment)
    shown = b""
    until = time.monotonic() + PATIENCE
    while b"ready" not in shown and time.monotonic() < until:
        shown += os.read(terminal, 1000)
    os.close(terminal)
    while not told.exists() and time.monotonic() < until:
        time.sleep(0.02)
    assert told.exists()
    assert os.waitpid(child, 0)[1] == 0


WITHOUT_PIDFD = """
import ctypes, os, struct, sys
# The calls of Linux 5.3 and later answer as they did before there were any: ENOSYS. (x86-64: pidfd_open 434,
# pidfd_send_signal 424.)
load, equal, answer = 0x20, 0x15, 0x06
program = b"".join(struct.pack("HBBI", *one) for one in [
    (load, 0, 0, 0), (equal, 2, 0, 434), (equal, 1, 0, 424), (answer, 0, 0, 0x7FFF0000), (answer, 0, 0, 0x00050000 | 38),
])
buffer = ctypes.create_string_buffer(program)
filter = struct.pack("HxxxxxxP", 5, ctypes.addressof(buffer))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.c_char_p(filter), 0, 0) == 0, ctypes.get_errno()
try:
    os.pidfd_open(os.getpid())
    raise SystemExit("the filter does not act")
except OSError as error:
    assert error.errno == 38
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the numbers of system calls are those of x86-64")
def test_old_kernels_have_no_pidfd(environment: dict[str, str]) -> None:
    old = [sys.executable, "-c", WITHOUT_PIDFD, str(PROGRAM)]
    ended = subprocess.run([*old, "run", "--", "sh", "-c", "exit 7"], env=environment, timeout=PATIENCE)
    assert ended.returncode == 7
    code = "trap 'exit 9' TERM; echo ready; while :; do sleep 0.05; done"
    with subprocess.Popen([*old, "run", "--", "sh", "-c", code], env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 9
    # Supervised children too: this plays a card that hangs.
    probe = [*old, "probe", "--grid", "--rehearse", "rx5600xt-rocm5.7", "--json"]
    found = json.loads(subprocess.run(probe, env=environment, capture_output=True, timeout=PATIENCE).stdout)
    assert any(record["verdict"] == "hangs" for record in found["records"])


# ---- each Python that it starts ----


def test_a_program_without_torch_stays_without(environment: dict[str, str], tmp_path: Path) -> None:
    """And the user's own sitecustomize acts as it does without us."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("import sys; sys.users_own = 'acted'\n")
    environment["PYTHONPATH"] = f"{tmp_path / 'own'}{os.pathsep}{environment['PYTHONPATH']}"
    code = (
        "import os, sys, sitecustomize\n"
        "print('torch' in sys.modules, 'unhang' in sys.modules, sys.users_own, os.path.dirname(sitecustomize.__file__))\n"
        "print([entry for entry in sys.path if 'unhang-run' in entry])\n"
        "import importlib.util; importlib.util.find_spec('torch'); print('torch' in sys.modules)\n"
    )
    ended = run(environment, "--", sys.executable, "-c", code)
    assert ended.stdout.splitlines() == [f"False False acted {tmp_path / 'own'}", "[]", "False"]
    assert ended.stderr == ""


def test_an_error_in_the_users_own_is_reported_by_python(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import a_module_that_is_missing\n")
    environment["PYTHONPATH"] = f"{tmp_path}{os.pathsep}{environment['PYTHONPATH']}"
    plain = subprocess.run([sys.executable, "-c", "print(1)"], env=environment, capture_output=True, text=True)
    ended = run(environment, "--", sys.executable, "-c", "print(1)")
    assert (ended.stdout, ended.stderr) == ("1\n", plain.stderr)
    assert "a_module_that_is_missing" in plain.stderr


def test_a_python_without_unhang_is_left_alone_and_told_once(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "torch.py").write_text("__version__ = '2.2.2'\n")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    environment["PYTHONPATH"] = str(tmp_path / "packages")
    code = f"import torch, subprocess; print(torch.__version__, flush=True); subprocess.run([{str(python)!r}, '-c', 'import torch'])"
    ended = run(environment, "--", python, "-c", code)
    assert ended.stdout == "2.2.2\n"
    assert ended.stderr.count("unhang: warning: not used in") == 1, ended.stderr
    # From the program's own wheel: that of the checkout in which it was built.
    assert f"{python} -m pip install {ROOT}/dist/unhang-*.whl" in ended.stderr, ended.stderr


@pytest.mark.parametrize("version", ["2.7", "3.6", "3.8", "3.12", "3.13"])
def test_no_python_is_too_old_to_be_started(environment: dict[str, str], version: str) -> None:
    found = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    if not found:
        pytest.skip(f"Python {version} is not here")
    del environment["PYTHONPATH"]
    ended = run(environment, "--", found[0], "-c", "print('fine')")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "fine\n", "")


# ---- variables ----


def variables(environment: dict[str, str], *arguments: object) -> dict[str, dict]:
    ended = run(environment, "--dry-run", "--json", *arguments, "--", "python3", "train.py")
    assert ended.returncode == 0, ended.stderr
    return {variable["name"]: variable for variable in json.loads(ended.stdout)["variables"]}


def test_the_environment_is_the_machines_profile(environment: dict[str, str]) -> None:
    found = variables(environment, "--root", CARD)
    assert found["HSA_OVERRIDE_GFX_VERSION"]["value"] == "10.3.0"
    assert "Naive" in found["MIOPEN_DEBUG_FIND_ONLY_SOLVER"]["value"]
    environment["MIOPEN_FIND_MODE"] = "NORMAL"
    mode = variables(environment, "--root", CARD)["MIOPEN_FIND_MODE"]
    assert (mode["action"], mode["value"], mode["wanted"]) == ("kept", "NORMAL", "FAST")
    assert variables(environment, "--root", MACHINES / "nvidia") == {}, "a machine that is not affected is left alone"
    ended = run(
        environment,
        "--root",
        CARD,
        "--",
        "sh",
        "-c",
        "echo $HSA_OVERRIDE_GFX_VERSION $MIOPEN_FIND_MODE $UNHANG_RESTART",
    )
    assert ended.stdout == "10.3.0 NORMAL 0\n"
    assert "unhang: MIOPEN_FIND_MODE=NORMAL is yours and stays; unhang would set FAST" in ended.stderr


def test_the_shield_is_loaded_where_the_card_is_taken_for_another(environment: dict[str, str], tmp_path: Path) -> None:
    shield = tmp_path / "libunhang_shield.so"
    shield.write_bytes(b"\x7fELF\x02")
    environment.update(UNHANG_SHIELD=str(shield), HSA_TOOLS_LIB="mine.so")
    found = variables(environment, "--root", CARD)
    assert found["HSA_TOOLS_LIB"]["value"] == f"mine.so {shield}"
    assert found["HSA_TOOLS_ROCPROFILER_V1_TOOLS"]["value"] == "1"
    assert "HSA_TOOLS_LIB" not in variables({**environment, "UNHANG_SHIELD": "0"}, "--root", CARD)
    assert "HSA_TOOLS_LIB" not in variables(environment, "--root", MACHINES / "nvidia")


# ---- hangs, rehearsed ----


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One store for the rehearsals, so that the canary runs once; each uses another convolution."""
    return tmp_path_factory.mktemp("home")


HANGING = """
import ctypes, os, sys, torch, unhang
import torch.nn.functional as F
from unhang import _convolve, _engines

class Hanging(_engines.AtenEngine):
    # Plays torch's kernels on the card: never comes back, and holds the interpreter's lock while it does not.
    def forward(self, *arguments):
        ctypes.PyDLL(None).pause()

assert unhang.is_enabled(), "without a change to this program"
_convolve._ENGINES["aten"] = Hanging()
size = int(sys.argv[1])
print(" ".join(["attempt", os.environ["UNHANG_RESTART"], *sys.argv[2:]]), flush=True)
def compute():
    return F.conv2d(torch.ones(1, 4, size, size), torch.ones(8, 4, 3, 3))
print(f"sum {float(compute().sum())}", flush=True)
"""


def rehearse(environment: dict[str, str], home: Path, *arguments: object) -> subprocess.CompletedProcess:
    environment["UNHANG_HOME"] = str(home)
    return run(environment, "--rehearse", "--root", CARD, "--hang-deadline", "2.5", *arguments)


def test_a_convolution_that_hangs_is_named_and_not_tried_again(
    environment: dict[str, str], home: Path, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(HANGING)
    again = f"exec {sys.executable} {tmp_path / 'train.py'} 10 resumed"
    ended = rehearse(
        environment, home, "--restarts", 2, "--restart-cmd", again, "--", sys.executable, tmp_path / "train.py", 10
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == ["attempt 0", "attempt 1 resumed", f"sum {8 * 8 * 8 * 36.0}"]
    key = "forward:f32:nchw:1x4x10x10:8x3x3:s1x1:p0x0:d1x1:g1"
    assert f"unhang: rehearsal: HANG in a convolution: {key} on aten did not finish" in ended.stderr
    assert "in compute" in ended.stderr, "the Python stack"
    assert "train.py" in ended.stderr
    assert "starting it again (1 of 2)" in ended.stderr
    # It is evidence now, of the rehearsal: a new run knows, without being started again.
    ended = rehearse(environment, home, "--", sys.executable, tmp_path / "train.py", 10)
    assert ended.stdout.splitlines() == ["attempt 0", f"sum {8 * 8 * 8 * 36.0}"]


@newest_torch
def test_without_a_store_a_hang_is_known_within_the_run(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(HANGING)
    ended = rehearse(
        environment, Path("/proc/nowhere"), "--restarts", 1, "--", sys.executable, tmp_path / "train.py", 11
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == ["attempt 0", "attempt 1", f"sum {9 * 9 * 8 * 36.0}"]


@newest_torch
def test_restarts_come_to_an_end(environment: dict[str, str], home: Path, tmp_path: Path) -> None:
    # A new convolution each time: what is quarantined does not help.
    program = HANGING.replace("int(sys.argv[1])", "int(sys.argv[1]) + int(os.environ['UNHANG_RESTART'])")
    (tmp_path / "train.py").write_text(program)
    ended = rehearse(environment, home, "--restarts", 1, "--", sys.executable, tmp_path / "train.py", 20)
    assert ended.returncode == 86
    assert ended.stdout.splitlines() == ["attempt 0", "attempt 1"]
    assert ended.stderr.count("HANG in a convolution") == 2
    assert "giving up" in ended.stderr


def test_slow_programs_are_not_mistaken(environment: dict[str, str], home: Path, tmp_path: Path) -> None:
    """A loader that takes several deadlines, gradients, a forked and a spawned process; all of them are planned."""
    (tmp_path / "train.py").write_text("""
import multiprocessing, os, sys, time, torch, unhang
import torch.nn.functional as F

def work(name):
    w = torch.ones(8, 4, 3, 3, requires_grad=True)
    F.conv2d(torch.ones(1, 4, 9, 9, requires_grad=True), w).sum().backward()
    from unhang import _watchdog
    return name, unhang.is_enabled(), _watchdog.current() is not None, float(w.grad.sum())

if __name__ == "__main__":
    print(*work("main"))
    time.sleep(5)
    for method in ("spawn", "fork"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            print(*pool.apply(work, (method,)))
""")
    ended = rehearse(environment, home, "--", sys.executable, tmp_path / "train.py")
    assert ended.returncode == 0, ended.stderr
    total = 8 * 4 * 9 * 49.0
    lines = [f"main True True {total}", f"spawn True True {total}", f"fork True False {total}"]
    assert ended.stdout.splitlines() == lines
    assert "HANG in" not in ended.stderr
    assert "HANG outside" not in ended.stderr


def test_layers_of_a_model_that_is_gone_are_counted(environment: dict[str, str], home: Path, tmp_path: Path) -> None:
    """Most scripts train in a function: when they end, their model is collected already."""
    (tmp_path / "train.py").write_text("""
import torch
from torch import nn

def main():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.ConvTranspose2d(4, 2, 3), nn.Conv2d(2, 2, 1))
    model(torch.ones(1, 3, 8, 8)).sum().backward()

main()
""")
    ended = rehearse(environment, home, "--", sys.executable, tmp_path / "train.py")
    assert ended.returncode == 0, ended.stderr
    assert "unhang: 3 layers on " in ended.stderr, ended.stderr


def test_a_hang_outside_convolution_has_its_own_code(environment: dict[str, str]) -> None:
    """What a watchdog reports of it, played; that it is found is in crates/unhang-watchdog/tests."""
    report = '{"process": \'$$\', "problems": [], "engine": null}'
    line = f"echo '{report}' > $UNHANG_RUN_FOLDER/hang-$$.json; exit 1"
    assert run(environment, "--", "sh", "-c", line).returncode == 87
    # A program that dealt with it itself is believed.
    assert run(environment, "--", "sh", "-c", line.replace("exit 1", "exit 0")).returncode == 0


def test_a_fault_of_ours_does_not_break_the_program(environment: dict[str, str], tmp_path: Path) -> None:
    environment["UNHANG_REHEARSE"] = "1"  # and no machine to play
    ended = run(environment, "--", sys.executable, "-c", "import torch; print(torch.ones(2).sum().item())")
    assert (ended.returncode, ended.stdout) == (0, "2.0\n")
    assert "unhang: could not be switched on (ValueError: a rehearsal needs a machine to play" in ended.stderr


@newest_torch
def test_under_torchrun_one_hanging_rank_ends_all(environment: dict[str, str], home: Path, tmp_path: Path) -> None:
    program = HANGING.replace('_convolve._ENGINES["aten"] = Hanging()', """
import torch.distributed
torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
if rank == 1:
    _convolve._ENGINES["aten"] = Hanging()
""") + """
total = compute().sum()
torch.distributed.all_reduce(total)
print(f"total {float(total)}", flush=True)  # one write: ranks share the output
torch.distributed.destroy_process_group()
"""  # fmt: skip
    (tmp_path / "train.py").write_text(program)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    ended = rehearse(environment, home, "--restarts", 1, "--", *torchrun, tmp_path / "train.py", 30)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("attempt 0") == 2
    assert ended.stdout.count(f"total {2 * 28 * 28 * 8 * 36.0}") == 2, ended.stdout
    assert ended.stderr.count("HANG in a convolution") == 1


@pytest.mark.parametrize(
    ("ranks", "given", "deadlines"),
    [
        (None, {}, (60.0, 600.0, 3600.0)),
        ("1", {}, (60.0, 600.0, 3600.0)),
        ("many", {}, (60.0, 600.0, 3600.0)),
        ("2", {}, (1800.0, 1800.0, 3600.0)),
        (None, {"UNHANG_HANG_DEADLINE": "5"}, (5.0, 50.0, 3600.0)),
        ("2", {"UNHANG_HANG_DEADLINE": "5", "UNHANG_OUTSIDE_DEADLINE": "7"}, (5.0, 7.0, 3600.0)),
        (None, {"UNHANG_OUTSIDE_DEADLINE": "none", "UNHANG_HOST_DEADLINE": "9"}, (60.0, 600.0, 9.0)),
    ],
)
def test_deadlines(
    monkeypatch: pytest.MonkeyPatch, ranks: str | None, given: dict[str, str], deadlines: tuple[float, float, float]
) -> None:
    from unhang import _watchdog

    monkeypatch.delenv("WORLD_SIZE", raising=False)
    if ranks is not None:
        monkeypatch.setenv("WORLD_SIZE", ranks)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert _watchdog._deadlines() == deadlines


# ---- hangs on a real GPU ----

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is here")

ENDLESS = """
import os, sys, torch, unhang
import torch.nn.functional as F
from unhang import _convolve, _engines

class Endless(_engines.AtenEngine):
    # Torch's kernels with one before them that spins for hours.
    def forward(self, route, input, *rest):
        if input.shape[-1] == 33:
            torch.cuda._sleep(1 << 50)
        return super().forward(route, input, *rest)

_convolve._ENGINES["aten"] = Endless()
w = torch.ones(8, 4, 3, 3, device="cuda")
def compute(size):
    return F.conv2d(torch.ones(1, 4, size, size, device="cuda"), w)
for size in (10, 16, 33, 40) if sys.argv[1] == "inside" else (10, 16):
    y = compute(size)
if sys.argv[1] == "outside":
    torch.cuda._sleep(1 << 50)
print("queued", os.environ["UNHANG_RESTART"], flush=True)
torch.cuda.synchronize()
print("sum", float(y.sum()), {route.names[0] for route in _convolve.routes.values()}, flush=True)
"""


@on_gpu
@pytest.mark.parametrize("where", ["inside", "outside"])
def test_a_kernel_that_never_ends(environment: dict[str, str], tmp_path: Path, where: str) -> None:
    (tmp_path / "train.py").write_text(ENDLESS)
    options = ["--strategy", "aten", "--hang-deadline", "3", "--outside-deadline", "4", "--restarts", 1]
    ended = run(environment, *options, "--", sys.executable, tmp_path / "train.py", where)
    print(ended.stdout, ended.stderr)
    assert "synchronize" in ended.stderr, "the Python stack"
    if where == "inside":
        assert ended.returncode == 0
        assert "HANG in a convolution: forward:f32:nchw:1x4x33x33:8x3x3:s1x1:p0x0:d1x1:g1 on aten" in ended.stderr
        assert ended.stdout.splitlines()[:2] == ["queued 0", "queued 1"]
        assert f"sum {8 * 38 * 38 * 36.0}" in ended.stdout
    else:
        assert ended.returncode == 87
        assert ended.stderr.count("HANG outside convolution") == 2
        assert "in a convolution" not in ended.stderr


@on_gpu
def test_deep_queues_graphs_and_pauses_are_no_hangs(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("""
import time, torch, unhang
import torch.nn.functional as F
x, w = torch.randn(2, 8, 32, 32, device="cuda"), torch.randn(8, 8, 3, 3, device="cuda", requires_grad=True)
expected = F.conv2d(x, w, padding=1).detach().clone()
start = torch.cuda.Event(enable_timing=True); end = torch.cuda.Event(enable_timing=True)
start.record(); torch.cuda._sleep(10**8); end.record(); end.synchronize()
cycles = int(1e8 / start.elapsed_time(end) * 100)  # a tenth of a second
for _ in range(60):
    torch.cuda._sleep(cycles)
    F.conv2d(x, w, padding=1).sum().backward()
queued = time.monotonic(); torch.cuda.synchronize()
print("waited", time.monotonic() - queued > 3)
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    F.conv2d(x, w, padding=1)
torch.cuda.synchronize()
for mode in ("global", "thread_local", "relaxed"):
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph, capture_error_mode=mode):
        y = F.conv2d(x, w, padding=1)
        time.sleep(1)
    graph.replay(); torch.cuda.synchronize()
    print(mode, torch.allclose(y, expected, rtol=1e-3, atol=1e-3))
time.sleep(6)
print("done", unhang.is_enabled())
""")
    ended = run(environment, "--strategy", "aten", "--hang-deadline", "2", "--", sys.executable, tmp_path / "train.py")
    assert ended.returncode == 0, ended.stderr
    lines = ["waited True", "global True", "thread_local True", "relaxed True", "done True"]
    assert ended.stdout.splitlines() == lines, ended.stderr
