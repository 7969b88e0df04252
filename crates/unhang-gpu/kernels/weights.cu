// Backward-weights as a GEMM: rows are the output's channels, columns the taps and input channels of the filter
// (channel fastest), and the reduction runs over all pixels of all images of the gradient of the output.
//
// The reduction is long and the result small, so it is split: each split writes a plane of f32 sums, laid out as
// [group × ROWS][tap][channel], and `reduce_weights` adds the planes up in a fixed order. No atomics: the same numbers
// every time, and no chain of additions longer than one split.
//
// Constants: CHANNELS_LAST, GROUPS, CHANNELS (input's, a group), ROWS (output's, a group), FILTER_H/W, STRIDE_H/W,
// PAD_H/W, DILATION_H/W, GRADIENT_QUADS (the gradient's planes are whole quads; NCHW), POINTWISE (1 × 1, stride 1, no
// padding, and GRADIENT_QUADS).

#define TAPS (FILTER_H * FILTER_W)
#define COLUMNS (TAPS * CHANNELS)
#define ROW_TILES ((ROWS + BM - 1) / BM)
#define ALL_ROWS (GROUPS * ROWS)
#define ALL_CHANNELS (GROUPS * CHANNELS)

// Width of a read, and along which axis: 1 the tile's own (rows, columns), 2 the reduction.
#if CHANNELS_LAST
#define ROW_AXIS 1
#define ROW_WIDTH (ROWS % 4 == 0 ? 4 : 1)
#define COLUMN_AXIS 1
#define COLUMN_WIDTH (CHANNELS % 4 == 0 ? 4 : 1)
#else
#define ROW_AXIS 2
#define ROW_WIDTH (GRADIENT_QUADS ? 4 : 1)
#define COLUMN_AXIS 2
#define COLUMN_WIDTH (POINTWISE ? 4 : 1)
#endif
#define ROW_LANES (ROW_AXIS == 1 ? BM / ROW_WIDTH : BK / ROW_WIDTH)
#define COLUMN_LANES (COLUMN_AXIS == 1 ? BN / COLUMN_WIDTH : BK / COLUMN_WIDTH)
#define ROW_ALL (BM * BK / ROW_WIDTH)
#define COLUMN_ALL (BN * BK / COLUMN_WIDTH)
#define ROW_UNITS ((ROW_ALL + THREADS - 1) / THREADS)
#define COLUMN_UNITS ((COLUMN_ALL + THREADS - 1) / THREADS)

struct WeightsShape {
    int batch, source_h, source_w, gradient_h, gradient_w;
    int steps_per_split;
    Divisor by_image, by_row;
};

extern "C" __global__ void BOUNDS
    weights(const Storage* __restrict__ gradient, const Storage* __restrict__ source, float* __restrict__ planes,
            WeightsShape shape) {
    __shared__ __attribute__((aligned(16))) float lds_a[2][BK * LDS_A_PITCH];
    __shared__ __attribute__((aligned(16))) float lds_b[2][BK * LDS_B_PITCH];

    const int thread = THREAD_X;
    const int thread_x = thread % (BN / TN), thread_y = thread / (BN / TN);
    const int row_begin = (BLOCK_X % ROW_TILES) * BM;
    const int column_begin = (BLOCK_X / ROW_TILES) * BN;
    const int group = BLOCK_Y, split = BLOCK_Z;

    const unsigned gradient_plane = (unsigned)(shape.gradient_h * shape.gradient_w);
    const unsigned source_plane = (unsigned)(shape.source_h * shape.source_w);
    const int pixels = shape.batch * (int)gradient_plane;
    const int all_steps = (pixels + BK - 1) / BK;
    const int first_step = split * shape.steps_per_split;
    const int last_step = all_steps < first_step + shape.steps_per_split ? all_steps : first_step + shape.steps_per_split;

    float sums[TM][TN];
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; ++j) sums[i][j] = 0.0f;
    Waiting<ROW_WIDTH> next_a[ROW_UNITS];
    Waiting<COLUMN_WIDTH> next_b[COLUMN_UNITS];
    // Bit i: whether unit i was read from within its tensor.
    unsigned there_a = 0, there_b = 0;

    auto read_gradient = [&](int step) {
        there_a = 0;
#if ROW_AXIS == 1
        const Storage* from = gradient + group * ROWS;
#pragma unroll
        for (int i = 0; i < ROW_UNITS; ++i) {
            const int unit = thread + i * THREADS;
            const int row = row_begin + (unit % ROW_LANES) * ROW_WIDTH;
            const int pixel = step * BK + unit / ROW_LANES;
            const bool there = (ROW_ALL % THREADS == 0 || unit < ROW_ALL) && pixel < pixels && (ROWS % BM == 0 || row < ROWS);
            const unsigned at = there ? ((unsigned)pixel * ALL_ROWS + row) * (unsigned)sizeof(Storage) : 0u;
#else
        // One pixel (or quad of them) a thread; its rows differ in the plane only.
        const int lane = (thread % ROW_LANES) * ROW_WIDTH;
        const int pixel = step * BK + lane;
        const int n = divide(pixel, shape.by_image);
        const unsigned first = ((unsigned)(n * ALL_ROWS + group * ROWS + row_begin + thread / ROW_LANES) * gradient_plane +
                                (unsigned)(pixel - n * (int)gradient_plane)) * (unsigned)sizeof(Storage);
        const Storage* from = gradient;
#pragma unroll
        for (int i = 0; i < ROW_UNITS; ++i) {
            const int row = thread / ROW_LANES + i * (THREADS / ROW_LANES);
            const bool there = (ROW_ALL % THREADS == 0 || row < BM) && pixel < pixels && (ROWS % BM == 0 || row_begin + row < ROWS);
            const unsigned at = there ? first + (unsigned)(i * (THREADS / ROW_LANES)) * gradient_plane * (unsigned)sizeof(Storage) : 0u;
#endif
            next_a[i].read(from, at);
            there_a |= (unsigned)there << i;
        }
    };

    auto read_source = [&](int step) {
        there_b = 0;
#if COLUMN_AXIS == 2
        const int lane = (thread % COLUMN_LANES) * COLUMN_WIDTH;
        const int pixel = step * BK + lane;
        const int n = divide(pixel, shape.by_image);
        const int in_image = pixel - n * (int)gradient_plane;
        const int y = divide(in_image, shape.by_row), x = in_image - y * shape.gradient_w;
        const int h0 = y * STRIDE_H - PAD_H, w0 = x * STRIDE_W - PAD_W;
        const unsigned first = (unsigned)(n * ALL_CHANNELS + group * CHANNELS) * source_plane;
#endif
#pragma unroll
        for (int i = 0; i < COLUMN_UNITS; ++i) {
#if COLUMN_AXIS == 2
            // Where the channels are whole multiples of the step between a thread's columns, all lanes are in one tap.
            const int step_columns = THREADS / COLUMN_LANES;
            const int in_tile = thread / COLUMN_LANES + i * step_columns;
            const bool aligned = CHANNELS % (THREADS / COLUMN_LANES) == 0 && BN % (THREADS / COLUMN_LANES) == 0;
            const int tap = aligned ? (column_begin + i * step_columns) / CHANNELS : (column_begin + in_tile) / CHANNELS;
            const int channel = column_begin + in_tile - tap * CHANNELS;
            const bool column_there = (COLUMN_ALL % THREADS == 0 || in_tile < BN) && (COLUMNS % BN == 0 || column_begin + in_tile < COLUMNS);
#else
            const int unit = thread + i * THREADS;
            const int column = column_begin + (unit % COLUMN_LANES) * COLUMN_WIDTH;
            const int pixel = step * BK + unit / COLUMN_LANES;
            const int n = divide(pixel, shape.by_image);
            const int in_image = pixel - n * (int)gradient_plane;
            const int y = divide(in_image, shape.by_row), x = in_image - y * shape.gradient_w;
            const int h0 = y * STRIDE_H - PAD_H, w0 = x * STRIDE_W - PAD_W;
            const int tap = column / CHANNELS, channel = column - tap * CHANNELS;
            const bool column_there = (COLUMN_ALL % THREADS == 0 || unit < COLUMN_ALL) && (COLUMNS % BN == 0 || column < COLUMNS);
#endif
            const int h = h0 + (tap / FILTER_W) * DILATION_H, w = w0 + (tap % FILTER_W) * DILATION_W;
            const bool there = column_there && pixel < pixels && (unsigned)h < (unsigned)shape.source_h &&
                               (unsigned)w < (unsigned)shape.source_w;
#if CHANNELS_LAST
            const unsigned at = ((unsigned)n * source_plane + (unsigned)(h * shape.source_w + w)) * ALL_CHANNELS +
                                (unsigned)(group * CHANNELS + channel);
#else
            const unsigned at = first + (unsigned)channel * source_plane + (unsigned)(h * shape.source_w + w);
#endif
            next_b[i].read(source, there ? at * (unsigned)sizeof(Storage) : 0u);
            there_b |= (unsigned)there << i;
        }
    };

    auto write_slices = [&](int buffer) {
        float* a = lds_a[buffer];
        float* b = lds_b[buffer];
#pragma unroll
        for (int i = 0; i < ROW_UNITS; ++i) {
            const int unit = thread + i * THREADS;
            const int lane = (unit % ROW_LANES) * ROW_WIDTH, other = unit / ROW_LANES;
            const unsigned mask = spread_bit(there_a, i);
            if (ROW_ALL % THREADS == 0 || unit < ROW_ALL) {
                if (ROW_AXIS == 1 && ROW_WIDTH == 4)
                    *(Quad*)(a + other * LDS_A_PITCH + lane) = as_quad(next_a[i], mask);
                else
#pragma unroll
                    for (int e = 0; e < ROW_WIDTH; ++e)
                        a[ROW_AXIS == 1 ? other * LDS_A_PITCH + lane + e : (lane + e) * LDS_A_PITCH + other] = next_a[i].value(e, mask);
            }
        }
#pragma unroll
        for (int i = 0; i < COLUMN_UNITS; ++i) {
            const int unit = thread + i * THREADS;
            const int lane = (unit % COLUMN_LANES) * COLUMN_WIDTH, other = unit / COLUMN_LANES;
            const unsigned mask = spread_bit(there_b, i);
            if (COLUMN_ALL % THREADS == 0 || unit < COLUMN_ALL) {
                if (COLUMN_AXIS == 1 && COLUMN_WIDTH == 4)
                    *(Quad*)(b + other * LDS_B_PITCH + lane) = as_quad(next_b[i], mask);
                else
#pragma unroll
                    for (int e = 0; e < COLUMN_WIDTH; ++e)
                        b[COLUMN_AXIS == 1 ? other * LDS_B_PITCH + lane + e : (lane + e) * LDS_B_PITCH + other] = next_b[i].value(e, mask);
            }
        }
    };

    if (first_step < last_step) {
        read_gradient(first_step);
        read_source(first_step);
        write_slices(0);
        BARRIER();
        int buffer = 0;
        for (int step = first_step; step < last_step; ++step) {
            const bool more = step + 1 < last_step;
            if (more) {
                read_gradient(step + 1);
                read_source(step + 1);
            }
            multiply_slice(lds_a[buffer], lds_b[buffer], thread_x, thread_y, sums);
            if (more) {
                buffer ^= 1;
                write_slices(buffer);
                BARRIER();
            }
        }
    }

    planes += ((long long)split * ALL_ROWS + group * ROWS) * COLUMNS;
#pragma unroll
    for (int i = 0; i < TM; ++i) {
        const int row = row_begin + TILE_ROW(i);
        if (ROWS % BM == 0 || row < ROWS) {
#pragma unroll
            for (int q = 0; q < COLUMN_QUADS; ++q) {
                const int column = column_begin + TILE_COLUMN(q * 4);
                float* to = planes + (unsigned)(row * COLUMNS + column);
                if (COLUMNS % 4 == 0) {
                    if (COLUMNS % BN == 0 || column < COLUMNS)
                        *(Quad*)to = make_quad(sums[i][q * 4], sums[i][q * 4 + 1], sums[i][q * 4 + 2], sums[i][q * 4 + 3]);
                } else {
#pragma unroll
                    for (int e = 0; e < 4; ++e)
                        if (column + e < COLUMNS) to[e] = sums[i][q * 4 + e];
                }
            }
        }
    }
}
