//! Layer tables: one named convolution per line, tab-separated, for measuring and probing.
//!
//! Columns: `name n c h w k r s stride_h stride_w pad_h pad_w dil_h dil_w groups`. A line that starts with `#` is a
//! comment. Layers are forward, f32, NCHW; [`Problem::with_direction`] and similar methods change that.

use thiserror::Error;

use crate::problem::{Problem, ProblemError, Specification};

/// A convolution with a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layer {
    /// Its name in the table.
    pub name: String,
    /// The convolution.
    pub problem: Problem,
}

/// Why a layer table cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TableError {
    /// A line does not have the right number of columns.
    #[error(
        "line {line} has {found} columns: expected 15 (name n c h w k r s stride_h stride_w pad_h pad_w dil_h dil_w groups)"
    )]
    Columns {
        /// The line, counted from 1.
        line: usize,
        /// The number of its columns.
        found: usize,
    },
    /// A column is not a number.
    #[error("line {line}: {found:?} is not a number")]
    Number {
        /// The line, counted from 1.
        line: usize,
        /// The text in that column.
        found: String,
    },
    /// The table has no layer.
    #[error("there is no layer in it: expected lines such as `stem 32 3 224 224 64 7 7 2 2 3 3 1 1 1`")]
    Empty,
    /// A line's numbers do not describe a convolution.
    #[error("line {line}: {error}")]
    Problem {
        /// The line, counted from 1.
        line: usize,
        /// Why not.
        error: ProblemError,
    },
}

/// Reads a layer table.
///
/// ```
/// let layers = unhang_conv::table::parse("stem 32 3 224 224 64 7 7 2 2 3 3 1 1 1\n")?;
/// assert_eq!(layers[0].problem.out_size(), [112, 112]);
/// # Ok::<(), unhang_conv::table::TableError>(())
/// ```
pub fn parse(text: &str) -> Result<Vec<Layer>, TableError> {
    let mut layers = Vec::new();
    for (index, content) in text.lines().enumerate() {
        let line = index + 1;
        if content.trim().is_empty() || content.starts_with('#') {
            continue;
        }
        let words: Vec<&str> = content.split_whitespace().collect();
        if words.len() != 15 {
            return Err(TableError::Columns { line, found: words.len() });
        }
        let mut n = [0i64; 14];
        for (number, word) in n.iter_mut().zip(&words[1..]) {
            *number = word.parse().map_err(|_| TableError::Number { line, found: word.chars().take(80).collect() })?;
        }
        let specification = Specification {
            batch: n[0],
            in_channels: n[1],
            in_size: [n[2], n[3]],
            out_channels: n[4],
            kernel: [n[5], n[6]],
            stride: [n[7], n[8]],
            padding: [n[9], n[10]],
            dilation: [n[11], n[12]],
            groups: n[13],
            ..Specification::default()
        };
        let problem = Problem::new(specification).map_err(|error| TableError::Problem { line, error })?;
        layers.push(Layer { name: words[0].to_owned(), problem });
    }
    if layers.is_empty() {
        return Err(TableError::Empty);
    }
    Ok(layers)
}
