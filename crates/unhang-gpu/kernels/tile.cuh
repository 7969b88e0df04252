// The heart of all matrix kernels: a BM × BN tile of the result from BK-deep slices in LDS, TM × TN sums a thread.
//
// A thread owns quads of rows and columns that lie apart (rows ty·4 …, then the same BM/2 further down). So the lanes
// of a wave read neighbouring quads of LDS and no bank is asked twice. The loop over the slice is unrolled UNROLL times
// only: unrolled fully, gfx1010 needs 215 registers for 128 × 128 × 8 and loses half of its waves.

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

// HALF: products of f16 in pairs (v_pk_fma_f16, HFMA2), twice as many in an instruction. Sums of HALF_CHAIN products are
// kept in f16 and then added to the f32 sums. Never taken unasked: it rounds every sum to 11 bits.
#ifndef HALF
#define HALF 0
#endif
#define HALF_CHAIN 32

// At most 128 registers, on NVIDIA by that number of workgroups a multiprocessor, on AMD by eight waves a SIMD: without it the compiler
// takes a few registers more than that, and half of the workgroups fit.
#if defined(UNHANG_CUDA)
#define BOUNDS __launch_bounds__(THREADS, 512 / THREADS)
#elif defined(UNHANG_HIP) && HALF && TM == 8
// Short sums leave registers: with eleven waves asked for, the compiler keeps fewer reads of LDS waiting, and one workgroup more fits.
#define BOUNDS __launch_bounds__(THREADS) __attribute__((amdgpu_waves_per_eu(11)))
#elif defined(UNHANG_HIP)
#define BOUNDS __launch_bounds__(THREADS) __attribute__((amdgpu_waves_per_eu(8)))
#else
#define BOUNDS __launch_bounds__(THREADS)
#endif

// NESTED: the groups are pairs of five points. Those with the last one have half (or a quarter) of the phases that the
// others have (winograd_stride2.cu). 1: the reduction is over phases, 2: rows (gemm.cu) or columns (weights.cu) are.
#ifndef NESTED
#define NESTED 0
#endif
#define NESTED_PARTS(group) (((group) % 5 == 4 ? 1 : 2) * ((group) / 5 == 4 ? 1 : 2))

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

// Small tiles have registers to spare for more steps at once: with two, a third of their loop is not multiply-adds.
#ifndef UNROLL
#if TM * TN > 32
#define UNROLL 2
#elif BK > 8
#define UNROLL 8
#else
#define UNROLL 4
#endif
#endif

// LDS holds floats, or f16 as they came from memory.
#if HALF
typedef unsigned short Cell;
#if defined(UNHANG_CUDA)
typedef unsigned HalfPair;
typedef uint2 CellQuad;
#else
typedef _Float16 HalfPair __attribute__((vector_size(4)));
typedef unsigned CellQuad __attribute__((vector_size(8)));
#endif
DEVICE Cell cell_of(Storage raw, unsigned mask) {
#if defined(UNHANG_CUDA)
    return (Cell)(raw & mask);
#else
    return (Cell)(__builtin_bit_cast(unsigned short, raw) & mask);
#endif
}
DEVICE Cell cell(const Waiting<1>& unit, int, unsigned mask) { return cell_of(unit.raw, mask); }
DEVICE Cell cell(const Waiting<4>& unit, int e, unsigned mask) {
#if defined(UNHANG_CUDA)
    return (Cell)(((e / 2 == 0 ? unit.raw.x : unit.raw.y) >> (e % 2 * 16)) & mask);
#else
    return cell_of(unit.raw[e], mask);
#endif
}
// Asked for in branches that are never taken.
DEVICE CellQuad cell_quad(const Waiting<1>&, unsigned) { return CellQuad{0u, 0u}; }
DEVICE CellQuad cell_quad(const Waiting<4>& unit, unsigned mask) {
#if defined(UNHANG_CUDA)
    return make_uint2(unit.raw.x & mask, unit.raw.y & mask);
#else
    CellQuad words;
    __builtin_memcpy(&words, &unit.raw, sizeof(words));
    const CellQuad masks = {mask, mask};
    return words & masks;
#endif
}
#else
typedef float Cell;
typedef Quad CellQuad;
template <int WIDTH>
DEVICE Cell cell(const Waiting<WIDTH>& unit, int e, unsigned mask) { return unit.value(e, mask); }
template <int WIDTH>
DEVICE CellQuad cell_quad(const Waiting<WIDTH>& unit, unsigned mask) { return as_quad(unit, mask); }
#endif

#define STRINGIFY(x) #x
#define PRAGMA_UNROLL_TIMES(n) _Pragma(STRINGIFY(unroll n))

#if HALF
#if defined(UNHANG_CUDA)
DEVICE HalfPair pair_add(HalfPair a, HalfPair b, HalfPair c) {
    HalfPair result;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
    return result;
}
DEVICE HalfPair both(const CellQuad& quad, int i) {
    return __byte_perm(i / 2 == 0 ? quad.x : quad.y, 0, i % 2 == 0 ? 0x1010 : 0x3232);
}
DEVICE HalfPair pair_of(const CellQuad& quad, int i) { return i == 0 ? quad.x : quad.y; }
DEVICE float half_of(HalfPair pair, int i) {
    float result;
    asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"((unsigned short)(pair >> (16 * i))));
    return result;
}
DEVICE HalfPair no_pair() { return 0u; }
#else
DEVICE HalfPair pair_add(HalfPair a, HalfPair b, HalfPair c) { return a * b + c; }
DEVICE HalfPair pair_of(const CellQuad& quad, int i) {
    const unsigned word = quad[i];
    return __builtin_bit_cast(HalfPair, word);
}
DEVICE HalfPair both(const CellQuad& quad, int i) {
    const HalfPair pair = pair_of(quad, i / 2);
    const HalfPair result = {pair[i % 2], pair[i % 2]};
    return result;
}
DEVICE float half_of(HalfPair pair, int i) { return (float)pair[i]; }
DEVICE HalfPair no_pair() { return HalfPair{(_Float16)0, (_Float16)0}; }
#endif

DEVICE void multiply_slice_half(const Cell* a, const Cell* b, int thread_x, int thread_y, HalfPair (&sums)[TM][TN / 2]) {
#if !defined(UNHANG_HOST)
    PRAGMA_UNROLL_TIMES(UNROLL)
#endif
    for (int k = 0; k < BK; ++k) {
        CellQuad rows[ROW_QUADS], columns[COLUMN_QUADS];
#pragma unroll
        for (int q = 0; q < ROW_QUADS; ++q)
            rows[q] = *(const CellQuad*)(a + k * LDS_A_PITCH + q * ROW_SPREAD + thread_y * 4);
#pragma unroll
        for (int q = 0; q < COLUMN_QUADS; ++q)
            columns[q] = *(const CellQuad*)(b + k * LDS_B_PITCH + q * COLUMN_SPREAD + thread_x * 4);
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int j = 0; j < TN / 2; ++j)
                sums[i][j] = pair_add(both(rows[i / 4], i % 4), pair_of(columns[j / 2], j % 2), sums[i][j]);
    }
}
// The short sums go into the long ones and begin anew.
DEVICE void flush_half(HalfPair (&from)[TM][TN / 2], float (&sums)[TM][TN]) {
    // AMD's mixed multiply-add takes a half as it is in its pair: one instruction where a conversion and an addition are two. It is
    // emitted only for a factor that the compiler cannot see to be one.
    float one = 1.0f;
#if !defined(UNHANG_HOST) && !defined(UNHANG_CUDA)
    asm("" : "+s"(one));
#endif
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; ++j) sums[i][j] = multiply_add(half_of(from[i][j / 2], j % 2), one, sums[i][j]);
#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN / 2; ++j) from[i][j] = no_pair();
}
#endif

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
