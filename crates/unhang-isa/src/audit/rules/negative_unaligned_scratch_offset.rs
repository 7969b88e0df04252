//! `negative-unaligned-scratch-offset-bug`.

use crate::audit::handler::{Detection, Handler, Repair};
use crate::audit::rule::Severity;
use crate::{Format, Instruction};

pub(super) static HANDLER: Handler = Handler {
    name: "negative-unaligned-scratch-offset",
    severity: Severity::High,
    explanation: "This chip gets scratch accesses wrong whose offset is negative and no multiple of four; compilers for \
                  it add the offset to the address.",
    detection: Detection::Alone(breaks),
    repair: Repair::Nothing,
};

fn breaks(instruction: &Instruction) -> bool {
    instruction.format() == Format::Scratch && instruction.flat_offset() < 0 && instruction.flat_offset() % 4 != 0
}

#[cfg(test)]
mod tests {
    use crate::audit::Rule;
    use crate::audit::rules::testing::check;

    #[test]
    fn negative_multiples_of_four_are_right() {
        // scratch_load_dword v4, off, s2 with offsets -3, -4 and 3
        for (offset, expected) in [(0xffd, &[Rule::ScratchOffset][..]), (0xffc, &[]), (3, &[])] {
            check(&[0xdc30_4000 | offset, 0x0402_0000], expected);
        }
    }
}
