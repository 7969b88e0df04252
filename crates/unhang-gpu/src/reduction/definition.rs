//! Reductions: their definition in f64, which judges every kernel and computes where none may run.

/// What is made of some elements. Without elements that are numbers the least is infinity and the largest its opposite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names say it")]
pub enum ReductionKind {
    Sum,
    Product,
    Least,
    Largest,
    /// The largest magnitude.
    Furthest,
    Mean,
    /// The sum of magnitudes.
    Norm1,
    /// The root of the sum of squares.
    Norm2,
}

impl ReductionKind {
    /// All of them, each at the number that MIOpen has for it.
    pub const ALL: [ReductionKind; 8] = [
        ReductionKind::Sum,
        ReductionKind::Product,
        ReductionKind::Least,
        ReductionKind::Largest,
        ReductionKind::Furthest,
        ReductionKind::Mean,
        ReductionKind::Norm1,
        ReductionKind::Norm2,
    ];

    /// Whether the result is one of the elements, which has an index.
    pub const fn is_extreme(self) -> bool {
        matches!(self, ReductionKind::Least | ReductionKind::Largest | ReductionKind::Furthest)
    }

    /// What it makes of elements, and the index of the one that it is: the first of equal ones, 0 if there is none.
    /// NaN is never the result of a comparison, or with `propagates` always, and then the last one.
    pub fn of(self, propagates: bool, elements: impl Iterator<Item = f64>) -> (f64, usize) {
        let (mut all, mut index, mut count) = (self.of_nothing(), 0, 0);
        for (at, value) in elements.enumerate() {
            count = at + 1;
            let value = match self {
                ReductionKind::Furthest | ReductionKind::Norm1 => value.abs(),
                ReductionKind::Norm2 => value * value,
                _ => value,
            };
            let is_next = match self {
                _ if propagates && self.is_extreme() && value.is_nan() => true,
                ReductionKind::Least => value < all,
                ReductionKind::Largest | ReductionKind::Furthest => value > all,
                _ => false,
            };
            match self {
                ReductionKind::Product => all *= value,
                _ if !self.is_extreme() => all += value,
                _ if is_next => (all, index) = (value, at),
                _ => {}
            }
        }
        match self {
            ReductionKind::Mean => (all / count as f64, 0),
            ReductionKind::Norm2 => (all.sqrt(), 0),
            _ => (all, index),
        }
    }

    fn of_nothing(self) -> f64 {
        match self {
            ReductionKind::Product => 1.0,
            ReductionKind::Least => f64::INFINITY,
            ReductionKind::Largest => f64::NEG_INFINITY,
            _ => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_numbers_are_reduced_as_by_hand() {
        let numbers = [3.0, -4.0, 1.0, 3.0, -4.0];
        let found = ReductionKind::ALL.map(|kind| kind.of(false, numbers.into_iter()));
        let values = [-1.0, 144.0, -4.0, 3.0, 4.0, -0.2, 15.0, 51f64.sqrt()];
        assert_eq!(found.map(|(value, _)| value), values);
        assert_eq!(found.map(|(_, index)| index), [0, 0, 1, 0, 1, 0, 0, 0], "the first of equal ones");
    }

    #[test]
    fn nan_is_left_out_or_is_the_result() {
        let numbers = || [1.0, f64::NAN, 5.0, f64::NAN, -2.0].into_iter();
        assert_eq!(ReductionKind::Largest.of(false, numbers()), (5.0, 2));
        assert_eq!(ReductionKind::Least.of(false, numbers()), (-2.0, 4));
        let (found, index) = ReductionKind::Furthest.of(true, numbers());
        assert!(found.is_nan() && index == 3, "the last one, as in MIOpen");
        assert!(ReductionKind::Sum.of(false, numbers()).0.is_nan(), "a sum has no choice");
        let none = || [f64::NAN; 2].into_iter();
        assert_eq!(ReductionKind::Largest.of(false, none()), (f64::NEG_INFINITY, 0));
        assert_eq!(ReductionKind::Furthest.of(false, none()), (0.0, 0));
    }
}
