#!/usr/bin/env python3
"""Compares torch's own samples of every convolution with and without unhang: results, strides, gradients and errors.

Torch tests its operators and layers with ``OpInfo`` and ``ModuleInfo``. Each sample also runs in channels_last and as a
view with gaps. It runs often enough for the direct path, which sees no new calls. Prints one line for each kind of
convolution, and the samples that differ; exits with 1 if any does.

    tools/check_samples.py --device cpu --strategy cpu_fallback
    tools/check_samples.py --device cuda --strategy jit
    tools/check_samples.py --device cuda --strategy jit --reference cpu --dtypes float32 --every 20     on the emulated card
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
# Torch lists single and double precision for layers, and has both on every device; it has halves too.
_HALVES = (torch.float16, torch.bfloat16)

# A call is timed four times on the CPU, then remembered, and computed without Python from then on.
TURNS = 6

# The message of tools/torch-hip's reduced build about a missing function.
LEFT_OUT = "this build of PyTorch for HIP has no"

Sample = tuple[str, str, Callable[[], list[Any]]]


def forms(tensor: Any) -> Iterator[tuple[str, Any]]:
    """The same numbers in other layouts."""
    yield "as it is", tensor
    if isinstance(tensor, torch.Tensor) and tensor.dim() == 4:
        yield "channels_last", tensor.to(memory_format=torch.channels_last)
        wide = torch.cat([tensor, tensor], 1).to(memory_format=torch.channels_last)
        yield "half of channels_last", wide[:, : tensor.shape[1]]


def on(device: str, value: Any) -> Any:
    return value.to(device) if isinstance(value, torch.Tensor) else value


def outcome(compute: Callable[[], list[Any]]) -> list[Any]:
    """Results, or the kind of error. (Torch's texts sometimes contain addresses, and are compared in the tests.)"""
    try:
        return compute()
    except Exception as error:
        return [LEFT_OUT if LEFT_OUT in str(error) else type(error)]


def with_gradients(call: Callable[..., Any], tensors: list[torch.Tensor]) -> list[Any]:
    leaves = [tensor.detach().requires_grad_(tensor.is_floating_point() or tensor.is_complex()) for tensor in tensors]
    output = call(*leaves)
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    gradients = torch.autograd.grad(output, wanted, signs_like(output), allow_unused=True) if wanted else ()
    return [output.detach(), *gradients]


def signs_like(output: torch.Tensor) -> torch.Tensor:
    """Ones and minus ones by their place alone. The signs of results would change where rounding differs around zero."""
    signs = torch.ones(output.numel(), dtype=output.dtype, device=output.device)
    signs[::3] = -1
    return torch.empty_like(output).copy_(signs.reshape(output.shape))


def moves(tensor: torch.Tensor) -> list[int]:
    """The strides that matter: a dimension of one element has no meaningful stride, and torch's own kernels differ
    there."""
    return [step for step, size in zip(tensor.stride(), tensor.shape) if size > 1]


def first_difference(ours: list[Any], plain: list[Any], *, strides: bool) -> str | None:
    ours, plain = ([on("cpu", it) for it in results] for results in (ours, plain))
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
    """Torch's test helpers import a snapshot package that nothing here uses."""
    try:
        import expecttest  # noqa: F401
    except ImportError:
        stand_in = types.ModuleType("expecttest")
        stand_in.TestCase = unittest.TestCase  # type: ignore[attr-defined]
        sys.modules["expecttest"] = stand_in


def operator_samples(device: str, dtype: torch.dtype) -> Iterator[Sample]:
    from torch.testing._internal.common_methods_invocations import op_db

    # After the import, which uses random numbers too.
    torch.manual_seed(0)
    for info in op_db:
        if info.name not in OPERATORS or dtype not in info.supported_dtypes(torch.device(device).type):
            continue
        # Created on the CPU, so that every device gets the same numbers.
        given = list(info.sample_inputs("cpu", dtype))
        if info.error_inputs_func is not None:
            given += [it.sample_input for it in info.error_inputs("cpu")]
        for number, sample in enumerate(given):
            for form, first in forms(on(device, sample.input)):
                tensors = [first, *(it.to(device) for it in sample.args if isinstance(it, torch.Tensor))]

                def compute(info=info, sample=sample, tensors=tensors) -> list[Any]:  # type: ignore[no-untyped-def]
                    def call(*leaves: torch.Tensor) -> Any:
                        rest = iter(leaves[1:])
                        args = [next(rest) if isinstance(it, torch.Tensor) else it for it in sample.args]
                        return info.op(leaves[0], *args, **sample.kwargs)

                    return with_gradients(call, tensors)

                yield info.name, f"{str(dtype)[6:]}, sample {number}, {form}", compute


def module_samples(device: str, dtype: torch.dtype) -> Iterator[Sample]:
    from torch.testing._internal.common_modules import module_db

    torch.manual_seed(0)
    for info in module_db:
        if info.module_cls.__name__ not in MODULES or dtype not in (*info.dtypes, *_HALVES):
            continue
        given = info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=False, training=True)
        for number, sample in enumerate(given):
            for form, first in forms(on(device, sample.forward_input.args[0])):
                rest = (first, *(on(device, it) for it in sample.forward_input.args[1:]))

                def compute(info=info, sample=sample, rest=rest, number=number) -> list[Any]:  # type: ignore[no-untyped-def]
                    torch.manual_seed(number)
                    built = sample.constructor_input
                    options = {**built.kwargs, **({"device": "cpu"} if "device" in built.kwargs else {})}
                    module = info.module_cls(*built.args, **options).to(device, dtype)
                    # A layer is created here for its first call: a lazy one has no parameters before it.
                    made = module(*rest, **sample.forward_input.kwargs).detach()
                    names = [name for name, _ in module.named_parameters()]

                    def call(input: torch.Tensor, *parameters: torch.Tensor) -> Any:
                        state = dict(zip(names, parameters))
                        arguments = (input, *rest[1:])
                        return torch.func.functional_call(module, state, arguments, sample.forward_input.kwargs)

                    return [made, *with_gradients(call, [rest[0], *module.parameters()])]

                yield info.module_cls.__name__, f"{str(dtype)[6:]}, sample {number}, {form}", compute


def samples(device: str, dtypes: Iterable[torch.dtype]) -> list[Sample]:
    """All samples: the kind of convolution, which sample it is, and the function that computes it."""
    _stand_in_for_expecttest()
    # Torch looks for Triton, and tools/triton next to this file is not that.
    sys.path[:] = [folder for folder in sys.path if folder != str(Path(__file__).resolve().parent)]
    return [it for dtype in dtypes for source in (operator_samples, module_samples) for it in source(device, dtype)]


def check(
    listed: Iterable[Sample],
    strategy: str,
    device: str,
    *,
    strides: bool = True,
    turns: int = TURNS,
    rehearse: bool = False,
    reference: Iterable[Sample] | None = None,
) -> tuple[dict[str, int], list[str]]:
    """The number of samples of each kind. Also those that differ in any turn from the same without unhang, or from
    their counterpart on another device."""
    listed = list(listed)
    wanted = [outcome(compute) for _, _, compute in (listed if reference is None else reference)]
    plain = [(*sample, want) for sample, want in zip(listed, wanted)]
    counts: dict[str, int] = {}
    wrong: list[str] = []
    devices = None if rehearse else (device,)
    with unhang.enabled(strategy, devices=devices, rehearse=rehearse):
        for name, what, compute, want in plain:
            counts[name] = counts.get(name, 0) + 1
            for turn in range(turns):
                ours = outcome(compute)
                if ours == [LEFT_OUT]:
                    kind = f"{name}, left out"
                    counts[kind] = counts.get(kind, 0) + 1
                    break
                found = first_difference(ours, want, strides=strides)
                if found is not None:
                    wrong.append(f"{name}, {what}, turn {turn}: {found}")
                    break
    return counts, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--strategy", default="cpu_fallback")
    parser.add_argument("--no-strides", action="store_true", help="compare numbers and errors only")
    parser.add_argument(
        "--reference", help="the device to compare with, by numbers and errors (the same, without unhang)"
    )
    parser.add_argument("--dtypes", default="float32,float16,bfloat16,float64,complex64")
    parser.add_argument("--every", type=int, default=1, help="one sample of every N")
    parser.add_argument("--turns", type=int, default=TURNS, help="how often each is computed")
    parser.add_argument("--show", type=int, default=10, help="differences that are printed")
    chosen = parser.parse_args()
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    dtypes = [getattr(torch, name) for name in chosen.dtypes.split(",")]
    # A lazy layer creates its parameters where it is first called, from that device's random numbers.
    kept = [it for it in samples(chosen.device, dtypes) if chosen.reference is None or not it[0].startswith("Lazy")]
    listed = kept[:: chosen.every]
    # Devices lay out results differently.
    strides = chosen.reference is None and not chosen.no_strides
    reference = None
    if chosen.reference is not None:
        reference = [it for it in samples(chosen.reference, dtypes) if not it[0].startswith("Lazy")][:: chosen.every]
    options = {"strides": strides, "turns": chosen.turns, "reference": reference}
    counts, wrong = check(listed, chosen.strategy, chosen.device, **options)
    for name, count in sorted(counts.items()):
        print(f"{name:36}{count:6} samples{sum(it.startswith(f'{name},') for it in wrong):6} differ")
    for line in wrong[: chosen.show]:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as home:
        os.environ["UNHANG_HOME"] = home
        sys.exit(main())
