//! How long a kernel would take on an RDNA1 card, predicted from the instructions that it executes and the addresses that it
//! touches. Nobody here has such a card: what comes out is a prediction, and says so.
//!
//! [`Sample::take`] runs some workgroups of a kernel on the emulator and records every instruction with what it reads and
//! writes; [`Sample::predict`] plays the record on a [`Card`]:
//!
//! * the caches (`cache.rs`) see the lines of all workgroups that are on the card at a time, and say where loads are served;
//! * one compute unit (`unit.rs`) issues the waves of its workgroups cycle by cycle: one instruction of each kind from different
//!   waves, results that arrive late, counters that are waited for, barriers, LDS with the conflicts of its banks;
//! * the time of all rounds of workgroups is the kernel's, and the part of the card that was busy for most of it its bound.
//!
//! Every figure of the cards and of the microarchitecture is in `card.rs`, with its source. Left out: instruction fetch, the order in
//! which hardware hands out workgroups, address translation, clocks that change under load. Nothing is fitted to our own kernels.
//!
//! This crate knows code objects and the emulator: no convolution, compiler, driver or choice of kernels.

#![forbid(unsafe_code)]

mod cache;
mod card;
mod predict;
mod record;
mod step;
mod unit;

pub use card::{CARDS, Card, Figure};
pub use predict::{Bound, Busy, Prediction, Sample};
