//! The child that tries our kernels on an affected card before they run in this process.
//!
//! The child is this very library, preloaded into a program that does nothing: when that ends, the kernels are tried
//! ([`CHILD`] is set there). So what is tried is what will run, on the same runtime and with the same environment.

use std::ffi::CString;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::time::Duration;

use serde_json::{Value, json};
use unhang_machine::{Machine, System};
use unhang_probe::canary::{Families, judge_families};
use unhang_probe::{Child, supervise};
use unhang_session::{Device, try_families_of};

use crate::loader;

/// The variable that makes a process the child: the card's number, the families, and the parent's libraries.
const CHILD: &str = "UNHANG_MIOPEN_CANARY";
/// The kernel families to try, which are the only ones used; all of them if it is not set.
const ONLY: &str = "UNHANG_MIOPEN_FAMILIES";
/// A program that does nothing, which loads this library.
const HOST: &str = "/bin/true";
/// The kernel families that are tried, where the variable names some.
pub(crate) fn only() -> Option<Vec<String>> {
    let only = std::env::var(ONLY).ok().filter(|only| !only.is_empty())?;
    Some(only.split(',').map(str::to_owned).collect())
}

/// Runs the child, and returns its verdict on each family that it reached.
pub(crate) fn run(ordinal: i32, families: &[String], deadline: Duration) -> Families {
    let untried = |why: String| Families { untried: Some(why), ..Families::default() };
    let Some(own) = loader::own_path() else { return untried("this library cannot find its own file".to_owned()) };
    // The loader's list has no quotes: a path that it cannot hold is opened and named by its descriptor.
    let opened = own.contains([' ', ':']).then(|| std::fs::File::open(&own));
    let own = match &opened {
        Some(Ok(file)) => format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()),
        _ => own,
    };
    let mut preload = std::env::var("LD_PRELOAD").unwrap_or_default();
    if !preload.split([':', ' ']).any(|it| it == own) {
        preload = if preload.is_empty() { own } else { format!("{preload}:{own}") };
    }
    let libraries = loader::mapped(&["libamdhip64", "libhiprtc"]);
    let what = json!({ "device": ordinal, "families": families, "libraries": libraries });
    let environment = vec![("LD_PRELOAD".to_owned(), Some(preload)), (CHILD.to_owned(), Some(what.to_string()))];
    match supervise(&Child { command: vec![HOST.to_owned()], environment, deadline }) {
        Ok(outcome) => judge_families(&outcome, families, deadline),
        Err(error) => untried(format!("the canary's child cannot be started: {error}")),
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = {
    extern "C" fn start() {
        // SAFETY: a C string; nothing else runs yet.
        if !unsafe { libc::getenv(c"UNHANG_MIOPEN_CANARY".as_ptr()) }.is_null() {
            // When the program ends, everything in it has been initialised, including other preloaded libraries.
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

fn play() -> Option<()> {
    unhang_probe::child::end_with_parent();
    let what: Value = serde_json::from_str(&std::env::var(CHILD).ok()?).ok()?;
    for library in what.get("libraries")?.as_array()? {
        let path = CString::new(library.as_str()?).ok()?;
        // SAFETY: the vendor's own libraries, as the parent has them.
        unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    }
    let ordinal = i32::try_from(what.get("device")?.as_i64()?).ok()?;
    let wanted: Vec<String> =
        what.get("families")?.as_array()?.iter().filter_map(Value::as_str).map(str::to_owned).collect();
    let machine = Machine::inspect(&System::host());
    match Device::open(ordinal, &machine, None, loader::shipped_kernels()) {
        Ok(device) => try_families_of(&device, &wanted),
        Err(error) => {
            println!("the card cannot be opened: {error}");
            return None;
        }
    }
    Some(())
}
