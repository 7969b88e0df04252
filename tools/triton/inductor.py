"""Has torch's inductor write programs for gfx1010, without a GPU, and compiles their kernels with this Python's Triton.

Run it with the Python that has Triton: ``python inductor.py SITE-PACKAGES FOLDER``, where SITE-PACKAGES has torch.
Inductor plans for a card that is described here, on tensors without memory. The program that it wrote then runs on
tensors in the CPU's memory, with its launches noted instead of executed. FOLDER/PROGRAM gets:

* KERNEL.SETTING.hsaco, as compile.py names them;
* ``program.txt``: ``launch KERNEL LANES GRID… ARGUMENT…`` in order, where an argument is a 32-bit integer or
  ``BUFFER+OFFSET``; then ``output BUFFER TYPE`` for each result;
* BUFFER.before, each buffer's bytes before the launches, and BUFFER.after, each result as torch computes it on the CPU.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

sys.path.append(sys.argv[1])  # Behind this Python's own packages: Triton is the pinned one.

import torch
import triton
from torch._inductor import config
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.codecache import PyCodeCache
from torch._inductor.compile_fx import compile_fx
from torch._inductor.runtime import triton_helpers
from torch._inductor.runtime.triton_heuristics import GridExpr
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional
from torch.utils import _pytree as pytree
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

# An RX 5700 XT, as torch describes a card. The counts decide into how many parts a long reduction is split.
CARD = SimpleNamespace(
    name="AMD Radeon RX 5700 XT",
    gcnArchName="gfx1010:xnack-",
    major=10,
    minor=1,
    warp_size=32,
    multi_processor_count=40,
    max_threads_per_block=1024,
    max_threads_per_multi_processor=2048,
    regs_per_multiprocessor=65536,
)
TARGET = GPUTarget("hip", "gfx1010", CARD.warp_size)
SETTINGS = {"default": True, "no-buffers": False}
UNWRITTEN = 0x45


def bias_gelu(x, bias):
    """Pointwise, with a bias for each channel."""
    return functional.gelu(x + bias[:, None])


def half_silu(x, y):
    """Pointwise in half precision."""
    return functional.silu(x) * y


def transposed_sum(x, y):
    """Pointwise in tiles of two dimensions."""
    return x.t() + y


def embedding(indices, weight):
    """Rows by 64-bit indices."""
    return functional.embedding(indices, weight).relu()


def softmax(x):
    """A reduction in one step."""
    return torch.softmax(x, -1)


def argmax(x):
    """A reduction that carries indices."""
    return x.argmax(-1)


def layer_norm(x, weight, bias):
    """Two reductions in one step, and what is done with both."""
    return functional.layer_norm(x, (x.shape[-1],), weight, bias)


def rms_norm(x, weight):
    """A reduction in bfloat16, as language models have it."""
    return functional.rms_norm(x, (x.shape[-1],), weight)


def mean_square(x):
    """A reduction too long for one step: in a loop."""
    return (x * x).mean(-1)


def total(x):
    """A reduction split into two kernels."""
    return x.sum()


def layer_norm_backward(x, weight, bias, gradient):
    """The gradients of all three, by the operation that autograd calls: its engine would look for a GPU."""
    shape = list(x.shape[-1:])
    _, mean, scale = torch.ops.aten.native_layer_norm(x, shape, weight, bias, 1e-5)
    return torch.ops.aten.native_layer_norm_backward(gradient, x, shape, mean, scale, weight, bias, [True] * 3)


def programs():
    """Each program's function and inputs."""
    torch.manual_seed(1010)
    rows, weight, bias, gradient = torch.randn(7, 100), torch.randn(100), torch.randn(100), torch.randn(7, 100)
    return [
        (bias_gelu, [torch.randn(7, 50), torch.randn(7)]),
        (half_silu, [torch.randn(700).half(), torch.randn(700).half()]),
        (transposed_sum, [torch.randn(70, 90), torch.randn(90, 70)]),
        (embedding, [torch.randint(20, (9,)), torch.randn(20, 50)]),
        (softmax, [rows]),
        (argmax, [rows]),
        (layer_norm, [rows, weight, bias]),
        (rms_norm, [rows.bfloat16(), weight.bfloat16()]),
        (mean_square, [torch.randn(7, 5000)]),
        (total, [torch.randn(100_000)]),
        (layer_norm_backward, [rows, weight, bias, gradient]),
    ]


class Program:
    """What one program of inductor's launches, on which buffers."""

    def __init__(self, folder: Path, inputs: list[torch.Tensor]) -> None:
        self.folder, self.lines, self.buffers = folder, [], []
        for each in inputs:
            assert each.is_contiguous()
            self.add(each)

    def add(self, tensor: torch.Tensor) -> None:
        """A buffer as it is before the first launch."""
        storage = tensor.untyped_storage()
        (self.folder / f"{len(self.buffers)}.before").write_bytes(bytes(storage))
        self.buffers.append(storage)

    def empty(self, size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
        """In place of inductor's allocation on the card."""
        tensor = torch.empty_strided(size, stride, dtype=dtype)
        tensor.untyped_storage().copy_(torch.UntypedStorage(tensor.untyped_storage().nbytes()).fill_(UNWRITTEN))
        self.add(tensor)
        return tensor

    def place(self, tensor: torch.Tensor) -> str:
        """A buffer, and how far into it."""
        at = tensor.untyped_storage().data_ptr()
        index = next(place for place, buffer in enumerate(self.buffers) if buffer.data_ptr() == at)
        return f"{index}+{tensor.data_ptr() - at}"

    def triton(self, compiler: Any, name: str, source: str, device_str: str = "cuda") -> Any:
        """In place of inductor's compilation: compiles the first of its configurations, and notes launches."""
        tuner = getattr(PyCodeCache.load(source), name)
        choice = tuner.configs[0]
        meta = tuner._create_compile_meta(choice)
        kernel = ASTSource(tuner.fn, meta["signature"], meta["constants"], meta["configs"][0])
        for setting, buffers in SETTINGS.items():
            triton.knobs.amd.use_buffer_ops = buffers
            compiled = triton.compile(kernel, target=TARGET, options=tuner._create_compile_options(choice, meta))
            (self.folder / f"{name}.{setting}.hsaco").write_bytes(compiled.asm["hsaco"])
            lines = map(str.strip, compiled.asm["amdgcn"].splitlines())
            accesses = sum(line.startswith(("buffer_load", "buffer_store")) for line in lines)
            print(f"{self.folder.name} {name} {setting}: {accesses} buffer accesses")

        def run(*arguments: Any, stream: int) -> None:
            names = (each for each in tuner.fn.arg_names if each not in choice.kwargs)
            passed = dict(zip(names, arguments, strict=True))
            grid = GridExpr.from_meta(tuner.inductor_meta, choice).eval_slow({**passed, **choice.kwargs})
            words = [name, choice.num_warps * CARD.warp_size, *grid]
            for each, value in passed.items():
                kind = meta["signature"][each]
                if kind != "constexpr":
                    assert kind == "i32" or kind.startswith("*"), f"{name}: an argument of type {kind}"
                    words.append(self.place(value) if kind.startswith("*") else value)
            self.lines.append(" ".join(map(str, ["launch", *words])))

        return SimpleNamespace(run=run)


def write(folder: Path, function: Any, inputs: list[torch.Tensor]) -> None:
    """One program: traced and compiled for the card, then its launches and results."""
    expected = function(*inputs)
    program = Program(folder, inputs)
    nothing = mock.MagicMock()
    interface = torch._dynamo.device_interface.CudaInterface
    with ExitStack() as patches, triton_helpers.skip_gpu_driver_setup():
        for owner, name, value in (
            (torch.version, "hip", "6.4.0"),
            (torch.cuda, "get_device_properties", lambda device=None: CARD),
            (torch.cuda, "_DeviceGuard", nothing),
            (torch.cuda, "set_device", nothing),
            (interface, "is_available", staticmethod(lambda: True)),
            (interface, "get_device_properties", staticmethod(lambda device=None: CARD)),
            (interface.Worker, "get_device_properties", staticmethod(lambda device=None: CARD)),
            (torch._C, "_cuda_getCurrentRawStream", lambda device: 0),
            (torch._C._dynamo.guards, "_empty_strided_cuda", program.empty),
            (AsyncCompile, "triton", lambda *arguments, **named: program.triton(*arguments, **named)),
        ):
            patches.enter_context(mock.patch.object(owner, name, value))
        with FakeTensorMode():
            shapes = [torch.empty(each.size(), dtype=each.dtype, device="cuda") for each in inputs]
            graph = make_fx(function)(*shapes)
        results = compile_fx(graph, shapes)(*inputs)
    for result, right in zip(*map(pytree.tree_leaves, (results, expected)), strict=True):
        buffer = program.place(result).removesuffix("+0")
        program.lines.append(f"output {buffer} {str(right.dtype).removeprefix('torch.')}")
        # Nothing has computed it yet. The right values go where inductor's program would leave them.
        result.copy_(right)
        (folder / f"{buffer}.after").write_bytes(bytes(result.untyped_storage()))
    (folder / "program.txt").write_text("\n".join(program.lines) + "\n")


def main() -> None:
    """All programs, without anything of earlier runs."""
    shutil.rmtree(sys.argv[2], ignore_errors=True)
    triton.runtime.driver.set_active(SimpleNamespace(get_current_target=lambda: TARGET))
    with tempfile.TemporaryDirectory() as cache:
        os.environ |= {"TRITON_CACHE_DIR": f"{cache}/triton", "TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor"}
        with config.patch(force_disable_caches=True, compile_threads=1):
            for function, inputs in programs():
                folder = Path(sys.argv[2]) / function.__name__
                folder.mkdir(parents=True)
                write(folder, function, inputs)


if __name__ == "__main__":
    main()
