//! For tests and benches: generated problems, the layer table, and one [`check`] for every engine.
//!
//! Whoever writes an engine calls [`check`] over [`any_problem`] in each direction and data type. The tolerances are
//! `unhang_engine::tolerance`'s, once for all engines. Nothing in the product itself depends on this crate.

#![forbid(unsafe_code)]

mod check;
mod data;
mod generate;
mod measure;

pub use check::{CheckFailure, Errors, check, check_volume, compare};
pub use data::Tensor;
pub use generate::{any_ordinary_problem, any_problem, any_volume};
pub use measure::{Contender, Measurement, Ratio, geometric_mean, interleave};

use unhang_conv::table::{self, Layer};

/// The layers to measure on: the sizes that hang in users' reports, and layers of well-known networks.
pub fn layers() -> Vec<Layer> {
    table::parse(include_str!("../layers.tsv")).expect("the built-in layer table reads")
}

/// A second table: the families of networks that the first lacks (grouped, patch-like, dilated, long and thin filters,
/// large depthwise ones), so that no engine is tuned to one table alone.
pub fn more_layers() -> Vec<Layer> {
    table::parse(include_str!("../more_layers.tsv")).expect("the second layer table reads")
}

/// A third table, of layers that no engine was tuned on: to see what the other two flatter.
pub fn other_layers() -> Vec<Layer> {
    table::parse(include_str!("../other_layers.tsv")).expect("the third layer table reads")
}
