// Batch normalisation, and what follows a convolution: a bias, normalisation by given statistics, an activation.
//
// Constants: none but TYPE. A *unit* is what has one mean: a channel, or a position of all images. A workgroup has some units side
// by side (`lane_bits`), several threads for each, and one chunk of their elements. Sums are made in an order that is always
// the same for addresses that are aligned alike. There is no division and no library function: those are calls, or differ from chip to chip.
//
// Results may lie where operands do: a thread reads an element before it writes it, and reads no other's after that.

struct NormalizationShape {
    int units, count;             // units, and elements of each
    int lane_bits;                // log2 of the units of a workgroup
    int chunks, per_chunk;        // parts of the elements of a unit, one for each workgroup in y
    int in_quads;                 // whether four neighbouring elements of a unit can be read at once, if addresses are aligned
    Divisor by_unit_pixels;       // a unit is a channel and a pixel
    Divisor by_pixels;            // an element of a unit is an image and a pixel
    int x_image, x_channel, x_pixel, y_image, y_channel, y_pixel, z_image, z_channel, z_pixel;  // strides
    int parameter_channel, parameter_pixel;
    int scale_type, bias_type, mean_type, variance_type;  // as TYPE
    int activation;               // as MIOpen numbers them
    Scalar alpha, beta, gamma;    // of the activation
    Scalar epsilon, momentum, inverse_count, unbiased;
    Scalar x_factor, z_factor;
};

DEVICE Real power_of_two(int k) { return real_of_bits((RealBits)(unsigned)(k + EXPONENT_BIAS) << MANTISSA); }
DEVICE Real exponential(Real v) {
    if (v < (Real)(TYPE == 3 ? -745.0 : -103.0)) return (Real)0;
    if (v > (Real)(TYPE == 3 ? 709.7 : 88.7)) return INFINITE;
    const Real twos = v * (Real)1.4426950408889634;
    const int k = (int)(twos + (Real)(twos < (Real)0 ? -0.5 : 0.5));
#if TYPE == 3
    const Real r = (v - (Real)k * 6.93147180369123816490e-01) - (Real)k * 1.90821492927058770002e-10;
    Real p = 1.0 / 6227020800.0;
    p = p * r + 1.0 / 479001600.0;
    p = p * r + 1.0 / 39916800.0;
    p = p * r + 1.0 / 3628800.0;
    p = p * r + 1.0 / 362880.0;
    p = p * r + 1.0 / 40320.0;
    p = p * r + 1.0 / 5040.0;
#else
    const Real r = (v - (Real)k * 0.693359375f) + (Real)k * 2.12194440e-4f;
    Real p = (Real)(1.0 / 5040.0);
#endif
    p = p * r + (Real)(1.0 / 720.0);
    p = p * r + (Real)(1.0 / 120.0);
    p = p * r + (Real)(1.0 / 24.0);
    p = p * r + (Real)(1.0 / 6.0);
    p = p * r + (Real)0.5;
    p = p * r + (Real)1;
    p = p * r + (Real)1;
    return p * power_of_two(k / 2) * power_of_two(k - k / 2);
}
// Of a positive number.
DEVICE Real logarithm(Real v) {
    const RealBits bits = bits_of_real(v), ones = ((RealBits)1 << MANTISSA) - 1;
    int k = (int)(bits >> MANTISSA) - EXPONENT_BIAS;
    Real m = real_of_bits((bits & ones) | ((RealBits)EXPONENT_BIAS << MANTISSA));
    if (m > (Real)1.4142135623730951) {
        m = m * (Real)0.5;
        k = k + 1;
    }
    const Real s = (m - (Real)1) * reciprocal(m + (Real)1), q = s * s;
#if TYPE == 3
    Real p = 1.0 / 23.0;
    p = p * q + 1.0 / 21.0;
    p = p * q + 1.0 / 19.0;
    p = p * q + 1.0 / 17.0;
    p = p * q + 1.0 / 15.0;
    p = p * q + 1.0 / 13.0;
    p = p * q + 1.0 / 11.0;
#else
    Real p = (Real)(1.0 / 11.0);
#endif
    p = p * q + (Real)(1.0 / 9.0);
    p = p * q + (Real)(1.0 / 7.0);
    p = p * q + (Real)(1.0 / 5.0);
    p = p * q + (Real)(1.0 / 3.0);
    p = p * q + (Real)1;
    return (Real)k * (Real)0.6931471805599453 + (Real)2 * s * p;
}
DEVICE Real logistic(Real v) {
    // Of the positive side, so that nothing overflows.
    const Real small = exponential(-magnitude(v)), high = reciprocal((Real)1 + small);
    return v < (Real)0 ? small * high : high;
}
DEVICE Real hyperbolic_tangent(Real v) {
    const Real small = exponential((Real)-2 * magnitude(v)), high = ((Real)1 - small) * reciprocal((Real)1 + small);
    return v < (Real)0 ? -high : high;
}
DEVICE Real activate(Real v, const NormalizationShape& s) {
    const int kind = s.activation;
    if (kind == 0) return v;
    const Real alpha = real_of(s.alpha), beta = real_of(s.beta);
    // A NaN stays a NaN.
    if (kind == 3) return v <= (Real)0 ? (Real)0 : v;
    if (kind == 8) return v <= (Real)0 ? alpha * v : v;
    if (kind == 7) return v <= (Real)0 ? (Real)0 : v > alpha ? alpha : v;
    if (kind == 10) return v < alpha ? alpha : v > beta ? beta : v;
    if (kind == 5) return magnitude(v);
    if (kind == 1) return logistic(v);
    if (kind == 2) return beta * hyperbolic_tangent(alpha * v);
    if (kind == 4) return (v < (Real)0 ? (Real)0 : v) + logarithm((Real)1 + exponential(-magnitude(v)));
    if (kind == 9) return v <= (Real)0 ? alpha * (exponential(v) - (Real)1) : v;
    const Real base = alpha + beta * v;
    return base <= (Real)0 ? (Real)0 : exponential(real_of(s.gamma) * logarithm(base));
}
DEVICE Real slope_of(Real v, const NormalizationShape& s) {
    const int kind = s.activation;
    if (kind == 0) return (Real)1;
    const Real alpha = real_of(s.alpha), beta = real_of(s.beta);
    if (kind == 3) return v > (Real)0 ? (Real)1 : (Real)0;
    if (kind == 8) return v > (Real)0 ? (Real)1 : alpha;
    if (kind == 7) return v > (Real)0 && v <= alpha ? (Real)1 : (Real)0;
    if (kind == 10) return v > alpha && v <= beta ? (Real)1 : (Real)0;
    if (kind == 5) return v > (Real)0 ? (Real)1 : (Real)-1;
    if (kind == 1) {
        const Real value = logistic(v);
        return value * ((Real)1 - value);
    }
    if (kind == 2) {
        const Real value = hyperbolic_tangent(alpha * v);
        return alpha * beta * ((Real)1 - value * value);
    }
    if (kind == 4) return logistic(v);
    if (kind == 9) return v > (Real)0 ? (Real)1 : alpha * exponential(v);
    const Real base = alpha + beta * v, gamma = real_of(s.gamma);
    return base <= (Real)0 ? (Real)0 : beta * gamma * exponential((gamma - (Real)1) * logarithm(base));
}

// What a thread works on: one unit, of its chunk `groups` times four elements and `rest` single ones. The four are neighbours where they
// are read at once; else `rows` lie between them, as between single ones.
struct Share {
    int unit, row, rows, begin, end;
    bool is_there, in_quads;
    int first, groups, rest;
    int x, y, z, parameter;  // where the unit begins
};
// `addresses` is what any of the tensors' addresses has set.
DEVICE Share share_of(const NormalizationShape& s, unsigned long long addresses) {
    Share t;
    const int lane = THREAD_X & ((1 << s.lane_bits) - 1);
    t.unit = (BLOCK_X << s.lane_bits) + lane;
    t.row = THREAD_X >> s.lane_bits;
    t.rows = 256 >> s.lane_bits;
    t.is_there = t.unit < s.units;
    if (!t.is_there) t.unit = 0;
    int channel = t.unit;
    const int pixel = split_off(channel, s.by_unit_pixels);
    t.x = channel * s.x_channel + pixel * s.x_pixel;
    t.y = channel * s.y_channel + pixel * s.y_pixel;
    t.z = channel * s.z_channel + pixel * s.z_pixel;
    t.parameter = channel * s.parameter_channel + pixel * s.parameter_pixel;
    t.begin = BLOCK_Y * s.per_chunk;
    t.end = t.begin + s.per_chunk < s.count ? t.begin + s.per_chunk : s.count;
    if (!t.is_there) t.end = t.begin;
    t.in_quads = s.in_quads != 0 && (addresses & (4 * sizeof(Storage) - 1)) == 0;
    t.first = t.begin + (t.in_quads ? 4 * t.row : t.row);
    const int left = t.end - 1 - t.first, row_bits = 8 - s.lane_bits;
    const int all = left < 0 ? 0 : (left >> row_bits) + 1;
    t.groups = left < 0 ? 0 : t.in_quads ? (left >> (row_bits + 2)) + 1 : all >> 2;
    t.rest = t.in_quads ? 0 : all & 3;
    return t;
}
#define ADDRESS(pointer) ((unsigned long long)(pointer))
// The first of a group of four, and a single element. What was read before is read again from the last one on, which a cache still has.
DEVICE int group_at(int group, const Share& t) { return t.first + 4 * group * t.rows; }
DEVICE int single_at(int single, const Share& t) { return t.first + (4 * t.groups + single) * t.rows; }
DEVICE int place_of(int element, const NormalizationShape& s, int image_stride, int pixel_stride) {
    const int pixel = split_off(element, s.by_pixels);
    return element * image_stride + pixel * pixel_stride;
}
DEVICE int place_in_x(int element, const Share& t, const NormalizationShape& s) { return t.x + place_of(element, s, s.x_image, s.x_pixel); }
DEVICE int place_in_y(int element, const Share& t, const NormalizationShape& s) { return t.y + place_of(element, s, s.y_image, s.y_pixel); }
DEVICE int place_in_z(int element, const Share& t, const NormalizationShape& s) { return t.z + place_of(element, s, s.z_image, s.z_pixel); }

// Four elements.
struct Four {
    Real v[4];
};
typedef int (*Places)(int element, const Share& t, const NormalizationShape& s);
template <Places place> DEVICE Four load_four(const Storage* from, int element, const Share& t, const NormalizationShape& s) {
    Four it;
#if TYPE != 3
    if (t.in_quads) {
        const Quad quad = expand(*(const RawQuad*)(from + place(element, t, s)));
#pragma unroll
        for (int i = 0; i < 4; ++i) it.v[i] = part(quad, i);
        return it;
    }
#endif
#pragma unroll
    for (int i = 0; i < 4; ++i) it.v[i] = widen(from[place(element + i * t.rows, t, s)]);
    return it;
}
DEVICE void store_four(Storage* to, int element, const Four& it, const Share& t, const NormalizationShape& s) {
#if TYPE != 3
    if (t.in_quads) {
        store_quad(to + place_in_y(element, t, s), it.v[0], it.v[1], it.v[2], it.v[3]);
        return;
    }
#endif
#pragma unroll
    for (int i = 0; i < 4; ++i) to[place_in_y(element + i * t.rows, t, s)] = narrow(it.v[i]);
}

// How many numbers, their mean, and the sum of squares of their distances from it. Merging two of these loses nothing however large
// the mean is (Chan, Golub, LeVeque 1979).
struct Moments {
    Real count, mean, squares;
};
DEVICE void merge(Moments& all, Real count, Real mean, Real squares) {
    if (count == (Real)0) return;
    if (all.count == (Real)0) {
        all.count = count;
        all.mean = mean;
        all.squares = squares;
        return;
    }
    const Real sum = all.count + count, part = count * reciprocal(sum), apart = mean - all.mean;
    all.mean += apart * part;
    all.squares += squares + apart * apart * all.count * part;
    all.count = sum;
}
// Of a thread's elements.
DEVICE Moments moments_of(const Storage* x, const Share& t, const NormalizationShape& s) {
    Moments all = {(Real)0, (Real)0, (Real)0};
    for (int group = 0; group < t.groups; ++group) {
        const Four it = load_four<place_in_x>(x, group_at(group, t), t, s);
        const Real mean = ((it.v[0] + it.v[1]) + (it.v[2] + it.v[3])) * (Real)0.25;
        Real squares = (Real)0;
#pragma unroll
        for (int i = 0; i < 4; ++i) squares += (it.v[i] - mean) * (it.v[i] - mean);
        merge(all, (Real)4, mean, squares);
    }
    for (int single = 0; single < t.rest; ++single)
        merge(all, (Real)1, widen(x[place_in_x(single_at(single, t), t, s)]), (Real)0);
    return all;
}
// Over all threads of a unit; every one of them has it afterwards.
DEVICE Moments over_rows(const Moments& own, const NormalizationShape& s) {
    __shared__ Real counts[256], means[256], squares[256];
    counts[THREAD_X] = own.count;
    means[THREAD_X] = own.mean;
    squares[THREAD_X] = own.squares;
    BARRIER();
    for (int half = 128; half >> s.lane_bits > 0; half /= 2) {
        if (THREAD_X < half) {
            Moments all = {counts[THREAD_X], means[THREAD_X], squares[THREAD_X]};
            merge(all, counts[THREAD_X + half], means[THREAD_X + half], squares[THREAD_X + half]);
            counts[THREAD_X] = all.count;
            means[THREAD_X] = all.mean;
            squares[THREAD_X] = all.squares;
        }
        BARRIER();
    }
    const int lane = THREAD_X & ((1 << s.lane_bits) - 1);
    const Moments all = {counts[lane], means[lane], squares[lane]};
    BARRIER();
    return all;
}
struct Sums {
    Real plain, weighted;
};
DEVICE Sums over_rows(const Sums& own, const NormalizationShape& s) {
    __shared__ Real plain[256], weighted[256];
    plain[THREAD_X] = own.plain;
    weighted[THREAD_X] = own.weighted;
    BARRIER();
    for (int half = 128; half >> s.lane_bits > 0; half /= 2) {
        if (THREAD_X < half) {
            plain[THREAD_X] += plain[THREAD_X + half];
            weighted[THREAD_X] += weighted[THREAD_X + half];
        }
        BARRIER();
    }
    const int lane = THREAD_X & ((1 << s.lane_bits) - 1);
    const Sums all = {plain[lane], weighted[lane]};
    BARRIER();
    return all;
}
// What chunks have left in the workspace, or everything at once where there is one chunk.
DEVICE Moments moments_of_unit(const Storage* x, const Real* parts, const Share& t, const NormalizationShape& s) {
    if (s.chunks == 1) return over_rows(moments_of(x, t, s), s);
    Moments all = {(Real)0, (Real)0, (Real)0};
    if (t.is_there)
        for (int chunk = t.row; chunk < s.chunks; chunk += t.rows) {
            const int left = s.count - chunk * s.per_chunk;
            const Real* part = parts + 2 * (chunk * s.units + t.unit);
            merge(all, (Real)(left < s.per_chunk ? left : s.per_chunk), part[0], part[1]);
        }
    return over_rows(all, s);
}

extern "C" __global__ void __launch_bounds__(256)
    normalization_moments(const Storage* __restrict__ x, Real* __restrict__ parts, NormalizationShape shape) {
    const Share t = share_of(shape, ADDRESS(x));
    const Moments all = over_rows(moments_of(x, t, shape), shape);
    if (t.row != 0 || !t.is_there) return;
    Real* part = parts + 2 * (BLOCK_Y * shape.units + t.unit);
    part[0] = all.mean;
    part[1] = all.squares;
}

// By the batch's own mean and variance. Where there are chunks, `parts` are the moments of each.
extern "C" __global__ void __launch_bounds__(256)
    normalization_train(const Storage* x, Storage* y, const void* scale, const void* bias, void* saved_mean, void* saved_inverse,
                        void* running_mean, void* running_variance, const Real* parts, NormalizationShape shape) {
    const Share t = share_of(shape, ADDRESS(x) | ADDRESS(y));
    const Moments all = moments_of_unit(x, parts, t, shape);
    if (!t.is_there) return;
    const Real variance = all.squares * real_of(shape.inverse_count);
    const Real inverse = inverse_root(variance + real_of(shape.epsilon));
    if (BLOCK_Y == 0 && t.row == 0) {
        store_typed(saved_mean, t.parameter, shape.mean_type, all.mean);
        store_typed(saved_inverse, t.parameter, shape.variance_type, inverse);
        if (running_mean != nullptr && running_variance != nullptr) {
            const Real momentum = real_of(shape.momentum), rest = (Real)1 - momentum;
            const Real old_mean = load_typed(running_mean, t.parameter, shape.mean_type);
            const Real old_variance = load_typed(running_variance, t.parameter, shape.variance_type);
            store_typed(running_mean, t.parameter, shape.mean_type, rest * old_mean + momentum * all.mean);
            store_typed(running_variance, t.parameter, shape.variance_type, rest * old_variance + momentum * variance * real_of(shape.unbiased));
        }
    }
    const Real factor = load_typed(scale, t.parameter, shape.scale_type) * inverse;
    const Real shift = load_typed(bias, t.parameter, shape.bias_type);
    for (int single = t.rest - 1; single >= 0; --single) {
        const int element = single_at(single, t);
        const Real value = (widen(x[place_in_x(element, t, shape)]) - all.mean) * factor + shift;
        y[place_in_y(element, t, shape)] = narrow(activate(value, shape));
    }
    // Several elements are read before the first is written: x may be y, so that the compiler must not do it.
    for (int group = t.groups - 1; group >= 0; --group) {
        const int element = group_at(group, t);
        Four it = load_four<place_in_x>(x, element, t, shape);
#pragma unroll
        for (int i = 0; i < 4; ++i) it.v[i] = activate((it.v[i] - all.mean) * factor + shift, shape);
        store_four(y, element, it, t, shape);
    }
}

// x × factor + z × factor + addend, normalised by given statistics, activated; what is null is left out.
extern "C" __global__ void __launch_bounds__(256)
    normalization_apply(const Storage* x, Storage* y, const Storage* z, const void* addend, const void* scale, const void* bias,
                        const void* mean, const void* variance, NormalizationShape shape) {
    const Share t = share_of(shape, ADDRESS(x) | ADDRESS(y) | ADDRESS(z));
    if (!t.is_there) return;
    const Real x_factor = real_of(shape.x_factor), z_factor = real_of(shape.z_factor);
    Real before = addend == nullptr ? (Real)0 : load_typed(addend, t.parameter, shape.bias_type);
    Real factor = (Real)1, shift = (Real)0;
    if (mean != nullptr) {
        before -= load_typed(mean, t.parameter, shape.mean_type);
        factor = inverse_root(load_typed(variance, t.parameter, shape.variance_type) + real_of(shape.epsilon));
        factor *= load_typed(scale, t.parameter, shape.scale_type);
        shift = load_typed(bias, t.parameter, shape.bias_type);
    }
    for (int group = 0; group < t.groups; ++group) {
        const int element = group_at(group, t);
        Four it = load_four<place_in_x>(x, element, t, shape), added = {};
        if (z != nullptr) added = load_four<place_in_z>(z, element, t, shape);
#pragma unroll
        for (int i = 0; i < 4; ++i)
            it.v[i] = activate((it.v[i] * x_factor + added.v[i] * z_factor + before) * factor + shift, shape);
        store_four(y, element, it, t, shape);
    }
    for (int single = 0; single < t.rest; ++single) {
        const int element = single_at(single, t);
        Real value = widen(x[place_in_x(element, t, shape)]) * x_factor;
        if (z != nullptr) value += widen(z[place_in_z(element, t, shape)]) * z_factor;
        y[place_in_y(element, t, shape)] = narrow(activate((value + before) * factor + shift, shape));
    }
}

// A unit's mean, one over its deviation, scale and bias.
struct Unit {
    Real mean, inverse, scale, bias;
};
DEVICE Unit unit_of(const Storage* x, const void* scale, const void* bias, const void* saved_mean, const void* saved_inverse,
                    const Real* parts, const Share& t, const NormalizationShape& s) {
    Unit u;
    if (saved_mean != nullptr) {
        u.mean = load_typed(saved_mean, t.parameter, s.mean_type);
        u.inverse = load_typed(saved_inverse, t.parameter, s.variance_type);
    } else {
        const Moments all = moments_of_unit(x, parts, t, s);
        u.mean = all.mean;
        u.inverse = inverse_root(all.squares * real_of(s.inverse_count) + real_of(s.epsilon));
    }
    u.scale = load_typed(scale, t.parameter, s.scale_type);
    u.bias = bias == nullptr ? (Real)0 : load_typed(bias, t.parameter, s.bias_type);
    return u;
}
// The gradient through the activation, and where x is in its distribution.
DEVICE Sums gradient_of(Real x, Real dy, const Unit& u, const NormalizationShape& s) {
    Sums it;
    it.weighted = (x - u.mean) * u.inverse;
    it.plain = dy;
    if (s.activation != 0) it.plain *= slope_of(it.weighted * u.scale + u.bias, s);
    return it;
}
DEVICE Sums gradient_at(int element, const Storage* x, const Storage* dy, const Unit& u, const Share& t, const NormalizationShape& s) {
    return gradient_of(widen(x[place_in_x(element, t, s)]), widen(dy[place_in_z(element, t, s)]), u, s);
}
DEVICE Sums sums_of(const Storage* x, const Storage* dy, const Unit& u, const Share& t, const NormalizationShape& s) {
    Sums all = {(Real)0, (Real)0};
    for (int group = 0; group < t.groups; ++group) {
        const int element = group_at(group, t);
        const Four of_x = load_four<place_in_x>(x, element, t, s), of_y = load_four<place_in_z>(dy, element, t, s);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const Sums one = gradient_of(of_x.v[i], of_y.v[i], u, s);
            all.plain += one.plain;
            all.weighted += one.plain * one.weighted;
        }
    }
    for (int single = 0; single < t.rest; ++single) {
        const Sums one = gradient_at(single_at(single, t), x, dy, u, t, s);
        all.plain += one.plain;
        all.weighted += one.plain * one.weighted;
    }
    return over_rows(all, s);
}

// The sums of one chunk. `moments` are those of each chunk where nothing was saved, and `parts` what is written.
extern "C" __global__ void __launch_bounds__(256)
    normalization_sums(const Storage* __restrict__ x, const Storage* __restrict__ dy, const void* scale, const void* bias,
                       const void* saved_mean, const void* saved_inverse, const Real* moments, Real* parts, NormalizationShape shape) {
    const Share t = share_of(shape, ADDRESS(x) | ADDRESS(dy));
    const Unit u = unit_of(x, scale, bias, saved_mean, saved_inverse, moments, t, shape);
    const Sums all = sums_of(x, dy, u, t, shape);
    if (t.row != 0 || !t.is_there) return;
    Real* part = parts + 2 * (BLOCK_Y * shape.units + t.unit);
    part[0] = all.plain;
    part[1] = all.weighted;
}

extern "C" __global__ void __launch_bounds__(256)
    normalization_backward(const Storage* x, Storage* dx, const Storage* dy, const void* scale, const void* bias,
                           const void* saved_mean, const void* saved_inverse, void* scale_gradient, void* bias_gradient,
                           const Real* moments, const Real* parts, NormalizationShape shape) {
    const Share t = share_of(shape, ADDRESS(x) | ADDRESS(dx) | ADDRESS(dy));
    const Unit u = unit_of(x, scale, bias, saved_mean, saved_inverse, moments, t, shape);
    Sums all = {(Real)0, (Real)0};
    if (shape.chunks == 1) {
        all = sums_of(x, dy, u, t, shape);
    } else {
        if (t.is_there)
            for (int chunk = t.row; chunk < shape.chunks; chunk += t.rows) {
                const Real* part = parts + 2 * (chunk * shape.units + t.unit);
                all.plain += part[0];
                all.weighted += part[1];
            }
        all = over_rows(all, shape);
    }
    if (!t.is_there) return;
    if (BLOCK_Y == 0 && t.row == 0) {
        store_typed(scale_gradient, t.parameter, shape.scale_type, all.weighted);
        store_typed(bias_gradient, t.parameter, shape.bias_type, all.plain);
    }
    const Real share = real_of(shape.inverse_count), factor = u.scale * u.inverse;
    const Real plain = all.plain * share, weighted = all.weighted * share;
    for (int single = t.rest - 1; single >= 0; --single) {
        const int element = single_at(single, t);
        const Sums one = gradient_at(element, x, dy, u, t, shape);
        dx[place_in_y(element, t, shape)] = narrow(factor * (one.plain - plain - one.weighted * weighted));
    }
    for (int group = t.groups - 1; group >= 0; --group) {
        const int element = group_at(group, t);
        const Four of_x = load_four<place_in_x>(x, element, t, shape), of_y = load_four<place_in_z>(dy, element, t, shape);
        Four it;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const Sums one = gradient_of(of_x.v[i], of_y.v[i], u, shape);
            it.v[i] = factor * (one.plain - plain - one.weighted * weighted);
        }
        store_four(dx, element, it, t, shape);
    }
}
