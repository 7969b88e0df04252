//! A rehearsed card: a child that behaves as a table says.
//!
//! The child really hangs, dies or returns wrong numbers; the prober sees only the child. Tables are files
//! ([`Table::parse`]); two come with the program, made of what five reports of one card say ([`Table::named`]). Nobody has
//! repeated those observations: a rehearsal shows how unhang behaves before such a card, and nothing about a card.

mod child;
mod table;

pub use child::serve;
pub use table::{Behaviour, Line, NAMES, Table, TableError};
