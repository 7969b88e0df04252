//! The probe's child: MIOpen computes what a prober requests.

use unhang_conv::{DataType, Problem};
use unhang_engine::EngineName;
use unhang_probe::trial::{Convolved, Convolves, Element, NotComputed};

use super::library::{Miopen, MiopenError};

impl Convolves for Miopen {
    fn engine(&self) -> EngineName {
        EngineName::Miopen
    }

    fn about(&mut self) -> String {
        self.describe().map_or_else(|error| error.to_string(), |it| it.software())
    }

    fn copies(&mut self) -> Result<bool, String> {
        Miopen::copies(self).map_err(|error| error.to_string())
    }

    fn convolve<T: Element>(
        &mut self,
        problem: &Problem,
        [first, second]: [&[T]; 2],
        result: &mut [T],
        ready: impl FnOnce(),
    ) -> Result<Convolved, NotComputed> {
        if problem.data_type() == DataType::F64 {
            return Err(NotComputed::Unsupported("MIOpen has no convolutions in double precision".to_owned()));
        }
        let lowered = problem.lower();
        let operands = if lowered.operands_exchanged { [second, first] } else { [first, second] };
        Miopen::convolve(self, &lowered.problem, operands, result, ready).map_err(|error| match error {
            MiopenError::NoAlgorithm => NotComputed::Unsupported(error.to_string()),
            _ => NotComputed::Failed(error.to_string()),
        })
    }
}
