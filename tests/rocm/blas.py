"""A product of matrices through rocBLAS or hipBLAS, by their C interface, in sizes that take more than one kernel."""

from __future__ import annotations

import ctypes
import sys

from hip import Buffer, Library, conclude, numbers, product

#: Neither transposed: the same number in both libraries.
NONE = 111


def main(which: str) -> None:
    library = (
        Library("librocblas.so.4", "librocblas.so.5")
        if which == "rocblas"
        else Library("libhipblas.so.2", "libhipblas.so.3")
    )
    create, gemm, axpy = (
        (library.rocblas_create_handle, library.rocblas_sgemm, library.rocblas_saxpy)
        if which == "rocblas"
        else (library.hipblasCreate, library.hipblasSgemm, library.hipblasSaxpy)
    )
    handle = ctypes.c_void_p()
    create(ctypes.byref(handle))
    one, zero = ctypes.c_float(1), ctypes.c_float(0)
    for m, n, k in ((4, 4, 4), (33, 17, 29), (64, 64, 64)):
        a, b = numbers(m * k, 1), numbers(k * n, 2)
        on_a, on_b, on_c = Buffer(a), Buffer(b), Buffer([0.0] * (m * n))
        gemm(
            *(handle, NONE, NONE, m, n, k, ctypes.byref(one), on_a.address, m),
            *(on_b.address, k, ctypes.byref(zero), on_c.address, m),
        )
        conclude(f"{which} sgemm {m}x{n}x{k}", on_c.read(), product(a, b, m, n, k))
    x, y = numbers(1000, 3), numbers(1000, 4)
    on_x, on_y = Buffer(x), Buffer(y)
    axpy(handle, 1000, ctypes.byref(ctypes.c_float(2)), on_x.address, 1, on_y.address, 1)
    conclude(f"{which} saxpy", on_y.read(), [2 * p + q for p, q in zip(x, y)])


if __name__ == "__main__":
    main(sys.argv[1])
