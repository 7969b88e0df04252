"""Steps on the emulated card, inside a root of tools/rocm-root, each in several settings: for tools/test-rocm and
tools/test-frameworks.

Every step runs in a separate process tree with a deadline. If the card stops something, the step names it.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
SPOOF = {"HSA_OVERRIDE_GFX_VERSION": "10.3.0"}
#: How a step may end.
PASSED, STOPPED, REFUSED, FAILED, LATE, NOT_RUN = "passed", "stopped", "refused", "failed", "deadline", "not run"
#: The expectation if a setting changes nothing for a program: it is not run there.
NO_MIOPEN = "calls no MIOpen"

ALWAYS = {
    # The driver's own reference on the GPU is MIOpen again, so it would judge itself.
    "MIOPEN_DRIVER_USE_GPU_REFERENCE": "0",
    "MIOPEN_LOG_LEVEL": "3",
    # Debian's MIOpen lacks the sources of its Winograd kernels, and a search that meets one fails.
    "MIOPEN_DEBUG_CONV_WINOGRAD": "0",
    # It does not find its assembler by itself either.
    "MIOPEN_EXPERIMENTAL_GCN_ASM_PATH": "/usr/bin/clang-21",
    "LC_ALL": "C.UTF-8",
}


@dataclasses.dataclass(frozen=True)
class Setting:
    """How a program is started."""

    variables: dict[str, str] = dataclasses.field(default_factory=dict)
    #: Words before the step's command.
    before: str = ""


@dataclasses.dataclass(frozen=True)
class Step:
    """One program, and how it should end in each setting."""

    name: str
    command: str
    deadline: int = 300
    #: What a correct run prints, in addition to ending with 0: a regular expression.
    prints: str = ""
    expected: tuple[str, ...] = (PASSED, STOPPED, PASSED)
    #: What the card does at the first hazard. If it hangs, the program's output decides, because the hazard is
    #: intended.
    hazards: str = "fault"
    #: The output of a program that rejects this card: a regular expression.
    refuses: str = ""


@dataclasses.dataclass(frozen=True)
class Result:
    """How a step ended in one setting."""

    ended: str
    detail: str
    seconds: float


@dataclasses.dataclass(frozen=True)
class Stage:
    """Where steps run: a root, the folder with this repository's build, settings, and a name for logs and tables."""

    root: Path
    built: str
    settings: dict[str, Setting]
    name: str

    @property
    def logs(self) -> Path:
        return REPOSITORY / "build" / "test-logs" / self.name

    @property
    def home(self) -> str:
        """A step's home inside the root: MIOpen's kernels are compiled once per setting. Several runs may share a
        root."""
        return f"/tmp/test-{self.name}-{os.getpid()}"

    def enter(self, *words: str) -> list[str]:
        """A command inside the root."""
        return [str(REPOSITORY / "tools" / "rocm-root"), str(self.root), "--enter", *words]

    def missing(self) -> str:
        """What is missing, and what to do."""
        if not (self.root / ".unpacked").exists():
            return f"error: {self.root} is no ROCm root\nhint: tools/rocm-root {self.root}"
        names = (
            "unhang",
            "libunhang_shield.so",
            "libunhang_miopen.so",
            "libunhang_miopen_audit.so",
            "libunhang_card.so",
        )
        absent = [name for name in names if not (REPOSITORY / self.built / name).exists()]
        return f"error: {', '.join(absent)}: not in {self.built}\nhint: tools/setup build" if absent else ""

    def run(self, step: Step, setting: str) -> Result:
        """Runs a step, with everything that it started, to its end or its deadline."""
        chosen = self.settings[setting]
        journal = f"{self.home}/{setting}/card.json"
        unhang = f"/repository/{self.built}/unhang"
        card = [unhang, "card", "run", "--card", "rx5700xt", "--hazards", step.hazards, "--log", journal, "--"]
        variables = {"HOME": f"{self.home}/{setting}", **ALWAYS, **chosen.variables}
        words = [*(f"{name}={value}" for name, value in variables.items()), *card, "bash", "-c"]
        command = self.enter("env", *words, f"exec {chosen.before} {step.command}")
        log = self.logs / f"{re.sub('[^A-Za-z0-9]+', '-', step.name).strip('-')}.{setting}.txt"
        began = time.monotonic()
        with log.open("wb") as output:
            code = run_until(command, step.deadline, output.fileno())
        seconds = time.monotonic() - began
        text = log.read_text(errors="replace")
        # A prober does not print its children's messages; the card's journal says what stopped them.
        hazards = self.root.joinpath(journal[1:])
        if hazards.exists():
            text += "".join(line for line in hazards.open(errors="replace") if '"event":"hazard"' in line)
            hazards.unlink()
        return Result(*judge(step, code, text), seconds)

    def run_all(self, steps: list[Step], settings: list[str]) -> int:
        """Runs steps in settings, prints how each ended, and returns the exit code."""
        results: dict[tuple[str, str], Result] = {}
        counts = {"passed": 0, "failed": 0, "skipped": 0}
        total = len(steps) * len(settings)
        table = REPOSITORY / "build" / f"{self.name}.md"
        for step in steps:
            for setting in settings:
                expected = step.expected[list(self.settings).index(setting)]
                number = f"[{len(results) + 1}/{total}] {step.name}, {setting}"
                if expected == NO_MIOPEN:
                    results[step.name, setting] = Result(NO_MIOPEN, "", 0)
                    print(f"{number}: {NO_MIOPEN}", flush=True)
                    table.write_text(written(steps, results, settings))
                    continue
                print(f"{number} (at most {step.deadline} s)", flush=True)
                result = results[step.name, setting] = self.run(step, setting)
                as_expected = result.ended == expected
                if result.ended == NOT_RUN:
                    counts["skipped"] += 1
                else:
                    counts["passed" if as_expected else "failed"] += 1
                ending = "as it should be" if as_expected else f"EXPECTED {expected}"
                how = NOT_RUN if result.ended == NOT_RUN else f"{result.ended} in {result.seconds:.0f} s, {ending}"
                print(f"    {how}{': ' if result.detail else ''}{result.detail}", flush=True)
                table.write_text(written(steps, results, settings))
        print(f"\n{table.read_text()}\ntable in build/{self.name}.md, output in {self.logs.relative_to(REPOSITORY)}")
        print(", ".join(f"{count} {name}" for name, count in counts.items()))
        return 1 if counts["failed"] else 0

    def play(self, steps: list[Step], settings: list[str]) -> int:
        """Like [`run_all`], with folders that are created before and removed after it, however it ends."""
        self.logs.mkdir(parents=True, exist_ok=True)
        # Ending this by a signal must also end its steps, and leave nothing in the root.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        home = self.root.joinpath(self.home[1:])
        try:
            for setting in settings:
                home.joinpath(setting).mkdir(parents=True)
            return self.run_all(steps, settings)
        except KeyboardInterrupt:
            print("\ninterrupted")
            return 128 + signal.SIGINT
        finally:
            shutil.rmtree(home, ignore_errors=True)


def run_until(command: list[str], deadline: int, output: int) -> int | None:
    """Runs a command with everything that it started. Returns its exit code, or None if it was late."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True)
    try:
        return process.wait(deadline)
    except subprocess.TimeoutExpired:
        return None
    finally:
        # Late, or interrupted. The processes inside end with the first one of their namespace.
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(60)


def judge(step: Step, code: int | None, text: str) -> tuple[str, str]:
    """How a step ended, from its exit code and output."""
    rules = sorted(set(re.findall(r"hazard ([a-z0-9-]+) at", text)))
    if rules and step.hazards == "fault":
        where = re.search(r"kernel [^\n]*hazard [^`\n]*`[^`\n]*`", text)
        return STOPPED, ", ".join(rules) + (f" ({where[0][:200]})" if where else "")
    refused = step.refuses and re.search(step.refuses, text, re.MULTILINE)
    if refused:
        return REFUSED, refused[0].strip()[:200]
    if code is None:
        return LATE, f"no end within {step.deadline} s on the emulator, and no hazard until then"
    if code == 0 and re.search(step.prints, text, re.MULTILINE):
        return PASSED, ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    skipped = [line for line in lines if line.startswith("skipped: ")]
    if skipped:
        return NOT_RUN, skipped[-1].removeprefix("skipped: ")
    said = [line for line in lines if re.search("wrong|fail|error|cannot|abort", line, re.IGNORECASE)] or lines
    return FAILED, f"exit code {code}: {said[-1][:200] if said else 'nothing was printed'}"


def written(steps: list[Step], results: dict[tuple[str, str], Result], settings: list[str]) -> str:
    """The results for the documentation."""
    lines = [f"| step | {' | '.join(settings)} |", "|---" * (len(settings) + 1) + "|"]
    for step in steps:
        cells = []
        for setting in settings:
            result = results.get((step.name, setting))
            detail = f": {result.detail}" if result and result.detail else ""
            cells.append(f"{result.ended}{detail}".replace("|", "/") if result else "not run")
        if any((step.name, setting) in results for setting in settings):
            lines.append(f"| {step.name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
