"""Small operations on ggml's HIP backend, compared with its CPU backend."""

from __future__ import annotations

import ctypes
import sys

from hip import conclude, numbers

BASE = ctypes.CDLL("libggml-base.so.0")
GGML = ctypes.CDLL("libggml.so.0")
HIP_BACKEND = "/usr/lib/x86_64-linux-gnu/ggml/backends0/libggml-hip.so"
F32 = 0


class InitParams(ctypes.Structure):
    _fields_ = (("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool))


def function(name: str, result: type | None, *arguments: type) -> ctypes._FuncPointer:
    for library in (BASE, GGML):
        try:
            found = getattr(library, name)
        except AttributeError:
            continue
        found.restype, found.argtypes = result, arguments
        return found
    sys.exit(f"ggml has no {name}")


P, SIZE, INT, LONG, FLOAT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int64, ctypes.c_float
OPERATIONS = ("add", "mul_mat", "rms_norm", "soft_max")


def compute(backend: int, operation: str) -> list[float]:
    """One operation on two tensors of 64 by 8, on a backend."""
    columns, rows = 64, 8
    context = function("ggml_init", P, InitParams)(InitParams(1 << 20, None, True))
    tensor = function("ggml_new_tensor_2d", P, P, INT, LONG, LONG)
    a, b = tensor(context, F32, columns, rows), tensor(context, F32, columns, rows)
    if operation == "rms_norm":
        result = function("ggml_rms_norm", P, P, P, FLOAT)(context, a, 1e-5)
    elif operation == "soft_max":
        result = function("ggml_soft_max", P, P, P)(context, a)
    else:
        result = function(f"ggml_{operation}", P, P, P, P)(context, a, b)
    graph = function("ggml_new_graph", P, P)(context)
    function("ggml_build_forward_expand", None, P, P)(graph, result)
    if not function("ggml_backend_alloc_ctx_tensors", P, P, P)(context, backend):
        sys.exit("the backend gave no memory")
    for at, seed in ((a, 1), (b, 2)):
        data = (FLOAT * (columns * rows))(*numbers(columns * rows, seed))
        function("ggml_backend_tensor_set", None, P, P, SIZE, SIZE)(at, data, 0, ctypes.sizeof(data))
    code = function("ggml_backend_graph_compute", INT, P, P)(backend, graph)
    if code != 0:
        sys.exit(f"ggml_backend_graph_compute failed with {code}")
    count = function("ggml_nbytes", SIZE, P)(result) // 4
    found = (FLOAT * count)()
    function("ggml_backend_tensor_get", None, P, P, SIZE, SIZE)(result, found, 0, ctypes.sizeof(found))
    return list(found)


def main() -> None:
    registry = function("ggml_backend_load", P, ctypes.c_char_p)(HIP_BACKEND.encode())
    if not registry:
        sys.exit("ggml's HIP backend does not load")
    device = function("ggml_backend_reg_dev_get", P, P, SIZE)(registry, 0)
    hip = function("ggml_backend_dev_init", P, P, ctypes.c_char_p)(device, None)
    function("ggml_backend_load_all", None)()
    cpu = function("ggml_backend_init_by_type", P, INT, ctypes.c_char_p)(0, None)
    if not hip or not cpu:
        sys.exit("a backend of ggml's does not start")
    for operation in OPERATIONS:
        conclude(f"ggml {operation}", compute(hip, operation), compute(cpu, operation))


if __name__ == "__main__":
    main()
