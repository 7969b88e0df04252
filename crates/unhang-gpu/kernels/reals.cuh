// Numbers that come with the launch, and what is computed of them without a division or a library function: those are calls, or
// differ from chip to chip.

struct Scalar {
    unsigned single;     // as f32
    unsigned low, high;  // as f64
};

#if TYPE == 3
DEVICE Real real_of(const Scalar& s) {
#if defined(UNHANG_CUDA)
    return __hiloint2double((int)s.high, (int)s.low);
#else
    return __builtin_bit_cast(double, ((unsigned long long)s.high << 32) | s.low);
#endif
}
DEVICE unsigned long long bits_of_real(Real value) {
#if defined(UNHANG_CUDA)
    return (unsigned long long)__double_as_longlong(value);
#else
    return __builtin_bit_cast(unsigned long long, value);
#endif
}
DEVICE Real real_of_bits(unsigned long long bits) {
#if defined(UNHANG_CUDA)
    return __longlong_as_double((long long)bits);
#else
    return __builtin_bit_cast(double, bits);
#endif
}
#define MANTISSA 52
#define EXPONENT_BIAS 1023
#define LEAST_NORMAL real_of_bits(0x0010000000000000ull)
#define INFINITE real_of_bits(0x7ff0000000000000ull)
typedef unsigned long long RealBits;
#else
DEVICE Real real_of(const Scalar& s) { return float_of(s.single); }
DEVICE unsigned bits_of_real(Real value) { return bits_of(value); }
DEVICE Real real_of_bits(unsigned bits) { return float_of(bits); }
#define MANTISSA 23
#define EXPONENT_BIAS 127
#define LEAST_NORMAL float_of(0x00800000u)
#define INFINITE float_of(0x7f800000u)
typedef unsigned RealBits;
#endif

// 1 / sqrt(v): from a guess that halves the exponent, by Newton's steps.
DEVICE Real inverse_root(Real v) {
    if (v <= (Real)0) return v < (Real)0 ? v - v + (INFINITE - INFINITE) : INFINITE;
    if (v == INFINITE) return (Real)0;
    // The guess needs an exponent, which a subnormal number does not have.
    const bool is_subnormal = v < LEAST_NORMAL;
    if (is_subnormal) v *= (Real)324518553658426726783156020576256.0;  // 2^108
#if TYPE == 3
    Real r = real_of_bits(0x5fe6eb50c7b537a9ull - (bits_of_real(v) >> 1));
    const int steps = 5;
#else
    Real r = real_of_bits(0x5f3759dfu - (bits_of_real(v) >> 1));
    const int steps = 4;
#endif
#pragma unroll
    for (int i = 0; i < steps; ++i) r = r * ((Real)1.5 - (Real)0.5 * v * r * r);
    return is_subnormal ? r * (Real)18014398509481984.0 : r;  // 2^54
}
DEVICE Real reciprocal(Real v) {
    Real r = inverse_root(v);
    r = r * r;
    return r * ((Real)2 - v * r);
}
DEVICE Real magnitude(Real v) { return v < (Real)0 ? -v : v; }

// Operands have their own types.
DEVICE Real load_typed(const void* base, int at, int type) {
    if (type == 0) return (Real)((const float*)base)[at];
    if (type == 3) return (Real)((const double*)base)[at];
    const unsigned short raw = ((const unsigned short*)base)[at];
    if (type == 2) return (Real)float_of((unsigned)raw << 16);
#if defined(UNHANG_CUDA)
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(raw));
    return (Real)wide;
#else
    return (Real)(float)__builtin_bit_cast(_Float16, raw);
#endif
}
DEVICE void store_typed(void* base, int at, int type, Real value) {
    if (base == nullptr) return;
    if (type == 0) {
        ((float*)base)[at] = (float)value;
    } else if (type == 3) {
        ((double*)base)[at] = (double)value;
    } else if (type == 2) {
        const unsigned bits = bits_of((float)value);
        const bool is_number = (bits & 0x7fffffffu) <= 0x7f800000u;
        const unsigned rounded = is_number ? bits + 0x7fffu + ((bits >> 16) & 1u) : bits | 0x400000u;
        ((unsigned short*)base)[at] = (unsigned short)(rounded >> 16);
    } else {
        unsigned short raw;
#if defined(UNHANG_CUDA)
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(raw) : "f"((float)value));
#else
        raw = __builtin_bit_cast(unsigned short, (_Float16)(float)value);
#endif
        ((unsigned short*)base)[at] = raw;
    }
}
