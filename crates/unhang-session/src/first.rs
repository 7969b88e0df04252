//! First results of kernels that compute no convolution: compared with the CPU's before the caller gets one.

use std::fmt::Debug;
use std::hash::Hash;

use unhang_engine::Verdict;

use crate::device::Device;
use crate::failure::Failure;
use crate::remembered::hash_of;
use crate::session::Session;
use crate::talk::say_once as say;

/// Kernels whose result is asked for.
pub(crate) struct First<'a, K> {
    /// Their family.
    pub(crate) family: &'a str,
    /// Everything that distinguishes one first result from another.
    pub(crate) key: &'a K,
    /// Where they are to run.
    pub(crate) stream: u64,
}

impl<K: Debug> First<'_, K> {
    /// What the verdict is kept under.
    pub(crate) fn name(&self, device: &Device) -> String {
        format!("{}:{:?}", device.card.name_of_family(&device.engine, self.family), self.key)
    }
}

impl Session {
    /// An error unless a result of these kernels was right, here or in an earlier process on this machine. If none is
    /// known, `try_it` returns the error of one as a share of the tolerance.
    pub(crate) fn prove<K: Hash + Debug>(
        &self,
        device: &Device,
        asked: &First<'_, K>,
        try_it: impl FnOnce() -> Result<f64, Failure>,
    ) -> Result<(), Failure> {
        let hash = hash_of(asked.key);
        let found = match device.first_results.get(hash) {
            Some(found) => found,
            None => {
                let found = self.find(device, asked, try_it)?;
                device.first_results.keep(hash, found.clone());
                found
            }
        };
        found.map_err(|detail| Failure::Failed(Verdict::Wrong, detail))
    }

    /// Whether a result is right: by the store's verdict, or by a trial now.
    fn find<K: Debug>(
        &self,
        device: &Device,
        asked: &First<'_, K>,
        try_it: impl FnOnce() -> Result<f64, Failure>,
    ) -> Result<Result<(), String>, Failure> {
        let name = asked.name(device);
        match self.canary(&name) {
            Some((Verdict::Works, _)) => return Ok(Ok(())),
            Some((_, detail)) => return Ok(Err(detail)),
            None => {}
        }
        let driver = device.engine.driver();
        if driver.is_capturing(asked.stream)? || driver.is_capturing(0)? {
            let reason = "a graph is being recorded, and the first result of these kernels was not compared yet";
            return Err(Failure::Declined(reason.to_owned()));
        }
        let share = try_it()?;
        let detail = format!("first result: largest error {share:.2} of what rounding explains");
        let verdict = if share <= 1.0 { Verdict::Works } else { Verdict::Wrong };
        self.keep_canary(&name, verdict, &detail, false);
        Ok(if share <= 1.0 { Ok(()) } else { Err(detail) })
    }
}

/// The verdict, or `None` if the CPU must compute. After a failure of the device nobody can.
pub(crate) fn or_the_cpu<T>(what: &str, found: Result<T, Failure>) -> Result<Option<T>, Failure> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(Failure::Device(reason)) => Err(Failure::Device(reason)),
        Err(failure) => {
            say(&format!("our kernels do not compute a {what}, and the CPU does: {}", failure.reason()));
            Ok(None)
        }
    }
}

/// The error of a number as a share of the tolerance.
pub(crate) fn share(found: f64, right: f64, allowed: f64) -> f64 {
    if found == right || (found.is_nan() && right.is_nan()) {
        return 0.0;
    }
    let share = (found - right).abs() / allowed;
    if share.is_finite() { share } else { f64::INFINITY }
}

/// A few of that many: the first, the last and two between them.
pub(crate) fn few(count: usize) -> Vec<usize> {
    let mut few = vec![0, count / 3, count * 2 / 3, count - 1];
    few.dedup();
    few
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_are_the_ends_and_two_between() {
        assert_eq!(few(1), [0]);
        assert_eq!(few(2), [0, 1]);
        assert_eq!(few(100), [0, 33, 66, 99]);
    }

    #[test]
    fn what_is_no_number_is_right_only_where_it_should_be() {
        assert_eq!(share(f64::NAN, f64::NAN, 1.0), 0.0);
        assert_eq!(share(f64::INFINITY, f64::INFINITY, 1.0), 0.0);
        assert_eq!(share(f64::NAN, 1.0, 1.0), f64::INFINITY);
        assert_eq!(share(3.0, 1.0, 4.0), 0.5);
    }
}
