//! Predicts how long a kernel would take on an RDNA1 card, from the instructions that it executes and the addresses
//! that it touches. Nobody here has such a card: the result is a prediction, and says so.
//!
//! [`Sample::take`] runs some workgroups of a kernel on the emulator and records every instruction with what it reads
//! and writes. [`Sample::predict`] plays the record on a [`Card`]:
//!
//! * The caches (`cache.rs`) see the lines of all workgroups that are on the card at a time, and say which level serves
//!   each load.
//! * One compute unit (`unit.rs`) issues the waves of its workgroups cycle by cycle: one instruction of each kind per
//!   cycle, from different waves. It models latencies, wait counters, barriers, and LDS with its bank conflicts.
//! * The kernel's time is that of all rounds of workgroups. Its bound is the part of the card that was busy for most of
//!   it.
//!
//! Every figure of the cards and of the microarchitecture is in `card.rs`, with its source. The model leaves out
//! instruction fetch, the order in which hardware hands out workgroups, address translation, and clocks that change
//! under load. Nothing is fitted to our own kernels.
//!
//! This crate knows code objects and the emulator. It knows no convolution, compiler, driver or choice of kernels.

#![forbid(unsafe_code)]

mod cache;
mod card;
mod predict;
mod record;
mod step;
mod unit;

pub use card::{CARDS, Card, Figure};
pub use predict::{Bound, Busy, Prediction, Sample};
