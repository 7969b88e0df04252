// Reductions: the elements along some axes of a tensor become one number: their sum, product, mean or norm, or the least or the largest of
// them and where it is.
//
// Constants: none but TYPE. A *unit* is a result. A workgroup has some units (`lane_bits`), several threads for each, and one chunk of their
// elements. Where there are several chunks, a second kernel merges what they left in the workspace. Numbers are merged in an order that is
// always the same for addresses that are aligned alike.

struct ReductionShape {
    int units, count;         // results, and elements of each
    int lane_bits;            // log2 of the units of a workgroup
    int rows_first;           // whether neighbouring threads share a unit, else they have neighbouring units
    int chunks, per_chunk;    // parts of the elements of a unit, one for each workgroup in y
    int in_quads;             // whether four neighbouring elements of a unit can be read at once, if addresses are aligned
    int axes;                 // that are reduced and longer than one: the last ones
    int operation;            // as MIOpen numbers them
    int propagates, y_type;   // whether the largest of some is NaN if one of them is; as TYPE
    Divisor by_kept_1, by_kept_2, by_kept_3, by_kept_4, by_kept_5;
    int x_kept_0, x_kept_1, x_kept_2, x_kept_3, x_kept_4, x_kept_5;
    int y_kept_0, y_kept_1, y_kept_2, y_kept_3, y_kept_4, y_kept_5;
    Divisor by_reduced_1, by_reduced_2, by_reduced_3, by_reduced_4, by_reduced_5;
    int x_reduced_0, x_reduced_1, x_reduced_2, x_reduced_3, x_reduced_4, x_reduced_5;
    Scalar inverse_count, alpha, beta;
};

#define PRODUCT 1
#define LEAST 2
#define LARGEST 3
#define FURTHEST 4
#define MEAN 5
#define NORM_1 6
#define NORM_2 7

// Where a unit is, in x and in the result.
struct Spot {
    int x, y;
};
DEVICE Spot spot_of(int unit, const ReductionShape& s) {
    Spot p = {0, 0};
    int at;
#define KEPT(axis)                         \
    at = split_off(unit, s.by_kept_##axis); \
    p.x += at * s.x_kept_##axis;           \
    p.y += at * s.y_kept_##axis;
    KEPT(5) KEPT(4) KEPT(3) KEPT(2) KEPT(1)
#undef KEPT
    p.x += unit * s.x_kept_0;
    p.y += unit * s.y_kept_0;
    return p;
}
template <bool ONE_AXIS> DEVICE int place_of(int element, const ReductionShape& s) {
    if (ONE_AXIS) return element * s.x_reduced_5;
    int place = split_off(element, s.by_reduced_5) * s.x_reduced_5;
    if (s.axes <= 2) return place + element * s.x_reduced_4;
    place += split_off(element, s.by_reduced_4) * s.x_reduced_4;
    place += split_off(element, s.by_reduced_3) * s.x_reduced_3;
    place += split_off(element, s.by_reduced_2) * s.x_reduced_2;
    place += split_off(element, s.by_reduced_1) * s.x_reduced_1;
    return place + element * s.x_reduced_0;
}

// What some elements of a unit are together. The least of some is the largest of their opposites.
struct Partial {
    Real value;
    int place;
};
DEVICE Partial nothing(const ReductionShape& s) {
    Partial none;
    const int kind = s.operation;
    none.value = kind == PRODUCT ? (Real)1 : kind == LEAST || kind == LARGEST ? -INFINITE : (Real)0;
    none.place = 0;
    return none;
}
// Of equal numbers the first is the largest. NaN is never the largest, or always, and then the last one.
template <bool EXTREME> DEVICE void merge(Partial& all, const Partial& other, const ReductionShape& s) {
    if (!EXTREME) {
        all.value = s.operation == PRODUCT ? all.value * other.value : all.value + other.value;
        return;
    }
    bool is_larger = other.value > all.value || (other.value == all.value && other.place < all.place);
    if (s.propagates) {
        const bool was_none = all.value != all.value, is_none = other.value != other.value;
        is_larger = was_none ? is_none && other.place > all.place : is_none || is_larger;
    }
    all.value = is_larger ? other.value : all.value;
    all.place = is_larger ? other.place : all.place;
}
// One element more, behind all others of this thread.
template <bool EXTREME, int KIND> DEVICE void take(Partial& all, Real value, int place, const ReductionShape& s) {
    const Real one = KIND == LEAST                          ? -value
                     : KIND == FURTHEST || KIND == NORM_1 ? magnitude(value)
                     : KIND == NORM_2                       ? value * value
                                                            : value;
    if (!EXTREME) {
        all.value = KIND == PRODUCT ? all.value * one : all.value + one;
        return;
    }
    const bool is_larger = one > all.value || (s.propagates && one != one);
    all.value = is_larger ? one : all.value;
    all.place = is_larger ? place : all.place;
}
template <bool EXTREME, int KIND, bool ONE_AXIS>
DEVICE Partial of_elements_along(const Storage* x, int row, int rows, const ReductionShape& s) {
    Partial all = nothing(s);
    const int begin = BLOCK_Y * s.per_chunk, end = begin + s.per_chunk < s.count ? begin + s.per_chunk : s.count;
#if TYPE != 3
    if (s.in_quads && ((unsigned long long)x & (4 * sizeof(Storage) - 1)) == 0) {
#pragma unroll 4
        for (int element = begin + 4 * row; element < end; element += 4 * rows) {
            const Quad quad = expand(*(const RawQuad*)(x + place_of<ONE_AXIS>(element, s)));
#pragma unroll
            for (int i = 0; i < 4; ++i) take<EXTREME, KIND>(all, part(quad, i), element + i, s);
        }
        return all;
    }
#endif
#pragma unroll 8
    for (int element = begin + row; element < end; element += rows)
        take<EXTREME, KIND>(all, widen(x[place_of<ONE_AXIS>(element, s)]), element, s);
    return all;
}
template <bool EXTREME, int KIND>
DEVICE Partial of_elements_as(const Storage* x, int row, int rows, const ReductionShape& s) {
    return s.axes <= 1 ? of_elements_along<EXTREME, KIND, true>(x, row, rows, s)
                       : of_elements_along<EXTREME, KIND, false>(x, row, rows, s);
}
// What is the same for all elements is decided once.
template <bool EXTREME> DEVICE Partial of_elements(const Storage* x, int row, int rows, const ReductionShape& s) {
    const int kind = s.operation;
    if (EXTREME) {
        if (kind == LEAST) return of_elements_as<true, LEAST>(x, row, rows, s);
        if (kind == FURTHEST) return of_elements_as<true, FURTHEST>(x, row, rows, s);
        return of_elements_as<true, LARGEST>(x, row, rows, s);
    }
    if (kind == PRODUCT) return of_elements_as<false, PRODUCT>(x, row, rows, s);
    if (kind == NORM_1) return of_elements_as<false, NORM_1>(x, row, rows, s);
    if (kind == NORM_2) return of_elements_as<false, NORM_2>(x, row, rows, s);
    return of_elements_as<false, MEAN>(x, row, rows, s);
}
template <bool EXTREME> DEVICE Partial of_parts(const Real* parts, int unit, int row, int rows, const ReductionShape& s) {
    Partial all = nothing(s);
    const int* places = (const int*)(parts + s.chunks * s.units);
    for (int chunk = row; chunk < s.chunks; chunk += rows) {
        Partial part;
        part.value = parts[chunk * s.units + unit];
        part.place = EXTREME ? places[chunk * s.units + unit] : 0;
        merge<EXTREME>(all, part, s);
    }
    return all;
}
// alpha × the result + beta × what was there, which is not looked at where beta is 0.
DEVICE void store_result(void* y, int at, Real value, const ReductionShape& s) {
    const int kind = s.operation;
    if (kind == LEAST) value = -value;
    if (kind == MEAN) value *= real_of(s.inverse_count);
    if (kind == NORM_2 && value > (Real)0 && value < INFINITE) value *= inverse_root(value);
    value *= real_of(s.alpha);
    const Real beta = real_of(s.beta);
    if (beta != (Real)0) value += beta * load_typed(y, at, s.y_type);
    store_typed(y, at, s.y_type, value);
}

template <bool EXTREME, bool OF_PARTS>
DEVICE void reduce(const Storage* x, void* y, int* indices, Real* parts, const ReductionShape& s) {
    __shared__ Real values[256];
    __shared__ int places[256];
    const int lanes = 1 << s.lane_bits, row_bits = 8 - s.lane_bits, rows = 1 << row_bits;
    const int lane = s.rows_first ? THREAD_X >> row_bits : THREAD_X & (lanes - 1);
    const int row = s.rows_first ? THREAD_X & (rows - 1) : THREAD_X >> s.lane_bits;
    const int own_unit = (BLOCK_X << s.lane_bits) + lane;
    Partial own = nothing(s);
    if (own_unit < s.units)
        own = OF_PARTS ? of_parts<EXTREME>(parts, own_unit, row, rows, s)
                       : of_elements<EXTREME>(x + spot_of(own_unit, s).x, row, rows, s);
    values[(row << s.lane_bits) + lane] = own.value;
    if (EXTREME) places[(row << s.lane_bits) + lane] = own.place;
    BARRIER();
    for (int half = 128; half >> s.lane_bits > 0; half /= 2) {
        if (THREAD_X < half) {
            Partial all = {values[THREAD_X], EXTREME ? places[THREAD_X] : 0};
            const Partial other = {values[THREAD_X + half], EXTREME ? places[THREAD_X + half] : 0};
            merge<EXTREME>(all, other, s);
            values[THREAD_X] = all.value;
            if (EXTREME) places[THREAD_X] = all.place;
        }
        BARRIER();
    }
    const int unit = (BLOCK_X << s.lane_bits) + THREAD_X;
    if (THREAD_X >= lanes || unit >= s.units) return;
    if (!OF_PARTS && s.chunks > 1) {
        parts[BLOCK_Y * s.units + unit] = values[THREAD_X];
        if (EXTREME) ((int*)(parts + s.chunks * s.units))[BLOCK_Y * s.units + unit] = places[THREAD_X];
        return;
    }
    const int at = spot_of(unit, s).y;
    store_result(y, at, values[THREAD_X], s);
    if (EXTREME && indices != nullptr) indices[at] = places[THREAD_X];
}

extern "C" __global__ void __launch_bounds__(256)
    reduction_sum(const Storage* __restrict__ x, void* y, int* indices, Real* parts, ReductionShape shape) {
    reduce<false, false>(x, y, indices, parts, shape);
}
extern "C" __global__ void __launch_bounds__(256)
    reduction_sum_of_parts(const Storage* __restrict__ x, void* y, int* indices, Real* parts, ReductionShape shape) {
    reduce<false, true>(x, y, indices, parts, shape);
}
extern "C" __global__ void __launch_bounds__(256)
    reduction_extreme(const Storage* __restrict__ x, void* y, int* indices, Real* parts, ReductionShape shape) {
    reduce<true, false>(x, y, indices, parts, shape);
}
extern "C" __global__ void __launch_bounds__(256)
    reduction_extreme_of_parts(const Storage* __restrict__ x, void* y, int* indices, Real* parts, ReductionShape shape) {
    reduce<true, true>(x, y, indices, parts, shape);
}
