//! For tests and benches: generated problems, the layer table, and one [`check`] for every engine.
//!
//! An engine's tests call [`check`] over [`any_problem`] in each direction and data type. The tolerances come from
//! `unhang_engine::tolerance`, once for all engines. Nothing in the product itself depends on this crate.

#![forbid(unsafe_code)]

mod check;
mod data;
mod generate;

pub use check::{CheckFailure, Errors, check, check_volume, compare};
pub use data::Tensor;
pub use generate::{any_ordinary_problem, any_problem, any_volume};

use unhang_conv::table::{self, Layer};

/// The layers to measure on: the sizes that hang in users' reports, and layers of well-known networks.
pub fn layers() -> Vec<Layer> {
    table::parse(include_str!("../layers.tsv")).expect("the built-in layer table reads")
}

/// A second table with the families of networks that the first lacks (grouped, patch-like, dilated, long and thin
/// filters, large depthwise ones). It keeps engines from being tuned to one table alone.
pub fn more_layers() -> Vec<Layer> {
    table::parse(include_str!("../more_layers.tsv")).expect("the second layer table reads")
}

/// A third table, of layers that no engine was tuned on. It shows where the other two flatter.
pub fn other_layers() -> Vec<Layer> {
    table::parse(include_str!("../other_layers.tsv")).expect("the third layer table reads")
}
