//! Everything except 2-d convolutions, for the same callers: poolings, batch normalisations, reductions and 3-d
//! convolutions, described in JSON.

use std::ffi::c_char;
use std::sync::Arc;

use serde::Deserialize;
use unhang_conv::{DataType, Planes, Volume};

use super::{read, report};
use crate::normalization::{self, Activation, Normalization};
use crate::pooling::{self, IndexType, Pooling, PoolingKind};
use crate::reduction::{self, AXES, Axis, ReductionKind};
use crate::strided::{LoadedMove, Move};
use crate::{DevicePointers, GpuEngine, GpuError, Launches, LoadedLaunches, Prepared};

/// What is asked for.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Asked {
    Pooling(PoolingAsked),
    Normalization(NormalizationAsked),
    Reduction(ReductionAsked),
    /// By its key.
    Volume(String),
}

#[derive(Debug, Deserialize)]
struct PoolingAsked {
    kind: String,
    backward: bool,
    data_type: String,
    batch: usize,
    channels: usize,
    input: [usize; 3],
    output: [usize; 3],
    window: [usize; 3],
    stride: [usize; 3],
    padding: [usize; 3],
    x: [usize; 5],
    y: [usize; 5],
    index_bytes: usize,
}

impl PoolingAsked {
    fn task(&self) -> Result<pooling::Task, String> {
        let &PoolingAsked { backward, batch, channels, input, output, window, stride, padding, x, y, .. } = self;
        let kind = match self.kind.as_str() {
            "largest" => PoolingKind::Largest,
            "mean" => PoolingKind::Mean,
            "inclusive" => PoolingKind::InclusiveMean,
            other => return Err(format!("no pooling is called {other}")),
        };
        let is_wide = |index: &IndexType| index.bytes() == self.index_bytes;
        let index = IndexType::ALL.into_iter().find(is_wide).ok_or("no index has that many bytes")?;
        let sizes = Pooling { kind, batch, channels, input, output, window, stride, padding, index_in_window: true };
        let data_type = type_of(&self.data_type)?;
        Ok(pooling::Task { sizes, backward, data_type, x, y, index, factors: [1.0, 0.0] })
    }
}

#[derive(Debug, Deserialize)]
struct NormalizationAsked {
    operation: String,
    data_type: String,
    batch: usize,
    channels: usize,
    pixels: usize,
    /// From image to image, channel to channel, pixel to pixel, of all tensors.
    strides: [usize; 3],
    epsilon: f64,
    momentum: f64,
}

impl NormalizationAsked {
    /// A spatial one with parameters in single precision.
    fn task(&self) -> Result<normalization::Task, String> {
        let operation = match self.operation.as_str() {
            "train" => normalization::Operation::Train,
            "apply" => normalization::Operation::Apply,
            "backward" => normalization::Operation::Backward,
            other => return Err(format!("no normalisation is called {other}")),
        };
        let &NormalizationAsked { batch, channels, pixels, strides: [image, channel, pixel], .. } = self;
        let lies = normalization::Strides { image, channel, pixel };
        Ok(normalization::Task {
            sizes: Normalization { batch, channels, pixels, per_activation: false },
            operation,
            data_type: type_of(&self.data_type)?,
            x: lies,
            y: lies,
            z: lies,
            parameters: [1, 0],
            types: [DataType::F32; 4],
            epsilon: self.epsilon,
            momentum: self.momentum,
            factors: [1.0, 0.0],
            activation: Activation::default(),
        })
    }
}

#[derive(Debug, Deserialize)]
struct ReductionAsked {
    kind: String,
    data_type: String,
    /// Size, and strides in x and the result.
    kept: Vec<[usize; 3]>,
    reduced: Vec<[usize; 3]>,
}

impl ReductionAsked {
    fn task(&self) -> Result<reduction::Task, String> {
        let names = ["sum", "product", "least", "largest", "furthest", "mean", "norm1", "norm2"];
        let number = names.iter().position(|name| *name == self.kind);
        let data_type = type_of(&self.data_type)?;
        let [kept, reduced] = [&self.kept, &self.reduced]
            .map(|axes| axes.iter().map(|&[size, x, y]| Axis { size, x, y }).collect::<Vec<_>>());
        if kept.len() + reduced.len() > AXES {
            return Err(format!("{} axes, of {AXES} at most", kept.len() + reduced.len()));
        }
        let none = [Axis { size: 1, x: 0, y: 0 }; AXES];
        let task = reduction::Task {
            kind: ReductionKind::ALL[number.ok_or_else(|| format!("no reduction is called {}", self.kind))?],
            propagates: true,
            data_type,
            result_type: data_type,
            in_double: false,
            kept: none,
            reduced: none,
            factors: [1.0, 0.0],
        };
        Ok(task.with_axes(&kept, &reduced))
    }
}

fn type_of(name: &str) -> Result<DataType, String> {
    DataType::ALL.into_iter().find(|it| it.to_string() == name).ok_or_else(|| format!("no type is called {name}"))
}

/// An operation that is loaded, and how many addresses it takes.
pub enum Loaded {
    /// A pooling's: what is read, the result, indices. A batch normalisation's: those of [`normalization::Buffers`],
    /// workspace. A reduction's: x, the result, indices, workspace.
    Launches(LoadedLaunches, usize),
    /// Addresses: first, second, result, workspace.
    Volume(LoadedVolume),
}

/// Where an operand of a part is.
enum OperandPlace {
    There(u64),
    Copied(Box<(Planes, LoadedMove)>),
}

/// A 3-d convolution whose kernels are loaded, as the session computes one.
pub struct LoadedVolume {
    parts: Vec<(Arc<Prepared>, [OperandPlace; 3])>,
    order: [usize; 3],
    zeros: Vec<LoadedMove>,
    gathered: [u64; 3],
    workspace: u64,
}

impl LoadedVolume {
    fn new(engine: &GpuEngine, volume: &Volume) -> Result<LoadedVolume, String> {
        let words = |error: GpuError| error.to_string();
        let fold = volume.fold(volume.fold_limit()).map_err(|error| error.to_string())?;
        let (layout, data_type) = (volume.layout(), volume.data_type());
        let strides = volume.operand_shapes().map(|shape| Volume::dense_strides(shape, layout));
        let load = |launch: Option<Move>| engine.load_move(launch.ok_or("too many elements")?, 0).map_err(words);
        let (mut parts, mut gathered, mut workspace) = (Vec::new(), [0u64; 3], 256);
        for part in &fold.parts {
            let prepared = engine.prepare(&part.problem).map_err(words)?;
            workspace = workspace.max(prepared.workspace_bytes());
            let mut places = Vec::new();
            for (index, planes) in part.planes.iter().enumerate() {
                let strides = strides[fold.order[index]];
                places.push(match planes.dense(strides, layout) {
                    Some(start) => OperandPlace::There((start * data_type.size()) as u64),
                    None => {
                        let bytes = (planes.shape().iter().product::<usize>() * data_type.size()) as u64;
                        gathered[index] = gathered[index].max(bytes.next_multiple_of(256));
                        let copy = if index == 2 { Move::scatter } else { Move::gather };
                        OperandPlace::Copied(Box::new((*planes, load(copy(data_type, planes, layout, strides))?)))
                    }
                });
            }
            let places = <[OperandPlace; 3]>::try_from(places).map_err(|_| "three operands")?;
            parts.push((prepared, places));
        }
        let clear = |planes: &Planes| load(Move::clear(data_type, planes, layout, strides[2]));
        let zeros = fold.zeros.iter().map(clear).collect::<Result<_, String>>()?;
        Ok(LoadedVolume { parts, order: fold.order, zeros, gathered, workspace })
    }

    fn workspace_bytes(&self) -> u64 {
        self.gathered.iter().sum::<u64>() + self.workspace
    }

    /// # Safety
    /// As [`GpuEngine::launch`].
    unsafe fn launch(&self, engine: &GpuEngine, at: [u64; 4], stream: u64) -> Result<(), GpuError> {
        let [begin, second, third] = [at[3], at[3] + self.gathered[0], at[3] + self.gathered[0] + self.gathered[1]];
        let (places, workspace) = ([begin, second, third], third + self.gathered[2]);
        let mut last: [Option<Planes>; 2] = [None; 2];
        for (prepared, operands) in &self.parts {
            let operand = |index: usize| at[self.order[index]];
            let place = |index: usize| match &operands[index] {
                OperandPlace::There(start) => operand(index) + start,
                OperandPlace::Copied(_) => places[index],
            };
            // SAFETY: the caller's tensors, and a workspace with room for the largest part.
            unsafe {
                for index in 0..2 {
                    if let OperandPlace::Copied(copied) = &operands[index]
                        && last[index] != Some(copied.0)
                    {
                        engine.launch_move(&copied.1, operand(index), places[index], stream)?;
                        last[index] = Some(copied.0);
                    }
                }
                let pointers =
                    DevicePointers { first: place(0), second: place(1), bias: 0, result: place(2), workspace };
                engine.launch(prepared, pointers, stream)?;
                if let OperandPlace::Copied(copied) = &operands[2] {
                    engine.launch_move(&copied.1, places[2], operand(2), stream)?;
                }
            }
        }
        // SAFETY: nothing is read.
        self.zeros.iter().try_for_each(|clear| unsafe { engine.launch_move(clear, at[2], at[2], stream) })
    }
}

/// Compiles and loads an operation; null on error. Never freed.
///
/// # Safety
/// An engine of [`super::unhang_gpu_open`], a text that ends in NUL, a place for the workspace's bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unhang_gpu_operation(
    engine: *const GpuEngine,
    text: *const c_char,
    workspace: *mut u64,
) -> *const Loaded {
    let words = |error: GpuError| error.to_string();
    let result = (|| {
        // SAFETY: the caller's promise.
        let (engine, text) = unsafe { (&*engine, read(text)?) };
        let units = engine.driver().description().model.compute_units;
        let load = |launches: Option<Launches>, addresses: usize| {
            let launches = launches.ok_or_else(|| "more than 2^31 elements".to_owned())?;
            let bytes = launches.workspace_bytes();
            Ok::<_, String>((Loaded::Launches(engine.load_launches(launches, 0).map_err(words)?, addresses), bytes))
        };
        Ok(match serde_json::from_str(text).map_err(|error| error.to_string())? {
            Asked::Volume(key) => {
                let volume =
                    LoadedVolume::new(engine, &key.parse().map_err(|error: unhang_conv::KeyError| error.to_string())?)?;
                let bytes = volume.workspace_bytes();
                (Loaded::Volume(volume), bytes)
            }
            Asked::Normalization(asked) => load(asked.task()?.launches(true, units), 13)?,
            Asked::Reduction(asked) => load(asked.task()?.launches(true, units), 4)?,
            Asked::Pooling(asked) => load(asked.task()?.launches(), 3)?,
        })
    })();
    report(result).map_or(std::ptr::null(), |(loaded, bytes)| {
        // SAFETY: the caller's promise.
        unsafe { *workspace = bytes };
        Box::into_raw(Box::new(loaded))
    })
}

/// Launches an operation; 0 if all went well.
///
/// # Safety
/// Values of [`super::unhang_gpu_open`] and [`unhang_gpu_operation`], and as many addresses as [`Loaded`] says, of such memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unhang_gpu_run_operation(
    engine: *const GpuEngine,
    loaded: *const Loaded,
    addresses: *const u64,
    stream: u64,
) -> i32 {
    // SAFETY: the caller's promise.
    let launched = unsafe {
        let engine = &*engine;
        match &*loaded {
            Loaded::Launches(launches, count) => {
                engine.launch_all(launches, std::slice::from_raw_parts(addresses, *count), stream)
            }
            Loaded::Volume(volume) => volume.launch(engine, *addresses.cast::<[u64; 4]>(), stream),
        }
    };
    report(launched.map_err(|error| error.to_string())).map_or(1, |()| 0)
}
