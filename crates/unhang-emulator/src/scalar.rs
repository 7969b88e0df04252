//! Scalar instructions and program flow.

use unhang_isa::{Field, Format, Instruction};

use crate::float::FloatMode;
use crate::wave::{EXEC, M0, Wave};

/// A value from up to two sources; may set SCC.
type Arithmetic = fn(&mut Wave, u64, u64) -> u64;

/// What a scalar instruction does.
#[derive(Clone, Copy)]
pub(crate) enum ScalarOperation {
    Arithmetic(Arithmetic),
    /// A condition that goes to SCC.
    Compare(fn(u64, u64) -> bool),
    /// A 16-bit constant and the old value of the register.
    Constant(fn(&mut Wave, u32, i32) -> u32),
    ConstantCompare(fn(u32, i32) -> bool),
    /// The destination receives the old EXEC, and EXEC becomes a function of both.
    SaveExec(fn(u64, u64) -> u64),
    /// EXEC and the destination receive the same value.
    WriteExec(fn(u64, u64) -> u64),
    /// One bit of the destination.
    Bit {
        set: bool,
        wide: bool,
    },
    /// Accesses another register through M0, as the source or as the destination.
    MoveRelative {
        destination: bool,
    },
    /// Moves only if SCC is set.
    ConditionalMove,
    Branch(fn(&Wave) -> bool),
    Barrier,
    End,
    /// Enters the trap handler, which the emulator does not have: the kernel has given up.
    Trap,
    /// Waits and hints, which have no effect here because nothing is ever late.
    Nothing,
    GetProgramCounter,
    SetProgramCounter,
    SwapProgramCounter,
    Call,
    /// Hardware registers: the mode, and the address of scratch memory.
    GetRegister,
    SetRegister,
    SetRegisterConstant,
    /// Four bits of the mode register at a position: rounding, or denormals.
    SetMode(u8),
}

/// Where execution continues.
pub(crate) enum Next {
    Continue,
    /// By the instruction's own offset.
    #[cfg_attr(not(test), allow(dead_code, reason = "branches are resolved when code is decoded; tests look at it"))]
    Relative(i64),
    Absolute(u64),
    Barrier,
    End,
    /// Into the trap handler, with the number of the trap.
    Trap(u8),
}

fn set<T: PartialEq + Default>(wave: &mut Wave, value: T) -> T {
    wave.scc = value != T::default();
    value
}

impl ScalarOperation {
    /// What an instruction does.
    pub(crate) fn of(instruction: &Instruction) -> Option<ScalarOperation> {
        let name = instruction.definition.mnemonic;
        if instruction.format() == Format::Sopp {
            return ScalarOperation::flow(instruction);
        }
        ScalarOperation::two_sources(name)
            .or_else(|| ScalarOperation::one_source(name))
            .or_else(|| ScalarOperation::comparison(name))
            .or_else(|| ScalarOperation::with_constant(name))
            .or_else(|| ScalarOperation::on_exec(name))
            .or_else(|| ScalarOperation::special(instruction))
    }

    /// Arithmetic and bits of one source.
    #[rustfmt::skip]
    fn one_source(name: &str) -> Option<ScalarOperation> {
        use ScalarOperation::Arithmetic as A;
        Some(match name {
            "s_mov_b32" | "s_mov_b64" => A(|_, a, _| a),
            "s_cmov_b32" | "s_cmov_b64" => ScalarOperation::ConditionalMove,
            "s_not_b32" => A(|w, a, _| set(w, !a as u32) as u64),
            "s_not_b64" => A(|w, a, _| set(w, !a)),
            "s_brev_b32" => A(|_, a, _| (a as u32).reverse_bits() as u64),
            "s_brev_b64" => A(|_, a, _| a.reverse_bits()),
            "s_bcnt0_i32_b32" => A(|w, a, _| set(w, (a as u32).count_zeros()) as u64),
            "s_bcnt1_i32_b32" => A(|w, a, _| set(w, (a as u32).count_ones()) as u64),
            "s_bcnt1_i32_b64" => A(|w, a, _| set(w, a.count_ones()) as u64),
            "s_ff0_i32_b32" => A(|_, a, _| if a as u32 == u32::MAX { u32::MAX as u64 } else { (a as u32).trailing_ones() as u64 }),
            "s_ff1_i32_b32" => A(|_, a, _| if a as u32 == 0 { u32::MAX as u64 } else { (a as u32).trailing_zeros() as u64 }),
            "s_ff1_i32_b64" => A(|_, a, _| if a == 0 { u32::MAX as u64 } else { a.trailing_zeros() as u64 }),
            "s_flbit_i32_b32" => A(|_, a, _| if a as u32 == 0 { u32::MAX as u64 } else { (a as u32).leading_zeros() as u64 }),
            "s_flbit_i32_b64" => A(|_, a, _| if a == 0 { u32::MAX as u64 } else { a.leading_zeros() as u64 }),
            "s_flbit_i32" => A(|_, a, _| {
                let a = a as u32;
                if a == 0 || a == u32::MAX { u32::MAX as u64 } else { (a ^ (a as i32 >> 31) as u32).leading_zeros() as u64 }
            }),
            "s_sext_i32_i8" => A(|_, a, _| a as i8 as i32 as u32 as u64),
            "s_sext_i32_i16" => A(|_, a, _| a as i16 as i32 as u32 as u64),
            "s_bitset0_b32" => ScalarOperation::Bit { set: false, wide: false },
            "s_bitset1_b32" => ScalarOperation::Bit { set: true, wide: false },
            "s_bitset0_b64" => ScalarOperation::Bit { set: false, wide: true },
            "s_bitset1_b64" => ScalarOperation::Bit { set: true, wide: true },
            "s_bitreplicate_b64_b32" => A(|_, a, _| (0..32).fold(0, |sum, bit| sum | ((a >> bit & 1) * (3 << (bit * 2))))),
            "s_bcnt0_i32_b64" => A(|w, a, _| set(w, a.count_zeros()) as u64),
            "s_ff0_i32_b64" => A(|_, a, _| if a == u64::MAX { u32::MAX as u64 } else { a.trailing_ones() as u64 }),
            "s_flbit_i32_i64" => A(|_, a, _| {
                if a == 0 || a == u64::MAX { u32::MAX as u64 } else { (a ^ (a as i64 >> 63) as u64).leading_zeros() as u64 }
            }),
            "s_abs_i32" => A(|w, a, _| set(w, (a as i32).unsigned_abs()) as u64),
            "s_quadmask_b32" => A(|w, a, _| set(w, quads(a as u32 as u64)) as u32 as u64),
            "s_quadmask_b64" => A(|w, a, _| set(w, quads(a))),
            "s_wqm_b64" => A(|w, a, _| {
                let quads = a | a >> 1 | a >> 2 | a >> 3;
                set(w, (quads & 0x1111_1111_1111_1111) * 15)
            }),
            "s_wqm_b32" => A(|w, a, _| {
                let quads = a as u32 | a as u32 >> 1 | a as u32 >> 2 | a as u32 >> 3;
                set(w, (quads & 0x1111_1111) * 15) as u64
            }),
            _ => return None,
        })
    }

    /// Arithmetic and bits of two sources.
    #[rustfmt::skip]
    fn two_sources(name: &str) -> Option<ScalarOperation> {
        use ScalarOperation::Arithmetic as A;
        Some(match name {
            "s_absdiff_i32" => A(|w, a, b| set(w, (a as i32).wrapping_sub(b as i32).unsigned_abs()) as u64),
            "s_nand_b64" => A(|w, a, b| set(w, !(a & b))),
            "s_nor_b64" => A(|w, a, b| set(w, !(a | b))),
            "s_xnor_b64" => A(|w, a, b| set(w, !(a ^ b))),
            "s_orn2_b64" => A(|w, a, b| set(w, a | !b)),
            "s_bfe_i64" => A(|w, a, b| {
                let (offset, width) = (b & 63, (b >> 16 & 127).min(64) as u32);
                if width == 0 { return set(w, 0u64) }
                set(w, (((a as i64 >> offset) << (64 - width)) >> (64 - width)) as u64)
            }),
            "s_add_u32" => A(|w, a, b| { let sum = a as u32 as u64 + b as u32 as u64; w.scc = sum >> 32 != 0; sum as u32 as u64 }),
            "s_sub_u32" => A(|w, a, b| { w.scc = (a as u32) < b as u32; (a as u32).wrapping_sub(b as u32) as u64 }),
            "s_addc_u32" => A(|w, a, b| { let sum = a as u32 as u64 + b as u32 as u64 + w.scc as u64; w.scc = sum >> 32 != 0; sum as u32 as u64 }),
            "s_subb_u32" => A(|w, a, b| {
                let wide = (a as u32 as u64).wrapping_sub(b as u32 as u64).wrapping_sub(w.scc as u64);
                w.scc = wide >> 63 != 0;
                wide as u32 as u64
            }),
            "s_add_i32" => A(|w, a, b| { let (sum, over) = (a as i32).overflowing_add(b as i32); w.scc = over; sum as u32 as u64 }),
            "s_sub_i32" => A(|w, a, b| { let (sum, over) = (a as i32).overflowing_sub(b as i32); w.scc = over; sum as u32 as u64 }),
            "s_min_i32" => A(|w, a, b| { w.scc = (a as i32) < b as i32; (a as i32).min(b as i32) as u32 as u64 }),
            "s_min_u32" => A(|w, a, b| { w.scc = (a as u32) < b as u32; (a as u32).min(b as u32) as u64 }),
            "s_max_i32" => A(|w, a, b| { w.scc = (a as i32) > b as i32; (a as i32).max(b as i32) as u32 as u64 }),
            "s_max_u32" => A(|w, a, b| { w.scc = (a as u32) > b as u32; (a as u32).max(b as u32) as u64 }),
            "s_cselect_b32" | "s_cselect_b64" => A(|w, a, b| if w.scc { a } else { b }),
            "s_and_b32" => A(|w, a, b| set(w, (a & b) as u32) as u64),
            "s_and_b64" => A(|w, a, b| set(w, a & b)),
            "s_or_b32" => A(|w, a, b| set(w, (a | b) as u32) as u64),
            "s_or_b64" => A(|w, a, b| set(w, a | b)),
            "s_xor_b32" => A(|w, a, b| set(w, (a ^ b) as u32) as u64),
            "s_xor_b64" => A(|w, a, b| set(w, a ^ b)),
            "s_andn2_b32" => A(|w, a, b| set(w, (a & !b) as u32) as u64),
            "s_andn2_b64" => A(|w, a, b| set(w, a & !b)),
            "s_orn2_b32" => A(|w, a, b| set(w, (a | !b) as u32) as u64),
            "s_nand_b32" => A(|w, a, b| set(w, !(a & b) as u32) as u64),
            "s_nor_b32" => A(|w, a, b| set(w, !(a | b) as u32) as u64),
            "s_xnor_b32" => A(|w, a, b| set(w, !(a ^ b) as u32) as u64),
            "s_lshl_b32" => A(|w, a, b| set(w, (a as u32) << (b & 31)) as u64),
            "s_lshl_b64" => A(|w, a, b| set(w, a << (b & 63))),
            "s_lshr_b32" => A(|w, a, b| set(w, a as u32 >> (b & 31)) as u64),
            "s_lshr_b64" => A(|w, a, b| set(w, a >> (b & 63))),
            "s_ashr_i32" => A(|w, a, b| set(w, (a as i32 >> (b & 31)) as u32) as u64),
            "s_ashr_i64" => A(|w, a, b| set(w, (a as i64 >> (b & 63)) as u64)),
            "s_bfm_b32" => A(|_, a, b| (((1u64 << (a & 31)) - 1) << (b & 31)) as u32 as u64),
            "s_bfm_b64" => A(|_, a, b| ((1u64 << (a & 63)) - 1) << (b & 63)),
            "s_mul_i32" => A(|_, a, b| (a as u32).wrapping_mul(b as u32) as u64),
            "s_mul_hi_u32" => A(|_, a, b| (a as u32 as u64 * b as u32 as u64) >> 32),
            "s_mul_hi_i32" => A(|_, a, b| ((a as i32 as i64 * b as i32 as i64) >> 32) as u32 as u64),
            "s_bfe_u32" => A(|w, a, b| {
                let (offset, width) = (b & 31, b >> 16 & 127);
                let mask = if width >= 32 { u32::MAX } else { (1u32 << width) - 1 };
                set(w, a as u32 >> offset & mask) as u64
            }),
            "s_bfe_i32" => A(|w, a, b| {
                let (offset, width) = (b & 31, (b >> 16 & 127).min(32) as u32);
                if width == 0 { return set(w, 0u32) as u64 }
                set(w, (((a as i32 >> offset) << (32 - width)) >> (32 - width)) as u32) as u64
            }),
            "s_bfe_u64" => A(|w, a, b| {
                let (offset, width) = (b & 63, b >> 16 & 127);
                let mask = if width >= 64 { u64::MAX } else { (1u64 << width) - 1 };
                set(w, a >> offset & mask)
            }),
            "s_lshl1_add_u32" => A(|w, a, b| shifted_add(w, a, b, 1)),
            "s_lshl2_add_u32" => A(|w, a, b| shifted_add(w, a, b, 2)),
            "s_lshl3_add_u32" => A(|w, a, b| shifted_add(w, a, b, 3)),
            "s_lshl4_add_u32" => A(|w, a, b| shifted_add(w, a, b, 4)),
            "s_pack_ll_b32_b16" => A(|_, a, b| a & 0xffff | (b & 0xffff) << 16),
            "s_pack_lh_b32_b16" => A(|_, a, b| a & 0xffff | b & 0xffff_0000),
            "s_pack_hh_b32_b16" => A(|_, a, b| a >> 16 & 0xffff | b & 0xffff_0000),
            _ => return None,
        })
    }

    /// Comparisons.
    #[rustfmt::skip]
    fn comparison(name: &str) -> Option<ScalarOperation> {
        use ScalarOperation::Compare as C;
        Some(match name {
            "s_cmp_eq_i32" | "s_cmp_eq_u32" => C(|a, b| a as u32 == b as u32),
            "s_cmp_lg_i32" | "s_cmp_lg_u32" => C(|a, b| a as u32 != b as u32),
            "s_cmp_gt_i32" => C(|a, b| a as i32 > b as i32),
            "s_cmp_ge_i32" => C(|a, b| a as i32 >= b as i32),
            "s_cmp_lt_i32" => C(|a, b| (a as i32) < b as i32),
            "s_cmp_le_i32" => C(|a, b| a as i32 <= b as i32),
            "s_cmp_gt_u32" => C(|a, b| a as u32 > b as u32),
            "s_cmp_ge_u32" => C(|a, b| a as u32 >= b as u32),
            "s_cmp_lt_u32" => C(|a, b| (a as u32) < b as u32),
            "s_cmp_le_u32" => C(|a, b| a as u32 <= b as u32),
            "s_cmp_eq_u64" => C(|a, b| a == b),
            "s_cmp_lg_u64" => C(|a, b| a != b),
            "s_bitcmp0_b32" => C(|a, b| a >> (b & 31) & 1 == 0),
            "s_bitcmp1_b32" => C(|a, b| a >> (b & 31) & 1 == 1),
            "s_bitcmp0_b64" => C(|a, b| a >> (b & 63) & 1 == 0),
            "s_bitcmp1_b64" => C(|a, b| a >> (b & 63) & 1 == 1),
            _ => return None,
        })
    }

    /// Instructions with a register and a 16-bit constant.
    #[rustfmt::skip]
    fn with_constant(name: &str) -> Option<ScalarOperation> {
        use ScalarOperation::{Constant as K, ConstantCompare as KC};
        Some(match name {
            "s_movk_i32" => K(|_, _, k| k as u32),
            "s_cmovk_i32" => K(|w, old, k| if w.scc { k as u32 } else { old }),
            "s_addk_i32" => K(|w, old, k| { let (sum, over) = (old as i32).overflowing_add(k); w.scc = over; sum as u32 }),
            "s_mulk_i32" => K(|_, old, k| (old as i32).wrapping_mul(k) as u32),
            "s_cmpk_eq_i32" => KC(|a, k| a as i32 == k),
            "s_cmpk_lg_i32" => KC(|a, k| a as i32 != k),
            "s_cmpk_gt_i32" => KC(|a, k| a as i32 > k),
            "s_cmpk_ge_i32" => KC(|a, k| a as i32 >= k),
            "s_cmpk_lt_i32" => KC(|a, k| (a as i32) < k),
            "s_cmpk_le_i32" => KC(|a, k| a as i32 <= k),
            "s_cmpk_eq_u32" => KC(|a, k| a == k as u16 as u32),
            "s_cmpk_lg_u32" => KC(|a, k| a != k as u16 as u32),
            "s_cmpk_gt_u32" => KC(|a, k| a > k as u16 as u32),
            "s_cmpk_ge_u32" => KC(|a, k| a >= k as u16 as u32),
            "s_cmpk_lt_u32" => KC(|a, k| a < k as u16 as u32),
            "s_cmpk_le_u32" => KC(|a, k| a <= k as u16 as u32),
            _ => return None,
        })
    }

    /// Masks of lanes that change EXEC.
    #[rustfmt::skip]
    fn on_exec(name: &str) -> Option<ScalarOperation> {
        Some(match name {
            "s_and_saveexec_b32" | "s_and_saveexec_b64" => ScalarOperation::SaveExec(|exec, a| a & exec),
            "s_or_saveexec_b32" | "s_or_saveexec_b64" => ScalarOperation::SaveExec(|exec, a| a | exec),
            "s_xor_saveexec_b32" | "s_xor_saveexec_b64" => ScalarOperation::SaveExec(|exec, a| a ^ exec),
            "s_andn2_saveexec_b32" | "s_andn2_saveexec_b64" => ScalarOperation::SaveExec(|exec, a| a & !exec),
            "s_orn2_saveexec_b32" | "s_orn2_saveexec_b64" => ScalarOperation::SaveExec(|exec, a| a | !exec),
            "s_nand_saveexec_b32" | "s_nand_saveexec_b64" => ScalarOperation::SaveExec(|exec, a| !(a & exec)),
            "s_nor_saveexec_b32" | "s_nor_saveexec_b64" => ScalarOperation::SaveExec(|exec, a| !(a | exec)),
            "s_xnor_saveexec_b32" | "s_xnor_saveexec_b64" => ScalarOperation::SaveExec(|exec, a| !(a ^ exec)),
            "s_andn1_saveexec_b32" | "s_andn1_saveexec_b64" => ScalarOperation::SaveExec(|exec, a| !a & exec),
            "s_orn1_saveexec_b32" | "s_orn1_saveexec_b64" => ScalarOperation::SaveExec(|exec, a| !a | exec),
            "s_andn1_wrexec_b32" | "s_andn1_wrexec_b64" => ScalarOperation::WriteExec(|exec, a| !a & exec),
            "s_andn2_wrexec_b32" | "s_andn2_wrexec_b64" => ScalarOperation::WriteExec(|exec, a| a & !exec),
            _ => return None,
        })
    }

    /// Hardware registers, the program counter, moves through M0, and instructions without effect here.
    #[rustfmt::skip]
    fn special(instruction: &Instruction) -> Option<ScalarOperation> {
        Some(match instruction.definition.mnemonic {
            "s_waitcnt_vscnt" | "s_waitcnt_vmcnt" | "s_waitcnt_expcnt" | "s_waitcnt_lgkmcnt" | "s_version" => ScalarOperation::Nothing,
            "s_setreg_b32" if is_writable_register(instruction) => ScalarOperation::SetRegister,
            "s_setreg_imm32_b32" if is_writable_register(instruction) => ScalarOperation::SetRegisterConstant,
            "s_getreg_b32" if is_readable_register(instruction) => ScalarOperation::GetRegister,
            "s_movrels_b32" | "s_movrels_b64" => ScalarOperation::MoveRelative { destination: false },
            "s_movreld_b32" | "s_movreld_b64" => ScalarOperation::MoveRelative { destination: true },
            "s_getpc_b64" => ScalarOperation::GetProgramCounter,
            "s_setpc_b64" => ScalarOperation::SetProgramCounter,
            "s_swappc_b64" => ScalarOperation::SwapProgramCounter,
            "s_call_b64" => ScalarOperation::Call,
            _ => return None,
        })
    }

    fn flow(instruction: &Instruction) -> Option<ScalarOperation> {
        Some(match instruction.definition.mnemonic {
            "s_endpgm" => ScalarOperation::End,
            "s_branch" => ScalarOperation::Branch(|_| true),
            "s_cbranch_scc0" => ScalarOperation::Branch(|wave| !wave.scc),
            "s_cbranch_scc1" => ScalarOperation::Branch(|wave| wave.scc),
            "s_cbranch_vccz" => ScalarOperation::Branch(|wave| wave.vcc64() == 0),
            "s_cbranch_vccnz" => ScalarOperation::Branch(|wave| wave.vcc64() != 0),
            "s_cbranch_execz" => ScalarOperation::Branch(|wave| wave.exec64() == 0),
            "s_cbranch_execnz" => ScalarOperation::Branch(|wave| wave.exec64() != 0),
            "s_barrier" => ScalarOperation::Barrier,
            "s_trap" => ScalarOperation::Trap,
            "s_denorm_mode" => ScalarOperation::SetMode(4),
            "s_round_mode" => ScalarOperation::SetMode(0),
            "s_nop" | "s_waitcnt" | "s_clause" | "s_inst_prefetch" | "s_sleep" | "s_setprio" | "s_waitcnt_depctr"
            | "s_icache_inv" | "s_wait_idle" | "s_ttracedata" | "s_ttracedata_imm" | "s_wakeup" | "s_incperflevel"
            | "s_decperflevel" => ScalarOperation::Nothing,
            // An interrupt for the host. Its data is in memory, where whoever plays the host finds it.
            "s_sendmsg" if instruction.immediate() & 15 == INTERRUPT => ScalarOperation::Nothing,
            _ => return None,
        })
    }
}

/// The message that interrupts the host.
const INTERRUPT: u16 = 1;

/// The known hardware registers: the mode, the apertures, the two halves of the base of scratch memory, and the cycles.
/// gfx10.3 counts these in 20 bits, and clang 15 reads them for `__builtin_readcyclecounter`.
const MODE: u16 = 1;
const SH_MEM_BASES: u16 = 15;
const FLAT_SCRATCH: u16 = 20;
const SHADER_CYCLES: u16 = 29;

fn is_readable_register(instruction: &Instruction) -> bool {
    matches!(instruction.immediate() & 63, SH_MEM_BASES | SHADER_CYCLES) || is_writable_register(instruction)
}

fn is_writable_register(instruction: &Instruction) -> bool {
    matches!(instruction.immediate() & 63, MODE | FLAT_SCRATCH | 21)
}

/// Which hardware register, and which bits of it: number, offset, mask before shifting.
fn hardware_field(instruction: &Instruction) -> (u16, u32, u32) {
    let field = instruction.immediate() as u32;
    (instruction.immediate() & 63, field >> 6 & 31, u32::MAX >> (31 - (field >> 11 & 31)))
}

/// One bit for every four: whether any of them is set.
fn quads(mask: u64) -> u64 {
    (0..16).fold(0, |bits, quad| bits | ((mask >> (quad * 4) & 15 != 0) as u64) << quad)
}

fn shifted_add(wave: &mut Wave, a: u64, b: u64, shift: u32) -> u64 {
    let wide = ((a as u32 as u64) << shift) + b as u32 as u64;
    wave.scc = wide >> 32 != 0;
    wide as u32 as u64
}

impl Wave {
    /// Executes a scalar instruction at `address`.
    pub(crate) fn run_scalar(&mut self, instruction: &Instruction, operation: ScalarOperation, address: u64) -> Next {
        let source = |wave: &Wave, field| {
            instruction.definition.operand(field).map_or(0, |slot| wave.scalar_source(instruction, slot))
        };
        let (a, b) = (source(self, Field::Source0), source(self, Field::Source1));
        let constant = instruction.immediate() as i16 as i32;
        let next_address = address + instruction.size() as u64;
        match operation {
            ScalarOperation::Arithmetic(run) => {
                let value = run(self, a, b);
                self.put_scalar(instruction, value);
            }
            ScalarOperation::ConditionalMove => {
                if self.scc {
                    self.put_scalar(instruction, a);
                }
            }
            ScalarOperation::Bit { set, wide } => {
                let register = Wave::destination(instruction, Field::Destination).unwrap_or(125);
                let old = if wide { self.scalar64(register) } else { self.scalar(register) as u64 };
                let bit = 1 << (a & if wide { 63 } else { 31 });
                self.put_scalar(instruction, if set { old | bit } else { old & !bit });
            }
            ScalarOperation::MoveRelative { destination } => self.move_relative(instruction, destination, a),
            ScalarOperation::Compare(holds) => self.scc = holds(a, b),
            ScalarOperation::Constant(run) => {
                let register = Wave::destination(instruction, Field::Destination).unwrap_or(125);
                let value = run(self, self.scalar(register), constant);
                self.set_scalar(register, value);
            }
            ScalarOperation::ConstantCompare(holds) => self.scc = holds(a as u32, constant),
            ScalarOperation::SaveExec(run) => {
                let old = self.scalar64(EXEC as u8);
                let new = run(old, a);
                self.put_scalar(instruction, old);
                self.put_exec(instruction, new);
            }
            ScalarOperation::WriteExec(run) => {
                let new = run(self.scalar64(EXEC as u8), a);
                self.put_scalar(instruction, new);
                self.put_exec(instruction, new);
            }
            ScalarOperation::Branch(taken) => {
                if taken(self) {
                    return Next::Relative(instruction.branch_distance().unwrap_or(0));
                }
            }
            ScalarOperation::Barrier => return Next::Barrier,
            ScalarOperation::End => return Next::End,
            ScalarOperation::Trap => return Next::Trap(instruction.immediate() as u8),
            ScalarOperation::Nothing => {}
            ScalarOperation::GetProgramCounter => self.put_scalar(instruction, next_address),
            ScalarOperation::SetProgramCounter => return Next::Absolute(a),
            ScalarOperation::SwapProgramCounter => {
                self.put_scalar(instruction, next_address);
                return Next::Absolute(a);
            }
            ScalarOperation::Call => {
                self.put_scalar(instruction, next_address);
                return Next::Relative(instruction.branch_distance().unwrap_or(0));
            }
            ScalarOperation::SetMode(place) => {
                let bits = (instruction.immediate() as u32 & 15) << place;
                self.set_mode(self.mode_bits & !(15 << place) | bits);
            }
            ScalarOperation::GetRegister => self.get_hardware(instruction),
            ScalarOperation::SetRegister => {
                self.set_hardware(instruction, a as u32);
            }
            ScalarOperation::SetRegisterConstant => self.set_hardware(instruction, instruction.literal()),
        }
        Next::Continue
    }

    /// Accesses another register through M0, as the source, or as the destination, which receives `value`.
    fn move_relative(&mut self, instruction: &Instruction, destination: bool, value: u64) {
        let wide = instruction.definition.operand(Field::Destination).is_some_and(|it| it.width.registers(false) == 2);
        let target = Wave::destination(instruction, Field::Destination).unwrap_or(125);
        let index = self.scalars[M0] as u8;
        let source = instruction.bits(0, 8) as u8;
        let (from, to) =
            if destination { (source, target.wrapping_add(index)) } else { (source.wrapping_add(index), target) };
        match (destination, wide) {
            (true, false) => self.set_scalar(to, value as u32),
            (true, true) => self.set_scalar64(to, value),
            (false, false) => self.set_scalar(to, self.scalar(from)),
            (false, true) => self.set_scalar64(to, self.scalar64(from)),
        }
    }

    /// A part of a hardware register.
    fn get_hardware(&mut self, instruction: &Instruction) {
        let (number, offset, mask) = hardware_field(instruction);
        let value = match number {
            MODE => self.mode_bits,
            // The upper 16 bits of private memory's addresses, and above them those of LDS.
            SH_MEM_BASES => (self.apertures[1] >> 48) as u32 | ((self.apertures[0] >> 48) as u32) << 16,
            // One per instruction, like the other clock.
            SHADER_CYCLES => self.executed as u32 & 0xf_ffff,
            _ => self.flat_scratch[(number - FLAT_SCRATCH) as usize],
        };
        self.put_scalar(instruction, (value >> offset & mask) as u64);
    }

    fn set_mode(&mut self, bits: u32) {
        self.mode_bits = bits;
        self.mode = FloatMode::from_bits(bits, self.mode.perturbation);
        self.note_mode();
    }

    fn set_hardware(&mut self, instruction: &Instruction, value: u32) {
        let (number, offset, mask) = hardware_field(instruction);
        let replace = |old: u32| old & !(mask << offset) | (value & mask) << offset;
        match number {
            MODE => self.set_mode(replace(self.mode_bits)),
            _ => {
                let place = (number - FLAT_SCRATCH) as usize;
                self.flat_scratch[place] = replace(self.flat_scratch[place]);
            }
        }
    }

    /// Writes EXEC with the instruction's width. SCC says whether a lane is active.
    fn put_exec(&mut self, instruction: &Instruction, value: u64) {
        let wide = instruction.definition.operand(Field::Source0).is_some_and(|slot| slot.width.registers(false) == 2);
        let value = if wide { value } else { value as u32 as u64 };
        self.scalars[EXEC] = value as u32;
        if wide {
            self.scalars[EXEC + 1] = (value >> 32) as u32;
        }
        self.scc = value != 0;
    }

    fn put_scalar(&mut self, instruction: &Instruction, value: u64) {
        let Some(slot) = instruction.definition.operand(Field::Destination) else { return };
        let Some(register) = Wave::destination(instruction, Field::Destination) else { return };
        match slot.width.registers(false) {
            2 => self.set_scalar64(register, value),
            _ => self.set_scalar(register, value as u32),
        }
    }
}
