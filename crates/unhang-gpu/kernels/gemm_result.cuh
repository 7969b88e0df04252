// The results of the implicit GEMM: from sums in registers to pixels, with the bias.

// One sum or four neighbours, rounded to the storage type, or as f32 into a plane. Offsets in bytes have 32 bits, as in loads.
DEVICE void store_sum(void* result, unsigned at, float value, bool as_plane) {
    if (TYPE == 0 || as_plane)
        *(float*)((char*)result + at * (unsigned)sizeof(float)) = value;
    else
        *(Storage*)((char*)result + at * (unsigned)sizeof(Storage)) = narrow(value);
}
DEVICE void store_sums(void* result, unsigned at, const float (&value)[4], bool as_plane) {
    if (TYPE == 0 || as_plane)
        *(Quad*)((char*)result + at * (unsigned)sizeof(float)) = make_quad(value[0], value[1], value[2], value[3]);
    else
        store_quad((Storage*)((char*)result + at * (unsigned)sizeof(Storage)), value[0], value[1], value[2], value[3]);
}

// A pixel of a phase, and the ones behind it in the order of columns.
struct Pixel {
    int n;
#if ONE_PHASE && !SPREAD
    // In one phase columns are the plane's own pixels, one after the other.
    int place;
    METHOD Pixel(const GemmShape& shape, int column, int image_columns, const Axis&) {
        const Column at(shape, column, image_columns);
        n = at.image;
        place = at.pixel;
    }
    METHOD void next(const Axis& axis_h, const Axis& axis_w) {
        if (++place == axis_h.extent * axis_w.extent) {
            place = 0;
            ++n;
        }
    }
#else
    int y, x;
    METHOD Pixel(const GemmShape& shape, int column, int image_columns, const Axis& axis_w) {
        const Column at(shape, column, image_columns);
        n = at.image;
        y = row_of(shape, at.pixel, axis_w);
        x = at.pixel - y * axis_w.extent;
    }
    METHOD void next(const Axis& axis_h, const Axis& axis_w) {
        if (++x == axis_w.extent) {
            x = 0;
            if (++y == axis_h.extent) {
                y = 0;
                ++n;
            }
        }
    }
#endif
};

// Whether results can go through LDS, some columns of each thread at a time, before neighbouring threads write
// neighbouring channels. Where a pixel's channels are no whole quads, each thread would otherwise write four numbers to
// a line. Few columns stay in the cache, where that costs less than the two turns, and small tiles gain nothing.
#define MANY_COLUMNS 1024
#define IS_SMALL_TILE (BM * BN <= 32 * 32)
#define LINE_COLUMNS (BM <= 2 * BK ? TN : 2 * BK * TN / BM)
#define FITS_LINES (BM <= 2 * BK * TN && BN / TN * LINE_COLUMNS <= 2 * BK * BM)
#define WRITES_LINES (CHANNELS_LAST && !SPREAD && !HALF && BM > 4 && !IS_SMALL_TILE && FITS_LINES)
#define NOWHERE 0xffffffffu

struct ResultWriter {
    const GemmShape& shape;
    void* result;
    const Storage* bias;
    Axis axis_h, axis_w;
    int phase_h, phase_w, row_first, row_begin, thread_x, thread_y;

    // Where a pixel is in a channel's plane.
    METHOD unsigned in_plane(const Pixel& p) const {
#if SPREAD
        return (unsigned)(p.y * STRIDE_H * shape.result_w) + (unsigned)(p.x * STRIDE_W);
#elif ONE_PHASE
        return (unsigned)p.place;
#else
        return (unsigned)((p.y * PHASES_H + phase_h) * shape.result_w) + (unsigned)(p.x * PHASES_W + phase_w);
#endif
    }

    METHOD float bias_of(int row) const { return bias != nullptr ? (float)widen(bias[row_first + row]) : 0.0f; }

#if SPREAD
    // The rows and columns that lie between a pixel of the source and the next: fewer at the end of an image.
    METHOD int covered_h(const Pixel& p) const { return within(STRIDE_H, shape.result_h - p.y * STRIDE_H); }
    METHOD int covered_w(const Pixel& p) const { return within(STRIDE_W, shape.result_w - p.x * STRIDE_W); }
    METHOD static int within(int stride, int left) { return left < stride ? left : stride; }
#endif

    METHOD void write(const float (&sums)[TM][TN], int column_begin, int columns) const {
        const int image_columns = axis_h.extent * axis_w.extent;
        const unsigned plane = (unsigned)(shape.result_h * shape.result_w);
#pragma unroll
        for (int q = 0; q < COLUMN_QUADS; ++q) {
            const int column = column_begin + TILE_COLUMN(q * 4);
            if (column >= columns) continue;
            Pixel pixel(shape, column, image_columns, axis_w);
#if CHANNELS_LAST
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const unsigned at = (unsigned)pixel.n * plane + in_plane(pixel);
                if (column + e < columns) {
                    write_channels(sums, q * 4 + e, at * RESULT_CHANNELS, false);
#if SPREAD
                    const int high = covered_h(pixel), wide = covered_w(pixel);
                    for (int z = 1; z < high * wide; ++z)
                        write_channels(sums, q * 4 + e, (at + (unsigned)(z / wide * shape.result_w + z % wide)) * RESULT_CHANNELS, true);
#endif
                }
                pixel.next(axis_h, axis_w);
            }
#elif SPREAD
            // Four pixels of a row, each followed by nothing but the bias, are two quads.
            if (STRIDE_W == 2 && axis_w.extent % 4 == 0 && shape.result_w % 4 == 0) {
                const unsigned at = (unsigned)(pixel.n * RESULT_CHANNELS) * plane + in_plane(pixel);
                const int high = covered_h(pixel);
#pragma unroll
                for (int i = 0; i < TM; ++i) {
                    const int row = row_begin + TILE_ROW(i);
                    if (ROWS % BM != 0 && row >= ROWS) continue;
                    unsigned line = at + (unsigned)(row_first + row) * plane;
                    const float add = bias_of(row);
                    const float first[4] = {sums[i][q * 4] + add, add, sums[i][q * 4 + 1] + add, add};
                    const float second[4] = {sums[i][q * 4 + 2] + add, add, sums[i][q * 4 + 3] + add, add};
                    store_sums(result, line, first, false);
                    store_sums(result, line + 4, second, false);
                    const float between[4] = {add, add, add, add};
                    for (int z = 1; z < high; ++z) {
                        line += (unsigned)shape.result_w;
                        store_sums(result, line, between, false);
                        store_sums(result, line + 4, between, false);
                    }
                }
                continue;
            }
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const unsigned at = (unsigned)(pixel.n * RESULT_CHANNELS) * plane + in_plane(pixel);
                const int high = column + e < columns ? covered_h(pixel) : 0, wide = covered_w(pixel);
#pragma unroll
                for (int i = 0; i < TM; ++i) {
                    const int row = row_begin + TILE_ROW(i);
                    if (ROWS % BM != 0 && row >= ROWS) continue;
                    const unsigned channel = at + (unsigned)(row_first + row) * plane;
                    const float add = bias_of(row);
                    for (int y = 0; y < high; ++y)
                        for (int x = 0; x < wide; ++x)
                            store_sum(result, channel + (unsigned)(y * shape.result_w + x), x + y == 0 ? sums[i][q * 4 + e] + add : add, false);
                }
                pixel.next(axis_h, axis_w);
            }
#else
            unsigned at[4];
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                at[e] = (unsigned)(pixel.n * RESULT_CHANNELS) * plane + in_plane(pixel);
                pixel.next(axis_h, axis_w);
            }
            // Pixels of a phase lie STRIDE apart in backward-data; with one phase they follow each other.
            const bool dense = POINTWISE || (PHASES_H * PHASES_W == 1 && image_columns % 4 == 0);
#pragma unroll
            for (int i = 0; i < TM; ++i) {
                const int row = row_begin + TILE_ROW(i);
                if (ROWS % BM == 0 || row < ROWS) {
                    const unsigned channel = (unsigned)(row_first + row) * plane;
                    const float add = bias_of(row);
                    const float value[4] = {sums[i][q * 4] + add, sums[i][q * 4 + 1] + add, sums[i][q * 4 + 2] + add,
                                            sums[i][q * 4 + 3] + add};
                    if (dense) {
                        store_sums(result, at[0] + channel, value, PLANES);
                    } else {
#pragma unroll
                        for (int e = 0; e < 4; ++e)
                            if (column + e < columns) store_sum(result, at[e] + channel, value[e], PLANES);
                    }
                }
            }
#endif
        }
    }

#if WRITES_LINES
    // All threads call it. `slab` holds BM rows of some columns of each thread. They are turned by a place for each
    // thread, so that these are in different banks. `places` has as many numbers as columns.
    METHOD void write_lines(const float (&sums)[TM][TN], int column_begin, int columns, float* slab, unsigned* places) const {
        const int across = BN / TN, thread = thread_y * across + thread_x;
#pragma unroll
        for (int first = 0; first < TN; first += LINE_COLUMNS) {
            BARRIER();
#pragma unroll
            for (int j = 0; j < LINE_COLUMNS; ++j) {
                const int slot = j * across + thread_x;
#pragma unroll
                for (int i = 0; i < TM; ++i) slab[slot * BM + (TILE_ROW(i) + slot) % BM] = sums[i][first + j];
                if (thread_y == 0) {
                    const int column = column_begin + TILE_COLUMN(first + j);
                    const Pixel pixel(shape, column, axis_h.extent * axis_w.extent, axis_w);
                    const unsigned at = (unsigned)pixel.n * (unsigned)(shape.result_h * shape.result_w) + in_plane(pixel);
                    places[slot] = column < columns ? at * RESULT_CHANNELS + (unsigned)(row_first + row_begin) : NOWHERE;
                }
            }
            BARRIER();
#pragma unroll
            for (int i = 0; i < TM * LINE_COLUMNS; ++i) {
                const int at = i * THREADS + thread, slot = at / BM, row = at % BM;
                if (row_begin + row < ROWS && places[slot] != NOWHERE)
                    store_sum(result, places[slot] + (unsigned)row, slab[slot * BM + (row + slot) % BM] + bias_of(row_begin + row), PLANES);
            }
        }
    }
#endif

#if CHANNELS_LAST
    // All channels of one pixel that this thread has, or as many zeros.
    METHOD void write_channels(const float (&sums)[TM][TN], int j, unsigned pixel, bool zeros) const {
#pragma unroll
        for (int r = 0; r < ROW_QUADS; ++r) {
            const int row = row_begin + TILE_ROW(r * 4);
            const unsigned at = pixel + (unsigned)(row_first + row);
            float value[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                value[i] = zeros ? 0.0f : sums[r * 4 + i][j];
                if (bias != nullptr && row + i < ROWS) value[i] += widen(bias[row_first + row + i]);
            }
            if (ROWS % 4 == 0) {
                if (row < ROWS) store_sums(result, at, value, PLANES);
            } else {
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    if (row + i < ROWS) store_sum(result, at + (unsigned)i, value[i], PLANES);
            }
        }
    }
#endif
};
