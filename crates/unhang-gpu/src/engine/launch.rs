//! Starting prepared problems on a stream, and measuring them there.

use std::ffi::c_void;

use unhang_conv::DataType;

use super::{DevicePointers, GpuEngine, Prepared};
use crate::choice::Choice;
use crate::driver::{DriverError, Function, StreamEvent};
use crate::error::GpuError;
use crate::plan::{Pointer, Stage};
use crate::shapes::Shape;

/// A measurement that was put into a stream. It holds driver resources until [`GpuEngine::forget`].
#[derive(Debug)]
pub struct Timing {
    events: Vec<StreamEvent>,
    repeats: u32,
}

impl GpuEngine {
    /// Starts a prepared problem on a stream and returns.
    ///
    /// # Safety
    /// The pointers must be device memory of the sizes that the problem and [`Prepared::workspace_bytes`] say, and stay
    /// valid until the work is done.
    pub unsafe fn launch(&self, prepared: &Prepared, pointers: DevicePointers, stream: u64) -> Result<(), GpuError> {
        check_alignment(prepared, &pointers)?;
        for (stage, function) in prepared.plan.stages.iter().zip(&prepared.functions) {
            // SAFETY: the caller's promise.
            unsafe { self.launch_stage(stage, *function, pointers, stream)? };
        }
        Ok(())
    }

    /// # Safety
    /// As [`GpuEngine::launch`].
    pub(crate) unsafe fn launch_stage(
        &self,
        stage: &Stage,
        function: Function,
        pointers: DevicePointers,
        stream: u64,
    ) -> Result<(), GpuError> {
        let values: Vec<u64> = stage
            .pointers
            .iter()
            .map(|pointer| match pointer {
                Pointer::First => pointers.first,
                Pointer::Second => pointers.second,
                Pointer::Bias => pointers.bias,
                Pointer::Result => pointers.result,
                Pointer::Workspace(offset) => pointers.workspace + offset,
                Pointer::Null => 0,
            })
            .collect();
        // SAFETY: the plan's pointers and parameters are what its kernels declare; the caller vouches for memory.
        unsafe { self.launch_with(function, stage.grid, stage.block, values, &stage.shape, stream) }
    }

    /// Starts a kernel over a grid of workgroups of that many threads, with addresses and the structure behind them.
    ///
    /// # Safety
    /// Addresses and structure must be what the kernel declares, and the memory there what it expects until it is done.
    pub(crate) unsafe fn launch_with(
        &self,
        function: Function,
        grid: [u32; 3],
        block: u32,
        mut values: Vec<u64>,
        shape: &Shape,
        stream: u64,
    ) -> Result<(), GpuError> {
        let mut parameters = shape.bytes().to_vec();
        let mut arguments: Vec<*mut c_void> = values.iter_mut().map(|value| std::ptr::from_mut(value).cast()).collect();
        arguments.push(parameters.as_mut_ptr().cast());
        // SAFETY: as the caller says.
        unsafe { self.driver.launch(function, grid, block, &mut arguments, stream)? };
        Ok(())
    }

    /// Puts a measurement of a prepared problem into a stream and returns: one run to warm up, then `repeats` between
    /// two events. [`GpuEngine::seconds`] reads it later. Not while the stream records a graph.
    ///
    /// # Safety
    /// As [`GpuEngine::launch`].
    pub unsafe fn time(
        &self,
        prepared: &Prepared,
        pointers: DevicePointers,
        stream: u64,
        repeats: u32,
    ) -> Result<Timing, GpuError> {
        // SAFETY: the caller's promise.
        self.time_calls(stream, repeats, || unsafe { self.launch(prepared, pointers, stream) })
    }

    /// Times any function that puts one run of a problem into a stream.
    pub fn time_calls<E: From<GpuError>>(
        &self,
        stream: u64,
        repeats: u32,
        run: impl Fn() -> Result<(), E>,
    ) -> Result<Timing, E> {
        let failed = |error: DriverError| E::from(error.into());
        if self.driver.is_capturing(stream).map_err(failed)? {
            return Err(GpuError::Capturing.into());
        }
        let repeats = repeats.max(1);
        let mut timing = Timing { events: Vec::new(), repeats };
        let put = (|| {
            for _ in 0..2 {
                timing.events.push(self.driver.create_event().map_err(failed)?);
            }
            run()?;
            self.driver.record(timing.events[0], stream).map_err(failed)?;
            for _ in 0..repeats {
                run()?;
            }
            self.driver.record(timing.events[1], stream).map_err(failed)
        })();
        match put {
            Ok(()) => Ok(timing),
            Err(error) => {
                // The first error says more than a failure to free an event.
                let _ = self.forget(timing);
                Err(error)
            }
        }
    }

    /// The seconds of one run; `None` until the device has reached it. Never waits.
    pub fn seconds(&self, timing: &Timing) -> Result<Option<f64>, GpuError> {
        let [from, to] = timing.events[..] else { return Ok(None) };
        let all = self.driver.elapsed(from, to)?;
        Ok(all.map(|milliseconds| f64::from(milliseconds) * 1e-3 / f64::from(timing.repeats)))
    }

    /// Frees a measurement's driver resources.
    pub fn forget(&self, timing: Timing) -> Result<(), GpuError> {
        timing.events.into_iter().try_for_each(|event| self.driver.destroy_event(event)).map_err(GpuError::from)
    }

    /// The seconds of one run of a prepared problem. Waits for the device, so only for a supervised process.
    ///
    /// # Safety
    /// As [`GpuEngine::launch`].
    pub unsafe fn measure(
        &self,
        prepared: &Prepared,
        pointers: DevicePointers,
        stream: u64,
        repeats: u32,
    ) -> Result<f64, GpuError> {
        // SAFETY: the caller's promise.
        self.measure_calls(stream, repeats, || unsafe { self.launch(prepared, pointers, stream) })
    }

    /// The seconds of one run of any function that puts one into a stream. Waits for the device.
    pub fn measure_calls<E: From<GpuError>>(
        &self,
        stream: u64,
        repeats: u32,
        run: impl Fn() -> Result<(), E>,
    ) -> Result<f64, E> {
        let timing = self.time_calls(stream, repeats, run)?;
        let seconds = self.driver.synchronize(stream).map_err(GpuError::from).and_then(|()| self.seconds(&timing));
        let forgotten = self.forget(timing);
        let seconds = seconds?;
        forgotten?;
        Ok(seconds.unwrap_or(f64::INFINITY))
    }
}

fn check_alignment(prepared: &Prepared, pointers: &DevicePointers) -> Result<(), GpuError> {
    let size = prepared.problem.data_type().size() as u64;
    // The fast kernels read and write four elements at a time; the plain ones one.
    let wide =
        if prepared.choice == Choice::Plain || prepared.problem.data_type() == DataType::F64 { size } else { size * 4 };
    let parts = [
        ("first", pointers.first, wide),
        ("second", pointers.second, wide),
        ("bias", pointers.bias, size),
        ("result", pointers.result, wide),
        ("workspace", pointers.workspace, 256),
    ];
    for (operand, address, alignment) in parts {
        if !address.is_multiple_of(alignment) {
            let choice = prepared.choice.to_string();
            return Err(GpuError::Misaligned { operand, address, alignment, choice });
        }
    }
    Ok(())
}
