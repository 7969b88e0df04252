//! Durations as people write them, in flags and in variables: `90`, `90s`, `1.5m`, `2h`, `500ms`.

use std::time::Duration;

/// Anything longer is a typing mistake: 31 years.
const LONGEST: Duration = Duration::from_secs(1_000_000_000);

/// A duration: a number with ms, s, m or h; seconds if there is no unit.
///
/// ```
/// use std::time::Duration;
/// assert_eq!(unhang_guard::time::duration("5m"), Ok(Duration::from_secs(300)));
/// assert_eq!(unhang_guard::time::duration("1.5"), Ok(Duration::from_millis(1500)));
/// assert!(unhang_guard::time::duration("soon").is_err());
/// ```
pub fn duration(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let not_a_time = || format!("'{text}' is not a duration: expected 90s, 10m or 2h, for example");
    let number: f64 = number.parse().map_err(|_| not_a_time())?;
    let unit = match unit.trim() {
        "ms" => 1e-3,
        "s" | "" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(format!("{}: the units are ms, s, m and h", not_a_time())),
    };
    match Duration::try_from_secs_f64(number * unit) {
        Ok(time) if time < LONGEST => Ok(time),
        _ => Err(format!("'{text}' is too long a time")),
    }
}

/// Reads a duration above 0: with a limit of zero, everything would be late.
pub fn deadline(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err(format!("'{text}' is not a deadline: expected a duration above 0, such as 90s or 5m")),
        time => Ok(time),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_people_write_them() {
        for (text, milliseconds) in [
            ("90", 90_000),
            ("90s", 90_000),
            (" 5m ", 300_000),
            ("1.5h", 5_400_000),
            ("250ms", 250),
            ("2 m", 120_000),
            ("0", 0),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
        for nonsense in ["", "s", "-1", "inf", "NaN", "1e9", "1.2.3s", "5 minutes", "1000000000", "99999999999999h"] {
            assert!(duration(nonsense).is_err(), "{nonsense}");
        }
        assert!(deadline("0s").is_err() && deadline("1ms").is_ok());
    }
}
