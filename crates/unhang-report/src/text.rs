//! The report for a terminal.

use std::fmt::Write as _;

use comfy_table::{CellAlignment, Table, presets};
use unhang_engine::Verdict;
use unhang_evidence::time;
use unhang_guard::text::printable_line;

use crate::data::Report;
use crate::map::Map;
use crate::wrap::wrapped;

impl Report {
    /// The report as text for a terminal of that many columns: counts, maps, layers. Text from outside passes the one filter.
    pub fn to_text(&self, width: usize) -> String {
        let mut text = String::new();
        let line = |text: &mut String, words: &str| {
            let _ = writeln!(text, "{}", wrapped(width, &printable_line(words), 0, 2));
        };
        if self.rehearsal {
            line(&mut text, "REHEARSAL: what follows is about a rehearsed card, not a real one");
        }
        line(&mut text, &self.machine);
        line(&mut text, &format!("fingerprint {}, {}", self.fingerprint, time::date(self.unix_seconds)));
        text.push('\n');
        if self.records.is_empty() && self.layers.is_empty() {
            line(&mut text, "nothing is known yet: programs that use unhang add what they see");
            text.push('\n');
            self.write_advice(&mut text, width);
            return text;
        }
        if !self.summary().is_empty() {
            let mut rows = vec![vec!["engine".to_owned()]];
            rows[0].extend(Verdict::ALL.map(|verdict| verdict.to_string()));
            for (engine, counts) in self.summary() {
                let mut row = vec![engine.to_string()];
                row.extend(counts.map(|count| if count == 0 { "·".to_owned() } else { count.to_string() }));
                rows.push(row);
            }
            text += &in_parts(width, &rows);
        }
        if self.claims() > 0 {
            line(&mut text, &format!("{} more records are claims by others, not seen here", self.claims()));
            text.push('\n');
        }
        for map in self.maps() {
            draw(&mut text, &map, width);
        }
        if !self.layers.is_empty() {
            text += "layers\n";
            text += &self.layers_in_words(width);
        }
        self.write_advice(&mut text, width);
        text
    }

    /// The layers as a table, or one below the other where the table is too wide.
    fn layers_in_words(&self, width: usize) -> String {
        let mut rows = vec![["layer", "calls", "computed by", "plan", "convolution"].map(str::to_owned).to_vec()];
        for layer in &self.layers {
            let computed: Vec<String> =
                layer.engines.iter().map(|(engine, count)| format!("{engine} {count}")).collect();
            let plan = self.plans.get(&layer.problem).map(|it| it.choice().to_string()).unwrap_or_default();
            rows.push(vec![
                printable_line(&layer.name),
                layer.calls.to_string(),
                computed.join(", "),
                plan,
                layer.problem.to_string(),
            ]);
        }
        let whole = table(&rows);
        if is_within(width, &whole) {
            return whole;
        }
        let mut text = String::new();
        for row in &rows[1..] {
            let [name, calls, computed, plan, key] = row.as_slice() else { continue };
            let facts = [name.clone(), format!("calls: {calls}"), format!("plan: {plan}"), computed.clone()];
            let facts: Vec<String> = facts.into_iter().filter(|fact| !fact.is_empty()).collect();
            let _ = writeln!(text, " {key}\n{}", wrapped(width, &facts.join(", "), 4, 4));
        }
        text + "\n"
    }

    fn write_advice(&self, text: &mut String, width: usize) {
        *text += "what to do\n";
        for advice in self.what_to_do() {
            let _ = writeln!(text, "{}", wrapped(width, &advice, 2, 4));
        }
    }
}

/// Whether no line is wider than that.
fn is_within(width: usize, text: &str) -> bool {
    text.lines().all(|line| line.chars().count() <= width)
}

/// A table whose first row is its header, as one that fits; else as several, each with the first column.
fn in_parts(width: usize, rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let of_columns = |from: usize, to: usize| {
        let part = rows.iter().map(|row| [&row[..1], &row[from..to]].concat()).collect::<Vec<_>>();
        table(&part)
    };
    let (mut text, mut from) = (String::new(), 1);
    while from < columns {
        let fits = |to: &usize| is_within(width, &of_columns(from, *to));
        let to = (from + 1..=columns).rev().find(fits).unwrap_or(from + 1);
        text += &of_columns(from, to);
        from = to;
    }
    text
}

/// A table whose first row is its header, with an empty line below it.
fn table(rows: &[Vec<String>]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(rows[0].clone());
    table.add_rows(rows[1..].to_vec());
    if rows[0].iter().any(|name| Verdict::ALL.iter().any(|verdict| verdict.to_string() == *name)) {
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    format!("{}\n\n", table.trim_fmt())
}

fn draw(text: &mut String, map: &Map, width: usize) {
    let variant =
        if map.variant.is_empty() { String::new() } else { format!(" under {}", printable_line(&map.variant)) };
    let title = format!("{}{variant}, {}, {}", map.engine, map.direction, map.data_type);
    let _ = writeln!(text, "{}", wrapped(width, &title, 0, 2));
    let mut rows = vec![vec!["channels".to_owned()]];
    rows[0].extend(map.columns.iter().cloned());
    for (row, label) in map.rows.iter().enumerate() {
        if !map.cells.iter().any(|cell| cell.row == row) {
            continue;
        }
        let mut line = vec![label.clone()];
        for column in 0..map.columns.len() {
            let cell = map.cells.iter().find(|cell| (cell.row, cell.column) == (row, column));
            line.push(match cell {
                None => "·".to_owned(),
                Some(cell) if cell.verdict.is_good() => cell.seconds.map_or("works".to_owned(), time::duration),
                Some(cell) if cell.worst < cell.count => format!("{} {}/{}", cell.verdict, cell.worst, cell.count),
                Some(cell) => cell.verdict.to_string(),
            });
        }
        rows.push(line);
    }
    *text += &in_parts(width, &rows);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wide_table_becomes_several_that_have_all_of_it() {
        let header = ["channels", "32×32", "42×42", "44×44", "48×48", "64×64", "128×128"].map(str::to_owned);
        let row = ["16→32", "1.00 ms", "2.00 ms", "hangs", "4.00 ms", "5.00 ms", "6.00 ms"].map(str::to_owned);
        let rows = [header.to_vec(), row.to_vec()];
        assert_eq!(in_parts(100, &rows), table(&rows));
        for width in [30, 40, 60] {
            let text = in_parts(width, &rows);
            assert!(is_within(width, &text), "{text}");
            assert!(rows.iter().flatten().all(|cell| text.contains(cell.as_str())), "{text}");
            assert!(text.matches("16→32").count() > 1, "each part has the first column: {text}");
        }
        assert!(in_parts(5, &rows).contains("6.00 ms"), "what does not fit at all is there");
    }

    #[test]
    fn nothing_from_outside_drives_the_terminal_or_turns_the_writing() {
        let evidence = unhang_evidence::Evidence::empty("a\u{2066}b\nc");
        let report = Report::new("card\u{202e}txet\u{200b}\x1b[2J", &evidence, Vec::new(), |_| {
            unreachable!("nothing is planned")
        });
        let text = report.to_text(100);
        let is_plain = |c: char| !c.is_control() || c == '\n';
        assert!(text.chars().all(|c| is_plain(c) && !"\u{202e}\u{200b}\u{2066}".contains(c)), "{text:?}");
        assert!(text.starts_with("card\u{fffd}txet\u{fffd}\u{fffd}[2J\nfingerprint a\u{fffd}b c"), "{text:?}");
    }
}
