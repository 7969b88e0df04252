// Depthwise convolutions: no channel is summed over, so there is nothing for a matrix kernel to do; they are bound by
// memory. A thread computes STRIP pixels one below the other and keeps what rows share in registers. Lanes lie along
// the axis that is contiguous in memory (width in NCHW, channels in NHWC).
//
// Constants: CHANNELS_LAST, FILTER_H/W, STRIDE_H/W, PAD_H/W, DILATION_H/W, STRIP (in backward-data a multiple of STRIDE_H).
// Constants, or numbers of the launch: CHANNELS, MULTIPLIER (output channels for each input channel). The window is
// unrolled: a general kernel serves all channels and sizes of one window.

#ifdef CHANNELS
#define BY_MULTIPLIER(n) ((n) / MULTIPLIER)
#else
#define CHANNELS shape.channels
#define MULTIPLIER shape.multiplier
#define BY_MULTIPLIER(n) divide(n, shape.by_multiplier)
#endif
#define TAPS (FILTER_H * FILTER_W)
// Large windows have a stride and strips no longer than it, which use a tap seldom: it is read where it is used. AMD's compiler would
// have all reads of the window under way at once, and run out of registers: there its rows are a loop.
#define IS_LARGE (TAPS > 49)
#if TAPS > 49 && !defined(UNHANG_CUDA)
#define UNROLL_ROWS _Pragma("unroll 1")
#else
#define UNROLL_ROWS _Pragma("unroll")
#endif
#define OUTPUTS (CHANNELS * MULTIPLIER)

struct DepthwiseShape {
    int batch, input_h, input_w, output_h, output_w;
    int channels, multiplier;
    int threads;                 // forward and data: in all
    int pixels_per_split;        // weights
    Divisor by_image, by_width;  // the output's in forward and weights, the input's in data
    Divisor by_strips;           // forward and data: strips in a column
    Divisor by_lanes;            // forward and data: channels of the result
    Divisor by_multiplier;
};

// Which channel, column, strip and image a thread has.
struct Lane {
    int channel, x, strip, n;
};
DEVICE Lane find_lane(int index, const DepthwiseShape& shape) {
    Lane lane;
#if CHANNELS_LAST
    lane.channel = split_off(index, shape.by_lanes);
    lane.x = split_off(index, shape.by_width);
    lane.strip = split_off(index, shape.by_strips);
#else
    lane.x = split_off(index, shape.by_width);
    lane.strip = split_off(index, shape.by_strips);
    lane.channel = split_off(index, shape.by_lanes);
#endif
    lane.n = index;
    return lane;
}

// From one row and one column of an image to the next.
DEVICE unsigned row_step(int channels, int width) { return (unsigned)width * (CHANNELS_LAST ? channels : 1); }
#define COLUMN_STEP(channels) (CHANNELS_LAST ? (unsigned)(channels) : 1u)

DEVICE unsigned place(int channels, int h, int w, int n, int c, int y, int x) {
#if CHANNELS_LAST
    return ((unsigned)(n * h + y) * w + x) * channels + c;
#else
    return ((unsigned)(n * channels + c) * h + y) * w + x;
#endif
}

extern "C" __global__ void __launch_bounds__(256)
    depthwise_forward(const Storage* __restrict__ input, const Storage* __restrict__ filter, const Storage* __restrict__ bias,
                      Storage* __restrict__ output, DepthwiseShape shape) {
    const int index = BLOCK_X * 256 + THREAD_X;
    if (index >= shape.threads) return;
    const Lane lane = find_lane(index, shape);
    float taps[IS_LARGE ? 1 : TAPS], sums[STRIP];
    // One input channel a group: both layouts have a filter's taps side by side.
#pragma unroll
    for (int t = 0; t < (IS_LARGE ? 0 : TAPS); ++t) taps[t] = widen(filter[lane.channel * TAPS + t]);
    const float add = bias != nullptr ? (float)widen(bias[lane.channel]) : 0.0f;
#pragma unroll
    for (int i = 0; i < STRIP; ++i) sums[i] = add;
    const int top = lane.strip * STRIP * STRIDE_H - PAD_H, left = lane.x * STRIDE_W - PAD_W;
    const int channel = BY_MULTIPLIER(lane.channel);
    bool column_there[FILTER_W];
#pragma unroll
    for (int t = 0; t < FILTER_W; ++t) column_there[t] = (unsigned)(left + t * DILATION_W) < (unsigned)shape.input_w;
    // Where the window begins; outside of the image it may be anywhere, and is not read.
    const unsigned begin = place(CHANNELS, shape.input_h, shape.input_w, lane.n, channel, top, left);
    UNROLL_ROWS
    for (int row = 0; row <= (STRIP - 1) * STRIDE_H + (FILTER_H - 1) * DILATION_H; ++row) {
        const bool row_there = (unsigned)(top + row) < (unsigned)shape.input_h;
        const unsigned at = begin + row * row_step(CHANNELS, shape.input_w);
#pragma unroll
        for (int t = 0; t < FILTER_W; ++t) {
            const bool there = row_there && column_there[t];
            const float read = load_at(input, there ? (at + t * DILATION_W * COLUMN_STEP(CHANNELS)) * (unsigned)sizeof(Storage) : 0u);
            const float value = there ? read : 0.0f;
#pragma unroll
            for (int i = 0; i < STRIP; ++i) {
                const int below = row - i * STRIDE_H, r = below / DILATION_H;
                if (below < 0 || r * DILATION_H != below || r >= FILTER_H) continue;
                const int tap = r * FILTER_W + t;
                sums[i] = multiply_add(value, IS_LARGE ? (float)widen(filter[lane.channel * TAPS + tap]) : taps[IS_LARGE ? 0 : tap], sums[i]);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < STRIP; ++i) {
        const int y = lane.strip * STRIP + i;
        if (y < shape.output_h) output[place(OUTPUTS, shape.output_h, shape.output_w, lane.n, lane.channel, y, lane.x)] = narrow(sums[i]);
    }
}

// Rows of the gradient that a strip of the input meets, relative to the strip's first: row i meets tap r where
// i + PAD - r × DILATION is a multiple of the stride. There it meets row (i + PAD - r × DILATION) / STRIDE.
#define GRADIENT_FIRST round_down(PAD_H - (FILTER_H - 1) * DILATION_H, STRIDE_H)
#define GRADIENT_LAST round_down(STRIP - 1 + PAD_H, STRIDE_H)

extern "C" __global__ void __launch_bounds__(256)
    depthwise_backward_data(const Storage* __restrict__ gradient, const Storage* __restrict__ filter, const Storage* __restrict__ bias,
                            Storage* __restrict__ result, DepthwiseShape shape) {
    const int index = BLOCK_X * 256 + THREAD_X;
    if (index >= shape.threads) return;
    const Lane lane = find_lane(index, shape);
    float sums[STRIP];
    const float add = bias != nullptr ? (float)widen(bias[lane.channel]) : 0.0f;
#pragma unroll
    for (int i = 0; i < STRIP; ++i) sums[i] = add;
    const int top = lane.strip * (STRIP / STRIDE_H);
    bool column_there[FILTER_W];
    unsigned column[FILTER_W];
#pragma unroll
    for (int t = 0; t < FILTER_W; ++t) {
        const int from = lane.x + PAD_W - t * DILATION_W;
        const int x = from / STRIDE_W;
        column_there[t] = from >= 0 && x < shape.output_w && x * STRIDE_W == from;
        column[t] = (unsigned)x * COLUMN_STEP(OUTPUTS);
    }
    for (int m = 0; m < MULTIPLIER; ++m) {
        const int channel = lane.channel * MULTIPLIER + m;
        float taps[IS_LARGE ? 1 : TAPS];
#pragma unroll
        for (int t = 0; t < (IS_LARGE ? 0 : TAPS); ++t) taps[t] = widen(filter[channel * TAPS + t]);
        const unsigned begin = place(OUTPUTS, shape.output_h, shape.output_w, lane.n, channel, top, 0);
        UNROLL_ROWS
        for (int row = GRADIENT_FIRST; row <= GRADIENT_LAST; ++row) {
            const bool row_there = (unsigned)(top + row) < (unsigned)shape.output_h;
            const unsigned at = begin + row * row_step(OUTPUTS, shape.output_w);
#pragma unroll
            for (int t = 0; t < FILTER_W; ++t) {
                const bool there = row_there && column_there[t];
                const float read = load_at(gradient, there ? (at + column[t]) * (unsigned)sizeof(Storage) : 0u);
                const float value = there ? read : 0.0f;
#pragma unroll
                for (int i = 0; i < STRIP; ++i) {
                    const int below = i + PAD_H - row * STRIDE_H, r = below / DILATION_H;
                    if (below < 0 || r * DILATION_H != below || r >= FILTER_H) continue;
                    const int tap = r * FILTER_W + t;
                    sums[i] = multiply_add(value, IS_LARGE ? (float)widen(filter[channel * TAPS + tap]) : taps[IS_LARGE ? 0 : tap], sums[i]);
                }
            }
        }
    }
#pragma unroll
    for (int i = 0; i < STRIP; ++i) {
        const int h = lane.strip * STRIP + i;
        if (h < shape.input_h) result[place(CHANNELS, shape.input_h, shape.input_w, lane.n, lane.channel, h, lane.x)] = narrow(sums[i]);
    }
}

#if !IS_LARGE
// The gradient of the filter: BLOCK_Y is a split of the pixels. BLOCK_X is an output channel in NCHW (256 threads on
// its pixels) or 32 of them in NHWC (8 threads each). Sums of the threads are added in a fixed order, splits by
// `reduce_weights`.
#define AT_ONCE 8
extern "C" __global__ void __launch_bounds__(256)
    depthwise_backward_weights(const Storage* __restrict__ input, const Storage* __restrict__ gradient, float* __restrict__ planes, DepthwiseShape shape) {
#if CHANNELS_LAST
    const int lane = THREAD_X % 32, worker = THREAD_X / 32, workers = 8;
    const int output = BLOCK_X * 32 + lane;
#else
    const int worker = THREAD_X, workers = 256;
    const int output = BLOCK_X;
#endif
    const int image = shape.output_h * shape.output_w, pixels = shape.batch * image;
    const int begin = BLOCK_Y * shape.pixels_per_split;
    const int end = begin + shape.pixels_per_split < pixels ? begin + shape.pixels_per_split : pixels;
    float sums[TAPS];
#pragma unroll
    for (int t = 0; t < TAPS; ++t) sums[t] = 0.0f;
    if (output < OUTPUTS) {
        for (int pixel = begin + worker; pixel < end; pixel += workers) {
            const int n = divide(pixel, shape.by_image);
            const int y = divide(pixel - n * image, shape.by_width), x = pixel - n * image - y * shape.output_w;
            const float slope = load_at(gradient, place(OUTPUTS, shape.output_h, shape.output_w, n, output, y, x) * (unsigned)sizeof(Storage));
            const int top = y * STRIDE_H - PAD_H, left = x * STRIDE_W - PAD_W;
            const unsigned at = place(CHANNELS, shape.input_h, shape.input_w, n, BY_MULTIPLIER(output), top, left);
#pragma unroll
            for (int r = 0; r < FILTER_H; ++r) {
                const bool row_there = (unsigned)(top + r * DILATION_H) < (unsigned)shape.input_h;
                const unsigned row = at + r * DILATION_H * row_step(CHANNELS, shape.input_w);
#pragma unroll
                for (int t = 0; t < FILTER_W; ++t) {
                    const bool there = row_there && (unsigned)(left + t * DILATION_W) < (unsigned)shape.input_w;
                    const float read = load_at(input, there ? (row + t * DILATION_W * COLUMN_STEP(CHANNELS)) * (unsigned)sizeof(Storage) : 0u);
                    sums[r * FILTER_W + t] = multiply_add(slope, there ? read : 0.0f, sums[r * FILTER_W + t]);
                }
            }
        }
    }
    planes += (long long)BLOCK_Y * OUTPUTS * TAPS;
#if CHANNELS_LAST
    // AT_ONCE taps at a time: the eight sums of each channel and tap become one.
    __shared__ float parts[AT_ONCE][8][32];
#pragma unroll
    for (int first = 0; first < TAPS; first += AT_ONCE) {
#pragma unroll
        for (int t = 0; t < AT_ONCE; ++t)
            if (first + t < TAPS) parts[t][worker][lane] = sums[first + t];
        BARRIER();
        if (first + worker < TAPS && output < OUTPUTS) {
            float sum = 0.0f;
#pragma unroll
            for (int p = 0; p < 8; ++p) sum += parts[worker][p][lane];
            planes[output * TAPS + first + worker] = sum;
        }
        BARRIER();
    }
#else
    // AT_ONCE taps at a time: 256 sums of each become 32, then one.
    __shared__ float parts[AT_ONCE][257];
    __shared__ float few[AT_ONCE][33];
    const int slot = THREAD_X / 32, lane = THREAD_X % 32;
#pragma unroll
    for (int first = 0; first < TAPS; first += AT_ONCE) {
#pragma unroll
        for (int t = 0; t < AT_ONCE; ++t)
            if (first + t < TAPS) parts[t][THREAD_X] = sums[first + t];
        BARRIER();
        float sum = 0.0f;
        if (first + slot < TAPS)
            for (int p = 0; p < 8; ++p) sum += parts[slot][p * 32 + lane];
        few[slot][lane] = sum;
        BARRIER();
        if (THREAD_X < AT_ONCE && first + THREAD_X < TAPS) {
            sum = 0.0f;
            for (int p = 0; p < 32; ++p) sum += few[THREAD_X][p];
            planes[output * TAPS + first + THREAD_X] = sum;
        }
        BARRIER();
    }
#endif
}
#endif
