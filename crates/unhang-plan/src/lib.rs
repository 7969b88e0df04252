//! Which engine computes a convolution, and why.
//!
//! [`plan`] is a pure function of the convolution, the user's [`Settings`], what is available ([`Situation`]) and
//! what is known ([`Evidence`](unhang_evidence::Evidence)). A [`Plan`] states its reason in words that a person can
//! check, and the order of fallbacks. Callers keep plans, under everything that their calls depend on.
//!
//! This crate does no I/O, runs no engine, and must not know torch or how a machine is inspected: the caller describes
//! both as [`Facts`], and [`Facts::situation`] is the one judgement of what they allow.
//!
//! ```
//! use unhang_engine::EngineName;
//! use unhang_evidence::Evidence;
//! use unhang_plan::{Settings, Situation, plan};
//!
//! let problem = "forward:f32:nchw:1x16x64x64:32x3x3:s1x1:p1x1:d1x1:g1".parse()?;
//! let plan = plan(&problem, &Settings::default(), &Situation::affected_accelerator(), &Evidence::empty("here"));
//! assert_eq!(plan.choice(), EngineName::Cpu);
//! assert!(plan.reason.contains("canary"), "nothing unproven runs on an affected card: {}", plan.reason);
//! # Ok::<(), unhang_conv::KeyError>(())
//! ```

#![forbid(unsafe_code)]

mod assess;
mod facts;
mod plan;
mod planner;
mod process;
mod situation;
mod strategy;

pub use facts::{CanaryFact, Facts};
pub use plan::{Plan, Reference, TilePlan};
pub use planner::plan;
pub use process::{ProcessSettings, SettingError, Value};
pub use situation::{Availability, Device, Engines, MiopenFamilies, Situation};
pub use strategy::{Settings, Strategy};
