//! The report for a terminal.

use std::fmt::Write as _;

use unhang_engine::Verdict;
use unhang_evidence::time;
use unhang_guard::text::printable_line;

use crate::data::Report;
use crate::map::Map;
use crate::table::{Cells, is_within, table, table_in_parts};
use crate::wrap::wrapped;

impl Report {
    /// The report as text for a terminal of that many columns: counts, maps, layers. Outside text passes the one
    /// filter.
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
            text += &format!("{}\n\n", table_in_parts(width, &rows, Cells::Numbers));
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

    /// The layers as a table, or as a list if the table is too wide.
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
        let whole = table(&rows, Cells::Words);
        if is_within(width, &whole) {
            return format!("{whole}\n\n");
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
    *text += &format!("{}\n\n", table_in_parts(width, &rows, Cells::Numbers));
}

#[cfg(test)]
mod tests {
    use super::*;

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
