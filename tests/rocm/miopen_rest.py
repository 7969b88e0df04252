"""What MIOpen computes apart from convolutions, by MIOpenDriver with its check on the CPU, on the card of this process.

    python3 miopen_rest.py LIBRARY DRIVER

LIBRARY (libunhang_miopen.so) is preloaded, as in use: it computes batch normalisation, pooling and reductions, and every other call has to come through.
Batch normalisation over channels and a reduction are also asked of MIOpen alone: MIOpen 3.4 and 3.5 compile the first with DPP operands that no RDNA
chip has, unless the chip is called gfx103x or later. They compile the second for chips that a header names. So on a
gfx1010 by its own name both end with MIOpen's own error. The last line says what was right.
"""

import re
import sys

import preloaded

#: MIOpenDriver's words, and how many lines say that something verifies.
COMMANDS = {
    "pool -W 1x4x8x8 -M 0": 2,
    "pool -W 1x4x8x8 -M 1 -m avg": 2,
    "softmax -n 2 -c 8 -H 3 -W 3": 2,
    "activ -n 2 -c 4 -H 5 -W 5 -m 3": 2,
    "lrn -n 1 -c 6 -H 5 -W 5": 2,
    "rnn -n 2 -k 3 -H 8 -W 8 -l 1 -m lstm -F 0": 7,
    "rnn -n 2 -k 3 -H 8 -W 8 -l 1 -m gru -F 0": 5,
    "tensorop -n 2 -c 4 -H 5 -W 5 -o 0": 1,
    "tensorop -n 2 -c 4 -H 5 -W 5 -o 2": 1,
    "dropout -d 2x4x5x6": 2,
    "ctc -n 2 -k 8 -c 5 -l 3": 2,
    "bnorm -n 2 -c 4 -H 6 -W 6 -m 0 -F 1": 1,
    "bnorm -n 2 -c 4 -H 6 -W 6 -m 1 -F 1": 1,
    **{f"reduce -D 2,4,5,6 -R 1,2 -O {operation}": 1 for operation in range(8)},
    **{f"reduce -D 2,4,5,6 -R 1,2 -O {operation} -I 1": 1 for operation in (2, 3, 4)},
    "reduce -D 3,4,1000 -R 0,1,2 -O 0": 1,
}
#: MIOpen's own kernels for these do not compile for a gfx1010 under its own name, and how its message says so.
ALONE = {
    "bnorm -n 2 -c 4 -H 6 -W 6 -m 1 -F 1": ("row_bcast", "not a valid operand"),
    "reduce -D 2,4,5,6 -R 1,2 -O 0": ("gridwise_generic_reduction", "Code object build failed"),
}
#: What MIOpenDriver 3.5.1 ends with for every RNN, before it compares.
NO_OPTION = "Long Name: time Not Found"
DEADLINE = 600
FAMILIES = "plain,strided,normalization,pooling,reduction"


def run(library: str, driver: str, command: str, **variables: str) -> tuple[int, str]:
    """How many lines say that something verifies, and everything that was printed."""
    ended, text = preloaded.run(library, [driver, *command.split(), "-V", "1", "-i", "1"], DEADLINE, **variables)
    failed = re.search("failed", text, re.IGNORECASE) or ended != 0
    return 0 if failed else len(re.findall("[Vv]erifies on CPU and GPU", text)), text


def main() -> int:
    library, driver = sys.argv[1:3]
    right = asked = 0
    for command, expected in COMMANDS.items():
        verified, text = run(library, driver, command, UNHANG_MIOPEN_FAMILIES=FAMILIES)
        if NO_OPTION in text:
            print(f"{command}: not verified, this MIOpenDriver asks for an option that it does not have", flush=True)
            continue
        asked += 1
        right += verified == expected
        print(f"{command}: {verified} of {expected} results verify", flush=True)
        if verified != expected:
            print(text, flush=True)
    alone = []
    for command, refusal in ALONE.items():
        verified, text = run(library, driver, command, UNHANG_MIOPEN="0")
        is_refused = all(words in text for words in refusal)
        alone.append("right" if verified else "not compiled" if is_refused else "wrong")
        print(f"{command}, by MIOpen alone: {alone[-1]}", flush=True)
        if alone[-1] == "wrong":
            print(text, flush=True)
    print(
        f"{right} of {asked} right; by MIOpen alone batch normalisation over channels, and a reduction: {', '.join(alone)}"
    )
    return 0 if right == asked > 0 and "wrong" not in alone else 1


if __name__ == "__main__":
    sys.exit(main())
