//! What hung earlier in a run, as `unhang run` passes it to the processes that it restarts.

use unhang_conv::Problem;
use unhang_engine::{EngineName, Verdict};

use crate::{Evidence, Record, RecordSource};

/// Something that hung.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quarantined {
    /// The engine.
    pub engine: EngineName,
    /// The part of the engine, by its name in evidence, such as a candidate being measured; empty for the whole
    /// engine.
    pub variant: String,
    /// The convolution.
    pub problem: Problem,
}

/// Reads the value of `UNHANG_QUARANTINE`: entries such as `aten@forward:f32:…` or `jit/winograd:…@forward:f32:…`,
/// separated by spaces. Skips entries that it cannot read.
pub fn quarantined(text: &str) -> Vec<Quarantined> {
    let read = |entry: &str| {
        let (who, key) = entry.split_once('@')?;
        let (engine, variant) = who.split_once('/').unwrap_or((who, ""));
        Some(Quarantined { engine: engine.parse().ok()?, variant: variant.to_owned(), problem: key.parse().ok()? })
    };
    text.split_whitespace().filter_map(read).collect()
}

impl Evidence {
    /// Learns that these hung earlier in this run, even if no store could keep it. Known failures stay as they are,
    /// because the first observation says more.
    pub fn quarantine(&mut self, hung: &[Quarantined], machine: &str, source: RecordSource) {
        for Quarantined { engine, variant, problem } in hung {
            if !self.about(problem, *engine, variant).is_some_and(|known| known.is_refutation()) {
                let record = Record::new(problem.clone(), *engine, machine, Verdict::Hangs, source);
                let record = record.with_variant(variant);
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
        let wrong = Record::new(problem.clone(), EngineName::Jit, "here", Verdict::Wrong, RecordSource::Run);
        evidence.learn(wrong.with_detail("off by one"));
        let hung = [EngineName::Jit, EngineName::Miopen].map(|engine| Quarantined {
            engine,
            variant: String::new(),
            problem: problem.clone(),
        });
        evidence.quarantine(&hung, "here", RecordSource::Run);
        let known = |engine| evidence.about(&problem, engine, "").unwrap();
        assert_eq!(known(EngineName::Jit).record.detail, "off by one");
        assert!(known(EngineName::Miopen).is_refutation());
        assert_eq!(known(EngineName::Miopen).verdict, Verdict::Hangs);
    }

    #[test]
    fn entries_are_read_and_nonsense_is_left_out() {
        let key = "forward:f32:nchw:1x16x64x64:32x3x3:s1x1:p1x1:d1x1:g1";
        let found = quarantined(&format!("miopen@{key} nonsense aten@x jit/gemm:64x64x8/8x8:s1@{key}"));
        let engines: Vec<(EngineName, &str)> = found.iter().map(|it| (it.engine, it.variant.as_str())).collect();
        assert_eq!(engines, [(EngineName::Miopen, ""), (EngineName::Jit, "gemm:64x64x8/8x8:s1")]);
        assert!(found.iter().all(|it| it.problem.to_string() == key));
        assert!(quarantined("").is_empty());
    }
}
