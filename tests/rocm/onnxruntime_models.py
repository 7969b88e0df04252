"""onnxruntime-rocm from PyPI, unmodified, on the card of this process: small models against its own CPU provider.

    python3 onnxruntime_models.py [LIBRARY [--wrong]]

With LIBRARY (libunhang_miopen.so) that is preloaded, and every convolution must have been computed by our kernels, as that library counts
them itself. `--wrong` makes their results wrong on purpose; then every model has to be computed, and none may be right. Without LIBRARY MIOpen computes. Prints a line that
starts with "right: " for each model that is.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

#: Where tools/rocm-root puts the wheel and what it needs.
PACKAGES = "/opt/onnxruntime/packages"
#: Libraries that the wheel is linked to and Debian does not have.
LIBRARIES = "/opt/onnxruntime/lib"
#: Models with steps that neither MIOpen nor hipBLAS computes.
OWN_KERNELS = ("convolution, bias and leaky ReLU", "a small residual network")
#: How many models there are.
MODELS = 13
CHILD = "UNHANG_TEST_ONNXRUNTIME"
DEADLINE = 1500


def models():
    """Name, model, inputs' shape and type, convolutions in it, tolerance relative to the largest number."""
    import numpy
    from onnx import TensorProto, helper

    numbers = numpy.random.default_rng(7)

    def tensor(name, shape, kind):
        values = (numbers.standard_normal(shape) / numpy.sqrt(numpy.prod(shape[1:]))).astype(kind)
        number = TensorProto.FLOAT16 if kind == "float16" else TensorProto.FLOAT
        return helper.make_tensor(name, number, shape, values.tobytes(), raw=True)

    def model(nodes, weights, shape, kind="float32"):
        number = TensorProto.FLOAT16 if kind == "float16" else TensorProto.FLOAT
        graph = helper.make_graph(
            nodes,
            "model",
            [helper.make_tensor_value_info("x", number, shape)],
            [helper.make_tensor_value_info("y", number, None)],
            [tensor(name, size, kind) for name, size in weights.items()],
        )
        built = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
        built.ir_version = 8
        return built.SerializeToString()

    def convolution(source, weight, target, bias=None, kind="Conv", **attributes):
        return helper.make_node(kind, [source, weight, *([bias] if bias else [])], [target], **attributes)

    same = {"pads": [1, 1, 1, 1]}
    plain = [2, 6, 9, 8]

    def one(name, weight, shape=plain, kind="float32", bias=False, operator="Conv", tolerance=1e-5, **attributes):
        rows = weight[1] * attributes.get("group", 1) if operator == "ConvTranspose" else weight[0]
        weights = {"w": weight, **({"b": [rows]} if bias else {})}
        node = convolution("x", "w", "y", "b" if bias else None, kind=operator, **attributes)
        return name, model([node], weights, shape, kind), shape, kind, 1, tolerance

    yield one("convolution 3x3", [8, 6, 3, 3], **same)
    yield one("convolution 3x3 with bias", [8, 6, 3, 3], bias=True, **same)
    yield one("convolution 1x1", [8, 6, 1, 1])
    yield one(
        "convolution 5x3, stride 2, dilation 2", [8, 6, 5, 3], strides=[2, 2], dilations=[1, 2], pads=[2, 2, 2, 2]
    )
    yield one("2 groups", [8, 3, 3, 3], group=2, **same)
    yield one("depthwise", [6, 1, 3, 3], group=6, **same)
    yield one("one dimension", [8, 6, 3], shape=[2, 6, 21], pads=[1, 1])
    yield one("half precision", [8, 6, 3, 3], kind="float16", tolerance=2e-3, **same)
    yield one("transposed, stride 2", [6, 5, 3, 3], operator="ConvTranspose", strides=[2, 2], **same)
    yield one("transposed, 2 groups, bias", [6, 4, 2, 2], operator="ConvTranspose", strides=[2, 2], group=2, bias=True)

    relu = [convolution("x", "w", "c", "b", **same), helper.make_node("Relu", ["c"], ["y"])]
    yield (
        "convolution, bias and ReLU, fused",
        model(relu, {"w": [8, 6, 3, 3], "b": [8]}, plain),
        plain,
        "float32",
        1,
        1e-5,
    )
    leaky = [convolution("x", "w", "c", "b", **same), helper.make_node("LeakyRelu", ["c"], ["y"], alpha=0.1)]
    yield (
        "convolution, bias and leaky ReLU",
        model(leaky, {"w": [8, 6, 3, 3], "b": [8]}, plain),
        plain,
        "float32",
        1,
        1e-5,
    )
    yield residual_network(model, convolution, helper)


def residual_network(model, convolution, helper):
    """Two residual blocks, the second with a stride and a projection, pooling and a linear layer."""
    nodes, weights = [], {}

    def step(source, target, rows, channels, size=3, stride=1, activate=True):
        padding = [size // 2] * 4
        name = f"w{len(weights)}"
        weights.update({name: [rows, channels, size, size], f"b{name}": [rows]})
        result = f"{target}.c" if activate else target
        nodes.append(convolution(source, name, result, f"b{name}", pads=padding, strides=[stride, stride]))
        if activate:
            nodes.append(helper.make_node("Relu", [result], [target]))

    step("x", "stem", 8, 3)
    step("stem", "a1", 8, 8)
    step("a1", "a2", 8, 8, activate=False)
    nodes.append(helper.make_node("Add", ["a2", "stem"], ["a3"]))
    nodes.append(helper.make_node("Relu", ["a3"], ["a"]))
    step("a", "b1", 16, 8, stride=2)
    step("b1", "b2", 16, 16, activate=False)
    step("a", "b3", 16, 8, size=1, stride=2, activate=False)
    nodes.append(helper.make_node("Add", ["b2", "b3"], ["b4"]))
    nodes.append(helper.make_node("Relu", ["b4"], ["b"]))
    nodes.append(helper.make_node("GlobalAveragePool", ["b"], ["p"]))
    nodes.append(helper.make_node("Flatten", ["p"], ["f"]))
    weights.update({"l": [16, 10], "lb": [10]})
    nodes.append(helper.make_node("Gemm", ["f", "l", "lb"], ["y"]))
    return "a small residual network", model(nodes, weights, [1, 3, 16, 16]), [1, 3, 16, 16], "float32", 6, 1e-4


def compute() -> int:
    """In the child: every model by both providers."""
    sys.path.insert(0, PACKAGES)
    import numpy
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    gpu_only = onnxruntime.SessionOptions()
    gpu_only.log_severity_level = 3
    gpu_only.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    wrong = convolutions = seen = 0
    native = not os.environ.get("HSA_OVERRIDE_GFX_VERSION")
    for name, model, shape, kind, count, tolerance in models():
        seen += 1
        if native and name in OWN_KERNELS:
            print(
                f"not run: {name}: the wheel has no code for gfx1010 in its own kernels, and HIP crashes there",
                flush=True,
            )
            continue
        x = numpy.random.default_rng(3).standard_normal(shape).astype(kind)
        want = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
        try:
            session = onnxruntime.InferenceSession(model, gpu_only, providers=["ROCMExecutionProvider"])
            got = session.run(None, {"x": x})[0]
        except Exception as error:  # onnxruntime's own kinds are many
            print(f"failed: {name}: {str(error)[:300]}", flush=True)
            wrong += 1
            continue
        error = float(numpy.abs(got.astype("f8") - want.astype("f8")).max() / numpy.abs(want.astype("f8")).max())
        convolutions += count
        right = got.shape == want.shape and error <= tolerance
        wrong += not right
        print(f"{'right' if right else 'wrong'}: {name}, off by {error:.1e} of the largest", flush=True)
    if seen != MODELS:
        print(f"failed: {seen} models were tried and not {MODELS}", flush=True)
        wrong += 1
    print(f"asked for {convolutions} convolutions", flush=True)
    return 1 if wrong else 0


def judge_wrong(text: str) -> int:
    """Every model that there is has to have been computed, wrongly, or to be named as one that cannot run here."""
    lines = text.splitlines()
    kinds = ("right: ", "wrong: ", "failed: ", "not run: ")
    ended = {kind: [line for line in lines if line.startswith(kind)] for kind in kinds}
    wrong, not_run = len(ended["wrong: "]), len(ended["not run: "])
    allowed = 0 if os.environ.get("HSA_OVERRIDE_GFX_VERSION") else len(OWN_KERNELS)
    if wrong + not_run != MODELS or not_run != allowed or ended["right: "] or ended["failed: "]:
        print(f"of {MODELS} models {wrong} are wrong, and {not_run} were not run: a model is missing, right or failed")
        return 1
    print(f"none of {wrong} models is right, as it should be")
    return 0


def main() -> int:
    if os.environ.get(CHILD):
        return compute()
    if not os.path.isdir(PACKAGES):
        print("skipped: onnxruntime-rocm is not in this root: tools/rocm-root DIR --release experimental brings it")
        return 0
    library = sys.argv[1] if len(sys.argv) > 1 else ""
    wrong = "--wrong" in sys.argv
    with tempfile.TemporaryDirectory() as folder:
        preload = ":".join(it for it in (os.environ.get("LD_PRELOAD"), library) if it)
        environment = {**os.environ, CHILD: "1", "LD_PRELOAD": preload, "UNHANG_RUN_FOLDER": folder}
        environment["UNHANG_MIOPEN_WRONG"] = "1" if wrong else "0"
        environment["LD_LIBRARY_PATH"] = LIBRARIES
        ran = subprocess.run(
            [sys.executable, __file__], env=environment, stdout=subprocess.PIPE, text=True, timeout=DEADLINE
        )
        print(ran.stdout, end="", flush=True)
        if wrong:
            return judge_wrong(ran.stdout)
        if not library or ran.returncode:
            return ran.returncode
        asked = int(ran.stdout.rpartition("asked for ")[2].split()[0])
        counted = [json.loads(path.read_text()) for path in pathlib.Path(folder).glob("done-*-miopen.json")]
        by_us = sum(it["calls"] for each in counted for it in each["asked"] if it["engine"] == "jit")
        callers = {os.path.basename(it["library"]) for each in counted for it in each["asked"]}
    print(f"{by_us} of {asked} convolutions computed by our kernels, asked for by {', '.join(sorted(callers))}")
    return 0 if by_us == asked and callers == {"libonnxruntime_providers_rocm.so"} else 1


if __name__ == "__main__":
    sys.exit(main())
