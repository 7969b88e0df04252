//! Tests whether torch's entries take and return what is assumed here: each is called once on numbers with a known
//! result.
//!
//! A mangled name states the types of the arguments, but not their layout in memory. `c_interface.rs` describes the
//! layout of C++'s and torch's types. This compares it with the loaded torch, before any kernel of ours is registered
//! for the user's convolutions. With a torch that nobody has tried, callers run it in a child.

use unhang_conv::{DataType, Direction, Layout, Problem};
use unhang_engine::Reference;

use super::c_interface::Mask;
use super::entries::{Flags, Geometry};
use super::kernels::DIRECT_PATH;
use super::tensors::{List, Tensor};
use super::torch::Torch;
use crate::compute::{Memory, compute};

/// Two groups, and every number of the geometry is different.
const PLAIN: &str = "forward:f32:nchw:1x2x5x6:4x2x3:s2x1:p1x2:d1x3:g2";
const TRANSPOSED: &str = "forward:f32:nchw:1x4x3x2:6x2x3:s3x2:p1x0:d1x2:g2:t:o2x1";

/// Different numbers, small enough for exact sums.
fn numbers(length: usize, from: i32) -> Vec<f32> {
    (from..).take(length).map(|number| (number * 7 % 11 - 5) as f32).collect()
}

fn memory(numbers: &[f32]) -> Memory {
    (numbers.as_ptr() as usize, numbers.len())
}

/// A problem's result by definition.
fn expected(problem: &Problem, [first, second]: [&[f32]; 2], bias: Option<&[f32]>) -> Result<Vec<f32>, String> {
    let mut result = vec![0.0_f32; problem.operand_shapes()[2].iter().product()];
    let written = (result.as_mut_ptr() as usize, result.len());
    compute(&Reference, problem, [memory(first), memory(second)], bias.map(memory), written)
        .map_err(|_| format!("{problem} has no reference"))?;
    Ok(result)
}

impl Torch {
    /// Calls the entries that a convolution uses, or says which one returns something else. `original` is a key set
    /// that leads to torch's own kernels.
    pub fn self_test(&self, original: u64) -> Result<(), String> {
        self.check_handles()?;
        for key in [PLAIN, TRANSPOSED] {
            let problem: Problem = key.parse().map_err(|error| format!("{key}: {error}"))?;
            self.check_problem(original, &problem)
                .map_err(|entry| format!("torch's {entry} returns something unexpected"))?;
        }
        Ok(())
    }

    /// A handle is a pointer to a tensor. Torch implements it that way but does not promise it. So two handles of one
    /// tensor must point to the same object.
    fn check_handles(&self) -> Result<(), String> {
        let made = self.allocate(&[1], &[1], self.on_cpu(DataType::F32));
        let first = made.ok_or("torch could not create a tensor")?;
        let mut second = std::ptr::null_mut();
        // SAFETY: a handle of torch's, and a valid pointer for another one.
        let code = unsafe { (self.functions.copy)(first.handle, &mut second) };
        if code != 0 || second.is_null() {
            return Err("torch could not copy a tensor".to_owned());
        }
        let second = Tensor { torch: self, handle: second };
        // SAFETY: both point to at least a pointer: torch allocated an object for each.
        let same = unsafe { (*first.handle).0 == (*second.handle).0 && !(*first.handle).0.is_null() };
        if same && first.handle != second.handle {
            Ok(())
        } else {
            Err("torch's handles have an unknown layout".to_owned())
        }
    }

    fn check_problem(&self, keys: u64, problem: &Problem) -> Result<(), String> {
        let shapes = problem.operand_shapes();
        let [x, w, g] = [0, 1, 2].map(|it: usize| numbers(shapes[it].iter().product(), it as i32));
        let b = numbers(problem.out_channels(), 3);
        let made = || -> Option<[Tensor<'_>; 4]> {
            Some([
                self.made(&shapes[0], &x)?,
                self.made(&shapes[1], &w)?,
                self.made(&shapes[2], &g)?,
                self.made(&[b.len()], &b)?,
            ])
        };
        let [input, weight, grad_output, bias] = made().ok_or("allocator")?;
        let pair = |it: [usize; 2]| it.map(|number| number as i64);
        let (stride, padding, dilation) = (pair(problem.stride()), pair(problem.padding()), pair(problem.dilation()));
        let output_padding = pair(problem.output_padding());
        let geometry = Geometry {
            stride: &stride,
            padding: &padding,
            dilation: &dilation,
            transposed: problem.transposed(),
            output_padding: &output_padding,
            groups: problem.groups() as i64,
        };
        let tensors = [&input, &weight];
        let with_bias = expected(problem, [&x, &w], Some(&b))?;
        let without = expected(problem, [&x, &w], None)?;
        for (bias, want) in [(Some(&bias), &with_bias), (None, &without)] {
            let found = self.convolution(keys, tensors, bias, &geometry);
            self.same(&found, &shapes[2], want).ok_or("convolution")?;
            let found = self.convolution_with_flags(keys, tensors, bias, &geometry, Flags::default());
            self.same(&found, &shapes[2], want).ok_or("_convolution")?;
        }
        let gradients = [
            (&shapes[0], expected(&problem.with_direction(Direction::BackwardData), [&g, &w], None)?),
            (&shapes[1], expected(&problem.with_direction(Direction::BackwardWeights), [&x, &g], None)?),
        ];
        let sums: Vec<f32> = g.chunks(g.len() / b.len()).map(|channel| channel.iter().sum()).collect();
        let sizes = [b.len() as i64];
        for asked in [[true, true, true], [false, true, false], [true, false, false]] {
            let mask = Mask { data: asked[0], weights: asked[1], bias: asked[2] };
            let tensors = [&grad_output, &input, &weight];
            let found = self.convolution_backward(keys, tensors, mask.bias.then_some(&sizes[..]), &geometry, mask);
            for (place, (shape, want)) in gradients.iter().enumerate() {
                let right = if asked[place] {
                    self.same(&found[place], *shape, want).is_some()
                } else {
                    !found[place].is_defined()
                };
                right.then_some(()).ok_or("convolution_backward")?;
            }
            let right =
                if mask.bias { self.same(&found[2], &[b.len()], &sums).is_some() } else { !found[2].is_defined() };
            right.then_some(()).ok_or("convolution_backward")?;
        }
        self.same(&self.sum(&grad_output, &[0, 2, 3]), &[b.len()], &sums).ok_or("sum")?;
        let turned = self.contiguous(&grad_output, Layout::Nhwc);
        let lies_so = turned.described().is_some_and(|it| it.is_dense(Layout::Nhwc));
        let back = self.contiguous(&turned, Layout::Nchw);
        self.same(&back, &shapes[2], &g).filter(|()| lies_so).ok_or("contiguous")?;
        Ok(())
    }

    /// A tensor of these numbers on the CPU.
    fn made(&self, shape: &[usize], numbers: &[f32]) -> Option<Tensor<'_>> {
        let sizes: Vec<i64> = shape.iter().map(|&size| size as i64).collect();
        let mut strides = vec![1; sizes.len()];
        for axis in (1..sizes.len()).rev() {
            strides[axis - 1] = strides[axis] * sizes[axis];
        }
        let tensor = self.allocate(&sizes, &strides, self.on_cpu(DataType::F32))?;
        let address = tensor.address_to_write()? as *mut f32;
        // SAFETY: torch allocated that many elements of the type, and nobody else has seen them.
        unsafe { std::ptr::copy_nonoverlapping(numbers.as_ptr(), address, numbers.len()) };
        Some(tensor)
    }

    /// Whether a tensor has that shape and holds these numbers.
    fn same(&self, tensor: &Tensor<'_>, shape: &[usize], want: &[f32]) -> Option<()> {
        if !tensor.is_defined() {
            return None;
        }
        let described = tensor.described()?;
        let is_dense = described.strides.last() == Some(&1);
        let same = described.sizes.iter().map(|&size| size as usize).eq(shape.iter().copied());
        if !same || !is_dense || shape.iter().product::<usize>() != want.len() {
            return None;
        }
        let address = tensor.address()? as *const f32;
        // SAFETY: a dense tensor of that many elements, which is alive and which nobody else has.
        let found = unsafe { std::slice::from_raw_parts(address, want.len()) };
        found.iter().zip(want).all(|(found, want)| (found - want).abs() < 1e-3).then_some(())
    }
}

/// The kernel of an op for the test only: returns what it was called with, as read from the slots. Its schema is
/// `(Tensor input, Tensor? other, SymInt[] numbers, SymInt[]? sizes, bool flag, SymInt number, bool[3] mask) ->
/// (Tensor, Tensor)`.
///
/// # Safety
/// Torch calls it with the slots of that op.
pub(super) unsafe extern "C-unwind" fn echo(slots: *mut u64, _: u64, _: u64) {
    let Some(direct) = DIRECT_PATH.get() else { std::process::abort() };
    let torch = &direct.torch;
    // SAFETY: guaranteed by the caller; each slot is read once.
    let (input, other, lists, flag, number) = unsafe {
        let input = torch.tensor(*slots);
        let other = torch.optional(*slots.add(1)).map(|slot| torch.tensor(slot)).filter(Tensor::is_defined);
        let numbers = torch.list(*slots.add(2));
        let sizes = torch.optional(*slots.add(3)).map(|slot| torch.list(slot)).unwrap_or_default();
        let flag = *slots.add(4) as u8;
        let number = torch.number(*slots.add(5));
        (input, other, [numbers, sizes, torch.list(*slots.add(6))], flag, number)
    };
    let mut read: Vec<f32> = vec![f32::from(flag), number as f32];
    for list in lists.iter().map(List::as_slice) {
        read.push(list.len() as f32);
        read.extend(list.iter().map(|&number| number as f32));
    }
    let Some(read) = torch.made(&[read.len()], &read) else { std::process::abort() };
    // SAFETY: the results' slots, whose arguments were taken.
    unsafe {
        *slots = other.unwrap_or(input).into_slot();
        *slots.add(1) = read.into_slot();
    }
}
