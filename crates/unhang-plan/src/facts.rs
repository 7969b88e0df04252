//! From facts to a situation: the only place that decides what canaries and a machine's state allow.
//!
//! Every face gathers [`Facts`] in its own way: the command line reads files, the torch face asks torch, and MIOpen's
//! boundary has neither. All of them get their [`Situation`] here.

use unhang_engine::{EngineName, Verdict};

use crate::situation::{Availability, Device, MiopenFamilies, Situation};

/// The facts about the tensors' device, before any judgement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// Where the tensors live.
    pub device: Device,
    /// Whether that device is an RDNA1 card, or a rehearsal of one.
    pub affected: bool,
    /// Whether the runtime takes the card for another chip.
    pub spoofed: bool,
    /// Whether code for another chip is repaired as it loads.
    pub shielded: bool,
    /// The MIOpen solver families that are on, if some are off.
    pub miopen_families: Option<MiopenFamilies>,
    /// Engines that are missing here, and why.
    pub absent: Vec<(EngineName, String)>,
    /// The canaries that are evidence for an engine on this device. Those of our own kernels count on every AMD chip,
    /// because nobody has seen these kernels run on most of them. The others count on affected cards only.
    pub canaries: Vec<CanaryFact>,
}

/// One canary, whether or not it has run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CanaryFact {
    /// The engine that it is about.
    pub engine: EngineName,
    /// The part of the engine, such as a kernel family; empty for the whole engine.
    pub part: String,
    /// Its verdict and detail from a child process; `None` if it has not run.
    pub ended: Option<(Verdict, String)>,
}

impl Facts {
    /// Tensors in the host's memory.
    pub fn on_cpu() -> Facts {
        Facts::on(Device::Cpu, false)
    }

    /// Tensors on a GPU.
    pub fn on_accelerator(affected: bool) -> Facts {
        Facts::on(Device::Accelerator, affected)
    }

    fn on(device: Device, affected: bool) -> Facts {
        Facts {
            device,
            affected,
            spoofed: false,
            shielded: false,
            miopen_families: None,
            absent: Vec::new(),
            canaries: Vec::new(),
        }
    }

    /// The parts of an engine whose canaries passed.
    pub fn passed(&self, engine: EngineName) -> impl Iterator<Item = &str> {
        let works = |canary: &&CanaryFact| matches!(canary.ended, Some((Verdict::Works, _)));
        self.of(engine).filter(works).map(|canary| canary.part.as_str())
    }

    /// What these facts allow. On an affected card no engine is available before it passes a canary.
    pub fn situation(&self) -> Situation {
        if self.device == Device::Cpu {
            return Situation { affected: self.affected, ..Situation::cpu_tensors() };
        }
        let mut situation = if self.affected { Situation::affected_accelerator() } else { Situation::accelerator() };
        situation.spoofed = self.affected && self.spoofed;
        situation.shielded = self.shielded;
        situation.miopen_families = self.miopen_families;
        for engine in [EngineName::Jit, EngineName::Miopen, EngineName::Aten] {
            situation = situation.with(engine, self.availability(engine));
        }
        for (engine, why) in &self.absent {
            situation = situation.with(*engine, Availability::Absent(why.clone()));
        }
        situation
    }

    fn of(&self, engine: EngineName) -> impl Iterator<Item = &CanaryFact> {
        self.canaries.iter().filter(move |canary| canary.engine == engine)
    }

    fn availability(&self, engine: EngineName) -> Availability {
        let is_unproven_chip = engine == EngineName::Jit && self.of(engine).next().is_some();
        if !self.affected && !is_unproven_chip {
            return Availability::Available;
        }
        let passed = self.passed(engine).next().is_some();
        // MIOpen fails at some sizes and works at others, so a few that work say nothing about the next. Evidence for
        // the very same convolution may still allow it.
        if passed && engine != EngineName::Miopen {
            return Availability::Available;
        }
        let failed: Vec<String> = self.of(engine).filter_map(CanaryFact::failure).collect();
        if !failed.is_empty() && !passed {
            return Availability::Absent(format!("its canary in a child process {}", failed.join("; ")));
        }
        Availability::Unproven(match engine {
            EngineName::Miopen => "MIOpen was not tried on this convolution in a child process".to_owned(),
            _ => format!("no canary of {engine} has run on this machine yet"),
        })
    }
}

impl CanaryFact {
    /// What went wrong, in words that continue "its canary".
    fn failure(&self) -> Option<String> {
        let (verdict, detail) = self.ended.as_ref()?;
        let word = match verdict {
            Verdict::Works => return None,
            Verdict::Hangs => "hung",
            Verdict::Crashes => "crashed",
            Verdict::Wrong => "gave wrong numbers",
            Verdict::Error => "failed",
            Verdict::Unsupported => "declined",
        };
        let part = if self.part.is_empty() { String::new() } else { format!(" in {}", self.part) };
        Some(format!("{word}{part}: {detail}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canary(engine: EngineName, part: &str, ended: Option<Verdict>) -> CanaryFact {
        let ended = ended.map(|verdict| (verdict, "as seen".to_owned()));
        CanaryFact { engine, part: part.to_owned(), ended }
    }

    fn affected(canaries: Vec<CanaryFact>) -> Situation {
        Facts { canaries, ..Facts::on_accelerator(true) }.situation()
    }

    #[test]
    fn our_kernels_must_pass_their_canary_on_every_amd_chip_and_torchs_own_engines_need_none_there() {
        let on = |canaries| Facts { canaries, ..Facts::on_accelerator(false) }.situation();
        let untried = on(vec![canary(EngineName::Jit, "plain", None)]);
        assert!(matches!(untried.availability(EngineName::Jit), Availability::Unproven(_)));
        assert_eq!(untried.availability(EngineName::Miopen), &Availability::Available);
        let hung = on(vec![canary(EngineName::Jit, "plain", Some(Verdict::Hangs))]);
        assert!(matches!(hung.availability(EngineName::Jit), Availability::Absent(_)));
        let passed = on(vec![canary(EngineName::Jit, "plain", Some(Verdict::Works))]);
        assert_eq!(passed.availability(EngineName::Jit), &Availability::Available);
        let cuda = on(Vec::new());
        assert_eq!(cuda.availability(EngineName::Jit), &Availability::Available, "kernels were seen on NVIDIA");
    }

    #[test]
    fn nothing_is_available_on_an_affected_card_before_its_canary_passed() {
        let situation = affected(vec![canary(EngineName::Jit, "plain", None)]);
        for engine in [EngineName::Jit, EngineName::Aten, EngineName::Miopen] {
            assert!(matches!(situation.availability(engine), Availability::Unproven(_)), "{engine}");
        }
        assert_eq!(situation.availability(EngineName::Cpu), &Availability::Available);
    }

    #[test]
    fn one_family_that_passed_lets_the_engine_run_and_is_named() {
        let facts = Facts {
            canaries: vec![
                canary(EngineName::Jit, "winograd", Some(Verdict::Hangs)),
                canary(EngineName::Jit, "plain", Some(Verdict::Works)),
                canary(EngineName::Aten, "", Some(Verdict::Works)),
            ],
            ..Facts::on_accelerator(true)
        };
        let situation = facts.situation();
        assert_eq!(situation.availability(EngineName::Jit), &Availability::Available);
        assert_eq!(situation.availability(EngineName::Aten), &Availability::Available);
        assert_eq!(facts.passed(EngineName::Jit).collect::<Vec<_>>(), ["plain"]);
    }

    #[test]
    fn a_failed_canary_says_how() {
        let situation = affected(vec![canary(EngineName::Jit, "gemm", Some(Verdict::Wrong))]);
        let expected = "its canary in a child process gave wrong numbers in gemm: as seen";
        assert_eq!(situation.availability(EngineName::Jit), &Availability::Absent(expected.to_owned()));
    }

    #[test]
    fn no_canary_proves_miopen_but_one_can_condemn_it() {
        let passed = affected(vec![canary(EngineName::Miopen, "", Some(Verdict::Works))]);
        assert!(matches!(passed.availability(EngineName::Miopen), Availability::Unproven(_)));
        let hung = affected(vec![canary(EngineName::Miopen, "", Some(Verdict::Hangs))]);
        assert!(matches!(hung.availability(EngineName::Miopen), Availability::Absent(_)));
    }

    #[test]
    fn canaries_do_not_count_on_healthy_cards_and_what_is_not_here_is_not_used() {
        let facts = Facts {
            canaries: vec![canary(EngineName::Aten, "", Some(Verdict::Hangs))],
            absent: vec![(EngineName::Miopen, "this torch is built for CUDA".to_owned())],
            ..Facts::on_accelerator(false)
        };
        let situation = facts.situation();
        assert_eq!(situation.availability(EngineName::Aten), &Availability::Available);
        assert_eq!(situation.availability(EngineName::Jit), &Availability::Available);
        assert!(matches!(situation.availability(EngineName::Miopen), Availability::Absent(_)));
    }
}
