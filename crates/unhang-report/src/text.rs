//! The report for a terminal.

use std::fmt::Write as _;

use comfy_table::{CellAlignment, Table, presets};
use unhang_engine::Verdict;
use unhang_evidence::time;
use unhang_guard::text::printable_line;

use crate::data::Report;
use crate::map::Map;

impl Report {
    /// The report as text: counts, maps, layers. Text from outside passes the one filter.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        if self.rehearsal {
            text += "REHEARSAL: what follows is about a rehearsed card, not a real one\n";
        }
        let _ = writeln!(text, "{}", printable_line(&self.machine));
        let _ =
            writeln!(text, "fingerprint {}, {}\n", printable_line(&self.fingerprint), time::date(self.unix_seconds));
        if self.records.is_empty() && self.layers.is_empty() {
            text += "nothing is known yet: programs that use unhang add what they see\n";
            self.write_advice(&mut text);
            return text;
        }
        if !self.summary().is_empty() {
            let mut header = vec!["engine".to_owned()];
            header.extend(Verdict::ALL.map(|verdict| verdict.to_string()));
            let mut summary = table(header);
            for (engine, counts) in self.summary() {
                let mut row = vec![engine.to_string()];
                row.extend(counts.map(|count| if count == 0 { "·".to_owned() } else { count.to_string() }));
                summary.add_row(row);
            }
            let _ = writeln!(text, "{}\n", summary.trim_fmt());
        }
        if self.claims() > 0 {
            let _ = writeln!(text, "{} more records are claims by others, not seen here\n", self.claims());
        }
        for map in self.maps() {
            draw(&mut text, &map);
        }
        if !self.layers.is_empty() {
            text += "layers\n";
            let header = ["layer", "calls", "computed by", "plan", "convolution"];
            let mut layers = table(header.map(str::to_owned).to_vec());
            for layer in &self.layers {
                let computed: Vec<String> =
                    layer.engines.iter().map(|(engine, count)| format!("{engine} {count}")).collect();
                let plan = self.plans.get(&layer.problem).map(|it| it.choice().to_string()).unwrap_or_default();
                layers.add_row([
                    printable_line(&layer.name),
                    layer.calls.to_string(),
                    computed.join(", "),
                    plan,
                    layer.problem.to_string(),
                ]);
            }
            let _ = writeln!(text, "{}\n", layers.trim_fmt());
        }
        self.write_advice(&mut text);
        text
    }

    fn write_advice(&self, text: &mut String) {
        *text += "what to do\n";
        for advice in self.what_to_do() {
            let _ = writeln!(text, "  {advice}");
        }
    }
}

fn table(header: Vec<String>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let numbers = header.iter().skip(1).any(|name| name == "works");
    table.set_header(header);
    if numbers {
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

fn draw(text: &mut String, map: &Map) {
    let variant =
        if map.variant.is_empty() { String::new() } else { format!(" under {}", printable_line(&map.variant)) };
    let _ = writeln!(text, "{}{variant}, {}, {}", map.engine, map.direction, map.data_type);
    let mut header = vec!["channels".to_owned()];
    header.extend(map.columns.iter().cloned());
    let mut grid = table(header);
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
        grid.add_row(line);
    }
    let _ = writeln!(text, "{}\n", grid.trim_fmt());
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
        let text = report.to_text();
        let is_plain = |c: char| !c.is_control() || c == '\n';
        assert!(text.chars().all(|c| is_plain(c) && !"\u{202e}\u{200b}\u{2066}".contains(c)), "{text:?}");
        assert!(text.starts_with("card\u{fffd}txet\u{fffd}\u{fffd}[2J\nfingerprint a\u{fffd}b c"), "{text:?}");
    }
}
