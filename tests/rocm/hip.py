"""HIP's memory through ctypes, for the checks in this folder. They run in a ROCm root (tools/rocm-root), with its own Python."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable


class Library:
    """A shared library whose calls return 0, or the program ends with a message."""

    def __init__(self, *names: str) -> None:
        for name in names:
            try:
                self.library = ctypes.CDLL(name)
            except OSError as error:
                said = error
            else:
                return
        sys.exit(f"skipped: {said}")

    def __getattr__(self, name: str) -> Callable[..., None]:
        function = getattr(self.library, name)

        def call(*arguments: object) -> None:
            code = function(*arguments)
            if code != 0:
                sys.exit(f"{name} failed with {code}")

        return call


HIP = Library("libamdhip64.so.6", "libamdhip64.so.7")


class Buffer:
    """Single-precision numbers on the device."""

    def __init__(self, numbers: list[float]) -> None:
        self.count = len(numbers)
        self.address = ctypes.c_void_p()
        data = (ctypes.c_float * self.count)(*numbers)
        HIP.hipMalloc(ctypes.byref(self.address), ctypes.c_size_t(4 * self.count))
        HIP.hipMemcpy(self.address, data, ctypes.c_size_t(4 * self.count), 1)

    def read(self) -> list[float]:
        data = (ctypes.c_float * self.count)()
        HIP.hipMemcpy(data, self.address, ctypes.c_size_t(4 * self.count), 2)
        return list(data)


def numbers(count: int, seed: int) -> list[float]:
    """Multiples of 1/8 between -1 and 1: products and small sums of them are exact in single precision."""
    state, made = seed, []
    for _ in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        made.append(((state >> 40) % 17 - 8) / 8)
    return made


def product(a: list[float], b: list[float], m: int, n: int, k: int) -> list[float]:
    """The product of two matrices, column by column as BLAS has them."""
    return [sum(a[i + m * p] * b[p + k * j] for p in range(k)) for j in range(n) for i in range(m)]


def conclude(name: str, found: list[float], expected: list[float]) -> None:
    """Ends the program with a verdict."""
    worst = max((abs(x - y) for x, y in zip(found, expected)), default=0.0)
    wrong = sum(not abs(x - y) <= 1e-4 for x, y in zip(found, expected))
    if wrong or len(found) != len(expected):
        sys.exit(f"wrong: {name}: {wrong} of {len(expected)} elements, largest error {worst}")
    print(f"right: {name}: {len(expected)} elements, largest error {worst:.1e}")
