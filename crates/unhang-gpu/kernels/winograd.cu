// Winograd for stride 1, not fused: F(4 × 4, 3 × 3) and F(2 × 2, 5 × 5). The input in tiles of 6 × 6, the filter,
// and a batch of 36 matrix products between them, which `gemm.cu` and `weights.cu` compute as 1 × 1 convolutions with 36
// groups. A quarter (3 × 3) or a third (5 × 5) of the multiplications of the direct way, for moving the transformed
// tensors through memory.
//
// With a dilation of d the image falls apart into d × d images of every d-th pixel, each with a convolution of its own that
// has no dilation: a tile's rows and columns lie d apart, and neighbouring tiles begin at neighbouring pixels.
//
// Points 0, ±1, ±2, ∞; both share the input's transform, and the others are the same sums of powers, longer or shorter.
// The transforms are f32 whatever the storage type is. P below is the number of tiles rounded up to a quad; columns
// beyond the last tile hold zeros, because the gradient of the filter sums over them.
//
// NCHW: the transformed tensors are [36][channel][P]. CHANNELS_LAST: [P][36][channel]. Lanes lie along what is last.
//
// Constants: OUT (4 or 2, results a tile and axis), FILTER (3 or 5); OUT + FILTER - 1 = 6; CHANNELS_LAST.

struct WinogradShape {
    int batch, channels, height, width;  // of the tensor that is read (input transform) or written (output transform)
    int tiles, padded_tiles;
    int pad_h, pad_w;
    Divisor by_image, by_width;              // tiles of an image and of a row of it
    Divisor by_lane;                         // channels (CHANNELS_LAST) or padded tiles
    Divisor by_dilation_h, by_dilation_w;
};

// Which channel and tile a thread has, and where its 36 numbers lie.
struct Lane {
    int channel, tile;
    long long begin, apart;
};
DEVICE Lane find_lane(int index, const WinogradShape& s) {
    Lane lane;
#if CHANNELS_LAST
    lane.tile = divide(index, s.by_lane);
    lane.channel = lane.tile < s.padded_tiles ? index - lane.tile * s.channels : s.channels;
    lane.begin = (long long)lane.tile * 36 * s.channels + lane.channel;
    lane.apart = s.channels;
#else
    lane.channel = divide(index, s.by_lane);
    lane.tile = index - lane.channel * s.padded_tiles;
    lane.begin = (long long)lane.channel * s.padded_tiles + lane.tile;
    lane.apart = (long long)s.channels * s.padded_tiles;
#endif
    return lane;
}
// A tile's image, and where its results begin in it.
struct Corner {
    int n, top, left;
};
DEVICE Corner find_corner(int tile, const WinogradShape& s) {
    Corner corner;
    corner.n = divide(tile, s.by_image);
    int down = tile - corner.n * s.by_image.value;
    int across = split_off(down, s.by_width);
    const int phase_h = split_off(down, s.by_dilation_h), phase_w = split_off(across, s.by_dilation_w);
    corner.top = phase_h + down * OUT * s.by_dilation_h.value;
    corner.left = phase_w + across * OUT * s.by_dilation_w.value;
    return corner;
}
// Where a line of a tile lies.
#define LINE_H(s, corner, i) ((corner).top + (i) * (s).by_dilation_h.value)
#define LINE_W(s, corner, j) ((corner).left + (j) * (s).by_dilation_w.value)

// The input's transform of one line of six, in place.
DEVICE void transform_six(float& a, float& b, float& c, float& d, float& e, float& f) {
    const float t0 = multiply_add(-5.0f, c, multiply_add(4.0f, a, e));
    const float t1 = multiply_add(-4.0f, b + c, d + e);
    const float t2 = multiply_add(4.0f, b - c, e - d);
    const float t3 = multiply_add(2.0f, d - b, e - c);
    const float t4 = multiply_add(2.0f, b - d, e - c);
    const float t5 = multiply_add(-5.0f, d, multiply_add(4.0f, b, f));
    a = t0;
    b = t1;
    c = t2;
    d = t3;
    e = t4;
    f = t5;
}

extern "C" __global__ void __launch_bounds__(128)
    winograd_input(const Storage* __restrict__ source, float* __restrict__ transformed, WinogradShape s) {
    const int index = BLOCK_X * 128 + THREAD_X;
    const Lane lane = find_lane(index, s);
    const int channel = lane.channel, tile = lane.tile;
    if (channel >= s.channels) return;
    float v[6][6];
    const Corner corner = find_corner(tile, s);
    const unsigned plane = plane_begin(s, corner.n, channel);
#pragma unroll
    for (int i = 0; i < 6; ++i)
#pragma unroll
        for (int j = 0; j < 6; ++j) {
            const int h = LINE_H(s, corner, i) - s.pad_h, w = LINE_W(s, corner, j) - s.pad_w;
            const bool there = tile < s.tiles && (unsigned)h < (unsigned)s.height && (unsigned)w < (unsigned)s.width;
            const float read = load_at(source, there ? (plane + (unsigned)(h * s.width + w) * COLUMN_STEP(s)) * (unsigned)sizeof(Storage) : 0u);
            v[i][j] = there ? read : 0.0f;
        }
#pragma unroll
    for (int j = 0; j < 6; ++j) transform_six(v[0][j], v[1][j], v[2][j], v[3][j], v[4][j], v[5][j]);
#pragma unroll
    for (int i = 0; i < 6; ++i) transform_six(v[i][0], v[i][1], v[i][2], v[i][3], v[i][4], v[i][5]);
    float* to = transformed + lane.begin;
#pragma unroll
    for (int i = 0; i < 6; ++i)
#pragma unroll
        for (int j = 0; j < 6; ++j) to[(i * 6 + j) * lane.apart] = v[i][j];
}

// A line of LENGTH (of the filter, or of the gradient for the gradient of the filter) becomes six: its values as a
// polynomial at the points, scaled so that the input's transform has whole numbers.
template <int LENGTH>
DEVICE void spread(const float (&from)[LENGTH], float (&to)[6]) {
    float even1 = 0.0f, odd1 = 0.0f, even2 = 0.0f, odd2 = 0.0f;
#pragma unroll
    for (int i = 0; i < LENGTH; ++i) {
        const float power = (float)(1 << i);
        if (i % 2 == 0) {
            even1 += from[i];
            even2 = multiply_add(power, from[i], even2);
        } else {
            odd1 += from[i];
            odd2 = multiply_add(power, from[i], odd2);
        }
    }
    to[0] = 0.25f * from[0];
    to[1] = (even1 + odd1) * (-1.0f / 6.0f);
    to[2] = (even1 - odd1) * (-1.0f / 6.0f);
    to[3] = (even2 + odd2) * (1.0f / 24.0f);
    to[4] = (even2 - odd2) * (1.0f / 24.0f);
    to[5] = from[LENGTH - 1];
}

// A square of LENGTH × LENGTH becomes 6 × 6, each written `apart` from the one before.
template <int LENGTH>
DEVICE void spread_square(const float (&from)[LENGTH][LENGTH], float* to, long long apart) {
    float half[6][LENGTH];
#pragma unroll
    for (int j = 0; j < LENGTH; ++j) {
        float column[LENGTH], line[6];
#pragma unroll
        for (int i = 0; i < LENGTH; ++i) column[i] = from[i][j];
        spread<LENGTH>(column, line);
#pragma unroll
        for (int i = 0; i < 6; ++i) half[i][j] = line[i];
    }
#pragma unroll
    for (int i = 0; i < 6; ++i) {
        float line[6];
        spread<LENGTH>(half[i], line);
#pragma unroll
        for (int j = 0; j < 6; ++j) to[(i * 6 + j) * apart] = line[j];
    }
}

// Six sums of products become the LENGTH results of a line.
template <int LENGTH>
DEVICE void gather(const float (&from)[6], float (&to)[LENGTH]) {
    const float sum1 = from[1] + from[2], difference1 = from[1] - from[2];
    const float sum2 = from[3] + from[4], difference2 = from[3] - from[4];
#pragma unroll
    for (int i = 0; i < LENGTH; ++i) {
        const float power = (float)(1 << i);
        to[i] = i % 2 == 0 ? multiply_add(power, sum2, sum1) : multiply_add(power, difference2, difference1);
    }
    to[0] += from[0];
    to[LENGTH - 1] += from[5];
}

extern "C" __global__ void __launch_bounds__(128)
    winograd_gradient(const Storage* __restrict__ source, float* __restrict__ transformed, WinogradShape s) {
    const int index = BLOCK_X * 128 + THREAD_X;
    const Lane lane = find_lane(index, s);
    const int channel = lane.channel, tile = lane.tile;
    if (channel >= s.channels) return;
    float v[OUT][OUT];
    const Corner corner = find_corner(tile, s);
    const unsigned plane = plane_begin(s, corner.n, channel);
#pragma unroll
    for (int i = 0; i < OUT; ++i)
#pragma unroll
        for (int j = 0; j < OUT; ++j) {
            const int h = LINE_H(s, corner, i), w = LINE_W(s, corner, j);
            const bool there = tile < s.tiles && h < s.height && w < s.width;
            const float read = load_at(source, there ? (plane + (unsigned)(h * s.width + w) * COLUMN_STEP(s)) * (unsigned)sizeof(Storage) : 0u);
            v[i][j] = there ? read : 0.0f;
        }
    spread_square<OUT>(v, transformed + lane.begin, lane.apart);
}

struct WinogradFilterShape {
    int rows, padded_rows, reduced, padded_reduced;
    int row_elements, reduced_elements;  // where a filter's taps begin
    int tap_elements;                    // from one tap to the next
    int turned;                          // backward-data: the filter turned by half a turn
    Divisor by_padded_rows;
};

// The filter becomes [36][reduced][rows], padded with zeros as `gemm.cu` wants a packed filter.
extern "C" __global__ void __launch_bounds__(128)
    winograd_filter(const Storage* __restrict__ filter, float* __restrict__ transformed, WinogradFilterShape s) {
    const int index = BLOCK_X * 128 + THREAD_X;
    const int reduced = divide(index, s.by_padded_rows), row = index - reduced * s.padded_rows;
    if (reduced >= s.padded_reduced) return;
    const bool there = row < s.rows && reduced < s.reduced;
    const Storage* from = filter + (there ? (long long)row * s.row_elements + (long long)reduced * s.reduced_elements : 0);
    float g[FILTER][FILTER];
#pragma unroll
    for (int i = 0; i < FILTER; ++i)
#pragma unroll
        for (int j = 0; j < FILTER; ++j) {
            const float read = widen(from[(s.turned ? FILTER * FILTER - 1 - i * FILTER - j : i * FILTER + j) * s.tap_elements]);
            g[i][j] = there ? read : 0.0f;
        }
    spread_square<FILTER>(g, transformed + index, (long long)s.padded_reduced * s.padded_rows);
}

extern "C" __global__ void __launch_bounds__(128)
    winograd_output(const float* __restrict__ products, const Storage* __restrict__ bias, Storage* __restrict__ result, WinogradShape s) {
    const int index = BLOCK_X * 128 + THREAD_X;
    const Lane lane = find_lane(index, s);
    const int channel = lane.channel, tile = lane.tile;
    if (channel >= s.channels || tile >= s.tiles) return;
    const long long apart = lane.apart;
    const float* from = products + lane.begin;
    float half[OUT][6];
#pragma unroll
    for (int j = 0; j < 6; ++j) {
        float column[6], line[OUT];
#pragma unroll
        for (int i = 0; i < 6; ++i) column[i] = from[(i * 6 + j) * apart];
        gather<OUT>(column, line);
#pragma unroll
        for (int i = 0; i < OUT; ++i) half[i][j] = line[i];
    }
    const float add = bias != nullptr ? (float)widen(bias[channel]) : 0.0f;
    const Corner corner = find_corner(tile, s);
    Storage* plane = result + plane_begin(s, corner.n, channel);
    const bool quads = !CHANNELS_LAST && OUT == 4 && s.width % 4 == 0 && s.by_dilation_w.value == 1;
#pragma unroll
    for (int i = 0; i < OUT; ++i) {
        const int h = LINE_H(s, corner, i);
        if (h >= s.height) break;
        float line[OUT];
        gather<OUT>(half[i], line);
        Storage* to = plane + (unsigned)(h * s.width) * COLUMN_STEP(s);
        if (quads)
            store_quad(to + corner.left, line[0] + add, line[1] + add, line[2 % OUT] + add, line[3 % OUT] + add);
        else
#pragma unroll
            for (int j = 0; j < OUT; ++j) {
                const int w = LINE_W(s, corner, j);
                if (w < s.width) to[(unsigned)w * COLUMN_STEP(s)] = narrow(line[j] + add);
            }
    }
}

struct WinogradWeightsShape {
    int rows, channels, planes;
};

// The 36 sums of one row and channel become its filter.
DEVICE void write_filter(const float (&sums)[36], Storage* result, int index, const WinogradWeightsShape& s) {
    float half[FILTER][6];
#pragma unroll
    for (int j = 0; j < 6; ++j) {
        float column[6], line[FILTER];
#pragma unroll
        for (int i = 0; i < 6; ++i) column[i] = sums[i * 6 + j];
        gather<FILTER>(column, line);
#pragma unroll
        for (int i = 0; i < FILTER; ++i) half[i][j] = line[i];
    }
#pragma unroll
    for (int i = 0; i < FILTER; ++i) {
        float line[FILTER];
        gather<FILTER>(half[i], line);
#pragma unroll
        for (int j = 0; j < FILTER; ++j) {
            const int tap = i * FILTER + j;
#if CHANNELS_LAST
            const int row = index / s.channels, channel = index - row * s.channels;
            result[((long long)row * FILTER * FILTER + tap) * s.channels + channel] = narrow(line[j]);
#else
            result[(long long)index * FILTER * FILTER + tap] = narrow(line[j]);
#endif
        }
    }
}

// Adds the planes [plane][36][rows][channels] up in order and brings the sums back to the filter's size. Eight threads
// share the 36 sums of one filter; the last step is one thread's.
extern "C" __global__ void __launch_bounds__(256)
    winograd_weights(const float* __restrict__ planes, Storage* __restrict__ result, WinogradWeightsShape s) {
    __shared__ float shared_sums[36][33];
    const int lane = THREAD_X % 32, worker = THREAD_X / 32;
    const int index = BLOCK_X * 32 + lane;
    const int elements = s.rows * s.channels;
    for (int place = worker; place < 36; place += 8) {
        float sum = 0.0f;
        if (index < elements)
            for (int p = 0; p < s.planes; ++p) sum += planes[((long long)p * 36 + place) * elements + index];
        shared_sums[place][lane] = sum;
    }
    BARRIER();
    if (worker != 0 || index >= elements) return;
    float sums[36];
#pragma unroll
    for (int place = 0; place < 36; ++place) sums[place] = shared_sums[place][lane];
    write_filter(sums, result, index, s);
}

// The same for few planes and many filters: each thread has a filter of its own, and all of its reads under way at once.
extern "C" __global__ void __launch_bounds__(256)
    winograd_filters(const float* __restrict__ planes, Storage* __restrict__ result, WinogradWeightsShape s) {
    const int index = BLOCK_X * 256 + THREAD_X;
    const int elements = s.rows * s.channels;
    if (index >= elements) return;
    float sums[36];
#pragma unroll
    for (int place = 0; place < 36; ++place) sums[place] = 0.0f;
    const float* from = planes + index;
    for (int p = 0; p < s.planes; ++p)
#pragma unroll
        for (int place = 0; place < 36; ++place, from += elements) sums[place] += *from;
    write_filter(sums, result, index, s);
}
