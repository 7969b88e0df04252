// Backward-weights as a GEMM: rows are the output's channels, columns the taps and input channels of the filter
// (channel fastest). The reduction runs over all pixels of all images of the gradient of the output.
//
// The reduction is long and the result small, so it is split: each split writes a plane of f32 sums, laid out as
// [group × ROWS][tap][channel], and `reduce_weights` adds the planes up in a fixed order. No atomics: the same numbers
// every time, and no chain of additions longer than one split.
//
// Constants:
// * CHANNELS_LAST, and the tile (tile.cuh);
// * GRADIENT_QUADS: what is read of the gradient comes in whole quads (pixels of a plane in NCHW, channels of a group
//   in NHWC);
// * SOURCE_QUADS: what is read of the source comes in whole quads (in NCHW 1 × 1 layers of stride 1 only);
// * ALIGNED (NCHW): all columns that the lanes of a unit gather belong to one tap.
//
// Constants, or numbers of the launch (numbers.cuh): GROUPS, CHANNELS (input's, a group), ROWS (output's, a group),
// FILTER_H/W, STRIDE_H/W, PAD_H/W, DILATION_H/W.

struct WeightsShape {
    int batch, source_h, source_w, gradient_h, gradient_w;
    int groups, channels, rows;
    int filter_h, filter_w, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
    int steps_per_split;
    Divisor by_image, by_row, by_row_tiles, by_column_channels, by_filter_w;
};

#define TAPS (FILTER_H * FILTER_W)
#define COLUMNS (TAPS * CHANNELS)
#define ROW_TILES ((ROWS + BM - 1) / BM)
#define ALL_ROWS (GROUPS * ROWS)
#define ALL_CHANNELS (GROUPS * CHANNELS)

// Along which axis is read: 1 the tile's own (rows, columns), 2 the reduction.
#define READ_AXIS (CHANNELS_LAST ? 1 : 2)
#define ROW_WIDTH (GRADIENT_QUADS ? 4 : 1)
#define COLUMN_WIDTH (SOURCE_QUADS ? 4 : 1)
#define ROW_LANES (READ_AXIS == 1 ? BM / ROW_WIDTH : BK / ROW_WIDTH)
#define COLUMN_LANES (READ_AXIS == 1 ? BN / COLUMN_WIDTH : BK / COLUMN_WIDTH)
#define ROW_ALL (BM * BK / ROW_WIDTH)
#define COLUMN_ALL (BN * BK / COLUMN_WIDTH)
#define ROW_UNITS ((ROW_ALL + THREADS - 1) / THREADS)
#define COLUMN_UNITS ((COLUMN_ALL + THREADS - 1) / THREADS)
// From one unit of a thread to the next, in columns (NCHW).
#define UNIT_COLUMNS (THREADS / COLUMN_LANES)
// Columns of a tap: its channels, rounded up where a tap has to begin with a unit.
#define COLUMN_CHANNELS (ALIGNED ? (CHANNELS + UNIT_COLUMNS - 1) / UNIT_COLUMNS * UNIT_COLUMNS : CHANNELS)

// A unit of WIDTH elements goes into LDS, [BK][PITCH], wherever it was read along.
template <int WIDTH>
DEVICE void write_unit(float* lds, int pitch, int lane, int other, const Waiting<WIDTH>& unit, unsigned mask) {
    if (READ_AXIS == 1 && WIDTH == 4) {
        *(Quad*)(lds + other * pitch + lane) = as_quad(unit, mask);
    } else {
#pragma unroll
        for (int e = 0; e < WIDTH; ++e)
            lds[READ_AXIS == 1 ? other * pitch + lane + e : (lane + e) * pitch + other] = unit.value(e, mask);
    }
}

// The gradient's side.
struct RowReader {
    const WeightsShape& shape;
    const Storage* gradient;
    int thread, group, row_begin, pixels;
    unsigned plane;
    Waiting<ROW_WIDTH> next[ROW_UNITS];
    // Bit i: whether unit i was read from within the tensor.
    unsigned there;

    METHOD void read(int step) {
        there = 0;
#if CHANNELS_LAST
        const Storage* from = gradient + group * ROWS;
#pragma unroll
        for (int i = 0; i < ROW_UNITS; ++i) {
            const int unit = thread + i * THREADS;
            const int row = row_begin + (unit % ROW_LANES) * ROW_WIDTH;
            const int pixel = step * BK + unit / ROW_LANES;
            const bool inside = (ROW_ALL % THREADS == 0 || unit < ROW_ALL) && pixel < pixels && (ROWS % BM == 0 || row < ROWS);
            next[i].read(from, inside ? ((unsigned)pixel * ALL_ROWS + row) * (unsigned)sizeof(Storage) : 0u);
            there |= (unsigned)inside << i;
        }
#else
        // One pixel (or quad of them) a thread; its rows differ in the plane only.
        const int lane = (thread % ROW_LANES) * ROW_WIDTH;
        const int pixel = step * BK + lane;
        const int n = divide(pixel, shape.by_image);
        const unsigned first = ((unsigned)(n * ALL_ROWS + group * ROWS + row_begin + thread / ROW_LANES) * plane +
                                (unsigned)(pixel - n * (int)plane)) * (unsigned)sizeof(Storage);
#pragma unroll
        for (int i = 0; i < ROW_UNITS; ++i) {
            const int row = thread / ROW_LANES + i * (THREADS / ROW_LANES);
            const bool inside = (ROW_ALL % THREADS == 0 || row < BM) && pixel < pixels && (ROWS % BM == 0 || row_begin + row < ROWS);
            next[i].read(gradient, inside ? first + (unsigned)(i * (THREADS / ROW_LANES)) * plane * (unsigned)sizeof(Storage) : 0u);
            there |= (unsigned)inside << i;
        }
#endif
    }

    METHOD void write(float* lds) const {
#pragma unroll
        for (int i = 0; i < ROW_UNITS; ++i) {
            const int unit = thread + i * THREADS;
            if (ROW_ALL % THREADS == 0 || unit < ROW_ALL)
                write_unit(lds, LDS_A_PITCH, (unit % ROW_LANES) * ROW_WIDTH, unit / ROW_LANES, next[i], spread_bit(there, i));
        }
    }
};

// A pixel of the gradient, and where its window of the source begins.
struct Window {
    int n, h, w;
    METHOD Window(int pixel, const WeightsShape& shape) {
        n = divide(pixel, shape.by_image);
        const int in_image = pixel - n * shape.by_image.value;
        const int y = divide(in_image, shape.by_row), x = in_image - y * shape.gradient_w;
        h = y * STRIDE_H - PAD_H;
        w = x * STRIDE_W - PAD_W;
    }
};

// A tap, from its number: how far it is from the window's beginning.
struct Tap {
    int h, w;
    METHOD Tap(int number, const WeightsShape& shape) {
        const int row = BY_FILTER_W(number);
        h = row * DILATION_H;
        w = (number - row * FILTER_W) * DILATION_W;
    }
};

// The source's side.
struct ColumnReader {
    const WeightsShape& shape;
    const Storage* source;
    int thread, group, column_begin, pixels;
    unsigned plane;
    Waiting<COLUMN_WIDTH> next[COLUMN_UNITS];
    unsigned there;

    METHOD bool is_inside(int h, int w) const {
        return (unsigned)h < (unsigned)shape.source_h && (unsigned)w < (unsigned)shape.source_w;
    }
    METHOD int tap_of(int column) const { return TAPS == 1 ? 0 : BY_COLUMN_CHANNELS(column); }
    METHOD void take(int i, bool inside, unsigned at) {
        next[i].read(source, inside ? at * (unsigned)sizeof(Storage) : 0u);
        there |= (unsigned)inside << i;
    }

#if CHANNELS_LAST
    METHOD void read(int step) {
        there = 0;
        // A thread's units have the same columns.
        const int column = column_begin + (thread % COLUMN_LANES) * COLUMN_WIDTH;
        const int number = tap_of(column), channel = column - number * CHANNELS;
        const Tap tap(number, shape);
#pragma unroll
        for (int i = 0; i < COLUMN_UNITS; ++i) {
            const int unit = thread + i * THREADS;
            const int pixel = step * BK + unit / COLUMN_LANES;
            const Window window(pixel, shape);
            const int h = window.h + tap.h, w = window.w + tap.w;
            const bool inside = (COLUMN_ALL % THREADS == 0 || unit < COLUMN_ALL) && (COLUMNS % BN == 0 || column < COLUMNS) &&
                                pixel < pixels && is_inside(h, w);
            take(i, inside, ((unsigned)window.n * plane + (unsigned)(h * shape.source_w + w)) * ALL_CHANNELS +
                                (unsigned)(group * CHANNELS + channel));
        }
    }
#else
    METHOD void read(int step) {
        there = 0;
        const int pixel = step * BK + (thread % COLUMN_LANES) * COLUMN_WIDTH;
        const Window window(pixel, shape);
        const int lane = thread / COLUMN_LANES;
        const unsigned first = (unsigned)(window.n * ALL_CHANNELS + group * CHANNELS) * plane;
#if ALIGNED
        // All lanes of a unit are in one tap: it, and how far it is from the window's beginning, is the same in all.
        const unsigned begin = first + (unsigned)lane * plane + (unsigned)(window.h * shape.source_w + window.w);
        // With many units their taps, kept from step to step, would be more than there are scalar registers.
        int tile_begin = column_begin;
        if (COLUMN_UNITS >= 8) OPAQUE_UNIFORM(tile_begin);
#pragma unroll
        for (int i = 0; i < COLUMN_UNITS; ++i) {
            const int unit_begin = tile_begin + i * UNIT_COLUMNS;
            const int number = tap_of(unit_begin), channel = unit_begin - number * COLUMN_CHANNELS;
            const Tap tap(number, shape);
            const bool column_there = (COLUMN_ALL % THREADS == 0 || i * UNIT_COLUMNS + lane < BN) && number < TAPS &&
                                      channel + lane < CHANNELS;
            take(i, column_there && pixel < pixels && is_inside(window.h + tap.h, window.w + tap.w),
                 begin + (unsigned)channel * plane + (unsigned)(tap.h * shape.source_w + tap.w));
        }
#else
        // The obvious way: every element finds its own tap and channel.
#pragma unroll
        for (int i = 0; i < COLUMN_UNITS; ++i) {
            const int in_tile = lane + i * UNIT_COLUMNS, column = column_begin + in_tile;
            const int number = tap_of(column), channel = column - number * COLUMN_CHANNELS;
            const Tap tap(number, shape);
            const int h = window.h + tap.h, w = window.w + tap.w;
            const bool column_there = (COLUMN_ALL % THREADS == 0 || in_tile < BN) && (COLUMNS % BN == 0 || column < COLUMNS);
            take(i, column_there && pixel < pixels && is_inside(h, w),
                 first + (unsigned)channel * plane + (unsigned)(h * shape.source_w + w));
        }
#endif
    }
#endif

    METHOD void write(float* lds) const {
#pragma unroll
        for (int i = 0; i < COLUMN_UNITS; ++i) {
            const int unit = thread + i * THREADS;
            if (COLUMN_ALL % THREADS == 0 || unit < COLUMN_ALL)
                write_unit(lds, LDS_B_PITCH, (unit % COLUMN_LANES) * COLUMN_WIDTH, unit / COLUMN_LANES, next[i], spread_bit(there, i));
        }
    }
};

extern "C" __global__ void BOUNDS
    weights(const Storage* __restrict__ gradient, const Storage* __restrict__ source, float* __restrict__ planes,
            WeightsShape shape) {
    __shared__ __attribute__((aligned(16))) float lds_a[2][BK * LDS_A_PITCH];
    __shared__ __attribute__((aligned(16))) float lds_b[2][BK * LDS_B_PITCH];

    const int thread = THREAD_X;
    const int thread_x = thread % (BN / TN), thread_y = thread / (BN / TN);
    const int column_tile = BY_ROW_TILES(BLOCK_X);
    const int row_begin = (BLOCK_X - column_tile * ROW_TILES) * BM;
    const int column_begin = column_tile * BN;
    const int group = BLOCK_Y, split = BLOCK_Z;
    if (NESTED && column_begin >= COLUMNS * NESTED_PARTS(group) / 4) return;

    const int pixels = shape.batch * shape.gradient_h * shape.gradient_w;
    const int all_steps = (pixels + BK - 1) / BK;
    const int first_step = split * shape.steps_per_split;
    const int last_step = all_steps < first_step + shape.steps_per_split ? all_steps : first_step + shape.steps_per_split;

    float sums[TM][TN];
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; ++j) sums[i][j] = 0.0f;
    RowReader rows = {shape, gradient, thread, group, row_begin, pixels, (unsigned)(shape.gradient_h * shape.gradient_w)};
    ColumnReader columns = {shape, source, thread, group, column_begin, pixels, (unsigned)(shape.source_h * shape.source_w)};

    if (first_step < last_step) {
        rows.read(first_step);
        columns.read(first_step);
        rows.write(lds_a[0]);
        columns.write(lds_b[0]);
        BARRIER();
        int buffer = 0;
        for (int step = first_step; step < last_step; ++step) {
            const bool more = step + 1 < last_step;
            if (more) {
                rows.read(step + 1);
                columns.read(step + 1);
            }
            multiply_slice(lds_a[buffer], lds_b[buffer], thread_x, thread_y, sums);
            if (more) {
                buffer ^= 1;
                rows.write(lds_a[buffer]);
                columns.write(lds_b[buffer]);
                BARRIER();
            }
        }
    }

    planes += ((long long)split * ALL_ROWS + group * ROWS) * COLUMNS;
#pragma unroll
    for (int q = 0; q < COLUMN_QUADS; ++q) {
        const int column = column_begin + TILE_COLUMN(q * 4);
        // In the planes taps follow each other without gaps.
        const int tap = ALIGNED ? columns.tap_of(column) : 0;
        const int place = column - tap * (COLUMN_CHANNELS - CHANNELS);
        const int end = !ALIGNED ? COLUMNS : tap < TAPS ? (tap + 1) * CHANNELS : 0;
        const bool quads = ALIGNED ? CHANNELS % 4 == 0 : COLUMNS % 4 == 0;
#pragma unroll
        for (int i = 0; i < TM; ++i) {
            const int row = row_begin + TILE_ROW(i);
            if (ROWS % BM == 0 || row < ROWS) {
                float* to = planes + (unsigned)(row * COLUMNS + place);
                if (quads) {
                    if (place < end)
                        *(Quad*)to = make_quad(sums[i][q * 4], sums[i][q * 4 + 1], sums[i][q * 4 + 2], sums[i][q * 4 + 3]);
                } else {
#pragma unroll
                    for (int e = 0; e < 4; ++e)
                        if (place + e < end) to[e] = sums[i][q * 4 + e];
                }
            }
        }
    }
}
