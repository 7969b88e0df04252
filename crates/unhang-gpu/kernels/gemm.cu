// Implicit GEMM for forward and backward-data: rows are the result's channels, columns its pixels, and the reduction
// runs over taps of the filter and the source's channels.
//
// Backward-data runs in phases of the stride (phases.cuh). A phase that no tap meets writes its zeros, or nothing where
// the result was filled before (SKIP_EMPTY).
//
// Constants: DIRECTION (0 forward, 1 backward-data), CHANNELS_LAST, GROUPS, REDUCED (channels summed over, a group),
// ROWS (channels of the result, a group), FILTER_H/W, STRIDE_H/W, PAD_H/W, DILATION_H/W; PACKED (the filter was brought
// into [group][tap][REDUCED rounded up to BK][ROWS rounded up to BM] before), FLAT (taps and channels are one axis: for
// few channels; forward only), SKIP_EMPTY (phases without taps write
// nothing), POINTWISE (1 × 1, stride 1, no padding, NCHW, and planes of whole quads), PLANES (sums go to one plane
// of f32 for each split, to be added up by `reduce`), HALF (products of f16 in pairs, see tile.cuh).
// Forward and a group's filter unpacked lies as torch has it.

#define TAPS (FILTER_H * FILTER_W)
#define SOURCE_CHANNELS (GROUPS * REDUCED)
#define RESULT_CHANNELS (GROUPS * ROWS)
#define ROW_TILES ((ROWS + BM - 1) / BM)
#define PADDED_ROWS (ROW_TILES * BM)
#if FLAT
#define FLAT_LENGTH (TAPS * REDUCED)
#define PADDED_REDUCED ((FLAT_LENGTH + BK - 1) / BK * BK)
#else
#define CHANNEL_BLOCKS ((REDUCED + BK - 1) / BK)
#define PADDED_REDUCED (CHANNEL_BLOCKS * BK)
#endif

// Where an element of the unpacked filter lies: row × FILTER_ROW + channel × FILTER_CHANNEL + tap × FILTER_TAP.
#if DIRECTION == 0
#if CHANNELS_LAST
#define FILTER_ROW (TAPS * REDUCED)
#define FILTER_TAP REDUCED
#define FILTER_CHANNEL 1
#else
#define FILTER_ROW (TAPS * REDUCED)
#define FILTER_TAP 1
#define FILTER_CHANNEL TAPS
#endif
#else
#if CHANNELS_LAST
#define FILTER_ROW 1
#define FILTER_TAP ROWS
#define FILTER_CHANNEL (TAPS * ROWS)
#else
#define FILTER_ROW TAPS
#define FILTER_TAP 1
#define FILTER_CHANNEL (TAPS * ROWS)
#endif
#endif

// How the filter is read: 1 in quads along the rows, 2 in quads along the reduction, 0 one by one.
#if PACKED
#define FILTER_READ 1
#elif FLAT
#define FILTER_READ ((FLAT_LENGTH) % 4 == 0 ? 2 : 0)
#else
#define FILTER_READ (FILTER_ROW == 1 && ROWS % 4 == 0 ? 1 : FILTER_CHANNEL == 1 && REDUCED % 4 == 0 ? 2 : 0)
#endif
#define FILTER_WIDTH (FILTER_READ == 0 ? 1 : 4)
#define FILTER_UNITS ((BM * BK / FILTER_WIDTH + THREADS - 1) / THREADS)
#define FILTER_EXACT ((BM * BK / FILTER_WIDTH) % THREADS == 0)

// How the source is read: along the columns in NCHW, along the channels in NHWC (in quads where they divide).
#if CHANNELS_LAST
#define SOURCE_WIDTH (!FLAT && REDUCED % 4 == 0 ? 4 : 1)
#define SOURCE_UNITS ((BN * BK / SOURCE_WIDTH + THREADS - 1) / THREADS)
#define SOURCE_EXACT ((BN * BK / SOURCE_WIDTH) % THREADS == 0)
#define SOURCE_COLUMNS SOURCE_UNITS
#elif POINTWISE
#define SOURCE_WIDTH 4
#define SOURCE_UNITS ((BN * BK / 4 + THREADS - 1) / THREADS)
#define SOURCE_EXACT ((BN * BK / 4) % THREADS == 0)
#define SOURCE_COLUMNS 1
#else
#define SOURCE_WIDTH 1
#define SOURCE_UNITS (BN * BK / THREADS)
#define SOURCE_EXACT 1
#define SOURCE_COLUMNS (THREADS >= BN ? 1 : BN / THREADS)
#endif

struct GemmShape {
    int batch, source_h, source_w, result_h, result_w;
    int steps_per_split;
};

extern "C" __global__ void BOUNDS
    gemm(const Storage* __restrict__ filter, const Storage* __restrict__ source, const Storage* __restrict__ bias,
#if PLANES
         float* __restrict__ result,
#else
         Storage* __restrict__ result,
#endif
         GemmShape shape) {
    __shared__ __attribute__((aligned(16))) Cell lds_a[2][BK * LDS_A_PITCH];
    __shared__ __attribute__((aligned(16))) Cell lds_b[2][BK * LDS_B_PITCH];

    const int thread = THREAD_X;
    const int thread_x = thread % (BN / TN), thread_y = thread / (BN / TN);
    const int row_begin = (BLOCK_X % ROW_TILES) * BM;
    const int column_begin = (BLOCK_X / ROW_TILES) * BN;
    const int phase = BLOCK_Y % (PHASES_H * PHASES_W);
    const int group = BLOCK_Y / (PHASES_H * PHASES_W);
    const int split = BLOCK_Z;
    const int phase_h = phase / PHASES_W, phase_w = phase % PHASES_W;

    const Axis axis_h = find_axis(phase_h, shape.result_h, FILTER_H, STRIDE_H, PAD_H, DILATION_H);
    const Axis axis_w = find_axis(phase_w, shape.result_w, FILTER_W, STRIDE_W, PAD_W, DILATION_W);
    const int image_columns = axis_h.extent * axis_w.extent;
    const int columns = shape.batch * image_columns;
    if (column_begin >= columns) return;

#if FLAT
    const int all_steps = PADDED_REDUCED / BK;
#else
    const int all_steps = axis_h.taps * axis_w.taps * CHANNEL_BLOCKS;
#endif
    // Where some phases meet no tap, the result was filled before.
    if (SKIP_EMPTY && all_steps == 0) return;
    const int first_step = split * shape.steps_per_split;
    const int last_step = all_steps < first_step + shape.steps_per_split ? all_steps : first_step + shape.steps_per_split;

    // The columns that this thread gathers: where their window begins, and their image.
    const unsigned plane = (unsigned)(shape.source_h * shape.source_w);
    int window_h[SOURCE_COLUMNS], window_w[SOURCE_COLUMNS];
    unsigned image[SOURCE_COLUMNS];
#if CHANNELS_LAST
    const int lane_k = (thread % (BK / SOURCE_WIDTH)) * SOURCE_WIDTH;
    const int lane_column = thread / (BK / SOURCE_WIDTH);
    const int column_step = THREADS / (BK / SOURCE_WIDTH);
#elif POINTWISE
    const int lane_k = thread / (BN / 4);
    const int lane_column = (thread % (BN / 4)) * 4;
    const int column_step = 0;
#else
    // With whole waves on one slice of the reduction its index is the same in every lane.
    const int lane_k = THREADS < BN ? 0 : BN % 64 == 0 ? UNIFORM(thread / BN) : thread / BN;
    const int lane_column = THREADS < BN ? thread : thread % BN;
    const int column_step = THREADS;
#endif
#pragma unroll
    for (int j = 0; j < SOURCE_COLUMNS; ++j) {
        const int column = column_begin + lane_column + j * column_step;
        const int n = column / image_columns;
        const int pixel = column - n * image_columns;
        const int y = pixel / axis_w.extent, x = pixel - y * axis_w.extent;
        // A column beyond the last is given a window that lies outside of every image.
        window_h[j] = column < columns ? y * SOURCE_STEP_H + axis_h.offset : -(1 << 28);
        window_w[j] = x * SOURCE_STEP_W + axis_w.offset;
        image[j] = (unsigned)(n * SOURCE_CHANNELS) * plane;
    }

    const Storage* source_group = source + (unsigned)(group * REDUCED) * (CHANNELS_LAST ? 1u : plane);
#if PACKED
#if FLAT
    const Storage* filter_group = filter + (long long)group * PADDED_REDUCED * PADDED_ROWS;
#else
    const Storage* filter_group = filter + (long long)group * TAPS * PADDED_REDUCED * PADDED_ROWS;
#endif
#else
    const Storage* filter_group = filter + (long long)group * ROWS * REDUCED * TAPS;
#endif

    float sums[TM][TN];
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; ++j) sums[i][j] = 0.0f;

#if HALF
    HalfPair short_sums[TM][TN / 2];
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN / 2; ++j) short_sums[i][j] = no_pair();
#endif

    Waiting<FILTER_WIDTH> next_a[FILTER_UNITS];
    Waiting<SOURCE_WIDTH> next_b[SOURCE_UNITS];
    // Bit i: whether unit i was read from within its tensor.
    unsigned there_a = 0, there_b = 0;

#if !FLAT
    unsigned place[SOURCE_COLUMNS];
    bool inside[SOURCE_COLUMNS];
    int tap_h = 0, tap_w = 0, block = 0;
    if (first_step < last_step) {
        const int tap = first_step / CHANNEL_BLOCKS;
        block = first_step - tap * CHANNEL_BLOCKS;
        tap_h = tap / axis_w.taps;
        tap_w = tap - tap_h * axis_w.taps;
    }
    auto find_places = [&]() {
#pragma unroll
        for (int j = 0; j < SOURCE_COLUMNS; ++j) {
            const int h = window_h[j] + tap_h * SOURCE_TAP_H, w = window_w[j] + tap_w * SOURCE_TAP_W;
            inside[j] = (unsigned)h < (unsigned)shape.source_h && (unsigned)w < (unsigned)shape.source_w;
#if CHANNELS_LAST
            const unsigned at = image[j] + (unsigned)(h * shape.source_w + w) * SOURCE_CHANNELS + lane_k;
#else
            const unsigned at = image[j] + (unsigned)(h * shape.source_w + w);
#endif
            place[j] = inside[j] ? at * (unsigned)sizeof(Storage) : 0u;
        }
    };
#endif

    auto read_filter = [&](int step) {
        there_a = 0;
#if FLAT
        const int k_begin = step * BK;
        const Storage* slice = filter_group + (PACKED ? (unsigned)k_begin * PADDED_ROWS : (unsigned)k_begin);
        const int k_end = FLAT_LENGTH;
#else
        const int k_begin = block * BK;
        const int tap = (axis_h.first_tap + tap_h * TAP_STEP_H) * FILTER_W + axis_w.first_tap + tap_w * TAP_STEP_W;
        const Storage* slice = filter_group + (PACKED ? (unsigned)(tap * PADDED_REDUCED + k_begin) * PADDED_ROWS
                                                      : (unsigned)(tap * FILTER_TAP + k_begin * FILTER_CHANNEL));
        const int k_end = REDUCED;
#endif
#pragma unroll
        for (int i = 0; i < FILTER_UNITS; ++i) {
            const int unit = thread + i * THREADS;
            if (FILTER_READ == 1) {
                const int row = row_begin + (unit % (BM / 4)) * 4, k = unit / (BM / 4);
                const bool there = (FILTER_EXACT || unit < BM * BK / 4) &&
                                   (PACKED || ((ROWS % BM == 0 || row < ROWS) && (REDUCED % BK == 0 || k_begin + k < k_end)));
#if FLAT
                const unsigned at = PACKED ? (unsigned)(k * PADDED_ROWS + row) : 0u;
#else
                const unsigned at = PACKED ? (unsigned)(k * PADDED_ROWS + row) : (unsigned)(k * FILTER_CHANNEL + row);
#endif
                next_a[i].read(slice, there ? at * (unsigned)sizeof(Storage) : 0u);
                there_a |= (unsigned)there << i;
            } else {
                const int k = (unit % (BK / FILTER_WIDTH)) * FILTER_WIDTH, row = row_begin + unit / (BK / FILTER_WIDTH);
                const bool there = (FILTER_EXACT || unit < BM * BK / FILTER_WIDTH) && (ROWS % BM == 0 || row < ROWS) &&
                                   (PADDED_REDUCED == (FLAT ? TAPS * REDUCED : REDUCED) || k_begin + k < k_end);
                const unsigned at = (unsigned)(row * FILTER_ROW) + (unsigned)(k * (FLAT ? 1 : FILTER_CHANNEL));
                next_a[i].read(slice, there ? at * (unsigned)sizeof(Storage) : 0u);
                there_a |= (unsigned)there << i;
            }
        }
    };

    auto read_source = [&](int step) {
        there_b = 0;
#if FLAT
#pragma unroll
        for (int i = 0; i < SOURCE_UNITS; ++i) {
            const int j = CHANNELS_LAST ? i : i % SOURCE_COLUMNS;
            const int k = step * BK + (CHANNELS_LAST ? lane_k : THREADS < BN ? i / SOURCE_COLUMNS : lane_k + i * (THREADS / BN));
            const int channel = CHANNELS_LAST ? k % REDUCED : k / TAPS;
            const int tap = CHANNELS_LAST ? k / REDUCED : k % TAPS;
            const int h = window_h[j] + (tap / FILTER_W) * SOURCE_TAP_H, w = window_w[j] + (tap % FILTER_W) * SOURCE_TAP_W;
            const bool there = (unsigned)h < (unsigned)shape.source_h && (unsigned)w < (unsigned)shape.source_w &&
                               (FLAT_LENGTH % BK == 0 || k < FLAT_LENGTH);
            const unsigned pixel = (unsigned)(h * shape.source_w + w);
            const unsigned at = image[j] + (CHANNELS_LAST ? pixel * SOURCE_CHANNELS + channel : channel * plane + pixel);
            next_b[i].read(source_group, there ? at * (unsigned)sizeof(Storage) : 0u);
            there_b |= (unsigned)there << i;
        }
#elif CHANNELS_LAST
        const Storage* slice = source_group + block * BK;
        const bool channel_there = REDUCED % BK == 0 || block * BK + lane_k < REDUCED;
#pragma unroll
        for (int i = 0; i < SOURCE_UNITS; ++i) {
            const bool there = inside[i] && channel_there;
            // Without a channel there is nothing to read at the slice's beginning either: read the group's first.
            const Storage* from = channel_there ? slice : source_group;
            next_b[i].read(from, there ? place[i] : 0u);
            there_b |= (unsigned)there << i;
        }
#elif POINTWISE
#pragma unroll
        for (int i = 0; i < SOURCE_UNITS; ++i) {
            const int k = lane_k + i * (THREADS / (BN / 4));
            const int channel = block * BK + k;
            const bool there = (SOURCE_EXACT || k < BK) && (REDUCED % BK == 0 || channel < REDUCED) && inside[0];
            next_b[i].read(source_group, there ? place[0] + (unsigned)channel * plane * (unsigned)sizeof(Storage) : 0u);
            there_b |= (unsigned)there << i;
        }
#else
        // Lane by lane only the column differs; the channel's plane goes into the common base.
#pragma unroll
        for (int i = 0; i < SOURCE_UNITS; ++i) {
            const int j = i % SOURCE_COLUMNS;
            const int k = THREADS < BN ? i / SOURCE_COLUMNS : lane_k + i * (THREADS / BN);
            const int channel = block * BK + k;
            const bool channel_there = REDUCED % BK == 0 || channel < REDUCED;
            const Storage* from = source_group + (channel_there ? (unsigned)channel * plane : 0u);
            next_b[i].read(from, place[j]);
            there_b |= (unsigned)(inside[j] && channel_there) << i;
        }
#endif
    };

    auto write_slices = [&](int buffer) {
        Cell* a = lds_a[buffer];
        Cell* b = lds_b[buffer];
#pragma unroll
        for (int i = 0; i < FILTER_UNITS; ++i) {
            const int unit = thread + i * THREADS;
            const unsigned mask = PACKED ? 0xffffffffu : spread_bit(there_a, i);
            if (FILTER_EXACT || unit < BM * BK / FILTER_WIDTH) {
                if (FILTER_READ == 1) {
                    *(CellQuad*)(a + (unit / (BM / 4)) * LDS_A_PITCH + (unit % (BM / 4)) * 4) = cell_quad(next_a[i], mask);
                } else {
#pragma unroll
                    for (int e = 0; e < FILTER_WIDTH; ++e)
                        a[((unit % (BK / FILTER_WIDTH)) * FILTER_WIDTH + e) * LDS_A_PITCH + unit / (BK / FILTER_WIDTH)] =
                            cell(next_a[i], e, mask);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < SOURCE_UNITS; ++i) {
            const unsigned mask = spread_bit(there_b, i);
#if CHANNELS_LAST
            if (SOURCE_EXACT || thread + i * THREADS < BN * BK / SOURCE_WIDTH) {
#pragma unroll
                for (int e = 0; e < SOURCE_WIDTH; ++e)
                    b[(lane_k + e) * LDS_B_PITCH + lane_column + i * column_step] = cell(next_b[i], e, mask);
            }
#elif POINTWISE
            const int k = lane_k + i * (THREADS / (BN / 4));
            if (SOURCE_EXACT || k < BK)
                *(CellQuad*)(b + k * LDS_B_PITCH + lane_column) = cell_quad(next_b[i], mask);
#else
            const int k = THREADS < BN ? i / SOURCE_COLUMNS : lane_k + i * (THREADS / BN);
            b[k * LDS_B_PITCH + lane_column + (i % SOURCE_COLUMNS) * column_step] = cell(next_b[i], 0, mask);
#endif
        }
    };

    if (first_step < last_step) {
#if !FLAT
        find_places();
#endif
        read_filter(first_step);
        read_source(first_step);
        write_slices(0);
        BARRIER();
        int buffer = 0;
        for (int step = first_step; step < last_step; ++step) {
            const bool more = step + 1 < last_step;
            if (more) {
#if !FLAT
                if (++block == CHANNEL_BLOCKS) {
                    block = 0;
                    if (TAPS > 1) {
                        if (++tap_w == axis_w.taps) {
                            tap_w = 0;
                            ++tap_h;
                        }
                        find_places();
                    }
                }
#endif
                read_filter(step + 1);
                read_source(step + 1);
            }
#if HALF
            multiply_slice_half(lds_a[buffer], lds_b[buffer], thread_x, thread_y, short_sums);
            if (!more || (step + 1) % (HALF_CHAIN / BK) == 0) flush_half(short_sums, sums);
#else
            multiply_slice(lds_a[buffer], lds_b[buffer], thread_x, thread_y, sums);
#endif
            if (more) {
                buffer ^= 1;
                write_slices(buffer);
                BARRIER();
            }
        }
    }

#if PLANES
    result += (long long)split * shape.batch * RESULT_CHANNELS * shape.result_h * shape.result_w;
#endif
    const unsigned result_plane = (unsigned)(shape.result_h * shape.result_w);
    const int row_first = group * ROWS;
    // Pixels of a phase lie STRIDE apart in backward-data; with one phase they follow each other.
    const bool dense = PHASES_H * PHASES_W == 1 && image_columns % 4 == 0;
#pragma unroll
    for (int q = 0; q < COLUMN_QUADS; ++q) {
        const int column = column_begin + TILE_COLUMN(q * 4);
        if (column >= columns) continue;
        int n = column / image_columns;
        int pixel = column - n * image_columns;
        int y = pixel / axis_w.extent, x = pixel - y * axis_w.extent;
#if CHANNELS_LAST
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            if (column + e < columns) {
                const unsigned at = ((unsigned)n * result_plane + (unsigned)((y * PHASES_H + phase_h) * shape.result_w) +
                                     (unsigned)(x * PHASES_W + phase_w)) * RESULT_CHANNELS + row_first;
#pragma unroll
                for (int r = 0; r < ROW_QUADS; ++r) {
                    const int row = row_begin + TILE_ROW(r * 4);
                    float value[4];
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        value[i] = sums[r * 4 + i][q * 4 + e];
                        if (!PLANES && bias != nullptr && row + i < ROWS) value[i] += widen(bias[row_first + row + i]);
                    }
                    if (ROWS % 4 == 0) {
                        if (row < ROWS) {
#if PLANES
                            *(Quad*)(result + at + row) = make_quad(value[0], value[1], value[2], value[3]);
#else
                            store_quad(result + at + row, value[0], value[1], value[2], value[3]);
#endif
                        }
                    } else {
#pragma unroll
                        for (int i = 0; i < 4; ++i)
                            if (row + i < ROWS) {
#if PLANES
                                result[at + row + i] = value[i];
#else
                                result[at + row + i] = narrow(value[i]);
#endif
                            }
                    }
                }
            }
            if (++x == axis_w.extent) {
                x = 0;
                if (++y == axis_h.extent) {
                    y = 0;
                    ++n;
                }
            }
        }
#else
        unsigned at[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            at[e] = (unsigned)(n * RESULT_CHANNELS) * result_plane +
                    (unsigned)((y * PHASES_H + phase_h) * shape.result_w) + (unsigned)(x * PHASES_W + phase_w);
            if (++x == axis_w.extent) {
                x = 0;
                if (++y == axis_h.extent) {
                    y = 0;
                    ++n;
                }
            }
        }
#pragma unroll
        for (int i = 0; i < TM; ++i) {
            const int row = row_begin + TILE_ROW(i);
            if (ROWS % BM == 0 || row < ROWS) {
                const unsigned channel = (unsigned)(row_first + row) * result_plane;
                const float add = !PLANES && bias != nullptr ? (float)widen(bias[row_first + row]) : 0.0f;
                if (dense) {
#if PLANES
                    *(Quad*)(result + at[0] + channel) = make_quad(sums[i][q * 4], sums[i][q * 4 + 1],
                                                                   sums[i][q * 4 + 2], sums[i][q * 4 + 3]);
#else
                    store_quad(result + at[0] + channel, sums[i][q * 4] + add, sums[i][q * 4 + 1] + add,
                               sums[i][q * 4 + 2] + add, sums[i][q * 4 + 3] + add);
#endif
                } else {
#pragma unroll
                    for (int e = 0; e < 4; ++e)
                        if (column + e < columns) {
#if PLANES
                            result[at[e] + channel] = sums[i][q * 4 + e];
#else
                            result[at[e] + channel] = narrow(sums[i][q * 4 + e] + add);
#endif
                        }
                }
            }
        }
#endif
    }
}
