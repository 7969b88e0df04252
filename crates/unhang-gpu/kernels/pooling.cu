// Pooling over up to three axes of space: the largest element of each window, with where it is, or the mean; and the gradients.
//
// Constants: none but TYPE. A thread makes one element of the result (of a gradient four of a row), in the order in which these are in
// memory. Windows as narrow as most are read a row at once. Elements that are no numbers are never the largest; a window of nothing else is minus infinity.
//
// There is no division and no library function: those are calls, or differ from chip to chip.

struct PoolingAxis {
    int input, output;            // sizes
    int window, stride, padding;
    int x, y;                     // elements from one to the next
    int place;                    // what an index grows by
    Divisor by_stride;
};

struct PoolingShape {
    int elements;                                        // of the result; of a gradient, fours of a row
    int channels_last;                                   // whether its channels are neighbours
    Divisor by_channels, by_depth, by_height, by_width;  // its sizes; of a gradient, fours of a row
    int x_image, x_channel, y_image, y_channel;
    PoolingAxis d, h, w;
    int index_bits;                                      // log2 of the bytes of an index
    int index_in_window;                                 // an index counts in its window, else in the image
    int taps, inclusive;                                 // whether means are over all taps, else over those that are there
    Scalar inverse_taps, alpha, beta;
};

struct Spot {
    int image, channel, d, h, w;
};
DEVICE Spot spot_of(int index, const PoolingShape& s) {
    Spot p;
    p.channel = 0;
    if (s.channels_last) p.channel = split_off(index, s.by_channels);
    p.w = split_off(index, s.by_width);
    p.h = split_off(index, s.by_height);
    p.d = split_off(index, s.by_depth);
    if (!s.channels_last) p.channel = split_off(index, s.by_channels);
    p.image = index;
    return p;
}
DEVICE int place_in_x(const Spot& p, const PoolingShape& s) { return p.image * s.x_image + p.channel * s.x_channel; }
DEVICE int place_in_y(const Spot& p, const PoolingShape& s) { return p.image * s.y_image + p.channel * s.y_channel; }
// Indices are in the order of the axes whatever the tensors are.
DEVICE int first_index(const Spot& p, const PoolingShape& s) {
    return (p.image * s.by_channels.value + p.channel) * s.d.output * s.h.output * s.w.output;
}

DEVICE int smaller(int a, int b) { return a < b ? a : b; }
DEVICE int larger(int a, int b) { return a > b ? a : b; }

// What of a window is in the image, along one axis; and where indices along it count from.
struct Span {
    int start, begin, end, origin;
};
DEVICE Span span_of(int output, const PoolingAxis& a, int index_in_window) {
    Span t;
    t.start = output * a.stride - a.padding;
    t.begin = larger(t.start, 0);
    t.end = smaller(t.start + a.window, a.input);
    t.origin = index_in_window ? t.start : 0;
    return t;
}
DEVICE int count_of(int output, const PoolingAxis& a) {
    const int start = output * a.stride - a.padding;
    return smaller(start + a.window, a.input) - larger(start, 0);
}
// The windows that have an element, along one axis.
struct Reach {
    int begin, end;
};
DEVICE Reach reach_of(int input, const PoolingAxis& a) {
    Reach r;
    const int at = input + a.padding, over = at - a.window;
    r.begin = over < 0 ? 0 : divide(over, a.by_stride) + 1;
    r.end = smaller(divide(at, a.by_stride) + 1, a.output);
    return r;
}

DEVICE void store_index(void* indices, int at, int bits, int value) {
    if (bits == 0) ((unsigned char*)indices)[at] = (unsigned char)value;
    else if (bits == 1) ((unsigned short*)indices)[at] = (unsigned short)value;
    else if (bits == 2) ((unsigned*)indices)[at] = (unsigned)value;
    else ((unsigned long long*)indices)[at] = (unsigned long long)value;
}
DEVICE int load_index(const void* indices, int at, int bits) {
    if (bits == 0) return (int)((const unsigned char*)indices)[at];
    if (bits == 1) return (int)((const unsigned short*)indices)[at];
    if (bits == 2) return (int)((const unsigned*)indices)[at];
    return (int)((const unsigned long long*)indices)[at];
}
// alpha × value + beta × what was there, which is not looked at where beta is 0.
DEVICE void store_result(Storage* to, Real value, const PoolingShape& s) {
    const Real beta = real_of(s.beta);
    value *= real_of(s.alpha);
    if (beta != (Real)0) value += beta * widen(*to);
    *to = narrow(value);
}

struct Largest {
    Real value;
    int place;
};
// COLUMNS: those of the window, or 0 where there are more. What is outside of the image stands for its edge, which is never larger.
template <int COLUMNS>
DEVICE Largest largest_of(const Storage* x, const Span& d, const Span& h, const Span& w, const PoolingShape& s) {
    Largest best;
    best.value = -INFINITE;
    best.place = (d.begin - d.origin) * s.d.place + (h.begin - h.origin) * s.h.place + (w.begin - w.origin);
    if (w.begin >= w.end) return best;
    int columns[COLUMNS + 1];
#pragma unroll
    for (int i = 0; i < COLUMNS; ++i) columns[i] = smaller(larger(w.start + i, 0), s.w.input - 1);
    for (int i = d.begin; i < d.end; ++i)
        for (int j = h.begin; j < h.end; ++j) {
            const Storage* row = x + (i * s.d.x + j * s.h.x);
            const int place = (i - d.origin) * s.d.place + (j - h.origin) * s.h.place - w.origin;
            if (COLUMNS > 0) {
                Real v[COLUMNS + 1];
#pragma unroll
                for (int k = 0; k < COLUMNS; ++k) v[k] = widen(row[columns[k] * s.w.x]);
#pragma unroll
                for (int k = 0; k < COLUMNS; ++k) {
                    const bool is_larger = v[k] > best.value;
                    best.value = is_larger ? v[k] : best.value;
                    best.place = is_larger ? place + columns[k] : best.place;
                }
            } else {
#pragma unroll 4
                for (int k = w.begin; k < w.end; ++k) {
                    const Real v = widen(row[k * s.w.x]);
                    const bool is_larger = v > best.value;
                    best.value = is_larger ? v : best.value;
                    best.place = is_larger ? place + k : best.place;
                }
            }
        }
    return best;
}
template <int COLUMNS>
DEVICE Real sum_of(const Storage* x, const Span& d, const Span& h, const Span& w, const PoolingShape& s) {
    Real sum = (Real)0;
    if (w.begin >= w.end) return sum;
    int columns[COLUMNS + 1];
#pragma unroll
    for (int i = 0; i < COLUMNS; ++i) columns[i] = smaller(larger(w.start + i, 0), s.w.input - 1);
    for (int i = d.begin; i < d.end; ++i)
        for (int j = h.begin; j < h.end; ++j) {
            const Storage* row = x + (i * s.d.x + j * s.h.x);
            if (COLUMNS > 0) {
                Real v[COLUMNS + 1];
#pragma unroll
                for (int k = 0; k < COLUMNS; ++k) v[k] = widen(row[columns[k] * s.w.x]);
#pragma unroll
                for (int k = 0; k < COLUMNS; ++k) sum += columns[k] == w.start + k ? v[k] : (Real)0;
            } else {
#pragma unroll 4
                for (int k = w.begin; k < w.end; ++k) sum += widen(row[k * s.w.x]);
            }
        }
    return sum;
}
// Of a mean over that many elements; over none it is a sum.
DEVICE Real inverse_of_count(int count, const PoolingShape& s) {
    if (s.inclusive || count == s.taps) return real_of(s.inverse_taps);
    return count > 1 ? reciprocal((Real)count) : (Real)1;
}

extern "C" __global__ void __launch_bounds__(256)
    pooling_largest(const Storage* __restrict__ x, Storage* __restrict__ y, void* __restrict__ indices, PoolingShape shape) {
    const int index = BLOCK_X * 256 + THREAD_X;
    if (index >= shape.elements) return;
    const Spot p = spot_of(index, shape);
    const Span d = span_of(p.d, shape.d, shape.index_in_window), h = span_of(p.h, shape.h, shape.index_in_window);
    const Span w = span_of(p.w, shape.w, shape.index_in_window);
    const Storage* from = x + place_in_x(p, shape);
    const int columns = shape.w.window;
    const Largest best = columns == 3   ? largest_of<3>(from, d, h, w, shape)
                         : columns == 2 ? largest_of<2>(from, d, h, w, shape)
                                        : largest_of<0>(from, d, h, w, shape);
    store_result(y + (place_in_y(p, shape) + p.d * shape.d.y + p.h * shape.h.y + p.w * shape.w.y), best.value, shape);
    if (indices == nullptr) return;
    const int at = first_index(p, shape) + (p.d * shape.h.output + p.h) * shape.w.output + p.w;
    store_index(indices, at, shape.index_bits, best.place);
}

extern "C" __global__ void __launch_bounds__(256)
    pooling_mean(const Storage* __restrict__ x, Storage* __restrict__ y, PoolingShape shape) {
    const int index = BLOCK_X * 256 + THREAD_X;
    if (index >= shape.elements) return;
    const Spot p = spot_of(index, shape);
    const Span d = span_of(p.d, shape.d, 0), h = span_of(p.h, shape.h, 0), w = span_of(p.w, shape.w, 0);
    const Storage* from = x + place_in_x(p, shape);
    const int columns = shape.w.window;
    const Real sum = columns == 3   ? sum_of<3>(from, d, h, w, shape)
                     : columns == 2 ? sum_of<2>(from, d, h, w, shape)
                                    : sum_of<0>(from, d, h, w, shape);
    const int count = (d.end - d.begin) * (h.end - h.begin) * (w.end - w.begin);
    Storage* to = y + (place_in_y(p, shape) + p.d * shape.d.y + p.h * shape.h.y + p.w * shape.w.y);
    store_result(to, sum * inverse_of_count(count, shape), shape);
}

// The gradients: a thread has four elements of a row, side by side, and asks the windows that have one of them once for all.
#define ROW_ELEMENTS 4

// The windows that have an element of a thread's, where the first of its elements is in window 0, and how many it has.
struct Row {
    Reach d, h, w;
    int start, elements;
};
DEVICE Row row_of(Spot& p, const PoolingShape& s) {
    Row r;
    p.w *= ROW_ELEMENTS;
    r.elements = smaller(ROW_ELEMENTS, s.w.input - p.w);
    r.d = reach_of(p.d, s.d);
    r.h = reach_of(p.h, s.h);
    r.w = reach_of(p.w, s.w);
    r.w.end = reach_of(p.w + r.elements - 1, s.w).end;
    r.start = p.w + s.w.padding;
    return r;
}
DEVICE void store_row(Storage* to, const Real (&sums)[ROW_ELEMENTS], const Row& r, const PoolingShape& s) {
#if TYPE != 3
    const bool is_aligned = s.w.x == 1 && ((unsigned long long)to & (4 * sizeof(Storage) - 1)) == 0;
    if (is_aligned && r.elements == ROW_ELEMENTS && real_of(s.beta) == 0.0f) {
        const float alpha = real_of(s.alpha);
        store_quad(to, sums[0] * alpha, sums[1] * alpha, sums[2] * alpha, sums[3] * alpha);
        return;
    }
#endif
#pragma unroll
    for (int e = 0; e < ROW_ELEMENTS; ++e)
        if (e < r.elements) store_result(to + e * s.w.x, sums[e], s);
}

// COLUMNS: as many windows side by side have one of the elements at most, or 0 where there are more.
template <int COLUMNS>
DEVICE void gradient_by_indices(Real (&sums)[ROW_ELEMENTS], const Storage* dy, const void* indices, int first, const Spot& p, const Row& r,
                                const PoolingShape& s) {
    // An index in the image is the same for all windows; in a window it is less for the next one.
    const int in_window = s.index_in_window;
    const int own = in_window ? (p.d + s.d.padding) * s.d.place + (p.h + s.h.padding) * s.h.place : p.d * s.d.place + p.h * s.h.place;
    const int step_d = in_window ? s.d.stride * s.d.place : 0, step_h = in_window ? s.h.stride * s.h.place : 0;
    const int start = in_window ? r.start : p.w, step_w = in_window ? s.w.stride : 0;
    const int width = in_window ? s.w.window : s.w.input;
    for (int i = r.d.begin; i < r.d.end; ++i)
        for (int j = r.h.begin; j < r.h.end; ++j) {
            const int line = first + (i * s.h.output + j) * s.w.output;
            const Storage* row = dy + (i * s.d.y + j * s.h.y);
            const int before = own - i * step_d - j * step_h;
            for (int begin = r.w.begin; begin < r.w.end; begin += COLUMNS > 0 ? COLUMNS : 4) {
                int found[COLUMNS > 0 ? COLUMNS : 4];
                Real v[COLUMNS > 0 ? COLUMNS : 4];
#pragma unroll
                for (int k = 0; k < (COLUMNS > 0 ? COLUMNS : 4); ++k) {
                    const int at = smaller(begin + k, s.w.output - 1);
                    found[k] = load_index(indices, line + at, s.index_bits) - before;
                    v[k] = widen(row[at * s.w.y]);
                }
#pragma unroll
                for (int k = 0; k < (COLUMNS > 0 ? COLUMNS : 4); ++k) {
                    const int at = begin + k;
                    const bool is_in_row = at < r.w.end && (unsigned)found[k] < (unsigned)width;
                    const int element = found[k] + at * step_w - start;
#pragma unroll
                    for (int e = 0; e < ROW_ELEMENTS; ++e) sums[e] += is_in_row && element == e ? v[k] : (Real)0;
                }
                if (COLUMNS > 0) break;
            }
        }
}

extern "C" __global__ void __launch_bounds__(256)
    pooling_largest_backward(const Storage* __restrict__ dy, Storage* __restrict__ dx, const void* __restrict__ indices, PoolingShape shape) {
    const int index = BLOCK_X * 256 + THREAD_X;
    if (index >= shape.elements) return;
    Spot p = spot_of(index, shape);
    const Row r = row_of(p, shape);
    const Storage* from = dy + place_in_y(p, shape);
    Real sums[ROW_ELEMENTS] = {(Real)0, (Real)0, (Real)0, (Real)0};
    if (shape.w.window + ROW_ELEMENTS - 2 < 3 * shape.w.stride)
        gradient_by_indices<3>(sums, from, indices, first_index(p, shape), p, r, shape);
    else
        gradient_by_indices<0>(sums, from, indices, first_index(p, shape), p, r, shape);
    store_row(dx + (place_in_x(p, shape) + p.d * shape.d.x + p.h * shape.h.x + p.w * shape.w.x), sums, r, shape);
}

extern "C" __global__ void __launch_bounds__(256)
    pooling_mean_backward(const Storage* __restrict__ dy, Storage* __restrict__ dx, PoolingShape shape) {
    const int index = BLOCK_X * 256 + THREAD_X;
    if (index >= shape.elements) return;
    Spot p = spot_of(index, shape);
    const Row r = row_of(p, shape);
    const Storage* from = dy + place_in_y(p, shape);
    Real sums[ROW_ELEMENTS] = {(Real)0, (Real)0, (Real)0, (Real)0};
    for (int i = r.d.begin; i < r.d.end; ++i)
        for (int j = r.h.begin; j < r.h.end; ++j) {
            const int count = count_of(i, shape.d) * count_of(j, shape.h);
            const Storage* row = from + (i * shape.d.y + j * shape.h.y);
#pragma unroll 2
            for (int k = r.w.begin; k < r.w.end; ++k) {
                const Real v = widen(row[k * shape.w.y]) * inverse_of_count(count * count_of(k, shape.w), shape);
                const int start = r.start - k * shape.w.stride;
#pragma unroll
                for (int e = 0; e < ROW_ELEMENTS; ++e)
                    sums[e] += (unsigned)(start + e) < (unsigned)shape.w.window ? v : (Real)0;
            }
        }
    store_row(dx + (place_in_x(p, shape) + p.d * shape.d.x + p.h * shape.h.x + p.w * shape.w.x), sums, r, shape);
}
