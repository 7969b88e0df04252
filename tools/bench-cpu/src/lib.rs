//! The CPU engine for `ctypes`: a problem from its key, and one call that computes it on f32 tensors.

mod peak;

use std::ffi::{CStr, c_char};

use unhang_conv::Problem;
use unhang_cpu::{CpuEngine, CpuSettings, Isa};
use unhang_engine::{Elements, ElementsMut, Operands};

/// Creates a problem from its key; null if the key is invalid. It is never freed: a benchmark creates a few hundred.
///
/// # Safety
/// `key` is a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unhang_problem(key: *const c_char) -> *const Problem {
    // SAFETY: the caller guarantees this condition.
    let key = unsafe { CStr::from_ptr(key) };
    match key.to_str().ok().and_then(|key| key.parse::<Problem>().ok()) {
        Some(problem) => Box::leak(Box::new(problem)),
        None => std::ptr::null(),
    }
}

/// Makes the engine compute on torch's threads, as in the product; returns 1 if they are found.
#[unsafe(no_mangle)]
pub extern "C" fn unhang_use_torch_threads() -> i32 {
    unhang_cpu::use_openmp_of("libtorch_cpu.so").into()
}

/// Computes a problem without bias; zero on success.
///
/// # Safety
/// The problem is from [`unhang_problem`]; the tensors are f32, dense, and of the problem's shapes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unhang_run(
    problem: *const Problem,
    first: *const f32,
    second: *const f32,
    result: *mut f32,
    threads: usize,
) -> i32 {
    // SAFETY: the caller guarantees these conditions.
    let (problem, first, second, result) = unsafe {
        let problem = &*problem;
        let [a, b, c] = problem.operand_shapes().map(|shape| shape.iter().product::<usize>());
        let slices = (std::slice::from_raw_parts(first, a), std::slice::from_raw_parts(second, b));
        (problem, slices.0, slices.1, std::slice::from_raw_parts_mut(result, c))
    };
    let operands = Operands {
        first: Elements::F32(first),
        second: Elements::F32(second),
        bias: None,
        result: ElementsMut::F32(result),
    };
    match CpuEngine::new().run_with(problem, operands, &CpuSettings { threads, ..CpuSettings::default() }) {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("{error}");
            1
        }
    }
}

/// Billions of floating-point operations per second of one thread that only multiplies and adds in registers, with the
/// engine's instructions: the best of `rounds` short measurements. Zero without such instructions.
#[unsafe(no_mangle)]
pub extern "C" fn unhang_peak(rounds: usize) -> f64 {
    (0..rounds).map(|_| peak::once(Isa::detect())).fold(0.0, f64::max)
}
