"""A part of rocBLAS's own tests: `python3 rocblas_tests.py ROCBLAS-TEST DATA`.

`rocblas-test` takes its cases from a file of 1.6 million, and registers each of them before it runs the first. Here a smaller
file is made of the same records: of each function below a few quick cases, evenly from among those of small sizes, so that all
types and most flags are among them. The cases and the judgement are rocBLAS's.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

#: The file begins with a record that only shows the layout, between two words.
BEGIN, END = b"rocBLAS\0", b"ROCblas\0"
#: In a record: its function and its category, 64 bytes each, and the sizes M, N and K.
FUNCTION, CATEGORY, SIZES = 0, 128, 344
#: Larger matrices take long on the emulator.
LARGEST = 128
CASES = 40
LEVEL_1 = ("asum", "axpy", "dot", "iamax", "nrm2", "rot", "scal", "swap")
LEVEL_2 = ("gemv", "ger", "symv", "trmv", "trsv")
LEVEL_3 = ("gemm", "gemm_batched", "gemm_strided_batched", "gemm_ex", "symm", "syrk", "trmm", "trsm")
BAD_ARGUMENTS = ("axpy_bad_arg", "gemv_bad_arg", "gemm_bad_arg", "trsm_bad_arg")


def word(record: bytes, offset: int) -> str:
    return record[offset : offset + 64].split(b"\0", 1)[0].decode("ascii", "replace")


def records(data: mmap.mmap, first: int, length: int) -> Iterator[bytes]:
    for offset in range(first, len(data) - length + 1, length):
        yield data[offset : offset + length]


def is_small(record: bytes) -> bool:
    """Sizes that a function does not have are 128 in its records."""
    rows, columns, depth = struct.unpack_from("<3q", record, SIZES)
    function = word(record, FUNCTION)
    if function in LEVEL_1:
        return 0 < columns <= 1000
    return function in BAD_ARGUMENTS or (0 < rows <= LARGEST and 0 < columns <= LARGEST and depth <= LARGEST)


def choose(path: Path) -> tuple[bytes, list[bytes]]:
    """The file's beginning, and the chosen records in their order."""
    wanted = {*LEVEL_1, *LEVEL_2, *LEVEL_3, *BAD_ARGUMENTS}
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
        length = data.find(END, 0, 1 << 16) - len(BEGIN)
        if data[: len(BEGIN)] != BEGIN or length <= SIZES:
            sys.exit(f"error: {path} is no data of rocblas-test")
        first = len(BEGIN) + length + len(END)
        found: dict[str, list[bytes]] = {}
        for record in records(data, first, length):
            function = word(record, FUNCTION)
            if function in wanted and word(record, CATEGORY) == "quick" and is_small(record):
                found.setdefault(function, []).append(record)
        missing = wanted - set(found)
        if missing:
            sys.exit(f"error: {path} has no small quick case of {', '.join(sorted(missing))}")
        chosen = []
        for cases in found.values():
            count = min(CASES, len(cases))
            chosen += [cases[index * len(cases) // count] for index in range(count)]
        return data[:first], chosen


def main() -> int:
    program, path = sys.argv[1], Path(sys.argv[2])
    if not path.exists():
        print(f"skipped: {path} is not in this root")
        return 0
    begin, chosen = choose(path)
    print(f"{len(chosen)} cases of {len({word(record, FUNCTION) for record in chosen})} functions", flush=True)
    # Kept open and handed on: no file is left behind, however this ends.
    with tempfile.TemporaryFile() as file:
        file.write(begin + b"".join(chosen))
        file.flush()
        os.set_inheritable(file.fileno(), True)
        os.execv(program, [program, "--data", f"/proc/self/fd/{file.fileno()}", "--gtest_filter=*quick*"])
    return 2


if __name__ == "__main__":
    sys.exit(main())
