// The heart of all matrix kernels: a BM × BN tile of the result from BK-deep slices in LDS, TM × TN sums a thread.
//
// A thread owns quads of rows and columns that lie apart (rows ty·4 …, then the same BM/2 further down), so that the
// lanes of a wave read neighbouring quads of LDS and no bank is asked twice. The loop over the slice is unrolled
// UNROLL times only: unrolled fully, gfx1010 needs 215 registers for 128 × 128 × 8 and loses half of its waves.

#define THREADS ((BM / TM) * (BN / TN))
// Rows of LDS are padded by a quad where slices are stored across: neighbours then fall into different banks.
#define LDS_A_PITCH (BM + LDS_A_PAD)
#define LDS_B_PITCH (BN + LDS_B_PAD)

#define ROW_QUADS (TM / 4)
#define COLUMN_QUADS (TN / 4)
#define ROW_SPREAD (BM / ROW_QUADS)
#define COLUMN_SPREAD (BN / COLUMN_QUADS)
#define TILE_ROW(i) (((i) / 4) * ROW_SPREAD + thread_y * 4 + (i) % 4)
#define TILE_COLUMN(j) (((j) / 4) * COLUMN_SPREAD + thread_x * 4 + (j) % 4)

// One argument on AMD: the second means something else there than on NVIDIA, where it asks for at most 128 registers.
#if defined(UNHANG_CUDA)
#define BOUNDS __launch_bounds__(THREADS, 512 / THREADS)
#else
#define BOUNDS __launch_bounds__(THREADS)
#endif

// What was read from memory and waits for its place in LDS, as it came. Nothing looks at it before the products of the
// slice before it are done: a conversion or a test at once would make the wave wait for memory there and then. Where
// nothing was to be read (padding, beyond the edge) its mask is 0.
template <int WIDTH>
struct Waiting {
    Storage raw;
    METHOD void read(const Storage* base, unsigned bytes) { raw = *(const Storage*)((const char*)base + bytes); }
    METHOD float value(int, unsigned mask) const { return float_of(bits_of(widen(raw)) & mask); }
};
template <>
struct Waiting<4> {
    RawQuad raw;
    METHOD void read(const Storage* base, unsigned bytes) { raw = *(const RawQuad*)((const char*)base + bytes); }
    METHOD float value(int e, unsigned mask) const { return float_of(bits_of(part(expand(raw), e)) & mask); }
};
template <int WIDTH>
DEVICE Quad as_quad(const Waiting<WIDTH>& unit, unsigned mask) {
    return make_quad(unit.value(0, mask), unit.value(1, mask), unit.value(2, mask), unit.value(3, mask));
}
// All ones where bit i of a word is set: one instruction on gfx10.
DEVICE unsigned spread_bit(unsigned word, int i) { return (unsigned)((int)(word << (31 - i)) >> 31); }

#ifndef UNROLL
#define UNROLL 2
#endif

#define STRINGIFY(x) #x
#define PRAGMA_UNROLL_TIMES(n) _Pragma(STRINGIFY(unroll n))

DEVICE void multiply_slice(const float* a, const float* b, int thread_x, int thread_y, float (&sums)[TM][TN]) {
#if !defined(UNHANG_HOST)
    PRAGMA_UNROLL_TIMES(UNROLL)
#endif
    for (int k = 0; k < BK; ++k) {
        Quad rows[ROW_QUADS], columns[COLUMN_QUADS];
#pragma unroll
        for (int q = 0; q < ROW_QUADS; ++q)
            rows[q] = *(const Quad*)(a + k * LDS_A_PITCH + q * ROW_SPREAD + thread_y * 4);
#pragma unroll
        for (int q = 0; q < COLUMN_QUADS; ++q)
            columns[q] = *(const Quad*)(b + k * LDS_B_PITCH + q * COLUMN_SPREAD + thread_x * 4);
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int j = 0; j < TN; ++j)
                sums[i][j] = multiply_add(part(rows[i / 4], i % 4), part(columns[j / 4], j % 4), sums[i][j]);
    }
}
