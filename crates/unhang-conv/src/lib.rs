//! What a convolution is: the [`Problem`], its validation and arithmetic, and the plain [`reference`] that judges every
//! engine.
//!
//! Every crate that handles convolutions builds on this one. It does no I/O, knows no engine, no machine and no torch,
//! and has no `unsafe`. Every [`Problem`] is valid: [`Problem::new`] rejects bad shapes with an error that names the
//! numbers.
//!
//! ```
//! use unhang_conv::{Problem, Specification};
//!
//! let problem = Problem::new(Specification {
//!     batch: 1,
//!     in_channels: 16,
//!     in_size: [64, 64],
//!     out_channels: 32,
//!     kernel: [3, 3],
//!     padding: [1, 1],
//!     ..Specification::default()
//! })?;
//! assert_eq!(problem.out_size(), [64, 64]);
//! assert_eq!(problem.to_string(), "forward:f32:nchw:1x16x64x64:32x3x3:s1x1:p1x1:d1x1:g1");
//! # Ok::<(), unhang_conv::ProblemError>(())
//! ```

#![forbid(unsafe_code)]

mod fold;
mod key;
mod names;
mod problem;
pub mod reference;
pub mod table;
pub mod tile;
mod volume;

pub use fold::{Fold, FoldPart, Loop, Loops, Planes, Ranges};
pub use key::KeyError;
pub use names::UnknownName;
pub use problem::{DataType, Direction, Layout, LoweredProblem, Problem, ProblemError, Specification, TensorShape};
pub use volume::{Volume, VolumeShape, VolumeSpecification};
