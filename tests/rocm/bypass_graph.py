"""A convolution of libunhang_miopen.so in a recorded graph, on HIP's own runtime: run once, recorded, replayed on other numbers.

Functions are looked up in handles, as XLA does it. Prints a line that starts with "right: " for each part.
"""

import array
import ctypes
import random
import sys

from hip import HIP

hip = HIP.library
miopen = ctypes.CDLL("libMIOpen.so.1")
POINTER = ctypes.c_void_p
N, C, H, W, K, R = 1, 3, 5, 6, 4, 3
FLOAT, TO_DEVICE, TO_HOST = 1, 1, 2


def check(status: int, what: str) -> None:
    if status != 0:
        sys.exit(f"{what} returned {status}")


def numbers(count: int) -> list[float]:
    return [random.uniform(-1, 1) for _ in range(count)]


def on_device(values: list[float]) -> POINTER:
    place = POINTER()
    data = array.array("f", values)
    check(hip.hipMalloc(ctypes.byref(place), ctypes.c_size_t(4 * len(values))), "hipMalloc")
    to_device(place, data)
    return place


def to_device(place: POINTER, data: "array.array[float]") -> None:
    address, _ = data.buffer_info()
    check(hip.hipMemcpy(place, POINTER(address), ctypes.c_size_t(4 * len(data)), TO_DEVICE), "hipMemcpy")


def from_device(place: POINTER, count: int) -> list[float]:
    data = array.array("f", [0.0] * count)
    address, _ = data.buffer_info()
    check(hip.hipMemcpy(POINTER(address), place, ctypes.c_size_t(4 * count), TO_HOST), "hipMemcpy")
    return list(data)


def tensor(*sizes: int) -> POINTER:
    found = POINTER()
    check(miopen.miopenCreateTensorDescriptor(ctypes.byref(found)), "miopenCreateTensorDescriptor")
    check(miopen.miopenSet4dTensorDescriptor(found, FLOAT, *sizes), "miopenSet4dTensorDescriptor")
    return found


def expected(x: list[float], w: list[float]) -> list[float]:
    result = []
    for k in range(K):
        for p in range(H):
            for q in range(W):
                total = 0.0
                for c in range(C):
                    for r in range(R):
                        for s in range(R):
                            h, v = p + r - 1, q + s - 1
                            if 0 <= h < H and 0 <= v < W:
                                total += x[(c * H + h) * W + v] * w[((k * C + c) * R + r) * R + s]
                result.append(total)
    return result


def compare(name: str, got: list[float], want: list[float]) -> None:
    worst = max(abs(a - b) for a, b in zip(got, want))
    if worst > 1e-5:
        sys.exit(f"wrong: {name}, off by {worst}")
    print(f"right: {name}, off by {worst:.1e}", flush=True)


def main() -> None:
    random.seed(7)
    stream, handle, convolution = POINTER(), POINTER(), POINTER()
    check(hip.hipStreamCreate(ctypes.byref(stream)), "hipStreamCreate")
    check(miopen.miopenCreateWithStream(ctypes.byref(handle), stream), "miopenCreateWithStream")
    check(miopen.miopenCreateConvolutionDescriptor(ctypes.byref(convolution)), "miopenCreateConvolutionDescriptor")
    check(miopen.miopenInitConvolutionDescriptor(convolution, 0, 1, 1, 1, 1, 1, 1), "miopenInitConvolutionDescriptor")
    xt, wt, yt = tensor(N, C, H, W), tensor(K, C, R, R), tensor(N, K, H, W)
    x, w = numbers(C * H * W), numbers(K * C * R * R)
    xp, wp, yp = on_device(x), on_device(w), on_device([0.0] * (K * H * W))
    size, one, zero = ctypes.c_size_t(), ctypes.c_float(1), ctypes.c_float(0)
    query = miopen.miopenConvolutionForwardGetWorkSpaceSize
    check(query(handle, wt, xt, convolution, yt, ctypes.byref(size)), "miopenConvolutionForwardGetWorkSpaceSize")
    space = on_device([0.0] * max(size.value // 4, 1))

    def convolve(xt: POINTER, yt: POINTER) -> int:
        return int(
            miopen.miopenConvolutionForward(
                handle, ctypes.byref(one), xt, xp, wt, wp, convolution, 1, ctypes.byref(zero), yt, yp, space, size
            )
        )

    check(convolve(xt, yt), "miopenConvolutionForward")
    check(hip.hipStreamSynchronize(stream), "hipStreamSynchronize")
    compare("run once", from_device(yp, K * H * W), expected(x, w))

    graph, executable = POINTER(), POINTER()
    check(hip.hipStreamBeginCapture(stream, 0), "hipStreamBeginCapture")
    check(convolve(xt, yt), "miopenConvolutionForward while recording")
    # One that was never run before: nothing can be loaded now, so that it is declined and the recording goes on.
    status = convolve(tensor(N, C, H - 1, W), tensor(N, K, H - 1, W))
    check(hip.hipStreamEndCapture(stream, ctypes.byref(graph)), "hipStreamEndCapture")
    if status != 6:
        sys.exit(f"wrong: a new convolution while recording returned {status}, and 6 (not implemented) was expected")
    print("right: a new convolution is declined while recording", flush=True)
    instantiate = hip.hipGraphInstantiate
    check(instantiate(ctypes.byref(executable), graph, None, None, ctypes.c_size_t(0)), "hipGraphInstantiate")
    x = numbers(C * H * W)
    to_device(xp, array.array("f", x))
    to_device(yp, array.array("f", [0.0] * (K * H * W)))
    check(hip.hipGraphLaunch(executable, stream), "hipGraphLaunch")
    check(hip.hipStreamSynchronize(stream), "hipStreamSynchronize")
    compare("replayed", from_device(yp, K * H * W), expected(x, w))


main()
