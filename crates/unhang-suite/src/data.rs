//! Tensors with reproducible contents.

use half::{bf16, f16};
use unhang_conv::DataType;
use unhang_engine::{Elements, ElementsMut};

/// An owned tensor of any data type.
#[derive(Debug, Clone, PartialEq)]
pub enum Tensor {
    /// Single precision.
    F32(Vec<f32>),
    /// Half precision.
    F16(Vec<f16>),
    /// bfloat16.
    Bf16(Vec<bf16>),
    /// Double precision.
    F64(Vec<f64>),
}

impl Tensor {
    /// Values spread evenly over -1 … 1, the same for the same seed.
    pub fn random(data_type: DataType, length: usize, seed: u64) -> Tensor {
        // SplitMix64: two lines, and neighbouring seeds are unrelated.
        let mut state = seed;
        let mut next = move || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 52) as f64 - 1.0
        };
        Tensor::from_f64(data_type, (0..length).map(|_| next()))
    }

    /// A tensor full of a value that no computation here produces, so that an unwritten pixel is noticed.
    pub fn unwritten(data_type: DataType, length: usize) -> Tensor {
        Tensor::from_f64(data_type, std::iter::repeat_n(f64::NAN, length))
    }

    fn from_f64(data_type: DataType, values: impl Iterator<Item = f64>) -> Tensor {
        match data_type {
            DataType::F32 => Tensor::F32(values.map(|v| v as f32).collect()),
            DataType::F16 => Tensor::F16(values.map(f16::from_f64).collect()),
            DataType::Bf16 => Tensor::Bf16(values.map(bf16::from_f64).collect()),
            DataType::F64 => Tensor::F64(values.collect()),
        }
    }

    /// The elements, to read.
    pub fn elements(&self) -> Elements<'_> {
        match self {
            Tensor::F32(v) => Elements::F32(v),
            Tensor::F16(v) => Elements::F16(v),
            Tensor::Bf16(v) => Elements::Bf16(v),
            Tensor::F64(v) => Elements::F64(v),
        }
    }

    /// The elements, to write.
    pub fn elements_mut(&mut self) -> ElementsMut<'_> {
        match self {
            Tensor::F32(v) => ElementsMut::F32(v),
            Tensor::F16(v) => ElementsMut::F16(v),
            Tensor::Bf16(v) => ElementsMut::Bf16(v),
            Tensor::F64(v) => ElementsMut::F64(v),
        }
    }

    /// The elements in double precision.
    pub fn to_f64(&self) -> Vec<f64> {
        match self {
            Tensor::F32(v) => v.iter().map(|&x| f64::from(x)).collect(),
            Tensor::F16(v) => v.iter().map(|x| x.to_f64()).collect(),
            Tensor::Bf16(v) => v.iter().map(|x| x.to_f64()).collect(),
            Tensor::F64(v) => v.clone(),
        }
    }
}
