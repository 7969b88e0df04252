//! `offset-3f-bug`: a branch by exactly 0x3f words.

use crate::audit::handler::{Detection, Handler, Repair};
use crate::audit::rule::Severity;
use crate::{Format, Instruction};

pub(super) static HANDLER: Handler = Handler {
    name: "offset-3f",
    severity: Severity::High,
    explanation: "A branch by exactly 0x3f words is mishandled by this chip; compilers for it insert an `s_nop` so that \
                  the distance is another one.",
    detection: Detection::Alone(breaks),
    // Only the final layout shows which branches have the offset.
    repair: Repair::Elsewhere,
};

fn breaks(instruction: &Instruction) -> bool {
    instruction.format() == Format::Sopp && instruction.is_branch() && instruction.immediate() == 0x3f
}

#[cfg(test)]
mod tests {
    use crate::audit::Rule;
    use crate::audit::rules::testing::check;

    #[test]
    fn one_offset_is_mishandled() {
        let branch = |words: u16| {
            let mut code = vec![0xbf85_0000 | words as u32];
            code.resize(1 + words as usize, 0xbf80_0000);
            code
        };
        check(&branch(0x3f), &[Rule::BranchOffset3f]);
        check(&branch(0x3e), &[]);
        check(&branch(0x40), &[]);
    }
}
