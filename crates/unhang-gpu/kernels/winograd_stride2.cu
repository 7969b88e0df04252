// Winograd for 3 × 3 filters of stride 2, not fused.
//
// In one dimension y[o] = g0·e[o] + g2·e[o + 1] + g1·d[o], where e are the even and d the odd pixels of the padded line:
// a filter of two taps over e and one of one tap over d, both of stride 1. Four results take five products with e (points
// 0, 1, -1, 2, ∞) and four with d (the same points without ∞). These are summed before the transform back. In two
// dimensions that is 81 products for 16 results, where the direct way has 144.
//
// A *place* is a pair of points (25 of them), a *phase* a pair of even or odd (4). `gemm.cu` and `weights.cu` compute a 1 × 1
// convolution with 25 groups and four times as many channels on the image's side. Places with ∞ have only some of the
// phases: these come first among a place's channels, and the matrix kernels leave the rest out (NESTED).
//
// NCHW: the transformed tensors are [25][phase, channel][P], with P the number of tiles rounded up to a quad. CHANNELS_LAST:
// [P][25][phase, channel]. Columns beyond the last tile hold zeros, because the gradient of the filter sums over them.
//
// Backward-data reads 5 × 5 of the gradient and writes 4 × 4 pixels of each phase: even ones beginning at `first`, odd
// ones one before.
//
// Constants: CHANNELS_LAST.

struct Stride2Shape {
    int batch, channels, height, width;  // of the tensor that is read or written
    int tiles, padded_tiles;
    int begin_h, begin_w;            // where the first tile begins in it
    Divisor by_image, by_width;      // tiles of an image and of a row of it
    Divisor by_lane;                 // channels (CHANNELS_LAST) or padded tiles
};

// Which channel and tile a thread has, and the tile's image and place in it.
struct Lane {
    int channel, tile, n, down, across;
};
DEVICE Lane find_lane(int index, const Stride2Shape& s) {
    Lane lane;
    int rest = index;
    const int last = split_off(rest, s.by_lane);
    lane.channel = CHANNELS_LAST ? last : rest;
    lane.tile = CHANNELS_LAST ? rest : last;
    lane.n = divide(lane.tile, s.by_image);
    lane.down = lane.tile - lane.n * s.by_image.value;
    lane.across = split_off(lane.down, s.by_width);
    return lane;
}
DEVICE bool is_lane(const Lane& lane, const Stride2Shape& s) {
    return CHANNELS_LAST ? lane.tile < s.padded_tiles : lane.channel < s.channels;
}

// A transformed tensor, as one thread sees it: its numbers of a phase, place by place. `phases` is 4 on the image's side.
struct Places {
    long long begin, apart;
    unsigned phase_step;
    METHOD Places(const Lane& lane, const Stride2Shape& s, int phases) {
        const long long all = (long long)s.channels * phases;
        apart = CHANNELS_LAST ? all : all * s.padded_tiles;
        begin = CHANNELS_LAST ? lane.tile * 25 * all + lane.channel : (long long)lane.channel * s.padded_tiles + lane.tile;
        phase_step = (unsigned)s.channels * (CHANNELS_LAST ? 1u : (unsigned)s.padded_tiles);
    }
    METHOD long long at(int i, int j, int phase_h, int phase_w) const {
        return begin + (i * 5 + j) * apart + (long long)phase_slot(j, phase_h, phase_w) * phase_step;
    }
    // Where a phase stands among those of a place in column j.
    static METHOD int phase_slot(int j, int phase_h, int phase_w) { return phase_h * (j == 4 ? 1 : 2) + phase_w; }
};

template <int H, int W>
DEVICE void read_square(const Storage* source, const Stride2Shape& s, const Lane& lane, int top, int left, int step_h, float (&v)[H][W]) {
    const unsigned plane = plane_begin(s, lane.n, lane.channel);
#pragma unroll
    for (int i = 0; i < H; ++i)
#pragma unroll
        for (int j = 0; j < W; ++j) {
            const int h = top + i * step_h, w = left + j;
            const bool there = lane.tile < s.tiles && (unsigned)h < (unsigned)s.height && (unsigned)w < (unsigned)s.width;
            const float read = load_at(source, there ? (plane + (unsigned)(h * s.width + w) * COLUMN_STEP(s)) * (unsigned)sizeof(Storage) : 0u);
            v[i][j] = there ? read : 0.0f;
        }
}

// The source's transform of a line, in place: N is 5, or 4 without ∞.
template <int N>
DEVICE void transform_line(float (&v)[N]) {
    const float a = v[0], b = v[1], c = v[2], d = v[3], rise = d - b;
    v[0] = multiply_add(2.0f, a - c, rise);
    v[1] = rise - b - c;
    v[2] = multiply_add(2.0f, b, multiply_add(-3.0f, c, d));
    v[3] = rise;
    if (N == 5) v[N - 1] = multiply_add(-2.0f, rise, v[N - 1] - c);
}
template <int H, int W>
DEVICE void transform_columns(float (&v)[H][W]) {
#pragma unroll
    for (int j = 0; j < W; ++j) {
        float column[H];
#pragma unroll
        for (int i = 0; i < H; ++i) column[i] = v[i][j];
        transform_line<H>(column);
#pragma unroll
        for (int i = 0; i < H; ++i) v[i][j] = column[i];
    }
}

// Even or odd lines of a tile of the input, in each row of the grid; even and odd columns are both a thread's.
template <int PHASE_H>
DEVICE void transform_phase(const Storage* source, float* transformed, const Stride2Shape& s, const Lane& lane) {
    float v[5 - PHASE_H][9];
    read_square(source, s, lane, s.begin_h + lane.down * 8 + PHASE_H, s.begin_w + lane.across * 8, 2, v);
    transform_columns(v);
    const Places places(lane, s, 4);
#pragma unroll
    for (int i = 0; i < 5 - PHASE_H; ++i) {
        float even[5] = {v[i][0], v[i][2], v[i][4], v[i][6], v[i][8]}, odd[4] = {v[i][1], v[i][3], v[i][5], v[i][7]};
        transform_line<5>(even);
        transform_line<4>(odd);
#pragma unroll
        for (int j = 0; j < 5; ++j) transformed[places.at(i, j, PHASE_H, 0)] = even[j];
#pragma unroll
        for (int j = 0; j < 4; ++j) transformed[places.at(i, j, PHASE_H, 1)] = odd[j];
    }
}
extern "C" __global__ void __launch_bounds__(128)
    stride2_input(const Storage* __restrict__ source, float* __restrict__ transformed, Stride2Shape s) {
    const Lane lane = find_lane(BLOCK_X * 128 + THREAD_X, s);
    if (!is_lane(lane, s)) return;
    if (BLOCK_Y == 0)
        transform_phase<0>(source, transformed, s, lane);
    else
        transform_phase<1>(source, transformed, s, lane);
}

// Backward-data: 5 × 5 of the gradient.
extern "C" __global__ void __launch_bounds__(128)
    stride2_source(const Storage* __restrict__ source, float* __restrict__ transformed, Stride2Shape s) {
    const Lane lane = find_lane(BLOCK_X * 128 + THREAD_X, s);
    if (!is_lane(lane, s)) return;
    float v[5][5];
    read_square(source, s, lane, s.begin_h + lane.down * 4, s.begin_w + lane.across * 4, 1, v);
    transform_columns(v);
    const Places places(lane, s, 1);
#pragma unroll
    for (int i = 0; i < 5; ++i) {
        transform_line<5>(v[i]);
#pragma unroll
        for (int j = 0; j < 5; ++j) transformed[places.at(i, j, 0, 0)] = v[i][j];
    }
}

// A line of two or one taps of the filter becomes five or four numbers, scaled so that the source's transform has whole ones.
DEVICE void spread_taps(const float (&from)[2], float (&to)[5]) {
    to[0] = 0.5f * from[0];
    to[1] = (from[0] + from[1]) * -0.5f;
    to[2] = (from[0] - from[1]) * (-1.0f / 6.0f);
    to[3] = multiply_add(2.0f, from[1], from[0]) * (1.0f / 6.0f);
    to[4] = from[1];
}
DEVICE void spread_taps(const float (&from)[1], float (&to)[4]) {
    to[0] = 0.5f * from[0];
    to[1] = from[0] * -0.5f;
    to[2] = from[0] * (-1.0f / 6.0f);
    to[3] = from[0] * (1.0f / 6.0f);
}
// Spreads a line of four of the gradient.
DEVICE void spread_taps(const float (&from)[4], float (&to)[5]) {
    const float even = from[0] + from[2], odd = from[1] + from[3];
    to[0] = 0.5f * from[0];
    to[1] = (even + odd) * -0.5f;
    to[2] = (even - odd) * (-1.0f / 6.0f);
    to[3] = multiply_add(8.0f, from[3], multiply_add(4.0f, from[2], multiply_add(2.0f, from[1], from[0]))) * (1.0f / 6.0f);
    to[4] = from[3];
}

// A rectangle of taps becomes H × W numbers.
template <int TAPS_H, int TAPS_W, int H, int W>
DEVICE void spread_square(const float (&from)[TAPS_H][TAPS_W], float (&to)[H][W]) {
    float half[H][TAPS_W];
#pragma unroll
    for (int j = 0; j < TAPS_W; ++j) {
        float column[TAPS_H], line[H];
#pragma unroll
        for (int i = 0; i < TAPS_H; ++i) column[i] = from[i][j];
        spread_taps(column, line);
#pragma unroll
        for (int i = 0; i < H; ++i) half[i][j] = line[i];
    }
#pragma unroll
    for (int i = 0; i < H; ++i) spread_taps(half[i], to[i]);
}

// The gradient of the result, for the gradient of the filter.
extern "C" __global__ void __launch_bounds__(128)
    stride2_gradient(const Storage* __restrict__ source, float* __restrict__ transformed, Stride2Shape s) {
    const Lane lane = find_lane(BLOCK_X * 128 + THREAD_X, s);
    if (!is_lane(lane, s)) return;
    float v[4][4], spread[5][5];
    read_square(source, s, lane, lane.down * 4, lane.across * 4, 1, v);
    spread_square(v, spread);
    const Places places(lane, s, 1);
#pragma unroll
    for (int i = 0; i < 5; ++i)
#pragma unroll
        for (int j = 0; j < 5; ++j) transformed[places.at(i, j, 0, 0)] = spread[i][j];
}

struct Stride2FilterShape {
    int rows, channels;        // output and input channels of the convolution
    int padded_rows;           // of the packed filter: output channels, or phases × input channels (turned)
    int row_elements, channel_elements, tap_elements;
    int turned;                // backward-data
    Divisor by_lane;           // output channels rounded up, or input channels (turned)
};

// A phase of the filter: which of its taps, and where they go.
template <int PHASE_H, int PHASE_W>
DEVICE void filter_phase(const Storage* from, float* to, const Stride2FilterShape& s, bool there, int row, int channel) {
    constexpr int TAPS_H = 2 - PHASE_H, TAPS_W = 2 - PHASE_W;
    float taps[TAPS_H][TAPS_W], spread[5 - PHASE_H][5 - PHASE_W];
#pragma unroll
    for (int i = 0; i < TAPS_H; ++i)
#pragma unroll
        for (int j = 0; j < TAPS_W; ++j) {
            // Two taps change places where the source is before its result.
            const int h = PHASE_H ? 1 : 2 * (s.turned ? 1 - i : i), w = PHASE_W ? 1 : 2 * (s.turned ? 1 - j : j);
            const float read = widen(from[(h * 3 + w) * s.tap_elements]);
            taps[i][j] = there ? read : 0.0f;
        }
    spread_square(taps, spread);
    const long long place = (long long)s.padded_rows * (s.turned ? s.rows : 4 * s.channels);
#pragma unroll
    for (int i = 0; i < 5 - PHASE_H; ++i)
#pragma unroll
        for (int j = 0; j < 5 - PHASE_W; ++j) {
            const int inner = Places::phase_slot(j, PHASE_H, PHASE_W) * s.channels + channel;
            const long long at = s.turned ? (long long)row * s.padded_rows + inner : (long long)inner * s.padded_rows + row;
            to[(i * 5 + j) * place + at] = spread[i][j];
        }
}

// The filter becomes [25][phase, channel][row], or [25][row][phase, channel] for backward-data.
extern "C" __global__ void __launch_bounds__(128)
    stride2_filter(const Storage* __restrict__ filter, float* __restrict__ transformed, Stride2FilterShape s) {
    int rest = BLOCK_X * 128 + THREAD_X;
    const int lane = split_off(rest, s.by_lane);
    const int row = s.turned ? rest : lane, channel = s.turned ? lane : rest;
    if (rest >= (s.turned ? s.rows : s.channels)) return;
    const bool there = row < s.rows;
    const Storage* from = filter + (there ? (long long)row * s.row_elements + (long long)channel * s.channel_elements : 0);
    switch (BLOCK_Y) {
        case 0: return filter_phase<0, 0>(from, transformed, s, there, row, channel);
        case 1: return filter_phase<0, 1>(from, transformed, s, there, row, channel);
        case 2: return filter_phase<1, 0>(from, transformed, s, there, row, channel);
        default: return filter_phase<1, 1>(from, transformed, s, there, row, channel);
    }
}

// Sums of products become LENGTH results of a line; N is 5, or 4 without ∞.
template <int N, int LENGTH>
DEVICE void gather_line(const float (&from)[N], float (&to)[LENGTH]) {
    const float sum = from[1] + from[2], difference = from[1] - from[2];
#pragma unroll
    for (int i = 0; i < LENGTH; ++i) {
        const float power = (float)(1 << i);
        to[i] = multiply_add(power, from[3], i % 2 == 0 ? sum : difference);
    }
    to[0] += from[0];
    if (N == 5) to[LENGTH - 1] += from[N - 1];
}
template <int H, int W, int TALL, int WIDE>
DEVICE void gather_square(const float (&from)[H][W], float (&to)[TALL][WIDE]) {
    float half[TALL][W];
#pragma unroll
    for (int j = 0; j < W; ++j) {
        float column[H], line[TALL];
#pragma unroll
        for (int i = 0; i < H; ++i) column[i] = from[i][j];
        gather_line(column, line);
#pragma unroll
        for (int i = 0; i < TALL; ++i) half[i][j] = line[i];
    }
#pragma unroll
    for (int i = 0; i < TALL; ++i) gather_line(half[i], to[i]);
}

// The places of a phase, brought back from points to pixels down its columns.
template <int H, int W>
DEVICE void gather_columns(const float* from, const Places& places, int phase_h, int phase_w, float (&half)[4][W]) {
#pragma unroll
    for (int j = 0; j < W; ++j) {
        float column[H], line[4];
#pragma unroll
        for (int i = 0; i < H; ++i) column[i] = from[places.at(i, j, phase_h, phase_w)];
        gather_line(column, line);
#pragma unroll
        for (int i = 0; i < 4; ++i) half[i][j] = line[i];
    }
}

// Writes neighbours of a line, as far as they lie in the image.
template <int N>
DEVICE void write_line(Storage* plane, const Stride2Shape& s, int h, int left, bool quads, const float (&y)[N]) {
    if ((unsigned)h >= (unsigned)s.height) return;
    Storage* line = plane + (unsigned)(h * s.width) * COLUMN_STEP(s);
    if (quads) {
#pragma unroll
        for (int j = 0; j < N; j += 4)
            if (left + j < s.width) store_quad(line + left + j, y[j], y[j + 1], y[j + 2], y[j + 3]);
    } else {
#pragma unroll
        for (int j = 0; j < N; ++j)
            if ((unsigned)(left + j) < (unsigned)s.width) line[(unsigned)(left + j) * COLUMN_STEP(s)] = narrow(y[j]);
    }
}

extern "C" __global__ void __launch_bounds__(128)
    stride2_output(const float* __restrict__ products, const Storage* __restrict__ bias, Storage* __restrict__ result, Stride2Shape s) {
    const Lane lane = find_lane(BLOCK_X * 128 + THREAD_X, s);
    if (!is_lane(lane, s) || lane.tile >= s.tiles) return;
    const float add = bias != nullptr ? (float)widen(bias[lane.channel]) : 0.0f;
    float half[4][5];
    gather_columns<5>(products, Places(lane, s, 1), 0, 0, half);
    Storage* plane = result + plane_begin(s, lane.n, lane.channel);
    const bool quads = !CHANNELS_LAST && s.width % 4 == 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        float y[4];
        gather_line(half[i], y);
#pragma unroll
        for (int j = 0; j < 4; ++j) y[j] += add;
        write_line(plane, s, lane.down * 4 + i, lane.across * 4, quads, y);
    }
}

// Backward-data: even or odd lines of a tile of pixels, in each row of the grid; even and odd columns are both a thread's.
template <int PHASE_H>
DEVICE void result_phase(const float* products, Storage* result, const Stride2Shape& s, const Lane& lane, float add) {
    float even[4][5], odd[4][4];
    const Places places(lane, s, 4);
    gather_columns<5 - PHASE_H>(products, places, PHASE_H, 0, even);
    gather_columns<5 - PHASE_H>(products, places, PHASE_H, 1, odd);
    Storage* plane = result + plane_begin(s, lane.n, lane.channel);
    const bool quads = !CHANNELS_LAST && s.width % 4 == 0 && s.begin_w == 1;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        float after[4], before[4], y[8];
        gather_line(even[i], after);
        gather_line(odd[i], before);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            y[2 * j] = before[j] + add;
            y[2 * j + 1] = after[j] + add;
        }
        write_line(plane, s, s.begin_h + lane.down * 8 - PHASE_H + 2 * i, s.begin_w + lane.across * 8 - 1, quads, y);
    }
}
extern "C" __global__ void __launch_bounds__(128)
    stride2_result(const float* __restrict__ products, const Storage* __restrict__ bias, Storage* __restrict__ result, Stride2Shape s) {
    const Lane lane = find_lane(BLOCK_X * 128 + THREAD_X, s);
    if (!is_lane(lane, s) || lane.tile >= s.tiles) return;
    const float add = bias != nullptr ? (float)widen(bias[lane.channel]) : 0.0f;
    if (BLOCK_Y == 0)
        result_phase<0>(products, result, s, lane, add);
    else
        result_phase<1>(products, result, s, lane, add);
}

struct Stride2WeightsShape {
    int rows, channels, planes;
};

// Adds the planes [plane][25][row][phase, channel] up in order and brings a phase's sums back to its taps.
template <int PHASE_H, int PHASE_W>
DEVICE void weights_phase(const float* planes, Storage* result, const Stride2WeightsShape& s, int row, int channel) {
    constexpr int H = 5 - PHASE_H, W = 5 - PHASE_W, TALL = 2 - PHASE_H, WIDE = 2 - PHASE_W;
    float v[H][W], taps[TALL][WIDE];
#pragma unroll
    for (int i = 0; i < H; ++i)
#pragma unroll
        for (int j = 0; j < W; ++j) v[i][j] = 0.0f;
    const unsigned place = (unsigned)s.rows * (unsigned)(4 * s.channels);
    for (int p = 0; p < s.planes; ++p) {
        const float* from = planes + (long long)p * 25 * place + (unsigned)(row * 4 * s.channels + channel);
#pragma unroll
        for (int i = 0; i < H; ++i)
#pragma unroll
            for (int j = 0; j < W; ++j)
                v[i][j] += from[(long long)(i * 5 + j) * place + Places::phase_slot(j, PHASE_H, PHASE_W) * s.channels];
    }
    gather_square(v, taps);
#pragma unroll
    for (int i = 0; i < TALL; ++i)
#pragma unroll
        for (int j = 0; j < WIDE; ++j) {
            const int tap = (PHASE_H ? 1 : 2 * i) * 3 + (PHASE_W ? 1 : 2 * j);
            const long long at = CHANNELS_LAST ? ((long long)row * 9 + tap) * s.channels + channel
                                               : ((long long)row * s.channels + channel) * 9 + tap;
            result[at] = narrow(taps[i][j]);
        }
}
extern "C" __global__ void __launch_bounds__(128)
    stride2_weights(const float* __restrict__ planes, Storage* __restrict__ result, Stride2WeightsShape s) {
    const int index = BLOCK_X * 128 + THREAD_X;
    const int row = index / s.channels, channel = index - row * s.channels;
    if (row >= s.rows) return;
    switch (BLOCK_Y) {
        case 0: return weights_phase<0, 0>(planes, result, s, row, channel);
        case 1: return weights_phase<0, 1>(planes, result, s, row, channel);
        case 2: return weights_phase<1, 0>(planes, result, s, row, channel);
        default: return weights_phase<1, 1>(planes, result, s, row, channel);
    }
}
