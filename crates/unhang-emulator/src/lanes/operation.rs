//! A function of one lane, and the forms in which it is compiled from one body.

use crate::float::FloatMode;
use crate::host::Fast;
use crate::registers::Lanes;
use crate::wave::Type;

/// A lane's result from its sources.
pub(crate) type LaneFunction = fn(u64, u64, u64, FloatMode) -> u64;
/// A whole register's results from its sources: the 32-bit functions without modifiers.
pub(crate) type RowFunction = fn(&Lanes, &Lanes, &Lanes, FloatMode) -> Lanes;

/// A function with the types of its sources and of its result.
#[derive(Clone, Copy)]
pub(crate) struct LaneOperation {
    pub run: LaneFunction,
    pub rows: RowFunction,
    /// `run` compiled for the host's vectors, for frequent functions.
    pub fast: Option<Fast>,
    pub sources: [Type; 3],
    pub result: Type,
    /// The old value of the destination is the third source.
    pub accumulates: bool,
}

pub(crate) fn sign24(value: u64) -> i64 {
    (((value as u32) << 8) as i32 >> 8) as i64
}

/// The middle of three.
pub(super) fn median<T: PartialOrd + Copy>(a: T, b: T, c: T) -> T {
    let (low, high) = if a < b { (a, b) } else { (b, a) };
    if c < low {
        low
    } else if c > high {
        high
    } else {
        c
    }
}

/// A function of each half of a register.
#[derive(Clone, Copy)]
pub(crate) struct PackedOperation {
    pub run: LaneFunction,
    /// The type of each half.
    pub half: Type,
    /// The old value of the destination is the third source.
    pub accumulates: bool,
}

/// Both forms of a function, from one body.
macro_rules! functions {
    (|$a:pat_param, $b:pat_param, $c:pat_param, $m:pat_param| $body:expr) => {{
        use $crate::float::FloatMode;
        use $crate::lanes::operation::{LaneFunction, RowFunction};
        use $crate::registers::Lanes;
        #[inline(always)]
        fn lane($a: u64, $b: u64, $c: u64, $m: FloatMode) -> u64 {
            $body
        }
        fn rows(a: &Lanes, b: &Lanes, c: &Lanes, mode: FloatMode) -> Lanes {
            std::array::from_fn(|place| lane(a[place] as u64, b[place] as u64, c[place] as u64, mode) as u32)
        }
        (lane as LaneFunction, rows as RowFunction)
    }};
}
pub(crate) use functions;

/// A function with the types of its sources and of its result.
macro_rules! op {
    ($sources:expr, $result:expr, $($function:tt)*) => {{
        let (run, rows) = $crate::lanes::operation::functions!($($function)*);
        Some($crate::lanes::operation::LaneOperation {
            run,
            rows,
            fast: None,
            sources: $sources,
            result: $result,
            accumulates: false,
        })
    }};
}
pub(crate) use op;

/// A frequent function, also compiled for the host's vectors, on whole registers or on 64-bit lanes. A body that does
/// not name the mode computes the same in all modes.
macro_rules! compiled {
    ($form:ident, $flushed:expr, $sources:expr, $result:expr, |$a:pat_param, $b:pat_param, $c:pat_param, $m:pat_param| $body:expr) => {{
        #[inline(always)]
        fn hot_lane($a: u64, $b: u64, $c: u64, $m: $crate::float::FloatMode) -> u64 {
            $body
        }
        let operation = $crate::lanes::operation::op!($sources, $result, |a, b, c, m| hot_lane(a, b, c, m));
        let functions = [
            $crate::host::for_hosts!($form, $crate::float::USUAL, hot_lane),
            $crate::host::for_hosts!($form, $flushed, hot_lane),
        ];
        let fast = match functions {
            [Some(usual), Some(flushed)] => {
                Some($crate::host::Fast { functions: [usual, flushed], any_mode: $flushed == $crate::float::USUAL })
            }
            _ => None,
        };
        operation.map(|it| $crate::lanes::operation::LaneOperation { fast, ..it })
    }};
}
pub(crate) use compiled;

/// A function of whole registers, also compiled for the host's vectors.
macro_rules! hot {
    ($sources:expr, $result:expr, |$a:pat_param, $b:pat_param, $c:pat_param, _| $body:expr) => {
        $crate::lanes::operation::compiled!(Row, $crate::float::USUAL, $sources, $result, |$a, $b, $c, _| $body)
    };
    ($sources:expr, $result:expr, |$a:pat_param, $b:pat_param, $c:pat_param, $m:pat_param| $body:expr) => {
        $crate::lanes::operation::compiled!(Row, $crate::float::FLUSHED, $sources, $result, |$a, $b, $c, $m| $body)
    };
}
pub(crate) use hot;

/// A function of 64-bit lanes, also compiled for the host's vectors.
macro_rules! wide {
    ($sources:expr, $result:expr, |$a:pat_param, $b:pat_param, $c:pat_param, _| $body:expr) => {
        $crate::lanes::operation::compiled!(Pairs, $crate::float::USUAL, $sources, $result, |$a, $b, $c, _| $body)
    };
    ($sources:expr, $result:expr, |$a:pat_param, $b:pat_param, $c:pat_param, $m:pat_param| $body:expr) => {
        $crate::lanes::operation::compiled!(Pairs, $crate::float::FLUSHED, $sources, $result, |$a, $b, $c, $m| $body)
    };
}
pub(crate) use wide;

/// This function with the old value of the destination as its third source.
pub(super) fn accumulate(operation: Option<LaneOperation>) -> Option<LaneOperation> {
    operation.map(|it| LaneOperation { accumulates: true, ..it })
}
