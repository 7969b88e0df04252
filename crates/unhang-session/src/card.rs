//! Which card a verdict is about, and the key that the verdict is stored under.

use unhang_gpu::GpuEngine;
use unhang_gpu::driver::hip_pci_address;
use unhang_machine::Machine;

/// A card, as far as canaries tell one from another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Card {
    /// Which of several cards it is; empty if it is the only one.
    pub(crate) place: String,
    /// Whether a rehearsal plays it with tensors in the host's memory.
    pub(crate) rehearsed: bool,
}

impl Card {
    /// The card with that number in the runtime; a negative number is the card that a rehearsal plays.
    pub fn new(machine: &Machine, device: i32) -> Card {
        Card::at(machine, device, || hip_pci_address(device).unwrap_or_else(|_| device.to_string()))
    }

    /// A card with that address.
    pub(crate) fn at(machine: &Machine, device: i32, address: impl FnOnce() -> String) -> Card {
        let is_one_of_several = device >= 0 && machine.gpus.len() > 1;
        let place = if is_one_of_several { format!("@{}", address()) } else { String::new() };
        Card { place, rehearsed: device < 0 }
    }

    /// Whether a rehearsal plays it.
    pub fn is_rehearsed(&self) -> bool {
        self.rehearsed
    }

    /// The key that a canary's verdict is stored under. A rehearsal has its own keys, because its folder may describe
    /// the machine it runs on. With several cards, each has its own verdict.
    pub fn name(&self, canary: &str) -> String {
        if self.rehearsed { format!("{canary} (rehearsed)") } else { format!("{canary}{}", self.place) }
    }

    /// The key for a kernel family's verdict. Other sources, another compiler or another chip make other kernels.
    pub fn name_of_family(&self, engine: &GpuEngine, family: &str) -> String {
        self.name(&format!("jit:{family}:{}", engine.identity()))
    }
}

#[cfg(test)]
mod tests {
    use unhang_machine::{Environment, System};

    use super::*;

    #[test]
    fn each_of_several_cards_has_canaries_of_its_own_and_so_has_a_rehearsal() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../unhang-machine/fixtures/rx5600xt-rocm5.7");
        let mut machine = Machine::inspect(&System::new(folder.as_ref(), Environment::default()));
        let name =
            |machine: &Machine, device: i32| Card::at(machine, device, || format!("0000:0{device}:00.0")).name("aten");
        assert_eq!(machine.gpus.len(), 1);
        assert_eq!(name(&machine, 0), "aten");
        machine.gpus.push(machine.gpus[0].clone());
        assert_eq!(
            [0, 1, -1].map(|device| name(&machine, device)),
            ["aten@0000:00:00.0", "aten@0000:01:00.0", "aten (rehearsed)"]
        );
    }
}
