//! Our kernels on operands in the host's memory: allocates device memory, fills it, computes, waits and frees it.
//!
//! For supervised children, tests, and tiles that are cut on the host. Whoever calls it must expect that it never returns.

use unhang_conv::Problem;
use unhang_engine::{Elements, ElementsMut, Engine, EngineError, EngineName, Operands, Unsupported, bf16, f16};

use crate::driver::Driver;
use crate::{DevicePointers, GpuEngine, GpuError, Prepared};

/// Shows what a kernel leaves unwritten: a NaN in every type.
const UNWRITTEN: u8 = 0xff;

/// The GPU engine as one on this process's memory.
pub struct FromHost<'a> {
    engine: &'a GpuEngine,
}

impl<'a> FromHost<'a> {
    /// By the kernels of that engine.
    pub fn new(engine: &'a GpuEngine) -> FromHost<'a> {
        FromHost { engine }
    }

    /// Whether the device takes data and gives it back.
    pub fn copies(&self) -> Result<bool, GpuError> {
        let sent: Vec<u8> = (0..=u8::MAX).cycle().take(4096).collect();
        let mut received = vec![0; sent.len()];
        let mut memory = Memory { driver: self.engine.driver(), places: Vec::new() };
        let place = memory.of(&sent)?;
        // SAFETY: as many bytes were put there.
        unsafe { self.engine.driver().read(&mut received, place, 0)? };
        Ok(received == sent)
    }

    /// Computes by kernels that are loaded, and waits.
    pub fn run_prepared(&self, prepared: &Prepared, operands: Operands<'_>) -> Result<(), GpuError> {
        let mut memory = Memory { driver: self.engine.driver(), places: Vec::new() };
        let mut result = operands.result;
        let mut output = vec![UNWRITTEN; size_of(&result.as_elements())];
        let pointers = DevicePointers {
            first: memory.of(&bytes_of(&operands.first))?,
            second: memory.of(&bytes_of(&operands.second))?,
            bias: operands.bias.map_or(Ok(0), |bias| memory.of(&bytes_of(&bias)))?,
            result: memory.of(&output)?,
            workspace: match prepared.workspace_bytes() {
                0 => 0,
                bytes => memory.of(&vec![UNWRITTEN; bytes as usize])?,
            },
        };
        // SAFETY: memory of the sizes that the problem and the plan say, given back after the copy has waited.
        unsafe {
            self.engine.launch(prepared, pointers, 0)?;
            self.engine.driver().read(&mut output, pointers.result, 0)?;
        }
        write(&mut result, &output);
        Ok(())
    }
}

impl Engine for FromHost<'_> {
    fn name(&self) -> EngineName {
        EngineName::Jit
    }

    fn supports(&self, problem: &Problem) -> Result<(), Unsupported> {
        self.engine.supports(problem)
    }

    fn run(&self, problem: &Problem, operands: Operands<'_>) -> Result<(), EngineError> {
        operands.validate(problem)?;
        let ran = self.engine.prepare(problem).and_then(|prepared| self.run_prepared(&prepared, operands));
        ran.map_err(|error| EngineError::Failed { engine: EngineName::Jit, message: error.to_string() })
    }
}

/// Device memory, freed on drop.
struct Memory<'a> {
    driver: &'a dyn Driver,
    places: Vec<u64>,
}

impl Memory<'_> {
    /// With these bytes in it.
    fn of(&mut self, bytes: &[u8]) -> Result<u64, GpuError> {
        let place = self.driver.allocate(bytes.len().max(1))?;
        self.places.push(place);
        // SAFETY: allocated above for as many bytes.
        unsafe { self.driver.write(place, bytes, 0)? };
        Ok(place)
    }
}

impl Drop for Memory<'_> {
    fn drop(&mut self) {
        for place in &self.places {
            // SAFETY: everything that used it was waited for, or failed.
            let _ = unsafe { self.driver.free(*place) };
        }
    }
}

/// Bytes of numbers.
fn size_of(elements: &Elements<'_>) -> usize {
    elements.len() * elements.data_type().size()
}

/// Numbers as they lie in memory.
fn bytes_of(elements: &Elements<'_>) -> Vec<u8> {
    match elements {
        Elements::F32(from) => from.iter().flat_map(|value| value.to_le_bytes()).collect(),
        Elements::F16(from) => from.iter().flat_map(|value| value.to_le_bytes()).collect(),
        Elements::Bf16(from) => from.iter().flat_map(|value| value.to_le_bytes()).collect(),
        Elements::F64(from) => from.iter().flat_map(|value| value.to_le_bytes()).collect(),
    }
}

/// Numbers from how they lie in memory.
fn write(to: &mut ElementsMut<'_>, bytes: &[u8]) {
    match to {
        ElementsMut::F32(to) => copy(bytes, to, f32::from_le_bytes),
        ElementsMut::F16(to) => copy(bytes, to, f16::from_le_bytes),
        ElementsMut::Bf16(to) => copy(bytes, to, bf16::from_le_bytes),
        ElementsMut::F64(to) => copy(bytes, to, f64::from_le_bytes),
    }
}

fn copy<T, const N: usize>(bytes: &[u8], to: &mut [T], from: fn([u8; N]) -> T) {
    for (value, &chunk) in to.iter_mut().zip(bytes.as_chunks().0) {
        *value = from(chunk);
    }
}
