//! The two axes of the hang map: channels down, size across. All maps of a report share them, so they can be compared.

use std::collections::BTreeSet;

use unhang_conv::Problem;

/// More distinct values than this are grouped into ranges: a map that does not fit on a page shows nothing.
const MOST_EXACT: usize = 24;

/// The labels of rows and columns, and the position of a problem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Axes {
    channels: Axis,
    sizes: Axis,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Axis {
    /// Every value has its own position.
    Exact(Vec<[usize; 2]>),
    /// Values are grouped by the power of two at or below the larger number.
    Ranges(Vec<u32>),
}

impl Axis {
    fn new(values: impl Iterator<Item = [usize; 2]>) -> Axis {
        // Sorted by the larger number first, so that neighbours in the map are neighbours in size.
        let exact: BTreeSet<(usize, [usize; 2])> = values.map(|it| (it[0].max(it[1]), it)).collect();
        if exact.len() <= MOST_EXACT {
            return Axis::Exact(exact.into_iter().map(|(_, it)| it).collect());
        }
        let ranges: BTreeSet<u32> = exact.into_iter().map(|(larger, _)| larger.max(1).ilog2()).collect();
        Axis::Ranges(ranges.into_iter().collect())
    }

    fn place(&self, value: [usize; 2]) -> usize {
        let found = match self {
            Axis::Exact(values) => values.iter().position(|it| *it == value),
            Axis::Ranges(ranges) => {
                let range = value[0].max(value[1]).max(1).ilog2();
                ranges.iter().position(|it| *it == range)
            }
        };
        found.unwrap_or_default()
    }

    fn labels(&self, separator: &str) -> Vec<String> {
        match self {
            Axis::Exact(values) => values.iter().map(|[a, b]| format!("{a}{separator}{b}")).collect(),
            Axis::Ranges(ranges) => ranges
                .iter()
                .map(|&range| {
                    let (from, to) = (1usize << range, (2usize << range) - 1);
                    if from == to { from.to_string() } else { format!("{from}–{to}") }
                })
                .collect(),
        }
    }
}

fn channels(problem: &Problem) -> [usize; 2] {
    [problem.in_channels(), problem.out_channels()]
}

impl Axes {
    pub(crate) fn new<'a>(problems: impl Iterator<Item = &'a Problem> + Clone) -> Axes {
        Axes { channels: Axis::new(problems.clone().map(channels)), sizes: Axis::new(problems.map(Problem::in_size)) }
    }

    /// The row and the column of a problem.
    pub(crate) fn place(&self, problem: &Problem) -> (usize, usize) {
        (self.channels.place(channels(problem)), self.sizes.place(problem.in_size()))
    }

    pub(crate) fn rows(&self) -> Vec<String> {
        self.channels.labels("→")
    }

    pub(crate) fn columns(&self) -> Vec<String> {
        self.sizes.labels("×")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(channels: usize, size: usize) -> Problem {
        format!("forward:f32:nchw:1x{channels}x{size}x{size}:32x1x1:s1x1:p0x0:d1x1:g1").parse().unwrap()
    }

    #[test]
    fn few_values_have_places_of_their_own() {
        let problems = [problem(16, 64), problem(3, 32), problem(16, 32)];
        let axes = Axes::new(problems.iter());
        assert_eq!(axes.rows(), ["3→32", "16→32"]);
        assert_eq!(axes.columns(), ["32×32", "64×64"]);
        assert_eq!(problems.each_ref().map(|it| axes.place(it)), [(1, 1), (0, 0), (1, 0)]);
    }

    #[test]
    fn many_values_are_put_together() {
        let problems: Vec<Problem> = (1..=200).map(|size| problem(3, size)).collect();
        let axes = Axes::new(problems.iter());
        assert_eq!(axes.columns(), ["1", "2–3", "4–7", "8–15", "16–31", "32–63", "64–127", "128–255"]);
        assert_eq!((axes.place(&problem(3, 1)), axes.place(&problem(3, 64))), ((0, 0), (0, 6)));
    }
}
