//! Tables of behaviour: what a rehearsed card does with which convolution.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;
use unhang_conv::Problem;
use unhang_engine::EngineName;

/// What a rehearsed card does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Behaviour {
    /// Returns the right result.
    Works,
    /// Never returns from compilation.
    HangCompile,
    /// Never returns from the library's search.
    HangFind,
    /// Never returns from the kernel.
    HangRun,
    /// Never returns from the kernel, and the card does not recover: from then on canaries hang.
    Lost,
    /// Dies as the GPU's runtime does on a bad address: a message, then SIGABRT.
    Abort,
    /// Dies of SIGSEGV.
    Segfault,
    /// Is killed from outside (SIGKILL), as by the kernel when memory is short.
    Killed,
    /// Ends with code 0 and no answer.
    Exit,
    /// Returns a partly wrong result.
    Wrong,
    /// Returns a result with some NaN.
    NotNumbers,
    /// Sends something that is not an answer.
    Garbage,
    /// Sends far too much.
    Flood,
    /// Declines.
    Unsupported,
    /// Returns an error.
    Error,
}

impl Behaviour {
    /// Every behaviour.
    pub const ALL: [Behaviour; 15] = [
        Behaviour::Works,
        Behaviour::HangCompile,
        Behaviour::HangFind,
        Behaviour::HangRun,
        Behaviour::Lost,
        Behaviour::Abort,
        Behaviour::Segfault,
        Behaviour::Killed,
        Behaviour::Exit,
        Behaviour::Wrong,
        Behaviour::NotNumbers,
        Behaviour::Garbage,
        Behaviour::Flood,
        Behaviour::Unsupported,
        Behaviour::Error,
    ];

    /// The name in a table.
    pub const fn name(self) -> &'static str {
        match self {
            Behaviour::Works => "works",
            Behaviour::HangCompile => "hang-compile",
            Behaviour::HangFind => "hang-find",
            Behaviour::HangRun => "hang-run",
            Behaviour::Lost => "lost",
            Behaviour::Abort => "abort",
            Behaviour::Segfault => "segfault",
            Behaviour::Killed => "killed",
            Behaviour::Exit => "exit",
            Behaviour::Wrong => "wrong",
            Behaviour::NotNumbers => "nan",
            Behaviour::Garbage => "garbage",
            Behaviour::Flood => "flood",
            Behaviour::Unsupported => "unsupported",
            Behaviour::Error => "error",
        }
    }
}

impl fmt::Display for Behaviour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A condition on a number: any, or a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Number {
    Any,
    Exactly(usize),
    Over(usize),
    UpTo(usize),
    /// A power of two, this one or larger.
    PowerOfTwo(usize),
}

impl Number {
    fn holds(self, number: usize) -> bool {
        match self {
            Number::Any => true,
            Number::Exactly(it) => number == it,
            Number::Over(it) => number > it,
            Number::UpTo(it) => number <= it,
            Number::PowerOfTwo(it) => number >= it && number.is_power_of_two(),
        }
    }
}

impl FromStr for Number {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let number = |text: &str| text.parse().map_err(drop);
        Ok(match text {
            "*" => Number::Any,
            _ => match (text.strip_prefix('>'), text.strip_prefix("<="), text.strip_prefix("2^n>=")) {
                (Some(rest), _, _) => Number::Over(number(rest)?),
                (_, Some(rest), _) => Number::UpTo(number(rest)?),
                (_, _, Some(rest)) => Number::PowerOfTwo(number(rest)?),
                _ => Number::Exactly(number(text)?),
            },
        })
    }
}

/// One line of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    engine: Option<EngineName>,
    /// `None` for any.
    variant: Option<String>,
    channels: (Number, Number),
    size: Number,
    /// What the card does.
    pub behaviour: Behaviour,
    /// The source of the claim.
    pub source: String,
    /// What contradicts it, or other remarks.
    pub note: String,
}

impl Line {
    /// Whether the line applies to this attempt. Sizes are the larger side of the input.
    pub fn applies(&self, problem: &Problem, engine: EngineName, variant: &str) -> bool {
        let [height, width] = problem.in_size();
        self.engine.is_none_or(|it| it == engine)
            && self.variant.as_deref().is_none_or(|it| it == variant)
            && self.channels.0.holds(problem.in_channels())
            && self.channels.1.holds(problem.out_channels())
            && self.size.holds(height.max(width))
    }
}

/// Why a table cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("line {line} of the rehearsal table: {what}")]
pub struct TableError {
    /// The line, counted from 1.
    pub line: usize,
    /// What is wrong with it.
    pub what: String,
}

/// What a rehearsed card does with each convolution: the first line that applies decides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// The lines, in order.
    pub lines: Vec<Line>,
}

macro_rules! tables {
    ($($name:literal),*) => {
        /// The tables that come with the program.
        pub const NAMES: &[&str] = &[$($name),*];
        const TABLES: &[&str] = &[$(include_str!(concat!("../../tables/", $name, ".tsv"))),*];
    };
}

tables!("rx5600xt-rocm5.2", "rx5600xt-rocm5.7");

impl Table {
    /// The text of a table that comes with the program.
    pub fn named(name: &str) -> Option<&'static str> {
        NAMES.iter().position(|it| *it == name).map(|index| TABLES[index])
    }

    /// Reads a table: lines of seven columns separated by tabs, of which the last may be missing.
    ///
    /// ```
    /// use unhang_probe::rehearsal::{Behaviour, Table};
    ///
    /// let table = Table::parse(
    ///     "# engine\tvariant\tchannels\tsize\tbehaviour\tsource\tnote\n\
    ///      miopen\t*\t16->32\t>32\thang-find\tseed 001\t\n\
    ///      *\t*\t*->*\t*\tworks\tmade up\n",
    /// )?;
    /// let problem = "forward:f32:nchw:1x16x48x48:32x3x3:s1x1:p1x1:d1x1:g1".parse().unwrap();
    /// let line = table.line(&problem, unhang_engine::EngineName::Miopen, "").unwrap();
    /// assert_eq!(line.behaviour, Behaviour::HangFind);
    /// # Ok::<(), unhang_probe::rehearsal::TableError>(())
    /// ```
    ///
    /// Engine: a name or `*`. Variant: a name, `*` for any, `-` for none. Channels: `IN->OUT`. Numbers: `*`, `48`, `>48`,
    /// `<=48`, `2^n>=16` (a power of two from 16 up). Behaviour: one of [`Behaviour::ALL`].
    pub fn parse(text: &str) -> Result<Table, TableError> {
        let mut lines = Vec::new();
        for (index, content) in text.lines().enumerate() {
            if content.trim().is_empty() || content.starts_with('#') {
                continue;
            }
            let line = parse_line(content).map_err(|what| TableError { line: index + 1, what })?;
            lines.push(line);
        }
        Ok(Table { lines })
    }

    /// The line that decides an attempt, if one applies.
    pub fn line(&self, problem: &Problem, engine: EngineName, variant: &str) -> Option<&Line> {
        self.lines.iter().find(|line| line.applies(problem, engine, variant))
    }
}

fn parse_line(content: &str) -> Result<Line, String> {
    let columns: Vec<&str> = content.split('\t').map(str::trim).collect();
    let [engine, variant, channels, size, behaviour, source, rest @ ..] = &columns[..] else {
        return Err(format!(
            "{} columns: expected engine, variant, channels, size, behaviour, source, note",
            columns.len()
        ));
    };
    let number = |text: &str| {
        text.parse::<Number>()
            .map_err(|()| format!("{text:?} is not a condition: expected *, 48, >48, <=48 or 2^n>=16"))
    };
    let (from, to) = channels.split_once("->").ok_or_else(|| format!("{channels:?}: expected IN->OUT"))?;
    let found = Behaviour::ALL.into_iter().find(|it| it.name() == *behaviour);
    Ok(Line {
        engine: match *engine {
            "*" => None,
            name => Some(name.parse().map_err(|error: unhang_conv::UnknownName| error.to_string())?),
        },
        variant: match *variant {
            "*" => None,
            "-" => Some(String::new()),
            name => Some(name.to_owned()),
        },
        channels: (number(from)?, number(to)?),
        size: number(size)?,
        behaviour: found.ok_or_else(|| {
            let names: Vec<&str> = Behaviour::ALL.iter().map(|it| it.name()).collect();
            format!("{behaviour:?} is not a behaviour: expected one of {}", names.join(", "))
        })?,
        source: (*source).to_owned(),
        note: rest.first().map(|note| (*note).to_owned()).unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn behaviour(table: &str, engine: EngineName, variant: &str, channels: (i64, i64), size: i64) -> Behaviour {
        let table = Table::parse(Table::named(table).unwrap()).unwrap();
        let problem: Problem =
            format!("forward:f32:nchw:1x{}x{size}x{size}:{}x3x3:s1x1:p1x1:d1x1:g1", channels.0, channels.1)
                .parse()
                .unwrap();
        table.line(&problem, engine, variant).unwrap().behaviour
    }

    #[test]
    fn each_built_in_line_says_who_claims_it() {
        for name in NAMES {
            for line in Table::parse(Table::named(name).unwrap()).unwrap().lines {
                let cited = line.source.starts_with("seed ") || line.source == "no seed";
                assert!(cited && (line.source != "no seed" || !line.note.is_empty()), "{name}: {line:?}");
            }
        }
    }

    #[test]
    fn the_seeds_own_cells() {
        use Behaviour::{HangFind, HangRun, Works};
        let miopen = EngineName::Miopen;
        for (channels, size, expected) in [
            ((16, 32), 32, Works),
            ((16, 32), 48, HangFind),
            ((16, 32), 64, HangFind),
            ((3, 16), 224, Works),
            ((1, 32), 224, Works),
            ((32, 64), 48, Works),
            ((32, 64), 64, HangFind),
            ((64, 128), 64, Works),
            ((64, 128), 128, HangFind),
        ] {
            assert_eq!(behaviour("rx5600xt-rocm5.7", miopen, "", channels, size), expected, "{channels:?} at {size}");
        }
        for (variant, size, expected) in [
            ("", 42, Works),
            ("", 44, HangRun),
            ("", 224, HangRun),
            ("implicit-gemm", 224, Works),
            ("gemm", 44, HangRun),
        ] {
            assert_eq!(behaviour("rx5600xt-rocm5.2", miopen, variant, (3, 64), size), expected, "{variant} at {size}");
        }
    }

    #[test]
    fn a_bad_line_is_named() {
        for (text, what) in [
            ("miopen\t*\t*->*\t*\tworks", "5 columns"),
            ("miopen\t*\t*->*\t=5\tworks\tx", "is not a condition"),
            ("miopen\t*\t16\t*\tworks\tx", "IN->OUT"),
            ("miopen\t*\t*->*\t*\texplodes\tx", "is not a behaviour"),
            ("mi\t*\t*->*\t*\tworks\tx", "engine"),
        ] {
            let error = Table::parse(&format!("# head\n{text}\n")).unwrap_err();
            assert!(error.line == 2 && error.to_string().contains(what), "{error}");
        }
    }
}
