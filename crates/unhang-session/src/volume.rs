//! 3-d convolutions on a face's memory and stream: folded into 2-d ones ([`Volume::fold`]), each of which is planned, proven,
//! tuned and watched as any other.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock, PoisonError};

use unhang_conv::{DataType, Fold, Layout, Part, Planes, Problem, Volume};
use unhang_cpu::CpuEngine;
use unhang_engine::{EngineName, Operands, run_volume};
use unhang_gpu::GpuError;
use unhang_gpu::strided::{self, LoadedMove, Move};

use crate::compute::{Call, Failure, NotComputed, compute, is_wrong_on_purpose};
use crate::device::Device;
use crate::host::Numbers;
use crate::process::{Decision, Face, Process};
use crate::route::{Counts, Route, Totals};
use crate::talk::say_once as say;
use crate::tuning::tune;
use crate::view::{Convolution, View};

/// A 3-d convolution as it was asked for: an ordinary one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeConvolution {
    /// What is computed.
    pub volume: Volume,
    /// Elements from one to the next along each axis, of its operands in its own order: first, second, result.
    pub strides: [[usize; 5]; 3],
    /// Which of the caller's three tensors each of them is.
    pub order: [usize; 3],
}

/// A convolution as a face asks for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asked {
    /// In one or two axes of space.
    Plane(Convolution),
    /// In three.
    Volume(VolumeConvolution),
}

/// A planned 3-d convolution.
pub struct VolumeRoute {
    pub(crate) device: Arc<Device>,
    pub(crate) convolution: VolumeConvolution,
    pub(crate) parts: Vec<PlannedPart>,
    order: [usize; 3],
    zeros: Vec<Once>,
    /// Bytes of the planes that are gathered, for first, second and result.
    gathered: [u64; 3],
    caller: String,
    counts: Counts,
}

/// One of the 2-d convolutions that it is folded into.
pub(crate) struct PlannedPart {
    pub(crate) route: Arc<Route>,
    /// How it comes to its first, second and result.
    operands: [Place; 3],
}

/// Where an operand of a part is.
enum Place {
    /// In the caller's tensor, that many bytes in.
    There(u64),
    /// In the workspace, copied.
    Copied(Box<(Planes, Once)>),
}

/// A launch that is loaded when it is needed first.
struct Once {
    launch: Option<Move>,
    loaded: OnceLock<LoadedMove>,
}

impl Once {
    fn new(launch: Option<Move>) -> Once {
        Once { launch, loaded: OnceLock::new() }
    }

    /// # Safety
    /// Memory at both places that the launch was made for.
    unsafe fn run(&self, device: &Device, from: u64, to: u64, stream: u64) -> Result<(), GpuError> {
        let unsupported = |reason: &str| {
            GpuError::from(unhang_engine::Unsupported { engine: EngineName::Jit, reason: reason.to_owned() })
        };
        let loaded = match self.loaded.get() {
            Some(loaded) => loaded,
            None => {
                if !device.may_run(strided::FAMILY) {
                    return Err(unsupported("the canary of the kernels that gather planes did not pass"));
                }
                let launch = self.launch.clone().ok_or_else(|| unsupported("a tensor of more than 2^31 elements"))?;
                let loaded = device.engine.load_move(launch, stream)?;
                self.loaded.get_or_init(|| loaded)
            }
        };
        // SAFETY: the caller's promise.
        unsafe { device.engine.launch_move(loaded, from, to, stream) }
    }
}

impl VolumeRoute {
    /// A route for what a convolution was folded into. `plan` says who computes a 2-d one.
    pub(crate) fn new(
        device: Arc<Device>,
        convolution: VolumeConvolution,
        fold: &Fold,
        caller: String,
        mut plan: impl FnMut(Convolution) -> Result<Route, String>,
    ) -> Result<VolumeRoute, String> {
        let (layout, data_type) = (convolution.volume.layout(), convolution.volume.data_type());
        let mut routes: HashMap<Problem, Arc<Route>> = HashMap::new();
        let (mut parts, mut gathered) = (Vec::new(), [0; 3]);
        for part in &fold.parts {
            let route = match routes.get(&part.problem) {
                Some(route) => route.clone(),
                None => {
                    let route = Arc::new(plan(dense(part, layout))?);
                    routes.insert(part.problem.clone(), route.clone());
                    route
                }
            };
            let operands = [0, 1, 2].map(|index| {
                let (planes, strides) = (part.planes[index], convolution.strides[fold.order[index]]);
                match planes.dense(strides, layout) {
                    Some(start) => Place::There((start * data_type.size()) as u64),
                    None => {
                        let bytes = (planes.shape().iter().product::<usize>() * data_type.size()) as u64;
                        gathered[index] = gathered[index].max(bytes.next_multiple_of(256));
                        let copy = if index == 2 { Move::scatter } else { Move::gather };
                        Place::Copied(Box::new((planes, Once::new(copy(data_type, &planes, layout, strides)))))
                    }
                }
            });
            parts.push(PlannedPart { route, operands });
        }
        let clear = |planes: &Planes| Once::new(Move::clear(data_type, planes, layout, convolution.strides[2]));
        let zeros = fold.zeros.iter().map(clear).collect();
        let (order, counts) = (fold.order, Counts::default());
        Ok(VolumeRoute { device, convolution, parts, order, zeros, gathered, caller, counts })
    }

    /// The 2-d convolutions that it is made of, each once.
    fn routes(&self) -> impl Iterator<Item = &Route> {
        let is_first = |at: usize| {
            let is_same = |part: &PlannedPart| Arc::ptr_eq(&part.route, &self.parts[at].route);
            self.parts.iter().position(is_same) == Some(at)
        };
        (0..self.parts.len()).filter(move |&at| is_first(at)).map(|at| &*self.parts[at].route)
    }

    fn gathered_bytes(&self) -> u64 {
        self.gathered.iter().sum()
    }

    /// The bytes of workspace with which it is computed fastest.
    pub fn workspace_bytes(&self) -> u64 {
        let kernels = self.routes().map(Route::workspace_bytes).max().unwrap_or(0);
        match self.is_on_host() {
            true => 0,
            false if self.gathered_bytes() == 0 => kernels,
            false => self.gathered_bytes() + kernels.max(256),
        }
    }

    /// What it takes in milliseconds: its parts, without the copies.
    pub fn milliseconds(&self) -> f32 {
        self.parts.iter().map(|part| part.route.milliseconds()).sum()
    }

    /// The type of the elements.
    pub fn data_type(&self) -> DataType {
        self.convolution.volume.data_type()
    }

    /// Whether everything is computed on the host: then no planes are gathered on the device.
    fn is_on_host(&self) -> bool {
        self.parts.first().is_none_or(|part| part.route.engines.first() == Some(&EngineName::Cpu))
    }

    pub(crate) fn add_to(&self, totals: &mut Totals) {
        self.counts.add_to(&self.caller, totals);
    }

    pub(crate) fn has(&self, problem: &Problem) -> bool {
        self.routes().any(|route| route.convolution.problem == *problem)
    }

    pub(crate) fn does_the_same_as(&self, other: &VolumeRoute) -> bool {
        self.parts.len() == other.parts.len()
            && self.parts.iter().zip(&other.parts).all(|(one, two)| one.route.does_the_same_as(&two.route))
    }

    /// This plan goes on with the counts of an older one for the same call.
    pub(crate) fn go_on_from(&self, old: &VolumeRoute) {
        self.counts.take_over(&old.counts);
    }
}

/// A part as a convolution whose tensors have no gaps.
fn dense(part: &Part, layout: Layout) -> Convolution {
    let view = |planes: &Planes| View { shape: planes.shape(), strides: layout.strides(planes.shape()) };
    Convolution { problem: part.problem.clone(), views: part.planes.each_ref().map(view), order: [0, 1, 2] }
}

/// A planned convolution of either kind.
#[derive(Clone, Copy)]
pub enum Planned<'a> {
    /// In one or two axes of space.
    Plane(&'a Route),
    /// In three.
    Volume(&'a VolumeRoute),
}

impl Decision {
    /// What we compute, where we do.
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

    /// What it takes in milliseconds, as measured or else as the model of the card says; 0 where there is no model of the engine.
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

    /// Finds the fastest kernels, where that is asked for.
    pub fn tune<F: Face>(self, process: &Process<F>, stream: u64) {
        match self {
            Planned::Plane(route) => tune(process, route, stream),
            Planned::Volume(route) => route.routes().for_each(|route| tune(process, route, stream)),
        }
    }

    /// Computes it by the first of its engines that does. `vendors_own` is the vendor's library in its plainest way; of a 3-d
    /// convolution it computes nothing.
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
                failure = Some(stopped.reason());
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

/// Part by part: planes gathered, the 2-d convolution, planes put back. The engine that computed the last part.
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
            if let Place::Copied(copied) = &part.operands[index]
                && last[index] != Some(copied.0)
            {
                let (planes, gather) = &**copied;
                // SAFETY: the caller's tensor, and room for the largest part's planes.
                unsafe { gather.run(device, operand(index), places[index], stream) }.map_err(copying)?;
                last[index] = Some(*planes);
            }
        }
        let at = |index: usize| match part.operands[index] {
            Place::There(start) => operand(index) + start,
            Place::Copied(_) => places[index],
        };
        let call =
            Call { operands: [at(0), at(1), at(2)], workspace: begin + gathered, bytes: room - gathered, stream };
        // SAFETY: tensors of the part's sizes; the workspace is behind the planes.
        computed = unsafe { compute(process, &part.route, call, &declined) }.map_err(Stopped::Part)?;
        if let Place::Copied(copied) = &part.operands[2] {
            // SAFETY: as above.
            unsafe { copied.1.run(device, places[2], operand(2), stream) }.map_err(copying)?;
        }
    }
    for clear in &route.zeros {
        // SAFETY: nothing is read.
        unsafe { clear.run(device, call.operands[2], call.operands[2], stream) }.map_err(copying)?;
    }
    Ok(computed)
}

/// On the host: copied there, computed, and copied back.
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
    // What is between the elements of a tensor with gaps is not ours to change.
    let mut whole = bring(2)?;
    tensors[2].scatter(&mut whole, &result);
    // SAFETY: the caller's promise.
    unsafe { whole.write(driver, call.operands[2], stream) }.map_err(Failure::from)
}

/// A 3-d tensor as it is in memory.
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
            dense.copy_between(from, &view, (at, to), strides);
        }
        dense
    }

    /// Puts elements without gaps where it has them.
    fn scatter(&self, to: &mut Numbers, dense: &Numbers) {
        for (at, from, view, strides) in self.images() {
            let turned = View { shape: view.shape, strides };
            to.copy_between(dense, &turned, (from, at), view.strides);
        }
    }
}
