"""MIOpenDriver's own check of every convolution that libunhang_miopen.so computes, on the card of this process.

    python3 bypass.py LIBRARY DRIVER [--wrong] [--only TEXT]

Each row is one run of MIOpenDriver in all three directions, compared with its reference on the CPU. (Its reference on
the GPU is MIOpen again, that is: us.) `--wrong` makes every result wrong on purpose; then no direction may verify. The
last line says how many did of how many; what unhang did not compute, or not by our kernels, does not count as verified.
"""

import re
import sys

import preloaded

SMALL = "-n 2 -c 4 -H 9 -W 7 -k 6"
THREE = "-y 3 -x 3 -p 1 -q 1"
LAST = "-I NHWC -O NHWC -f NHWC"

#: The reports' grid, at the sizes around which they saw it begin to hang.
CHANNELS = ((1, 32), (3, 16), (3, 64), (16, 32), (32, 64))
CELLS = [(pair, size) for pair in CHANNELS for size in (32, 42, 44)] + [((64, 64), 32)]
GRID = tuple(
    (f"{channels}→{filters}, 3x3 at {size}x{size}", f"-n 1 -c {channels} -H {size} -W {size} -k {filters} {THREE}")
    for (channels, filters), size in CELLS
)

#: What it is, and MIOpenDriver's words for it.
GEOMETRIES = (
    *GRID,
    ("3x3", f"{SMALL} {THREE}"),
    ("1x1", f"{SMALL} -y 1 -x 1"),
    ("7x7, stride 2", "-n 1 -c 3 -H 19 -W 23 -k 8 -y 7 -x 7 -p 3 -q 3 -u 2 -v 2"),
    ("5x3, stride 2x1", f"{SMALL} -y 5 -x 3 -p 2 -q 1 -u 2 -v 1"),
    ("1x5, no padding", f"{SMALL} -y 1 -x 5"),
    ("4x4, stride 2", f"{SMALL} -y 4 -x 4 -p 1 -q 1 -u 2 -v 2"),
    ("11x11, stride 4", "-n 1 -c 3 -H 35 -W 31 -k 4 -y 11 -x 11 -p 2 -q 2 -u 4 -v 4"),
    ("1x1, stride 2", f"{SMALL} -y 1 -x 1 -u 2 -v 2"),
    ("dilation 2x3", "-n 1 -c 4 -H 13 -W 15 -k 5 -y 3 -x 3 -p 2 -q 3 -l 2 -j 3"),
    ("4 groups", "-n 2 -c 8 -H 7 -W 9 -k 12 -g 4 -y 3 -x 3 -p 1 -q 1"),
    ("depthwise", "-n 2 -c 6 -H 9 -W 8 -k 6 -g 6 -y 3 -x 3 -p 1 -q 1"),
    ("depthwise, two filters a channel, stride 2", "-n 1 -c 4 -H 9 -W 8 -k 8 -g 4 -y 3 -x 3 -p 1 -q 1 -u 2 -v 2"),
    ("transposed, stride 2", "-n 1 -c 4 -H 5 -W 6 -k 3 -m trans -y 3 -x 3 -p 1 -q 1 -u 2 -v 2"),
    ("transposed, output padding", "-n 1 -c 4 -H 5 -W 6 -k 3 -m trans -y 3 -x 3 -p 1 -q 1 -u 2 -v 2 -Y 1 -X 1"),
    ("transposed, 2 groups", "-n 2 -c 4 -H 5 -W 4 -k 6 -m trans -g 2 -y 2 -x 2 -u 2 -v 2"),
    ("3x3, NHWC", f"{SMALL} {THREE} {LAST}"),
    ("stride 2, 2 groups, NHWC", f"-n 1 -c 4 -H 9 -W 7 -k 6 -g 2 {THREE} -u 2 -v 2 {LAST}"),
    ("3x3 with bias", f"{SMALL} {THREE} -b 1"),
    ("3x3, immediate mode", f"{SMALL} {THREE} -S 0"),
)
HALF = (
    "3x3",
    "1x1",
    "7x7, stride 2",
    "5x3, stride 2x1",
    "4x4, stride 2",
    "dilation 2x3",
    "4 groups",
    "depthwise",
    "depthwise, two filters a channel, stride 2",
    "transposed, stride 2",
    "transposed, 2 groups",
    "3x3, NHWC",
    "3x3, immediate mode",
)
CASES = (
    [("f32", "conv", name, options) for name, options in GEOMETRIES]
    + [("f16", "convfp16", name, options) for name, options in GEOMETRIES if name in HALF]
    + [("bf16", "convbfp16", name, options) for name, options in GEOMETRIES if name in HALF]
)
DIRECTIONS = ("Forward Convolution", "Backward Convolution Data", "Backward Convolution Weights")
#: A busy machine takes its time; what hangs is ended all the same.
DEADLINE = 1200


def run(library: str, driver: str, command: str, options: str, wrong: bool) -> tuple[int, str]:
    """How many directions verified, and what there is to say."""
    words = [driver, command, *options.split(), "-F", "0", "-i", "1", "-V", "1", "-t", "0"]
    _, text = preloaded.run(
        library,
        words,
        DEADLINE,
        MIOPEN_DRIVER_USE_GPU_REFERENCE="0",
        UNHANG_SETTINGS="verbose=True",
        UNHANG_MIOPEN_WRONG="1" if wrong else "0",
    )
    verified = sum(f"{direction} Verifies OK on CPU reference" in text for direction in DIRECTIONS)
    failed = sum(bool(re.search(rf"{direction} (Failed|FAILED)", text, re.IGNORECASE)) for direction in DIRECTIONS)
    by_us = sum(int(count) for count in re.findall(r"asked for (\d+) convolutions that jit computed", text))
    if by_us < 3:
        last = [line for line in text.splitlines() if line.strip()][-4:]
        return 0, f"our kernels computed {by_us} times: {' / '.join(last)[:400]}"
    if wrong and verified + failed < 3:
        return verified, f"{failed} were found to be wrong, {verified} verified"
    return verified, "" if verified == 3 or wrong else next(
        (line for line in text.splitlines() if "ailed" in line), ""
    )[:300]


def main() -> int:
    library, driver = sys.argv[1:3]
    wrong = "--wrong" in sys.argv
    only = sys.argv[sys.argv.index("--only") + 1] if "--only" in sys.argv else ""
    cases = [case for case in CASES if only in f"{case[0]} {case[2]}"]
    total = 0
    for kind, command, name, options in cases:
        verified, detail = run(library, driver, command, options, wrong)
        total += verified
        print(
            f"{'wrong on purpose' if wrong else 'case'}: {kind} {name}: {verified} of 3 directions verify{': ' if detail else ''}{detail}",
            flush=True,
        )
    print(f"{total} of {3 * len(cases)} directions verified")
    return 0 if total == (0 if wrong else 3 * len(cases)) else 1


if __name__ == "__main__":
    sys.exit(main())
