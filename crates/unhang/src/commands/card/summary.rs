//! What happened on the card, from the counters and the journal of a run.

use std::collections::BTreeSet;
use std::fmt;
use std::io::{BufRead, BufReader};

use serde_json::{Value, json};
use unhang_guard::PrivateFolder;

use super::super::text::counted;

/// The size of the file of counters: the library's eight 64-bit numbers.
pub(super) const COUNTERS_SIZE: usize = 64;

/// The totals of a run.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Summary {
    processes: u64,
    dispatches: u64,
    instructions: u64,
    hazards: u64,
    faults: u64,
    transfers: u64,
    bytes: u64,
    kernels: usize,
}

impl Summary {
    /// Reads what the processes of a run left behind.
    pub(super) fn read(run: &PrivateFolder) -> Summary {
        let counters = run.read("counters", COUNTERS_SIZE as u64).ok().flatten().unwrap_or_default();
        let counter = |place: usize| {
            let bytes = counters.get(8 * place..8 * place + 8).and_then(|bytes| bytes.try_into().ok());
            bytes.map_or(0, u64::from_le_bytes)
        };
        let mut kernels = BTreeSet::new();
        if let Ok(journal) = run.open_file("journal") {
            for line in BufReader::new(journal).lines().map_while(Result::ok) {
                if line.contains("\"kernel\"")
                    && let Ok(value) = serde_json::from_str::<Value>(&line)
                    && let Some(kernel) = value["kernel"].as_str()
                {
                    kernels.insert(kernel.to_owned());
                }
            }
        }
        Summary {
            processes: counter(0),
            dispatches: counter(1),
            instructions: counter(2),
            hazards: counter(3),
            faults: counter(4),
            transfers: counter(5),
            bytes: counter(6),
            kernels: kernels.len(),
        }
    }

    /// The summary as JSON, for programs.
    pub(super) fn to_json(&self) -> Value {
        json!({
            "event": "summary", "schema": 1, "emulated": true, "processes": self.processes,
            "dispatches": self.dispatches, "kernels": self.kernels, "instructions": self.instructions,
            "hazards": self.hazards, "faults": self.faults, "transfers": self.transfers, "bytes": self.bytes,
        })
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.processes == 0 {
            return f.write_str(
                "the program never opened the emulated card: it uses no ROCm, or ROCm's libraries (libhsa-runtime64) are not there",
            );
        }
        let dispatches =
            if self.dispatches == 1 { "1 dispatch".to_owned() } else { format!("{} dispatches", self.dispatches) };
        write!(
            f,
            "on the emulated card: {} of {}, {}, {} of {}, {}, {}",
            dispatches,
            counted(self.kernels, "kernel"),
            counted(self.instructions, "instruction"),
            counted(self.transfers, "SDMA transfer"),
            counted(self.bytes, "byte"),
            counted(self.hazards, "hazard"),
            counted(self.faults, "fault")
        )
    }
}
