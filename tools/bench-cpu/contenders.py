"""The contenders: the engine, torch, and other engines if they are installed. Each call computes a layer once."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable

import torch
from layers import ROOT, Layer

Call = Callable[[], Any]
LAYOUTS = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}
#: Rust engines behind the library in contenders/.
RUST = ("tract", "rten", "candle")
HERE = Path(__file__).resolve().parent


def build(manifest: Path, library: str) -> Path:
    """Builds a crate of the benchmark in a separate folder and returns the path of its library."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "bench-cpu"
    command = ["cargo", "build", "--release", "--locked", "--manifest-path", str(manifest), "--target-dir", str(target)]
    subprocess.run(command, check=True)
    return target / "release" / f"lib{library}.so"


def load_engine(path: Path | None) -> ctypes.CDLL:
    """The engine's library, built if no path is given, with its C functions declared."""
    engine = ctypes.CDLL(str(path or build(HERE / "Cargo.toml", "unhang_bench_cpu")))
    engine.unhang_problem.restype = ctypes.c_void_p
    engine.unhang_problem.argtypes = [ctypes.c_char_p]
    engine.unhang_run.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_size_t]
    if not engine.unhang_use_torch_threads():
        print("torch's threads were not found: the engine computes on its own", file=sys.stderr)
    engine.unhang_peak.restype = ctypes.c_double
    engine.unhang_peak.argtypes = [ctypes.c_size_t]
    return engine


def load_others(path: Path) -> ctypes.CDLL:
    """The library with the Rust engines."""
    others = ctypes.CDLL(str(path))
    others.contender_new.restype = ctypes.c_void_p
    others.contender_new.argtypes = [ctypes.c_char_p] + [ctypes.c_void_p] * 4 + [ctypes.c_size_t]
    others.contender_run.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    return others


def tensors(layer: Layer, layout: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Image and filter."""
    torch.manual_seed(0)
    x = torch.randn(layer.n, layer.c, layer.h, layer.w)
    w = torch.randn(layer.k, layer.c // layer.groups, layer.r, layer.s)
    return x.to(memory_format=LAYOUTS[layout]), w.to(memory_format=LAYOUTS[layout])


def ours_and_torch(engine: ctypes.CDLL, layer: Layer, direction: str, layout: str, threads: int) -> tuple[Call, Call]:
    """The engine and torch. Both allocate their result, as in real use."""
    x, w = tensors(layer, layout)
    settings = (layer.stride, layer.padding, layer.dilation)

    def forward() -> torch.Tensor:
        return torch.nn.functional.conv2d(x, w, None, *settings, layer.groups)

    y = torch.randn(forward().shape).to(memory_format=LAYOUTS[layout])

    def backward(mask: list[bool]) -> Call:
        arguments = (*map(list, settings), False, [0, 0], layer.groups, mask)
        place = mask.index(True)
        return lambda: torch.ops.aten.convolution_backward(y, x, w, None, *arguments)[place]

    if direction == "forward":
        theirs, operands, like = forward, (x, w), y
    elif direction == "backward-data":
        theirs, operands, like = backward([True, False, False]), (y, w), x
    else:
        theirs, operands, like = backward([False, True, False]), (x, y), w
    problem = engine.unhang_problem(layer.key(direction, layout).encode())
    if not problem:
        sys.exit(f"not a problem: {layer.key(direction, layout)}")

    def ours() -> torch.Tensor:
        result = torch.empty_like(like, memory_format=torch.preserve_format)
        code = engine.unhang_run(problem, operands[0].data_ptr(), operands[1].data_ptr(), result.data_ptr(), threads)
        if code:
            sys.exit(f"the engine failed on {layer.key(direction, layout)}")
        return result

    return ours, theirs


def onnx_model(layer: Layer, w: torch.Tensor) -> bytes:
    """The layer as an ONNX file with its filter inside."""
    from onnx import TensorProto, helper, numpy_helper

    (sh, sw), (ph, pw), (dh, dw) = layer.stride, layer.padding, layer.dilation
    attributes = {"strides": [sh, sw], "pads": [ph, pw, ph, pw], "dilations": [dh, dw], "group": layer.groups}
    node = helper.make_node("Conv", ["x", "w"], ["y"], kernel_shape=[layer.r, layer.s], **attributes)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [layer.n, layer.c, layer.h, layer.w])
    spans = [d * (t - 1) + 1 for d, t in zip(layer.dilation, (layer.r, layer.s))]
    out = [(a + 2 * p - b) // s + 1 for a, p, b, s in zip((layer.h, layer.w), layer.padding, spans, layer.stride)]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [layer.n, layer.k, *out])
    graph = helper.make_graph([node], "layer", [x], [y], [numpy_helper.from_array(w.numpy(), "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    return bytes(model.SerializeToString())


def others(library: ctypes.CDLL | None, layer: Layer, threads: int) -> dict[str, Call]:
    """Engines other than torch, forward in NCHW; missing ones and those that reject the layer are left out."""
    x, w = tensors(layer, "nchw")
    try:
        import onnxruntime

        model = onnx_model(layer, w)
    except ImportError:
        return {}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    feed = {"x": x.numpy()}
    calls: dict[str, Call] = {"onnxruntime": lambda: torch.from_numpy(session.run(None, feed)[0])}
    if library is None:
        return calls
    numbers = [layer.n, layer.c, layer.h, layer.w, *w.shape]
    numbers += [layer.padding[0], layer.stride[0], layer.dilation[0], layer.groups]
    sizes = (ctypes.c_size_t * len(numbers))(*numbers)
    shape = calls["onnxruntime"]().shape
    for name in RUST:
        pointers = (ctypes.addressof(sizes), x.data_ptr(), w.data_ptr(), ctypes.cast(model, ctypes.c_void_p))
        contender = library.contender_new(name.encode(), *pointers, len(model))
        if not contender:
            continue

        def call(contender: int = contender, name: str = name) -> torch.Tensor | None:
            # The first call is compared with torch's result; the timed ones copy nothing out.
            checked = name not in seen
            seen.add(name)
            result = torch.empty(shape) if checked else None
            code = library.contender_run(contender, result.data_ptr() if result is not None else None, shape.numel())
            if code:
                sys.exit(f"{name} failed on {layer.name}")
            return result

        calls[name] = call
    seen: set[str] = set()
    return calls
