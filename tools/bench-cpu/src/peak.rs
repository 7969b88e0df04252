//! What one core can do at most: multiply-adds that depend on nothing but registers.

use std::time::Instant;

use unhang_cpu::Isa;

/// Steps of one measurement: about half a millisecond.
const STEPS: usize = 40_000;
/// Independent sums: enough that none waits for itself, at two per cycle with a latency of four or five.
const SUMS: usize = 12;

/// Billions of operations per second, once; zero if the instruction set has no multiply-add.
pub fn once(isa: Isa) -> f64 {
    let started = Instant::now();
    let lanes = match isa {
        // SAFETY: an `Isa` other than the portable one is one that the machine has.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => unsafe { avx512() },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { avx2() },
        _ => 0,
    };
    (STEPS * SUMS * lanes * 2) as f64 / started.elapsed().as_secs_f64() / 1e9
}

/// # Safety
/// The machine has AVX-512 F.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn avx512() -> usize {
    use std::arch::x86_64::*;
    use std::hint::black_box;
    let factor = black_box(_mm512_set1_ps(0.5));
    let mut sums = [_mm512_set1_ps(1.0); SUMS];
    for _ in 0..STEPS {
        for sum in &mut sums {
            *sum = _mm512_fmadd_ps(*sum, factor, factor);
        }
    }
    black_box(sums);
    16
}

/// # Safety
/// The machine has AVX2 and FMA.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn avx2() -> usize {
    use std::arch::x86_64::*;
    use std::hint::black_box;
    let factor = black_box(_mm256_set1_ps(0.5));
    let mut sums = [_mm256_set1_ps(1.0); SUMS];
    for _ in 0..STEPS {
        for sum in &mut sums {
            *sum = _mm256_fmadd_ps(*sum, factor, factor);
        }
    }
    black_box(sums);
    8
}
