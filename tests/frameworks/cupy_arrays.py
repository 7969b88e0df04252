"""CuPy, unmodified, on the card of this process: small computations compared with NumPy's.

    python3 cupy_arrays.py [PART…]

Prints a line for each part. CuPy asks MIOpen for nothing. Sorting is compiled in the wheel, for other chips than
gfx1010, and HIP 7.2 crashes where a kernel without code is launched: natively it is left out. The last line says how
many of the other parts are as they should be.
"""

import sys

import cupy
import cupyx.scipy.ndimage
import numpy
import scipy.ndimage

NUMBERS = numpy.random.default_rng(11)
#: How far a number may be from NumPy's, relative to the largest.
TOLERANCE = 1e-5

#: A kernel in CuPy's own way, with local memory and a barrier: sums of 64 numbers each.
SUMS = cupy.RawKernel(
    r"""
extern "C" __global__ void sums(const float* numbers, float* results) {
    __shared__ float shared[64];
    shared[threadIdx.x] = numbers[blockIdx.x * 64 + threadIdx.x];
    __syncthreads();
    for (int width = 32; width > 0; width /= 2) {
        if (threadIdx.x < width) shared[threadIdx.x] += shared[threadIdx.x + width];
        __syncthreads();
    }
    if (threadIdx.x == 0) results[blockIdx.x] = shared[0];
}
""",
    "sums",
)


def random(*shape):
    return NUMBERS.standard_normal(shape).astype("float32")


def elements():
    """Elementwise kernels, broadcasting and views."""
    a, b = random(7, 5, 33), random(5, 1)

    def compute(module, a, b):
        return module.tanh(a[::2, :, ::-1] * b + 0.5) / (1 + module.abs(a[1::2].mean()))

    return compute(cupy, cupy.asarray(a), cupy.asarray(b)), compute(numpy, a, b)


def reductions():
    """Sums, means, the largest and where it is, along axes."""
    a = random(9, 40, 21)

    def compute(module, a):
        parts = [a.sum(1), a.mean((0, 2)), a.max(2), a.std(0), a.argmax(1).astype("float32"), module.cumsum(a[0], 1)]
        return module.concatenate([part.ravel() for part in parts])

    return compute(cupy, cupy.asarray(a)), compute(numpy, a)


def matrices():
    """Products of matrices by rocBLAS, one and a stack."""
    a, b, c = random(48, 31), random(31, 20), random(3, 20, 17)

    def compute(a, b, c):
        return (a @ b) @ c

    return compute(cupy.asarray(a), cupy.asarray(b), cupy.asarray(c)), compute(a, b, c)


def own_kernel():
    """A kernel of the user's, compiled at run time."""
    numbers = random(12, 64)
    results = cupy.empty(12, "float32")
    SUMS((12,), (64,), (cupy.asarray(numbers), results))
    return results, numbers.sum(1)


def transforms():
    """Fourier transforms by rocFFT, there and back."""
    a = random(4, 60)
    card = cupy.asarray(a)
    there, back = cupy.fft.fft(card), cupy.fft.irfft(cupy.fft.rfft(card), 60)
    wanted = numpy.fft.fft(a)
    parts = [there.real, there.imag, back]
    return cupy.stack([part.astype("float32") for part in parts]), numpy.stack([wanted.real, wanted.imag, a])


def sorted_numbers():
    """Sorting by rocPRIM."""
    a = random(5, 300)
    return cupy.sort(cupy.asarray(a), axis=1), numpy.sort(a, axis=1)


def filters():
    """A convolution of CuPy's own."""
    image, window = random(24, 31), random(5, 3)
    return cupyx.scipy.ndimage.convolve(cupy.asarray(image), cupy.asarray(window)), scipy.ndimage.convolve(
        image, window
    )


def draws():
    """Random numbers by rocRAND: the moments of many."""
    numbers = cupy.random.RandomState(5).standard_normal(8192, dtype="float32")
    moments = cupy.stack([numbers.mean(), numbers.var(), (numbers > 0).mean().astype("float32")])
    # Four standard deviations of each moment.
    near = cupy.abs(moments - cupy.asarray([0, 1, 0.5], "float32")) < cupy.asarray([0.045, 0.0625, 0.0225], "float32")
    return near.astype("float32"), numpy.ones(3, "float32")


PARTS = {
    "elements": elements,
    "reductions": reductions,
    "matrices": matrices,
    "own-kernel": own_kernel,
    "transforms": transforms,
    "sorted": sorted_numbers,
    "filters": filters,
    "draws": draws,
}


#: Parts that the wheel brings as machine code.
COMPILED = ("sorted",)


def main() -> int:
    wanted, good = sys.argv[1:] or list(PARTS), 0
    card = cupy.cuda.runtime.getDeviceProperties(0)
    print(f"CuPy {cupy.__version__} on {card['name'].decode()}", flush=True)
    if card["gcnArchName"].startswith(b"gfx101"):
        wanted = [part for part in wanted if part not in COMPILED]
        print(f"left out, no code in the wheel: {', '.join(COMPILED)}", flush=True)
    for part in wanted:
        words = PARTS[part].__doc__.rstrip(".")
        try:
            results, right = PARTS[part]()
            error = float(numpy.abs(cupy.asnumpy(results) - right).max() / numpy.abs(right).max())
        except Exception as failed:  # CuPy's own kinds are many
            print(f"failed: {words}: {type(failed).__name__} {str(failed)[:300]}", flush=True)
            continue
        # Not "error > TOLERANCE": no number is not right either.
        is_right = error <= TOLERANCE
        good += is_right
        print(f"{'right' if is_right else 'wrong'}: {words}, off by {error:.1e} of the largest", flush=True)
    print(f"{good} of {len(wanted)} parts are as they should be", flush=True)
    return 0 if wanted and good == len(wanted) else 1


if __name__ == "__main__":
    sys.exit(main())
