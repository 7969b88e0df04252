// Implicit GEMM for forward and backward-data: the kernel. Constants in gemm.cuh; the filter's side in gemm_filter.cuh, the
// source's in gemm_source.cuh, the result's in gemm_result.cuh.
//
// Backward-data runs in phases of the stride (phases.cuh). A phase that no tap meets writes its zeros, or nothing where
// the result was filled before (SKIP_EMPTY).

extern "C" __global__ void BOUNDS
    gemm(const Storage* __restrict__ filter, const Storage* __restrict__ source, const Storage* __restrict__ bias,
         void* __restrict__ result, GemmShape shape) {
    __shared__ __attribute__((aligned(16))) Cell lds_a[2][BK * LDS_A_PITCH];
    __shared__ __attribute__((aligned(16))) Cell lds_b[2][BK * LDS_B_PITCH];

    const int thread = THREAD_X;
    const int thread_x = thread % (BN / TN), thread_y = thread / (BN / TN);
    const int column_tile = BY_ROW_TILES(BLOCK_X);
    const int row_begin = (BLOCK_X - column_tile * ROW_TILES) * BM;
    const int column_begin = column_tile * BN;
    const int group = BY_PHASES(BLOCK_Y);
    const int phase = BLOCK_Y - group * (PHASES_H * PHASES_W);
    const int split = BLOCK_Z;
    const int phase_h = BY_PHASES_W(phase), phase_w = phase - phase_h * PHASES_W;

    const Axis axis_h = FIND_AXIS_H(phase_h);
    const Axis axis_w = FIND_AXIS_W(phase_w);
    const int image_columns = axis_h.extent * axis_w.extent;
    const int columns = shape.batch * image_columns;
    if (column_begin >= columns) return;
    if (NESTED == 2 && row_begin >= ROWS * NESTED_PARTS(group) / 4) return;

#if FLAT
    const int all_steps = PADDED_REDUCED / BK;
#else
    const int all_steps = axis_h.taps * axis_w.taps * (NESTED == 1 ? CHANNEL_BLOCKS * NESTED_PARTS(group) / 4 : CHANNEL_BLOCKS);
#endif
    // Where some phases meet no tap, the result was filled before.
    if (SKIP_EMPTY && all_steps == 0) return;
    const int first_step = split * shape.steps_per_split;
    const int last_step = all_steps < first_step + shape.steps_per_split ? all_steps : first_step + shape.steps_per_split;
    // A phase with few taps has fewer splits; `reduce` knows how many.
    if (PLANES && PHASES_H * PHASES_W > 1 && first_step >= all_steps) return;

    FilterReader filters(shape, filter, group, thread, row_begin);
    SourceReader sources(shape, source, group, thread);
    sources.find_windows(column_begin, columns, image_columns, axis_h, axis_w);

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

    if (first_step < last_step) {
        Step at = {0, 0, first_step};
#if !FLAT
        const int tap = first_step / CHANNEL_BLOCKS;
        at.block = first_step - tap * CHANNEL_BLOCKS;
        at.tap_h = tap / axis_w.taps;
        at.tap_w = tap - at.tap_h * axis_w.taps;
        sources.find_places(at);
#endif
        filters.read(at, axis_h, axis_w);
        sources.read(at);
        filters.write(lds_a[0]);
        sources.write(lds_b[0]);
        BARRIER();
        int buffer = 0;
        for (int step = first_step; step < last_step; ++step) {
            const bool more = step + 1 < last_step;
            if (more) {
                ++at.block;
#if !FLAT
                if (at.block == CHANNEL_BLOCKS) {
                    at.block = 0;
                    if (TAPS > 1) {
                        if (++at.tap_w == axis_w.taps) {
                            at.tap_w = 0;
                            ++at.tap_h;
                        }
                        sources.find_places(at);
                    }
                }
#endif
                filters.read(at, axis_h, axis_w);
                sources.read(at);
            }
#if HALF
            multiply_slice_half(lds_a[buffer], lds_b[buffer], thread_x, thread_y, short_sums);
            if (!more || (step + 1) % (HALF_CHAIN / BK) == 0) flush_half(short_sums, sums);
#else
            multiply_slice(lds_a[buffer], lds_b[buffer], thread_x, thread_y, sums);
#endif
            if (more) {
                buffer ^= 1;
                filters.write(lds_a[buffer]);
                sources.write(lds_b[buffer]);
                BARRIER();
            }
        }
    }

    if (PLANES)
        result = (float*)result + (long long)split * shape.batch * RESULT_CHANNELS * shape.result_h * shape.result_w;
    const ResultWriter writer = {shape,   result,  bias,         axis_h,    axis_w,   phase_h,
                                 phase_w, group * ROWS, row_begin, thread_x, thread_y};
#if WRITES_LINES
    if (ROWS > 4 && ROWS % 4 != 0 && !PLANES && columns >= MANY_COLUMNS) {
        writer.write_lines(sums, column_begin, columns, lds_b[0], (unsigned*)lds_a[0]);
        return;
    }
#endif
    writer.write(sums, column_begin, columns);
}
