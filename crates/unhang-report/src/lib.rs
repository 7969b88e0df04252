//! Observations, for people and programs: tables for a terminal, JSON, and one self-contained page, the hang map.
//!
//! The caller gathers the data of a [`Report`]; [`Report::to_text`], [`Report::to_json`] and [`Report::to_html`] are
//! three views of it. This crate does no I/O and must not know the store, the machine or torch. Everything in a report
//! may come from outside (an imported file, an error's text), so each view escapes all of it.

#![forbid(unsafe_code)]

mod advice;
mod axes;
mod data;
mod html;
mod json;
mod map;
mod table;
mod text;
mod wrap;

pub use data::{Layer, Report};
pub use map::{Cell, Map};
pub use table::{Cells, table_in_parts};
pub use wrap::wrapped;
