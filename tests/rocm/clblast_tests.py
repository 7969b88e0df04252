"""CLBlast's own tests, on the card of this process by AMD's OpenCL: part of them, against a BLAS on the CPU.

    python3 clblast_tests.py [PROGRAM…]

Each program compares one routine in up to five types over sizes, strides and offsets. The last line says how many comparisons of how many
programs passed; one that fails is a failure of all.
"""

import re
import subprocess
import sys

#: Short ones.
PROGRAMS = ("xaxpy", "xscal", "xdot", "xnrm2", "xgemv", "xomatcopy", "xhad")
DEADLINE = 900


def run(program: str) -> tuple[int, str]:
    """How many comparisons passed, and what there is to say if not all did."""
    words = [f"clblast_test_{program}", "-platform", "0", "-device", "0"]
    try:
        ran = subprocess.run(words, capture_output=True, text=True, timeout=DEADLINE, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return 0, f"no end within {DEADLINE} s"
    sys.stderr.write(ran.stderr)
    counts = {
        word: sum(map(int, re.findall(rf"(\d+) test\(s\) {word}", ran.stdout)))
        for word in ("passed", "skipped", "failed")
    }
    # What the reference on the CPU does not have is skipped.
    if ran.returncode != 0 or counts["failed"] or not counts["passed"]:
        return 0, f"exit code {ran.returncode}, {counts['failed']} failed, {counts['skipped']} skipped"
    return counts["passed"], ""


def main() -> int:
    programs = sys.argv[1:] or PROGRAMS
    passed, good = 0, 0
    for program in programs:
        count, complaint = run(program)
        print(f"{program}: {complaint or f'{count} comparisons passed'}", flush=True)
        passed, good = passed + count, good + (not complaint)
    print(f"{passed} comparisons passed in {good} of {len(programs)} programs")
    return 0 if good == len(programs) else 1


if __name__ == "__main__":
    sys.exit(main())
