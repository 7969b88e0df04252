//! Tables for a terminal.

use comfy_table::{CellAlignment, Table, presets};

/// What is in the columns after the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cells {
    /// Words, which begin below each other.
    Words,
    /// Numbers, which end below each other.
    Numbers,
}

/// Whether no line is wider than `width`.
pub(crate) fn is_within(width: usize, text: &str) -> bool {
    text.lines().all(|line| line.chars().count() <= width)
}

/// A table whose first row is its header. If it is too wide, it becomes several, each with the first column.
pub fn table_in_parts(width: usize, rows: &[Vec<String>], cells: Cells) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let of_columns = |from: usize, to: usize| {
        let part = rows.iter().map(|row| [&row[..1], &row[from..to]].concat()).collect::<Vec<_>>();
        table(&part, cells)
    };
    let (mut parts, mut from) = (Vec::new(), 1);
    while from < columns {
        let fits = |to: &usize| is_within(width, &of_columns(from, *to));
        let to = (from + 1..=columns).rev().find(fits).unwrap_or(from + 1);
        parts.push(of_columns(from, to));
        from = to;
    }
    parts.join("\n\n")
}

/// A table whose first row is its header.
pub(crate) fn table(rows: &[Vec<String>], cells: Cells) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(rows[0].clone());
    table.add_rows(rows[1..].to_vec());
    for column in table.column_iter_mut().skip(1).filter(|_| cells == Cells::Numbers) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.trim_fmt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wide_table_becomes_several_that_have_all_of_it() {
        let header = ["channels", "32×32", "42×42", "44×44", "48×48", "64×64", "128×128"].map(str::to_owned);
        let row = ["16→32", "1.00 ms", "2.00 ms", "hangs", "4.00 ms", "5.00 ms", "6.00 ms"].map(str::to_owned);
        let rows = [header.to_vec(), row.to_vec()];
        assert_eq!(table_in_parts(100, &rows, Cells::Words), table(&rows, Cells::Words));
        for width in [30, 40, 60] {
            let text = table_in_parts(width, &rows, Cells::Words);
            assert!(is_within(width, &text), "{text}");
            assert!(rows.iter().flatten().all(|cell| text.contains(cell.as_str())), "{text}");
            assert!(text.matches("16→32").count() > 1, "each part has the first column: {text}");
        }
        assert!(table_in_parts(5, &rows, Cells::Numbers).contains("6.00 ms"), "what does not fit at all is there");
    }
}
