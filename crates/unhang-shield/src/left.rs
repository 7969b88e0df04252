//! Functions that stay unsafe, and how they are written down.

use unhang_guard::text::printable_line;
use unhang_isa::repair::ObjectRepair;

/// A function that stays unsafe, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Left {
    pub(crate) function: String,
    pub(crate) reason: String,
}

impl Left {
    /// Those of an object. Names come from objects that anybody may have made.
    pub(crate) fn all_of(repair: &ObjectRepair) -> Vec<Left> {
        let left = repair.functions.iter().filter_map(|function| Some((function, function.reason.as_ref()?)));
        left.map(|(function, reason)| Left {
            function: printable_line(&function.name),
            reason: printable_line(&reason.to_string()),
        })
        .collect()
    }

    /// A line of a file: the function and the reason, with a tab between them.
    pub(crate) fn line(&self) -> String {
        format!("{}\t{}\n", self.function, self.reason)
    }

    /// Reads such lines.
    pub(crate) fn parse_all(lines: &str) -> Vec<Left> {
        let pairs = lines.lines().filter_map(|line| line.split_once('\t'));
        pairs.map(|(function, reason)| Left { function: function.to_owned(), reason: reason.to_owned() }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_back_as_they_were_written() {
        let left = |function: &str| Left { function: function.to_owned(), reason: "no register".to_owned() };
        let all = [left("Cijk_a"), left("b c")];
        let lines: String = all.iter().map(Left::line).collect();
        assert_eq!(Left::parse_all(&lines), all);
        assert!(Left::parse_all("no tab\n").is_empty());
    }
}
