// What HIP, CUDA and a host compiler (for tests) have to agree upon, and nothing else.
//
// No vendor header is included: run-time compilers find theirs in different places, and some of AMD's index functions
// become calls under a spoofed target, which our audit refuses. Storage types: f32, f16, bf16, and f64 for the plain
// kernels. All sums are kept in `Real`: f32, or f64 for f64.

#if defined(UNHANG_HOST)
// The test driver provides THREAD_X, BLOCK_X, BLOCK_Y, BLOCK_Z, BARRIER and the CUDA keywords.
#define FORCE_INLINE inline
#elif defined(__HIP__) || defined(__HIPCC_RTC__) || defined(__AMDGCN__)
#define THREAD_X ((int)__builtin_amdgcn_workitem_id_x())
#define BLOCK_X ((int)__builtin_amdgcn_workgroup_id_x())
#define BLOCK_Y ((int)__builtin_amdgcn_workgroup_id_y())
#define BLOCK_Z ((int)__builtin_amdgcn_workgroup_id_z())
#define FORCE_INLINE __attribute__((always_inline)) inline
#define UNHANG_HIP 1
// A barrier with the fences that make LDS writes visible; what __syncthreads() is, without the header.
#define BARRIER()                                          \
    do {                                                   \
        __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup"); \
        __builtin_amdgcn_s_barrier();                      \
        __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup"); \
    } while (0)
#else
#define THREAD_X ((int)threadIdx.x)
#define BLOCK_X ((int)blockIdx.x)
#define BLOCK_Y ((int)blockIdx.y)
#define BLOCK_Z ((int)blockIdx.z)
#define FORCE_INLINE __forceinline__
#define UNHANG_CUDA 1
#define BARRIER() __syncthreads()
#endif

#if defined(UNHANG_HIP)
#define DEVICE __device__ FORCE_INLINE
#define METHOD __device__ FORCE_INLINE
#elif defined(UNHANG_CUDA)
#define DEVICE __device__ FORCE_INLINE
#define METHOD __device__ FORCE_INLINE
#else
#define DEVICE static FORCE_INLINE
#define METHOD FORCE_INLINE
#endif

// A value that is the same in all lanes of a wave although the compiler cannot know: on AMD it then lives in a scalar
// register and costs the vector unit nothing.
#if defined(UNHANG_HIP)
#define UNIFORM(value) __builtin_amdgcn_readfirstlane(value)
#else
#define UNIFORM(value) (value)
#endif

// All ones where bit i of a word is set: one instruction on gfx10.
DEVICE unsigned spread_bit(unsigned word, int i) { return (unsigned)((int)(word << (31 - i)) >> 31); }

// Hides from the compiler what a register holds, so that nothing that is made of it is kept as well.
#if defined(UNHANG_HIP)
#define OPAQUE(value) asm volatile("" : "+v"(value))
#elif defined(UNHANG_CUDA)
#define OPAQUE(value) asm volatile("" : "+r"(value))
#else
#define OPAQUE(value) ((void)(value))
#endif

// OPAQUE on AMD alone, where an offset of 32 bits that is made next to its load costs less than an address that is kept.
#if defined(UNHANG_HIP)
#define OPAQUE_ON_AMD(value) OPAQUE(value)
#else
#define OPAQUE_ON_AMD(value) ((void)(value))
#endif

// OPAQUE for a value that all lanes of a wave share.
#if defined(UNHANG_HIP)
#define OPAQUE_UNIFORM(value) asm volatile("" : "+s"(value))
#else
#define OPAQUE_UNIFORM(value) ((void)(value))
#endif

// TYPE: 0 f32, 1 f16, 2 bf16, 3 f64.
#ifndef TYPE
#define TYPE 0
#endif

#if TYPE == 3
typedef double Real;
#else
typedef float Real;
#endif

#if defined(UNHANG_CUDA)
typedef float4 Quad;
DEVICE Quad make_quad(float x, float y, float z, float w) { return make_float4(x, y, z, w); }
DEVICE float multiply_add(float a, float b, float c) { return __fmaf_rn(a, b, c); }
#else
typedef float Quad __attribute__((vector_size(16)));
DEVICE Quad make_quad(float x, float y, float z, float w) {
    Quad q = {x, y, z, w};
    return q;
}
DEVICE float multiply_add(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
#endif

#if defined(UNHANG_CUDA)
DEVICE float part(const Quad& q, int i) { return i == 0 ? q.x : i == 1 ? q.y : i == 2 ? q.z : q.w; }
#else
DEVICE float part(const Quad& q, int i) { return q[i]; }
#endif

DEVICE unsigned bits_of(float value) {
#if defined(UNHANG_CUDA)
    return __float_as_uint(value);
#else
    return __builtin_bit_cast(unsigned, value);
#endif
}
DEVICE float float_of(unsigned bits) {
#if defined(UNHANG_CUDA)
    return __uint_as_float(bits);
#else
    return __builtin_bit_cast(float, bits);
#endif
}

#if TYPE == 0 || TYPE == 3
typedef Real Storage;
DEVICE Real widen(Storage value) { return value; }
DEVICE Storage narrow(Real value) { return value; }
#elif TYPE == 1
#if defined(UNHANG_CUDA)
typedef unsigned short Storage;
DEVICE float widen(Storage value) {
    float result;
    asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(value));
    return result;
}
DEVICE Storage narrow(float value) {
    Storage result;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result) : "f"(value));
    return result;
}
#else
typedef _Float16 Storage;
DEVICE float widen(Storage value) { return (float)value; }
DEVICE Storage narrow(float value) { return (Storage)value; }
#endif
#else
typedef unsigned short Storage;
DEVICE float widen(Storage value) { return float_of((unsigned)value << 16); }
// Round to nearest, ties to even; a NaN keeps being one although its low bits are cut off.
DEVICE Storage narrow(float value) {
    unsigned bits = bits_of(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (Storage)((bits >> 16) | 0x40u);
    return (Storage)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
#endif

// Loads and stores take a base that is the same for all lanes and a byte offset of 32 bits: AMD then addresses with
// one vector register instead of two. Hosts and planners keep every tensor below 2 GiB for these kernels.
DEVICE Real load_at(const Storage* base, unsigned bytes) {
    return widen(*(const Storage*)((const char*)base + bytes));
}
#if TYPE != 3
#if TYPE == 0
typedef Quad RawQuad;
DEVICE Quad expand(const RawQuad& raw) { return raw; }
#elif defined(UNHANG_CUDA)
typedef uint2 RawQuad;
DEVICE Quad expand(const RawQuad& raw) {
    return make_quad(widen((Storage)(raw.x & 0xffffu)), widen((Storage)(raw.x >> 16)),
                     widen((Storage)(raw.y & 0xffffu)), widen((Storage)(raw.y >> 16)));
}
#else
typedef Storage RawQuad __attribute__((vector_size(8)));
DEVICE Quad expand(const RawQuad& raw) { return make_quad(widen(raw[0]), widen(raw[1]), widen(raw[2]), widen(raw[3])); }
#endif
DEVICE void store_quad(Storage* to, float x, float y, float z, float w) {
#if TYPE == 0
    *(Quad*)to = make_quad(x, y, z, w);
#elif defined(UNHANG_CUDA)
    *(uint2*)to = make_uint2((unsigned)narrow(x) | ((unsigned)narrow(y) << 16),
                             (unsigned)narrow(z) | ((unsigned)narrow(w) << 16));
#else
    RawQuad raw = {narrow(x), narrow(y), narrow(z), narrow(w)};
    *(RawQuad*)to = raw;
#endif
}

// Neighbouring elements that are read and written at once: four, two or one, aligned to as many. `at` counts elements.
DEVICE const Storage* element(const Storage* base, unsigned at) {
    return (const Storage*)((const char*)base + at * (unsigned)sizeof(Storage));
}
#if TYPE == 0 && defined(UNHANG_CUDA)
typedef float2 RawPair;
#elif TYPE == 0
typedef float RawPair __attribute__((vector_size(8)));
#elif defined(UNHANG_CUDA)
typedef unsigned RawPair;
#else
typedef Storage RawPair __attribute__((vector_size(4)));
#endif
// Zero where nothing is there to be read. Tested as it came from memory: 16 bits need half as many tests so.
#if defined(UNHANG_CUDA)
DEVICE unsigned raw_or_zero(unsigned raw, bool there) { return there ? raw : 0u; }
DEVICE uint2 raw_or_zero(uint2 raw, bool there) { return make_uint2(there ? raw.x : 0u, there ? raw.y : 0u); }
DEVICE float2 raw_or_zero(float2 raw, bool there) { return make_float2(there ? raw.x : 0.0f, there ? raw.y : 0.0f); }
DEVICE float4 raw_or_zero(float4 raw, bool there) {
    return make_float4(there ? raw.x : 0.0f, there ? raw.y : 0.0f, there ? raw.z : 0.0f, there ? raw.w : 0.0f);
}
#else
template <class Raw>
DEVICE Raw raw_or_zero(Raw raw, bool there) {
    unsigned words[sizeof(Raw) / 4];
    __builtin_memcpy(words, &raw, sizeof(raw));
#pragma unroll
    for (int i = 0; i < (int)(sizeof(raw) / 4); ++i) words[i] = there ? words[i] : 0u;
    __builtin_memcpy(&raw, words, sizeof(raw));
    return raw;
}
#endif
template <int COUNT>
struct Neighbours {
    static METHOD void read(const Storage* from, bool there, float (&to)[COUNT]) {
        const float value = widen(*from);
        to[0] = there ? value : 0.0f;
    }
    static METHOD void read(const Storage* from, float (&to)[COUNT]) { to[0] = widen(*from); }
    static METHOD void write(Storage* to, const float (&from)[COUNT]) { *to = narrow(from[0]); }
};
template <>
struct Neighbours<2> {
    typedef RawPair Raw;
    static METHOD void read(const Storage* from, bool there, float (&to)[2]) { unpack(raw_or_zero(*(const Raw*)from, there), to); }
    static METHOD void read(const Storage* from, float (&to)[2]) { unpack(*(const Raw*)from, to); }
    static METHOD void unpack(const Raw& raw, float (&to)[2]) {
#if TYPE == 0 && defined(UNHANG_CUDA)
        to[0] = raw.x;
        to[1] = raw.y;
#elif defined(UNHANG_CUDA)
        to[0] = widen((Storage)(raw & 0xffffu));
        to[1] = widen((Storage)(raw >> 16));
#else
        to[0] = widen(raw[0]);
        to[1] = widen(raw[1]);
#endif
    }
    static METHOD void write(Storage* to, const float (&from)[2]) {
#if TYPE == 0 && defined(UNHANG_CUDA)
        *(RawPair*)to = make_float2(from[0], from[1]);
#elif defined(UNHANG_CUDA)
        *(RawPair*)to = (unsigned)narrow(from[0]) | ((unsigned)narrow(from[1]) << 16);
#else
        const RawPair raw = {narrow(from[0]), narrow(from[1])};
        *(RawPair*)to = raw;
#endif
    }
};
template <>
struct Neighbours<4> {
    typedef RawQuad Raw;
    static METHOD void read(const Storage* from, bool there, float (&to)[4]) { unpack(raw_or_zero(*(const Raw*)from, there), to); }
    static METHOD void read(const Storage* from, float (&to)[4]) { unpack(*(const Raw*)from, to); }
    static METHOD void unpack(const Raw& raw, float (&to)[4]) {
        const Quad quad = expand(raw);
        to[0] = part(quad, 0);
        to[1] = part(quad, 1);
        to[2] = part(quad, 2);
        to[3] = part(quad, 3);
    }
    static METHOD void write(Storage* to, const float (&from)[4]) { store_quad(to, from[0], from[1], from[2], from[3]); }
};
#if TYPE != 0
// Sixteen bytes of 16-bit numbers.
template <>
struct Neighbours<8> {
    static METHOD void read(const Storage* from, bool there, float (&to)[8]) {
#if defined(UNHANG_CUDA)
        const uint4 raw = *(const uint4*)from;
        const RawQuad both[2] = {make_uint2(raw.x, raw.y), make_uint2(raw.z, raw.w)};
#else
        const RawQuad both[2] = {((const RawQuad*)from)[0], ((const RawQuad*)from)[1]};
#endif
#pragma unroll
        for (int e = 0; e < 8; ++e) to[e] = part(expand(raw_or_zero(both[e / 4], there)), e % 4);
    }
    static METHOD void write(Storage* to, const float (&from)[8]) {
#if defined(UNHANG_CUDA)
        unsigned words[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) words[e] = (unsigned)narrow(from[2 * e]) | ((unsigned)narrow(from[2 * e + 1]) << 16);
        *(uint4*)to = make_uint4(words[0], words[1], words[2], words[3]);
#else
        store_quad(to, from[0], from[1], from[2], from[3]);
        store_quad(to + 4, from[4], from[5], from[6], from[7]);
#endif
    }
};
#endif
#endif

// Division by a number that the host knows: (high(n × multiplier) + n) >> shift, right for 0 ≤ n < 2³¹.
struct Divisor {
    unsigned multiplier;
    unsigned shift;
    int value;
};
DEVICE unsigned multiply_high(unsigned a, unsigned b) {
#if defined(UNHANG_CUDA)
    return __umulhi(a, b);
#else
    return (unsigned)(((unsigned long long)a * b) >> 32);
#endif
}
DEVICE int divide(int n, const Divisor& by) {
    return (int)((multiply_high((unsigned)n, by.multiplier) + (unsigned)n) >> by.shift);
}

// The rest of a division, and the quotient in place of the number.
DEVICE int split_off(int& number, const Divisor& by) {
    const int quotient = divide(number, by);
    const int rest = number - quotient * by.value;
    number = quotient;
    return rest;
}

DEVICE constexpr int round_down(int value, int by) { return value >= 0 ? value / by : -((-value + by - 1) / by); }
DEVICE constexpr int greatest_common_divisor(int a, int b) { return b == 0 ? a : greatest_common_divisor(b, a % b); }
