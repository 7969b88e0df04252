// Tensors of any strides: copies into and out of the order that the other kernels read, the planes of 3-d tensors, and the bias of a
// convolution.
//
// Constants: none but TYPE. An axis along which `from` has stride 0 is repeated.

struct StridedShape {
    int elements;
    int from_0, from_1, from_2, from_3, to_0, to_1, to_2, to_3;  // strides in elements; the last axis is the fastest
    Divisor by_1, by_2, by_3;                                    // the sizes of all axes but the first
};

struct Places {
    long long from, to;
};
DEVICE Places places_of(int index, const StridedShape& s) {
    const int i3 = split_off(index, s.by_3);
    const int i2 = split_off(index, s.by_2);
    const int i1 = split_off(index, s.by_1);
    Places places;
    places.from = (long long)index * s.from_0 + (long long)i1 * s.from_1 + (long long)i2 * s.from_2 + (long long)i3 * s.from_3;
    places.to = (long long)index * s.to_0 + (long long)i1 * s.to_1 + (long long)i2 * s.to_2 + (long long)i3 * s.to_3;
    return places;
}

extern "C" __global__ void __launch_bounds__(256)
    copy_strided(const Storage* __restrict__ from, Storage* __restrict__ to, StridedShape shape) {
    const int index = BLOCK_X * 256 + THREAD_X;
    if (index >= shape.elements) return;
    const Places places = places_of(index, shape);
    to[places.to] = from[places.from];
}

extern "C" __global__ void __launch_bounds__(256)
    add_strided(const Storage* __restrict__ from, Storage* __restrict__ to, StridedShape shape) {
    const int index = BLOCK_X * 256 + THREAD_X;
    if (index >= shape.elements) return;
    const Places places = places_of(index, shape);
    to[places.to] = narrow(widen(to[places.to]) + widen(from[places.from]));
}

// One workgroup for each element of `to`, along the first axis; the other axes are summed, in an order that is always the same.
extern "C" __global__ void __launch_bounds__(256)
    sum_strided(const Storage* __restrict__ from, Storage* __restrict__ to, StridedShape shape) {
    __shared__ Real parts[256];
    Real sum = 0;
    for (int index = THREAD_X; index < shape.elements; index += 256) sum += widen(from[places_of(index, shape).from + (long long)BLOCK_X * shape.from_0]);
    parts[THREAD_X] = sum;
    BARRIER();
    for (int half = 128; half > 0; half /= 2) {
        if (THREAD_X < half) parts[THREAD_X] += parts[THREAD_X + half];
        BARRIER();
    }
    if (THREAD_X == 0) to[(long long)BLOCK_X * shape.to_0] = narrow(parts[0]);
}

struct PlanesShape {
    int elements, from_start, to_start;
    int depth, planes;  // the first element's plane, and how many planes there are
    int from_0, from_1, from_2, from_3, from_4, from_5, to_0, to_1, to_2, to_3, to_4, to_5;  // the last axis is the fastest
    int depth_0, depth_1, depth_2, depth_3, depth_4, depth_5;  // planes from one to the next
    Divisor by_1, by_2, by_3, by_4, by_5;
};

// Copies planes of a 3-d tensor into a 2-d one, zeros where there is no such plane; or a 2-d one's into a 3-d one.
extern "C" __global__ void __launch_bounds__(256)
    copy_planes(const Storage* __restrict__ from, Storage* __restrict__ to, PlanesShape s) {
    int index = BLOCK_X * 256 + THREAD_X;
    if (index >= s.elements) return;
    const int i5 = split_off(index, s.by_5);
    const int i4 = split_off(index, s.by_4);
    const int i3 = split_off(index, s.by_3);
    const int i2 = split_off(index, s.by_2);
    const int i1 = split_off(index, s.by_1);
    const int depth = s.depth + index * s.depth_0 + i1 * s.depth_1 + i2 * s.depth_2 + i3 * s.depth_3 + i4 * s.depth_4 + i5 * s.depth_5;
    const int source = s.from_start + index * s.from_0 + i1 * s.from_1 + i2 * s.from_2 + i3 * s.from_3 + i4 * s.from_4 + i5 * s.from_5;
    const int target = s.to_start + index * s.to_0 + i1 * s.to_1 + i2 * s.to_2 + i3 * s.to_3 + i4 * s.to_4 + i5 * s.to_5;
    to[(long long)target] = depth >= 0 && depth < s.planes ? from[(long long)source] : narrow((Real)0);
}
