//! The canary of our kernels: before they run on an affected card in this process they do so in a child, with a deadline.
//!
//! The child is this very library, preloaded into a program that does nothing: when that ends, the kernels are tried
//! ([`CHILD`] is set there). So what is tried is what will run, on the same runtime and with the same environment.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::sync::LazyLock;
use std::time::Duration;

use serde_json::{Value, json};
use unhang_conv::Problem;
use unhang_engine::{EngineName, Verdict};
use unhang_evidence::{Realm, RecordSource};
use unhang_gpu::choice::Choice;
use unhang_gpu::strided;
use unhang_machine::{Machine, System};
use unhang_plan::CanaryFact;
use unhang_probe::canary::{self as lines, Families};
use unhang_probe::{Child, supervise};

use crate::device::Device;
use crate::lookup;
use crate::process::Process;
use crate::talk::say;

/// What makes a process the child: the card's number, the families, and the libraries that the parent has.
const CHILD: &str = "UNHANG_MIOPEN_CANARY";
/// The kernel families that are tried, and so the only ones that are used; all of them where it is not set.
const ONLY: &str = "UNHANG_MIOPEN_FAMILIES";
/// A program that does nothing, to be preloaded into.
const HOST: &str = "/bin/true";
/// Of one family, once everything is compiled.
const FAMILY_DEADLINE: Duration = Duration::from_secs(10);
/// The same on an emulated card, which takes its time.
const EMULATED_DEADLINE: Duration = Duration::from_secs(170);

/// The families that are tried on a card, the plainest first, with a problem and a choice for each direction.
fn tries(device: &Device, small: bool) -> Vec<(String, Vec<(Problem, Choice)>)> {
    let mut families: Vec<(String, Vec<(Problem, Choice)>)> = Vec::new();
    for problem in lines::kernel_problems(small) {
        let mut seen = BTreeSet::new();
        for candidate in device.engine.candidates(&problem) {
            let family = candidate.choice.family();
            if seen.insert(family) {
                let one = (problem.clone(), candidate.choice);
                match families.iter_mut().find(|(name, _)| name == family) {
                    Some((_, all)) => all.push(one),
                    None => families.push((family.to_owned(), vec![one])),
                }
            }
        }
    }
    families.push((strided::FAMILY.to_owned(), Vec::new()));
    if let Ok(only) = std::env::var(ONLY)
        && !only.is_empty()
    {
        families.retain(|(name, _)| only.split(',').any(|it| it == name));
    }
    families.sort_by_key(|(name, _)| (name != "plain", name != strided::FAMILY, name.clone()));
    families
}

/// An emulated card takes a thousand times as long.
pub(crate) fn is_emulated() -> bool {
    static EMULATED: LazyLock<bool> = LazyLock::new(|| System::host().has_emulated_card());
    *EMULATED
}

/// What is seen here is filed as this: an emulated card only rehearses, and a real one never goes by that.
pub(crate) fn source() -> RecordSource {
    Realm::of_machine(is_emulated()).source(RecordSource::Run)
}

fn name_of(device: &Device, family: &str) -> String {
    format!("jit:{family}:{}{}", device.engine.identity(), device.place)
}

/// What is known of our kernels on an affected card; what is not known is tried, once for this machine.
pub(crate) fn ensure(process: &Process, device: &Device) -> Vec<CanaryFact> {
    let families: Vec<String> = tries(device, is_emulated()).into_iter().map(|(family, _)| family).collect();
    let known = |family: &String| process.canary(&name_of(device, family));
    // What every convolution can be computed by comes first, and by itself: compiling all the others takes a while.
    let (first, rest) = families.split_at(2.min(families.len()));
    for group in [first, rest] {
        let missing: Vec<String> = group.iter().filter(|family| known(family).is_none()).cloned().collect();
        if missing.is_empty() {
            continue;
        }
        say(&format!(
            "trying our GPU kernels ({}) in a child process before they are used here (once for this machine, {} s at most)",
            missing.join(", "),
            lines::deadline(EngineName::Jit).as_secs()
        ));
        let found = run(device.ordinal, &missing);
        for it in &found.judged {
            say(&format!("canary of jit, {}: {} ({})", it.family, it.verdict, it.detail));
            process.keep_canary(&name_of(device, &it.family), it.verdict, &it.detail);
        }
        if found.hung {
            say(
                "what is left is not tried: after a hang the card may need a reboot first, and compiling goes on next time",
            );
            break;
        }
    }
    let fact = |family: String| {
        let ended = known(&family);
        CanaryFact { engine: EngineName::Jit, part: family, ended }
    };
    families.into_iter().map(fact).collect()
}

/// Runs the child; what it found of each family that it got to.
fn run(ordinal: i32, families: &[String]) -> Families {
    let Some(own) = lookup::own_path() else { return Families::default() };
    // The loader's list has no quotes: a path that it cannot hold is opened, and named by that.
    let opened = own.contains([' ', ':']).then(|| std::fs::File::open(&own));
    let own = match &opened {
        Some(Ok(file)) => format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()),
        _ => own,
    };
    let mut preload = std::env::var("LD_PRELOAD").unwrap_or_default();
    if !preload.split([':', ' ']).any(|it| it == own) {
        preload = if preload.is_empty() { own } else { format!("{preload}:{own}") };
    }
    let libraries = lookup::mapped(&["libamdhip64", "libhiprtc"]);
    let what = json!({ "device": ordinal, "families": families, "libraries": libraries });
    let environment = vec![("LD_PRELOAD".to_owned(), preload), (CHILD.to_owned(), what.to_string())];
    let deadline = lines::deadline(EngineName::Jit);
    match supervise(&Child { command: vec![HOST.to_owned()], environment, deadline }) {
        Ok(outcome) => lines::judge_families(&outcome, families, deadline),
        Err(error) => {
            say(&format!("the canary's child cannot be started: {error}"));
            Families::default()
        }
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = {
    extern "C" fn start() {
        // SAFETY: a C string; nothing else runs yet.
        if !unsafe { libc::getenv(c"UNHANG_MIOPEN_CANARY".as_ptr()) }.is_null() {
            // When the program ends everything in it has been initialised, other preloaded libraries too.
            // SAFETY: a function that lives as long as the process.
            unsafe { libc::atexit(child) };
        }
    }
    start
};

/// The child's part, when the program that it is preloaded into has ended.
extern "C" fn child() {
    let code = std::panic::catch_unwind(play).map_or(1, |played| i32::from(played.is_none()));
    let _ = std::io::stdout().flush();
    // SAFETY: ends the process; runtimes have threads that must not see libraries being taken down.
    unsafe { libc::_exit(code) }
}

fn tell(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}");
    let _ = out.flush();
}

fn play() -> Option<()> {
    let what: Value = serde_json::from_str(&std::env::var(CHILD).ok()?).ok()?;
    for library in what.get("libraries")?.as_array()? {
        let path = CString::new(library.as_str()?).ok()?;
        // SAFETY: the vendor's own libraries, as the parent has them.
        unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    }
    let ordinal = i32::try_from(what.get("device")?.as_i64()?).ok()?;
    let wanted: Vec<&str> = what.get("families")?.as_array()?.iter().filter_map(Value::as_str).collect();
    let machine = Machine::inspect(&System::host());
    let device = match Device::open(ordinal, &machine, None) {
        Ok(device) => device,
        Err(error) => {
            tell(&format!("the card cannot be opened: {error}"));
            return None;
        }
    };
    let tries = tries(&device, is_emulated()).into_iter().filter(|(family, _)| wanted.contains(&family.as_str()));
    // Everything is compiled before anything runs: from then on it is the kernels that hang, and not a compiler.
    let ready: Vec<_> = tries
        .map(|(family, all)| {
            let prepared: Result<Vec<_>, _> =
                all.iter().map(|(problem, choice)| device.engine.prepare_as(problem, Some(*choice))).collect();
            (family, prepared)
        })
        .collect();
    for (family, prepared) in ready {
        tell(&lines::begin_line(&family));
        let limit = Limit::new(family.clone());
        let ended = prepared.and_then(|all| {
            let mut detail = Vec::new();
            if family == strided::FAMILY {
                detail.push(device.try_strided()?);
            }
            for one in &all {
                detail.push(device.try_kernels(one)?);
            }
            Ok(detail)
        });
        drop(limit);
        let (verdict, detail) = match ended {
            Err(error) => (Verdict::Error, error.to_string()),
            Ok(all) => match all.iter().find(|it| !matches!(it, Some((true, _)))) {
                Some(Some((_, detail))) => (Verdict::Wrong, detail.clone()),
                Some(None) => (Verdict::Error, "its numbers could not be compared".to_owned()),
                None => (Verdict::Works, format!("{} convolutions", all.len())),
            },
        };
        tell(&lines::family_line(&family, &name_of(&device, &family), verdict, &detail));
    }
    Some(())
}

/// Ends the child when a family takes too long, unless it is dropped before.
struct Limit(std::sync::mpsc::Sender<()>);

impl Limit {
    fn new(family: String) -> Limit {
        let limit = if is_emulated() { EMULATED_DEADLINE } else { FAMILY_DEADLINE };
        let (sender, receiver) = std::sync::mpsc::channel::<()>();
        // Without a thread the parent's own deadline holds.
        let _ = std::thread::Builder::new().spawn(move || {
            if receiver.recv_timeout(limit) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                let detail = format!("no answer within {} s", limit.as_secs());
                tell(&lines::family_line(&family, "", Verdict::Hangs, &detail));
                // SAFETY: ends the process, whatever the device is doing.
                unsafe { libc::_exit(1) };
            }
        });
        Limit(sender)
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}
