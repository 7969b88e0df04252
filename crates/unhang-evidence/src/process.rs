//! Which process wrote an intent, and whether it still lives.
//!
//! A process id alone would not do: ids come round again, and after a crash of the machine the same id may be somebody
//! else's. So an intent carries the boot, the process-id namespace, the id and the moment at which the process started.

use std::fs;

/// Intents of a process in another namespace cannot be checked; after this many seconds they count as left behind.
const PATIENCE_WITH_STRANGERS: i64 = 600;

/// A process, told apart from all others, also across reboots and containers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Owner {
    boot: String,
    namespace: String,
    pid: u32,
    started: String,
}

impl Owner {
    /// This process.
    pub(crate) fn this() -> Owner {
        let pid = std::process::id();
        Owner { boot: boot(), namespace: namespace(), pid, started: started(pid).unwrap_or_default() }
    }

    /// The text that the store holds.
    pub(crate) fn to_text(&self) -> String {
        format!("{} {} {} {}", self.boot, self.namespace, self.pid, self.started)
    }

    /// What the text says, or none if it is no owner's.
    pub(crate) fn from_text(text: &str) -> Option<Owner> {
        let mut words = text.split(' ');
        let owner = Owner {
            boot: words.next()?.to_owned(),
            namespace: words.next()?.to_owned(),
            pid: words.next()?.parse().ok()?,
            started: words.next()?.to_owned(),
        };
        words.next().is_none().then_some(owner)
    }

    /// Whether the process may still come back and resolve an intent of that age.
    pub(crate) fn may_come_back(&self, age_seconds: i64) -> bool {
        if self.boot != boot() {
            return false;
        }
        if self.namespace != namespace() {
            return (0..PATIENCE_WITH_STRANGERS).contains(&age_seconds);
        }
        started(self.pid).is_some_and(|since| since == self.started)
    }
}

/// One word of a file, or `-`.
fn word(text: Option<String>) -> String {
    let text = text.unwrap_or_default();
    let word: String = text.trim().chars().filter(|c| !c.is_whitespace()).take(64).collect();
    if word.is_empty() { "-".to_owned() } else { word }
}

fn boot() -> String {
    word(fs::read_to_string("/proc/sys/kernel/random/boot_id").ok())
}

fn namespace() -> String {
    word(fs::read_link("/proc/self/ns/pid").ok().map(|link| link.display().to_string()))
}

/// When the process started, in clock ticks since boot; none if there is no such process or it is a zombie.
fn started(pid: u32) -> Option<String> {
    started_in(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Field 22 of `/proc/<pid>/stat`. The name in field 2 may hold spaces and parentheses, so count from its end:
/// `4242 (a (b) c) S 1 4242 …`.
fn started_in(stat: &str) -> Option<String> {
    let after_name = &stat[stat.rfind(')')? + 1..];
    let mut fields = after_name.split_whitespace();
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    fields.nth(18).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_does_not_confuse() {
        let tail = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 9876 20";
        assert_eq!(started_in(&format!("42 (a ) (b) c) {tail}")), Some("9876".to_owned()));
        assert_eq!(started_in("42 (x) Z 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 9876"), None, "a zombie");
        assert_eq!(started_in("42"), None);
    }

    #[test]
    fn this_process_lives_and_others_do_not() {
        let this = Owner::this();
        assert_eq!(Owner::from_text(&this.to_text()), Some(this.clone()));
        assert!(this.may_come_back(1_000_000));
        assert!(!Owner { started: "1".to_owned(), ..this.clone() }.may_come_back(0), "the id came round again");
        assert!(!Owner { boot: "another".to_owned(), ..this.clone() }.may_come_back(0), "the machine was restarted");
        let stranger = Owner { namespace: "pid:[1]".to_owned(), ..this };
        assert!(stranger.may_come_back(5) && !stranger.may_come_back(601), "a container next door");
        assert_eq!(Owner::from_text("garbage"), None);
    }
}
