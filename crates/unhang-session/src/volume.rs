//! 3-d convolutions on a face's memory and stream: folded into 2-d ones ([`Volume::fold`]), each of which is planned, proven,
//! tuned and watched as any other.

use std::sync::PoisonError;

use unhang_conv::{DataType, Layout, Planes, Volume};
use unhang_cpu::CpuEngine;
use unhang_engine::{EngineName, Operands, run_volume};
use unhang_gpu::GpuError;

use crate::compute::{Call, NotComputed, compute};
use crate::device::Device;
use crate::failure::{Failure, is_wrong_on_purpose};
use crate::host::Numbers;
use crate::process::{Decision, Face, Process};
use crate::route::Route;
use crate::talk::say_once as say;
use crate::tuning::tune;
use crate::view::View;
use crate::volume_route::{LazyMove, OperandPlace, VolumeRoute};

/// A planned convolution of either kind.
#[derive(Clone, Copy)]
pub enum Planned<'a> {
    /// 1-d or 2-d.
    Plane(&'a Route),
    /// In three.
    Volume(&'a VolumeRoute),
}

impl Decision {
    /// The planned convolution, if we compute it.
    pub fn planned(&self) -> Option<Planned<'_>> {
        match self {
            Decision::Ours(route) => Some(Planned::Plane(route)),
            Decision::Volume(route) => Some(Planned::Volume(route)),
            Decision::Forward(_) | Decision::Refuse => None,
        }
    }
}

impl Planned<'_> {
    /// The bytes of workspace with which it is computed fastest.
    pub fn workspace_bytes(self) -> u64 {
        match self {
            Planned::Plane(route) => route.workspace_bytes(),
            Planned::Volume(route) => route.workspace_bytes(),
        }
    }

    /// Its time in milliseconds, measured or else predicted by the card's model; 0 if the engine has no model.
    pub fn milliseconds(self) -> f32 {
        match self {
            Planned::Plane(route) => route.milliseconds(),
            Planned::Volume(route) => route.milliseconds(),
        }
    }

    /// The type of the elements.
    pub fn data_type(self) -> DataType {
        match self {
            Planned::Plane(route) => route.data_type(),
            Planned::Volume(route) => route.data_type(),
        }
    }

    /// The caller's three tensors in the order in which engines take them: first, second, result.
    pub fn in_order<T: Copy>(self, tensors: [T; 3]) -> [T; 3] {
        match self {
            Planned::Plane(route) => route.in_order(tensors),
            Planned::Volume(route) => route.convolution.order.map(|which| tensors[which]),
        }
    }

    /// Finds the fastest kernels, if tuning is enabled.
    pub fn tune<F: Face>(self, process: &Process<F>, stream: u64) {
        match self {
            Planned::Plane(route) => tune(process, route, stream),
            Planned::Volume(route) => route.routes().for_each(|route| tune(process, route, stream)),
        }
    }

    /// Computes it with the first engine that succeeds. `vendors_own` runs the vendor's library in its plainest way; it
    /// computes no 3-d convolution.
    ///
    /// # Safety
    /// The memory must be what the convolution says.
    pub unsafe fn execute<F: Face>(
        self,
        process: &Process<F>,
        call: Call,
        vendors_own: &dyn Fn() -> Result<(), Failure>,
    ) -> Result<(), NotComputed> {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Planned::Plane(route) => crate::compute::execute(process, route, call, vendors_own),
                Planned::Volume(route) => execute(process, route, call),
            }
        }
    }
}

/// Computes a 3-d convolution.
///
/// # Safety
/// The memory must be what the route's convolution says.
unsafe fn execute<F: Face>(process: &Process<F>, route: &VolumeRoute, call: Call) -> Result<(), NotComputed> {
    let volume = &route.convolution.volume;
    let (mut failure, mut is_over) = (None, false);
    if !route.is_on_host() {
        // SAFETY: the caller's promise.
        match unsafe { on_device(process, route, call) } {
            Ok(engine) => {
                route.counts.count(engine);
                return Ok(());
            }
            Err(Stopped::Part(ended)) => return Err(ended),
            Err(Stopped::Copy(stopped)) => {
                is_over = matches!(stopped, Failure::Device(_));
                failure = Some(stopped.reason().to_owned());
            }
        }
    }
    if let Some(reason) = failure {
        say(&format!("the planes of {volume} cannot be gathered on the device: {reason}"));
        if is_over {
            return Err(NotComputed::Failed);
        }
    }
    // SAFETY: as above.
    match unsafe { on_host(route, call) } {
        Ok(()) => {
            route.counts.count(EngineName::Cpu);
            Ok(())
        }
        Err(failure) => {
            let ended = match &failure {
                Failure::Declined(_) | Failure::Misaligned(_) => NotComputed::Declined,
                Failure::NoMemory(_) => NotComputed::NoMemory,
                Failure::Failed(..) | Failure::Device(_) => NotComputed::Failed,
            };
            say(&format!("cpu does not compute {volume}: {}", failure.reason()));
            Err(ended)
        }
    }
}

/// Why nothing was computed on the device.
enum Stopped {
    /// Planes could not be copied.
    Copy(Failure),
    /// No engine computed a part.
    Part(NotComputed),
}

/// Copies or clears planes.
///
/// # Safety
/// Memory at both places that the launch was made for.
unsafe fn run(launch: &LazyMove, device: &Device, from: u64, to: u64, stream: u64) -> Result<(), GpuError> {
    let loaded = launch.loaded(device, stream)?;
    // SAFETY: the caller's promise.
    unsafe { device.engine.launch_move(loaded, from, to, stream) }
}

/// Computes it part by part: gathers planes, runs the 2-d convolution, puts planes back. Returns the engine of the last
/// part.
///
/// # Safety
/// As [`execute`].
unsafe fn on_device<F: Face>(process: &Process<F>, route: &VolumeRoute, call: Call) -> Result<EngineName, Stopped> {
    let (device, stream, gathered) = (&route.device, call.stream, route.gathered_bytes());
    let copying = |error: GpuError| Stopped::Copy(error.into());
    let begin = call.workspace.next_multiple_of(256);
    let room = if call.workspace == 0 { 0 } else { (call.workspace + call.bytes).saturating_sub(begin) };
    let driver = device.engine.driver();
    let is_too_little = room < gathered;
    if is_too_little && driver.is_capturing(stream).map_err(|error| Stopped::Copy(error.into()))? {
        let reason = "a graph is being recorded, and no workspace was given for the planes".to_owned();
        return Err(Stopped::Copy(Failure::Declined(reason)));
    }
    let scratch = is_too_little.then(|| device.scratch(stream));
    let mut held = scratch.as_ref().map(|scratch| scratch.lock().unwrap_or_else(PoisonError::into_inner));
    let (begin, room) = match &mut held {
        Some(scratch) => {
            let bytes = route.workspace_bytes().max(gathered);
            (scratch.at_least(driver, bytes).map_err(copying)?, bytes)
        }
        None => (begin, room),
    };
    let places = [begin, begin + route.gathered[0], begin + route.gathered[0] + route.gathered[1]];
    let declined = || Err(Failure::Declined("MIOpen computes no parts of 3-d convolutions".to_owned()));
    let mut last: [Option<Planes>; 2] = [None; 2];
    let mut computed = EngineName::Jit;
    for part in &route.parts {
        let operand = |index: usize| call.operands[route.order[index]];
        for index in 0..2 {
            if let OperandPlace::Copied(copied) = &part.operands[index]
                && last[index] != Some(copied.0)
            {
                let (planes, gather) = &**copied;
                // SAFETY: the caller's tensor, and room for the largest part's planes.
                unsafe { run(gather, device, operand(index), places[index], stream) }.map_err(copying)?;
                last[index] = Some(*planes);
            }
        }
        let at = |index: usize| match part.operands[index] {
            OperandPlace::There(start) => operand(index) + start,
            OperandPlace::Copied(_) => places[index],
        };
        let call =
            Call { operands: [at(0), at(1), at(2)], workspace: begin + gathered, bytes: room - gathered, stream };
        // SAFETY: tensors of the part's sizes; the workspace is behind the planes.
        computed = unsafe { compute(process, &part.route, call, &declined) }.map_err(Stopped::Part)?;
        if let OperandPlace::Copied(copied) = &part.operands[2] {
            // SAFETY: as above.
            unsafe { run(&copied.1, device, places[2], operand(2), stream) }.map_err(copying)?;
        }
    }
    for clear in &route.zeros {
        // SAFETY: nothing is read.
        unsafe { run(clear, device, call.operands[2], call.operands[2], stream) }.map_err(copying)?;
    }
    Ok(computed)
}

/// Computes it on the host: copies the operands there, computes, and copies the result back.
///
/// # Safety
/// As [`execute`].
unsafe fn on_host(route: &VolumeRoute, call: Call) -> Result<(), Failure> {
    let (volume, driver, stream) = (&route.convolution.volume, route.device.engine.driver(), call.stream);
    if driver.is_capturing(stream)? {
        let reason = "a graph is being recorded, and copies to the host cannot be part of one: run it once before";
        return Err(Failure::Declined(reason.to_owned()));
    }
    let (data_type, layout, strides) = (volume.data_type(), volume.layout(), route.convolution.strides);
    let tensors =
        [0, 1, 2].map(|index| Lying { shape: volume.operand_shapes()[index], strides: strides[index], layout });
    let bring = |index: usize| {
        // SAFETY: the caller's promise.
        unsafe { Numbers::read(driver, data_type, tensors[index].span(), call.operands[index], stream) }
    };
    let first = tensors[0].gathered(&bring(0)?);
    let second = tensors[1].gathered(&bring(1)?);
    let mut result = Numbers::zeros(data_type, tensors[2].elements());
    let operands =
        Operands { first: first.elements(), second: second.elements(), bias: None, result: result.elements_mut() };
    run_volume(&CpuEngine::new(), volume, operands)?;
    if is_wrong_on_purpose() {
        for index in 0..result.len() {
            result.set(index, result.get(index) * 2.0 + 1.0);
        }
    }
    // The gaps of a tensor are not ours to change.
    let mut whole = bring(2)?;
    tensors[2].scatter(&mut whole, &result);
    // SAFETY: the caller's promise.
    unsafe { whole.write(driver, call.operands[2], stream) }.map_err(Failure::from)
}

/// A 3-d tensor with its place in memory.
struct Lying {
    shape: [usize; 5],
    strides: [usize; 5],
    layout: Layout,
}

impl Lying {
    fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    fn span(&self) -> usize {
        1 + self.shape.iter().zip(self.strides).map(|(size, stride)| (size - 1) * stride).sum::<usize>()
    }

    /// The images one by one, each a tensor of four axes: depth, channels, height and width.
    fn images(&self) -> impl Iterator<Item = (usize, usize, View, [usize; 4])> + '_ {
        let [images, c, d, h, w] = self.shape;
        let dense = Volume::dense_strides(self.shape, self.layout);
        let four = |strides: [usize; 5]| [strides[2], strides[1], strides[3], strides[4]];
        let view = View { shape: [d, c, h, w], strides: four(self.strides) };
        (0..images).map(move |image| (image * self.strides[0], image * dense[0], view, four(dense)))
    }

    /// Its elements without gaps.
    fn gathered(&self, from: &Numbers) -> Numbers {
        let mut dense = Numbers::zeros_like(from, self.elements());
        for (at, to, view, strides) in self.images() {
            dense.copy_between(from, &view, at, strides, to);
        }
        dense
    }

    /// Writes densely stored elements to its places.
    fn scatter(&self, to: &mut Numbers, dense: &Numbers) {
        for (at, from, view, strides) in self.images() {
            let turned = View { shape: view.shape, strides };
            to.copy_between(dense, &turned, from, view.strides, at);
        }
    }
}
