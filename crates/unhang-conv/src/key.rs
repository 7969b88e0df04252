//! The text form of a problem: `forward:f32:nchw:1x16x64x64:32x3x3:s1x1:p1x1:d1x1:g1`. A transposed one ends in
//! `…:t:o0x0`.
//!
//! Stores and reports on disk hold this text. Its meaning never changes; a new property gets a new part.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::names::UnknownName;
use crate::problem::{Problem, ProblemError, Specification};

/// Why a text is not a key.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum KeyError {
    /// The key has too few parts, or too many.
    #[error(
        "{key:?} is not a convolution's key: expected 9 parts separated by colons (11 if transposed), found {found}"
    )]
    Parts {
        /// The text.
        key: String,
        /// The number of parts that it has.
        found: usize,
    },
    /// A part does not have the expected form.
    #[error("{part:?} does not read as {expected}")]
    Part {
        /// The part.
        part: String,
        /// What was expected, with an example.
        expected: &'static str,
    },
    /// The key contains an unknown name.
    #[error(transparent)]
    Name(#[from] UnknownName),
    /// The key can be read, but its numbers do not describe a convolution.
    #[error(transparent)]
    Problem(#[from] ProblemError),
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ([ih, iw], [kh, kw]) = (self.in_size, self.kernel);
        let ([sh, sw], [ph, pw], [dh, dw]) = (self.stride, self.padding, self.dilation);
        write!(
            f,
            "{}:{}:{}:{}x{}x{ih}x{iw}:{}x{kh}x{kw}:s{sh}x{sw}:p{ph}x{pw}:d{dh}x{dw}:g{}",
            self.direction, self.data_type, self.layout, self.batch, self.in_channels, self.out_channels, self.groups
        )?;
        if self.transposed {
            let [oh, ow] = self.output_padding;
            write!(f, ":t:o{oh}x{ow}")?;
        }
        Ok(())
    }
}

impl FromStr for Problem {
    type Err = KeyError;

    fn from_str(key: &str) -> Result<Problem, KeyError> {
        let (parts, transposed) = parts(key)?;
        let [batch, in_channels, in_height, in_width] = numbers(parts[3], "", "the input, such as 1x16x64x64")?;
        let [out_channels, kernel_height, kernel_width] = numbers(parts[4], "", "the filter, such as 32x3x3")?;
        let [groups] = numbers(parts[8], "g", "groups, such as g1")?;
        Ok(Problem::new(Specification {
            direction: parts[0].parse()?,
            data_type: parts[1].parse()?,
            layout: parts[2].parse()?,
            batch,
            in_channels,
            in_size: [in_height, in_width],
            out_channels,
            kernel: [kernel_height, kernel_width],
            stride: numbers(parts[5], "s", "a stride, such as s1x1")?,
            padding: numbers(parts[6], "p", "a padding, such as p1x1")?,
            dilation: numbers(parts[7], "d", "a dilation, such as d1x1")?,
            groups,
            transposed,
            output_padding: match transposed {
                true => numbers(parts[10], "o", "an output padding, such as o0x0")?,
                false => [0, 0],
            },
        })?)
    }
}

/// A key's parts, and whether they describe a transposed convolution.
pub(crate) fn parts(key: &str) -> Result<(Vec<&str>, bool), KeyError> {
    let parts: Vec<&str> = key.split(':').collect();
    match parts.len() {
        9 => Ok((parts, false)),
        11 if parts[9] == "t" => Ok((parts, true)),
        found => Err(KeyError::Parts { key: key.chars().take(200).collect(), found }),
    }
}

/// `prefix` and then N numbers separated by `x`.
pub(crate) fn numbers<const N: usize>(part: &str, prefix: &str, expected: &'static str) -> Result<[i64; N], KeyError> {
    let error = || KeyError::Part { part: part.chars().take(80).collect(), expected };
    let mut words = part.strip_prefix(prefix).ok_or_else(error)?.split('x');
    let mut result = [0; N];
    for number in &mut result {
        let word = words.next().ok_or_else(error)?;
        // `parse` alone would accept "+1", and one problem would have two keys.
        if !word.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(error());
        }
        *number = word.parse().map_err(|_| error())?;
    }
    if words.next().is_some() { Err(error()) } else { Ok(result) }
}
