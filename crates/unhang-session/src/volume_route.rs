//! A planned 3-d convolution: the 2-d ones that it is folded into ([`Volume::fold`]), and how each gets its operands.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use unhang_conv::{DataType, Fold, FoldPart, Layout, Planes, Problem, Volume};
use unhang_engine::EngineName;
use unhang_gpu::GpuError;
use unhang_gpu::strided::{self, LoadedMove, Move};

use crate::device::Device;
use crate::route::{Counts, Route, Totals};
use crate::view::{Convolution, View};

/// A 3-d convolution as the caller asked for it: an ordinary one.
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
    /// 1-d or 2-d.
    Plane(Convolution),
    /// In three.
    Volume(VolumeConvolution),
}

/// A planned 3-d convolution.
pub struct VolumeRoute {
    pub(crate) device: Arc<Device>,
    pub(crate) convolution: VolumeConvolution,
    pub(crate) parts: Vec<PlannedPart>,
    pub(crate) order: [usize; 3],
    pub(crate) zeros: Vec<LazyMove>,
    /// Bytes of the planes that are gathered, for first, second and result.
    pub(crate) gathered: [u64; 3],
    caller: String,
    pub(crate) counts: Counts,
}

/// One of the 2-d convolutions that it is folded into.
pub(crate) struct PlannedPart {
    pub(crate) route: Arc<Route>,
    /// How it gets its first, second and result.
    pub(crate) operands: [OperandPlace; 3],
}

/// Where an operand of a part is.
pub(crate) enum OperandPlace {
    /// In the caller's tensor, at that byte offset.
    There(u64),
    /// In the workspace, copied.
    Copied(Box<(Planes, LazyMove)>),
}

/// A launch that is loaded at its first use.
pub(crate) struct LazyMove {
    launch: Option<Move>,
    loaded: OnceLock<LoadedMove>,
}

impl LazyMove {
    fn new(launch: Option<Move>) -> LazyMove {
        LazyMove { launch, loaded: OnceLock::new() }
    }

    /// The launch, loaded into the device. The stream is one that kernels may be tried in.
    pub(crate) fn loaded(&self, device: &Device, stream: u64) -> Result<&LoadedMove, GpuError> {
        let unsupported = |reason: &str| {
            GpuError::from(unhang_engine::Unsupported { engine: EngineName::Jit, reason: reason.to_owned() })
        };
        if let Some(loaded) = self.loaded.get() {
            return Ok(loaded);
        }
        if !device.may_run(strided::FAMILY) {
            return Err(unsupported("the canary of the kernels that gather planes did not pass"));
        }
        let launch = self.launch.clone().ok_or_else(|| unsupported("a tensor of more than 2^31 elements"))?;
        let loaded = device.engine.load_move(launch, stream)?;
        Ok(self.loaded.get_or_init(|| loaded))
    }
}

impl VolumeRoute {
    /// A route for the parts of a folded convolution. `plan` chooses the engines of a 2-d one.
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
                    Some(start) => OperandPlace::There((start * data_type.size()) as u64),
                    None => {
                        let bytes = (planes.shape().iter().product::<usize>() * data_type.size()) as u64;
                        gathered[index] = gathered[index].max(bytes.next_multiple_of(256));
                        let copy = if index == 2 { Move::scatter } else { Move::gather };
                        OperandPlace::Copied(Box::new((
                            planes,
                            LazyMove::new(copy(data_type, &planes, layout, strides)),
                        )))
                    }
                }
            });
            parts.push(PlannedPart { route, operands });
        }
        let clear = |planes: &Planes| LazyMove::new(Move::clear(data_type, planes, layout, convolution.strides[2]));
        let zeros = fold.zeros.iter().map(clear).collect();
        let (order, counts) = (fold.order, Counts::default());
        Ok(VolumeRoute { device, convolution, parts, order, zeros, gathered, caller, counts })
    }

    /// The 2-d convolutions that it is made of, each once.
    pub(crate) fn routes(&self) -> impl Iterator<Item = &Route> {
        let is_first = |at: usize| {
            let is_same = |part: &PlannedPart| Arc::ptr_eq(&part.route, &self.parts[at].route);
            self.parts.iter().position(is_same) == Some(at)
        };
        (0..self.parts.len()).filter(move |&at| is_first(at)).map(|at| &*self.parts[at].route)
    }

    pub(crate) fn gathered_bytes(&self) -> u64 {
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

    /// Its time in milliseconds: its parts, without the copies.
    pub fn milliseconds(&self) -> f32 {
        self.parts.iter().map(|part| part.route.milliseconds()).sum()
    }

    /// The type of the elements.
    pub fn data_type(&self) -> DataType {
        self.convolution.volume.data_type()
    }

    /// Whether everything is computed on the host, so that no planes are gathered on the device.
    pub(crate) fn is_on_host(&self) -> bool {
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

    /// Continues the counts of an older plan for the same call.
    pub(crate) fn go_on_from(&self, old: &VolumeRoute) {
        self.counts.take_over(&old.counts);
    }
}

/// A part as a convolution whose tensors have no gaps.
fn dense(part: &FoldPart, layout: Layout) -> Convolution {
    let view = |planes: &Planes| View { shape: planes.shape(), strides: layout.strides(planes.shape()) };
    Convolution { problem: part.problem.clone(), views: part.planes.each_ref().map(view), order: [0, 1, 2] }
}
