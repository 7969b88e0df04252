// Winograd F(2 × 2, 3 × 3) for stride 1, NCHW, in one kernel: for few channels, where the transformed tensors of
// `winograd.cu` cost more memory traffic than their products save. 2.25 times fewer multiplications than the direct way,
// and nothing but input, filter and output passes through memory.
//
// A workgroup of 256 threads computes 32 rows (channels of the result) of 32 tiles (2 × 2 results). For each of the 16
// places of a transformed tile, 16 threads hold 8 × 8 sums each. Eight channels at a time: each thread transforms the
// 4 × 4 window of one tile and channel into LDS. It also fetches four quads of the filter, transformed before by
// `fused_filter` into [channel][place][row]. 128 registers on gfx1010 and 32 KiB of LDS: two workgroups a compute unit.
// The sums go through the same LDS to the threads that transform them back. Transforms are f32 whatever the storage
// type is.
//
// Constants, or numbers of the launch (numbers.cuh): REDUCED (channels summed over) and ROWS; PAD_H, PAD_W (backward-data: of
// the turned filter).

#define DEPTH 8
#define PADDED_ROWS ((ROWS + 31) / 32 * 32)
#define PADDED_REDUCED ((REDUCED + DEPTH - 1) / DEPTH * DEPTH)
#define ROW_TILES (PADDED_ROWS / 32)
#define STEPS (PADDED_REDUCED / DEPTH)

struct FusedShape {
    int batch, source_h, source_w, result_h, result_w;
    int reduced, rows, pad_h, pad_w;
    int tiles;                   // in all
    Divisor by_image, by_width;  // tiles of an image and of a row of it
    Divisor by_row_tiles;
};

DEVICE void transform_four(float& a, float& b, float& c, float& d) {
    const float t0 = a - c, t1 = b + c, t2 = c - b, t3 = b - d;
    a = t0;
    b = t1;
    c = t2;
    d = t3;
}

#if defined(UNHANG_CUDA)
#define FUSED_BOUNDS __launch_bounds__(256, 2)
#else
#define FUSED_BOUNDS __launch_bounds__(256)
#endif

extern "C" __global__ void FUSED_BOUNDS
    winograd_fused(const float* __restrict__ filter, const Storage* __restrict__ source, const Storage* __restrict__ bias,
                   Storage* __restrict__ result, FusedShape shape) {
    // [DEPTH][16][32] of the filter, then of the source; behind the loop [16][16 rows][32 tiles] of sums.
    __shared__ __attribute__((aligned(16))) float lds[2 * DEPTH * 16 * 32];
    float* lds_a = lds;
    float* lds_b = lds + DEPTH * 16 * 32;

    const int thread = THREAD_X;
    const int column_tile = BY_ROW_TILES(BLOCK_X);
    const int row_begin = (BLOCK_X - column_tile * ROW_TILES) * 32, tile_begin = column_tile * 32;
    const unsigned plane = (unsigned)(shape.source_h * shape.source_w);

    // The tile whose windows this thread transforms: the same in every step. A wave has one channel.
    const int lane_tile = thread % 32, lane_channel = UNIFORM(thread / 32);
    // Where its window begins (outside of the image that is not read), and bits for its rows and columns inside.
    unsigned window_at = 0, column_at = 0, inside = 0;
    {
        int rest = tile_begin + lane_tile;
        const bool tile_there = rest < shape.tiles;
        const int n = divide(rest, shape.by_image);
        rest -= n * shape.by_image.value;
        const int x = split_off(rest, shape.by_width), y = rest;
        const int top = y * 2 - PAD_H, left = x * 2 - PAD_W;
        window_at = ((unsigned)(n * REDUCED) * plane + (unsigned)(top * shape.source_w)) * (unsigned)sizeof(Storage);
        column_at = (unsigned)left * (unsigned)sizeof(Storage);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            inside |= (unsigned)(tile_there && (unsigned)(top + i) < (unsigned)shape.source_h) << i;
            inside |= (unsigned)((unsigned)(left + i) < (unsigned)shape.source_w) << (4 + i);
        }
    }

    // This thread's sums: place of the transformed tile, and which rows and tiles. Of two neighbouring places, which one
    // wave reads at once, one begins with its second half: their quads lie in different banks of LDS.
    const int place = thread / 16, thread_y = thread / 4 % 4, thread_x = thread % 4;
    const int flip = (place % 2) * 16;
    float sums[8][8];
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
        for (int j = 0; j < 8; ++j) sums[i][j] = 0.0f;

    // A quad of the filter's rows; the thread's others lie 32 places further each.
    const unsigned filter_at = (unsigned)(thread / 8 * PADDED_ROWS + thread % 8 * 4) * (unsigned)sizeof(float);
    float* filter_to = lds_a + thread * 4;
    Storage window[4][4];
    auto read = [&](int step) {
        const int channel = step * DEPTH + lane_channel;
        const Storage* from = source + (REDUCED % DEPTH == 0 || channel < REDUCED ? (unsigned)channel * plane : 0u);
        // Made anew in each step: kept, the offsets would be sixteen registers.
        OPAQUE(inside);
        unsigned columns[4];
#pragma unroll
        for (int j = 0; j < 4; ++j)
            columns[j] = (column_at + (unsigned)(j * sizeof(Storage))) & spread_bit(inside, 4 + j);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const unsigned row = (window_at + (unsigned)(i * shape.source_w) * (unsigned)sizeof(Storage)) & spread_bit(inside, i);
#pragma unroll
            for (int j = 0; j < 4; ++j) window[i][j] = *(const Storage*)((const char*)from + (row + columns[j]));
        }
    };
    auto write = [&](int step) {
        Quad taps[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float* slice = filter + (unsigned)((step * DEPTH * 16 + i * 32) * PADDED_ROWS + row_begin);
            taps[i] = *(const Quad*)((const char*)slice + filter_at);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) *(Quad*)(filter_to + i * 1024) = taps[i];
        const bool channel_there = REDUCED % DEPTH == 0 || step * DEPTH + lane_channel < REDUCED;
        const unsigned there = channel_there ? inside : 0u;
        float v[4][4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
            for (int j = 0; j < 4; ++j)
                v[i][j] = float_of(bits_of(widen(window[i][j])) & spread_bit(there, i) & spread_bit(there, 4 + j));
#pragma unroll
        for (int j = 0; j < 4; ++j) transform_four(v[0][j], v[1][j], v[2][j], v[3][j]);
#pragma unroll
        for (int i = 0; i < 4; ++i) transform_four(v[i][0], v[i][1], v[i][2], v[i][3]);
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
            for (int j = 0; j < 4; ++j) lds_b[(lane_channel * 16 + i * 4 + j) * 32 + lane_tile] = v[i][j];
    };

    read(0);
#if !defined(UNHANG_HOST)
#pragma unroll 1
#endif
    for (int step = 0; step < STEPS; ++step) {
        write(step);
        BARRIER();
        if (step + 1 < STEPS) read(step + 1);
        const float* a = lds_a + place * 32 + thread_y * 4;
        const float* b = lds_b + place * 32 + thread_x * 4;
#if defined(UNHANG_HIP)
#pragma unroll 2
#elif defined(UNHANG_CUDA)
#pragma unroll
#endif
        for (int k = 0; k < DEPTH; ++k) {
            Quad rows[2], columns[2];
#pragma unroll
            for (int q = 0; q < 2; ++q) {
                rows[q] = *(const Quad*)(a + k * 16 * 32 + (q * 16 ^ flip));
                columns[q] = *(const Quad*)(b + k * 16 * 32 + (q * 16 ^ flip));
            }
#pragma unroll
            for (int i = 0; i < 8; ++i)
#pragma unroll
                for (int j = 0; j < 8; ++j)
                    sums[i][j] = multiply_add(part(rows[i / 4], i % 4), part(columns[j / 4], j % 4), sums[i][j]);
        }
        BARRIER();
    }

    // Half of the rows at a time: the first quad of rows of each thread belongs to one half, which one depends on `flip`.
    const unsigned result_plane = (unsigned)(shape.result_h * shape.result_w);
    const bool pairs = shape.result_w % 2 == 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        if (half > 0) BARRIER();
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
            for (int q = 0; q < 2; ++q) {
                Quad line;
                if (flip == half * 16)
                    line = make_quad(sums[i][q * 4], sums[i][q * 4 + 1], sums[i][q * 4 + 2], sums[i][q * 4 + 3]);
                else
                    line = make_quad(sums[4 + i][q * 4], sums[4 + i][q * 4 + 1], sums[4 + i][q * 4 + 2], sums[4 + i][q * 4 + 3]);
                *(Quad*)(lds + (place * 16 + thread_y * 4 + i) * 32 + (q * 16 ^ flip) + thread_x * 4) = line;
            }
        BARRIER();
#pragma unroll
        for (int unit = 0; unit < 2; ++unit) {
            const int in_half = thread / 32 + unit * 8;
            const int row = row_begin + half * 16 + in_half;
            int rest = tile_begin + lane_tile;
            if (rest < shape.tiles && (ROWS % 32 == 0 || row < ROWS)) {
                float m[4][4];
#pragma unroll
                for (int p = 0; p < 16; ++p) m[p / 4][p % 4] = lds[(p * 16 + in_half) * 32 + lane_tile];
                const int n = divide(rest, shape.by_image);
                rest -= n * shape.by_image.value;
                const int x = split_off(rest, shape.by_width) * 2, y = rest * 2;
                const float add = bias != nullptr ? (float)widen(bias[row]) : 0.0f;
                float middle[2][4];
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    middle[0][j] = m[0][j] + m[1][j] + m[2][j];
                    middle[1][j] = m[1][j] - m[2][j] - m[3][j];
                }
                Storage* to = result + (unsigned)(n * ROWS + row) * result_plane + (unsigned)(y * shape.result_w + x);
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    if (y + i >= shape.result_h) break;
                    const float line[2] = {middle[i][0] + middle[i][1] + middle[i][2] + add,
                                           middle[i][1] - middle[i][2] - middle[i][3] + add};
                    if (pairs)
                        Neighbours<2>::write(to + i * shape.result_w, line);
                    else
#pragma unroll
                        for (int j = 0; j < 2; ++j)
                            if (x + j < shape.result_w) to[i * shape.result_w + j] = narrow(line[j]);
                }
            }
        }
    }
}

struct FusedFilterShape {
    int reduced, rows;
    int row_elements, reduced_elements;  // where a filter's taps begin
    int turned;                          // backward-data: the filter turned by half a turn
    Divisor by_padded_rows;
};

DEVICE void spread_four(const float (&g)[3], float (&to)[4]) {
    to[0] = g[0];
    to[1] = 0.5f * (g[0] + g[1] + g[2]);
    to[2] = 0.5f * (g[0] - g[1] + g[2]);
    to[3] = g[2];
}

// The filter becomes [PADDED_REDUCED][16][PADDED_ROWS], with zeros where there is no row or channel.
extern "C" __global__ void __launch_bounds__(128)
    fused_filter(const Storage* __restrict__ filter, float* __restrict__ transformed, FusedFilterShape shape) {
    const int index = BLOCK_X * 128 + THREAD_X;
    const int reduced = divide(index, shape.by_padded_rows), row = index - reduced * PADDED_ROWS;
    if (reduced >= PADDED_REDUCED) return;
    const bool there = row < ROWS && reduced < REDUCED;
    const Storage* from = filter + (there ? (long long)row * shape.row_elements + (long long)reduced * shape.reduced_elements : 0);
    float half[4][3];
#pragma unroll
    for (int j = 0; j < 3; ++j) {
        float column[3], line[4];
#pragma unroll
        for (int i = 0; i < 3; ++i) {
            const float read = widen(from[shape.turned ? 8 - i * 3 - j : i * 3 + j]);
            column[i] = there ? read : 0.0f;
        }
        spread_four(column, line);
#pragma unroll
        for (int i = 0; i < 4; ++i) half[i][j] = line[i];
    }
    float* to = transformed + (long long)reduced * 16 * PADDED_ROWS + row;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        float line[4];
        spread_four(half[i], line);
#pragma unroll
        for (int j = 0; j < 4; ++j) to[(i * 4 + j) * PADDED_ROWS] = line[j];
    }
}
