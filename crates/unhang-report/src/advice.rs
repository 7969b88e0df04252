//! What to do after reading a report.

use std::collections::BTreeSet;

use unhang_conv::Problem;
use unhang_engine::{EngineName, Verdict};
use unhang_evidence::RecordSource;

use crate::data::Report;

impl Report {
    /// What to do, one sentence each, with the command in backticks.
    pub(crate) fn what_to_do(&self) -> Vec<String> {
        let seen = || self.records.iter().filter(|record| record.source != RecordSource::Import);
        if seen().next().is_none() {
            if self.rehearsal {
                return vec!["Play a card first: `unhang probe --grid --rehearse rx5600xt-rocm5.7`.".to_owned()];
            }
            return vec!["Find out which convolutions work here: `unhang probe --grid`.".to_owned()];
        }
        if self.rehearsal {
            return vec!["This was a rehearsal. On a real card, run `unhang probe --grid`.".to_owned()];
        }
        let is_bad = |verdict: Verdict| matches!(verdict, Verdict::Hangs | Verdict::Crashes | Verdict::Wrong);
        let mut advice = Vec::new();
        let bad: BTreeSet<(EngineName, &Problem)> =
            seen().filter(|record| is_bad(record.verdict)).map(|record| (record.engine, &record.problem)).collect();
        for engine in EngineName::ALL {
            let count = bad.iter().filter(|(of, _)| *of == engine).count();
            if count > 0 {
                let noun =
                    if count == 1 { "convolution hangs, crashes or is" } else { "convolutions hang, crash or are" };
                advice.push(format!("{count} {noun} wrong on {engine}: plans avoid it for those."));
            }
        }
        advice.push(match bad.is_empty() {
            true => {
                "Nothing that was tried hangs, crashes or is wrong. `unhang run -- python train.py` keeps watching."
                    .to_owned()
            }
            false => "Start programs with `unhang run -- python train.py`: it uses these plans.".to_owned(),
        });
        advice.push("Share what was found: `unhang evidence export findings.jsonl`.".to_owned());
        advice
    }
}
