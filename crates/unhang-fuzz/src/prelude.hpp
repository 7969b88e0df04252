// What every random program starts with, on the device and on the host: types, arithmetic that is defined for all values,
// and instructions by name with twins written from AMD's documentation.
typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef short i16;
typedef unsigned int u32;
typedef int i32;
typedef unsigned long u64;
typedef long i64;
typedef _Float16 half;
typedef u16 u16x2 __attribute__((ext_vector_type(2)));
typedef half half2 __attribute__((ext_vector_type(2)));

#if defined(__AMDGCN__)
#define ON_DEVICE 1
#define FN static __attribute__((device))
#define KERNEL extern "C" __attribute__((global))
#else
#define ON_DEVICE 0
#define FN static
#include <math.h>
#include <stdio.h>
#include <string.h>
#endif
#define NOINLINE FN __attribute__((noinline))
#define INLINE FN inline __attribute__((always_inline))

template <class To, class From> INLINE To cast(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    __builtin_memcpy(&to, &from, sizeof to);
    return to;
}

// Bits of a NaN are nobody's promise: there is one of each type.
INLINE u32 bits(float x) { return x != x ? 0x7fc00000u : cast<u32>(x); }
INLINE u64 bits(double x) { return x != x ? 0x7ff8000000000000ul : cast<u64>(x); }
INLINE u16 bits(half x) { return x != x ? (u16)0x7e00 : cast<u16>(x); }
INLINE float f32_of(u32 x) { return cast<float>((x & 0x7fffffff) > 0x7f800000 ? 0x7fc00000u : x); }
INLINE double f64_of(u64 x) { return cast<double>(x << 1 > 0xffe0000000000000ul ? 0x7ff8000000000000ul : x); }
INLINE half f16_of(u16 x) { return cast<half>((x & 0x7fff) > 0x7c00 ? (u16)0x7e00 : x); }
INLINE float with_sign(float x, float y) { return __builtin_copysignf(x, y != y ? 1.0f : y); }
INLINE double with_sign(double x, double y) { return __builtin_copysign(x, y != y ? 1.0 : y); }

// A constant pair is hidden from the compiler: clang 15 adds {15, 0} by subtracting the inline constant -15, whose upper half
// is not 0.
INLINE u16x2 pair_of(u32 x) {
#if ON_DEVICE
    __asm__("" : "+v"(x));
#endif
    return cast<u16x2>(x);
}

// An inversion of 64 bits is hidden from the compiler: clang 15 and 19 get `a | ~(b << k)` and `a | ~(b >> k)` wrong
// with unsigned numbers of 64 bits and a constant k of 32 or more. They lose the word that is all ones and put that of
// `a` in its place.
template <class T> INLINE T inverse(T x) {
    x = ~x;
#if ON_DEVICE
    __asm__("" : "+v"(x));
#endif
    return x;
}

// A zero that the compiler knows is hidden from it: clang 19 to 24 make -x of 0 - x where another instruction takes the result, and of
// x = +0 that is not the same.
template <class T> INLINE T difference(T a, T b) {
#if ON_DEVICE
    if (__builtin_constant_p(a == 0) && a == 0) __asm__("" : "+v"(a));
#endif
    return (T)(a - b);
}

// Whole numbers: division by zero is the dividend, and what overflows is not divided.
template <class T> INLINE T quotient(T a, T b) {
    return b == 0 || ((T)-1 < (T)0 && b == (T)-1) ? a : (T)(a / b);
}
template <class T> INLINE T remainder_of(T a, T b) {
    return b == 0 || ((T)-1 < (T)0 && b == (T)-1) ? a : (T)(a % b);
}
INLINE u32 clz(u32 x) { return x == 0 ? 32 : (u32)__builtin_clz(x); }
INLINE u32 ctz(u32 x) { return x == 0 ? 32 : (u32)__builtin_ctz(x); }
INLINE u32 clz64(u64 x) { return x == 0 ? 64 : (u32)__builtin_clzl(x); }
INLINE u32 ctz64(u64 x) { return x == 0 ? 64 : (u32)__builtin_ctzl(x); }
INLINE u32 rotate(u32 x, u32 by) { return x << (by & 31) | x >> ((32 - by) & 31); }
INLINE u32 high_product(u32 a, u32 b) { return (u32)((u64)a * b >> 32); }
INLINE i32 high_product(i32 a, i32 b) { return (i32)((i64)a * b >> 32); }

// Conversions to whole numbers, zero outside of their range.
INLINE i32 to_i32(float x) { return x >= -2147483648.0f && x < 2147483648.0f ? (i32)x : 0; }
INLINE u32 to_u32(float x) { return x > -1.0f && x < 4294967296.0f ? (u32)x : 0; }
INLINE i32 to_i32(double x) { return x > -2147483649.0 && x < 2147483648.0 ? (i32)x : 0; }
INLINE u32 to_u32(double x) { return x > -1.0 && x < 4294967296.0 ? (u32)x : 0; }
INLINE i64 to_i64(float x) { return x >= -9223372036854775808.0f && x < 9223372036854775808.0f ? (i64)x : 0; }
INLINE u64 to_u64(float x) { return x > -1.0f && x < 18446744073709551616.0f ? (u64)x : 0; }
INLINE i64 to_i64(double x) { return x >= -9223372036854775808.0 && x < 9223372036854775808.0 ? (i64)x : 0; }
INLINE u64 to_u64(double x) { return x > -1.0 && x < 18446744073709551616.0 ? (u64)x : 0; }
INLINE u16 to_u16(half x) { return x > (half)-1.0f && x < (half)65504.0f ? (u16)x : 0; }

// Memory that is not aligned.
template <class T> INLINE T get(const u8 *at) { T value; __builtin_memcpy(&value, at, sizeof value); return value; }
template <class T> INLINE void put(u8 *at, T value) { __builtin_memcpy(at, &value, sizeof value); }

// Atomics whose results nobody looks at, so that their order does not matter.
#if ON_DEVICE
INLINE void atomic_add(u32 *at, u32 value) { __atomic_fetch_add(at, value, __ATOMIC_RELAXED); }
INLINE void atomic_and(u32 *at, u32 value) { __atomic_fetch_and(at, value, __ATOMIC_RELAXED); }
INLINE void atomic_or(u32 *at, u32 value) { __atomic_fetch_or(at, value, __ATOMIC_RELAXED); }
INLINE void atomic_xor(u32 *at, u32 value) { __atomic_fetch_xor(at, value, __ATOMIC_RELAXED); }
INLINE void atomic_max(u32 *at, u32 value) { __atomic_fetch_max(at, value, __ATOMIC_RELAXED); }
INLINE void atomic_min(i32 *at, i32 value) { __atomic_fetch_min(at, value, __ATOMIC_RELAXED); }
INLINE void atomic_add64(u64 *at, u64 value) { __atomic_fetch_add(at, value, __ATOMIC_RELAXED); }
#else
INLINE void atomic_add(u32 *at, u32 value) { *at += value; }
INLINE void atomic_and(u32 *at, u32 value) { *at &= value; }
INLINE void atomic_or(u32 *at, u32 value) { *at |= value; }
INLINE void atomic_xor(u32 *at, u32 value) { *at ^= value; }
INLINE void atomic_max(u32 *at, u32 value) { *at = *at > value ? *at : value; }
INLINE void atomic_min(i32 *at, i32 value) { *at = *at < value ? *at : value; }
INLINE void atomic_add64(u64 *at, u64 value) { *at += value; }
#endif

// Instructions by name. Where the sources are constants, LLVM folds some of them: then three readings are compared.
#if ON_DEVICE
INLINE u32 ubfe(u32 a, u32 b, u32 c) { return __builtin_amdgcn_ubfe(a, b & 31, c & 31); }
INLINE u32 sbfe(u32 a, u32 b, u32 c) { return __builtin_amdgcn_sbfe(a, b & 31, c & 31); }
INLINE u32 alignbit(u32 a, u32 b, u32 c) { return __builtin_amdgcn_alignbit(a, b, c & 31); }
INLINE u32 alignbyte(u32 a, u32 b, u32 c) { return __builtin_amdgcn_alignbyte(a, b, c & 3); }
INLINE u32 perm(u32 a, u32 b, u32 c) { return __builtin_amdgcn_perm(a, b, c); }
INLINE u32 sad_u8(u32 a, u32 b, u32 c) { return __builtin_amdgcn_sad_u8(a, b, c); }
INLINE u32 sad_hi_u8(u32 a, u32 b, u32 c) { return __builtin_amdgcn_sad_hi_u8(a, b, c); }
INLINE u32 sad_u16(u32 a, u32 b, u32 c) { return __builtin_amdgcn_sad_u16(a, b, c); }
INLINE u32 msad_u8(u32 a, u32 b, u32 c) { return __builtin_amdgcn_msad_u8(a, b, c); }
INLINE u32 lerp(u32 a, u32 b, u32 c) { return __builtin_amdgcn_lerp(a, b, c); }
INLINE u64 qsad(u64 a, u32 b, u64 c) { return __builtin_amdgcn_qsad_pk_u16_u8(a, b, c); }
INLINE u64 mqsad(u64 a, u32 b, u64 c) { return __builtin_amdgcn_mqsad_pk_u16_u8(a, b, c); }
INLINE u32 cvt_pk_u8(float a, u32 b, u32 c) { return __builtin_amdgcn_cvt_pk_u8_f32(a, b & 3, c); }
INLINE u32 cvt_pknorm_i16(float a, float b) { return cast<u32>(__builtin_amdgcn_cvt_pknorm_i16(a, b)); }
INLINE u32 cvt_pknorm_u16(float a, float b) { return cast<u32>(__builtin_amdgcn_cvt_pknorm_u16(a, b)); }
INLINE u32 cvt_pk_u16(u32 a, u32 b) { return cast<u32>(__builtin_amdgcn_cvt_pk_u16(a, b)); }
INLINE u32 cvt_pk_i16(i32 a, i32 b) { return cast<u32>(__builtin_amdgcn_cvt_pk_i16(a, b)); }
INLINE float ldexp_f32(float a, i32 b) { return __builtin_amdgcn_ldexpf(a, b); }
INLINE double ldexp_f64(double a, i32 b) { return __builtin_amdgcn_ldexp(a, b); }
INLINE float frexp_mantissa(float a) { return __builtin_amdgcn_frexp_mantf(a); }
INLINE i32 frexp_exponent(float a) { return __builtin_amdgcn_frexp_expf(a); }
INLINE double frexp_mantissa(double a) { return __builtin_amdgcn_frexp_mant(a); }
INLINE i32 frexp_exponent(double a) { return __builtin_amdgcn_frexp_exp(a); }
INLINE float fract_f32(float a) { return __builtin_amdgcn_fractf(a); }
INLINE double fract_f64(double a) { return __builtin_amdgcn_fract(a); }
INLINE bool class_f32(float a, u32 b) { return __builtin_amdgcn_classf(a, b & 0x3ff); }
INLINE bool class_f64(double a, u32 b) { return __builtin_amdgcn_class(a, b & 0x3ff); }
INLINE float med3_of(float a, float b, float c) { return __builtin_amdgcn_fmed3f(a, b, c); }
#else
INLINE u32 ubfe(u32 a, u32 b, u32 c) { return a >> (b & 31) & (u32)((1ul << (c & 31)) - 1); }
INLINE u32 sbfe(u32 a, u32 b, u32 c) {
    c &= 31;
    return c == 0 ? 0 : (u32)((i32)((u32)((i32)a >> (b & 31)) << (32 - c)) >> (32 - c));
}
INLINE u32 alignbit(u32 a, u32 b, u32 c) { return (u32)(((u64)a << 32 | b) >> (c & 31)); }
INLINE u32 alignbyte(u32 a, u32 b, u32 c) { return (u32)(((u64)a << 32 | b) >> (8 * (c & 3))); }
INLINE u32 byte_of(u64 x, u32 place) { return (u32)(x >> (8 * place)) & 255; }
INLINE u32 perm(u32 a, u32 b, u32 c) {
    u64 both = (u64)a << 32 | b;
    u32 result = 0;
    for (u32 place = 0; place < 4; ++place) {
        u32 select = byte_of(c, place), byte = 0;
        if (select < 8) byte = byte_of(both, select);
        else if (select < 12) byte = byte_of(both, (select - 8) * 2 + 1) >= 128 ? 255 : 0;
        else if (select > 12) byte = 255;
        result |= byte << (8 * place);
    }
    return result;
}
INLINE u32 difference(u32 a, u32 b) { return a > b ? a - b : b - a; }
INLINE u32 sad_u8(u32 a, u32 b, u32 c) {
    for (u32 place = 0; place < 4; ++place) c += difference(byte_of(a, place), byte_of(b, place));
    return c;
}
INLINE u32 sad_hi_u8(u32 a, u32 b, u32 c) { return (sad_u8(a, b, 0) << 16) + c; }
INLINE u32 sad_u16(u32 a, u32 b, u32 c) { return c + difference(a & 0xffff, b & 0xffff) + difference(a >> 16, b >> 16); }
INLINE u32 msad_u8(u32 a, u32 b, u32 c) {
    for (u32 place = 0; place < 4; ++place)
        if (byte_of(b, place) != 0) c += difference(byte_of(a, place), byte_of(b, place));
    return c;
}
INLINE u32 lerp(u32 a, u32 b, u32 c) {
    u32 result = 0;
    for (u32 place = 0; place < 4; ++place)
        result |= (byte_of(a, place) + byte_of(b, place) + (byte_of(c, place) & 1)) / 2 << (8 * place);
    return result;
}
INLINE u64 qsad(u64 a, u32 b, u64 c) {
    u64 result = 0;
    for (u32 place = 0; place < 4; ++place)
        result |= (u64)(u16)sad_u8((u32)(a >> (8 * place)), b, (u16)(c >> (16 * place))) << (16 * place);
    return result;
}
INLINE u64 mqsad(u64 a, u32 b, u64 c) {
    u64 result = 0;
    for (u32 place = 0; place < 4; ++place)
        result |= (u64)(u16)msad_u8((u32)(a >> (8 * place)), b, (u16)(c >> (16 * place))) << (16 * place);
    return result;
}
INLINE u32 cvt_pk_u8(float a, u32 b, u32 c) {
    float rounded = rintf(a);
    u32 byte = !(rounded > 0) ? 0 : rounded > 255 ? 255 : (u32)rounded, shift = (b & 3) * 8;
    return (c & ~(255u << shift)) | byte << shift;
}
INLINE u32 normal(float x, float low, float scale) {
    if (x != x) x = 0;
    x = x < low ? low : x > 1 ? 1 : x;
    return (u32)(i32)rint((double)x * scale) & 0xffff;
}
INLINE u32 cvt_pknorm_i16(float a, float b) { return normal(a, -1, 32767) | normal(b, -1, 32767) << 16; }
INLINE u32 cvt_pknorm_u16(float a, float b) { return normal(a, 0, 65535) | normal(b, 0, 65535) << 16; }
INLINE u32 cvt_pk_u16(u32 a, u32 b) { return (a > 0xffff ? 0xffff : a) | (b > 0xffff ? 0xffff : b) << 16; }
INLINE i32 limited(i32 x) { return x < -32768 ? -32768 : x > 32767 ? 32767 : x; }
INLINE u32 cvt_pk_i16(i32 a, i32 b) { return (u16)limited(a) | (u32)(u16)limited(b) << 16; }
INLINE float ldexp_f32(float a, i32 b) { return ldexpf(a, b); }
INLINE double ldexp_f64(double a, i32 b) { return ldexp(a, b); }
INLINE float frexp_mantissa(float a) { int e; return __builtin_isfinite(a) ? frexpf(a, &e) : a; }
INLINE i32 frexp_exponent(float a) { int e = 0; return __builtin_isfinite(a) ? (frexpf(a, &e), e) : 0; }
INLINE double frexp_mantissa(double a) { int e; return __builtin_isfinite(a) ? frexp(a, &e) : a; }
INLINE i32 frexp_exponent(double a) { int e = 0; return __builtin_isfinite(a) ? (frexp(a, &e), e) : 0; }
INLINE float fract_f32(float a) { float part = a - floorf(a); return part >= 1 ? 0x1.fffffep-1f : part; }
INLINE double fract_f64(double a) { double part = a - floor(a); return part >= 1 ? 0x1.fffffffffffffp-1 : part; }
template <class T> INLINE bool class_of(T a, u32 b) {
    bool negative = __builtin_signbit(a) != 0;
    // Signalling NaN never get here, and a NaN's bits are not compared.
    if (a != a) return b >> 1 & 1;
    if (__builtin_isinf(a)) return b >> (negative ? 2 : 9) & 1;
    if (a == 0) return b >> (negative ? 5 : 6) & 1;
    return b >> (__builtin_isnormal(a) ? (negative ? 3 : 8) : (negative ? 4 : 7)) & 1;
}
INLINE bool class_f32(float a, u32 b) { return class_of(a, b); }
INLINE bool class_f64(double a, u32 b) { return class_of(a, b); }
INLINE float least(float a, float b) {
    return a != a ? b : b != b ? a : a < b || (a == b && __builtin_signbit(a)) ? a : b;
}
INLINE float most(float a, float b) { return -least(-a, -b); }
INLINE float med3_of(float a, float b, float c) {
    if (a != a || b != b || c != c) return least(least(a, b), c);
    return most(least(a, b), least(most(a, b), c));
}
#endif
// Which zero is in the middle is not documented.
INLINE float med3(float a, float b, float c) { return med3_of(a, b, c) + 0.0f; }

// Lanes that exchange values: on the device the instruction, on the host the same for the values of a wave. What goes through
// LDS's crossbar or between rows stays within half of a wave of 64.
#ifdef WAVE64
enum { LANES = 64, THREADS = 64 };
#else
enum { LANES = 32, THREADS = 64 };
#endif
#if ON_DEVICE
INLINE u32 bpermute(u32 at, u32 x) { return __builtin_amdgcn_ds_bpermute(at * 4, x); }
INLINE u32 first_lane(u32 x) { return __builtin_amdgcn_readfirstlane(x); }
#if __clang_major__ > 16 && defined WAVE64
INLINE u32 ballot(bool x) { return (u32)__builtin_amdgcn_ballot_w64(x); }
#elif __clang_major__ > 16
INLINE u32 ballot(bool x) { return __builtin_amdgcn_ballot_w32(x); }
#else
INLINE u32 ballot(bool x) { return (u32)__builtin_amdgcn_uicmp((u32)x, 0u, 33); }
#endif
#else
INLINE u32 quad_lane(u32 control, u32 lane) { return (lane & ~3u) | (control >> (lane & 3) * 2 & 3); }
// Where a lane's value comes from under data-parallel control; -1: from outside of the row.
INLINE i32 dpp_lane(u32 control, i32 lane) {
    i32 row = lane & ~15, place = lane & 15, count = control & 15;
    if (control < 0x100) return (i32)quad_lane(control, lane);
    if (control > 0x100 && control < 0x110) return place + count < 16 ? lane + count : -1;
    if (control > 0x110 && control < 0x120) return place >= count ? lane - count : -1;
    if (control > 0x120 && control < 0x130) return row + ((place - count) & 15);
    if (control == 0x140) return row + 15 - place;
    if (control == 0x141) return lane ^ 7;
    if (control >= 0x150 && control < 0x160) return row + count;
    return row + (place ^ count);
}
#endif
