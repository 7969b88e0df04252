#!/usr/bin/env python3
"""Torch's own samples of every convolution, with unhang and without: results, strides, gradients and errors compared.

``OpInfo`` and ``ModuleInfo`` are what torch tests its operators and layers with. Each sample is also given in channels_last,
and as a view with gaps, and is computed often enough for the direct path, which sees no call that is new. Prints one line
for each kind of convolution and those samples that differ; exits with 1 if any does.

    tools/check_samples.py --device cpu --strategy cpu_fallback
    tools/check_samples.py --device cuda --strategy jit
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import types
import unittest
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

import unhang

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from comparing import difference

OPERATORS = (
    "nn.functional.conv1d",
    "nn.functional.conv2d",
    "nn.functional.conv3d",
    "nn.functional.conv_transpose1d",
    "nn.functional.conv_transpose2d",
    "nn.functional.conv_transpose3d",
)
_LAYERS = ("Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d")
MODULES = (*_LAYERS, *(f"Lazy{name}" for name in _LAYERS))
# Torch lists single and double precision for layers, and has both on every device; halves it has too.
_HALVES = (torch.float16, torch.bfloat16)

# A call is timed four times on the CPU, then remembered, and computed without Python from then on.
TURNS = 6

Sample = tuple[str, str, Callable[[], list[Any]]]


def forms(tensor: Any) -> Iterator[tuple[str, Any]]:
    """The same numbers, laid out in other ways."""
    yield "as it is", tensor
    if isinstance(tensor, torch.Tensor) and tensor.dim() == 4:
        yield "channels_last", tensor.to(memory_format=torch.channels_last)
        wide = torch.cat([tensor, tensor], 1).to(memory_format=torch.channels_last)
        yield "half of channels_last", wide[:, : tensor.shape[1]]


def outcome(compute: Callable[[], list[Any]]) -> list[Any]:
    """Results, or the kind of error. (Torch's texts name addresses now and then, and are compared in the tests.)"""
    try:
        return compute()
    except Exception as error:
        return [type(error)]


def with_gradients(call: Callable[..., Any], tensors: list[torch.Tensor]) -> list[Any]:
    leaves = [tensor.detach().requires_grad_(tensor.is_floating_point() or tensor.is_complex()) for tensor in tensors]
    output = call(*leaves)
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    gradients = torch.autograd.grad(output.abs().sum(), wanted, allow_unused=True) if wanted else ()
    return [output.detach(), *gradients]


def moves(tensor: torch.Tensor) -> list[int]:
    """The strides that matter: along a dimension of one element nothing moves, and torch's own kernels differ there."""
    return [step for step, size in zip(tensor.stride(), tensor.shape) if size > 1]


def first_difference(ours: list[Any], plain: list[Any], *, strides: bool) -> str | None:
    if len(ours) != len(plain):
        return f"{len(ours)} results, not {len(plain)}"
    for place, (got, want) in enumerate(zip(ours, plain)):
        if not isinstance(want, torch.Tensor) or not isinstance(got, torch.Tensor):
            if got is not want:
                return f"{got}, not {want}"
            continue
        if strides and moves(got) != moves(want):
            return f"result {place} of shape {tuple(want.shape)}: strides {got.stride()}, not {want.stride()}"
        found = difference(got, want)
        if found is not None:
            return f"result {place}: {found}"
    return None


def _stand_in_for_expecttest() -> None:
    """Torch's test helpers import a package of snapshots that nothing here uses."""
    try:
        import expecttest  # noqa: F401
    except ImportError:
        stand_in = types.ModuleType("expecttest")
        stand_in.TestCase = unittest.TestCase  # type: ignore[attr-defined]
        sys.modules["expecttest"] = stand_in


def operator_samples(device: str, dtype: torch.dtype) -> Iterator[Sample]:
    from torch.testing._internal.common_methods_invocations import op_db

    for info in op_db:
        if info.name not in OPERATORS or dtype not in info.supported_dtypes(torch.device(device).type):
            continue
        given = list(info.sample_inputs(device, dtype))
        if info.error_inputs_func is not None:
            given += [it.sample_input for it in info.error_inputs(device)]
        for number, sample in enumerate(given):
            for form, first in forms(sample.input):
                tensors = [first, *(it for it in sample.args if isinstance(it, torch.Tensor))]

                def compute(info=info, sample=sample, tensors=tensors) -> list[Any]:  # type: ignore[no-untyped-def]
                    def call(*leaves: torch.Tensor) -> Any:
                        rest = iter(leaves[1:])
                        args = [next(rest) if isinstance(it, torch.Tensor) else it for it in sample.args]
                        return info.op(leaves[0], *args, **sample.kwargs)

                    return with_gradients(call, tensors)

                yield info.name, f"{str(dtype)[6:]}, sample {number}, {form}", compute


def module_samples(device: str, dtype: torch.dtype) -> Iterator[Sample]:
    from torch.testing._internal.common_modules import module_db

    for info in module_db:
        if info.module_cls.__name__ not in MODULES or dtype not in (*info.dtypes, *_HALVES):
            continue
        given = info.module_inputs_func(info, device=device, dtype=dtype, requires_grad=False, training=True)
        for number, sample in enumerate(given):
            for form, first in forms(sample.forward_input.args[0]):
                rest = (first, *sample.forward_input.args[1:])

                def compute(info=info, sample=sample, rest=rest, number=number) -> list[Any]:  # type: ignore[no-untyped-def]
                    torch.manual_seed(number)
                    built = sample.constructor_input
                    module = info.module_cls(*built.args, **built.kwargs).to(device, dtype)
                    # What a layer is made for here is its first call: a lazy one has no parameters before it.
                    made = module(*rest, **sample.forward_input.kwargs).detach()
                    names = [name for name, _ in module.named_parameters()]

                    def call(input: torch.Tensor, *parameters: torch.Tensor) -> Any:
                        state = dict(zip(names, parameters))
                        arguments = (input, *rest[1:])
                        return torch.func.functional_call(module, state, arguments, sample.forward_input.kwargs)

                    return [made, *with_gradients(call, [rest[0], *module.parameters()])]

                yield info.module_cls.__name__, f"{str(dtype)[6:]}, sample {number}, {form}", compute


def samples(device: str, dtypes: Iterable[torch.dtype]) -> list[Sample]:
    """All of them: the kind of convolution, which sample it is, and what computes it."""
    _stand_in_for_expecttest()
    return [it for dtype in dtypes for source in (operator_samples, module_samples) for it in source(device, dtype)]


def check(
    listed: Iterable[Sample],
    strategy: str,
    device: str,
    *,
    strides: bool = True,
    turns: int = TURNS,
    rehearse: bool = False,
) -> tuple[dict[str, int], list[str]]:
    """How many samples there are of each kind, and those that differ in any turn."""
    plain = [(name, what, compute, outcome(compute)) for name, what, compute in listed]
    counts: dict[str, int] = {}
    wrong: list[str] = []
    devices = None if rehearse else (device,)
    with unhang.enabled(strategy, devices=devices, rehearse=rehearse):
        for name, what, compute, want in plain:
            counts[name] = counts.get(name, 0) + 1
            for turn in range(turns):
                found = first_difference(outcome(compute), want, strides=strides)
                if found is not None:
                    wrong.append(f"{name}, {what}, turn {turn}: {found}")
                    break
    return counts, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--strategy", default="cpu_fallback")
    parser.add_argument("--no-strides", action="store_true", help="compare numbers and errors only")
    parser.add_argument("--show", type=int, default=10, help="differences that are printed")
    chosen = parser.parse_args()
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    dtypes = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.complex64)
    listed = samples(chosen.device, dtypes)
    counts, wrong = check(listed, chosen.strategy, chosen.device, strides=not chosen.no_strides)
    for name, count in sorted(counts.items()):
        print(f"{name:36}{count:6} samples{sum(it.startswith(f'{name},') for it in wrong):6} differ")
    for line in wrong[: chosen.show]:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as home:
        os.environ["UNHANG_HOME"] = home
        sys.exit(main())
