//! `flat-segment-offset-bug`: the hardware ignores the offset of a flat access if the address is global.

use crate::audit::handler::{Detection, Handler, Repair};
use crate::audit::rule::Severity;
use crate::{Format, Instruction};

pub(super) static HANDLER: Handler = Handler {
    name: "flat-segment-offset",
    severity: Severity::Possible,
    explanation: "This flat access has an offset, which this chip ignores when the address is in global memory.",
    detection: Detection::Alone(breaks),
    // Repair adds the offset to the address beforehand.
    repair: Repair::Elsewhere,
};

fn breaks(instruction: &Instruction) -> bool {
    instruction.format() == Format::Flat && instruction.flat_offset() != 0
}

#[cfg(test)]
mod tests {
    use crate::audit::Rule;
    use crate::audit::rules::testing::check;

    #[test]
    fn an_offset_of_nought_is_none() {
        // flat_load_dword v4, v[6:7] with and without offset:8
        check(&[0xdc30_0008, 0x047d_0006], &[Rule::FlatOffset]);
        check(&[0xdc30_0000, 0x047d_0006], &[]);
    }
}
