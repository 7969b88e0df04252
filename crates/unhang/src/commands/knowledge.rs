//! What is known here: the machine, its torch, and the evidence about them, for the commands that plan and report.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};
use unhang_engine::EngineName;
use unhang_evidence::{Evidence, Filter, Realm, Record, RecordSource, Store};
use unhang_machine::{Machine, Software, Torch, is_shielded, packages_of, quoted};
use unhang_plan::{CanaryFact, Facts, MiopenFamilies, Situation};

use super::machine_arguments::MachineArguments;
use super::python::named;
use super::text::counted;
use crate::output::{Colour, Style, printable, tell_more};

/// Which machine and which torch are meant.
#[derive(Args)]
pub(super) struct KnowledgeArguments {
    #[command(flatten)]
    machine: MachineArguments,
    /// Look for torch in this interpreter's or environment's packages too; the first torch found is used.
    #[arg(long, value_name = "PATH")]
    python: Vec<PathBuf>,
}

impl KnowledgeArguments {
    /// The interpreter that was named, if any.
    pub(super) fn python(&self) -> Option<&Path> {
        self.python.first().map(PathBuf::as_path)
    }

    /// The folder or file that describes the machine, if it is not simply this one.
    pub(super) fn description(&self) -> Option<PathBuf> {
        self.machine.description()
    }
}

/// A machine with its torch and what is known about it.
pub(super) struct Knowledge {
    /// The machine.
    pub machine: Machine,
    /// The torch that evidence is about, if one was found.
    pub torch: Option<Torch>,
    /// The key of its evidence.
    pub fingerprint: String,
    /// What is known, about the real world or a rehearsal.
    pub evidence: Evidence,
    /// The store of that evidence.
    pub store: Store,
    families: Option<MiopenFamilies>,
    shielded: bool,
    /// The other installed torches, by the key of their evidence on this machine.
    other_torches: BTreeMap<String, Torch>,
}

/// The message of a command that uses an emulated card's evidence.
pub(super) const ON_EMULATED_CARD: &str =
    "what follows was seen on an emulated card; it counts only inside `unhang card run`, never for a real card";

/// Further keys do not get a line each.
const MOST_ELSEWHERE: usize = 3;

/// Verdicts under another key than the requested one, which do not count for it.
pub(super) struct KeptElsewhere {
    /// The key.
    pub fingerprint: String,
    /// Its torch, if that is installed here.
    pub torch: Option<Torch>,
    /// Records and canaries.
    pub verdicts: u64,
}

impl KeptElsewhere {
    /// One line for a person: what is kept, why it does not count, and how to see it.
    pub(super) fn in_words(&self) -> String {
        let Self { fingerprint, torch, verdicts } = self;
        let verdicts = counted(*verdicts, "verdict");
        match torch {
            Some(torch) => {
                let environment = torch.path.split_once("/lib/python").map_or(&*torch.path, |(prefix, _)| prefix);
                format!(
                    "{verdicts} kept under torch {} and not counted here: another torch may behave differently; --python {} \
                     asks about that one",
                    printable(&torch.version),
                    printable(&quoted(environment)),
                )
            }
            None => format!(
                "{verdicts} kept under {0} and not counted here: that is another torch, kernel, card or spoof; `unhang \
                 report --machine {0}` shows them, and `unhang probe` tests again",
                printable(fingerprint),
            ),
        }
    }

    /// These facts as JSON, for other programs.
    pub(super) fn to_json(&self) -> Value {
        let torch = self.torch.as_ref().map(|torch| &torch.version);
        json!({ "fingerprint": self.fingerprint, "torch": torch, "verdicts": self.verdicts })
    }
}

impl Knowledge {
    /// Inspects the machine and opens the store in that way. Torch is not asked, because that would take seconds and may hang.
    ///
    /// `rehearsal` selects what the card that was played last did, instead of what was observed. What an emulated card
    /// does is always a rehearsal.
    pub(super) fn gather(
        arguments: &KnowledgeArguments,
        rehearsal: bool,
        open: fn() -> Store,
    ) -> anyhow::Result<Knowledge> {
        let system = arguments.machine.system()?;
        let pythons = named(&system, &arguments.python)?;
        let machine = Machine::inspect(&system);
        let software = Software::inspect(&system, &pythons);
        let families = MiopenFamilies::left_on(|variable| system.environment().get(variable) == Some("0"));
        let shielded = is_shielded(system.environment().get("HSA_TOOLS_LIB"));
        let store = open();
        // A named interpreter comes before the one that happens to be active.
        let named = pythons.iter().find_map(|python| {
            let packages = packages_of(&system, python);
            software.torch.iter().find(|torch| packages.iter().any(|folder| Path::new(&torch.path).starts_with(folder)))
        });
        let torch = named.or(software.torch.first()).cloned();
        let fingerprint = machine.fingerprint(torch.as_ref().map(runtime).as_deref());
        tell_more(&format!("evidence is read for the machine {fingerprint}"));
        let evidence = if rehearsal {
            Evidence::load_rehearsal(&store, &rehearsed(&store, &fingerprint))
        } else {
            Evidence::load_realm(&store, &fingerprint, Realm::of_machine(machine.emulated))
        };
        let others = software.torch.iter().map(|other| (machine.fingerprint(Some(&runtime(other))), other.clone()));
        let other_torches = others.filter(|(key, _)| *key != fingerprint).collect();
        Ok(Knowledge { machine, torch, fingerprint, evidence, store, families, shielded, other_torches })
    }

    /// Switches to the evidence under another key, of the same world.
    pub(super) fn turn_to(&mut self, fingerprint: &str) -> anyhow::Result<()> {
        self.evidence = Evidence::load_realm(&self.store, fingerprint, self.evidence.realm());
        fingerprint.clone_into(&mut self.fingerprint);
        let is_about_it = |record: &Record| record.machine == fingerprint;
        let has_canaries = || self.store.canaries().iter().any(|canary| canary.machine == fingerprint);
        if !self.evidence.records().any(is_about_it) && self.store.seen(fingerprint).is_empty() && !has_canaries() {
            let hint = "hint: `unhang evidence list` lists all of them; an emulated card's count only inside `unhang card run`";
            return Err(anyhow::anyhow!(hint).context(format!("nothing is kept under {}", printable(fingerprint))));
        }
        Ok(())
    }

    /// Whether it is about an emulated card although no rehearsal was requested.
    pub(super) fn is_about_an_emulated_card(&self) -> bool {
        self.machine.emulated && self.evidence.machine() == self.fingerprint
    }

    /// What was observed on this computer under another torch, kernel, card or spoof, most verdicts first. It excludes
    /// others' findings and rehearsals; on an emulated card it is what emulated ones did.
    pub(super) fn kept_elsewhere(&self) -> Vec<KeptElsewhere> {
        let mut verdicts: BTreeMap<String, u64> = BTreeMap::new();
        let sources: &[RecordSource] = match Realm::of_machine(self.machine.emulated) {
            Realm::Real => &[RecordSource::Probe, RecordSource::Run],
            Realm::Rehearsal => &[RecordSource::Rehearsal],
        };
        for &source in sources {
            for record in self.store.records(&Filter { source: Some(source), ..Filter::default() }) {
                *verdicts.entry(record.machine).or_default() += 1;
            }
        }
        if !self.machine.emulated {
            for canary in self.store.canaries() {
                *verdicts.entry(canary.machine).or_default() += 1;
            }
        }
        verdicts.retain(|key, _| !key.contains(PLAYED));
        verdicts.remove(&self.fingerprint);
        let mut found: Vec<KeptElsewhere> = verdicts
            .into_iter()
            .map(|(key, verdicts)| KeptElsewhere {
                torch: self.other_torches.get(&key).cloned(),
                fingerprint: key,
                verdicts,
            })
            .collect();
        found.sort_by_key(|it| std::cmp::Reverse(it.verdicts));
        found.truncate(MOST_ELSEWHERE);
        found
    }

    /// The situation of tensors on the machine's accelerator, or in the host's memory, judged from the description.
    pub(super) fn situation(&self, on_cpu: bool) -> Situation {
        let affected = self.machine.affected();
        if on_cpu {
            return Facts { affected, ..Facts::on_cpu() }.situation();
        }
        let mut facts = Facts::on_accelerator(affected);
        facts.spoofed = self.machine.spoofed();
        facts.shielded = self.shielded;
        facts.miopen_families = self.families;
        let torch_computes_there = self.torch.as_ref().is_some_and(|torch| torch.hip.is_some() || torch.cuda.is_some());
        if !torch_computes_there || !self.has_accelerator() {
            facts.absent.push((EngineName::Jit, "torch has no GPU to compute on here".to_owned()));
        }
        if let Some(torch) = &self.torch
            && torch.hip.is_none()
        {
            let built = torch.cuda.as_ref().map_or("without a GPU".to_owned(), |cuda| format!("for CUDA {cuda}"));
            facts.absent.push((EngineName::Miopen, format!("this torch is built {built}")));
        }
        if affected {
            facts.canaries = [EngineName::Aten, EngineName::Miopen, EngineName::Jit].map(|it| self.canary(it)).into();
        } else if self.torch.as_ref().is_some_and(|torch| torch.hip.is_some()) {
            facts.canaries = vec![self.canary(EngineName::Jit)];
        }
        facts.situation()
    }

    /// How the canary of an engine ended on this machine. Without its GPU, its kernel families are unknown. So their
    /// best verdict, which is kept under the engine's name, counts for all.
    fn canary(&self, engine: EngineName) -> CanaryFact {
        let ended = self.store.canary(&self.fingerprint, engine.name()).map(|canary| (canary.verdict, canary.detail));
        CanaryFact { engine, part: String::new(), ended }
    }

    /// Whether there is a GPU that torch could compute on.
    pub(super) fn has_accelerator(&self) -> bool {
        const INTEL: u16 = 0x8086;
        self.machine.gpus.iter().any(|gpu| gpu.vendor_id != INTEL)
    }

    /// The machine in one line.
    pub(super) fn description(&self) -> String {
        let names: Vec<String> = self.machine.gpus.iter().map(|gpu| printable(&gpu.name)).collect();
        let mut words = vec![if names.is_empty() { "no GPU".to_owned() } else { names.join(", ") }];
        if self.machine.affected() {
            words.push("RDNA1".to_owned());
        }
        if self.machine.spoofed() {
            words.push("spoofed".to_owned());
        }
        words.push(match &self.torch {
            Some(torch) => format!("torch {}", printable(&torch.version)),
            None => "no torch found".to_owned(),
        });
        words.join(", ")
    }

    /// The machine for other programs.
    pub(super) fn to_json(&self) -> Value {
        json!({
            "fingerprint": self.fingerprint,
            "described_by": self.machine.described_by,
            "gpus": self.machine.gpus.iter().map(|gpu| &gpu.name).collect::<Vec<_>>(),
            "affected": self.machine.affected(),
            "spoofed": self.machine.spoofed(),
            "torch": self.torch.as_ref().map(|torch| &torch.version),
            "torch_was_asked": false,
        })
    }
}

/// Tells the key of a played card from that of a machine.
const PLAYED: &str = " rehearsal ";

/// The key of what a rehearsed card did on this machine. It contains the table, so that rehearsals of different cards
/// do not mix, and edited tables start from scratch.
pub(super) fn rehearsal_key(machine: &Machine, fingerprint: &str, name: &str, table: &str) -> String {
    format!("{fingerprint}{PLAYED}{name} {}", machine.fingerprint(Some(table)))
}

/// The key of the most recent rehearsal.
fn rehearsed(store: &Store, fingerprint: &str) -> String {
    let prefix = format!("{fingerprint}{PLAYED}");
    let all = store.records(&Filter { source: Some(RecordSource::Rehearsal), ..Filter::default() });
    let last = all.into_iter().rev().find(|record| record.machine.starts_with(&prefix));
    last.map_or(fingerprint.to_owned(), |record| record.machine)
}

/// Opens the store and prints what is wrong with it.
pub(super) fn open_store() -> Store {
    noticed(Store::open_default())
}

/// Opens the store of a command that only reads, and prints what is wrong with it.
pub(super) fn open_existing_store() -> Store {
    noticed(Store::open_existing())
}

fn noticed(store: Store) -> Store {
    say_notices(&store);
    store
}

/// Prints what is wrong with the store.
pub(super) fn say_notices(store: &Store) {
    let style = Style::for_stream(&std::io::stderr());
    for notice in store.notices() {
        let _ = writeln!(std::io::stderr(), "{}: {}", style.paint("note", Colour::Yellow), printable(&notice));
    }
}

/// Torch as it enters the fingerprint; the Python package describes itself in the same way.
fn runtime(torch: &Torch) -> String {
    let vendor = match (&torch.hip, &torch.cuda) {
        (Some(hip), _) => format!("hip{hip}"),
        (None, Some(cuda)) => format!("cuda{cuda}"),
        (None, None) => "cpu".to_owned(),
    };
    format!("{} {vendor}", torch.version)
}
