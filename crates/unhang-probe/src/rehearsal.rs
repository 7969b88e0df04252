//! A rehearsed card: a child that behaves according to a table.
//!
//! The child really hangs, crashes or returns wrong results; the prober sees only the child. Tables are files
//! ([`Table::parse`]). Two come with the program, made from five reports about one card ([`Table::named`]). Nobody
//! has repeated those observations: a rehearsal shows how unhang behaves with such a card, and nothing about a card.

mod child;
mod table;

pub use child::serve;
pub use table::{Behaviour, Line, NAMES, Table, TableError};
