//! The tensors that an engine reads and writes, as typed slices.

use std::fmt;

use half::{bf16, f16};
use unhang_conv::{DataType, Direction, Problem};

use crate::EngineError;

/// Elements to read.
#[derive(Debug, Clone, Copy)]
pub enum Elements<'a> {
    /// Single precision.
    F32(&'a [f32]),
    /// Half precision.
    F16(&'a [f16]),
    /// bfloat16.
    Bf16(&'a [bf16]),
    /// Double precision.
    F64(&'a [f64]),
}

/// Elements to write.
#[derive(Debug)]
pub enum ElementsMut<'a> {
    /// Single precision.
    F32(&'a mut [f32]),
    /// Half precision.
    F16(&'a mut [f16]),
    /// bfloat16.
    Bf16(&'a mut [bf16]),
    /// Double precision.
    F64(&'a mut [f64]),
}

impl Elements<'_> {
    /// The number of elements.
    pub fn len(&self) -> usize {
        match self {
            Elements::F32(s) => s.len(),
            Elements::F16(s) => s.len(),
            Elements::Bf16(s) => s.len(),
            Elements::F64(s) => s.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// One element.
    ///
    /// # Panics
    /// If the index is out of range.
    pub fn get(&self, at: usize) -> f64 {
        match self {
            Elements::F32(s) => f64::from(s[at]),
            Elements::F16(s) => s[at].to_f64(),
            Elements::Bf16(s) => s[at].to_f64(),
            Elements::F64(s) => s[at],
        }
    }

    /// Their type.
    pub fn data_type(&self) -> DataType {
        match self {
            Elements::F32(_) => DataType::F32,
            Elements::F16(_) => DataType::F16,
            Elements::Bf16(_) => DataType::Bf16,
            Elements::F64(_) => DataType::F64,
        }
    }
}

impl ElementsMut<'_> {
    /// A read-only view of them.
    pub fn as_elements(&self) -> Elements<'_> {
        match self {
            ElementsMut::F32(s) => Elements::F32(s),
            ElementsMut::F16(s) => Elements::F16(s),
            ElementsMut::Bf16(s) => Elements::Bf16(s),
            ElementsMut::F64(s) => Elements::F64(s),
        }
    }
}

/// A type that elements can have.
pub(crate) trait Typed: Copy + Default + 'static {
    fn elements(slice: &[Self]) -> Elements<'_>;
    fn elements_mut(slice: &mut [Self]) -> ElementsMut<'_>;
}

macro_rules! typed {
    ($($type:ty => $variant:ident),*) => {
        $(impl Typed for $type {
            fn elements(slice: &[$type]) -> Elements<'_> {
                Elements::$variant(slice)
            }

            fn elements_mut(slice: &mut [$type]) -> ElementsMut<'_> {
                ElementsMut::$variant(slice)
            }
        })*
    };
}

typed!(f32 => F32, f16 => F16, bf16 => Bf16, f64 => F64);

/// What a computation reads and writes. [`Problem::operand_shapes`] says which tensor is which.
#[derive(Debug)]
pub struct Operands<'a> {
    /// Input, or the gradient of the output in backward-data.
    pub first: Elements<'a>,
    /// Weight, or the gradient of the output in backward-weights.
    pub second: Elements<'a>,
    /// One value for each output channel; forward only.
    pub bias: Option<Elements<'a>>,
    /// Receives the result.
    pub result: ElementsMut<'a>,
}

impl Operands<'_> {
    /// Checks lengths and types against the problem. Every engine calls this first.
    pub fn validate(&self, problem: &Problem) -> Result<(), EngineError> {
        let lengths = problem.operand_shapes().map(|shape| shape.iter().product());
        // Other directions have no bias to add, so an extra operand is the caller's mistake.
        let bias = if problem.direction() == Direction::Forward { problem.out_channels() } else { 0 };
        self.check(lengths, bias, problem.data_type(), problem)
    }

    /// Checks lengths and types against the given ones; errors use the name `problem`.
    pub(crate) fn check(
        &self,
        [first, second, result]: [usize; 3],
        bias_length: usize,
        data_type: DataType,
        problem: &dyn fmt::Display,
    ) -> Result<(), EngineError> {
        let mut parts = vec![
            ("first", self.first, first),
            ("second", self.second, second),
            ("result", self.result.as_elements(), result),
        ];
        if let Some(bias) = self.bias {
            parts.push(("bias", bias, bias_length));
        }
        for (operand, elements, expected) in parts {
            if elements.len() != expected || elements.data_type() != data_type {
                return Err(EngineError::Operand {
                    operand,
                    found: format!("{} elements of {}", elements.len(), elements.data_type()),
                    expected: format!("{expected} elements of {data_type}"),
                    problem: problem.to_string(),
                });
            }
        }
        Ok(())
    }
}
