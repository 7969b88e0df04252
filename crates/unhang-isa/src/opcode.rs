//! Opcodes by name.
//!
//! Each constant is looked up in the instruction table when this crate is compiled. So a number stands in one place
//! only and a name that the table does not hold does not compile.

use crate::table::{Format, opcode_of};

/// An instruction of the instruction set: its encoding, and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Opcode {
    /// The encoding.
    pub format: Format,
    /// The number within the encoding.
    pub number: u16,
}

impl Opcode {
    /// The first word of this instruction with a 16-bit constant; only for SOPP.
    pub(crate) const fn with_immediate(self, immediate: u16) -> u32 {
        assert!(matches!(self.format, Format::Sopp), "only SOPP is a number and a constant");
        0xbf80_0000 | (self.number as u32) << 16 | immediate as u32
    }
}

macro_rules! opcodes {
    ($($format:ident: $($name:ident)+;)+) => {
        $($(
            #[doc = concat!("`", stringify!($name), "`")]
            pub const $name: Opcode =
                Opcode { format: Format::$format, number: opcode_of(Format::$format, stringify!($name)) };
        )+)+
    };
}

opcodes! {
    Sop2: S_ADD_U32 S_SUB_U32 S_ADD_I32 S_ADDC_U32 S_SUBB_U32 S_AND_B32 S_OR_B32;
    Sop1: S_MOV_B32 S_MOV_B64 S_CMOV_B32 S_GETPC_B64 S_SETPC_B64 S_SWAPPC_B64 S_RFE_B64 S_ABS_I32 S_AND_SAVEEXEC_B32;
    Sopc: S_CMP_GE_I32;
    Sopk: S_MOVK_I32 S_CMOVK_I32 S_VERSION S_CALL_B64 S_WAITCNT_VSCNT S_WAITCNT_VMCNT S_WAITCNT_EXPCNT S_WAITCNT_LGKMCNT S_SETREG_IMM32_B32
        S_SUBVECTOR_LOOP_BEGIN S_SUBVECTOR_LOOP_END;
    Sopp: S_NOP S_TRAP S_ENDPGM S_BRANCH S_CBRANCH_SCC0 S_CBRANCH_SCC1 S_CBRANCH_VCCZ S_CBRANCH_VCCNZ S_CBRANCH_EXECZ
        S_CBRANCH_EXECNZ S_WAITCNT S_CBRANCH_CDBGSYS S_CBRANCH_CDBGUSER S_CBRANCH_CDBGSYS_OR_USER
        S_CBRANCH_CDBGSYS_AND_USER S_ENDPGM_SAVED S_ENDPGM_ORDERED_PS_DONE S_CODE_END S_INST_PREFETCH S_CLAUSE
        S_WAITCNT_DEPCTR;
    Vop1: V_NOP V_MOV_B32 V_NOT_B32 V_SWAP_B32 V_SWAPREL_B32 V_MOVRELD_B32 V_MOVRELS_B32 V_MOVRELSD_B32 V_MOVRELSD_2_B32;
    Vop2: V_DOT2C_F32_F16 V_DOT4C_I32_I8 V_MUL_I32_I24 V_MUL_U32_U24 V_XNOR_B32 V_ADD_NC_U32 V_SUBREV_NC_U32 V_SUBREV_CO_CI_U32
        V_LSHRREV_B32 V_ASHRREV_I32 V_LSHLREV_B32;
    Vop3p: V_DOT2_F32_F16 V_DOT2_I32_I16 V_DOT2_U32_U16 V_DOT4_I32_I8 V_DOT4_U32_U8 V_DOT8_I32_I4 V_DOT8_U32_U4 V_FMA_MIX_F32;
    Ds: DS_WRITE_B64 DS_READ_B64 DS_WRITE2_B64 DS_READ2_B64 DS_WRITE2ST64_B64 DS_READ2ST64_B64 DS_WRITE_B96 DS_READ_B96 DS_WRITE_B128 DS_READ_B128;
    Flat: FLAT_LOAD_DWORDX2 FLAT_LOAD_DWORDX3 FLAT_LOAD_DWORDX4 FLAT_STORE_DWORDX2 FLAT_STORE_DWORDX3 FLAT_STORE_DWORDX4;
}

/// Long forms, whose short form has the same name.
pub mod long {
    use super::{Format, Opcode, opcode_of};

    opcodes! {
        Vop3: V_NOP V_ADD_NC_U32 V_ADD_NC_I32 V_SUB_NC_I32 V_BFE_I32 V_BFE_U32 V_BFI_B32 V_MAD_I32_I16 V_MAD_U32_U16 V_MAD_I64_I32 V_MOVRELD_B32 V_MOVRELS_B32 V_MOVRELSD_B32 V_MOVRELSD_2_B32 V_PERMLANE16_B32 V_PERMLANEX16_B32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_assembler() {
        // llvm-mc -mcpu=gfx1010: s_waitcnt_depctr is bf a3, s_getpc_b64 is be 80 1f 00.
        assert_eq!(S_WAITCNT_DEPCTR.with_immediate(0xfffe), 0xbfa3_fffe);
        assert_eq!(S_GETPC_B64, Opcode { format: Format::Sop1, number: 0x1f });
        assert_eq!(long::V_PERMLANE16_B32.number, 0x377);
    }
}
