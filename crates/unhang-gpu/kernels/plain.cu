// The plain kernels: the definition of a convolution, one result a thread, every number at run time.
//
// Every fast kernel is compared with them. They serve a problem that no fast kernel takes (f64, tensors beyond 2 GiB,
// odd strides). They also serve a new problem while its fast kernel is being compiled. Offsets are 64 bits wide.

struct PlainShape {
    int batch, groups, channels, rows;  // channels of the input and of the output, a group
    int input_h, input_w, output_h, output_w;
    int filter_h, filter_w, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
    int channels_last;
};

// Where an element is: image, channel, row, column.
DEVICE long long place(const PlainShape& s, int all_channels, int h, int w, long long n, int c, int y, int x) {
    return s.channels_last ? ((n * h + y) * w + x) * all_channels + c : ((n * all_channels + c) * h + y) * w + x;
}
DEVICE long long filter_place(const PlainShape& s, int row, int channel, int r, int t) {
    return s.channels_last ? (((long long)row * s.filter_h + r) * s.filter_w + t) * s.channels + channel
                           : (((long long)row * s.channels + channel) * s.filter_h + r) * s.filter_w + t;
}

// Sums in chunks: a single chain over hundreds of thousands of terms loses digits.
struct Sum {
    Real total, chunk;
    int count;
};
DEVICE void add(Sum& sum, Real product) {
    sum.chunk += product;
    if (++sum.count == 1024) {
        sum.total += sum.chunk;
        sum.chunk = 0;
        sum.count = 0;
    }
}

// The result's elements are numbered in the order of memory, so that neighbours write neighbours.
DEVICE void split_place(const PlainShape& s, long long index, int all_channels, int h, int w, long long& n, int& c, int& y, int& x) {
    if (s.channels_last) {
        c = (int)(index % all_channels);
        index /= all_channels;
        x = (int)(index % w);
        index /= w;
        y = (int)(index % h);
        n = index / h;
    } else {
        x = (int)(index % w);
        index /= w;
        y = (int)(index % h);
        index /= h;
        c = (int)(index % all_channels);
        n = index / all_channels;
    }
}

extern "C" __global__ void __launch_bounds__(256)
    plain_forward(const Storage* __restrict__ input, const Storage* __restrict__ filter, const Storage* __restrict__ bias,
                  Storage* __restrict__ output, PlainShape s) {
    const long long index = (long long)BLOCK_X * 256 + THREAD_X;
    const int all_channels = s.groups * s.channels, all_rows = s.groups * s.rows;
    if (index >= (long long)s.batch * all_rows * s.output_h * s.output_w) return;
    long long n;
    int row, y, x;
    split_place(s, index, all_rows, s.output_h, s.output_w, n, row, y, x);
    const int first_channel = row / s.rows * s.channels;
    Sum sum = {0, 0, 0};
    for (int r = 0; r < s.filter_h; ++r) {
        const int h = y * s.stride_h - s.pad_h + r * s.dilation_h;
        if (h < 0 || h >= s.input_h) continue;
        for (int t = 0; t < s.filter_w; ++t) {
            const int w = x * s.stride_w - s.pad_w + t * s.dilation_w;
            if (w < 0 || w >= s.input_w) continue;
            for (int c = 0; c < s.channels; ++c)
                add(sum, widen(input[place(s, all_channels, s.input_h, s.input_w, n, first_channel + c, h, w)]) *
                             widen(filter[filter_place(s, row, c, r, t)]));
        }
    }
    Real value = sum.total + sum.chunk;
    if (bias != nullptr) value += widen(bias[row]);
    output[index] = narrow(value);
}

extern "C" __global__ void __launch_bounds__(256)
    plain_backward_data(const Storage* __restrict__ gradient, const Storage* __restrict__ filter, const Storage* __restrict__ bias,
                        Storage* __restrict__ result, PlainShape s) {
    const long long index = (long long)BLOCK_X * 256 + THREAD_X;
    const int all_channels = s.groups * s.channels, all_rows = s.groups * s.rows;
    if (index >= (long long)s.batch * all_channels * s.input_h * s.input_w) return;
    long long n;
    int channel, h, w;
    split_place(s, index, all_channels, s.input_h, s.input_w, n, channel, h, w);
    const int group = channel / s.channels;
    Sum sum = {0, 0, 0};
    for (int r = 0; r < s.filter_h; ++r) {
        const int above = h + s.pad_h - r * s.dilation_h;
        if (above < 0 || above % s.stride_h != 0 || above / s.stride_h >= s.output_h) continue;
        for (int t = 0; t < s.filter_w; ++t) {
            const int left = w + s.pad_w - t * s.dilation_w;
            if (left < 0 || left % s.stride_w != 0 || left / s.stride_w >= s.output_w) continue;
            for (int k = 0; k < s.rows; ++k) {
                const int row = group * s.rows + k;
                add(sum, widen(gradient[place(s, all_rows, s.output_h, s.output_w, n, row, above / s.stride_h, left / s.stride_w)]) *
                             widen(filter[filter_place(s, row, channel % s.channels, r, t)]));
            }
        }
    }
    Real value = sum.total + sum.chunk;
    // A transposed convolution is this computation, and may have a bias for each channel of its output.
    if (bias != nullptr) value += widen(bias[channel]);
    result[index] = narrow(value);
}

// One workgroup an element of the filter: its threads share the pixels, and their sums are added in a fixed order.
extern "C" __global__ void __launch_bounds__(256)
    plain_backward_weights(const Storage* __restrict__ input, const Storage* __restrict__ gradient, Storage* __restrict__ result, PlainShape s) {
    __shared__ Real parts[256];
    const int all_channels = s.groups * s.channels, all_rows = s.groups * s.rows;
    int index = BLOCK_X;
    const int t = index % s.filter_w;
    index /= s.filter_w;
    const int r = index % s.filter_h;
    index /= s.filter_h;
    const int channel = index % s.channels, row = index / s.channels;
    const int first_channel = row / s.rows * s.channels;
    const long long pixels = (long long)s.batch * s.output_h * s.output_w;
    Sum sum = {0, 0, 0};
    for (long long pixel = THREAD_X; pixel < pixels; pixel += 256) {
        const int x = (int)(pixel % s.output_w);
        const int y = (int)(pixel / s.output_w % s.output_h);
        const long long n = pixel / s.output_w / s.output_h;
        const int h = y * s.stride_h - s.pad_h + r * s.dilation_h, w = x * s.stride_w - s.pad_w + t * s.dilation_w;
        if (h < 0 || h >= s.input_h || w < 0 || w >= s.input_w) continue;
        add(sum, widen(gradient[place(s, all_rows, s.output_h, s.output_w, n, row, y, x)]) *
                     widen(input[place(s, all_channels, s.input_h, s.input_w, n, first_channel + channel, h, w)]));
    }
    parts[THREAD_X] = sum.total + sum.chunk;
    BARRIER();
    for (int half = 128; half > 0; half /= 2) {
        if (THREAD_X < half) parts[THREAD_X] += parts[THREAD_X + half];
        BARRIER();
    }
    if (THREAD_X == 0) result[filter_place(s, row, channel, r, t)] = narrow(parts[0]);
}
