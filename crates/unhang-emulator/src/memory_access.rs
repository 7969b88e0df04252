//! Memory instructions: scalar loads, local memory, global and flat memory, buffers.

use unhang_isa::audit::wide_local_access;
use unhang_isa::{Field, Format, Instruction};

use crate::FaultKind;
use crate::access::{Access, Comparison, Space, Update, WordPart};
use crate::buffer::{BufferPlace, BufferResource};
use crate::buffer_format::{DataFormat, IDENTITY, Typed};
use crate::surroundings::{Surroundings, Target};
use crate::wave::{LANES, M0, Wave};

/// The first registers that a memory instruction stores from and loads to.
#[derive(Clone, Copy)]
struct MemoryRegisters {
    data: usize,
    second_data: usize,
    destination: usize,
}

impl MemoryRegisters {
    fn of(instruction: &Instruction) -> MemoryRegisters {
        let register = |field| Wave::destination(instruction, field).unwrap_or(0) as usize;
        let second_data = register(Field::Source2);
        match instruction.format() {
            Format::Mubuf | Format::Mtbuf => {
                let data = instruction.high_bits(8, 8) as usize;
                MemoryRegisters { data, second_data, destination: data }
            }
            _ => MemoryRegisters {
                data: register(Field::Source1),
                second_data,
                destination: register(Field::Destination),
            },
        }
    }
}

/// [`Access::Atomic`].
#[derive(Clone, Copy)]
struct Atomic {
    update: Update,
    wide: bool,
    returns: bool,
    compare: Comparison,
}

/// A memory instruction of a wave, executed lane by lane.
struct LaneAccess<'a, 'b> {
    wave: &'a mut Wave,
    instruction: &'a Instruction,
    registers: MemoryRegisters,
    around: &'a mut Surroundings<'b>,
}

impl LaneAccess<'_, '_> {
    /// Loads whole words from local memory: most loads of a fast kernel.
    fn load_local_words(&mut self, count: u8) -> Result<(), FaultKind> {
        let lanes = self.wave.lanes_on_now();
        let addresses = self.wave.vector(self.instruction.high_bits(0, 8) as u8);
        let (offset, size) = (self.instruction.bits(0, 16), count as usize * 4);
        for lane in lanes {
            let address = addresses[lane].wrapping_add(offset);
            let bytes = self.around.local.get(address as usize..address as usize + size);
            let bytes = bytes.ok_or_else(|| self.around.local_fault(address, size as u32))?;
            for (word, &chunk) in bytes.as_chunks().0.iter().enumerate() {
                self.wave.set_vector_lane(self.registers.destination + word, lane, u32::from_le_bytes(chunk));
            }
        }
        Ok(())
    }

    /// Loads words, or a part of one.
    fn load_words(&mut self, count: u8, part: WordPart) -> Result<(), FaultKind> {
        let lanes = self.wave.lanes_on_now();
        for lane in lanes {
            let target = self.wave.target(self.instruction, lane)?;
            for word in 0..count as u32 {
                let value = self.around.load(target.plus(word * 4), part.size())?;
                let register = self.registers.destination + word as usize;
                let old = self.wave.vector_lane(register, lane);
                self.wave.set_vector_lane(register, lane, widen(value, part, old));
            }
        }
        Ok(())
    }

    /// Stores words, or a part of one.
    fn store_words(&mut self, count: u8, part: WordPart) -> Result<(), FaultKind> {
        let lanes = self.wave.lanes_on_now();
        for lane in lanes {
            let target = self.wave.target(self.instruction, lane)?;
            for word in 0..count as u32 {
                let mut value = self.wave.vector_lane(self.registers.data + word as usize, lane);
                if let WordPart::InHalf { high: true, .. } = part {
                    value >>= 16;
                }
                self.around.store(target.plus(word * 4), part.size(), value)?;
            }
        }
        Ok(())
    }

    /// Loads from a buffer to local memory.
    fn load_to_local(&mut self, part: WordPart) -> Result<(), FaultKind> {
        let lanes = self.wave.lanes_on_now();
        for lane in lanes {
            let value = self.around.load(self.wave.target(self.instruction, lane)?, part.size())?;
            self.put_local(lane, widen(value, part, 0))?;
        }
        Ok(())
    }

    /// Loads the first component of a typed buffer's element to local memory.
    fn load_typed_to_local(&mut self, typed: Typed) -> Result<(), FaultKind> {
        let lanes = self.wave.lanes_on_now();
        for lane in lanes {
            let [value, ..] = self.element(typed, lane, [0; 4])?;
            self.put_local(lane, value)?;
        }
        Ok(())
    }

    /// Stores what a lane loaded to local memory.
    fn put_local(&mut self, lane: usize, value: u32) -> Result<(), FaultKind> {
        let start = (self.wave.scalar(M0 as u8) & 0xffff) + self.instruction.bits(0, 12);
        self.around.store(Target::Local(start + self.wave.number_of(lane) as u32 * 4), 4, value)
    }

    /// Loads an element of a typed buffer.
    fn load_typed(&mut self, typed: Typed) -> Result<(), FaultKind> {
        let lanes = self.wave.lanes_on_now();
        let count = typed.registers() as usize;
        for lane in lanes {
            let old = std::array::from_fn(|word| self.wave.vector_lane(self.registers.data + word % count, lane));
            let new = self.element(typed, lane, old)?;
            for (word, &value) in new.iter().enumerate().take(count) {
                self.wave.set_vector_lane(self.registers.data + word, lane, value);
            }
        }
        Ok(())
    }

    /// The registers of a lane after a typed load, given their contents before.
    fn element(&mut self, typed: Typed, lane: usize, old: [u32; 4]) -> Result<[u32; 4], FaultKind> {
        let (place, format) = self.wave.typed_place(self.instruction, typed, lane)?;
        let element = self.around.load_element(place, format.bytes())?;
        typed.load(format, element, selects(self.instruction, place), old).ok_or(FaultKind::Unsupported)
    }

    /// Stores an element of a typed buffer.
    fn store_typed(&mut self, typed: Typed) -> Result<(), FaultKind> {
        let lanes = self.wave.lanes_on_now();
        for lane in lanes {
            let (place, format) = self.wave.typed_place(self.instruction, typed, lane)?;
            if place.in_range(format.bytes()).is_none() {
                continue;
            }
            let count = typed.registers() as usize;
            let values = std::array::from_fn(|word| self.wave.vector_lane(self.registers.data + word % count, lane));
            // No source describes what another order of components does to a store.
            let ordered = selects(self.instruction, place) == IDENTITY;
            let element = typed.store(format, values).filter(|_| ordered).ok_or(FaultKind::Unsupported)?;
            self.around.store_element(place, format.bytes(), element)?;
        }
        Ok(())
    }

    /// Loads from two places in local memory.
    fn load_two(&mut self, count: u8, stride: u32) -> Result<(), FaultKind> {
        let lanes = self.wave.lanes_on_now();
        let offsets = [self.instruction.bits(0, 8) * stride, self.instruction.bits(8, 8) * stride];
        for lane in lanes {
            let base = self.wave.vector_lane(self.instruction.high_bits(0, 8) as usize, lane);
            let mut values = [0; 4];
            for (place, value) in values.iter_mut().enumerate().take(count as usize * 2) {
                let (pair, word) = (place / count as usize, (place % count as usize) as u32);
                *value = self.around.load(Target::Local(base.wrapping_add(offsets[pair] + word * 4)), 4)?;
            }
            for (place, &value) in values.iter().enumerate().take(count as usize * 2) {
                self.wave.set_vector_lane(self.registers.destination + place, lane, value);
            }
        }
        Ok(())
    }

    /// Stores to two places in local memory.
    fn store_two(&mut self, count: u8, stride: u32) -> Result<(), FaultKind> {
        let lanes = self.wave.lanes_on_now();
        let offsets = [self.instruction.bits(0, 8) * stride, self.instruction.bits(8, 8) * stride];
        for lane in lanes {
            let base = self.wave.vector_lane(self.instruction.high_bits(0, 8) as usize, lane);
            for (pair, register) in [self.registers.data, self.registers.second_data].into_iter().enumerate() {
                for word in 0..count as u32 {
                    let value = self.wave.vector_lane(register + word as usize, lane);
                    self.around.store(Target::Local(base.wrapping_add(offsets[pair] + word * 4)), 4, value)?;
                }
            }
        }
        Ok(())
    }

    /// Executes an atomic operation.
    fn run_atomic(&mut self, atomic: Atomic) -> Result<(), FaultKind> {
        let lanes = self.wave.lanes_on_now();
        let number = |wave: &Wave, register: usize, lane| {
            let high = if atomic.wide { wave.vector_lane(register + 1, lane) } else { 0 };
            wave.vector_lane(register, lane) as u64 | (high as u64) << 32
        };
        let (new, expected) = match atomic.compare {
            Comparison::None => (self.registers.data, None),
            Comparison::BehindData => (self.registers.data, Some(self.registers.data + 1 + atomic.wide as usize)),
            Comparison::FirstData => (self.registers.second_data, Some(self.registers.data)),
        };
        for lane in lanes {
            let target = self.wave.target(self.instruction, lane)?;
            let value = number(self.wave, new, lane);
            let expected = expected.map_or(0, |register| number(self.wave, register, lane));
            let old = self.around.update(target, atomic.wide, |old| (atomic.update)(old, value, expected))?;
            if atomic.returns {
                self.wave.set_vector_lane(self.registers.destination, lane, old as u32);
                if atomic.wide {
                    self.wave.set_vector_lane(self.registers.destination + 1, lane, (old >> 32) as u32);
                }
            }
        }
        Ok(())
    }
}

impl Wave {
    /// Executes a memory instruction.
    pub(crate) fn run_memory(
        &mut self,
        instruction: &Instruction,
        access: Access,
        around: &mut Surroundings<'_>,
    ) -> Result<(), FaultKind> {
        around.bounds.forgives = around.bounds.forgiven && instruction.format() == Format::Ds;
        let registers = MemoryRegisters::of(instruction);
        let is_plain_local = instruction.format() == Format::Ds && around.races.is_none() && !around.bounds.forgives;
        let mut lanes = LaneAccess { wave: self, instruction, registers, around };
        match access {
            Access::Nothing => {}
            Access::ScalarLoad { count } => return self.scalar_load(instruction, count, around),
            Access::Clock => {
                let register = Wave::destination(instruction, Field::Destination).unwrap_or(125);
                self.set_scalar64(register, self.executed);
            }
            Access::Load { count, part: WordPart::Word } if is_plain_local => return lanes.load_local_words(count),
            Access::Load { count, part } => return lanes.load_words(count, part),
            Access::Store { count, part } => return lanes.store_words(count, part),
            Access::LoadToLocal { part } => return lanes.load_to_local(part),
            Access::TypedLoadToLocal(typed) => return lanes.load_typed_to_local(typed),
            Access::TypedLoad(typed) => return lanes.load_typed(typed),
            Access::TypedStore(typed) => return lanes.store_typed(typed),
            Access::LoadTwo { count, stride } => return lanes.load_two(count, stride),
            Access::StoreTwo { count, stride } => return lanes.store_two(count, stride),
            Access::Atomic { update, wide, returns, compare } => {
                return lanes.run_atomic(Atomic { update, wide, returns, compare });
            }
            Access::Swizzle => self.swizzle(instruction, registers.destination),
            Access::Permute { backward } => self.permute_lanes(instruction, registers, backward),
        }
        Ok(())
    }

    /// The active lanes of this half.
    fn lanes_on_now(&self) -> impl Iterator<Item = usize> + use<> {
        let exec = self.exec();
        (0..LANES).filter(move |lane| exec >> lane & 1 == 1)
    }

    /// Permutes all lanes through the crossbar of local memory.
    fn permute_lanes(&mut self, instruction: &Instruction, registers: MemoryRegisters, backward: bool) {
        let exec = self.exec();
        let lanes = self.lanes_on_now();
        let addresses = self.vector(instruction.high_bits(0, 8) as u8);
        let values = self.vector(registers.data as u8);
        let mut results = [0; LANES];
        let offset = instruction.bits(0, 16);
        for lane in 0..LANES {
            let other = (addresses[lane].wrapping_add(offset) / 4) as usize % LANES;
            if backward {
                results[lane] = if exec >> other & 1 == 1 { values[other] } else { 0 };
            } else if exec >> lane & 1 == 1 {
                results[other] = values[lane];
            }
        }
        for lane in lanes {
            self.set_vector_lane(registers.destination, lane, results[lane]);
        }
    }

    /// Whether a multi-word access to local memory, by its own address or a flat one, is misaligned in some lane.
    pub(crate) fn is_misaligned(&self, instruction: &Instruction) -> bool {
        let Some((size, offset)) = wide_local_access(instruction) else { return false };
        let address = |lane| match instruction.format() {
            Format::Ds => Some(self.vector_lane(instruction.high_bits(0, 8) as usize, lane).wrapping_add(offset)),
            _ => match self.target(instruction, lane) {
                Ok(Target::Local(address)) => Some(address),
                _ => None,
            },
        };
        self.lanes_on_now().filter_map(address).any(|address| address % size != 0)
    }

    /// The address of a scalar load, and its distance from the base. The two lowest bits of each part count as zero.
    pub(crate) fn scalar_address(&self, instruction: &Instruction) -> (u64, u64) {
        let base = instruction.bits(0, 6) as u8 * 2;
        let offset = (((instruction.second_word() << 11) as i32) >> 11) as i64;
        let register = self.scalar(instruction.high_bits(25, 7) as u8) as u64;
        let buffer = instruction.definition.mnemonic.starts_with("s_buffer");
        let start = if buffer { self.scalar64(base) & 0xffff_ffff_ffff } else { self.scalar64(base) };
        let relative = (offset as u64 & !3).wrapping_add(register & !3);
        ((start & !3).wrapping_add(relative), relative)
    }

    /// The memory, and the address in it, at which a lane's access of this many bytes begins. `None` if it is outside a
    /// buffer's range, or a fault.
    pub(crate) fn place(&self, instruction: &Instruction, lane: usize, bytes: u32) -> Option<(Space, u64)> {
        let target = self.target(instruction, lane).ok()?;
        let space = match target {
            Target::Local(_) => Space::Local,
            target if target.is_private() => Space::Private,
            _ => Space::Global,
        };
        Some((space, target.global(bytes)?))
    }

    fn scalar_load(
        &mut self,
        instruction: &Instruction,
        count: u8,
        around: &mut Surroundings<'_>,
    ) -> Result<(), FaultKind> {
        let base = instruction.bits(0, 6) as u8 * 2;
        let buffer = instruction.definition.mnemonic.starts_with("s_buffer");
        let (address, relative) = self.scalar_address(instruction);
        let destination = Wave::destination(instruction, Field::Destination).unwrap_or(125);
        // Read once: the load may overwrite it.
        let limit = if buffer { self.buffer_resource(base).scalar_size() } else { u64::MAX };
        // AMD's documents call an offset below zero undefined. Compilers emit none for buffers.
        if buffer && (relative as i64) < 0 {
            return Err(FaultKind::Unsupported);
        }
        for word in 0..count {
            let inside = relative.wrapping_add(word as u64 * 4 + 4) <= limit;
            let value = if inside { around.global.load(address + word as u64 * 4, 4)? } else { 0 };
            if destination != 125 {
                self.set_scalar((destination + word) & 127, value);
            }
        }
        Ok(())
    }

    /// The target of a lane's access.
    fn target(&self, instruction: &Instruction, lane: usize) -> Result<Target, FaultKind> {
        let address = instruction.high_bits(0, 8) as usize;
        let low = self.vector_lane(address, lane);
        match instruction.format() {
            Format::Ds => Ok(Target::Local(low.wrapping_add(instruction.bits(0, 16)))),
            Format::Mubuf | Format::Mtbuf => self.buffer_place(instruction, lane).map(Target::Buffer),
            Format::Scratch => {
                let scalar = instruction.high_bits(16, 7) as u8;
                // One of the two is the offset.
                let base = if matches!(scalar, 0x7d | 0x7f) { low } else { self.scalar(scalar) };
                self.private_target(base.wrapping_add_signed(instruction.flat_offset()), lane)
            }
            _ => {
                let offset = instruction.flat_offset() as i64 as u64;
                let scalar = instruction.high_bits(16, 7) as u8;
                let pair = low as u64 | (self.vector_lane(address + 1, lane) as u64) << 32;
                let base = match (instruction.format(), scalar) {
                    (Format::Global, 0x7d | 0x7f) | (Format::Flat, _) => pair,
                    _ => self.scalar64(scalar).wrapping_add(low as u64),
                };
                let full = base.wrapping_add(offset);
                let [local, private] = self.apertures.map(|base| base >> 32);
                match instruction.format() {
                    Format::Flat if full >> 32 == local => Ok(Target::Local(full as u32)),
                    Format::Flat if full >> 32 == private => self.private_target(full as u32, lane),
                    _ => Ok(Target::Global(full)),
                }
            }
        }
    }

    /// A lane's own memory, in which the words of all lanes alternate.
    fn private_target(&self, offset: u32, lane: usize) -> Result<Target, FaultKind> {
        let (base, size) = self.scratch;
        if offset >= size {
            return Err(FaultKind::Private { offset, limit: size });
        }
        Ok(self.private_place(base, offset, lane))
    }

    fn private_place(&self, base: u64, offset: u32, lane: usize) -> Target {
        let lanes = if self.wave64 { 2 * LANES } else { LANES };
        Target::Private { base, offset, lane: self.number_of(lane) as u8, lanes: lanes as u8 }
    }

    /// The number in its wave of a lane of the half that is being executed.
    fn number_of(&self, lane: usize) -> usize {
        lane + self.half * LANES
    }

    /// The descriptor in four scalar registers.
    pub(crate) fn buffer_resource(&self, first: u8) -> BufferResource {
        BufferResource::new([0, 1, 2, 3].map(|word| self.scalar((first + word) & 127)))
    }

    /// The target of a lane's access to a buffer.
    fn buffer_place(&self, instruction: &Instruction, lane: usize) -> Result<BufferPlace, FaultKind> {
        let resource = self.buffer_resource((instruction.high_bits(16, 5) * 4) as u8);
        let (address, [has_offset, has_index]) =
            (instruction.high_bits(0, 8) as usize, [12, 13].map(|bit| instruction.bits(bit, 1) == 1));
        // The index comes before the offset.
        let index = if has_index { self.vector_lane(address, lane) as u64 } else { 0 };
        let offset = if has_offset { self.vector_lane(address + has_index as usize, lane) as u64 } else { 0 };
        let scalar_offset = match unhang_isa::OperandValue::from_field(instruction.high_bits(24, 8) as u16, 0) {
            Some(source) => self.uniform(source, crate::wave::Type::Bits32, false) as u32,
            None => return Err(FaultKind::Unsupported),
        };
        let lane = if resource.adds_lane { self.number_of(lane) as u64 } else { 0 };
        Ok(BufferPlace {
            resource,
            scalar_offset,
            index: index + lane,
            offset: offset + instruction.bits(0, 12) as u64,
        })
    }

    /// The format of an element: the instruction's, or the descriptor's.
    pub(crate) fn data_format(&self, instruction: &Instruction, typed: Typed) -> Option<DataFormat> {
        let resource = self.buffer_resource((instruction.high_bits(16, 5) * 4) as u8);
        // Nothing of an unbound buffer is in range, so that any format does.
        DataFormat::new(if resource.is_unbound() { 1 } else { typed.format.unwrap_or(resource.format) })
    }

    /// The position and format of a lane's element.
    fn typed_place(
        &self,
        instruction: &Instruction,
        typed: Typed,
        lane: usize,
    ) -> Result<(BufferPlace, DataFormat), FaultKind> {
        let format = self.data_format(instruction, typed).ok_or(FaultKind::Unsupported)?;
        Ok((self.buffer_place(instruction, lane)?, format))
    }

    fn swizzle(&mut self, instruction: &Instruction, destination: usize) {
        let exec = self.exec();
        let values = self.vector(instruction.high_bits(0, 8) as u8);
        let control = instruction.bits(0, 16) as usize;
        for lane in (0..LANES).filter(|lane| exec >> lane & 1 == 1) {
            let from = swizzle_source(control, lane);
            let value = if exec >> from & 1 == 1 { values[from] } else { 0 };
            self.set_vector_lane(destination, lane, value);
        }
    }
}

/// The lane whose value `ds_swizzle_b32` gives to a lane.
fn swizzle_source(control: usize, lane: usize) -> usize {
    let (mask, count) = (control & 31, control >> 5 & 31);
    match control {
        // As a fast Fourier transform reorders its data.
        0xe000.. => ((lane as u8).reverse_bits() >> 3) as usize >> mask.count_ones() | lane & mask,
        // A rotation, to the right with bit 10; lanes keep the bits of the mask.
        0xc000.. if control >> 10 & 1 == 1 => lane & mask | ((lane + LANES - count) % LANES) & !mask,
        0xc000.. => lane & mask | ((lane + count) % LANES) & !mask,
        0x8000.. => lane & !3 | control >> ((lane & 3) * 2) & 3,
        _ => ((lane & mask) | count) ^ (control >> 10 & 31),
    }
}

/// The components that a typed access selects: from the descriptor, if the format is from there too.
fn selects(instruction: &Instruction, place: BufferPlace) -> [u8; 4] {
    if instruction.format() == Format::Mtbuf { IDENTITY } else { place.resource.selects }
}

/// The new contents of a register whose lane loads a part of a word.
pub(crate) fn widen(value: u32, part: WordPart, old: u32) -> u32 {
    match part {
        WordPart::Word => value,
        WordPart::Byte { signed: true } => value as i8 as i32 as u32,
        WordPart::Half { signed: true } => value as i16 as i32 as u32,
        WordPart::Byte { signed: false } | WordPart::Half { signed: false } => value,
        WordPart::InHalf { byte, signed, high } => {
            let value = if byte && signed { value as i8 as i16 as u16 as u32 } else { value & 0xffff };
            if high { old & 0xffff | value << 16 } else { old & 0xffff_0000 | value }
        }
    }
}
