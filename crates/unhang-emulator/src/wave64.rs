//! Waves of 64 lanes: vector instructions execute for the lower 32 lanes and then for the upper ones, as in hardware.
//! Rows of 16 lanes, permutations and the crossbar of LDS never cross the middle. Masks are pairs of scalar registers,
//! one per half.

use unhang_isa::{Field, Instruction};

use crate::FaultKind;
use crate::access::Access;
use crate::semantics::Semantics;
use crate::surroundings::Surroundings;
use crate::wave::{LANES, Type, Wave};

impl Wave {
    /// Executes a vector instruction for all lanes.
    #[inline]
    pub(crate) fn run_vector_halves(
        &mut self,
        instruction: &Instruction,
        semantics: Semantics,
    ) -> Result<(), FaultKind> {
        if !self.wave64 {
            return self.run_vector(instruction, semantics);
        }
        match semantics {
            Semantics::ReadFirstLane => {
                let exec = self.exec64();
                let lane = if exec == 0 { 0 } else { exec.trailing_zeros() as usize };
                self.read_lane(instruction, lane);
                return Ok(());
            }
            Semantics::ReadLane => {
                let lane = self.fetch(instruction, Field::Source1, Type::Bits32).values[0] as usize;
                self.read_lane(instruction, lane % (2 * LANES));
                return Ok(());
            }
            Semantics::WriteLane => {
                let lane = self.fetch(instruction, Field::Source1, Type::Bits32).values[0] as usize % (2 * LANES);
                let value = self.fetch(instruction, Field::Source0, Type::Bits32).values[0];
                self.half = lane / LANES;
                self.put(instruction, &[value; LANES], Type::Bits32, 1 << (lane % LANES));
                self.half = 0;
                return Ok(());
            }
            _ => {}
        }
        if !instruction.definition.writes_scalar {
            return self.each_half(|wave| wave.run_vector(instruction, semantics));
        }
        // Both halves see the original scalar registers; each writes its own half of the mask.
        let before = self.scalars;
        let mut lower = before;
        let result = self.each_half(|wave| {
            let result = wave.run_vector(instruction, semantics);
            if wave.half == 0 {
                lower = std::mem::replace(&mut wave.scalars, before);
            }
            result
        });
        for (register, value) in lower.into_iter().enumerate().filter(|&(register, value)| value != before[register]) {
            self.scalars[register] = value;
        }
        result
    }

    fn each_half(&mut self, mut run: impl FnMut(&mut Wave) -> Result<(), FaultKind>) -> Result<(), FaultKind> {
        let mut result = Ok(());
        for half in 0..2 {
            self.half = half;
            result = result.and_then(|()| run(self));
        }
        self.half = 0;
        result
    }

    fn read_lane(&mut self, instruction: &Instruction, lane: usize) {
        self.half = lane / LANES;
        let value = self.fetch(instruction, Field::Source0, Type::Bits32).values[lane % LANES];
        self.half = 0;
        if let Some(register) = Wave::destination(instruction, Field::Destination) {
            self.set_scalar(register, value as u32);
        }
    }

    /// Executes a memory instruction for all lanes.
    #[inline]
    pub(crate) fn run_memory_halves(
        &mut self,
        instruction: &Instruction,
        access: Access,
        around: &mut Surroundings<'_>,
    ) -> Result<(), FaultKind> {
        match access {
            Access::Nothing | Access::ScalarLoad { .. } | Access::Clock => self.run_memory(instruction, access, around),
            _ if !self.wave64 => self.run_memory(instruction, access, around),
            _ => self.each_half(|wave| wave.run_memory(instruction, access, around)),
        }
    }
}
