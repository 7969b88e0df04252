//! The plain reference, as an engine.

use half::{bf16, f16};
use unhang_conv::{Problem, reference};

use crate::{Elements, ElementsMut, Engine, EngineError, EngineName, Operands, Unsupported};

/// The reference as an engine: slow and right. Tests compare other engines with it, and run wrappers on it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Reference;

impl Engine for Reference {
    fn name(&self) -> EngineName {
        EngineName::Cpu
    }

    fn supports(&self, _problem: &Problem) -> Result<(), Unsupported> {
        Ok(())
    }

    fn run(&self, problem: &Problem, operands: Operands<'_>) -> Result<(), EngineError> {
        operands.validate(problem)?;
        let wide = |elements: Elements<'_>| -> Vec<f64> {
            match elements {
                Elements::F32(s) => s.iter().map(|&v| f64::from(v)).collect(),
                Elements::F16(s) => s.iter().map(|v| v.to_f64()).collect(),
                Elements::Bf16(s) => s.iter().map(|v| v.to_f64()).collect(),
                Elements::F64(s) => s.to_vec(),
            }
        };
        let bias = operands.bias.map(wide);
        let computed = reference::compute(problem, &wide(operands.first), &wide(operands.second), bias.as_deref());
        match operands.result {
            ElementsMut::F32(result) => result.iter_mut().zip(computed).for_each(|(r, c)| *r = c as f32),
            ElementsMut::F16(result) => {
                result.iter_mut().zip(computed).for_each(|(r, c)| *r = f16::from_f64(c));
            }
            ElementsMut::Bf16(result) => {
                result.iter_mut().zip(computed).for_each(|(r, c)| *r = bf16::from_f64(c));
            }
            ElementsMut::F64(result) => result.copy_from_slice(&computed),
        }
        Ok(())
    }
}
