//! A buffer descriptor that puts every access out of range: not a hardware bug, but code made for another generation.
//!
//! Before gfx10, a descriptor without a stride checked offsets in bytes. On gfx10, OOB_SELECT decides, and 0 means
//! elements: without a stride none of them is in range. Triton 3.6 to 3.8 writes such descriptors for gfx1010
//! (unslothai/unsloth issue 11614): kernels load zeros and store nothing. No compiler's work-around is missing, so this
//! is not LLVM's rule.

use crate::audit::handler::{Detection, Handler, Repair};
use crate::audit::rule::{Context, Severity};
use crate::buffer_descriptors::out_of_range;
use crate::{Chip, Program};

pub(super) static HANDLER: Handler = Handler {
    name: "buffer-out-of-range",
    severity: Severity::Certain,
    explanation: "The descriptor of this buffer has neither a stride nor OOB_SELECT, so that on this chip every access to it is \
                  out of range: loads return zeros, stores and atomics do nothing. A compiler for it sets OOB_SELECT to 3. \
                  With Triton, set AMDGCN_USE_BUFFER_OPS=0 and clear its cache.",
    detection: Detection::Program(check),
    // Repair changes the descriptor's constant in place.
    repair: Repair::Elsewhere,
};

fn check(program: &Program, _: Chip, _: Context, find: &mut dyn FnMut(u32)) {
    out_of_range(program).iter().for_each(|it| find(it.index));
}

#[cfg(test)]
mod tests {
    use crate::audit::Rule;
    use crate::audit::rules::testing::check;

    #[test]
    fn a_stride_or_a_range_check_is_enough() {
        // s_and_b32 s5, s1, 0xffff; s_mov_b32 s7, …; buffer_load_dword v2, v0, s[4:7], 0 offen
        let code = |last: u32| [0x8705_ff01, 0xffff, 0xbe87_03ff, last, 0xe030_1000, 0x8001_0200];
        check(&code(0x0002_7000), &[Rule::BufferRange]);
        check(&code(0x1002_7000), &[]);
        check(&code(0x3102_7000), &[]);
    }
}
