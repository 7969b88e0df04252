//! `inst-fwd-prefetch-bug`: "S_INST_PREFETCH instruction causes shader to hang".

use crate::Instruction;
use crate::audit::handler::{Detection, Handler, Repair};
use crate::audit::rule::Severity;
use crate::opcode::S_INST_PREFETCH;

pub(super) static HANDLER: Handler = Handler {
    name: "inst-fwd-prefetch",
    severity: Severity::Certain,
    explanation: "s_inst_prefetch hangs the shader on this chip; compilers for it never emit the instruction.",
    detection: Detection::Alone(breaks),
    // Repair turns it into an s_nop.
    repair: Repair::Elsewhere,
};

fn breaks(instruction: &Instruction) -> bool {
    instruction.is(S_INST_PREFETCH)
}

#[cfg(test)]
mod tests {
    use crate::audit::Rule;
    use crate::audit::rules::testing::check;

    #[test]
    fn prefetches_are_never_safe() {
        // s_inst_prefetch 1; s_nop 0
        check(&[0xbfa0_0001, 0xbf80_0000], &[Rule::InstructionPrefetch]);
    }
}
