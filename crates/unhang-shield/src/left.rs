//! Functions that stay unsafe, and their text form.

use unhang_guard::text::printable_line;
use unhang_isa::repair::ObjectRepair;

/// A function that stays unsafe, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Left {
    pub(crate) function: String,
    pub(crate) reason: String,
}

impl Left {
    /// Those of an object: kernels before functions that kernels may call, most findings first. Names come from objects
    /// that anybody may have made.
    pub(crate) fn all_of(repair: &ObjectRepair) -> Vec<Left> {
        let left = repair.functions.iter().filter_map(|function| Some((function, function.reason.as_ref()?)));
        let mut left: Vec<_> = left.collect();
        left.sort_by_key(|(function, _)| (!function.is_kernel, std::cmp::Reverse(function.after.total())));
        left.into_iter()
            .map(|(function, reason)| Left {
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

    const MOVES: &[u8] = include_bytes!("../../unhang-isa/tests/fixtures/moves.co");

    #[test]
    fn the_kernel_with_most_findings_is_named_first_and_what_it_calls_last() {
        use unhang_isa::repair::{FunctionRepair, Options, Reason, repair_object};
        let mut repair = repair_object(MOVES, Options { chip: unhang_isa::Chip::Gfx1010, keep_size: false }).unwrap();
        let model = repair.functions.iter().find(|it| it.name == "left_jump").unwrap();
        let with = |name: &str, is_kernel, like: &str| FunctionRepair {
            name: name.to_owned(),
            is_kernel,
            reason: Some(Reason::RunsOn),
            after: repair.functions.iter().find(|it| it.name == like).unwrap().before,
            ..model.clone()
        };
        let functions = vec![
            with("called", false, "everything"),
            with("small", true, "left_illegal"),
            with("large", true, "everything"),
        ];
        repair.functions = functions;
        let names: Vec<String> = Left::all_of(&repair).into_iter().map(|it| it.function).collect();
        assert_eq!(names, ["large", "small", "called"]);
    }

    #[test]
    fn lines_come_back_as_they_were_written() {
        let left = |function: &str| Left { function: function.to_owned(), reason: "no register".to_owned() };
        let all = [left("Cijk_a"), left("b c")];
        let lines: String = all.iter().map(Left::line).collect();
        assert_eq!(Left::parse_all(&lines), all);
        assert!(Left::parse_all("no tab\n").is_empty());
    }
}
