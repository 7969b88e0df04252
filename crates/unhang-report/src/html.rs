//! The report as one page that needs nothing else: no network, no other file.
//!
//! The page contains the data as JSON in a compact form: ten thousand records stay under a megabyte. Records refer to
//! tables of shapes, strings and plans. The script builds everything by `textContent`, so nothing in the data can
//! become markup. Here the JSON is escaped so that it cannot end its element.

use std::collections::HashMap;
use std::fmt::Write as _;

use serde_json::{Value, json};
use unhang_conv::{DataType, Direction, Layout, Problem};
use unhang_engine::{EngineName, Verdict};
use unhang_evidence::{Record, RecordSource, time};
use unhang_plan::Plan;

use crate::axes::Axes;
use crate::data::{Layer, Report};
use crate::map::{SEVERITY, is_drawn};

const STYLE: &str = include_str!("page/page.css");
const SCRIPT: &str = include_str!("page/page.js");

/// The most bytes of words: details and reasons. Anything beyond is named and left out, so that the page stays small.
const MOST_WORDS: usize = 250_000;
/// The most characters of one text.
const LONGEST_TEXT: usize = 400;
const LEFT_OUT: &str = "(left out to keep this page small; `unhang report --json` has it)";

/// Texts, each stored once, by number.
struct Words {
    numbers: HashMap<String, usize>,
    texts: Vec<String>,
    bytes: usize,
}

impl Words {
    fn new() -> Words {
        // Number 0 is the empty text and number 1 stands for what was left out.
        let texts = vec![String::new(), LEFT_OUT.to_owned()];
        let numbers = texts.iter().enumerate().map(|(number, text)| (text.clone(), number)).collect();
        Words { numbers, texts, bytes: 0 }
    }

    fn number(&mut self, text: &str) -> usize {
        let mut short: String = text.chars().take(LONGEST_TEXT).collect();
        if short.len() < text.len() {
            short.push('…');
        }
        if let Some(number) = self.numbers.get(&short) {
            return *number;
        }
        if self.bytes + short.len() > MOST_WORDS {
            return 1;
        }
        self.bytes += short.len();
        let number = self.texts.len();
        self.texts.push(short.clone());
        self.numbers.insert(short, number);
        number
    }

    /// A reason, split into parts: plans of many convolutions share parts, but few share the whole.
    fn numbers(&mut self, text: &str) -> Vec<usize> {
        text.split("; ").map(|part| self.number(part)).collect()
    }
}

fn position<T: PartialEq>(all: &[T], value: &T) -> usize {
    all.iter().position(|it| it == value).unwrap_or_default()
}

/// Microseconds with three significant digits; 0 for a time that was not measured.
fn microseconds(seconds: Option<f64>) -> Value {
    let Some(value) = seconds.map(|it| it * 1e6).filter(|it| it.is_finite() && *it > 0.0) else { return json!(0) };
    let scale = 10f64.powf(2.0 - value.log10().floor());
    let rounded = (value * scale).round() / scale;
    if rounded >= 1000.0 { json!(rounded as u64) } else { json!(rounded) }
}

impl Report {
    /// The report as a self-contained page.
    pub fn to_html(&self) -> String {
        let mut page = String::new();
        let title = if self.rehearsal { "unhang: rehearsed hang map" } else { "unhang: hang map" };
        let _ = write!(
            page,
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; \
             script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title}</title>\n<style>\n{STYLE}</style>\n\
             </head>\n<body>\n<header>\n<h1>Hang map</h1>\n"
        );
        if self.rehearsal {
            page += "<p class=\"banner\">Rehearsal: this is about a rehearsed card, not a real one.</p>\n";
        }
        let _ = write!(
            page,
            "<p>{}</p>\n<p class=\"quiet\">fingerprint {}, made {}</p>\n</header>\n<main>\n",
            escape(&self.machine),
            escape(&self.fingerprint),
            time::date(self.unix_seconds)
        );
        self.write_summary(&mut page);
        self.draw_advice(&mut page);
        if self.claims() > 0 {
            let _ = writeln!(
                page,
                "<p class=\"quiet\">{} more records are claims by others, not seen here.</p>",
                self.claims()
            );
        }
        page += "<noscript><p>The maps below need scripts. <code>unhang report</code> prints the same in a \
                 terminal.</p></noscript>\n\
                 <form id=\"filters\" hidden></form>\n<div id=\"legend\" class=\"legend\" hidden></div>\n\
                 <div id=\"maps\"></div>\n<div id=\"layers\"></div>\n</main>\n\
                 <dialog id=\"detail\" aria-labelledby=\"detail-title\"></dialog>\n<script type=\"application/json\" id=\"data\">";
        page += &for_script(&self.page_data());
        let _ = write!(page, "</script>\n<script>\n{SCRIPT}</script>\n</body>\n</html>\n");
        page
    }

    fn write_summary(&self, page: &mut String) {
        let summary = self.summary();
        if summary.is_empty() {
            *page += "<p>Nothing is known yet: programs that use unhang add what they see.</p>\n";
            return;
        }
        *page += "<div class=\"scroll\"><table class=\"summary\"><caption>Records by engine and verdict</caption>\
                  <thead><tr><th scope=\"col\">engine</th>";
        for verdict in SEVERITY {
            let _ = write!(page, "<th scope=\"col\">{verdict}</th>");
        }
        *page += "</tr></thead><tbody>";
        for (engine, counts) in summary {
            let _ = write!(page, "<tr><th scope=\"row\">{engine}</th>");
            for verdict in SEVERITY {
                let count = counts[position(&Verdict::ALL, &verdict)];
                let text = if count == 0 { "·".to_owned() } else { count.to_string() };
                let _ = write!(page, "<td>{text}</td>");
            }
            *page += "</tr>";
        }
        *page += "</tbody></table></div>\n";
    }

    fn draw_advice(&self, page: &mut String) {
        *page += "<section><h2>What to do</h2><ul>";
        for advice in self.what_to_do() {
            // Commands are in backticks.
            let words: Vec<String> = advice.split('`').map(escape).collect();
            let marked = words.iter().enumerate().map(|(index, word)| match index % 2 {
                0 => word.clone(),
                _ => format!("<code>{word}</code>"),
            });
            let _ = write!(page, "<li>{}</li>", marked.collect::<String>());
        }
        *page += "</ul></section>\n";
    }

    fn page_data(&self) -> Value {
        let mut tables = Tables::new(self.axes());
        let first_day = self.records.iter().map(|it| it.unix_seconds.div_euclid(86_400)).min().unwrap_or_default();
        let records: Vec<Value> =
            self.records.iter().flat_map(|it| self.record_data(it, first_day, &mut tables)).collect();
        let layers: Vec<Value> = self.layers.iter().map(|it| self.layer_data(it, &mut tables)).collect();
        json!({
            "rehearsal": self.rehearsal,
            "rows": tables.axes.rows(),
            "columns": tables.axes.columns(),
            "directions": Direction::ALL.map(Direction::name),
            "dataTypes": DataType::ALL.map(DataType::name),
            "layouts": Layout::ALL.map(Layout::name),
            "engines": EngineName::ALL.map(EngineName::name),
            "verdicts": SEVERITY.map(Verdict::name),
            "sources": RecordSource::ALL.map(RecordSource::name),
            "firstDay": first_day,
            "words": tables.words.texts,
            "shapes": tables.shapes,
            "plans": tables.plans,
            "records": records,
            "layers": layers,
        })
    }

    /// A record: eight numbers in a flat list. Brackets would make up a fifth of the page.
    fn record_data(&self, record: &Record, first_day: i64, tables: &mut Tables) -> [Value; 8] {
        let problem = &record.problem;
        let facets = [
            (position(&Direction::ALL, &problem.direction()), Direction::ALL.len()),
            (position(&DataType::ALL, &problem.data_type()), DataType::ALL.len()),
            (position(&Layout::ALL, &problem.layout()), Layout::ALL.len()),
            (position(&EngineName::ALL, &record.engine), EngineName::ALL.len()),
            (position(&SEVERITY, &record.verdict), SEVERITY.len()),
            (position(&RecordSource::ALL, &record.source), RecordSource::ALL.len()),
            (usize::from(is_drawn(record)), 2),
        ];
        let packed = facets.iter().fold(0, |packed, (value, base)| packed * base + value);
        [
            json!(tables.shape_number(problem)),
            json!(packed),
            json!(tables.words.number(&record.variant)),
            microseconds(record.seconds),
            microseconds(record.first_seconds),
            json!(record.unix_seconds.div_euclid(86_400) - first_day),
            json!(tables.words.number(&record.detail)),
            json!(tables.plan_number(self.plans.get(problem))),
        ]
    }

    fn layer_data(&self, layer: &Layer, tables: &mut Tables) -> Value {
        let engine = |(engine, count): &(EngineName, u64)| json!([position(&EngineName::ALL, engine), count]);
        let engines: Vec<Value> = layer.engines.iter().map(engine).collect();
        let plan = tables.plan_number(self.plans.get(&layer.problem));
        json!([layer.name, layer.problem.to_string(), layer.calls, engines, plan])
    }
}

/// The tables that records and layers refer to, each entry once.
struct Tables {
    axes: Axes,
    words: Words,
    /// Flat: four values per shape.
    shapes: Vec<Value>,
    shape_numbers: HashMap<String, usize>,
    plans: Vec<Value>,
    plan_numbers: HashMap<String, usize>,
}

impl Tables {
    fn new(axes: Axes) -> Tables {
        Tables {
            axes,
            words: Words::new(),
            shapes: Vec::new(),
            shape_numbers: HashMap::new(),
            plans: Vec::new(),
            plan_numbers: HashMap::new(),
        }
    }

    /// The number of a plan; -1 for none.
    fn plan_number(&mut self, plan: Option<&Plan>) -> i64 {
        let Some(plan) = plan else { return -1 };
        let engines: Vec<usize> = plan.engines.iter().map(|it| position(&EngineName::ALL, it)).collect();
        let warnings: Vec<usize> = plan.warnings.iter().map(|it| self.words.number(it)).collect();
        let value = json!([engines, self.words.numbers(&plan.reason), warnings]);
        let number = *self.plan_numbers.entry(value.to_string()).or_insert_with(|| {
            self.plans.push(value);
            self.plans.len() - 1
        });
        number as i64
    }

    fn shape_number(&mut self, problem: &Problem) -> usize {
        let key = problem.to_string();
        let shape = key.splitn(4, ':').nth(3).unwrap_or_default();
        if let Some(number) = self.shape_numbers.get(shape) {
            return *number;
        }
        // There are few combinations of strides, paddings and groups; `s1x1:p1x1:d1x1:g1` is most of them.
        let (sizes, rest) = shape.split_once(":s").unwrap_or((shape, ""));
        let number = self.shapes.len() / 4;
        let (row, column) = self.axes.place(problem);
        self.shapes.extend([json!(sizes), json!(self.words.number(rest)), json!(row), json!(column)]);
        self.shape_numbers.insert(shape.to_owned(), number);
        number
    }
}

/// Escapes text for markup.
fn escape(text: &str) -> String {
    let mut result = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => result.push_str("&amp;"),
            '<' => result.push_str("&lt;"),
            '>' => result.push_str("&gt;"),
            '"' => result.push_str("&quot;"),
            '\'' => result.push_str("&#39;"),
            c if c.is_control() => result.push('\u{fffd}'),
            c => result.push(c),
        }
    }
    result
}

/// JSON that can neither end the script element around it nor begin a comment there.
fn for_script(value: &Value) -> String {
    let mut result = String::new();
    for c in value.to_string().chars() {
        match c {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                let _ = write!(result, "\\u{:04x}", c as u32);
            }
            c => result.push(c),
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_keep_three_digits() {
        assert_eq!(microseconds(Some(0.000_123_456)), json!(123.0));
        assert_eq!(microseconds(Some(0.001_234)), json!(1230));
        assert_eq!(microseconds(Some(1.5e-6)), json!(1.5));
        assert_eq!(microseconds(Some(2000.4)), json!(2_000_000_000u64));
        for nothing in [None, Some(f64::NAN), Some(0.0), Some(-1.0)] {
            assert_eq!(microseconds(nothing), json!(0));
        }
    }

    #[test]
    fn nothing_ends_the_element() {
        let text = for_script(&json!({"</script><!--": "<&>\u{2028}"}));
        assert!(!text.contains(['<', '>', '&', '\u{2028}']), "{text}");
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), json!({"</script><!--": "<&>\u{2028}"}));
        assert_eq!(escape("<b a='\"'>&\x1b"), "&lt;b a=&#39;&quot;&#39;&gt;&amp;\u{fffd}");
    }
}
