// Winograd for stride 1, not fused: F(4 × 4, 3 × 3), F(4 × 4, 5 × 5) and F(2 × 2, 7 × 7). The input in tiles of 6 × 6 or 8 × 8,
// the filter, and a batch of 36 or 64 matrix products between them. `gemm.cu` and `weights.cu` compute these as 1 × 1
// convolutions with 36 or 64 groups. It takes a quarter (3 × 3), a sixth (5 × 5) or a third (7 × 7) of the direct way's
// multiplications. The price is moving the transformed tensors through memory.
//
// With a dilation of d the image falls apart into d × d images of every d-th pixel. Each has its own convolution
// without dilation: a tile's rows and columns lie d apart, and neighbouring tiles begin at neighbouring pixels.
//
// Points 0, ±5/8, ±3/2 and ∞ for 3 × 3, which lose a third of what ±1 and ±2 do. For the others 0, ±1/2, ±1, ±2 and ∞.
// The transforms are f32 whatever the storage type is. P below is the number of tiles rounded up to a quad. Columns
// beyond the last tile hold zeros, because the gradient of the filter sums over them.
//
// NCHW: the transformed tensors are [SQUARE][channel][P]. CHANNELS_LAST: [P][SQUARE][channel]. Lanes lie along what is last.
// Channels of a group are neighbours, so that groups of the convolution are groups of each of the products.
//
// Constants: FILTER (3, 5 or 7); CHANNELS_LAST.

#define OUT (FILTER == 7 ? 2 : 4)  // results of a tile along an axis
#define SIZE (OUT + FILTER - 1)
#define SQUARE (SIZE * SIZE)
#define PAIRS (SIZE / 2 - 1)  // of points of either sign

struct WinogradShape {
    int batch, channels, height, width;  // of the tensor that is read (input transform) or written (output transform)
    int tiles, padded_tiles;
    int pad_h, pad_w;
    Divisor by_image, by_width;              // tiles of an image and of a row of it
    Divisor by_lane;                         // channels (CHANNELS_LAST) or padded tiles
    Divisor by_dilation_h, by_dilation_w;
};

// Which channel and tile a thread has, and where its numbers lie.
struct Lane {
    int channel, tile;
    long long begin, apart;
};
DEVICE Lane find_lane(int index, const WinogradShape& s) {
    Lane lane;
#if CHANNELS_LAST
    lane.tile = divide(index, s.by_lane);
    lane.channel = lane.tile < s.padded_tiles ? index - lane.tile * s.channels : s.channels;
    lane.begin = (long long)lane.tile * SQUARE * s.channels + lane.channel;
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
// Where a line of a tile is.
#define LINE_H(s, corner, i) ((corner).top + (i) * (s).by_dilation_h.value)
#define LINE_W(s, corner, j) ((corner).left + (j) * (s).by_dilation_w.value)

// The points other than 0 and ∞, each of both signs.
DEVICE float point(int pair) {
#if SIZE == 8
    return pair == 0 ? 1.0f : pair == 1 ? 2.0f : 0.5f;
#else
    return pair == 0 ? 0.625f : 1.5f;
#endif
}
// The distances of a square from the squares of all points but one (PAIRS: of all), multiplied.
DEVICE float distances(int pair, float square) {
    float product = 1.0f;
#pragma unroll
    for (int other = 0; other < PAIRS; ++other)
        if (other != pair) product *= square - point(other) * point(other);
    return product;
}

// The input's transform of one line, in place: for each point the polynomial that is zero at all others, the line's numbers in
// place of the powers. Those of x and -x have the same terms of even order, and terms of odd order of opposite sign.
DEVICE void both_signs(float& plus, float& minus, float x, float even, float odd) {
    plus = multiply_add(x, odd, even);
    minus = multiply_add(-x, odd, even);
}
DEVICE void transform_line(float (&v)[SIZE]) {
    float to[SIZE];
#if SIZE == 8
    // x (x² - 1) (x² - 4) (x² - 1/4)
    to[0] = multiply_add(5.25f, v[2] - v[4], v[6] - v[0]);
    both_signs(to[1], to[2], 1.0f, multiply_add(-4.25f, v[4], v[2] + v[6]), multiply_add(-4.25f, v[3], v[1] + v[5]));
    both_signs(to[3], to[4], 2.0f, multiply_add(0.25f, v[2], multiply_add(-1.25f, v[4], v[6])),
               multiply_add(0.25f, v[1], multiply_add(-1.25f, v[3], v[5])));
    both_signs(to[5], to[6], 0.5f, multiply_add(4.0f, v[2], multiply_add(-5.0f, v[4], v[6])),
               multiply_add(4.0f, v[1], multiply_add(-5.0f, v[3], v[5])));
    to[7] = multiply_add(5.25f, v[3] - v[5], v[7] - v[1]);
#else
    // x (x² - 25/64) (x² - 9/4)
    to[0] = multiply_add(-2.640625f, v[2], multiply_add(0.87890625f, v[0], v[4]));
    both_signs(to[1], to[2], 0.625f, multiply_add(-2.25f, v[2], v[4]), multiply_add(-2.25f, v[1], v[3]));
    both_signs(to[3], to[4], 1.5f, multiply_add(-0.390625f, v[2], v[4]), multiply_add(-0.390625f, v[1], v[3]));
    to[5] = multiply_add(-2.640625f, v[3], multiply_add(0.87890625f, v[1], v[5]));
#endif
#pragma unroll
    for (int i = 0; i < SIZE; ++i) v[i] = to[i];
}

extern "C" __global__ void __launch_bounds__(128)
    winograd_input(const Storage* __restrict__ source, float* __restrict__ transformed, WinogradShape s) {
    const int index = BLOCK_X * 128 + THREAD_X;
    const Lane lane = find_lane(index, s);
    const int channel = lane.channel, tile = lane.tile;
    if (channel >= s.channels) return;
    float v[SIZE][SIZE];
    const Corner corner = find_corner(tile, s);
    const unsigned plane = plane_begin(s, corner.n, channel);
#pragma unroll
    for (int i = 0; i < SIZE; ++i)
#pragma unroll
        for (int j = 0; j < SIZE; ++j) {
            const int h = LINE_H(s, corner, i) - s.pad_h, w = LINE_W(s, corner, j) - s.pad_w;
            const bool there = tile < s.tiles && (unsigned)h < (unsigned)s.height && (unsigned)w < (unsigned)s.width;
            const float read = load_at(source, there ? (plane + (unsigned)(h * s.width + w) * COLUMN_STEP(s)) * (unsigned)sizeof(Storage) : 0u);
            v[i][j] = there ? read : 0.0f;
        }
#pragma unroll
    for (int j = 0; j < SIZE; ++j) {
        float column[SIZE];
#pragma unroll
        for (int i = 0; i < SIZE; ++i) column[i] = v[i][j];
        transform_line(column);
#pragma unroll
        for (int i = 0; i < SIZE; ++i) v[i][j] = column[i];
    }
#pragma unroll
    for (int i = 0; i < SIZE; ++i) transform_line(v[i]);
    float* to = transformed + lane.begin;
#pragma unroll
    for (int i = 0; i < SIZE; ++i)
#pragma unroll
        for (int j = 0; j < SIZE; ++j) to[(i * SIZE + j) * lane.apart] = v[i][j];
}

// A line of LENGTH (of the filter, or of the gradient for the gradient of the filter) becomes SIZE: its values as a
// polynomial at the points, scaled so that the input's transform begins with ones.
template <int LENGTH>
DEVICE void spread(const float (&from)[LENGTH], float (&to)[SIZE]) {
    to[0] = from[0] * (1.0f / distances(PAIRS, 0.0f));
#pragma unroll
    for (int pair = 0; pair < PAIRS; ++pair) {
        const float x = point(pair), scale = 1.0f / (2.0f * x * x * distances(pair, x * x));
        float even = 0.0f, odd = 0.0f, power = 1.0f;
#pragma unroll
        for (int i = 0; i < LENGTH; ++i, power *= x) {
            if (i % 2 == 0)
                even = multiply_add(power, from[i], even);
            else
                odd = multiply_add(power, from[i], odd);
        }
        to[2 * pair + 1] = (even + odd) * scale;
        to[2 * pair + 2] = (even - odd) * scale;
    }
    to[SIZE - 1] = from[LENGTH - 1];
}

// A square of LENGTH × LENGTH becomes SIZE × SIZE, each written `apart` from the one before.
template <int LENGTH>
DEVICE void spread_square(const float (&from)[LENGTH][LENGTH], float* to, long long apart) {
    float half[SIZE][LENGTH];
#pragma unroll
    for (int j = 0; j < LENGTH; ++j) {
        float column[LENGTH], line[SIZE];
#pragma unroll
        for (int i = 0; i < LENGTH; ++i) column[i] = from[i][j];
        spread<LENGTH>(column, line);
#pragma unroll
        for (int i = 0; i < SIZE; ++i) half[i][j] = line[i];
    }
#pragma unroll
    for (int i = 0; i < SIZE; ++i) {
        float line[SIZE];
        spread<LENGTH>(half[i], line);
#pragma unroll
        for (int j = 0; j < SIZE; ++j) to[(i * SIZE + j) * apart] = line[j];
    }
}

// SIZE sums of products become the LENGTH results of a line.
template <int LENGTH>
DEVICE void gather(const float (&from)[SIZE], float (&to)[LENGTH]) {
#pragma unroll
    for (int i = 0; i < LENGTH; ++i) to[i] = 0.0f;
    to[0] = from[0];
    to[LENGTH - 1] = from[SIZE - 1];
#pragma unroll
    for (int pair = 0; pair < PAIRS; ++pair) {
        const float sum = from[2 * pair + 1] + from[2 * pair + 2], difference = from[2 * pair + 1] - from[2 * pair + 2];
        float power = 1.0f;
#pragma unroll
        for (int i = 0; i < LENGTH; ++i, power *= point(pair)) to[i] = multiply_add(power, i % 2 == 0 ? sum : difference, to[i]);
    }
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
    int groups, rows, padded_rows, reduced, padded_reduced;
    int row_elements, reduced_elements;  // where a filter's taps begin
    int tap_elements;                    // from one tap to the next
    int turned;                          // backward-data: the filter turned by half a turn
    Divisor by_padded_rows;
};

// The filter becomes [SQUARE][group][reduced][rows], padded with zeros as `gemm.cu` wants a packed filter. BLOCK_Y is a group.
extern "C" __global__ void __launch_bounds__(128)
    winograd_filter(const Storage* __restrict__ filter, float* __restrict__ transformed, WinogradFilterShape s) {
    const int index = BLOCK_X * 128 + THREAD_X;
    const int reduced = divide(index, s.by_padded_rows), row = index - reduced * s.padded_rows;
    if (reduced >= s.padded_reduced) return;
    const bool there = row < s.rows && reduced < s.reduced;
    const long long group = (long long)BLOCK_Y * s.rows * s.reduced * (FILTER * FILTER);
    const Storage* from = filter + group + (there ? (long long)row * s.row_elements + (long long)reduced * s.reduced_elements : 0);
    float g[FILTER][FILTER];
#pragma unroll
    for (int i = 0; i < FILTER; ++i)
#pragma unroll
        for (int j = 0; j < FILTER; ++j) {
            const float read = widen(from[(s.turned ? FILTER * FILTER - 1 - i * FILTER - j : i * FILTER + j) * s.tap_elements]);
            g[i][j] = there ? read : 0.0f;
        }
    const long long padded = (long long)s.padded_reduced * s.padded_rows;
    spread_square<FILTER>(g, transformed + BLOCK_Y * padded + index, s.groups * padded);
}

extern "C" __global__ void __launch_bounds__(128)
    winograd_output(const float* __restrict__ products, const Storage* __restrict__ bias, Storage* __restrict__ result, WinogradShape s) {
    const int index = BLOCK_X * 128 + THREAD_X;
    const Lane lane = find_lane(index, s);
    const int channel = lane.channel, tile = lane.tile;
    if (channel >= s.channels || tile >= s.tiles) return;
    const long long apart = lane.apart;
    const float* from = products + lane.begin;
    float half[OUT][SIZE];
#pragma unroll
    for (int j = 0; j < SIZE; ++j) {
        float column[SIZE], line[OUT];
#pragma unroll
        for (int i = 0; i < SIZE; ++i) column[i] = from[(i * SIZE + j) * apart];
        gather<OUT>(column, line);
#pragma unroll
        for (int i = 0; i < OUT; ++i) half[i][j] = line[i];
    }
    const float add = bias != nullptr ? (float)widen(bias[channel]) : 0.0f;
    const Corner corner = find_corner(tile, s);
    Storage* plane = result + plane_begin(s, corner.n, channel);
#if OUT == 4
    const bool quads = !CHANNELS_LAST && s.width % 4 == 0 && s.by_dilation_w.value == 1;
#endif
#pragma unroll
    for (int i = 0; i < OUT; ++i) {
        const int h = LINE_H(s, corner, i);
        if (h >= s.height) break;
        float line[OUT];
        gather<OUT>(half[i], line);
        Storage* to = plane + (unsigned)(h * s.width) * COLUMN_STEP(s);
#if OUT == 4
        if (quads)
            store_quad(to + corner.left, line[0] + add, line[1] + add, line[2] + add, line[3] + add);
        else
#endif
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

#define FILTER_TAPS (FILTER * FILTER)

// The sums of one row and channel become its filter: in NHWC at once, in NCHW by way of LDS (`write_waiting`).
DEVICE void finish_filter(const float (&sums)[SQUARE], float* waiting, Storage* result, int index, const WinogradWeightsShape& s) {
    float half[FILTER][SIZE];
#pragma unroll
    for (int j = 0; j < SIZE; ++j) {
        float column[SIZE], line[FILTER];
#pragma unroll
        for (int i = 0; i < SIZE; ++i) column[i] = sums[i * SIZE + j];
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
            result[((long long)row * FILTER_TAPS + tap) * s.channels + channel] = narrow(line[j]);
#else
            waiting[tap] = line[j];
#endif
        }
    }
}

// Filters that wait in LDS become neighbours in memory, written by neighbouring threads: each thread writing its own would touch
// every line of the result once for each tap.
DEVICE void write_waiting(const float* waiting, Storage* result, int first, int filters, const WinogradWeightsShape& s) {
#if !CHANNELS_LAST
    const int left = s.rows * s.channels - first, here = left < filters ? left : filters;
    BARRIER();
    for (int i = THREAD_X; i < here * FILTER_TAPS; i += 256) result[(long long)first * FILTER_TAPS + i] = narrow(waiting[i]);
#endif
}

// Adds the planes [plane][SQUARE][rows][channels] up in order and brings the sums back to the filter's size. Eight threads
// share the sums of one filter; the last step is one thread's.
extern "C" __global__ void __launch_bounds__(256)
    winograd_weights(const float* __restrict__ planes, Storage* __restrict__ result, WinogradWeightsShape s) {
    __shared__ float shared_sums[SQUARE][33];
    __shared__ float waiting[32 * FILTER_TAPS];
    const int lane = THREAD_X % 32, worker = THREAD_X / 32;
    const int index = BLOCK_X * 32 + lane;
    const int elements = s.rows * s.channels;
    for (int place = worker; place < SQUARE; place += 8) {
        float sum = 0.0f;
        if (index < elements)
            for (int p = 0; p < s.planes; ++p) sum += planes[((long long)p * SQUARE + place) * elements + index];
        shared_sums[place][lane] = sum;
    }
    BARRIER();
    if (worker == 0 && index < elements) {
        float sums[SQUARE];
#pragma unroll
        for (int place = 0; place < SQUARE; ++place) sums[place] = shared_sums[place][lane];
        finish_filter(sums, waiting + lane * FILTER_TAPS, result, index, s);
    }
    write_waiting(waiting, result, BLOCK_X * 32, 32, s);
}

#if SIZE == 6
// For few planes and many filters: each thread has another filter, and all of its reads under way at once
// (64 of them would need more scalar registers than there are).
extern "C" __global__ void __launch_bounds__(256)
    winograd_filters(const float* __restrict__ planes, Storage* __restrict__ result, WinogradWeightsShape s) {
    __shared__ float waiting[256 * FILTER_TAPS];
    const int index = BLOCK_X * 256 + THREAD_X;
    const int elements = s.rows * s.channels;
    if (index < elements) {
        float sums[SQUARE];
#pragma unroll
        for (int place = 0; place < SQUARE; ++place) sums[place] = 0.0f;
        const float* from = planes + index;
        for (int p = 0; p < s.planes; ++p)
#pragma unroll
            for (int place = 0; place < SQUARE; ++place, from += elements) sums[place] += *from;
        finish_filter(sums, waiting + THREAD_X * FILTER_TAPS, result, index, s);
    }
    write_waiting(waiting, result, BLOCK_X * 256, 256, s);
}
#endif
