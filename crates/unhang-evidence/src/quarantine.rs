//! What hung earlier in a run, as `unhang run` tells the processes that it starts again.

use unhang_conv::Problem;
use unhang_engine::{EngineName, Verdict};

use crate::{Evidence, Record, Source};

/// Reads the value of `UNHANG_QUARANTINE`: pairs such as `aten@forward:f32:…`, separated by spaces. What cannot be read is
/// left out.
pub fn quarantined(text: &str) -> Vec<(EngineName, Problem)> {
    let pair = |entry: &str| {
        let (engine, key) = entry.split_once('@')?;
        Some((engine.parse().ok()?, key.parse().ok()?))
    };
    text.split_whitespace().filter_map(pair).collect()
}

impl Evidence {
    /// Learns that these hung earlier in this run, even where no store could keep it. What is known not to work stays as it is: the
    /// first to see it says more.
    pub fn quarantine(&mut self, hung: &[(EngineName, Problem)], machine: &str, source: Source) {
        for (engine, problem) in hung {
            if !self.about(problem, *engine, "").is_some_and(|known| known.is_refutation()) {
                let record = Record::new(problem.clone(), *engine, machine, Verdict::Hangs, source);
                self.learn(record.with_detail("hung in this run, before it was started again"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Store;

    #[test]
    fn what_is_known_not_to_work_stays_as_it_was_seen() {
        let problem: Problem = "forward:f32:nchw:1x16x64x64:32x3x3:s1x1:p1x1:d1x1:g1".parse().unwrap();
        let mut evidence = Evidence::load(&Store::none(), "here");
        let wrong = Record::new(problem.clone(), EngineName::Jit, "here", Verdict::Wrong, Source::Run);
        evidence.learn(wrong.with_detail("off by one"));
        let hung = [(EngineName::Jit, problem.clone()), (EngineName::Miopen, problem.clone())];
        evidence.quarantine(&hung, "here", Source::Run);
        let known = |engine| evidence.about(&problem, engine, "").unwrap();
        assert_eq!(known(EngineName::Jit).record.detail, "off by one");
        assert!(known(EngineName::Miopen).is_refutation());
        assert_eq!(known(EngineName::Miopen).verdict, Verdict::Hangs);
    }

    #[test]
    fn pairs_are_read_and_nonsense_is_left_out() {
        let key = "forward:f32:nchw:1x16x64x64:32x3x3:s1x1:p1x1:d1x1:g1";
        let found = quarantined(&format!("miopen@{key} nonsense aten@x jit@{key}"));
        let engines: Vec<EngineName> = found.iter().map(|it| it.0).collect();
        assert_eq!(engines, [EngineName::Miopen, EngineName::Jit]);
        assert!(found.iter().all(|(_, problem)| problem.to_string() == key));
        assert!(quarantined("").is_empty());
    }
}
