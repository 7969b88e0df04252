"""The GPU engine's C interface for Python: problems by their keys, torch's tensors by their addresses."""

from __future__ import annotations

import ctypes
import glob
import json
import os
import sys
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = Path(os.environ.get("UNHANG_GPU_LIBRARY", ROOT / "build/gpu-bench/libunhang_gpu.so"))
PROBLEMS = Path(os.environ.get("UNHANG_GPU_PROBLEMS", ROOT / "build/gpu-bench/problems.txt"))
CACHE = os.environ.get("UNHANG_GPU_CACHE", "/tmp/unhang-gpu-bench-cache")


class GpuError(RuntimeError):
    """An error of the engine."""


def find_nvrtc() -> None:
    """Makes all processes use one nvrtc: the one loaded here, or else the first one found."""
    with open("/proc/self/maps") as maps:
        loaded = {line[line.index("/") :].strip() for line in maps if "libnvrtc.so" in line}
    places = [f"{path}/nvidia/*/lib/libnvrtc.so.1?" for path in sys.path]
    places += ["/usr/local/cuda*/lib64/libnvrtc.so.1?", "/usr/lib/x86_64-linux-gnu/libnvrtc.so.1?"]
    found = sorted(loaded) or [name for place in places for name in sorted(glob.glob(place))]
    if "UNHANG_NVRTC" not in os.environ and found:
        os.environ["UNHANG_NVRTC"] = found[0]


def load(path: Path | str = LIBRARY) -> ctypes.CDLL:
    """The library with its functions' types."""
    library = ctypes.CDLL(str(path))
    text, number = ctypes.c_char_p, ctypes.c_uint64
    library.unhang_gpu_error.restype = text
    library.unhang_gpu_open.restype = ctypes.c_void_p
    library.unhang_gpu_open.argtypes = [ctypes.c_int, text]
    library.unhang_gpu_compile.argtypes = [text, text, text, text]
    library.unhang_gpu_candidates.restype = ctypes.c_size_t
    library.unhang_gpu_candidates.argtypes = [ctypes.c_void_p, text, text, ctypes.c_size_t]
    library.unhang_gpu_prepare.restype = ctypes.c_void_p
    library.unhang_gpu_prepare.argtypes = [ctypes.c_void_p, text, text, ctypes.POINTER(number)]
    library.unhang_gpu_choice.restype = ctypes.c_size_t
    library.unhang_gpu_choice.argtypes = [ctypes.c_void_p, text, ctypes.c_size_t]
    library.unhang_gpu_launch.argtypes = [ctypes.c_void_p, ctypes.c_void_p] + [number] * 6
    library.unhang_gpu_operation.restype = ctypes.c_void_p
    library.unhang_gpu_operation.argtypes = [ctypes.c_void_p, text, ctypes.POINTER(number)]
    library.unhang_gpu_run_operation.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(number), number]
    return library


@dataclass
class Problem:
    """The parts of a problem's key."""

    key: str
    direction: str = ""
    dtype: str = ""
    nhwc: bool = False
    input: list[int] = field(default_factory=list)
    out_channels: int = 0
    kernel: list[int] = field(default_factory=list)
    stride: list[int] = field(default_factory=list)
    padding: list[int] = field(default_factory=list)
    dilation: list[int] = field(default_factory=list)
    groups: int = 1
    transposed: bool = False
    output_padding: list[int] = field(default_factory=lambda: [0, 0])

    def __post_init__(self) -> None:
        parts = self.key.split(":")

        def numbers(part: str) -> list[int]:
            return [int(word) for word in part.lstrip("spdgo").split("x")]

        self.direction, self.dtype, self.nhwc = parts[0], parts[1], parts[2] == "nhwc"
        self.input = numbers(parts[3])
        self.out_channels, *self.kernel = numbers(parts[4])
        self.stride, self.padding, self.dilation = (numbers(part) for part in parts[5:8])
        self.groups = numbers(parts[8])[0]
        if len(parts) == 11:
            self.transposed, self.output_padding = True, numbers(parts[10])

    @property
    def output(self) -> list[int]:
        """The output's shape."""
        size = []
        for axis in range(2):
            span = self.dilation[axis] * (self.kernel[axis] - 1) + 1
            pixels = self.input[2 + axis]
            if self.transposed:
                pixels = (pixels - 1) * self.stride[axis] - 2 * self.padding[axis] + span + self.output_padding[axis]
            else:
                pixels = (pixels + 2 * self.padding[axis] - span) // self.stride[axis] + 1
            size.append(pixels)
        return [self.input[0], self.out_channels, *size]

    @property
    def weight(self) -> list[int]:
        """The filter's shape, as in torch."""
        channels = self.input[1]
        if self.transposed:
            return [channels, self.out_channels // self.groups, *self.kernel]
        return [self.out_channels, channels // self.groups, *self.kernel]

    @property
    def flops(self) -> float:
        """Operations of the direct computation."""
        pixels = self.input[2] * self.input[3] if self.transposed else self.output[2] * self.output[3]
        k, c, r, s = self.weight
        return 2.0 * self.input[0] * pixels * k * c * r * s

    def arguments(self) -> tuple[Any, ...]:
        """The arguments of torch's convolution after its tensors."""
        return (self.stride, self.padding, self.dilation, self.transposed, self.output_padding, self.groups)


def read_problems(kind: str) -> list[tuple[str, Problem]]:
    """The problems of a kind ("random" or "layer") with their names."""
    lines = [line.rstrip("\n").split("\t") for line in PROBLEMS.read_text().splitlines()]
    return [(line[1], Problem(line[2])) for line in lines if line[0] == kind]


def read_tolerances() -> dict[str, tuple[float, float]]:
    """The suite's tolerances by data type: L2 and largest."""
    lines = [line.split("\t") for line in PROBLEMS.read_text().splitlines() if line.startswith("tolerance")]
    return {line[1]: (float(line[2]), float(line[3])) for line in lines}


class Engine:
    """The engine on device 0."""

    def __init__(self, library: Path | str = LIBRARY) -> None:
        find_nvrtc()
        self.library = load(library)
        self.handle = self.library.unhang_gpu_open(0, CACHE.encode())
        if not self.handle:
            raise GpuError(self.library.unhang_gpu_error().decode())

    def candidates(self, key: str) -> list[tuple[str, float, int]]:
        """Choice, seconds by the model, bytes of workspace; fastest by the model first."""
        buffer = ctypes.create_string_buffer(1 << 20)
        if not self.library.unhang_gpu_candidates(self.handle, key.encode(), buffer, len(buffer)):
            raise GpuError(self.library.unhang_gpu_error().decode())
        lines = [line.split("\t") for line in buffer.value.decode().splitlines()]
        return [(line[0], float(line[1]), int(line[2])) for line in lines]

    def prepare(self, key: str, choice: str | None = None) -> tuple[int, int]:
        """Compiles and loads: a handle and the bytes of workspace."""
        workspace = ctypes.c_uint64()
        given = choice.encode() if choice else None
        handle = self.library.unhang_gpu_prepare(self.handle, key.encode(), given, ctypes.byref(workspace))
        if not handle:
            raise GpuError(f"{key} {choice}: " + self.library.unhang_gpu_error().decode())
        return handle, workspace.value

    def choice(self, prepared: int) -> str:
        """The choice of a prepared problem."""
        buffer = ctypes.create_string_buffer(256)
        self.library.unhang_gpu_choice(prepared, buffer, len(buffer))
        return buffer.value.decode()

    def launch(
        self, prepared: int, first: int, second: int, bias: int, result: int, workspace: int, stream: int
    ) -> None:
        """Starts a prepared problem."""
        if self.library.unhang_gpu_launch(self.handle, prepared, first, second, bias, result, workspace, stream):
            raise GpuError(self.library.unhang_gpu_error().decode())

    def operation(self, asked: dict[str, Any]) -> tuple[int, int]:
        """Compiles and loads an operation other than a 2-d convolution: a handle and the bytes of workspace."""
        workspace = ctypes.c_uint64()
        text = json.dumps(asked)
        handle = self.library.unhang_gpu_operation(self.handle, text.encode(), ctypes.byref(workspace))
        if not handle:
            raise GpuError(f"{text}: " + self.library.unhang_gpu_error().decode())
        return handle, workspace.value

    def run_operation(self, operation: int, addresses: list[int], stream: int) -> None:
        """Starts it on memory at these addresses."""
        places = (ctypes.c_uint64 * len(addresses))(*addresses)
        if self.library.unhang_gpu_run_operation(self.handle, operation, places, stream):
            raise GpuError(self.library.unhang_gpu_error().decode())


_worker: ctypes.CDLL | None = None


def _start_worker(library: Path | str) -> None:
    global _worker
    _worker = load(library)


def _compile(job: tuple[str, str, str]) -> str:
    key, choice, architecture = job
    assert _worker is not None
    failed = _worker.unhang_gpu_compile(key.encode(), choice.encode(), architecture.encode(), CACHE.encode())
    return f"{key} {choice}: {_worker.unhang_gpu_error().decode()}" if failed else ""


def compile_ahead(jobs: list[tuple[str, str]], architecture: str, library: Path | str = LIBRARY) -> list[str]:
    """Compiles problems with their choices in parallel; returns what failed."""
    find_nvrtc()
    with get_context("spawn").Pool(os.cpu_count(), _start_worker, (library,)) as pool:
        results = pool.imap_unordered(_compile, [(*job, architecture) for job in jobs], chunksize=4)
        return [message for message in results if message]
