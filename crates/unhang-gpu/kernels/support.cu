// The small kernels around the large ones: adding up planes, packing filters, and turning images over.
//
// Constants: none but TYPE; every number comes at run time, so that one object of each type serves all problems.

struct ReduceShape {
    int elements;                  // of one plane
    int planes;
    int phases;                    // of the stride, in backward-data; 1 where every pixel has all planes
    int planes_0, planes_1, planes_2, planes_3;  // how many planes a phase has: a byte each, the first phase lowest
    Divisor by_channel_elements;   // from one channel to the next: a plane of pixels in NCHW, 1 in NHWC
    Divisor by_channels;           // of the result, for the bias
    Divisor by_height, by_width, by_stride_h, by_stride_w;
};

// Phases of a stride have sums of different lengths, and short ones have fewer planes: the others were not written.
DEVICE int planes_of(int index, const ReduceShape& shape) {
    if (shape.phases == 1) return shape.planes;
    // Which pixel of its plane: in NHWC the channel comes last.
    int pixel = shape.by_channel_elements.value == 1 ? divide(index, shape.by_channels) : index;
    int w = split_off(pixel, shape.by_width), h = split_off(pixel, shape.by_height);
    const int phase = split_off(h, shape.by_stride_h) * shape.by_stride_w.value + split_off(w, shape.by_stride_w);
    const int word = phase < 4 ? shape.planes_0 : phase < 8 ? shape.planes_1 : phase < 12 ? shape.planes_2 : shape.planes_3;
    return (word >> (phase % 4 * 8)) & 255;
}

// Adds planes of f32 up in order, adds the bias, and rounds once.
extern "C" __global__ void __launch_bounds__(256)
    reduce(const float* __restrict__ planes, const Storage* __restrict__ bias, Storage* __restrict__ result, ReduceShape shape) {
    const int index = BLOCK_X * 256 + THREAD_X;
    if (index >= shape.elements) return;
    float sum = 0.0f;
    const float* from = planes + index;
    const int count = planes_of(index, shape);
#pragma unroll 4
    for (int p = 0; p < count; ++p, from += shape.elements) sum += *from;
    if (bias != nullptr) {
        int channel = divide(index, shape.by_channel_elements);
        sum += widen(bias[split_off(channel, shape.by_channels)]);
    }
    result[index] = narrow(sum);
}

struct ReduceWeightsShape {
    int elements;             // of one plane: rows × taps × channels
    int planes, taps, channels, channels_last;
};

// Adds up a gradient of the filter, which is stored as [row][tap][channel] in the planes. Each thread adds a part of
// the planes; the parts are added in a fixed order.
extern "C" __global__ void __launch_bounds__(256)
    reduce_weights(const float* __restrict__ planes, Storage* __restrict__ result, ReduceWeightsShape shape) {
    __shared__ float parts[8][32];
    const int lane = THREAD_X % 32, part_index = THREAD_X / 32;
    const int index = BLOCK_X * 32 + lane;
    float sum = 0.0f;
    // Several reads under way at once; the order of the additions stays.
    if (index < shape.elements)
#pragma unroll 4
        for (int p = part_index; p < shape.planes; p += 8) sum += planes[(long long)p * shape.elements + index];
    parts[part_index][lane] = sum;
    BARRIER();
    if (part_index != 0 || index >= shape.elements) return;
    sum = 0.0f;
    for (int p = 0; p < 8; ++p) sum += parts[p][lane];
    const int row = index / (shape.taps * shape.channels);
    const int rest = index - row * (shape.taps * shape.channels);
    const int tap = rest / shape.channels, channel = rest - tap * shape.channels;
    const int at = shape.channels_last ? index : (row * shape.channels + channel) * shape.taps + tap;
    result[at] = narrow(sum);
}

// Taps of each filter that wait in LDS at once: all of a 3 × 3 window.
#define TAPS_AT_ONCE 9

// Adds up few planes of many filters: a thread adds up the taps of one row and channel. In NCHW they go through LDS, so
// that neighbouring threads write neighbours: each writing its own taps would touch every line of the result once for each tap.
extern "C" __global__ void __launch_bounds__(256)
    reduce_filters(const float* __restrict__ planes, Storage* __restrict__ result, ReduceWeightsShape shape) {
    __shared__ float waiting[256 * TAPS_AT_ONCE];
    const int first = BLOCK_X * 256, filters = shape.elements / shape.taps;
    const int index = first + THREAD_X;
    const int row = index / shape.channels, channel = index - row * shape.channels;
    const int row_elements = shape.taps * shape.channels;
    const int here = filters - first < 256 ? filters - first : 256;
    const float* from = planes + (long long)row * row_elements + channel;
    for (int begin = 0; begin < shape.taps; begin += TAPS_AT_ONCE) {
        const int taps = shape.taps - begin < TAPS_AT_ONCE ? shape.taps - begin : TAPS_AT_ONCE;
        if (index < filters)
            for (int tap = 0; tap < taps; ++tap, from += shape.channels) {
                float sum = 0.0f;
#pragma unroll 4
                for (int p = 0; p < shape.planes; ++p) sum += from[(long long)p * shape.elements];
                if (shape.channels_last)
                    result[row * row_elements + (begin + tap) * shape.channels + channel] = narrow(sum);
                else
                    waiting[THREAD_X * taps + tap] = sum;
            }
        if (shape.channels_last) continue;
        BARRIER();
        for (int i = THREAD_X; i < here * taps; i += 256) {
            const int filter = i / taps;
            result[(first + filter) * shape.taps + begin + i - filter * taps] = narrow(waiting[i]);
        }
        BARRIER();
    }
}

struct PackShape {
    int rows, padded_rows, reduced, padded_reduced, taps;
    int row_elements, channel_elements, tap_elements;  // where an element of a group's filter is
};

// Brings a filter into [group][tap][channel][row], padded with zeros. One thread for a row and a channel: its taps are
// neighbours in torch's layout, and neighbouring threads write neighbouring rows. A flat reduction is packed as one of
// taps × channels "channels" and a single tap.
extern "C" __global__ void __launch_bounds__(256)
    pack(const Storage* __restrict__ filter, Storage* __restrict__ packed, PackShape shape) {
    const int index = BLOCK_X * 256 + THREAD_X;
    const int channel = index / shape.padded_rows, row = index - channel * shape.padded_rows;
    const int group = BLOCK_Y;
    if (channel >= shape.padded_reduced) return;
    filter += (long long)group * shape.rows * shape.reduced * shape.taps;
    packed += (long long)group * shape.taps * shape.padded_reduced * shape.padded_rows;
    const bool there = row < shape.rows && channel < shape.reduced;
    const Storage zero = narrow((Real)0);
    for (int tap = 0; tap < shape.taps; ++tap)
        packed[(long long)tap * shape.padded_reduced * shape.padded_rows + index] =
            there ? filter[(long long)row * shape.row_elements + (long long)channel * shape.channel_elements +
                           (long long)tap * shape.tap_elements]
                  : zero;
}

// A channel and a tap of the padded reduction, counted in the order in which they lie in a row of the filter.
struct PackedPlace {
    int channel, tap;
    METHOD PackedPlace(int number, const PackShape& shape) {
        const bool taps_first = shape.tap_elements == 1;
        const int inner = taps_first ? shape.taps : shape.padded_reduced;
        const int outer = number / inner, rest = number - outer * inner;
        channel = taps_first ? outer : rest;
        tap = taps_first ? rest : outer;
    }
};

// Packs a filter whose rows are far apart: each lane of `pack` would read another line. Here neighbours are read
// along the reduction and turned over in LDS, 32 rows of 32 elements a workgroup.
extern "C" __global__ void __launch_bounds__(256)
    pack_across(const Storage* __restrict__ filter, Storage* __restrict__ packed, PackShape shape) {
    __shared__ Storage tile[32][33];
    const int lane = THREAD_X % 32, worker = UNIFORM(THREAD_X / 32);
    const int row_tiles = (shape.padded_rows + 31) / 32;
    const int first = BLOCK_X / row_tiles * 32, row_begin = (BLOCK_X - BLOCK_X / row_tiles * row_tiles) * 32;
    const int group = BLOCK_Y;
    filter += (long long)group * shape.rows * shape.reduced * shape.taps;
    packed += (long long)group * shape.taps * shape.padded_reduced * shape.padded_rows;
    const Storage zero = narrow((Real)0);
    const PackedPlace from(first + lane, shape);
    for (int i = worker; i < 32; i += 8) {
        const int row = row_begin + i;
        const bool there = row < shape.rows && from.channel < shape.reduced && from.tap < shape.taps;
        tile[i][lane] = there ? filter[(long long)row * shape.row_elements + from.channel * shape.channel_elements +
                                       from.tap * shape.tap_elements]
                              : zero;
    }
    BARRIER();
    for (int i = worker; i < 32; i += 8) {
        const PackedPlace to(first + i, shape);
        const int row = row_begin + lane;
        if (row < shape.padded_rows && to.channel < shape.padded_reduced && to.tap < shape.taps)
            packed[((long long)to.tap * shape.padded_reduced + to.channel) * shape.padded_rows + row] = tile[lane][i];
    }
}

struct UnpatchShape {
    int elements, planes, plane_elements;  // of the image; how many planes, and how large one is
    int channels, grid_h, grid_w;          // patches in a column and in a row
    int filter_h, filter_w, pad_h, pad_w, channels_last;
    Divisor by_width, by_height, by_channels, by_stride_h, by_stride_w;
};

// Puts the pixels of windows that do not overlap in their places, adds planes up, adds the bias, and rounds once. The planes are
// [image][channel][tap][patch] in NCHW and [image][patch][tap][channel] in NHWC. Pixels that no window meets have no sum.
extern "C" __global__ void __launch_bounds__(256)
    unpatch(const float* __restrict__ planes, const Storage* __restrict__ bias, Storage* __restrict__ image, UnpatchShape shape) {
    const int index = BLOCK_X * 256 + THREAD_X;
    if (index >= shape.elements) return;
    int n = index, channel = 0;
    if (shape.channels_last) channel = split_off(n, shape.by_channels);
    const int x = split_off(n, shape.by_width), y = split_off(n, shape.by_height);
    if (!shape.channels_last) channel = split_off(n, shape.by_channels);
    int row = y + shape.pad_h, column = x + shape.pad_w;
    const int tap_h = split_off(row, shape.by_stride_h), tap_w = split_off(column, shape.by_stride_w);
    float sum = bias != nullptr ? (float)widen(bias[channel]) : 0.0f;
    if (tap_h < shape.filter_h && tap_w < shape.filter_w && row < shape.grid_h && column < shape.grid_w) {
        const int tap = tap_h * shape.filter_w + tap_w, patch = row * shape.grid_w + column;
        const int taps = shape.filter_h * shape.filter_w, patches = shape.grid_h * shape.grid_w;
        const unsigned at = shape.channels_last
                                ? ((unsigned)(n * patches + patch) * taps + tap) * shape.channels + channel
                                : ((unsigned)(n * shape.channels + channel) * taps + tap) * patches + patch;
#pragma unroll 4
        for (int p = 0; p < shape.planes; ++p) sum += planes[(long long)p * shape.plane_elements + at];
    }
    image[index] = narrow(sum);
}

struct PatchShape {
    int elements, image_h, image_w, channels, channels_last;
    int stride_h, stride_w, pad_h, pad_w;
    Divisor by_patch, by_grid_h, by_grid_w;  // elements of a patch, and patches in a column and in a row
    Divisor by_inner;                        // taps in NCHW, channels in NHWC: what is last in a patch
    Divisor by_filter_w;
};

// Windows that do not overlap, one after the other as rows of a matrix: [image][patch][channel][tap] in NCHW and
// [image][patch][tap][channel] in NHWC, as a filter has them.
extern "C" __global__ void __launch_bounds__(256)
    patch(const Storage* __restrict__ image, Storage* __restrict__ patches, PatchShape shape) {
    const int index = BLOCK_X * 256 + THREAD_X;
    if (index >= shape.elements) return;
    int n = index, outer = split_off(n, shape.by_patch);
    const int across = split_off(n, shape.by_grid_w), down = split_off(n, shape.by_grid_h);
    const int inner = split_off(outer, shape.by_inner);
    const int channel = shape.channels_last ? inner : outer;
    int tap_h = shape.channels_last ? outer : inner;
    const int tap_w = split_off(tap_h, shape.by_filter_w);
    const int y = down * shape.stride_h + tap_h - shape.pad_h, x = across * shape.stride_w + tap_w - shape.pad_w;
    const bool there = (unsigned)y < (unsigned)shape.image_h && (unsigned)x < (unsigned)shape.image_w;
    const long long at = shape.channels_last
                             ? ((long long)(n * shape.image_h + y) * shape.image_w + x) * shape.channels + channel
                             : ((long long)(n * shape.channels + channel) * shape.image_h + y) * shape.image_w + x;
    patches[index] = there ? image[at] : narrow((Real)0);
}

struct TurnShape {
    int rows, columns;
};

// Turns matrices over, one for each BLOCK_Z: pixels and channels of an image change places.
extern "C" __global__ void __launch_bounds__(256) turn(const Storage* __restrict__ from, Storage* __restrict__ to, TurnShape shape) {
    __shared__ Storage tile[32][33];
    const int lane = THREAD_X % 32, worker = THREAD_X / 32;
    const int row = BLOCK_X * 32, column = BLOCK_Y * 32;
    from += (long long)BLOCK_Z * shape.rows * shape.columns;
    to += (long long)BLOCK_Z * shape.rows * shape.columns;
    for (int i = worker; i < 32; i += 8)
        if (row + i < shape.rows && column + lane < shape.columns)
            tile[i][lane] = from[(long long)(row + i) * shape.columns + column + lane];
    BARRIER();
    for (int i = worker; i < 32; i += 8)
        if (column + i < shape.columns && row + lane < shape.rows)
            to[(long long)(column + i) * shape.rows + row + lane] = tile[lane][i];
}
