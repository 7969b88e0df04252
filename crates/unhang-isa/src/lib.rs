//! gfx10 machine code, pure: bytes in, values out.
//!
//! * [`decode`] reads one instruction, [`Instruction`] prints it as LLVM's disassembler does;
//! * [`Program`] is a decoded function with its control-flow graph;
//! * [`audit`] finds what in it is unsafe on a given chip, with LLVM's own hazard rules;
//! * [`repair`] repairs code for a chip that it was not compiled for;
//! * [`elf`] reads code objects: target, functions, kernel descriptors.
//!
//! This crate opens no file, starts no thread and knows nothing of containers, drivers or convolutions. The shield
//! runs it inside other people's processes. So nothing here may panic on any input, or allocate more than a small
//! multiple of what it was given.

#![forbid(unsafe_code)]

pub mod audit;
mod buffer_descriptors;
mod chip;
mod decode;
mod effects;
pub mod elf;
mod kernel_limits;
mod liveness;
pub mod opcode;
mod pc_relative;
mod program;
mod registers;
pub mod repair;
mod table;
mod text;

pub use chip::{Chip, WORK_AROUND_FEATURES};
pub use decode::{DecodeError, Instruction, Modifier, decode};
pub use effects::Effects;
pub use opcode::Opcode;
pub use program::{Block, Program, ProgramError};
pub use registers::{OperandValue, ScalarSet, scalar_name};
pub use table::{Class, Definition, Field, Flow, Format, OperandKind, Slot, Width, definitions, look_up};
