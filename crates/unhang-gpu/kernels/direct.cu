// Forward and backward-data without a matrix tile: a thread computes WIDTH neighbouring columns and STRIP rows of
// BLOCK_ROWS channels, and reads the source in vectors straight into registers. For layers that are bound by memory
// rather than by products: first layers, 1 × 1 layers with few channels on one side. All lanes need the same taps, which
// lie in LDS as f32: one read serves a wave, and four channels. Nothing is turned over here, and nothing but taps waits at a
// barrier. The source is in NCHW.
//
// Backward-data is computed without phases: each row and column of the result meets its taps, known at compile time.
// In NHWC it computes gradients of few channels (one group, all of a pixel's channels in a thread). Their source was
// turned over to NCHW before. Filter and result are as they are.
//
// Constants:
// * CHANNELS_LAST, DIRECTION (0 forward, 1 backward-data), FILTER_H/W, STRIDE_H/W, PAD_H/W, DILATION_H/W, WIDTH;
// * STRIP: in backward-data a multiple of STRIDE_H;
// * BLOCK_ROWS: a multiple of 4;
// * CHUNK: channels whose taps lie in LDS at once; with 1 × 1 filters a multiple of AT_ONCE or all;
// * PLANES: the channels are split; sums go to one plane of f32 for each split, to be added up by `reduce`.
//
// Constants, or numbers of the launch (numbers.cuh): GROUPS, REDUCED (channels summed over, a group), ROWS (channels of
// the result, a group). For a 1 × 1 layer of stride 1 an image is one row. The window is unrolled: a general kernel
// serves all channels and sizes of one window.

#define TAPS (FILTER_H * FILTER_W)
#define DIRECT_THREADS 128
#define ROW_BLOCKS ((ROWS + BLOCK_ROWS - 1) / BLOCK_ROWS)
#define SOURCE_CHANNELS (GROUPS * REDUCED)
#define RESULT_CHANNELS (GROUPS * ROWS)

// Rows and columns of the source that a thread meets, relative to its first.
#if DIRECTION == 0
#define FILTER_AT(row, channel, tap) (((row) * REDUCED + (channel)) * TAPS + (tap))
#define LINE_WIDTH WIDTH
#define LINE_FROM INPUT_FROM
#define LINE_TO INPUT_TO
#define FIRST_ROW (-(PAD_H))
#define LAST_ROW ((STRIP - 1) * STRIDE_H + (FILTER_H - 1) * DILATION_H - (PAD_H))
#else
#if CHANNELS_LAST
#define FILTER_AT(row, channel, tap) (((channel) * TAPS + (tap)) * ROWS + (row))
#else
#define FILTER_AT(row, channel, tap) (((channel) * ROWS + (row)) * TAPS + (tap))
#endif
#define LINE_WIDTH GRADIENT_WIDTH
#define LINE_FROM GRADIENT_FROM
#define LINE_TO GRADIENT_TO
#define FIRST_ROW round_down(PAD_H - (FILTER_H - 1) * DILATION_H, STRIDE_H)
#define LAST_ROW round_down(STRIP - 1 + PAD_H, STRIDE_H)
#endif

// Channels of a 1 × 1 layer that are read at once, while the ones before them are multiplied.
#define AT_ONCE 4
#define POINTWISE (TAPS == 1 && STRIDE_H == 1 && STRIDE_W == 1 && PAD_H == 0 && PAD_W == 0 && STRIP == 1)

struct DirectShape {
    int batch, source_h, source_w, result_h, result_w;
    int groups, reduced, rows;
    int threads;
    int channels_per_split;  // PLANES
    Divisor by_width, by_strips;  // vectors of a row of the result, strips in a column
    Divisor by_row_blocks;
};

typedef float Sums[BLOCK_ROWS][STRIP][WIDTH];
#if PLANES
typedef float Result;
#else
typedef Storage Result;
#endif

// Whether column `e` of a thread's result meets tap `t`, and with which column of its line.
DEVICE constexpr int line_column(int e, int t) {
#if DIRECTION == 0
    return e * STRIDE_W + t * DILATION_W;
#else
    return round_down(e + PAD_W - t * DILATION_W, STRIDE_W) * STRIDE_W == e + PAD_W - t * DILATION_W
               ? round_down(e + PAD_W - t * DILATION_W, STRIDE_W) - LINE_FROM
               : -1;
#endif
}
DEVICE constexpr bool rows_meet(int i, int r, int row) {
#if DIRECTION == 0
    return i * STRIDE_H + r * DILATION_H - PAD_H == row;
#else
    return i + PAD_H - r * DILATION_H == row * STRIDE_H;
#endif
}

// One row of one channel of the source, times all taps that meet it. `taps` are the channel'shape.
DEVICE void multiply_line(const float (&line)[LINE_TO - LINE_FROM + 1], int row, const float* taps, Sums& sums) {
#pragma unroll
    for (int r = 0; r < FILTER_H; ++r)
#pragma unroll
        for (int i = 0; i < STRIP; ++i)
            if (rows_meet(i, r, row))
#pragma unroll
                for (int t = 0; t < FILTER_W; ++t)
#pragma unroll
                    for (int q = 0; q < BLOCK_ROWS / 4; ++q) {
                        const Quad weight = *(const Quad*)(taps + (r * FILTER_W + t) * BLOCK_ROWS + q * 4);
#pragma unroll
                        for (int k = 0; k < 4; ++k)
#pragma unroll
                            for (int e = 0; e < WIDTH; ++e)
                                if (line_column(e, t) >= 0)
                                    sums[q * 4 + k][i][e] =
                                        multiply_add(line[line_column(e, t)], part(weight, k), sums[q * 4 + k][i][e]);
                    }
}

DEVICE void write_values(Result* to, const float (&values)[WIDTH]) {
#if PLANES && TYPE != 0
#pragma unroll
    for (int e = 0; e < WIDTH; ++e) to[e] = values[e];
#else
    Neighbours<WIDTH>::write(to, values);
#endif
}

extern "C" __global__ void __launch_bounds__(DIRECT_THREADS)
    direct(const Storage* __restrict__ filter, const Storage* __restrict__ source, const Storage* __restrict__ bias,
           Result* __restrict__ result, DirectShape shape) {
    __shared__ __attribute__((aligned(16))) float taps[CHUNK * TAPS * BLOCK_ROWS];
    const int group = BLOCK_Y;
    const int block = BY_ROW_BLOCKS(BLOCK_X);
    const int row_begin = (BLOCK_X - block * ROW_BLOCKS) * BLOCK_ROWS;
    // The last threads may have no pixels; they help with the filter all the same.
    int index = block * DIRECT_THREADS + THREAD_X;
    const bool busy = index < shape.threads;
    const int x = split_off(index, shape.by_width), strip = split_off(index, shape.by_strips), n = busy ? index : 0;
    const unsigned plane = (unsigned)(shape.source_h * shape.source_w);
#if DIRECTION == 0
    const int top = strip * STRIP * STRIDE_H, column = x * WIDTH * STRIDE_W;
#else
    const int top = strip * (STRIP / STRIDE_H), column = x * LINE_WIDTH;
#endif
    const unsigned begin = (unsigned)(n * SOURCE_CHANNELS + group * REDUCED) * plane + (unsigned)(top * shape.source_w + column);
    filter += (long long)group * ROWS * REDUCED * TAPS;

    Sums sums;
#pragma unroll
    for (int k = 0; k < BLOCK_ROWS; ++k)
#pragma unroll
        for (int i = 0; i < STRIP; ++i)
#pragma unroll
            for (int e = 0; e < WIDTH; ++e) sums[k][i][e] = 0.0f;

#if PLANES
    const int channel_begin = BLOCK_Z * shape.channels_per_split;
    const int channel_end = channel_begin + shape.channels_per_split < REDUCED ? channel_begin + shape.channels_per_split : REDUCED;
#else
    const int channel_begin = 0, channel_end = REDUCED;
#endif
    for (int first = channel_begin; first < channel_end; first += CHUNK) {
        const int channels = channel_end - first < CHUNK ? channel_end - first : CHUNK;
        if (first > channel_begin) BARRIER();
        for (int slot = THREAD_X; slot < channels * TAPS * BLOCK_ROWS; slot += DIRECT_THREADS) {
            const int row = row_begin + slot % BLOCK_ROWS, tap = slot / BLOCK_ROWS % TAPS;
            const int channel = first + slot / (BLOCK_ROWS * TAPS);
            const bool there = ROWS % BLOCK_ROWS == 0 || row < ROWS;
            const float read = widen(filter[there ? FILTER_AT(row, channel, tap) : 0]);
            taps[slot] = there ? read : 0.0f;
        }
        BARRIER();
        if (!busy) continue;
#if POINTWISE
        // What comes next is under way, as it is in memory, while the products are made; behind the last channel the last
        // is read again.
        typedef Neighbours<WIDTH> Vector;
        Vector::Raw now[AT_ONCE], next[AT_ONCE];
        const auto read = [&](int channel, Vector::Raw(&to)[AT_ONCE]) {
#pragma unroll
            for (int e = 0; e < AT_ONCE; ++e) {
                const int from = channel + e < channels ? channel + e : channels - 1;
                to[e] = *(const Vector::Raw*)element(source, begin + (unsigned)(first + from) * plane);
            }
        };
        read(0, now);
        for (int channel = 0; channel < channels; channel += AT_ONCE) {
            read(channel + AT_ONCE, next);
#pragma unroll
            for (int e = 0; e < AT_ONCE; ++e)
                if (REDUCED % AT_ONCE == 0 || channel + e < channels) {
                    float line[WIDTH];
                    Vector::unpack(now[e], line);
                    multiply_line(line, 0, taps + (channel + e) * BLOCK_ROWS, sums);
                }
#pragma unroll
            for (int e = 0; e < AT_ONCE; ++e) now[e] = next[e];
        }
#else
        unsigned at = begin + (unsigned)first * plane;
        for (int channel = 0; channel < channels; ++channel, at += plane) {
#pragma unroll
            for (int row = FIRST_ROW; row <= LAST_ROW; ++row) {
                float line[LINE_TO - LINE_FROM + 1];
                read_line<LINE_WIDTH, LINE_FROM, LINE_TO>(source, at + row * shape.source_w, column, shape.source_w,
                                                          (unsigned)(top + row) < (unsigned)shape.source_h, line);
                multiply_line(line, row, taps + channel * TAPS * BLOCK_ROWS, sums);
            }
        }
#endif
    }
    if (!busy) return;
#if PLANES
    result += (long long)BLOCK_Z * shape.batch * RESULT_CHANNELS * shape.result_h * shape.result_w;
#endif
#if CHANNELS_LAST
    // The channels of WIDTH pixels lie in one piece.
#pragma unroll
    for (int i = 0; i < STRIP; ++i) {
        const int y = strip * STRIP + i;
        if (y >= shape.result_h) break;
        const unsigned at = ((unsigned)(n * shape.result_h + y) * shape.result_w + x * WIDTH) * ROWS;
#pragma unroll
        for (int vector = 0; vector < ROWS; ++vector) {
            float values[WIDTH];
#pragma unroll
            for (int e = 0; e < WIDTH; ++e) {
                const int pixel = (vector * WIDTH + e) / ROWS, row = (vector * WIDTH + e) % ROWS;
                values[e] = sums[row][i][pixel] + (bias != nullptr ? (float)widen(bias[row]) : 0.0f);
            }
            write_values(result + at + vector * WIDTH, values);
        }
    }
#else
#pragma unroll
    for (int k = 0; k < BLOCK_ROWS; ++k) {
        const int row = row_begin + k;
        if (ROWS % BLOCK_ROWS != 0 && row >= ROWS) break;
        const float add = bias != nullptr ? (float)widen(bias[group * ROWS + row]) : 0.0f;
#pragma unroll
        for (int i = 0; i < STRIP; ++i) {
            const int y = strip * STRIP + i;
            float values[WIDTH];
#pragma unroll
            for (int e = 0; e < WIDTH; ++e) values[e] = sums[k][i][e] + add;
            const unsigned at =
                ((unsigned)(n * RESULT_CHANNELS + group * ROWS + row) * shape.result_h + y) * shape.result_w + x * WIDTH;
            if (y >= shape.result_h) break;
            write_values(result + at, values);
        }
    }
#endif
}
