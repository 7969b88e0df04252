"""Batch normalisation, pooling, reductions and 3-d convolutions for `gpu_bench.py operations`: ours, torch's, and the
correct results.

Sizes are those of ResNet-50, VGG-16, DenseNet, Inception, YOLO's SPPF, a 3-d U-Net and R3D. Torch's batch normalisation
and convolutions are cuDNN's; its pooling and reductions are its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from unhang_ctypes import Engine

EPSILON, MOMENTUM = 1e-5, 0.1
Run = Callable[[], Any]

# Name, shape, channels last.
NORMALIZATIONS = [
    ("ResNet-50 stem", [32, 64, 112, 112], False),
    ("ResNet-50 stage 1", [32, 256, 56, 56], False),
    ("ResNet-50 stage 2", [32, 512, 28, 28], False),
    ("ResNet-50 stage 3", [32, 1024, 14, 14], False),
    ("ResNet-50 stage 4", [32, 2048, 7, 7], False),
    ("U-Net top", [4, 64, 256, 256], False),
    ("ResNet-50 stage 1 NHWC", [32, 256, 56, 56], True),
    ("3-d U-Net top", [1, 32, 64, 64, 64], False),
]
# Name, kind, shape, window, stride, padding, channels last.
POOLINGS = [
    ("ResNet-50 stem", "largest", [32, 64, 112, 112], 3, 2, 1, False),
    ("ResNet-50 stem NHWC", "largest", [32, 64, 112, 112], 3, 2, 1, True),
    ("VGG-16 first", "largest", [16, 64, 224, 224], 2, 2, 0, False),
    ("VGG-16 last", "largest", [32, 512, 14, 14], 2, 2, 0, False),
    ("YOLO SPPF", "largest", [16, 256, 20, 20], 5, 1, 2, False),
    ("3-d U-Net", "largest", [1, 32, 64, 64, 64], 2, 2, 0, False),
    ("DenseNet transition", "mean", [32, 128, 56, 56], 2, 2, 0, False),
    ("Inception branch", "inclusive", [32, 192, 35, 35], 3, 1, 1, False),
    ("Inception branch, exclusive", "mean", [32, 192, 35, 35], 3, 1, 1, False),
    ("ResNet-50 end", "mean", [32, 2048, 7, 7], 7, 7, 0, False),
    ("3-d U-Net", "mean", [1, 32, 64, 64, 64], 2, 2, 0, False),
]
# Name, kind, shape, reduced axes, channels last.
REDUCTIONS = [
    ("all of a tensor", "sum", [64, 1024, 1024], [0, 1, 2], False),
    ("all of a tensor", "norm2", [64, 1024, 1024], [0, 1, 2], False),
    ("channels' means", "mean", [32, 256, 56, 56], [2, 3], False),
    ("channels' sums over images", "sum", [32, 256, 56, 56], [0, 2, 3], False),
    ("channels' sums over images, NHWC", "sum", [32, 256, 56, 56], [0, 2, 3], True),
    ("rows of 768", "sum", [64, 512, 768], [2], False),
    ("rows of 50,257", "largest", [512, 50257], [1], False),
    ("rows of 10", "largest", [65536, 10], [1], False),
    ("columns", "sum", [4096, 4096], [0], False),
    ("the middle axis", "largest", [64, 512, 768], [1], False),
]
# Name, input, output channels, window, stride, padding.
VOLUMES = [
    ("3-d U-Net top", [1, 32, 64, 64, 64], 64, [3, 3, 3], [1, 1, 1], [1, 1, 1]),
    ("3-d U-Net middle", [1, 128, 16, 16, 16], 256, [3, 3, 3], [1, 1, 1], [1, 1, 1]),
    ("R3D stem", [4, 3, 16, 112, 112], 64, [3, 7, 7], [1, 2, 2], [1, 3, 3]),
    ("R3D block", [4, 64, 8, 56, 56], 64, [3, 3, 3], [1, 1, 1], [1, 1, 1]),
    ("temporal", [4, 64, 16, 56, 56], 64, [3, 1, 1], [1, 1, 1], [1, 0, 0]),
]


def tensor(shape: list[int], dtype: torch.dtype, is_last: bool = False) -> torch.Tensor:
    values = torch.rand(shape, device="cuda", dtype=torch.float32).mul_(2).sub_(1).to(dtype)
    return values.to(memory_format=torch.channels_last) if is_last else values


def five(numbers: tuple[int, ...] | list[int]) -> list[int]:
    """Sizes or strides with a depth, whose size is 1."""
    all_ = list(numbers)
    return all_ if len(all_) == 5 else [all_[0], all_[1], 1, all_[2], all_[3]]


def largest_share(pairs: list[tuple[torch.Tensor, torch.Tensor]], allowed: float) -> float:
    """The largest error, as a share of what is allowed; infinite if a result is not finite."""
    worst = 0.0
    for found, right in pairs:
        if not torch.isfinite(found).all():
            return math.inf
        scale = max(right.abs().max().item(), 1e-300) * allowed
        worst = max(worst, (found.double() - right).abs().max().item() / scale)
    return worst


class Case:
    """An operation: `prepare` returns ours and torch's, whose results `error` compares."""

    def __init__(
        self, name: str, bytes_moved: float, prepare: Callable[[], tuple[Run, Run, Callable[[float], float]]]
    ) -> None:
        self.name, self.bytes, self._prepare = name, bytes_moved, prepare
        self._error: Callable[[float], float] | None = None

    def prepare(self) -> tuple[Run, Run]:
        ours, theirs, self._error = self._prepare()
        return ours, theirs

    def error(self, tolerance: tuple[float, float]) -> float:
        assert self._error is not None
        return self._error(tolerance[1])

    def forget(self) -> None:
        self._error = None


def run_of(engine: Engine, asked: dict[str, Any], tensors: list[torch.Tensor | None], has_workspace: bool) -> Run:
    """A function that starts an operation on tensors. A null stands for a missing one."""
    handle, needed = engine.operation(asked)
    workspace = torch.empty(max(needed, 256), dtype=torch.uint8, device="cuda")
    held = [*tensors, workspace] if has_workspace else tensors
    addresses = [0 if it is None else it.data_ptr() for it in held]

    def run() -> None:
        # Tensors live as long as anyone may run this.
        assert len(held) == len(addresses)
        engine.run_operation(handle, addresses, torch.cuda.current_stream().cuda_stream)

    return run


def normalizations(engine: Engine, dtype: torch.dtype, dtype_name: str) -> Iterator[Case]:
    for name, shape, is_last in NORMALIZATIONS:
        for operation in ("train", "backward"):

            def prepare(shape: list[int] = shape, is_last: bool = is_last, operation: str = operation) -> Any:
                channels, pixels = shape[1], math.prod(shape[2:])
                x, dy = tensor(shape, dtype, is_last), tensor(shape, dtype, is_last)
                scale, bias = torch.rand(channels, device="cuda") + 0.5, torch.rand(channels, device="cuda")
                result, running = torch.empty_like(x), [torch.zeros(channels, device="cuda") for _ in range(4)]
                mean, inverse, of_scale, of_bias = (torch.empty(channels, device="cuda") for _ in range(4))
                aten = torch.ops.aten
                train = [scale, bias, running[0], running[1], True, MOMENTUM, EPSILON, True]
                _, saved_mean, saved_inverse, reserve, who = aten._batch_norm_impl_index(x, *train)
                strides = [channels * pixels, 1, channels] if is_last else [channels * pixels, pixels, 1]
                asked = {
                    "operation": operation,
                    "data_type": dtype_name,
                    "batch": shape[0],
                    "channels": channels,
                    "pixels": pixels,
                    "strides": strides,
                    "epsilon": EPSILON,
                    "momentum": MOMENTUM,
                }
                wide = [it.double() for it in (x, dy, scale, bias)]
                axes = [axis for axis in range(len(shape)) if axis != 1]
                each = [1, channels] + [1] * (len(shape) - 2)
                right_mean = wide[0].mean(axes)
                right_inverse = (wide[0].var(axes, unbiased=False) + EPSILON).rsqrt()
                normal = (wide[0] - right_mean.view(each)) * right_inverse.view(each)
                if operation == "train":
                    tensors = [x, result, None, None, scale, bias, mean, inverse, running[2], running[3], None, None]
                    right = normal * wide[2].view(each) + wide[3].view(each)
                    pairs = [(result, right), (mean, right_mean), (inverse, right_inverse)]

                    def theirs() -> Any:
                        return aten._batch_norm_impl_index(x, *train)

                else:
                    saved = [right_mean.float(), right_inverse.float()]
                    tensors = [x, result, dy, None, scale, bias, *saved, None, None, of_scale, of_bias]
                    sums = [wide[1].sum(axes), (wide[1] * normal).sum(axes)]
                    count = shape[0] * pixels
                    right = wide[1] - sums[0].view(each) / count - normal * sums[1].view(each) / count
                    right = right * (wide[2] * right_inverse).view(each)
                    pairs = [(result, right), (of_scale, sums[1]), (of_bias, sums[0])]

                    def theirs() -> Any:
                        return aten._batch_norm_impl_index_backward(
                            who,
                            x,
                            dy,
                            scale,
                            running[0],
                            running[1],
                            saved_mean,
                            saved_inverse,
                            True,
                            EPSILON,
                            [True] * 3,
                            reserve,
                        )

                ours = run_of(engine, {"normalization": asked}, tensors, True)
                return ours, theirs, lambda allowed: largest_share(pairs, allowed)

            # x is read for its moments and again for the result; in backward, the gradient of y too.
            passes = 3 if operation == "train" else 5
            yield Case(f"batch norm {operation}, {name}", passes * math.prod(shape) * dtype.itemsize, prepare)


def poolings(engine: Engine, dtype: torch.dtype, dtype_name: str) -> Iterator[Case]:
    aten = torch.ops.aten
    for name, kind, shape, window, stride, padding, is_last in POOLINGS:
        space = len(shape) - 2
        output = shape[:2] + [(size + 2 * padding - window) // stride + 1 for size in shape[2:]]
        full = [[number] * space for number in (window, stride, padding)]
        for backward in (False, True):

            def prepare(
                kind: str = kind,
                shape: list[int] = shape,
                output: list[int] = output,
                full: list[list[int]] = full,
                space: int = space,
                is_last: bool = is_last,
                backward: bool = backward,
            ) -> Any:
                x, dy = tensor(shape, dtype, is_last), tensor(output, dtype, is_last)
                indices = torch.zeros(output, dtype=torch.uint8, device="cuda")
                result = torch.full_like(x if backward else dy, math.nan)
                without_depth = [1, 1, 0]
                window, stride, padding = ([first] * (3 - space) + given for first, given in zip(without_depth, full))
                asked = {
                    "kind": kind,
                    "data_type": dtype_name,
                    "batch": shape[0],
                    "channels": shape[1],
                    "input": five(shape)[2:],
                    "output": five(output)[2:],
                    "window": window,
                    "stride": stride,
                    "padding": padding,
                    "x": five(x.stride()),
                    "y": five(dy.stride()),
                    "index_bytes": 1,
                }
                forward = run_of(
                    engine, {"pooling": {**asked, "backward": False}}, [x, torch.empty_like(dy), indices], False
                )
                forward()
                tensors = [dy if backward else x, result, indices]
                ours = run_of(engine, {"pooling": {**asked, "backward": backward}}, tensors, False)
                includes = kind == "inclusive"
                if kind == "largest":
                    pool = aten.max_pool2d_with_indices if space == 2 else aten.max_pool3d_with_indices
                    back = (
                        aten.max_pool2d_with_indices_backward if space == 2 else aten.max_pool3d_with_indices_backward
                    )
                    places = pool(x, *full)[1]
                    ones = [1] * space

                    def theirs() -> Any:
                        return back(dy, x, *full, ones, False, places) if backward else pool(x, *full)

                    right = (
                        back(dy.double(), x.double(), *full, ones, False, places)
                        if backward
                        else pool(x.double(), *full)[0]
                    )
                else:
                    pool = aten.avg_pool2d if space == 2 else aten.avg_pool3d
                    back = aten.avg_pool2d_backward if space == 2 else aten.avg_pool3d_backward
                    more = [False, includes, None]

                    def theirs() -> Any:
                        return back(dy, x, *full, *more) if backward else pool(x, *full, *more)

                    right = back(dy.double(), x.double(), *full, *more) if backward else pool(x.double(), *full, *more)
                return ours, theirs, lambda allowed: largest_share([(result, right)], allowed)

            elements = math.prod(shape) + math.prod(output)
            moved = elements * dtype.itemsize + (math.prod(output) if kind == "largest" else 0)
            way = "backward" if backward else "forward"
            what = "max pooling" if kind == "largest" else "mean pooling"
            yield Case(f"{what} {way}, {name} {window}/{stride}", moved, prepare)


def reductions(engine: Engine, dtype: torch.dtype, dtype_name: str) -> Iterator[Case]:
    for name, kind, shape, axes, is_last in REDUCTIONS:

        def prepare(kind: str = kind, shape: list[int] = shape, axes: list[int] = axes, is_last: bool = is_last) -> Any:
            x = tensor(shape, dtype, is_last)
            if kind in ("sum", "mean"):
                # Sums of numbers of both signs are near zero by chance.
                x = x.abs() / 64
            kept = [axis for axis in range(len(shape)) if axis not in axes]
            result = torch.full([shape[axis] for axis in kept], math.nan, device="cuda", dtype=dtype)
            indices = torch.full(result.shape, -1, device="cuda", dtype=torch.int32)
            asked = {
                "kind": kind,
                "data_type": dtype_name,
                "kept": [[shape[axis], x.stride(axis), result.stride(at)] for at, axis in enumerate(kept)],
                "reduced": [[shape[axis], x.stride(axis), 0] for axis in axes],
            }
            ours = run_of(engine, {"reduction": asked}, [x, result, indices if kind == "largest" else None], True)
            by_torch: dict[str, Callable[[torch.Tensor], Any]] = {
                "sum": lambda x: x.sum(axes),
                "mean": lambda x: x.mean(axes),
                "norm2": lambda x: torch.linalg.vector_norm(x, dim=axes),
                "largest": lambda x: x.max(axes[0]),
            }
            right = by_torch[kind](x.double())
            if kind == "largest":
                # Of equal elements torch may return any index.
                chosen = x.double()

                def error(allowed: float) -> float:
                    at = indices.long().unsqueeze(axes[0])
                    found = chosen.gather(axes[0], at).squeeze(axes[0])
                    return largest_share([(result, right[0]), (found, right[0])], allowed)

                return ours, lambda: by_torch[kind](x), error
            return ours, lambda: by_torch[kind](x), lambda allowed: largest_share([(result, right)], allowed)

        yield Case(f"reduction, {kind}, {name}", math.prod(shape) * dtype.itemsize, prepare)


def volumes(engine: Engine, dtype: torch.dtype, dtype_name: str) -> Iterator[Case]:
    for name, shape, out_channels, window, stride, padding in VOLUMES:
        sizes = zip(shape[2:], window, stride, padding)
        output = [shape[0], out_channels, *((size + 2 * pad - tap) // step + 1 for size, tap, step, pad in sizes)]
        weight_shape = [out_channels, shape[1], *window]
        for direction in ("forward", "backward-data", "backward-weights"):
            parts = ["x".join(map(str, numbers)) for numbers in (shape, [out_channels, *window], stride, padding)]
            key = f"{direction}:{dtype_name}:ncdhw:{parts[0]}:{parts[1]}:s{parts[2]}:p{parts[3]}:d1x1x1:g1"

            def prepare(
                shapes: tuple[list[int], list[int], list[int]] = (shape, weight_shape, output),
                stride: list[int] = stride,
                padding: list[int] = padding,
                direction: str = direction,
                key: str = key,
            ) -> Any:
                x, weight, dy = (tensor(it, dtype) for it in shapes)
                more = [stride, padding, [1] * 3, False, [0] * 3, 1]
                data = direction == "backward-data"
                first, second, like = {
                    "forward": (x, weight, dy),
                    "backward-data": (dy, weight, x),
                    "backward-weights": (x, dy, weight),
                }[direction]
                result = torch.full_like(like, math.nan)

                def by_torch(x: torch.Tensor, weight: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
                    if direction == "forward":
                        forward: torch.Tensor = torch.ops.aten.convolution(x, weight, None, *more)
                        return forward
                    mask = [data, not data, False]
                    gradient: torch.Tensor = torch.ops.aten.convolution_backward(dy, x, weight, None, *more, mask)[
                        not data
                    ]
                    return gradient

                with torch.backends.cudnn.flags(enabled=True):
                    right = by_torch(x.double(), weight.double(), dy.double())
                ours = run_of(engine, {"volume": key}, [first, second, result], True)
                return ours, lambda: by_torch(x, weight, dy), lambda allowed: largest_share([(result, right)], allowed)

            moved = sum(math.prod(it) for it in (shape, weight_shape, output)) * dtype.itemsize
            yield Case(f"3-d convolution {direction}, {name}", moved, prepare)


def cases(engine: Engine, dtype: torch.dtype, dtype_name: str) -> Iterator[Case]:
    """All cases, one after the other: the tensors of one live only as long as it does."""
    yield from normalizations(engine, dtype, dtype_name)
    yield from poolings(engine, dtype, dtype_name)
    yield from reductions(engine, dtype, dtype_name)
    yield from volumes(engine, dtype, dtype_name)
