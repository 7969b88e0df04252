//! Instructions as text, letter for letter as LLVM 19's disassembler prints them.

use std::fmt;

use crate::registers::{OperandValue, print_scalar};
use crate::table::{Field, Format, OperandKind, Slot, Width};
use crate::{Instruction, Modifier};

/// An instruction ready to be printed.
pub struct Text<'a> {
    instruction: &'a Instruction,
    wave64: bool,
}

impl Instruction {
    /// The instruction as assembly, as in a wave of 64 lanes or of 32.
    pub fn text(&self, wave64: bool) -> Text<'_> {
        Text { instruction: self, wave64 }
    }
}

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let instruction = self.instruction;
        match instruction.modifier {
            Modifier::None => f.write_str(instruction.definition.mnemonic)?,
            Modifier::Sdwa => write!(f, "{}_sdwa", instruction.definition.base_name())?,
            Modifier::Dpp16 | Modifier::Dpp8 => write!(f, "{}_dpp", instruction.definition.base_name())?,
        }
        match instruction.format() {
            Format::Sop2 | Format::Sop1 | Format::Sopc => self.plain_operands(f),
            Format::Sopk => self.sopk(f),
            Format::Sopp => self.sopp(f),
            Format::Smem => self.smem(f),
            Format::Vop1 | Format::Vop2 | Format::Vopc => self.short_vector(f),
            Format::Vop3 => self.long_vector(f),
            Format::Vop3p => self.packed(f),
            Format::Ds => self.ds(f),
            Format::Flat | Format::Scratch | Format::Global => self.flat(f),
            Format::Mubuf | Format::Mtbuf => self.buffer(f),
            Format::Mimg | Format::Vintrp | Format::Exp => {
                // Graphics: told by name and words, not operand by operand.
                for word in instruction.words() {
                    write!(f, " {word:#010x}")?;
                }
                Ok(())
            }
        }
    }
}

/// Writes operands with the comma between them.
struct List {
    first: bool,
}

impl List {
    fn new() -> List {
        List { first: true }
    }

    fn next(&mut self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if std::mem::take(&mut self.first) { " " } else { ", " })
    }
}

impl Text<'_> {
    fn operand(&self, f: &mut fmt::Formatter<'_>, slot: Slot) -> fmt::Result {
        self.instruction.operand(slot).print(f, slot.width.registers(self.wave64))
    }

    fn plain_operands(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut list = List::new();
        for &slot in self.instruction.definition.operands() {
            list.next(f)?;
            self.operand(f, slot)?;
        }
        Ok(())
    }

    fn sopk(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let immediate = self.instruction.immediate();
        match self.instruction.definition.opcode {
            0x01 => print_immediate(f, immediate),
            0x13 => {
                write!(f, " {}, ", HardwareRegister(immediate))?;
                self.operand(f, self.instruction.definition.operands()[0])
            }
            0x15 => write!(f, " {}, {:#x}", HardwareRegister(immediate), self.instruction.literal()),
            0x12 => {
                self.plain_operands(f)?;
                write!(f, ", {}", HardwareRegister(immediate))
            }
            0x16 | 0x1b | 0x1c => {
                self.plain_operands(f)?;
                write!(f, ", {immediate}")
            }
            _ => {
                self.plain_operands(f)?;
                write!(f, ", {immediate:#x}")
            }
        }
    }

    fn sopp(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let immediate = self.instruction.immediate();
        match self.instruction.definition.opcode {
            0x01 if immediate == 0 => Ok(()),
            0x03 | 0x0a | 0x13 | 0x16 | 0x1b | 0x1e | 0x1f | 0x22 => Ok(()),
            0x0c => print_waitcnt(f, immediate),
            0x10 | 0x11 => print_message(f, immediate),
            0x02 | 0x04..=0x09 | 0x17..=0x1a => write!(f, " {immediate}"),
            0x20 | 0x21 | 0x24 | 0x28 => write!(f, " {immediate:#x}"),
            0x23 => print_dependency_counters(f, immediate),
            _ => print_immediate(f, immediate),
        }
    }

    fn smem(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let instruction = self.instruction;
        self.plain_operands(f)?;
        if instruction.definition.operand(Field::Source0).is_none() {
            return Ok(());
        }
        // 21 bits with a sign.
        let offset = ((instruction.second_word() << 11) as i32) >> 11;
        let register = instruction.high_bits(25, 7) as u8;
        f.write_str(", ")?;
        if offset != 0 && register == crate::registers::number::NULL {
            print_signed_hex(f, offset)?;
        } else {
            print_scalar(f, register, 1)?;
            if offset != 0 {
                f.write_str(" offset:")?;
                print_signed_hex(f, offset)?;
            }
        }
        flag(f, instruction.bits(16, 1), " glc")?;
        flag(f, instruction.bits(14, 1), " dlc")
    }

    fn short_vector(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let instruction = self.instruction;
        let mut list = List::new();
        for (position, &slot) in instruction.definition.operands().iter().enumerate() {
            list.next(f)?;
            let extra = |shift: u32| instruction.high_bits(shift, 1) == 1;
            match (instruction.modifier, slot.field) {
                (Modifier::Sdwa, Field::Vcc) if instruction.format() == Format::Vopc && position == 0 => {
                    let register = if extra(15) { instruction.high_bits(8, 7) as u8 } else { 106 };
                    print_scalar(f, register, slot.width.registers(self.wave64))?;
                }
                (Modifier::Sdwa, Field::Source0 | Field::Source1) => {
                    let base = if slot.field == Field::Source0 { 19 } else { 27 };
                    self.modified(f, slot, extra(base + 1), extra(base + 2), extra(base))?;
                }
                (Modifier::Dpp16, Field::Source0 | Field::Source1) => {
                    let base = if slot.field == Field::Source0 { 20 } else { 22 };
                    self.modified(f, slot, extra(base), extra(base + 1), false)?;
                }
                _ => self.operand(f, slot)?,
            }
        }
        match instruction.modifier {
            Modifier::None => Ok(()),
            Modifier::Sdwa => self.sdwa(f),
            Modifier::Dpp16 => self.dpp16(f),
            Modifier::Dpp8 => {
                f.write_str(" dpp8:[")?;
                for lane in 0..8 {
                    let comma = if lane == 0 { "" } else { "," };
                    write!(f, "{comma}{}", instruction.high_bits(8 + lane * 3, 3))?;
                }
                f.write_str("]")?;
                flag(f, (instruction.bits(0, 9) == 234) as u32, " fi:1")
            }
        }
    }

    fn modified(&self, f: &mut fmt::Formatter<'_>, slot: Slot, neg: bool, abs: bool, sext: bool) -> fmt::Result {
        // A minus before a number would read as another number.
        let in_words = neg
            && !abs
            && matches!(
                self.instruction.operand(slot),
                OperandValue::Integer(_) | OperandValue::Float(_) | OperandValue::Literal(_)
            );
        if in_words {
            f.write_str("neg(")?;
        } else if neg {
            f.write_str("-")?;
        }
        if abs {
            f.write_str("|")?;
        }
        if sext {
            f.write_str("sext(")?;
        }
        self.operand(f, slot)?;
        if sext {
            f.write_str(")")?;
        }
        if abs {
            f.write_str("|")?;
        }
        if in_words {
            f.write_str(")")?;
        }
        Ok(())
    }

    fn sdwa(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SELECT: [&str; 8] = ["BYTE_0", "BYTE_1", "BYTE_2", "BYTE_3", "WORD_0", "WORD_1", "DWORD", "?"];
        const UNUSED: [&str; 4] = ["UNUSED_PAD", "UNUSED_SEXT", "UNUSED_PRESERVE", "?"];
        let instruction = self.instruction;
        let select = |low| SELECT[instruction.high_bits(low, 3) as usize];
        if instruction.format() != Format::Vopc {
            flag(f, instruction.high_bits(13, 1), " clamp")?;
            print_output_modifier(f, instruction.high_bits(14, 2))?;
            write!(f, " dst_sel:{} dst_unused:{}", select(8), UNUSED[instruction.high_bits(11, 2) as usize])?;
        }
        write!(f, " src0_sel:{}", select(16))?;
        if instruction.format() != Format::Vop1 {
            write!(f, " src1_sel:{}", select(24))?;
        }
        Ok(())
    }

    fn dpp16(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let instruction = self.instruction;
        let control = instruction.high_bits(8, 9);
        match control {
            0..=0xff => write!(
                f,
                " quad_perm:[{},{},{},{}]",
                control & 3,
                (control >> 2) & 3,
                (control >> 4) & 3,
                (control >> 6) & 3
            )?,
            0x101..=0x10f => write!(f, " row_shl:{}", control & 15)?,
            0x111..=0x11f => write!(f, " row_shr:{}", control & 15)?,
            0x121..=0x12f => write!(f, " row_ror:{}", control & 15)?,
            0x140 => f.write_str(" row_mirror")?,
            0x141 => f.write_str(" row_half_mirror")?,
            0x150..=0x15f => write!(f, " row_share:{}", control & 15)?,
            0x160..=0x16f => write!(f, " row_xmask:{}", control & 15)?,
            _ => write!(f, " dpp_ctrl:{control:#x}")?,
        }
        write!(f, " row_mask:{:#x} bank_mask:{:#x}", instruction.high_bits(28, 4), instruction.high_bits(24, 4))?;
        flag(f, instruction.high_bits(19, 1), " bound_ctrl:1")?;
        flag(f, instruction.high_bits(18, 1), " fi:1")
    }

    fn long_vector(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let instruction = self.instruction;
        let definition = instruction.definition;
        let has_scalar_destination = definition.operand(Field::ScalarDestination).is_some();
        let mut list = List::new();
        let mut sources = 0;
        for &slot in definition.operands() {
            list.next(f)?;
            let Some(source) = source_number(slot.field) else {
                self.operand(f, slot)?;
                continue;
            };
            sources += 1;
            let neg = instruction.high_bits(29 + source, 1) == 1;
            let abs = !has_scalar_destination && instruction.bits(8 + source, 1) == 1;
            self.modified(f, slot, neg, abs, false)?;
        }
        let select = instruction.bits(11, 4);
        if !has_scalar_destination && select != 0 {
            if matches!(definition.opcode, 0x377 | 0x378) {
                write!(f, " op_sel:[{},{}]", select & 1, (select >> 1) & 1)?;
            } else {
                f.write_str(" op_sel:[")?;
                for source in 0..sources {
                    write!(f, "{},", (select >> source) & 1)?;
                }
                write!(f, "{}]", select >> 3)?;
            }
        }
        flag(f, instruction.bits(15, 1), " clamp")?;
        print_output_modifier(f, instruction.high_bits(27, 2))
    }

    fn packed(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let instruction = self.instruction;
        let definition = instruction.definition;
        // The three `fma_mix` read whole registers or halves of them as floats and have no packed result.
        let mixed = matches!(definition.opcode, 0x20..=0x22);
        let mut list = List::new();
        let mut sources = 0;
        for &slot in definition.operands() {
            list.next(f)?;
            match source_number(slot.field) {
                Some(source) => {
                    sources += 1;
                    let neg = mixed && instruction.high_bits(29 + source, 1) == 1;
                    let abs = mixed && instruction.bits(8 + source, 1) == 1;
                    self.modified(f, slot, neg, abs, false)?;
                }
                None => self.operand(f, slot)?,
            }
        }
        let used = (1u32 << sources) - 1;
        let select_high = (instruction.high_bits(27, 2) | instruction.bits(14, 1) << 2) & used;
        let defaults = if mixed { 0 } else { used };
        print_bits(f, " op_sel:[", instruction.bits(11, 3) & used, 0, sources)?;
        print_bits(f, " op_sel_hi:[", select_high, defaults, sources)?;
        if !mixed {
            print_bits(f, " neg_lo:[", instruction.high_bits(29, 3) & used, 0, sources)?;
            print_bits(f, " neg_hi:[", instruction.bits(8, 3) & used, 0, sources)?;
        }
        flag(f, instruction.bits(15, 1), " clamp")
    }

    fn ds(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let instruction = self.instruction;
        self.plain_operands(f)?;
        let offset = instruction.bits(0, 16);
        if instruction.definition.two_offsets {
            for (name, value) in [("offset0", offset & 0xff), ("offset1", offset >> 8)] {
                if value != 0 {
                    write!(f, " {name}:{value}")?;
                }
            }
        } else if offset != 0 {
            if instruction.definition.opcode == 0x35 {
                print_swizzle(f, offset)?;
            } else {
                write!(f, " offset:{offset}")?;
            }
        }
        flag(f, instruction.bits(17, 1), " gds")
    }

    fn flat(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let instruction = self.instruction;
        let format = instruction.format();
        let scalar = instruction.high_bits(16, 7) as u8;
        let no_scalar = scalar == 0x7d || scalar == 0x7f;
        let glc = instruction.bits(16, 1);
        let mut list = List::new();
        let atomic = instruction.is_atomic();
        for &slot in instruction.definition.operands() {
            if atomic && glc == 0 && slot.field == Field::Destination {
                continue;
            }
            list.next(f)?;
            if slot.field != Field::Source0 {
                self.operand(f, slot)?;
            } else if format == Format::Global && !no_scalar {
                self.operand(f, Slot { width: Width::Registers(1), ..slot })?;
            } else if format == Format::Scratch && !no_scalar {
                f.write_str("off")?;
            } else {
                self.operand(f, slot)?;
            }
        }
        if format != Format::Flat {
            list.next(f)?;
            match (no_scalar, format) {
                (true, _) => f.write_str("off")?,
                (false, Format::Global) => print_scalar(f, scalar, 2)?,
                _ => print_scalar(f, scalar, 1)?,
            }
        }
        match instruction.flat_offset() {
            0 => {}
            offset => write!(f, " offset:{offset}")?,
        }
        flag(f, glc, " glc")?;
        flag(f, instruction.bits(17, 1), " slc")?;
        flag(f, instruction.bits(12, 1), " dlc")?;
        flag(f, instruction.bits(13, 1), " lds")
    }

    fn buffer(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let instruction = self.instruction;
        let Some(data) = instruction.definition.operand(Field::Source1) else { return Ok(()) };
        let to_lds = instruction.format() == Format::Mubuf && instruction.bits(16, 1) == 1;
        let partial = instruction.high_bits(23, 1);
        let mut list = List::new();
        if !to_lds {
            list.next(f)?;
            let width = data.width.registers(self.wave64) + partial as u8;
            self.operand(f, Slot { width: Width::Registers(width), ..data })?;
        }
        let (index, offset_enable) = (instruction.bits(13, 1), instruction.bits(12, 1));
        list.next(f)?;
        match index + offset_enable {
            0 => f.write_str("off")?,
            width => {
                let slot =
                    Slot { field: Field::Source0, kind: OperandKind::Vector, width: Width::Registers(width as u8) };
                self.operand(f, slot)?;
            }
        }
        list.next(f)?;
        print_scalar(f, (instruction.high_bits(16, 5) * 4) as u8, 4)?;
        list.next(f)?;
        match OperandValue::from_field(instruction.high_bits(24, 8) as u16, 0) {
            Some(source) => source.print(f, 1)?,
            None => f.write_str("?")?,
        }
        if instruction.format() == Format::Mtbuf {
            write!(f, " format:{}", instruction.bits(19, 7))?;
        }
        flag(f, index, " idxen")?;
        flag(f, offset_enable, " offen")?;
        match instruction.bits(0, 12) {
            0 => {}
            offset => write!(f, " offset:{offset}")?,
        }
        flag(f, instruction.bits(14, 1), " glc")?;
        flag(f, instruction.high_bits(22, 1), " slc")?;
        flag(f, instruction.bits(15, 1), " dlc")?;
        flag(f, partial, " tfe")?;
        flag(f, to_lds as u32, " lds")
    }
}

/// Sources 0 to 2 of the long encodings.
fn source_number(field: Field) -> Option<u32> {
    match field {
        Field::Source0 => Some(0),
        Field::Source1 => Some(1),
        Field::Source2 => Some(2),
        _ => None,
    }
}

fn flag(f: &mut fmt::Formatter<'_>, bit: u32, name: &str) -> fmt::Result {
    if bit != 0 { f.write_str(name) } else { Ok(()) }
}

fn print_immediate(f: &mut fmt::Formatter<'_>, value: u16) -> fmt::Result {
    if value <= 64 { write!(f, " {value}") } else { write!(f, " {value:#x}") }
}

fn print_signed_hex(f: &mut fmt::Formatter<'_>, value: i32) -> fmt::Result {
    if value < 0 { write!(f, "-{:#x}", -(value as i64)) } else { write!(f, "{value:#x}") }
}

fn print_output_modifier(f: &mut fmt::Formatter<'_>, code: u32) -> fmt::Result {
    f.write_str(["", " mul:2", " mul:4", " div:2"][(code & 3) as usize])
}

fn print_bits(f: &mut fmt::Formatter<'_>, name: &str, bits: u32, default: u32, count: u32) -> fmt::Result {
    if bits == default {
        return Ok(());
    }
    f.write_str(name)?;
    for bit in 0..count {
        let comma = if bit == 0 { "" } else { "," };
        write!(f, "{comma}{}", (bits >> bit) & 1)?;
    }
    f.write_str("]")
}

fn print_waitcnt(f: &mut fmt::Formatter<'_>, immediate: u16) -> fmt::Result {
    let vector = (immediate & 0xf) | (immediate >> 14) << 4;
    let export = (immediate >> 4) & 7;
    let scalar = (immediate >> 8) & 0x3f;
    let all = (vector, export, scalar) == (0x3f, 7, 0x3f);
    for (name, value, none) in [("vmcnt", vector, 0x3f), ("expcnt", export, 7), ("lgkmcnt", scalar, 0x3f)] {
        if all || value != none {
            write!(f, " {name}({value})")?;
        }
    }
    Ok(())
}

fn print_dependency_counters(f: &mut fmt::Formatter<'_>, immediate: u16) -> fmt::Result {
    let fields = [
        ("depctr_sa_sdst", 0, 1),
        ("depctr_va_vdst", 12, 4),
        ("depctr_va_sdst", 9, 3),
        ("depctr_va_ssrc", 8, 1),
        ("depctr_va_vcc", 1, 1),
        ("depctr_vm_vsrc", 2, 3),
    ];
    let all = immediate == 0xffff;
    for (name, low, count) in fields {
        let most = (1u16 << count) - 1;
        let value = (immediate >> low) & most;
        if all || value != most {
            write!(f, " {name}({value})")?;
        }
    }
    Ok(())
}

fn print_message(f: &mut fmt::Formatter<'_>, immediate: u16) -> fmt::Result {
    let name = match immediate {
        1 => "MSG_INTERRUPT",
        4 => "MSG_SAVEWAVE",
        5 => "MSG_STALL_WAVE_GEN",
        6 => "MSG_HALT_WAVES",
        7 => "MSG_ORDERED_PS_DONE",
        9 => "MSG_GS_ALLOC_REQ",
        10 => "MSG_GET_DOORBELL",
        11 => "MSG_GET_DDID",
        _ => {
            let (message, operation, stream) = (immediate & 15, (immediate >> 4) & 7, (immediate >> 8) & 3);
            return write!(f, " sendmsg({message}, {operation}, {stream})");
        }
    };
    write!(f, " sendmsg({name})")
}

fn print_swizzle(f: &mut fmt::Formatter<'_>, immediate: u32) -> fmt::Result {
    if immediate & 0xff00 == 0x8000 {
        let lane = |index: u32| (immediate >> (index * 2)) & 3;
        return write!(f, " offset:swizzle(QUAD_PERM,{},{},{},{})", lane(0), lane(1), lane(2), lane(3));
    }
    if immediate & 0x8000 != 0 {
        return write!(f, " offset:{immediate}");
    }
    let (and, or, xor) = (immediate & 31, (immediate >> 5) & 31, (immediate >> 10) & 31);
    let group = 32 - and;
    if and == 31 && or == 0 && xor.count_ones() == 1 {
        write!(f, " offset:swizzle(SWAP,{xor})")
    } else if and == 31 && or == 0 && xor > 0 && (xor + 1).is_power_of_two() {
        write!(f, " offset:swizzle(REVERSE,{})", xor + 1)
    } else if group > 1 && group.is_power_of_two() && or < group && xor == 0 {
        write!(f, " offset:swizzle(BROADCAST,{group},{or})")
    } else {
        f.write_str(" offset:swizzle(BITMASK_PERM,\"")?;
        for bit in (0..5).rev() {
            let of = |value: u32| (((value & and) | or) ^ xor) >> bit & 1;
            f.write_str(match (of(0), of(31)) {
                (0, 0) => "0",
                (1, 1) => "1",
                (0, _) => "p",
                _ => "i",
            })?;
        }
        f.write_str("\")")
    }
}

/// The operand of `s_getreg` and `s_setreg`.
struct HardwareRegister(u16);

impl fmt::Display for HardwareRegister {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (number, offset, size) = (self.0 & 63, (self.0 >> 6) & 31, (self.0 >> 11) + 1);
        f.write_str("hwreg(")?;
        match number {
            1 => f.write_str("HW_REG_MODE")?,
            2 => f.write_str("HW_REG_STATUS")?,
            3 => f.write_str("HW_REG_TRAPSTS")?,
            5 => f.write_str("HW_REG_GPR_ALLOC")?,
            6 => f.write_str("HW_REG_LDS_ALLOC")?,
            7 => f.write_str("HW_REG_IB_STS")?,
            15 => f.write_str("HW_REG_SH_MEM_BASES")?,
            16 => f.write_str("HW_REG_TBA_LO")?,
            17 => f.write_str("HW_REG_TBA_HI")?,
            18 => f.write_str("HW_REG_TMA_LO")?,
            19 => f.write_str("HW_REG_TMA_HI")?,
            20 => f.write_str("HW_REG_FLAT_SCR_LO")?,
            21 => f.write_str("HW_REG_FLAT_SCR_HI")?,
            23 => f.write_str("HW_REG_HW_ID1")?,
            24 => f.write_str("HW_REG_HW_ID2")?,
            25 => f.write_str("HW_REG_POPS_PACKER")?,
            29 => f.write_str("HW_REG_SHADER_CYCLES")?,
            _ => write!(f, "{number}")?,
        }
        if (offset, size) != (0, 32) {
            write!(f, ", {offset}, {size}")?;
        }
        f.write_str(")")
    }
}
