//! The single launches that plans are made of: constants, grids and parameter structures as the kernels declare them.

mod depthwise;
mod direct;
mod stride2;
mod winograd;

pub(crate) use depthwise::{depthwise, depthwise_quads};
pub(crate) use direct::direct;
pub(crate) use stride2::{is_stride2_winograd, stride2_winograd};
pub(crate) use winograd::{is_winograd, winograd, winograd_fused, winograd_products};

use unhang_conv::{DataType, Direction, Layout, Problem};

use crate::choice::Tile;
use crate::plan::{Form, MAX_GRID_YZ, MAX_PHASES, MAX_TENSOR_BYTES, Plan, Pointer, Stage};
use crate::shapes::{
    DepthwiseQuadsShape, DepthwiseShape, DirectShape, Divisor, FusedFilterShape, FusedShape, GemmShape, NarrowShape,
    PackShape, PlainShape, ReduceShape, ReduceWeightsShape, WeightsShape, WinogradFilterShape, WinogradShape,
    WinogradWeightsShape,
};
use crate::sources::{Kernel, Source};

/// A problem as the kernels see it: never transposed, and which pointer is which of its operands.
pub(crate) struct Geometry {
    /// The ordinary convolution.
    pub problem: Problem,
    /// Its first operand.
    pub first: Pointer,
    /// Its second operand.
    pub second: Pointer,
    /// For this problem alone, or for all.
    pub form: Form,
}

impl Geometry {
    pub(crate) fn new(problem: &Problem, form: Form) -> Geometry {
        let lowered = problem.lower();
        let (first, second) = if lowered.operands_exchanged {
            (Pointer::Second, Pointer::First)
        } else {
            (Pointer::First, Pointer::Second)
        };
        Geometry { problem: lowered.problem, first, second, form }
    }

    pub(crate) fn largest_extent(&self) -> Option<usize> {
        let p = &self.problem;
        [p.in_size(), p.out_size(), p.kernel(), p.stride(), p.padding(), p.dilation()]
            .into_iter()
            .flatten()
            .chain([p.batch(), p.in_channels(), p.out_channels()])
            .max()
    }

    pub(crate) fn result_elements(&self) -> u64 {
        self.problem.operand_shapes()[2].iter().map(|&n| n as u64).product()
    }

    /// An error where general kernels are asked for.
    pub(crate) fn refuse_general(&self) -> Result<(), String> {
        match self.form {
            Form::Specialised => Ok(()),
            Form::General => Err("there is no general kernel for it".into()),
        }
    }

    fn taps(&self) -> usize {
        self.problem.kernel()[0] * self.problem.kernel()[1]
    }

    fn channels_last(&self) -> bool {
        self.problem.layout() == Layout::Nhwc
    }

    /// Channels summed over and channels of the result, in a group, for forward and backward-data.
    pub(crate) fn reduced_and_rows(&self) -> (usize, usize) {
        let p = &self.problem;
        let (input, output) = (p.in_channels() / p.groups(), p.out_channels() / p.groups());
        if p.direction() == Direction::Forward { (input, output) } else { (output, input) }
    }

    /// The sizes of the image that is read and of the one that is written, for forward and backward-data.
    pub(crate) fn source_and_result(&self) -> ([usize; 2], [usize; 2]) {
        let p = &self.problem;
        if p.direction() == Direction::Forward { (p.in_size(), p.out_size()) } else { (p.out_size(), p.in_size()) }
    }

    /// Whether this is a matrix product and no more: 1×1, stride 1, no padding.
    pub(crate) fn is_pointwise(&self) -> bool {
        let p = &self.problem;
        p.kernel() == [1, 1] && p.stride() == [1, 1] && p.padding() == [0, 0]
    }

    fn window_constants(&self) -> Vec<(&'static str, i64)> {
        let p = &self.problem;
        let names =
            [["FILTER_H", "FILTER_W"], ["STRIDE_H", "STRIDE_W"], ["PAD_H", "PAD_W"], ["DILATION_H", "DILATION_W"]];
        let values = [p.kernel(), p.stride(), p.padding(), p.dilation()];
        names
            .into_iter()
            .zip(values)
            .flat_map(|(names, values)| [(names[0], values[0] as i64), (names[1], values[1] as i64)])
            .collect()
    }
}

/// The number by which kernels know a data type.
pub(crate) fn type_number(data_type: DataType) -> i64 {
    match data_type {
        DataType::F32 => 0,
        DataType::F16 => 1,
        DataType::Bf16 => 2,
        DataType::F64 => 3,
    }
}

/// Hands out the workspace in aligned pieces.
#[derive(Default)]
pub(crate) struct Workspace {
    pub bytes: u64,
}

impl Workspace {
    pub(crate) fn take(&mut self, bytes: u64) -> u64 {
        let at = self.bytes;
        self.bytes += bytes.next_multiple_of(256);
        at
    }
}

/// A number as the kernels take it. Plans are made for sizes that fit.
fn int(value: usize) -> i32 {
    value as i32
}

pub(crate) fn grid_x(count: u64, each: u64) -> [u32; 3] {
    [count.div_ceil(each).max(1) as u32, 1, 1]
}

pub(crate) fn plain(geometry: &Geometry) -> Result<Plan, String> {
    let p = &geometry.problem;
    let (entry, pointers) = match p.direction() {
        Direction::Forward => ("plain_forward", vec![geometry.first, geometry.second, Pointer::Bias, Pointer::Result]),
        Direction::BackwardData => {
            ("plain_backward_data", vec![geometry.first, geometry.second, Pointer::Bias, Pointer::Result])
        }
        Direction::BackwardWeights => {
            ("plain_backward_weights", vec![geometry.first, geometry.second, Pointer::Result])
        }
    };
    let groups = if p.direction() == Direction::BackwardWeights {
        geometry.result_elements()
    } else {
        geometry.result_elements().div_ceil(256)
    };
    if groups > i32::MAX as u64 {
        return Err(format!("{groups} workgroups are more than a grid has"));
    }
    let shape = PlainShape {
        batch: int(p.batch()),
        groups: int(p.groups()),
        channels: int(p.in_channels() / p.groups()),
        rows: int(p.out_channels() / p.groups()),
        input_h: int(p.in_size()[0]),
        input_w: int(p.in_size()[1]),
        output_h: int(p.out_size()[0]),
        output_w: int(p.out_size()[1]),
        filter_h: int(p.kernel()[0]),
        filter_w: int(p.kernel()[1]),
        stride_h: int(p.stride()[0]),
        stride_w: int(p.stride()[1]),
        pad_h: int(p.padding()[0]),
        pad_w: int(p.padding()[1]),
        dilation_h: int(p.dilation()[0]),
        dilation_w: int(p.dilation()[1]),
        channels_last: i32::from(geometry.channels_last()),
    };
    let kernel = Kernel { source: Source::Plain, entry, constants: vec![("TYPE", type_number(p.data_type()))] };
    let stage = Stage { kernel, grid: [groups as u32, 1, 1], block: 256, pointers, shape: shape.into() };
    Ok(Plan { stages: vec![stage], workspace_bytes: 0 })
}

/// Brings the filter into the order that the GEMM kernel reads best; returns the stage, given where it writes, and how
/// many bytes it writes.
pub(crate) fn pack(
    geometry: &Geometry,
    tile: Tile,
    flat: bool,
    filter: Pointer,
) -> (impl FnOnce(u64) -> Stage + use<>, u64) {
    let p = &geometry.problem;
    let (reduced, rows) = geometry.reduced_and_rows();
    let taps = geometry.taps();
    let padded_rows = rows.next_multiple_of(tile.rows);
    let forward = p.direction() == Direction::Forward;
    // Where an element lies in a group's filter: row, channel summed over, tap.
    let strides = match (forward, geometry.channels_last()) {
        _ if flat => [taps * reduced, 1, 1],
        (true, false) => [taps * reduced, taps, 1],
        (true, true) => [taps * reduced, 1, reduced],
        (false, false) => [taps, taps * rows, 1],
        (false, true) => [1, taps * rows, rows],
    };
    let (reduced, taps) = if flat { (reduced * taps, 1) } else { (reduced, taps) };
    let padded_reduced = reduced.next_multiple_of(tile.depth);
    let shape = PackShape {
        rows: int(rows),
        padded_rows: int(padded_rows),
        reduced: int(reduced),
        padded_reduced: int(padded_reduced),
        taps: int(taps),
        row_elements: int(strides[0]),
        channel_elements: int(strides[1]),
        tap_elements: int(strides[2]),
    };
    let groups = p.groups();
    let data_type = p.data_type();
    let bytes = (groups * taps * padded_reduced * padded_rows * data_type.size()) as u64;
    let stage = move |at: u64| Stage {
        kernel: Kernel { source: Source::Support, entry: "pack", constants: vec![("TYPE", type_number(data_type))] },
        grid: [((padded_reduced * padded_rows) as u64).div_ceil(256) as u32, groups as u32, 1],
        block: 256,
        pointers: vec![filter, Pointer::Workspace(at)],
        shape: shape.into(),
    };
    (stage, bytes)
}

/// Slices of the reduction, in the longest phase.
pub(crate) fn gemm_steps(geometry: &Geometry, tile: Tile, flat: bool) -> u64 {
    let p = &geometry.problem;
    let (reduced, _) = geometry.reduced_and_rows();
    if flat {
        return (reduced * geometry.taps()).div_ceil(tile.depth) as u64;
    }
    let blocks = reduced.div_ceil(tile.depth) as u64;
    let taps: u64 = if p.direction() == Direction::Forward {
        geometry.taps() as u64
    } else {
        (0..2).map(|axis| longest_phase(p.kernel()[axis], p.stride()[axis], p.dilation()[axis]) as u64).product()
    };
    taps * blocks
}

/// Taps that a phase of the stride meets at most.
fn longest_phase(filter: usize, stride: usize, dilation: usize) -> usize {
    filter.div_ceil(stride / greatest_common_divisor(stride, dilation))
}

/// Whether backward-data has phases of the stride that no tap meets, whose pixels are zero.
pub(crate) fn has_empty_phases(p: &Problem) -> bool {
    p.direction() == Direction::BackwardData
        && (0..2).any(|axis| {
            let step = p.stride()[axis] / greatest_common_divisor(p.stride()[axis], p.dilation()[axis]);
            // Taps meet `step` different phases at most, and no more than there are taps.
            p.kernel()[axis].min(step) < p.stride()[axis]
        })
}

pub(crate) fn greatest_common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

/// How the GEMM kernel is to be built and launched.
pub(crate) struct GemmPart {
    pub tile: Tile,
    pub packed: bool,
    pub flat: bool,
    pub planes: bool,
    pub skip_empty: bool,
    pub half: bool,
    pub splits: u32,
    pub steps_per_split: i32,
}

fn tile_constants(tile: Tile, pad_a: bool, pad_b: bool) -> Vec<(&'static str, i64)> {
    vec![
        ("BM", tile.rows as i64),
        ("BN", tile.columns as i64),
        ("BK", tile.depth as i64),
        ("TM", tile.thread_rows as i64),
        ("TN", tile.thread_columns as i64),
        ("LDS_A_PAD", if pad_a { 4 } else { 0 }),
        ("LDS_B_PAD", if pad_b { 4 } else { 0 }),
    ]
}

pub(crate) fn gemm(geometry: &Geometry, part: &GemmPart, pointers: [Pointer; 4]) -> Result<Stage, String> {
    let p = &geometry.problem;
    let forward = p.direction() == Direction::Forward;
    let (reduced, rows) = geometry.reduced_and_rows();
    let (source, result) = geometry.source_and_result();
    let channels_last = geometry.channels_last();
    let pointwise =
        geometry.is_pointwise() && !channels_last && !part.flat && (source[0] * source[1]).is_multiple_of(4);
    let stride = if forward { [1, 1] } else { p.stride() };
    let phases = stride[0] * stride[1];
    // The largest phase; smaller ones leave early.
    let columns = p.batch() as u64 * result[0].div_ceil(stride[0]) as u64 * result[1].div_ceil(stride[1]) as u64;
    // Across in LDS: what is read along the reduction.
    let across = !part.packed && (forward || !channels_last);
    let mut constants = vec![("TYPE", type_number(p.data_type())), ("CHANNELS_LAST", i64::from(channels_last))];
    constants.extend(tile_constants(part.tile, across, channels_last));
    constants.extend([
        ("PACKED", i64::from(part.packed)),
        ("FLAT", i64::from(part.flat)),
        ("POINTWISE", i64::from(pointwise)),
        ("SOURCE_QUADS", i64::from(channels_last && !part.flat && reduced.is_multiple_of(4))),
    ]);
    match geometry.form {
        Form::Specialised => {
            constants.extend([
                ("GROUPS", p.groups() as i64),
                ("REDUCED", reduced as i64),
                ("ROWS", rows as i64),
                ("DIRECTION", i64::from(!forward)),
                ("PLANES", i64::from(part.planes)),
                ("SKIP_EMPTY", i64::from(part.skip_empty)),
            ]);
            constants.extend(geometry.window_constants());
        }
        // A packed 1×1 filter is the same in both directions.
        Form::General if pointwise => {
            constants.push(("DIRECTION", 0));
            constants.extend(geometry.window_constants());
        }
        Form::General => {}
    }
    if part.half {
        constants.push(("HALF", 1));
    }
    let row_tiles = rows.div_ceil(part.tile.rows);
    let tiles = row_tiles as u64 * columns.div_ceil(part.tile.columns as u64);
    if tiles > i32::MAX as u64 {
        return Err(format!("{tiles} tiles are more than a grid has"));
    }
    let axes = [0, 1].map(|axis| PhaseAxis::new(p, axis));
    let shape = GemmShape {
        batch: int(p.batch()),
        source_h: int(source[0]),
        source_w: int(source[1]),
        result_h: int(result[0]),
        result_w: int(result[1]),
        groups: int(p.groups()),
        reduced: int(reduced),
        rows: int(rows),
        filter_h: int(p.kernel()[0]),
        filter_w: int(p.kernel()[1]),
        stride_h: int(p.stride()[0]),
        stride_w: int(p.stride()[1]),
        pad_h: int(p.padding()[0]),
        pad_w: int(p.padding()[1]),
        dilation_h: int(p.dilation()[0]),
        dilation_w: int(p.dilation()[1]),
        backward: i32::from(!forward),
        phases_h: int(stride[0]),
        phases_w: int(stride[1]),
        source_step_h: axes[0].source_step,
        source_step_w: axes[1].source_step,
        source_tap_h: axes[0].source_tap,
        source_tap_w: axes[1].source_tap,
        tap_step_h: axes[0].tap_step,
        tap_step_w: axes[1].tap_step,
        steps_per_split: part.steps_per_split,
        planes: i32::from(part.planes),
        skip_empty: i32::from(part.skip_empty),
        by_row_tiles: Divisor::new(row_tiles),
        by_phases: Divisor::new(phases),
        by_phases_w: Divisor::new(stride[1]),
        by_stride_h: Divisor::new(p.stride()[0]),
        by_stride_w: Divisor::new(p.stride()[1]),
        by_taps: Divisor::new(geometry.taps()),
        by_filter_w: Divisor::new(p.kernel()[1]),
        by_reduced: Divisor::new(reduced),
    };
    Ok(Stage {
        kernel: Kernel { source: Source::Gemm, entry: "gemm", constants },
        grid: [tiles as u32, (phases * p.groups()) as u32, part.splits],
        block: part.tile.threads() as u32,
        pointers: pointers.to_vec(),
        shape: shape.into(),
    })
}

/// One axis of forward or backward-data, as `phases.cuh` has it.
struct PhaseAxis {
    /// From one pixel's window to the next.
    source_step: i32,
    /// From one tap of a phase to the next, in the source.
    source_tap: i32,
    /// The same in the filter.
    tap_step: i32,
}

impl PhaseAxis {
    fn new(p: &Problem, axis: usize) -> PhaseAxis {
        let (stride, dilation) = (p.stride()[axis], p.dilation()[axis]);
        if p.direction() == Direction::Forward {
            return PhaseAxis { source_step: int(stride), source_tap: int(dilation), tap_step: 1 };
        }
        let common = greatest_common_divisor(stride, dilation);
        PhaseAxis { source_step: 1, source_tap: -int(dilation / common), tap_step: int(stride / common) }
    }
}

/// LDS that the taps of a narrow kernel may take.
const NARROW_LDS_BYTES: usize = 16 << 10;

pub(crate) fn narrow(geometry: &Geometry, strip: u32) -> Result<Plan, String> {
    let p = &geometry.problem;
    let forward = match p.direction() {
        Direction::Forward => true,
        Direction::BackwardData => false,
        Direction::BackwardWeights => return Err("narrow is for forward and backward-data".into()),
    };
    geometry.refuse_general()?;
    let (reduced, rows) = geometry.reduced_and_rows();
    if rows > 4 {
        return Err("narrow is for at most 4 channels of the result in a group".into());
    }
    let strip = strip.clamp(1, 16) as usize;
    let most: Vec<usize> = (0..2)
        .map(|axis| {
            if forward {
                p.kernel()[axis]
            } else {
                longest_phase(p.kernel()[axis], p.stride()[axis], p.dilation()[axis])
            }
        })
        .collect();
    let (step, tap) = if forward { (p.stride()[0], p.dilation()[0]) } else { (1, p.dilation()[0]) };
    if (strip * step + most[0] * tap) * most[1] > 192 || most[0] > 8 {
        return Err("the window is too large to unroll".into());
    }
    let stride = if forward { [1, 1] } else { p.stride() };
    let phases = stride[0] * stride[1];
    if phases > MAX_PHASES || (phases * p.groups()) as u64 > MAX_GRID_YZ {
        return Err(format!("{phases} phases of the stride and {} groups are too many for one grid", p.groups()));
    }
    // Four channels are read at once in NHWC: whole quads of them lie in LDS.
    let at_once = if geometry.channels_last() && reduced.is_multiple_of(4) { 4 } else { 1 };
    let chunk = (NARROW_LDS_BYTES / (most[0] * most[1] * 16) / at_once * at_once).clamp(at_once, reduced);
    let (source, result) = geometry.source_and_result();
    let strips = result[0].div_ceil(stride[0]).div_ceil(strip);
    let threads = p.batch() as u64 * strips as u64 * result[1].div_ceil(stride[1]) as u64;
    let mut constants = vec![
        ("TYPE", type_number(p.data_type())),
        ("DIRECTION", i64::from(!forward)),
        ("CHANNELS_LAST", i64::from(geometry.channels_last())),
        ("GROUPS", p.groups() as i64),
        ("REDUCED", reduced as i64),
        ("ROWS", rows as i64),
    ];
    constants.extend(geometry.window_constants());
    constants.extend([("STRIP", strip as i64), ("CHUNK", chunk as i64)]);
    let stage = Stage {
        kernel: Kernel { source: Source::Narrow, entry: "narrow_rows", constants },
        grid: [threads.div_ceil(128).max(1) as u32, (phases * p.groups()) as u32, 1],
        block: 128,
        pointers: vec![geometry.second, geometry.first, Pointer::Bias, Pointer::Result],
        shape: NarrowShape {
            batch: int(p.batch()),
            source_h: int(source[0]),
            source_w: int(source[1]),
            result_h: int(result[0]),
            result_w: int(result[1]),
            strips: int(strips),
        }
        .into(),
    };
    Ok(Plan { stages: vec![stage], workspace_bytes: 0 })
}

/// How many planes each phase of the stride writes, where sums are split into parts of so many steps: one entry for a
/// convolution of one phase.
pub(crate) fn phase_planes(geometry: &Geometry, tile: Tile, steps_per_split: u64) -> Vec<u32> {
    let p = &geometry.problem;
    if p.direction() == Direction::Forward || p.stride() == [1, 1] {
        return Vec::new();
    }
    let blocks = geometry.reduced_and_rows().0.div_ceil(tile.depth) as u64;
    let [high, wide] = [0, 1].map(|axis| phase_taps(p, axis));
    let steps = high.iter().flat_map(|h| wide.iter().map(move |w| (h * w) as u64 * blocks));
    steps.map(|steps| steps.div_ceil(steps_per_split) as u32).collect()
}

/// The taps that each phase of an axis meets in backward-data; `phases.cuh` finds them the same way.
fn phase_taps(p: &Problem, axis: usize) -> Vec<usize> {
    let (filter, stride, pad, dilation) = (p.kernel()[axis], p.stride()[axis], p.padding()[axis], p.dilation()[axis]);
    let meets = |phase: usize, tap: usize| (phase + pad + tap * dilation * (stride - 1)).is_multiple_of(stride);
    (0..stride).map(|phase| (0..filter).filter(|&tap| meets(phase, tap)).count()).collect()
}

/// Adds planes up; `by_phase` says how many each phase of the stride has, and is empty where all have the same.
pub(crate) fn reduce(geometry: &Geometry, planes: u32, by_phase: &[u32], from: Pointer) -> Stage {
    let p = &geometry.problem;
    let [_, channels, h, w] = p.operand_shapes()[2];
    let elements = geometry.result_elements();
    let word = |at: usize| {
        let bytes = [0, 1, 2, 3].map(|byte| by_phase.get(at * 4 + byte).copied().unwrap_or(0).min(255) as u8);
        i32::from_le_bytes(bytes)
    };
    Stage {
        kernel: Kernel {
            source: Source::Support,
            entry: "reduce",
            constants: vec![("TYPE", type_number(p.data_type()))],
        },
        grid: grid_x(elements, 256),
        block: 256,
        pointers: vec![from, Pointer::Bias, Pointer::Result],
        shape: ReduceShape {
            elements: int(elements as usize),
            planes: planes as i32,
            phases: int(by_phase.len().max(1)),
            planes_0: word(0),
            planes_1: word(1),
            planes_2: word(2),
            planes_3: word(3),
            by_channel_elements: Divisor::new(if geometry.channels_last() { 1 } else { h * w }),
            by_channels: Divisor::new(channels),
            by_height: Divisor::new(h),
            by_width: Divisor::new(w),
            by_stride_h: Divisor::new(p.stride()[0]),
            by_stride_w: Divisor::new(p.stride()[1]),
        }
        .into(),
    }
}

pub(crate) fn weights(
    geometry: &Geometry,
    tile: Tile,
    splits: u32,
    steps_per_split: i32,
    pointers: [Pointer; 3],
) -> Stage {
    let p = &geometry.problem;
    let (channels, rows) = (p.in_channels() / p.groups(), p.out_channels() / p.groups());
    let channels_last = geometry.channels_last();
    let reads = WeightsReads::new(geometry, tile);
    let mut constants = vec![("TYPE", type_number(p.data_type())), ("CHANNELS_LAST", i64::from(channels_last))];
    constants.extend(tile_constants(tile, !channels_last, !channels_last));
    constants.extend([
        ("GRADIENT_QUADS", i64::from(reads.gradient_quads)),
        ("SOURCE_QUADS", i64::from(reads.source_quads)),
        ("ALIGNED", i64::from(reads.aligned)),
    ]);
    match geometry.form {
        Form::Specialised => {
            constants.extend([("GROUPS", p.groups() as i64), ("CHANNELS", channels as i64), ("ROWS", rows as i64)]);
            constants.extend(geometry.window_constants());
        }
        Form::General if reads.source_quads && !channels_last => constants.extend(geometry.window_constants()),
        Form::General => {}
    }
    let row_tiles = rows.div_ceil(tile.rows);
    let tiles = row_tiles * (reads.column_channels * geometry.taps()).div_ceil(tile.columns);
    let (source, gradient) = (p.in_size(), p.out_size());
    let shape = WeightsShape {
        batch: int(p.batch()),
        source_h: int(source[0]),
        source_w: int(source[1]),
        gradient_h: int(gradient[0]),
        gradient_w: int(gradient[1]),
        groups: int(p.groups()),
        channels: int(channels),
        rows: int(rows),
        filter_h: int(p.kernel()[0]),
        filter_w: int(p.kernel()[1]),
        stride_h: int(p.stride()[0]),
        stride_w: int(p.stride()[1]),
        pad_h: int(p.padding()[0]),
        pad_w: int(p.padding()[1]),
        dilation_h: int(p.dilation()[0]),
        dilation_w: int(p.dilation()[1]),
        steps_per_split,
        by_image: Divisor::new(gradient[0] * gradient[1]),
        by_row: Divisor::new(gradient[1]),
        by_row_tiles: Divisor::new(row_tiles),
        by_column_channels: Divisor::new(reads.column_channels),
        by_filter_w: Divisor::new(p.kernel()[1]),
    };
    Stage {
        kernel: Kernel { source: Source::Weights, entry: "weights", constants },
        grid: [tiles as u32, p.groups() as u32, splits],
        block: tile.threads() as u32,
        pointers: pointers.to_vec(),
        shape: shape.into(),
    }
}

/// How backward-weights reads its operands.
struct WeightsReads {
    gradient_quads: bool,
    source_quads: bool,
    /// All columns that the lanes of a unit gather belong to one tap.
    aligned: bool,
    /// Columns of a tap.
    column_channels: usize,
}

impl WeightsReads {
    fn new(geometry: &Geometry, tile: Tile) -> WeightsReads {
        let p = &geometry.problem;
        let (channels, rows) = (p.in_channels() / p.groups(), p.out_channels() / p.groups());
        let general = geometry.form == Form::General;
        if geometry.channels_last() {
            let (gradient_quads, source_quads) = (rows.is_multiple_of(4), channels.is_multiple_of(4));
            // There is no general kernel that reads the source alone in quads.
            let source_quads = source_quads && (gradient_quads || !general);
            return WeightsReads { gradient_quads, source_quads, aligned: false, column_channels: channels };
        }
        let gradient_quads = (p.out_size()[0] * p.out_size()[1]).is_multiple_of(4);
        let source_quads = gradient_quads && geometry.is_pointwise();
        let unit = tile.threads() / (tile.depth / if source_quads { 4 } else { 1 });
        let aligned = !source_quads
            && tile.columns.is_multiple_of(unit)
            && if general { channels >= unit } else { channels.is_multiple_of(unit) };
        let column_channels = if aligned { channels.next_multiple_of(unit) } else { channels };
        WeightsReads { gradient_quads, source_quads, aligned, column_channels }
    }
}

/// Up to so many planes of a filter's gradient are added up by one thread for each row and channel, if there are enough of
/// these to fill a device.
const FEW_PLANES: u32 = 16;
const MANY_FILTERS: usize = 1 << 14;

pub(crate) fn reduce_weights(geometry: &Geometry, planes: u32, from: Pointer) -> Stage {
    let p = &geometry.problem;
    let elements = geometry.result_elements();
    let filters = elements as usize / geometry.taps();
    let (entry, grid) = if planes <= FEW_PLANES && filters >= MANY_FILTERS {
        ("reduce_filters", grid_x(filters as u64, 256))
    } else {
        ("reduce_weights", grid_x(elements, 32))
    };
    Stage {
        kernel: Kernel { source: Source::Support, entry, constants: vec![("TYPE", type_number(p.data_type()))] },
        grid,
        block: 256,
        pointers: vec![from, Pointer::Result],
        shape: ReduceWeightsShape {
            elements: int(elements as usize),
            planes: planes as i32,
            taps: int(geometry.taps()),
            channels: int(p.in_channels() / p.groups()),
            channels_last: i32::from(geometry.channels_last()),
        }
        .into(),
    }
}
