"""ggml's own test-backend-ops, unmodified, on the card of this process: a part of its cases, each compared by it with ggml's CPU backend.

    python3 ggml_operations.py [OPERATION…]

Every operation that the HIP backend supports has some of its small cases tried, in as many types as there are. Prints a line for each operation;
the last one says how many are as they should be.
"""

from __future__ import annotations

import csv
import math
import re
import subprocess
import sys

PROGRAM = "/usr/libexec/x86_64-linux-gnu/ggml/test-backend-ops"
#: How many cases of an operation are tried; of those with the most kernels, which depend on types and sizes.
CASES, MANY = 8, 64
KERNELS = ("MUL_MAT", "MUL_MAT_ID", "FLASH_ATTN_EXT")
#: Cases are large where the product of all numbers in their names is above this, and a quarter of the operation's cases is smaller.
LARGE = 1 << 22
DEADLINE = 1500


def ask(*words: str) -> tuple[list[dict[str, str]], int]:
    """Rows that the program prints, and its exit code."""
    command = [PROGRAM, *words, "-b", "ROCm0", "--output", "csv"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DEADLINE)
    # What the card and unhang say, too.
    sys.stderr.write(done.stderr)
    lines = [line for line in done.stdout.splitlines() if line.startswith('"')]
    return list(csv.DictReader(lines)), done.returncode


def size(case: str) -> int:
    """About how much work a case is."""
    return math.prod(max(int(number), 1) for number in re.findall(r"[=,\[]([0-9]+)(?=[,\]]|$)", case))


def some(operation: str, cases: list[str]) -> list[str]:
    """The cases that are tried, the same in every run: spread evenly over the small ones."""
    by_size = sorted(dict.fromkeys(cases), key=lambda case: (size(case), case))
    limit = max(LARGE, size(by_size[len(by_size) // 4]))
    small = sorted(case for case in by_size if size(case) <= limit)
    count = min(MANY if operation in KERNELS else CASES, len(small))
    return [small[at * len(small) // count] for at in range(count)]


def main() -> int:
    supported, _ = ask("support")
    operations: dict[str, list[str]] = {}
    for row in supported:
        if row["supported"] == "1" and (not sys.argv[1:] or row["op_name"] in sys.argv[1:]):
            operations.setdefault(row["op_name"], []).append(row["op_params"])
    chosen = {name: some(name, cases) for name, cases in operations.items()}
    rows, code = ask("test", "-o", ",".join(f"{name}({case})" for name, cases in chosen.items() for case in cases))
    ended = {(row["op_name"], row["op_params"]): row for row in rows}
    good, right = 0, 0
    for name, cases in chosen.items():
        found = {case: ended.get((name, case)) for case in cases}
        # Some the CPU backend does not have.
        compared = {case: row for case, row in found.items() if row is None or row["supported"] == "1"}
        wrong = {case: row for case, row in compared.items() if row is None or row["error_message"]}
        is_good = bool(compared) and not wrong
        good += is_good
        right += len(compared) - len(wrong)
        words = f"{len(compared) - len(wrong)} of {len(compared)} cases"
        print(f"{'right' if is_good else 'wrong'}: {name}, {words}", flush=True)
        for case, row in wrong.items():
            print(f"    {case}: {row['error_message'] if row else 'not reached'}", flush=True)
    print(f"{right} cases right; test-backend-ops ended with {code}", flush=True)
    print(f"{good} of {len(chosen)} operations are as they should be", flush=True)
    return 0 if code == 0 and chosen and good == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
