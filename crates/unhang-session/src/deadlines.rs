//! How long is too long.

use std::time::Duration;

use unhang_watchdog::WatchSettings;

/// Seconds after which a convolution on the accelerator that has not finished is a hang.
const DEADLINE: f64 = 60.0;
/// The factor for other work there: nobody knows how long an unwatched kernel may take.
const OUTSIDE: f64 = 10.0;
/// Seconds for both among several ranks: a rank that waits for another waits on the accelerator, where nothing moves
/// meanwhile.
const DEADLINE_TOGETHER: f64 = 1800.0;
/// Seconds after which a call that has not returned counts as hung although the accelerator is idle: it compiles or
/// searches.
const HOST_DEADLINE: f64 = 3600.0;

/// The deadlines that variables name; `say` receives what is wrong with an invalid value.
pub fn deadlines(variable: impl Fn(&str) -> Option<String>, mut say: impl FnMut(String)) -> WatchSettings {
    let mut seconds = |name: &str, default: f64| {
        let Some(text) = variable(name).filter(|text| !text.is_empty()) else { return default };
        match unhang_guard::time::deadline(&text) {
            Ok(time) => time.as_secs_f64(),
            Err(reason) => {
                say(format!("{name}: {reason}; using {default:.0}s"));
                default
            }
        }
    };
    let is_together = variable("WORLD_SIZE").and_then(|ranks| ranks.parse::<u32>().ok()).is_some_and(|it| it > 1);
    let deadline = seconds("UNHANG_HANG_DEADLINE", if is_together { DEADLINE_TOGETHER } else { DEADLINE });
    let outside = seconds("UNHANG_OUTSIDE_DEADLINE", if is_together { deadline } else { OUTSIDE * deadline });
    let host = seconds("UNHANG_HOST_DEADLINE", HOST_DEADLINE);
    let [deadline, outside_deadline, host_deadline] = [deadline, outside, host].map(Duration::from_secs_f64);
    WatchSettings { deadline, outside_deadline, host_deadline }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(variables: &[(&str, &str)]) -> ([u64; 3], Vec<String>) {
        let mut said = Vec::new();
        let variable = |name: &str| variables.iter().find(|(it, _)| *it == name).map(|(_, value)| (*value).to_owned());
        let settings = deadlines(variable, |message| said.push(message));
        ([settings.deadline, settings.outside_deadline, settings.host_deadline].map(|it| it.as_secs()), said)
    }

    #[test]
    fn ranks_wait_for_each_other_and_nonsense_is_said() {
        assert_eq!(found(&[]), ([60, 600, 3600], Vec::new()));
        assert_eq!(found(&[("WORLD_SIZE", "2")]).0, [1800, 1800, 3600]);
        assert_eq!(found(&[("UNHANG_HANG_DEADLINE", "5")]).0, [5, 50, 3600]);
        assert_eq!(found(&[("WORLD_SIZE", "2"), ("UNHANG_HANG_DEADLINE", "5")]).0, [5, 5, 3600]);
        assert_eq!(found(&[("UNHANG_HANG_DEADLINE", "5m"), ("UNHANG_HOST_DEADLINE", "2h")]).0, [300, 3000, 7200]);
        for nonsense in ["none", "0", "-1", "inf", "NaN", "1e9"] {
            let (seconds, said) = found(&[("UNHANG_OUTSIDE_DEADLINE", nonsense), ("UNHANG_HOST_DEADLINE", "9")]);
            assert_eq!(seconds, [60, 600, 9], "{nonsense}");
            assert!(said.len() == 1 && said[0].contains(nonsense), "{said:?}");
        }
    }
}
