// Depthwise convolutions in vectors: what `depthwise.cu` computes one column a thread, computed WIDTH neighbours a
// thread, with one read for WIDTH elements. A depthwise layer has nine products for each element. Read one by one it is
// bound by its reads and their tests long before memory is.
//
// NCHW: WIDTH (4 or 2, of 16-bit numbers also 8) columns of the result and STRIP rows a thread. Backward-data reads
// WIDTH / STRIDE_W columns of the gradient at once. Both widths are multiples of what is read or written at once, so a
// vector is inside a row or outside, never half. NHWC, forward and the gradient of the filter: WIDTH channels and STRIP
// rows a thread. (Data was tried there: `depthwise.cu` was faster.) One output channel for each input channel.
//
// Constants: CHANNELS_LAST, FILTER_H/W, STRIDE_H/W, PAD_H/W, DILATION_H/W, WIDTH, STRIP (in backward-data a multiple of
// STRIDE_H), and in NHWC WEIGHTS: strips differ, so that forward and the gradient of the filter are separate objects. A constant, or a
// number of the launch: CHANNELS.

#ifndef CHANNELS
#define CHANNELS shape.channels
#endif
#define TAPS (FILTER_H * FILTER_W)

struct DepthwiseQuadsShape {
    int batch, input_h, input_w, output_h, output_w;
    int channels;
    int threads;                 // forward and data: in all (NHWC: for each vector of channels)
    int vectors_per_split;       // weights: strips of vectors of the gradient (of pixels in NHWC)
    Divisor by_image, by_width;  // strips of vectors (pixels) of an image, vectors of a row: the result's, or the gradient's
    Divisor by_strips;           // forward and data: strips in a column
    Divisor by_channels;         // forward and data; in NHWC by 32 of them
};

// Which vector of channels or columns, which strip and which image a thread has.
struct Lane {
    int channel, x, strip, n;
};
DEVICE Lane find_lane(int index, const DepthwiseQuadsShape& shape) {
    Lane lane;
    lane.x = split_off(index, shape.by_width);
    lane.strip = split_off(index, shape.by_strips);
    // In NHWC the place in the block says which.
    lane.channel = CHANNELS_LAST ? 0 : split_off(index, shape.by_channels);
    lane.n = index;
    return lane;
}

// Where an element is; a row or column outside of the image gives a place that is not read.
DEVICE unsigned place(const DepthwiseQuadsShape& shape, int h, int w, const Lane& lane, int y, int x) {
#if CHANNELS_LAST
    return ((unsigned)(lane.n * h + y) * w + x) * CHANNELS + lane.channel;
#else
    return ((unsigned)(lane.n * CHANNELS + lane.channel) * h + y) * w + x;
#endif
}
#define ROW_STEP(width) ((unsigned)(width) * (CHANNELS_LAST ? CHANNELS : 1))

#if CHANNELS_LAST && !WEIGHTS
// A block has 32 channels, its neighbour the next, so that memory is read in whole pixels. The taps of channels lie one channel after
// the other: read by each thread for its own, every lane would touch another line, so they go through LDS.
extern "C" __global__ void __launch_bounds__(256)
    depthwise_quads_forward(const Storage* __restrict__ input, const Storage* __restrict__ filter, const Storage* __restrict__ bias,
                            Storage* __restrict__ output, DepthwiseQuadsShape shape) {
    __shared__ float table[TAPS][32];
    int block = BLOCK_X;
    const int first = split_off(block, shape.by_channels) * 32;
    const int there_taps = (CHANNELS - first < 32 ? CHANNELS - first : 32) * TAPS;
    for (int i = THREAD_X; i < there_taps; i += 256) table[i % TAPS][i / TAPS] = widen(filter[first * TAPS + i]);
    BARRIER();
    const int in_block = THREAD_X % (32 / WIDTH) * WIDTH;
    const int index = block * (8 * WIDTH) + THREAD_X / (32 / WIDTH);
    if (index >= shape.threads || first + in_block >= CHANNELS) return;
    Lane lane = find_lane(index, shape);
    lane.channel = first + in_block;
    float taps[TAPS][WIDTH], sums[STRIP][WIDTH];
#pragma unroll
    for (int t = 0; t < TAPS; ++t)
#pragma unroll
        for (int e = 0; e < WIDTH; ++e) taps[t][e] = table[t][in_block + e];
#pragma unroll
    for (int e = 0; e < WIDTH; ++e) {
        const float add = bias != nullptr ? (float)widen(bias[lane.channel + e]) : 0.0f;
#pragma unroll
        for (int i = 0; i < STRIP; ++i) sums[i][e] = add;
    }
    const int top = lane.strip * STRIP * STRIDE_H - PAD_H, left = lane.x * STRIDE_W - PAD_W;
    const unsigned begin = place(shape, shape.input_h, shape.input_w, lane, top, left);
#pragma unroll
    for (int row = 0; row <= (STRIP - 1) * STRIDE_H + (FILTER_H - 1) * DILATION_H; ++row) {
        const bool row_there = (unsigned)(top + row) < (unsigned)shape.input_h;
        const unsigned at = begin + row * ROW_STEP(shape.input_w);
#pragma unroll
        for (int t = 0; t < FILTER_W; ++t) {
            const bool there = row_there && (unsigned)(left + t * DILATION_W) < (unsigned)shape.input_w;
            float values[WIDTH];
            Neighbours<WIDTH>::read(element(input, there ? at + t * DILATION_W * CHANNELS : 0u), there, values);
#pragma unroll
            for (int i = 0; i < STRIP; ++i)
#pragma unroll
                for (int r = 0; r < FILTER_H; ++r)
                    if (i * STRIDE_H + r * DILATION_H == row)
#pragma unroll
                        for (int e = 0; e < WIDTH; ++e)
                            sums[i][e] = multiply_add(values[e], taps[r * FILTER_W + t][e], sums[i][e]);
        }
    }
#pragma unroll
    for (int i = 0; i < STRIP; ++i) {
        const int y = lane.strip * STRIP + i;
        if (y < shape.output_h) Neighbours<WIDTH>::write(output + place(shape, shape.output_h, shape.output_w, lane, y, lane.x), sums[i]);
    }
}
#endif
#if !CHANNELS_LAST
extern "C" __global__ void __launch_bounds__(256)
    depthwise_quads_forward(const Storage* __restrict__ input, const Storage* __restrict__ filter, const Storage* __restrict__ bias,
                            Storage* __restrict__ output, DepthwiseQuadsShape shape) {
    const int index = BLOCK_X * 256 + THREAD_X;
    if (index >= shape.threads) return;
    const Lane lane = find_lane(index, shape);
    float taps[TAPS], sums[STRIP][WIDTH];
#pragma unroll
    for (int t = 0; t < TAPS; ++t) taps[t] = widen(filter[lane.channel * TAPS + t]);
    const float add = bias != nullptr ? (float)widen(bias[lane.channel]) : 0.0f;
#pragma unroll
    for (int i = 0; i < STRIP; ++i)
#pragma unroll
        for (int e = 0; e < WIDTH; ++e) sums[i][e] = add;
    const int top = lane.strip * STRIP * STRIDE_H - PAD_H;
    const int column = lane.x * STRIDE_W * WIDTH;
    const unsigned begin = place(shape, shape.input_h, shape.input_w, lane, top, column);
#pragma unroll
    for (int row = 0; row <= (STRIP - 1) * STRIDE_H + (FILTER_H - 1) * DILATION_H; ++row) {
        const bool row_there = (unsigned)(top + row) < (unsigned)shape.input_h;
        const unsigned at = begin + row * ROW_STEP(shape.input_w);
        float line[INPUT_TO - INPUT_FROM + 1];
        read_line<WIDTH, INPUT_FROM, INPUT_TO>(input, at, column, shape.input_w, row_there, line);
#pragma unroll
        for (int i = 0; i < STRIP; ++i)
#pragma unroll
            for (int r = 0; r < FILTER_H; ++r)
                if (i * STRIDE_H + r * DILATION_H == row)
#pragma unroll
                    for (int t = 0; t < FILTER_W; ++t)
#pragma unroll
                        for (int e = 0; e < WIDTH; ++e)
                            sums[i][e] = multiply_add(line[e * STRIDE_W + t * DILATION_W], taps[r * FILTER_W + t], sums[i][e]);
    }
#pragma unroll
    for (int i = 0; i < STRIP; ++i) {
        const int y = lane.strip * STRIP + i;
        if (y < shape.output_h)
            Neighbours<WIDTH>::write(output + place(shape, shape.output_h, shape.output_w, lane, y, lane.x * WIDTH), sums[i]);
    }
}

// Rows of the gradient that a strip of the input meets, as in `depthwise.cu`.
#define GRADIENT_FIRST round_down(PAD_H - (FILTER_H - 1) * DILATION_H, STRIDE_H)
#define GRADIENT_LAST round_down(STRIP - 1 + PAD_H, STRIDE_H)

extern "C" __global__ void __launch_bounds__(256)
    depthwise_quads_backward_data(const Storage* __restrict__ gradient, const Storage* __restrict__ filter,
                                  const Storage* __restrict__ bias, Storage* __restrict__ result, DepthwiseQuadsShape shape) {
    const int index = BLOCK_X * 256 + THREAD_X;
    if (index >= shape.threads) return;
    const Lane lane = find_lane(index, shape);
    float taps[TAPS], sums[STRIP][WIDTH];
#pragma unroll
    for (int t = 0; t < TAPS; ++t) taps[t] = widen(filter[lane.channel * TAPS + t]);
    const float add = bias != nullptr ? (float)widen(bias[lane.channel]) : 0.0f;
#pragma unroll
    for (int i = 0; i < STRIP; ++i)
#pragma unroll
        for (int e = 0; e < WIDTH; ++e) sums[i][e] = add;
    const int top = lane.strip * (STRIP / STRIDE_H);
    const int column = lane.x * GRADIENT_WIDTH;
    const unsigned begin = place(shape, shape.output_h, shape.output_w, lane, top, column);
#pragma unroll
    for (int row = GRADIENT_FIRST; row <= GRADIENT_LAST; ++row) {
        const bool row_there = (unsigned)(top + row) < (unsigned)shape.output_h;
        const unsigned at = begin + row * ROW_STEP(shape.output_w);
        float line[GRADIENT_TO - GRADIENT_FROM + 1];
        read_line<GRADIENT_WIDTH, GRADIENT_FROM, GRADIENT_TO>(gradient, at, column, shape.output_w, row_there, line);
#pragma unroll
        for (int i = 0; i < STRIP; ++i)
#pragma unroll
            for (int r = 0; r < FILTER_H; ++r)
                if (i + PAD_H - r * DILATION_H == row * STRIDE_H)
#pragma unroll
                    for (int t = 0; t < FILTER_W; ++t)
#pragma unroll
                        for (int e = 0; e < WIDTH; ++e) {
                            const int meets = e + PAD_W - t * DILATION_W, x = round_down(meets, STRIDE_W);
                            if (x * STRIDE_W == meets)
                                sums[i][e] = multiply_add(line[x - GRADIENT_FROM], taps[r * FILTER_W + t], sums[i][e]);
                        }
    }
#pragma unroll
    for (int i = 0; i < STRIP; ++i) {
        const int h = lane.strip * STRIP + i;
        if (h < shape.input_h)
            Neighbours<WIDTH>::write(result + place(shape, shape.input_h, shape.input_w, lane, h, lane.x * WIDTH), sums[i]);
    }
}
#endif

#if !CHANNELS_LAST || WEIGHTS
// Sums of one channel in NCHW, of WIDTH channels in NHWC.
#define TAP_LANES (CHANNELS_LAST ? WIDTH : 1)
// The gradient of the filter: BLOCK_Y is a split. BLOCK_X is a channel in NCHW (256 threads on its vectors). In NHWC it
// is 32 channels (32 / WIDTH vectors of channels, the threads of each on the pixels). Sums of the threads are added in
// a fixed order, splits by `reduce_weights`.
// Taps whose sums are added at a time: in NHWC as many as leave LDS for other workgroups.
#define AT_ONCE (CHANNELS_LAST ? 16 / WIDTH : 8)
extern "C" __global__ void __launch_bounds__(256)
    depthwise_quads_backward_weights(const Storage* __restrict__ input, const Storage* __restrict__ gradient,
                                     float* __restrict__ planes, DepthwiseQuadsShape shape) {
    Lane lane;
    lane.strip = 0;
#if CHANNELS_LAST
    const int worker = THREAD_X / (32 / WIDTH), workers = 8 * WIDTH, in_block = THREAD_X % (32 / WIDTH) * WIDTH;
    lane.channel = BLOCK_X * 32 + in_block;
    const bool busy = lane.channel < CHANNELS;
#else
    const int worker = THREAD_X, workers = 256;
    lane.channel = BLOCK_X;
    const bool busy = true;
#endif
    const int vectors = shape.batch * shape.by_image.value;
    const int begin = BLOCK_Y * shape.vectors_per_split;
    const int end = begin + shape.vectors_per_split < vectors ? begin + shape.vectors_per_split : vectors;
    float sums[TAPS][TAP_LANES];
#pragma unroll
    for (int t = 0; t < TAPS; ++t)
#pragma unroll
        for (int e = 0; e < TAP_LANES; ++e) sums[t][e] = 0.0f;
    if (busy) {
        for (int vector = begin + worker; vector < end; vector += workers) {
            lane.n = divide(vector, shape.by_image);
            int rest = vector - lane.n * shape.by_image.value;
            const int x = split_off(rest, shape.by_width) * (CHANNELS_LAST ? 1 : WIDTH);
            const int y = rest * STRIP, top = y * STRIDE_H - PAD_H, column = x * STRIDE_W;
            float slopes[STRIP][WIDTH];
#pragma unroll
            for (int i = 0; i < STRIP; ++i) {
                const bool there = y + i < shape.output_h;
                const unsigned at = there ? place(shape, shape.output_h, shape.output_w, lane, y + i, x) : 0u;
                Neighbours<WIDTH>::read(element(gradient, at), there, slopes[i]);
            }
            const unsigned from = place(shape, shape.input_h, shape.input_w, lane, top, column);
#pragma unroll
            for (int row = 0; row <= (STRIP - 1) * STRIDE_H + (FILTER_H - 1) * DILATION_H; ++row) {
                const bool row_there = (unsigned)(top + row) < (unsigned)shape.input_h;
                const unsigned at = from + row * ROW_STEP(shape.input_w);
#if CHANNELS_LAST
#pragma unroll
                for (int t = 0; t < FILTER_W; ++t) {
                    const int w = t * DILATION_W - PAD_W;
                    float values[WIDTH];
                    const bool there = row_there && (unsigned)(column + w) < (unsigned)shape.input_w;
                    Neighbours<WIDTH>::read(element(input, there ? at + (unsigned)(w * CHANNELS) : 0u), there, values);
#pragma unroll
                    for (int i = 0; i < STRIP; ++i)
#pragma unroll
                        for (int r = 0; r < FILTER_H; ++r)
                            if (i * STRIDE_H + r * DILATION_H == row)
#pragma unroll
                                for (int e = 0; e < WIDTH; ++e)
                                    sums[r * FILTER_W + t][e] = multiply_add(slopes[i][e], values[e], sums[r * FILTER_W + t][e]);
                }
#else
                float line[INPUT_TO - INPUT_FROM + 1];
                read_line<WIDTH, INPUT_FROM, INPUT_TO>(input, at, column, shape.input_w, row_there, line);
#pragma unroll
                for (int i = 0; i < STRIP; ++i)
#pragma unroll
                    for (int r = 0; r < FILTER_H; ++r)
                        if (i * STRIDE_H + r * DILATION_H == row)
#pragma unroll
                            for (int t = 0; t < FILTER_W; ++t)
#pragma unroll
                                for (int e = 0; e < WIDTH; ++e)
                                    sums[r * FILTER_W + t][0] =
                                        multiply_add(slopes[i][e], line[e * STRIDE_W + t * DILATION_W], sums[r * FILTER_W + t][0]);
#endif
            }
        }
    }
    planes += (long long)BLOCK_Y * CHANNELS * TAPS;
#if CHANNELS_LAST
    // AT_ONCE taps at a time: the sums of each channel and tap become one.
    __shared__ float parts[AT_ONCE][8 * WIDTH][33];
    const int slot = THREAD_X / 32, lane_in_slot = THREAD_X % 32;
#pragma unroll
    for (int first = 0; first < TAPS; first += AT_ONCE) {
#pragma unroll
        for (int t = 0; t < AT_ONCE; ++t)
            if (first + t < TAPS)
#pragma unroll
                for (int e = 0; e < WIDTH; ++e) parts[t][worker][in_block + e] = sums[first + t][e];
        BARRIER();
        if (slot < AT_ONCE && first + slot < TAPS && BLOCK_X * 32 + lane_in_slot < CHANNELS) {
            float sum = 0.0f;
#pragma unroll 8
            for (int p = 0; p < 8 * WIDTH; ++p) sum += parts[slot][p][lane_in_slot];
            planes[(BLOCK_X * 32 + lane_in_slot) * TAPS + first + slot] = sum;
        }
        BARRIER();
    }
#else
    // AT_ONCE taps at a time: 256 sums of each become 32, then one.
    __shared__ float parts[AT_ONCE][257];
    __shared__ float few[AT_ONCE][33];
    const int slot = THREAD_X / 32, lane_in_slot = THREAD_X % 32;
#pragma unroll
    for (int first = 0; first < TAPS; first += AT_ONCE) {
#pragma unroll
        for (int t = 0; t < AT_ONCE; ++t)
            if (first + t < TAPS) parts[t][THREAD_X] = sums[first + t][0];
        BARRIER();
        float sum = 0.0f;
        if (first + slot < TAPS)
            for (int p = 0; p < 8; ++p) sum += parts[slot][p * 32 + lane_in_slot];
        few[slot][lane_in_slot] = sum;
        BARRIER();
        if (THREAD_X < AT_ONCE && first + THREAD_X < TAPS) {
            sum = 0.0f;
            for (int p = 0; p < 32; ++p) sum += few[THREAD_X][p];
            planes[BLOCK_X * TAPS + first + THREAD_X] = sum;
        }
        BARRIER();
    }
#endif
}
#endif
