// Forward and backward-data where the result has few channels (the data gradient of a first layer, a last layer with one
// class): a matrix tile would waste most of its rows. A thread computes STRIP pixels one below the other, all ROWS
// channels of them, and keeps what their windows share in registers. The filter's taps of a phase lie in LDS as quads of
// rows, a chunk of channels at a time. Lanes lie along the width; in NHWC a thread reads four channels at once.
//
// Constants: as gemm.cu without tile and packing, with ROWS ≤ 4, and STRIP and CHUNK. CHUNK is channels of the filter
// in LDS, a multiple of AT_ONCE where there are more of them.

#define TAPS (FILTER_H * FILTER_W)
#define SOURCE_CHANNELS (GROUPS * REDUCED)
#define RESULT_CHANNELS (GROUPS * ROWS)
#define NARROW_THREADS 128
// Taps that a phase has at most.
#define MOST_H ((FILTER_H + TAP_STEP_H - 1) / TAP_STEP_H)
#define MOST_W ((FILTER_W + TAP_STEP_W - 1) / TAP_STEP_W)
// Rows of the source that a strip meets, relative to its first window.
#define ROW_FIRST (SOURCE_TAP_H < 0 ? (MOST_H - 1) * SOURCE_TAP_H : 0)
#define ROW_LAST ((STRIP - 1) * SOURCE_STEP_H + (SOURCE_TAP_H < 0 ? 0 : (MOST_H - 1) * SOURCE_TAP_H))

// Channels that a thread reads at once.
#if CHANNELS_LAST && REDUCED % 4 == 0
#define AT_ONCE 4
#else
#define AT_ONCE 1
#endif

#if CHANNELS_LAST && DIRECTION == 0
#define FILTER_AT(row, channel, tap) (((row) * TAPS + (tap)) * REDUCED + (channel))
#elif CHANNELS_LAST
#define FILTER_AT(row, channel, tap) (((channel) * TAPS + (tap)) * ROWS + (row))
#elif DIRECTION == 0
#define FILTER_AT(row, channel, tap) (((row) * REDUCED + (channel)) * TAPS + (tap))
#else
#define FILTER_AT(row, channel, tap) (((channel) * ROWS + (row)) * TAPS + (tap))
#endif

struct NarrowShape {
    int batch, source_h, source_w, result_h, result_w;
    int strips;  // of the largest phase
};

extern "C" __global__ void __launch_bounds__(NARROW_THREADS)
    narrow_rows(const Storage* __restrict__ filter, const Storage* __restrict__ source, const Storage* __restrict__ bias,
                Storage* __restrict__ result, NarrowShape shape) {
    __shared__ __attribute__((aligned(16))) float taps[CHUNK * MOST_H * MOST_W * 4];
    const int phase = BLOCK_Y % (PHASES_H * PHASES_W), group = BLOCK_Y / (PHASES_H * PHASES_W);
    const int phase_h = phase / PHASES_W, phase_w = phase % PHASES_W;
    const Axis axis_h = FIND_AXIS_H(phase_h);
    const Axis axis_w = FIND_AXIS_W(phase_w);

    // The last threads may have no pixels; they help with the filter all the same.
    const int index = BLOCK_X * NARROW_THREADS + THREAD_X;
    const int width = axis_w.extent > 0 ? axis_w.extent : 1;
    const int x = index % width;
    const int strip = index / width % shape.strips, n = index / width / shape.strips;
    const bool busy = n < shape.batch && axis_w.extent > 0;
    const int top = strip * STRIP * SOURCE_STEP_H + axis_h.offset, left = x * SOURCE_STEP_W + axis_w.offset;
    const unsigned plane = (unsigned)(shape.source_h * shape.source_w);
#if CHANNELS_LAST
    const Storage* from = source + (unsigned)(busy ? n : 0) * plane * SOURCE_CHANNELS + group * REDUCED;
#else
    const Storage* from = source + (unsigned)((busy ? n : 0) * SOURCE_CHANNELS + group * REDUCED) * plane;
#endif
    filter += (long long)group * ROWS * REDUCED * TAPS;

    float sums[STRIP][ROWS];
#pragma unroll
    for (int i = 0; i < STRIP; ++i)
#pragma unroll
        for (int row = 0; row < ROWS; ++row) sums[i][row] = 0.0f;

    for (int first = 0; first < REDUCED; first += CHUNK) {
        const int channels = REDUCED - first < CHUNK ? REDUCED - first : CHUNK;
        if (first > 0) BARRIER();
        for (int slot = THREAD_X; slot < channels * MOST_H * MOST_W * 4; slot += NARROW_THREADS) {
            const int row = slot % 4, tap_w = slot / 4 % MOST_W, tap_h = slot / 4 / MOST_W % MOST_H;
            const int channel = first + slot / 4 / (MOST_W * MOST_H);
            const bool there = row < ROWS && tap_h < axis_h.taps && tap_w < axis_w.taps;
            const int tap = (axis_h.first_tap + tap_h * TAP_STEP_H) * FILTER_W + axis_w.first_tap + tap_w * TAP_STEP_W;
            const float read = widen(filter[there ? FILTER_AT(row, channel, tap) : 0]);
            taps[slot] = there ? read : 0.0f;
        }
        BARRIER();
        if (busy) {
            for (int channel = 0; channel < channels; channel += AT_ONCE) {
#pragma unroll
                for (int tap_w = 0; tap_w < MOST_W; ++tap_w) {
                    const int w = left + tap_w * SOURCE_TAP_W;
                    const bool column_there = (unsigned)w < (unsigned)shape.source_w;
                    Quad weight[AT_ONCE][MOST_H];
#pragma unroll
                    for (int e = 0; e < AT_ONCE; ++e)
#pragma unroll
                        for (int tap_h = 0; tap_h < MOST_H; ++tap_h)
                            weight[e][tap_h] = *(const Quad*)(taps + (((channel + e) * MOST_H + tap_h) * MOST_W + tap_w) * 4);
#pragma unroll
                    for (int offset = ROW_FIRST; offset <= ROW_LAST; ++offset) {
                        const int h = top + offset;
                        const bool there = column_there && (unsigned)h < (unsigned)shape.source_h;
                        const unsigned pixel = (unsigned)(h * shape.source_w + w);
                        const unsigned at = CHANNELS_LAST ? pixel * SOURCE_CHANNELS + (unsigned)(first + channel)
                                                          : (unsigned)(first + channel) * plane + pixel;
                        float value[AT_ONCE];
                        Neighbours<AT_ONCE>::read(element(from, there ? at : 0u), there, value);
#pragma unroll
                        for (int i = 0; i < STRIP; ++i)
#pragma unroll
                            for (int tap_h = 0; tap_h < MOST_H; ++tap_h)
                                if (i * SOURCE_STEP_H + tap_h * SOURCE_TAP_H == offset)
#pragma unroll
                                    for (int e = 0; e < AT_ONCE; ++e)
#pragma unroll
                                        for (int row = 0; row < ROWS; ++row)
                                            sums[i][row] = multiply_add(value[e], part(weight[e][tap_h], row), sums[i][row]);
                    }
                }
            }
        }
    }
    if (!busy) return;
#pragma unroll
    for (int i = 0; i < STRIP; ++i) {
        const int y = strip * STRIP + i;
        if (y >= axis_h.extent) break;
#pragma unroll
        for (int row = 0; row < ROWS; ++row) {
            const int channel = group * ROWS + row;
            const float add = bias != nullptr ? (float)widen(bias[channel]) : 0.0f;
            const unsigned image_row = (unsigned)(y * PHASES_H + phase_h), column = (unsigned)(x * PHASES_W + phase_w);
#if CHANNELS_LAST
            const unsigned at = (((unsigned)n * shape.result_h + image_row) * shape.result_w + column) * RESULT_CHANNELS + channel;
#else
            const unsigned at = ((unsigned)(n * RESULT_CHANNELS + channel) * shape.result_h + image_row) * shape.result_w + column;
#endif
            result[at] = narrow(sums[i][row] + add);
        }
    }
}
