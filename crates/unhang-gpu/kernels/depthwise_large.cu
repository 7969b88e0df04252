// Depthwise convolutions with large windows and a stride of 1. A workgroup has a tile of the result in PLANES planes.
// It brings the image around the tile and the window into LDS, a chunk of the window at a time. A thread computes eight
// neighbours and keeps the pixels that they share in registers: 32 products for two reads of four elements.
//
// One correlation serves all directions: result[y][x] is the sum of window[r][t] × image[y + r - pad_h][x + t - pad_w]. Forward the
// window is the filter, in backward-data the filter turned over. In backward-weights it is the gradient of the output,
// and the result, the gradient of the filter, is summed over images.
//
// Constants: CHANNELS_LAST, TILE_H, TILE_W (a multiple of 8), PLANES. Everything else comes with the launch.

#define WIDTH 8
#define COLUMN_GROUPS (TILE_W / WIDTH)
#define PLANE_THREADS (TILE_H * COLUMN_GROUPS)
#define CHUNK_H 16
#define CHUNK_W 32
#define IMAGE_H (TILE_H + CHUNK_H - 1)
#define IMAGE_W (TILE_W + CHUNK_W)
#define IMAGE_PITCH (IMAGE_W + 4)
#define THREADS (PLANES * PLANE_THREADS)

struct DepthwiseLargeShape {
    int channels, planes;                 // planes of the result: images × channels, or channels for the filter's gradient
    int images, images_per_split;         // that are summed over
    int image_h, image_w, window_h, window_w, result_h, result_w, pad_h, pad_w;
    int turned;                           // whether the window is read from its end
    Divisor by_channels, by_tiles, by_tiles_w;  // tiles of a plane and of one of its rows
};

// An element of an image: which image, channel and pixel.
DEVICE float image_element(const Storage* images, int channels, int pixels, int n, int c, int pixel) {
#if CHANNELS_LAST
    return widen(images[((long long)n * pixels + pixel) * channels + c]);
#else
    return widen(images[((long long)n * channels + c) * pixels + pixel]);
#endif
}

// Which plane of the tile and which of its elements a thread brings: channels are neighbours in NHWC.
struct Brought {
    int plane, at;
    METHOD Brought(int index, int elements) {
        plane = CHANNELS_LAST ? index % PLANES : index / elements;
        at = CHANNELS_LAST ? index / PLANES : index - plane * elements;
    }
};

struct LargeTile {
    const DepthwiseLargeShape& shape;
    float (*image)[IMAGE_H * IMAGE_PITCH];
    float (*window)[CHUNK_H * CHUNK_W];
    int thread, plane_begin, y_begin, x_begin;

    METHOD int channel_of(int plane) const { return plane - divide(plane, shape.by_channels) * shape.channels; }

    // The image around the tile for a chunk of the window, zero outside of it.
    METHOD void bring_image(const Storage* images, int n, int r, int t) const {
        const int top = y_begin + r - shape.pad_h, left = x_begin + t - shape.pad_w;
        for (int index = thread; index < PLANES * IMAGE_H * IMAGE_W; index += THREADS) {
            const Brought place(index, IMAGE_H * IMAGE_W);
            const int row = place.at / IMAGE_W, column = place.at - row * IMAGE_W, plane = plane_begin + place.plane;
            const int y = top + row, x = left + column;
            const bool there = plane < shape.planes && (unsigned)y < (unsigned)shape.image_h && (unsigned)x < (unsigned)shape.image_w;
            const int from = n < 0 ? divide(plane, shape.by_channels) : n;
            image[place.plane][row * IMAGE_PITCH + column] =
                there ? image_element(images, shape.channels, shape.image_h * shape.image_w, from, channel_of(plane),
                                      y * shape.image_w + x)
                      : 0.0f;
        }
    }

    // A chunk of the window: of the filter, or of the image n of the output's gradient. Zero outside of it.
    METHOD void bring_window(const Storage* windows, int n, int r, int t) const {
        for (int index = thread; index < PLANES * CHUNK_H * CHUNK_W; index += THREADS) {
            const Brought place(index, CHUNK_H * CHUNK_W);
            const int row = place.at / CHUNK_W + r, column = place.at % CHUNK_W + t, plane = plane_begin + place.plane;
            const bool there = plane < shape.planes && row < shape.window_h && column < shape.window_w;
            const int taps = shape.window_h * shape.window_w, tap = row * shape.window_w + column;
            float value = 0.0f;
            if (there && n < 0)
                value = widen(windows[(long long)channel_of(plane) * taps + (shape.turned ? taps - 1 - tap : tap)]);
            else if (there)
                value = image_element(windows, shape.channels, taps, n, channel_of(plane), tap);
            window[place.plane][place.at] = value;
        }
    }

    // Adds the chunk's products to a thread's sums.
    METHOD void add_chunk(int r, int t, float (&sums)[WIDTH]) const {
        const int plane = thread / PLANE_THREADS, in_plane = thread % PLANE_THREADS;
        const int y = in_plane / COLUMN_GROUPS, x = in_plane % COLUMN_GROUPS * WIDTH;
        // Rows of the window that meet the image at this row of the tile.
        const int above = shape.pad_h - y_begin - y - r, below = above + shape.image_h;
        int row = above > 0 ? above : 0, last = shape.window_h - r < CHUNK_H ? shape.window_h - r : CHUNK_H;
        if (below < last) last = below;
        const int columns = shape.window_w - t < CHUNK_W ? shape.window_w - t : CHUNK_W;
        for (; row < last; ++row) {
            const float* from = image[plane] + (y + row) * IMAGE_PITCH + x;
            const float* taps = window[plane] + row * CHUNK_W;
            float around[WIDTH + 4];
            Quad quads[2] = {*(const Quad*)from, *(const Quad*)(from + 4)};
#pragma unroll
            for (int i = 0; i < WIDTH; ++i) around[i] = part(quads[i / 4], i % 4);
            for (int column = 0; column < columns; column += 4) {
                const Quad next = *(const Quad*)(from + column + WIDTH), tap = *(const Quad*)(taps + column);
#pragma unroll
                for (int i = 0; i < 4; ++i) around[WIDTH + i] = part(next, i);
#pragma unroll
                for (int j = 0; j < 4; ++j)
#pragma unroll
                    for (int i = 0; i < WIDTH; ++i) sums[i] = multiply_add(part(tap, j), around[i + j], sums[i]);
#pragma unroll
                for (int i = 0; i < WIDTH; ++i) around[i] = around[i + 4];
            }
        }
    }

    // Adds the products of a whole window.
    METHOD void add_window(const Storage* images, const Storage* windows, int n, float (&sums)[WIDTH]) const {
        for (int r = 0; r < shape.window_h; r += CHUNK_H) {
            // A chunk whose rows all lie outside of the image adds nothing.
            if (y_begin + r - shape.pad_h >= shape.image_h || y_begin + r - shape.pad_h + IMAGE_H <= 0) continue;
            for (int t = 0; t < shape.window_w; t += CHUNK_W) {
                if (x_begin + t - shape.pad_w >= shape.image_w || x_begin + t - shape.pad_w + IMAGE_W <= 0) continue;
                BARRIER();
                bring_image(images, n, r, t);
                bring_window(windows, n, r, t);
                BARRIER();
                add_chunk(r, t, sums);
            }
        }
    }
};

#define LARGE_TILE(tile)                                                                                              \
    __shared__ __attribute__((aligned(16))) float lds_image[PLANES][IMAGE_H * IMAGE_PITCH];                           \
    __shared__ __attribute__((aligned(16))) float lds_window[PLANES][CHUNK_H * CHUNK_W];                              \
    const int plane_block = divide(BLOCK_X, shape.by_tiles), tile_index = BLOCK_X - plane_block * shape.by_tiles.value; \
    const int tile_row = divide(tile_index, shape.by_tiles_w), tile_column = tile_index - tile_row * shape.by_tiles_w.value; \
    const LargeTile tile = {shape, lds_image, lds_window, THREAD_X, plane_block * PLANES, tile_row * TILE_H, tile_column * TILE_W}; \
    const int plane = tile.plane_begin + THREAD_X / PLANE_THREADS, in_plane = THREAD_X % PLANE_THREADS;               \
    const int y = tile.y_begin + in_plane / COLUMN_GROUPS, x = tile.x_begin + in_plane % COLUMN_GROUPS * WIDTH;       \
    const bool there = plane < shape.planes && y < shape.result_h

// Forward and backward-data.
extern "C" __global__ void __launch_bounds__(THREADS)
    depthwise_large(const Storage* __restrict__ images, const Storage* __restrict__ filter, const Storage* __restrict__ bias,
                    Storage* __restrict__ result, DepthwiseLargeShape shape) {
    LARGE_TILE(tile);
    float sums[WIDTH] = {};
    tile.add_window(images, filter, -1, sums);
    if (!there) return;
    const int n = divide(plane, shape.by_channels), channel = plane - n * shape.channels;
    const float add = bias != nullptr ? (float)widen(bias[channel]) : 0.0f;
    const int pixels = shape.result_h * shape.result_w, pixel = y * shape.result_w + x;
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) {
        if (x + i >= shape.result_w) continue;
#if CHANNELS_LAST
        result[((long long)n * pixels + pixel + i) * shape.channels + channel] = narrow(sums[i] + add);
#else
        result[(long long)plane * pixels + pixel + i] = narrow(sums[i] + add);
#endif
    }
}

// Backward-weights: a plane of f32 for each split of the images. Each image has a sum of its own first, so that no chain is long.
extern "C" __global__ void __launch_bounds__(THREADS)
    depthwise_large_weights(const Storage* __restrict__ images, const Storage* __restrict__ gradients, float* __restrict__ planes,
                            DepthwiseLargeShape shape) {
    LARGE_TILE(tile);
    const int first = BLOCK_Y * shape.images_per_split, end = first + shape.images_per_split;
    float sums[WIDTH] = {};
    for (int n = first; n < (end < shape.images ? end : shape.images); ++n) {
        float of_image[WIDTH] = {};
        tile.add_window(images, gradients, n, of_image);
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) sums[i] += of_image[i];
    }
    if (!there) return;
    float* to = planes + ((long long)BLOCK_Y * shape.channels + plane) * shape.result_h * shape.result_w + y * shape.result_w + x;
#pragma unroll
    for (int i = 0; i < WIDTH; ++i)
        if (x + i < shape.result_w) to[i] = sums[i];
}
