//! Tensors copied between device and host, and gathered from or scattered to their strides.

use unhang_conv::DataType;
use unhang_engine::{Elements, ElementsMut, bf16, f16};
use unhang_gpu::driver::{Driver, DriverError};

use crate::view::View;

/// Numbers of one type.
#[derive(Debug, Clone)]
pub enum Numbers {
    /// Of single precision.
    F32(Vec<f32>),
    /// Of half precision.
    F16(Vec<f16>),
    /// bfloat16: half the bits, with the exponent of single precision.
    Bf16(Vec<bf16>),
    /// Of double precision.
    F64(Vec<f64>),
}

macro_rules! each {
    ($numbers:expr, $name:ident => $body:expr) => {
        match $numbers {
            Numbers::F32($name) => $body,
            Numbers::F16($name) => $body,
            Numbers::Bf16($name) => $body,
            Numbers::F64($name) => $body,
        }
    };
}

/// Does something with the slices of two tensors, which are of one type.
macro_rules! of_one_type {
    ($pair:expr, ($to:ident, $from:ident) => $body:expr) => {
        match $pair {
            (Numbers::F32($to), Numbers::F32($from)) => $body,
            (Numbers::F16($to), Numbers::F16($from)) => $body,
            (Numbers::Bf16($to), Numbers::Bf16($from)) => $body,
            (Numbers::F64($to), Numbers::F64($from)) => $body,
            _ => debug_assert!(false, "tensors of one convolution are of one type"),
        }
    };
}

/// The bytes of numbers; every bit pattern is a number.
fn bytes_of<T: Copy>(numbers: &mut [T]) -> &mut [u8] {
    // SAFETY: the same memory for as long; only called with the number types above, which have no padding.
    unsafe { std::slice::from_raw_parts_mut(numbers.as_mut_ptr().cast(), size_of_val(numbers)) }
}

/// Where each element of a tensor is, in the order of `order`'s strides.
fn walk(view: &View, to: [usize; 4], mut visit: impl FnMut(usize, usize)) {
    let ([n, c, h, w], from) = (view.shape, view.strides);
    for i in 0..n {
        for j in 0..c {
            for k in 0..h {
                for l in 0..w {
                    let at = |s: [usize; 4]| i * s[0] + j * s[1] + k * s[2] + l * s[3];
                    visit(at(from), at(to));
                }
            }
        }
    }
}

impl Numbers {
    /// Zeros.
    pub fn zeros(data_type: DataType, count: usize) -> Numbers {
        match data_type {
            DataType::F32 => Numbers::F32(vec![0.0; count]),
            DataType::F16 => Numbers::F16(vec![f16::ZERO; count]),
            DataType::Bf16 => Numbers::Bf16(vec![bf16::ZERO; count]),
            DataType::F64 => Numbers::F64(vec![0.0; count]),
        }
    }

    /// That many of one number.
    pub fn filled(data_type: DataType, count: usize, value: f64) -> Numbers {
        let mut numbers = Numbers::zeros(data_type, count);
        (0..count).for_each(|at| numbers.set(at, value));
        numbers
    }

    /// Numbers between -1 and 1, the same each time.
    pub fn random(data_type: DataType, count: usize, seed: u64) -> Numbers {
        let mut numbers = Numbers::zeros(data_type, count);
        for (at, value) in unhang_probe::child::numbers(count, seed).into_iter().enumerate() {
            numbers.set(at, f64::from(value));
        }
        numbers
    }

    /// How many they are.
    pub fn len(&self) -> usize {
        self.elements().len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.elements().is_empty()
    }

    /// One of them.
    pub fn get(&self, at: usize) -> f64 {
        self.elements().get(at)
    }

    /// Changes one, to the nearest of the type.
    pub fn set(&mut self, at: usize, value: f64) {
        match self {
            Numbers::F32(it) => it[at] = value as f32,
            Numbers::F16(it) => it[at] = f16::from_f64(value),
            Numbers::Bf16(it) => it[at] = bf16::from_f64(value),
            Numbers::F64(it) => it[at] = value,
        }
    }

    /// To be read by an engine.
    pub fn elements(&self) -> Elements<'_> {
        match self {
            Numbers::F32(it) => Elements::F32(it),
            Numbers::F16(it) => Elements::F16(it),
            Numbers::Bf16(it) => Elements::Bf16(it),
            Numbers::F64(it) => Elements::F64(it),
        }
    }

    /// To be written by an engine.
    pub fn elements_mut(&mut self) -> ElementsMut<'_> {
        match self {
            Numbers::F32(it) => ElementsMut::F32(it),
            Numbers::F16(it) => ElementsMut::F16(it),
            Numbers::Bf16(it) => ElementsMut::Bf16(it),
            Numbers::F64(it) => ElementsMut::F64(it),
        }
    }

    /// Reads that many elements from the device once the stream has reached this point.
    ///
    /// # Safety
    /// They must lie there.
    pub unsafe fn read(
        driver: &dyn Driver,
        data_type: DataType,
        count: usize,
        from: u64,
        stream: u64,
    ) -> Result<Numbers, DriverError> {
        let mut numbers = Numbers::zeros(data_type, count);
        // SAFETY: the caller's promise.
        each!(&mut numbers, it => unsafe { driver.read(bytes_of(it), from, stream) })?;
        Ok(numbers)
    }

    /// Writes them to the device once the stream has reached this point.
    ///
    /// # Safety
    /// As many must have a place there.
    pub unsafe fn write(&mut self, driver: &dyn Driver, to: u64, stream: u64) -> Result<(), DriverError> {
        // SAFETY: the caller's promise.
        each!(self, it => unsafe { driver.write(to, bytes_of(it), stream) })
    }

    /// Zeros of the same type.
    pub(crate) fn zeros_like(other: &Numbers, count: usize) -> Numbers {
        Numbers::zeros(other.elements().data_type(), count)
    }

    /// Copies the elements of a view of another tensor into these, in the order of other strides: from its element `first` on, to
    /// the element `to_first` and on.
    pub(crate) fn copy_between(&mut self, from: &Numbers, view: &View, first: usize, to: [usize; 4], to_first: usize) {
        of_one_type!((self, from), (target, source) => {
            walk(view, to, |from, to| target[to_first + to] = source[first + from]);
        });
    }

    /// The elements of a view in the order of other strides, without gaps.
    pub fn gathered(&self, view: &View, to: [usize; 4]) -> Numbers {
        let mut dense = Numbers::zeros_like(self, view.elements());
        dense.copy_between(self, view, 0, to, 0);
        dense
    }

    /// Writes densely stored elements to their places in a view; the gaps stay as they are.
    pub fn scatter(&mut self, view: &View, dense: &Numbers, from: [usize; 4]) {
        of_one_type!((self, dense), (target, source) => {
            walk(view, from, |at, from| target[at] = source[from]);
        });
    }
}
