//! The watchdog at this boundary: it names a convolution of a program without torch that does not return, records it as
//! evidence, and ends the process, as in torch. It is on under `unhang run` and where `UNHANG_WATCHDOG=1`.

use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use unhang_session::{Farewell, Runtime, Session, Watchdog, deadlines, say_once as say};

static WATCHDOG: OnceLock<Option<Watchdog>> = OnceLock::new();
/// The process that started it: a child has none of its threads.
static STARTED_BY: AtomicU32 = AtomicU32::new(0);

/// The watchdog of this process, started at the first request; `None` if it is not wanted.
pub(crate) fn watchdog(session: &Session) -> Option<&'static Watchdog> {
    WATCHDOG.get_or_init(|| start(session)).as_ref()
}

fn start(session: &Session) -> Option<Watchdog> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    variable("UNHANG_WATCHDOG").filter(|value| value != "0")?;
    let settings = deadlines(variable, |message| say(&message));
    let folder = variable("UNHANG_RUN_FOLDER").map(PathBuf::from);
    let (store, machine) = (session.store().clone(), session.fingerprint().to_owned());
    let farewell = Farewell { store, machine, folder, last: Box::new(|| {}) };
    match Watchdog::start(settings, Runtime::Hip, farewell).map(Watchdog::for_streams_that_end) {
        Ok(watchdog) => {
            // SAFETY: a function without arguments, which stays loaded. The runtime was started before it, and so is taken down after
            // it: nobody may ask it about events then.
            unsafe { libc::atexit(stop) };
            STARTED_BY.store(std::process::id(), Ordering::Relaxed);
            Some(watchdog)
        }
        Err(error) => {
            say(&format!("convolutions are not watched: no thread for the watchdog ({error})"));
            None
        }
    }
}

extern "C" fn stop() {
    if STARTED_BY.load(Ordering::Relaxed) != std::process::id() {
        return;
    }
    if let Some(Some(watchdog)) = WATCHDOG.get() {
        watchdog.stop_within(Duration::from_secs(1));
    }
}
