//! An image instruction with more than five scattered address registers. LLVM emits at most five for gfx101x and
//! thirteen for gfx103x (`getNSAMaxSize`, review D103348). Mesa's `README-ISA.md` calls longer ones unstable before
//! GFX10.3.

use super::nsa_to_vmem::address_words;
use crate::audit::handler::{Detection, Handler, Repair};
use crate::audit::rule::Severity;

pub(super) static HANDLER: Handler = Handler {
    name: "nsa-max-size",
    severity: Severity::High,
    explanation: "An image instruction has more than five scattered address registers, which this chip does not read \
                  reliably. A compiler for it moves them into a row.",
    // The first register is in the instruction, four more in each following word.
    detection: Detection::Alone(|instruction| address_words(instruction) > 1),
    repair: Repair::Nothing,
};

#[cfg(test)]
mod tests {
    use crate::audit::Rule;
    use crate::audit::rules::testing::check;

    #[test]
    fn five_registers_are_allowed_and_six_are_not() {
        // image_sample_c_d with five and image_sample_d with six registers: [v0, v1, v2, v3, v5] and [v0, v1, v2, v3, v5, v9]
        check(&[0xf088_0f0a, 0x0082_0000, 0x0503_0201], &[]);
        check(&[0xf088_0f0c, 0x0082_0000, 0x0503_0201, 0x0000_0009], &[Rule::ImageAddresses]);
    }
}
