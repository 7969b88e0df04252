// Depthwise convolutions: no channel is summed over, so there is nothing for a matrix kernel to do; they are bound by
// memory. A thread computes STRIP pixels one below the other and keeps what rows share in registers; lanes lie along the
// axis that is contiguous in memory (width in NCHW, channels in NHWC).
//
// Constants: CHANNELS_LAST, CHANNELS, MULTIPLIER (output channels for each input channel), FILTER_H/W, STRIDE_H/W,
// PAD_H/W, DILATION_H/W, STRIP (in backward-data a multiple of STRIDE_H).

#define TAPS (FILTER_H * FILTER_W)
#define OUTPUTS (CHANNELS * MULTIPLIER)

struct DepthwiseShape {
    int batch, input_h, input_w, output_h, output_w;
    int threads;                 // forward and data: in all
    int pixels_per_split;        // weights
    Divisor by_image, by_width;  // the output's in forward and weights, the input's in data
    Divisor by_strips;           // forward and data: strips in a column
};

// Which channel, column, strip and image a thread has.
struct Lane {
    int channel, x, strip, n;
};
DEVICE Lane find_lane(int index, int channels, const Divisor& by_width, const Divisor& by_strips) {
    Lane lane;
#if CHANNELS_LAST
    lane.channel = index % channels;
    index /= channels;
    lane.x = split_off(index, by_width);
    lane.strip = split_off(index, by_strips);
    lane.n = index;
#else
    lane.x = split_off(index, by_width);
    lane.strip = split_off(index, by_strips);
    lane.channel = index % channels;
    lane.n = index / channels;
#endif
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
                      Storage* __restrict__ output, DepthwiseShape s) {
    const int index = BLOCK_X * 256 + THREAD_X;
    if (index >= s.threads) return;
    const Lane lane = find_lane(index, OUTPUTS, s.by_width, s.by_strips);
    float taps[TAPS], sums[STRIP];
    // One input channel a group: both layouts have a filter's taps side by side.
#pragma unroll
    for (int t = 0; t < TAPS; ++t) taps[t] = widen(filter[lane.channel * TAPS + t]);
    const float add = bias != nullptr ? (float)widen(bias[lane.channel]) : 0.0f;
#pragma unroll
    for (int i = 0; i < STRIP; ++i) sums[i] = add;
    const int top = lane.strip * STRIP * STRIDE_H - PAD_H, left = lane.x * STRIDE_W - PAD_W;
    const int channel = lane.channel / MULTIPLIER;
    bool column_there[FILTER_W];
#pragma unroll
    for (int t = 0; t < FILTER_W; ++t) column_there[t] = (unsigned)(left + t * DILATION_W) < (unsigned)s.input_w;
    // Where the window begins; outside of the image it may be anywhere, and is not read.
    const unsigned begin = place(CHANNELS, s.input_h, s.input_w, lane.n, channel, top, left);
#pragma unroll
    for (int row = 0; row <= (STRIP - 1) * STRIDE_H + (FILTER_H - 1) * DILATION_H; ++row) {
        const bool row_there = (unsigned)(top + row) < (unsigned)s.input_h;
        const unsigned at = begin + row * row_step(CHANNELS, s.input_w);
#pragma unroll
        for (int t = 0; t < FILTER_W; ++t) {
            const bool there = row_there && column_there[t];
            const float read = load_at(input, there ? (at + t * DILATION_W * COLUMN_STEP(CHANNELS)) * (unsigned)sizeof(Storage) : 0u);
            const float value = there ? read : 0.0f;
#pragma unroll
            for (int i = 0; i < STRIP; ++i)
#pragma unroll
                for (int r = 0; r < FILTER_H; ++r)
                    if (i * STRIDE_H + r * DILATION_H == row) sums[i] = multiply_add(value, taps[r * FILTER_W + t], sums[i]);
        }
    }
#pragma unroll
    for (int i = 0; i < STRIP; ++i) {
        const int y = lane.strip * STRIP + i;
        if (y < s.output_h) output[place(OUTPUTS, s.output_h, s.output_w, lane.n, lane.channel, y, lane.x)] = narrow(sums[i]);
    }
}

// Rows of the gradient that a strip of the input meets, relative to the strip's first: row i meets tap r where
// i + PAD - r × DILATION is a multiple of the stride, and there it meets row (i + PAD - r × DILATION) / STRIDE.
#define GRADIENT_FIRST round_down(PAD_H - (FILTER_H - 1) * DILATION_H, STRIDE_H)
#define GRADIENT_LAST round_down(STRIP - 1 + PAD_H, STRIDE_H)

extern "C" __global__ void __launch_bounds__(256)
    depthwise_backward_data(const Storage* __restrict__ gradient, const Storage* __restrict__ filter, const Storage* __restrict__ bias,
                            Storage* __restrict__ result, DepthwiseShape s) {
    const int index = BLOCK_X * 256 + THREAD_X;
    if (index >= s.threads) return;
    const Lane lane = find_lane(index, CHANNELS, s.by_width, s.by_strips);
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
        column_there[t] = from >= 0 && x < s.output_w && x * STRIDE_W == from;
        column[t] = (unsigned)x * COLUMN_STEP(OUTPUTS);
    }
    for (int m = 0; m < MULTIPLIER; ++m) {
        const int channel = lane.channel * MULTIPLIER + m;
        float taps[TAPS];
#pragma unroll
        for (int t = 0; t < TAPS; ++t) taps[t] = widen(filter[channel * TAPS + t]);
        const unsigned begin = place(OUTPUTS, s.output_h, s.output_w, lane.n, channel, top, 0);
#pragma unroll
        for (int row = GRADIENT_FIRST; row <= GRADIENT_LAST; ++row) {
            const bool row_there = (unsigned)(top + row) < (unsigned)s.output_h;
            const unsigned at = begin + row * row_step(OUTPUTS, s.output_w);
#pragma unroll
            for (int t = 0; t < FILTER_W; ++t) {
                const bool there = row_there && column_there[t];
                const float read = load_at(gradient, there ? (at + column[t]) * (unsigned)sizeof(Storage) : 0u);
                const float value = there ? read : 0.0f;
#pragma unroll
                for (int i = 0; i < STRIP; ++i)
#pragma unroll
                    for (int r = 0; r < FILTER_H; ++r)
                        if (i + PAD_H - r * DILATION_H == row * STRIDE_H) sums[i] = multiply_add(value, taps[r * FILTER_W + t], sums[i]);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < STRIP; ++i) {
        const int h = lane.strip * STRIP + i;
        if (h < s.input_h) result[place(CHANNELS, s.input_h, s.input_w, lane.n, lane.channel, h, lane.x)] = narrow(sums[i]);
    }
}

// The gradient of the filter: BLOCK_Y is a split of the pixels, and BLOCK_X an output channel in NCHW (256 threads on
// its pixels) or 32 of them in NHWC (8 threads each). Sums of the threads are added in a fixed order, splits by
// `reduce_weights`.
#define AT_ONCE 8
extern "C" __global__ void __launch_bounds__(256)
    depthwise_backward_weights(const Storage* __restrict__ input, const Storage* __restrict__ gradient, float* __restrict__ planes, DepthwiseShape s) {
#if CHANNELS_LAST
    const int lane = THREAD_X % 32, worker = THREAD_X / 32, workers = 8;
    const int output = BLOCK_X * 32 + lane;
#else
    const int worker = THREAD_X, workers = 256;
    const int output = BLOCK_X;
#endif
    const int image = s.output_h * s.output_w, pixels = s.batch * image;
    const int begin = BLOCK_Y * s.pixels_per_split;
    const int end = begin + s.pixels_per_split < pixels ? begin + s.pixels_per_split : pixels;
    float sums[TAPS];
#pragma unroll
    for (int t = 0; t < TAPS; ++t) sums[t] = 0.0f;
    if (output < OUTPUTS) {
        for (int pixel = begin + worker; pixel < end; pixel += workers) {
            const int n = divide(pixel, s.by_image);
            const int y = divide(pixel - n * image, s.by_width), x = pixel - n * image - y * s.output_w;
            const float slope = load_at(gradient, place(OUTPUTS, s.output_h, s.output_w, n, output, y, x) * (unsigned)sizeof(Storage));
            const int top = y * STRIDE_H - PAD_H, left = x * STRIDE_W - PAD_W;
            const unsigned at = place(CHANNELS, s.input_h, s.input_w, n, output / MULTIPLIER, top, left);
#pragma unroll
            for (int r = 0; r < FILTER_H; ++r) {
                const bool row_there = (unsigned)(top + r * DILATION_H) < (unsigned)s.input_h;
                const unsigned row = at + r * DILATION_H * row_step(CHANNELS, s.input_w);
#pragma unroll
                for (int t = 0; t < FILTER_W; ++t) {
                    const bool there = row_there && (unsigned)(left + t * DILATION_W) < (unsigned)s.input_w;
                    const float read = load_at(input, there ? (row + t * DILATION_W * COLUMN_STEP(CHANNELS)) * (unsigned)sizeof(Storage) : 0u);
                    sums[r * FILTER_W + t] = multiply_add(slope, there ? read : 0.0f, sums[r * FILTER_W + t]);
                }
            }
        }
    }
    planes += (long long)BLOCK_Y * OUTPUTS * TAPS;
#if CHANNELS_LAST
    __shared__ float parts[8][32];
#pragma unroll
    for (int t = 0; t < TAPS; ++t) {
        parts[worker][lane] = sums[t];
        BARRIER();
        if (worker == 0 && output < OUTPUTS) {
            float sum = 0.0f;
            for (int p = 0; p < 8; ++p) sum += parts[p][lane];
            planes[output * TAPS + t] = sum;
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
