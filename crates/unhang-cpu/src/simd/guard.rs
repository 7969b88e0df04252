//! Tests with operands between pages that cannot be touched: one number read or written too far ends the test.

use proptest::prelude::*;
use unhang_conv::{DataType, Direction, Problem, Specification, reference};
use unhang_suite::{Tensor, Tolerance, any_ordinary_problem, compare};

use crate::isa::Isa;

/// Which end of the numbers touches a forbidden page.
#[derive(Debug, Clone, Copy)]
enum Flush {
    Start,
    End,
}

/// Numbers in pages of their own, with a forbidden page on either side.
struct Guarded {
    mapping: *mut libc::c_void,
    bytes: usize,
    start: *mut f32,
    length: usize,
}

impl Guarded {
    fn new(numbers: &[f32], flush: Flush) -> Guarded {
        // SAFETY: a system call without preconditions.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let inner = (std::mem::size_of_val(numbers)).next_multiple_of(page).max(page);
        let bytes = inner + 2 * page;
        // SAFETY: a new private mapping, whose inner pages alone are made accessible; the numbers lie in them, and
        // f32 needs no more alignment than their end has.
        unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let mapping = libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_NONE, flags, -1, 0);
            assert_ne!(mapping, libc::MAP_FAILED, "memory for a guarded operand");
            let first = mapping.cast::<u8>().add(page);
            assert_eq!(libc::mprotect(first.cast(), inner, libc::PROT_READ | libc::PROT_WRITE), 0);
            let start = match flush {
                Flush::Start => first,
                Flush::End => first.add(inner - std::mem::size_of_val(numbers)),
            };
            let start = start.cast::<f32>();
            std::ptr::copy_nonoverlapping(numbers.as_ptr(), start, numbers.len());
            Guarded { mapping, bytes, start, length: numbers.len() }
        }
    }

    fn numbers(&mut self) -> &mut [f32] {
        // SAFETY: they were written in `new`, and the mapping lives as long as `self`.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.length) }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`, to which nothing points any more.
        unsafe { libc::munmap(self.mapping, self.bytes) };
    }
}

fn random(length: usize, seed: u64) -> Vec<f32> {
    Tensor::random(DataType::F32, length, seed).to_f64().into_iter().map(|number| number as f32).collect()
}

fn passes_between_guards(problem: &Problem, seed: u64) -> Result<(), TestCaseError> {
    let lengths = problem.operand_shapes().map(|shape| shape.iter().product::<usize>());
    let numbers = [random(lengths[0], seed), random(lengths[1], seed + 1)];
    let expected = reference::compute(problem, &numbers[0], &numbers[1], None);
    for flush in [Flush::Start, Flush::End] {
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            let mut operands = [
                Guarded::new(&numbers[0], flush),
                Guarded::new(&numbers[1], flush),
                Guarded::new(&vec![f32::NAN; lengths[2]], flush),
            ];
            let [first, second, result] = &mut operands;
            super::compute(problem, isa, first.numbers(), second.numbers(), None, result.numbers(), 2);
            let got: Vec<f64> = result.numbers().iter().map(|&number| f64::from(number)).collect();
            let errors = compare(&got, &expected);
            prop_assert!(errors.within(Tolerance::of(DataType::F32)), "{isa} {flush:?} {problem}: {errors:?}");
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn nothing_beyond_the_operands_is_touched(problem in any_ordinary_problem(DataType::F32), seed in 0u64..1000) {
        passes_between_guards(&problem, seed)?;
    }

    #[test]
    fn nothing_beyond_depthwise_operands_is_touched(
        problem in any_ordinary_problem(DataType::F32), channels in 2i64..40, seed in 0u64..1000
    ) {
        let (in_channels, out_channels, groups) = (channels, channels, channels);
        let depthwise = Specification { in_channels, out_channels, groups, ..problem.specification() };
        let Ok(problem) = Problem::new(depthwise) else { return Err(TestCaseError::reject("makes no convolution")) };
        passes_between_guards(&problem, seed)?;
    }

    #[test]
    fn nothing_beyond_pointwise_operands_is_touched(
        problem in any_ordinary_problem(DataType::F32), channels in [1i64..70, 1i64..70], seed in 0u64..1000
    ) {
        let pointwise = Specification {
            in_channels: channels[0],
            out_channels: channels[1],
            groups: 1,
            kernel: [1, 1],
            stride: [1, 1],
            padding: [0, 0],
            ..problem.specification()
        };
        let Ok(problem) = Problem::new(pointwise) else { return Err(TestCaseError::reject("makes no convolution")) };
        passes_between_guards(&problem, seed)?;
    }
}

#[test]
fn nothing_beyond_wide_operands_is_touched() {
    for direction in Direction::ALL {
        for key in ["f32:nchw:1x200x5x5:210x3x3:s1x1:p1x1:d1x1:g1", "f32:nhwc:2x130x4x6:200x3x3:s2x2:p1x1:d1x1:g1"] {
            let problem: Problem = format!("{direction}:{key}").parse().expect("a key");
            passes_between_guards(&problem, 7).expect("within its operands");
        }
    }
}

/// The workspace of every layer stays below what its operands take. Minutes, so on demand, in release mode.
#[test]
#[ignore = "computes the whole layer table"]
fn workspace_is_smaller_than_the_operands() {
    for layer in unhang_suite::layers() {
        for direction in Direction::ALL {
            for batch in [layer.problem.batch(), 1] {
                let problem = layer.problem.with_batch(batch).expect("a batch").with_direction(direction);
                let lengths = problem.operand_shapes().map(|shape| shape.iter().product::<usize>());
                let (first, second) = (vec![0.5; lengths[0]], vec![0.5; lengths[1]]);
                let mut result = vec![0.0; lengths[2]];
                super::workspace::peak::reset();
                super::compute(&problem, Isa::detect(), &first, &second, None, &mut result, 1);
                let (peak, operands) = (super::workspace::peak::numbers(), lengths.iter().sum::<usize>());
                println!("{:20} {problem}: {:.2} of the operands", layer.name, peak as f64 / operands as f64);
                assert!(peak <= operands, "{problem} takes {peak} numbers of workspace for {operands} of operands");
            }
        }
    }
}
