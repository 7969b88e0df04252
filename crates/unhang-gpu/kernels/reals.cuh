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
#define INFINITE real_of_bits(0x7ff0000000000000ull)
typedef unsigned long long RealBits;
#else
DEVICE Real real_of(const Scalar& s) { return float_of(s.single); }
DEVICE unsigned bits_of_real(Real value) { return bits_of(value); }
DEVICE Real real_of_bits(unsigned bits) { return float_of(bits); }
#define MANTISSA 23
#define EXPONENT_BIAS 127
#define INFINITE float_of(0x7f800000u)
typedef unsigned RealBits;
#endif

// 1 / sqrt(v): from a guess that halves the exponent, by Newton's steps.
DEVICE Real inverse_root(Real v) {
    if (v <= (Real)0) return v < (Real)0 ? v - v + (INFINITE - INFINITE) : INFINITE;
    if (v == INFINITE) return (Real)0;
#if TYPE == 3
    Real r = real_of_bits(0x5fe6eb50c7b537a9ull - (bits_of_real(v) >> 1));
    const int steps = 5;
#else
    Real r = real_of_bits(0x5f3759dfu - (bits_of_real(v) >> 1));
    const int steps = 4;
#endif
#pragma unroll
    for (int i = 0; i < steps; ++i) r = r * ((Real)1.5 - (Real)0.5 * v * r * r);
    return r;
}
DEVICE Real reciprocal(Real v) {
    Real r = inverse_root(v);
    r = r * r;
    return r * ((Real)2 - v * r);
}
