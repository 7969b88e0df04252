//! Which process wrote an intent, and whether it is still alive.
//!
//! A process id alone is not enough: ids are reused, and after a crash of the machine the same id may belong to
//! somebody else. So an intent carries the process's identity and the machine's uptime, which no change of the clock
//! affects.

use unhang_guard::{Identity, process};

/// Processes in another namespace cannot be checked. Their intents count as left behind after this many seconds.
const PATIENCE_WITH_STRANGERS: i64 = 600;

/// A process at the moment when it began something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Owner {
    identity: Identity,
    /// Seconds since boot; `None` in what earlier versions wrote.
    uptime: Option<i64>,
}

impl Owner {
    /// This process, now.
    pub(crate) fn this() -> Owner {
        Owner { identity: Identity::of_this_process(), uptime: process::uptime() }
    }

    /// The text that the store holds.
    pub(crate) fn to_text(&self) -> String {
        let Identity { boot, namespace, pid, started } = &self.identity;
        let uptime = self.uptime.map(|seconds| format!(" {seconds}")).unwrap_or_default();
        format!("{boot} {namespace} {pid} {started}{uptime}")
    }

    /// Reads the text; `None` if it does not describe an owner.
    pub(crate) fn from_text(text: &str) -> Option<Owner> {
        let mut words = text.split(' ');
        let identity = Identity {
            boot: words.next()?.to_owned(),
            namespace: words.next()?.to_owned(),
            pid: words.next()?.parse().ok()?,
            started: words.next()?.to_owned(),
        };
        let uptime = words.next().map(str::parse).transpose().ok()?;
        words.next().is_none().then_some(Owner { identity, uptime })
    }

    /// Whether the process may still return and resolve an intent. `age_seconds` is the intent's age by the clock.
    pub(crate) fn may_come_back(&self, age_seconds: i64) -> bool {
        if self.identity.boot != process::boot() {
            return false;
        }
        if self.identity.namespace != process::namespace() {
            let age = self.uptime.zip(process::uptime()).map_or(age_seconds, |(then, now)| now - then);
            return (0..PATIENCE_WITH_STRANGERS).contains(&age);
        }
        self.identity.is_alive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_lives_and_others_do_not() {
        let this = Owner::this();
        assert_eq!(Owner::from_text(&this.to_text()), Some(this.clone()));
        assert!(this.may_come_back(1_000_000));
        let with = |change: &dyn Fn(&mut Owner)| {
            let mut owner = this.clone();
            change(&mut owner);
            owner
        };
        assert!(!with(&|it| it.identity.started = "1".into()).may_come_back(0), "the id came round again");
        assert!(!with(&|it| it.identity.boot = "another".into()).may_come_back(0), "the machine was restarted");
        assert_eq!(Owner::from_text("garbage"), None);
        assert_eq!(Owner::from_text("boot ns 1 2 garbage"), None);
        let earlier = Owner::from_text("boot ns 1 2").expect("as earlier versions wrote it");
        assert_eq!(earlier.uptime, None);
    }

    #[test]
    fn a_container_next_door_is_waited_for_whatever_the_clock_says() {
        let here = Owner::this();
        let uptime = here.uptime.unwrap();
        let stranger = |began| Owner {
            identity: Identity { namespace: "pid:[1]".to_owned(), ..here.identity.clone() },
            uptime: began,
        };
        assert!(stranger(Some(uptime - 5)).may_come_back(-100_000), "the clock was set back");
        assert!(stranger(Some(uptime - 5)).may_come_back(100_000), "the clock was set forward");
        assert!(!stranger(Some(uptime - 700)).may_come_back(5));
        assert!(stranger(None).may_come_back(5) && !stranger(None).may_come_back(601));
    }
}
