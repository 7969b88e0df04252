//! Time in the store: whole seconds since 1970, and their date in words.

use std::time::{SystemTime, UNIX_EPOCH};

/// Now, in seconds since 1970.
pub fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64)
}

/// The date in UTC, such as `2026-02-11`.
///
/// ```
/// assert_eq!(unhang_evidence::time::date(1_762_560_000), "2025-11-08");
/// ```
pub fn date(unix_seconds: i64) -> String {
    // Converts days to a date of the proleptic Gregorian calendar. It counts in 400-year eras that start on 1 March,
    // so the leap day is the last day of its year.
    let days = unix_seconds.div_euclid(86_400) + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

/// A duration for a person: `1.20 s`, `3.45 ms`, `12.0 µs`.
pub fn duration(seconds: f64) -> String {
    if seconds >= 1.0 {
        format!("{seconds:.2} s")
    } else if seconds >= 1e-3 {
        format!("{:.2} ms", seconds * 1e3)
    } else {
        format!("{:.1} µs", seconds * 1e6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        for (seconds, expected) in [
            (0, "1970-01-01"),
            (-1, "1969-12-31"),
            (951_782_400, "2000-02-29"),
            (951_868_800, "2000-03-01"),
            (1_709_164_800, "2024-02-29"),
            (4_102_444_799, "2099-12-31"),
        ] {
            assert_eq!(date(seconds), expected);
        }
    }

    #[test]
    fn durations() {
        assert_eq!(duration(0.000_012), "12.0 µs");
        assert_eq!(duration(0.003_454), "3.45 ms");
        assert_eq!(duration(33.0 * 60.0), "1980.00 s");
    }
}
