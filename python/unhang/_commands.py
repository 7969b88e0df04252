"""The parts of two commands of the program that need a Python with torch: ``unhang demo`` and ``unhang kernels warm
--seen``. The program starts them as ``python -m unhang._commands demo|warm``, after it has found torch there."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import nn

import unhang
from unhang import _core, _gpu, _talk
from unhang._state import state

# ---- unhang kernels warm --seen ----

# The program's exit codes: something could not be compiled; it could not tell.
_FAILED, _CANNOT_TELL = 2, 3


def warm(arguments: list[str]) -> int:
    """Compiles in advance what earlier runs on this machine asked for, prints how much, and returns the exit code.

    Torch has its own compiler, and its output is filed under that compiler's version. The GPU is asked what it is, but
    nothing runs on it.
    """
    gpu = _gpu.found(torch.cuda.current_device()) if torch.cuda.is_available() else "torch sees no accelerator"
    if isinstance(gpu, str):
        _talk.say(f"our GPU kernels cannot be compiled for this machine's GPU: {gpu}")
        return _CANNOT_TELL
    current = state()
    keys = [key for key, _ in current.store.seen(current.machine.fingerprint)]
    failures: list[str] = []
    progress = _talk.Progress(f"compiling for {gpu.name}:", len(keys))

    def compile_one(key: str) -> None:
        try:
            gpu.warm(_core.Problem.from_key(key))
        except (_core.GpuFailure, _core.GpuDeclined, ValueError) as error:
            failures.append(f"{key}: {error}")
        progress.one_more()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(compile_one, keys))
    progress.end()
    for failure in failures:
        _talk.say(failure)
    if "--json" in arguments:
        done = {"compiler": gpu.compiler, "problems": len(keys), "kernels": gpu.compiled, "failed": failures}
        print(json.dumps({"schema": 1, **done}))
    else:
        print(f"{len(keys)} convolutions seen on this machine, {gpu.compiled} kernels compiled now ({gpu.compiler})")
    return _FAILED if failures else 0


# ---- unhang demo: its sections go on where the program's end ----

STEPS = 20
# Seconds that the rehearsed training may take.
_LONGEST_REHEARSAL = 900
# This many plans are enough; the rest would repeat them.
SHOWN = 3


def heading(number: int, title: str, ground: str) -> None:
    """A section's head: its number, title, and evidence."""
    bold = ("\x1b[1m", "\x1b[0m") if sys.stdout.isatty() and not os.environ.get("NO_COLOR") else ("", "")
    print(f"\n{bold[0]}{number}. {title}{bold[1]}\n   [{ground}]\n", flush=True)


class SmallNetwork(nn.Module):
    """Enough kinds of convolutions to have something to plan."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.depthwise = nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.wide = nn.Conv2d(16, 32, 3, padding=1)
        self.pointwise = nn.Conv2d(32, 32, 1)
        self.head = nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Which of four quarters of the image contains the bright spot."""
        for layer in (self.stem, self.depthwise, self.wide, self.pointwise):
            x = layer(x).relu()
        logits: torch.Tensor = self.head(x.amax((2, 3)))
        return logits


def images(count: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Noise with one striped patch; the stripes' direction and spacing are the class."""
    x, y = 0.3 * torch.randn(count, 3, 96, 96), torch.randint(0, 4, (count,))
    rows, columns = torch.meshgrid(torch.arange(24), torch.arange(24), indexing="ij")
    for i, kind in enumerate(y.tolist()):
        stripes = (rows if kind % 2 else columns) // (1 if kind < 2 else 3) % 2
        top, left = torch.randint(0, 72, (2,)).tolist()
        x[i, :, top : top + 24, left : left + 24] += 2.0 * stripes
    return x.to(device), y.to(device)


def train(device: str) -> tuple[list[float], float, SmallNetwork]:
    """A few steps from the same start: the losses, and the seconds of the median step."""
    torch.manual_seed(0)
    model = unhang.track(SmallNetwork().to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    x, y = images(16, device)
    losses, seconds = [], []
    for _ in range(STEPS):
        started = time.perf_counter()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - started)
    return losses, sorted(seconds)[STEPS // 2], model


def show_training(number: int, device: str) -> None:
    """Trains the same network with and without unhang."""
    from unhang import _convolve

    heading(number, "A network trained through unhang, forward and backward", "measured")
    print(f"{STEPS} steps from the same start on {device}, torch {torch.__version__}:\n")
    print(f"  {'':24}{'first loss':>11}{'last loss':>11}{'ms a step':>11}   computed by")
    plain, seconds, _ = train(device)
    print(f"  {'plain torch':24}{plain[0]:11.5f}{plain[-1]:11.5f}{1e3 * seconds:11.2f}   torch itself")
    ours = ("jit",) if device == "cuda" else ()
    furthest = 0.0
    for strategy in ("auto", *ours, "cpu_fallback", "tiled"):
        _convolve.routes.clear()
        with unhang.enabled(strategy, devices=(device,)):
            losses, seconds, model = train(device)
            engines = unhang.get_bypass_stats(model)["engines"]
        by = ", ".join(f"{engine} ({count})" for engine, count in sorted(engines.items()))
        print(f"  {f'enable({strategy!r})':24}{losses[0]:11.5f}{losses[-1]:11.5f}{1e3 * seconds:11.2f}   {by}")
        drift = max(abs(a - b) for a, b in zip(losses, plain))
        assert drift < 1e-2, f"the losses drift apart by {drift}: please report this"
        furthest = max(furthest, drift)
    print(f"\nLosses differ from plain torch's by at most {furthest:.0e}: each engine sums in another order.")


def show_plans(number: int, device: str) -> None:
    """The plan and its reason for each layer and direction of the last training."""
    from unhang import _convolve

    heading(number, "Which engine computes which layer here, and why", "measured")
    _convolve.routes.clear()
    _convolve.replan()
    with unhang.enabled("cpu_fallback", devices=(device,)):
        train(device)
    print_plans(plans(), "  ")


def plans() -> list[str]:
    """The plans made: each problem, and on the next line which engine computes it and why."""
    from unhang import _convolve

    lines = []
    for (key, _), route in sorted(_convolve.routes.items(), key=lambda item: item[0]):
        lines += [key, f"{route.names[0]}, {route.tally.total} times: {route.plan.reason}"]
    return lines


def print_plans(lines: list[str], indent: str) -> None:
    """The first plans, and the number of all."""
    for key, reason in zip(lines[: 2 * SHOWN : 2], lines[1 : 2 * SHOWN : 2]):
        print_paragraph(key, indent)
        print_paragraph(reason, f"{indent}    ")
    more = len(lines) // 2 - SHOWN
    if more > 0:
        print(f"{indent}… and {more} more", flush=True)


def print_paragraph(text: str, indent: str) -> None:
    """A text within the terminal's width; words are left whole."""
    width = max(40, shutil.get_terminal_size((100, 24)).columns)
    wrapper = textwrap.TextWrapper(
        width, initial_indent=indent, subsequent_indent=f"{indent}  ", break_long_words=False, break_on_hyphens=False
    )
    print(wrapper.fill(text))


def rehearse() -> None:
    """In a separate process: the card that UNHANG_ROOT describes, played by the CPU."""
    warnings.simplefilter("ignore")
    _gpu.canary_deadline = 8.0  # a rehearsed hang need not take as long as a real one
    with unhang.enabled("auto", rehearse=True):
        train("cpu")
        print("\n".join(plans()))


def show_rehearsal(number: int, example: str) -> None:
    """Trains the same network on the machine of the reports, which is played."""
    title = "The same network on the RX 5600 XT of the reports: each engine is tried in a child process first"
    heading(number, title, "rehearsed: a folder describes the machine, and CPU tensors stand for the card's")
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "UNHANG_ROOT": example, "UNHANG_HOME": home}
        for mood, meaning in (("", "pass their test"), ("hang", "hang in their test")):
            print(f"  If torch's own GPU kernels {meaning}:\n", flush=True)
            variables = {
                **environment,
                "UNHANG_REHEARSE_CANARY": mood,
                "UNHANG_HOME": os.path.join(home, mood or "well"),
            }
            command, changes = _gpu.start_python("unhang._commands", ["demo", "--rehearse"])
            try:
                ended = subprocess.run(
                    command,
                    env=_gpu.changed_variables(variables, changes),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    timeout=_LONGEST_REHEARSAL,
                )
            except subprocess.TimeoutExpired:
                raise SystemExit(f"the rehearsal did not end within {_LONGEST_REHEARSAL} seconds") from None
            lines = ended.stdout.splitlines()
            for line in lines:
                if line.startswith("unhang:"):
                    print_paragraph(line, "    ")
            print_plans([line for line in lines if not line.startswith("unhang:")], "    ")
            print(flush=True)
            if ended.returncode != 0:
                raise SystemExit(f"the rehearsal ended with code {ended.returncode}")


def show_report(number: int) -> None:
    """The report, as text and as a page."""
    heading(number, "The report", "measured")
    report = unhang.report()
    print(textwrap.indent(report.text(), "  "))
    # In a separate folder: in a shared one, a known name may be somebody else's link.
    page = report.html(Path(tempfile.mkdtemp(prefix="unhang-demo-")) / "report.html")
    print(f"  As a page: {page}")


def demo(arguments: list[str]) -> None:
    """Shows every section, or plays the card."""
    parser = argparse.ArgumentParser(prog="python -m unhang._commands demo")
    parser.add_argument("--first", type=int, default=1, help="number of the first section")
    parser.add_argument("--example", help="folder that describes the machine of the reports")
    parser.add_argument("--rehearse", action="store_true", help=rehearse.__doc__)
    given = parser.parse_args(arguments)
    if given.rehearse:
        rehearse()
        return
    if given.example is None:
        parser.error("--example is missing")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    first = given.first
    show_training(first, device)
    show_plans(first + 1, device)
    show_rehearsal(first + 2, given.example)
    show_report(first + 3)
    unhang.disable()


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    if what == "warm":
        sys.exit(warm(rest))
    demo(rest)
