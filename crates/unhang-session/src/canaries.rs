//! The canaries of a card, and how a missing one is run: in a child process, once for a machine. The face starts the
//! child.

use std::fmt::Display;
use std::time::Duration;

use unhang_engine::{EngineName, Verdict};
use unhang_gpu::{GpuEngine, normalization, pooling, reduction, strided};
use unhang_plan::CanaryFact;
use unhang_probe::canary::Families;

use crate::card::Card;
use crate::session::Session;

/// Families whose kernels compute no convolution.
pub(crate) const PARTS: [&str; 4] = [strided::FAMILY, normalization::FAMILY, pooling::FAMILY, reduction::FAMILY];

impl Session {
    /// The verdict on one of the framework's engines on a card. Without one, `run` tries the engine in a child
    /// with that deadline and returns the result, and whether the child reached its trial.
    pub fn ensure_canary<E>(
        &self,
        card: &Card,
        engine: EngineName,
        deadline: Duration,
        run: impl FnOnce() -> Result<(Verdict, String, bool), E>,
        say: &dyn Fn(&str),
    ) -> Result<(Verdict, String), E> {
        let name = card.name(engine.name());
        if let Some(known) = self.canary(&name) {
            return Ok(known);
        }
        say(&format!("trying {engine} in a child process before it is used here {}", once(deadline)));
        let (verdict, detail, began) = run()?;
        if !began {
            self.note_canary(&name, verdict, &detail);
            say(&format!(
                "canary of {engine}: {detail}; {engine} is not used in this process; the next one tries again"
            ));
            return Ok((verdict, detail));
        }
        self.keep_canary(&name, verdict, &detail, true);
        if !card.place.is_empty() && self.canary(engine.name()).is_none() {
            // For `unhang plan` and the doctor, which do not look at single cards.
            self.keep_canary(engine.name(), verdict, &detail, true);
        }
        say(&format!("canary of {engine}: {verdict} ({detail})"));
        Ok((verdict, detail))
    }

    /// Tries the kernel families that have no verdict on a card, one group after another, by `try_in_child` with that
    /// deadline, and stores the verdicts.
    pub fn ensure_families<E>(
        &self,
        card: &Card,
        engine: &GpuEngine,
        groups: &[&[String]],
        deadline: Duration,
        mut try_in_child: impl FnMut(&[String]) -> Result<Families, E>,
        say: &dyn Fn(&str),
    ) -> Result<(), E> {
        let known = |family: &String| self.canary(&card.name_of_family(engine, family));
        let missing = |group: &[String]| -> Vec<String> {
            group.iter().filter(|family| known(family).is_none()).cloned().collect()
        };
        let all = groups.concat();
        for group in groups {
            loop {
                let asked = missing(group);
                if asked.is_empty() {
                    break;
                }
                let (names, once) = (asked.join(", "), once(deadline));
                say(&format!("trying our GPU kernels ({names}) in a child process before they are used here {once}"));
                let found = try_in_child(&asked)?;
                for it in &found.judged {
                    self.keep_canary(&card.name_of_family(engine, &it.family), it.verdict, &it.detail, true);
                    say(&format!("canary of jit, {}: {} ({})", it.family, it.verdict, it.detail));
                }
                // Working copies, norms, poolings or reductions say nothing about convolutions.
                let convolves = |it: &&String| !PARTS.contains(&it.as_str());
                let ended: Vec<(Verdict, String)> = all.iter().filter(convolves).filter_map(known).collect();
                if let Some((verdict, detail)) = ended.iter().min_by_key(|(verdict, _)| *verdict != Verdict::Works) {
                    // For `unhang plan` and the doctor, which do not look at families.
                    let whole = if card.rehearsed { card.name("jit") } else { "jit".to_owned() };
                    self.keep_canary(&whole, *verdict, detail, true);
                }
                let left = missing(&all);
                if found.judged.is_empty() || (found.hung && !left.is_empty()) {
                    let why = found.untried.as_deref().unwrap_or("after a hang the card may need a reboot first");
                    say(&format!("not tried: {}; {why}", left.join(", ")));
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// The canaries that count for the framework's own engines on an affected card.
    pub fn engine_facts(&self, card: &Card) -> Vec<CanaryFact> {
        let fact = |engine: EngineName| {
            let ended = self.canary(&card.name(engine.name()));
            CanaryFact { engine, part: String::new(), ended }
        };
        [EngineName::Aten, EngineName::Miopen].map(fact).into()
    }

    /// The canaries of kernel families on a card.
    pub fn family_facts(&self, card: &Card, engine: &GpuEngine, families: &[String]) -> Vec<CanaryFact> {
        let fact = |family: &String| {
            let ended = self.canary(&card.name_of_family(engine, family));
            CanaryFact { engine: EngineName::Jit, part: family.clone(), ended }
        };
        families.iter().map(fact).collect()
    }
}

fn once(deadline: Duration) -> impl Display {
    format!("(once for this machine, about {:.0} s)", deadline.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::convert::Infallible;

    use unhang_gpu::choice::Choice;

    use super::*;
    use crate::played::{self, session};

    #[test]
    fn a_canary_runs_once_and_one_that_never_began_is_no_evidence() {
        let session = session();
        let card = Card { place: "@1".to_owned(), rehearsed: false };
        let said = RefCell::new(Vec::new());
        let ensure = |ended: Option<(Verdict, bool)>| {
            let run = || {
                let (verdict, began) = ended.expect("it is known");
                Ok::<_, Infallible>((verdict, "as seen".to_owned(), began))
            };
            let say = |message: &str| said.borrow_mut().push(message.to_owned());
            session.ensure_canary(&card, EngineName::Aten, Duration::from_secs(30), run, &say).unwrap().0
        };
        assert_eq!(ensure(Some((Verdict::Error, false))), Verdict::Error);
        assert_eq!(ensure(None), Verdict::Error, "not a second time in this process");
        assert_eq!(session.canary("aten"), None, "nothing was learnt of the engine");
        assert!(said.borrow()[1].contains("the next one tries again"), "{said:?}");
        session.note_canary("aten@1", Verdict::Works, "");
        let other = Card { place: "@2".to_owned(), rehearsed: false };
        let run = || Ok::<_, Infallible>((Verdict::Hangs, "no answer".to_owned(), true));
        session.ensure_canary(&other, EngineName::Aten, Duration::from_secs(30), run, &|_| ()).unwrap();
        assert_eq!(session.canary("aten@2").unwrap().0, Verdict::Hangs);
        assert_eq!(session.canary("aten").unwrap().0, Verdict::Hangs, "for those who do not look at single cards");
        assert_eq!(session.canary("aten@1").unwrap().0, Verdict::Works);
    }

    /// Two cards of one kind run the same code, and one of them may be broken.
    #[test]
    fn kernels_are_proven_on_each_card() {
        let (device, _, session) = played::device(Some(|_| {}));
        let problem = "forward:f32:nchw:1x2x5x5:3x2x3:s1x1:p0x0:d1x1:g1".parse().unwrap();
        let prepared = device.engine.prepare_as(&problem, Some(Choice::Plain)).unwrap();
        let [one, other] = ["@1", "@2"].map(|place| Card { place: place.to_owned(), rehearsed: false });
        let played = Card { place: String::new(), rehearsed: true };
        session.keep_first_result(&one, &prepared, false, "as seen");
        assert_eq!(session.first_result(&one, &prepared).unwrap().0, Verdict::Wrong);
        assert_eq!([other, played].map(|card| session.first_result(&card, &prepared)), [None, None]);
    }
}
