//! Numbers of every type, and the memory that they are in.

use unhang_conv::DataType;
use unhang_engine::{bf16, f16};

/// Memory that kernels see.
pub(crate) trait Memory {
    fn put(&mut self, bytes: &[u8]) -> u64;
    fn get(&self, at: u64, bytes: usize) -> Vec<u8>;
}

/// Numbers that are the same each time.
pub(crate) struct Random(pub u64);

impl Random {
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        // Neighbouring seeds must not give neighbouring numbers (splitmix64).
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 33) as usize % limit
    }

    pub(crate) fn number(&mut self) -> f64 {
        self.below(1 << 20) as f64 / f64::from(1 << 19) - 1.0
    }
}

/// Rounded to a type, as bytes.
pub(crate) fn bytes_of(data_type: DataType, value: f64) -> Vec<u8> {
    match data_type {
        DataType::F32 => (value as f32).to_le_bytes().to_vec(),
        DataType::F16 => f16::from_f64(value).to_le_bytes().to_vec(),
        DataType::Bf16 => bf16::from_f64(value).to_le_bytes().to_vec(),
        DataType::F64 => value.to_le_bytes().to_vec(),
    }
}

/// The number of a type that bytes are.
pub(crate) fn number_of(data_type: DataType, bytes: &[u8]) -> f64 {
    match data_type {
        DataType::F32 => f64::from(f32::from_le_bytes(bytes.try_into().unwrap())),
        DataType::F16 => f16::from_le_bytes(bytes.try_into().unwrap()).to_f64(),
        DataType::Bf16 => bf16::from_le_bytes(bytes.try_into().unwrap()).to_f64(),
        DataType::F64 => f64::from_le_bytes(bytes.try_into().unwrap()),
    }
}

/// The nearest of a type.
pub(crate) fn rounded(data_type: DataType, value: f64) -> f64 {
    number_of(data_type, &bytes_of(data_type, value))
}
