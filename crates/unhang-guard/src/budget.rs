//! How much may be unpacked from one file: all members, bundles and rows together.
//!
//! Limits per object are not enough. An archive can name the same bytes a hundred thousand times, and a few kilobytes
//! of bzip2 unpack to gigabytes. Real containers unpack to a few times their size; a hundred times is generous.

use std::cell::Cell;

use thiserror::Error;

const FLOOR: u64 = 64 << 20;
const RATIO: u64 = 100;

/// A file would unpack to more than is allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{claimed} bytes are packed in it; more than {limit} are not unpacked from a file of this size")]
pub struct OverBudget {
    /// The amount, as far as it was seen.
    pub claimed: u64,
    /// The limit.
    pub limit: u64,
}

/// The remaining budget.
#[derive(Debug)]
pub struct Budget {
    limit: u64,
    left: Cell<u64>,
}

impl Budget {
    /// The budget for a file of that many bytes.
    pub fn for_file(length: u64) -> Budget {
        let limit = length.saturating_mul(RATIO).saturating_add(FLOOR);
        Budget { limit, left: Cell::new(limit) }
    }

    /// Spends that many bytes. Call it before unpacking them.
    pub fn spend(&self, bytes: u64) -> Result<(), OverBudget> {
        match self.left.get().checked_sub(bytes) {
            Some(left) => {
                self.left.set(left);
                Ok(())
            }
            None => {
                let claimed = (self.limit - self.left.get()).saturating_add(bytes);
                Err(OverBudget { claimed, limit: self.limit })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_counts() {
        let budget = Budget::for_file(1 << 20);
        budget.spend(100 << 20).unwrap();
        budget.spend(64 << 20).unwrap();
        assert_eq!(budget.spend(1), Err(OverBudget { claimed: (164 << 20) + 1, limit: 164 << 20 }));
        Budget::for_file(u64::MAX).spend(u64::MAX).unwrap();
    }
}
