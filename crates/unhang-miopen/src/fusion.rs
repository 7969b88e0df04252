//! Fusion plans and "find 2.0": they have no getters, so that what holds a convolution is noted when it is made.
//!
//! Where a convolution of the caller's would not be MIOpen's, neither is one inside of a fusion plan: its compilation is refused,
//! with the status that MIOpen itself has for plans without a kernel. Frameworks then compute the parts one by one.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use unhang_miopen_api::Opaque;
use unhang_session::say_once as say;

use crate::face::process;
use crate::real::{self, Real};

/// Fusion plans and problems with a convolution in them.
static WITH_CONVOLUTION: Mutex<Option<HashSet<usize>>> = Mutex::new(None);

fn noted<T>(change: impl FnOnce(&mut HashSet<usize>) -> T) -> T {
    let mut noted = WITH_CONVOLUTION.lock().unwrap_or_else(PoisonError::into_inner);
    change(noted.get_or_insert_with(HashSet::new))
}

/// Notes that a plan or a problem holds a convolution.
pub(crate) fn note(plan: Opaque) {
    noted(|all| all.insert(plan as usize));
}

/// Forgets one that is destroyed.
pub(crate) fn forget(plan: Opaque) {
    noted(|all| all.remove(&(plan as usize)));
}

/// Whether a call with this plan or problem is refused: it holds a convolution, and the card is one on which nothing unproven of
/// MIOpen's runs.
pub(crate) fn is_refused(real: &Real, plan: Opaque, what: &str) -> bool {
    if real::is_inside() || !noted(|all| all.contains(&(plan as usize))) {
        return false;
    }
    is_endangered(real, what)
}

/// Whether a call that would compute a convolution of any kind is refused.
pub(crate) fn is_endangered(real: &Real, what: &str) -> bool {
    let refused = !real::is_inside() && process(real).is_some_and(|process| process.is_endangered());
    if refused {
        say(&format!("{what} is refused: MIOpen's own convolutions are not proven on this card"));
    }
    refused
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_known_from_when_it_is_noted_until_it_is_destroyed() {
        let plan = 0x1234_5678 as Opaque;
        let is_known = || noted(|all| all.contains(&(plan as usize)));
        assert!(!is_known());
        note(plan);
        assert!(is_known());
        forget(plan);
        assert!(!is_known());
    }
}
