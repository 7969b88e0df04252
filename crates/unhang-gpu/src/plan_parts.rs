//! The single launches that plans are made of: constants, grids and parameter structures as the kernels declare them.

use unhang_conv::{DataType, Direction, Layout, Problem};

use crate::choice::Tile;
use crate::plan::{MAX_GRID_YZ, MAX_PHASES, MAX_TENSOR_BYTES, Plan, Pointer, Stage};
use crate::sources::{Kernel, Source};

/// A problem as the kernels see it: never transposed, and which pointer is which of its operands.
pub(crate) struct Geometry {
    /// The ordinary convolution.
    pub problem: Problem,
    /// Its first operand.
    pub first: Pointer,
    /// Its second operand.
    pub second: Pointer,
}

impl Geometry {
    pub(crate) fn new(problem: &Problem) -> Geometry {
        let lowered = problem.lower();
        let (first, second) = if lowered.operands_exchanged {
            (Pointer::Second, Pointer::First)
        } else {
            (Pointer::First, Pointer::Second)
        };
        Geometry { problem: lowered.problem, first, second }
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
    fn source_and_result(&self) -> ([usize; 2], [usize; 2]) {
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

/// A structure as C lays it out: each number at a multiple of its size.
#[derive(Default)]
struct Structure {
    bytes: Vec<u8>,
    widest: usize,
}

impl Structure {
    fn put(&mut self, bytes: &[u8]) {
        self.bytes.resize(self.bytes.len().next_multiple_of(bytes.len()), 0);
        self.bytes.extend_from_slice(bytes);
        self.widest = self.widest.max(bytes.len());
    }

    fn ints(mut self, values: &[usize]) -> Self {
        for &value in values {
            self.put(&(value as i32).to_ne_bytes());
        }
        self
    }

    fn long(mut self, value: u64) -> Self {
        self.put(&value.to_ne_bytes());
        self
    }

    /// A `Divisor`: (high(n × multiplier) + n) >> shift is n / value for 0 ≤ n < 2³¹.
    fn divisor(mut self, value: usize) -> Self {
        let (multiplier, shift) = divisor(value as u32);
        self.put(&multiplier.to_ne_bytes());
        self.put(&shift.to_ne_bytes());
        self.ints(&[value])
    }

    fn finish(mut self) -> Vec<u8> {
        self.bytes.resize(self.bytes.len().next_multiple_of(self.widest.max(1)), 0);
        self.bytes
    }
}

/// The multiplier and shift that divide by `value`.
pub(crate) fn divisor(value: u32) -> (u32, u32) {
    let shift = 32 - (value - 1).leading_zeros();
    let multiplier = ((1u128 << 32) * ((1u128 << shift) - u128::from(value)) / u128::from(value) + 1) as u32;
    (multiplier, shift)
}

fn grid_x(count: u64, each: u64) -> [u32; 3] {
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
    let parameters = Structure::default()
        .ints(&[p.batch(), p.groups(), p.in_channels() / p.groups(), p.out_channels() / p.groups()])
        .ints(&[p.in_size(), p.out_size(), p.kernel(), p.stride(), p.padding(), p.dilation()].concat())
        .ints(&[usize::from(geometry.channels_last())])
        .finish();
    let kernel = Kernel { source: Source::Plain, entry, constants: vec![("TYPE", type_number(p.data_type()))] };
    let stage = Stage { kernel, grid: [groups as u32, 1, 1], block: 256, pointers, parameters };
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
    let parameters =
        Structure::default().ints(&[rows, padded_rows, reduced, padded_reduced, taps]).ints(&strides).finish();
    let groups = p.groups();
    let data_type = p.data_type();
    let bytes = (groups * taps * padded_reduced * padded_rows * data_type.size()) as u64;
    let stage = move |at: u64| Stage {
        kernel: Kernel { source: Source::Support, entry: "pack", constants: vec![("TYPE", type_number(data_type))] },
        grid: [((padded_reduced * padded_rows) as u64).div_ceil(256) as u32, groups as u32, 1],
        block: 256,
        pointers: vec![filter, Pointer::Workspace(at)],
        parameters,
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
    let mut constants = vec![
        ("TYPE", type_number(p.data_type())),
        ("DIRECTION", i64::from(!forward)),
        ("CHANNELS_LAST", i64::from(channels_last)),
        ("GROUPS", p.groups() as i64),
        ("REDUCED", reduced as i64),
        ("ROWS", rows as i64),
    ];
    constants.extend(geometry.window_constants());
    constants.extend(tile_constants(part.tile, across, channels_last));
    constants.extend([
        ("PACKED", i64::from(part.packed)),
        ("FLAT", i64::from(part.flat)),
        ("POINTWISE", i64::from(pointwise)),
        ("PLANES", i64::from(part.planes)),
        ("SKIP_EMPTY", i64::from(part.skip_empty)),
    ]);
    if part.half {
        constants.push(("HALF", 1));
    }
    let tiles = rows.div_ceil(part.tile.rows) as u64 * columns.div_ceil(part.tile.columns as u64);
    if tiles > i32::MAX as u64 {
        return Err(format!("{tiles} tiles are more than a grid has"));
    }
    Ok(Stage {
        kernel: Kernel { source: Source::Gemm, entry: "gemm", constants },
        grid: [tiles as u32, (phases * p.groups()) as u32, part.splits],
        block: part.tile.threads() as u32,
        pointers: pointers.to_vec(),
        parameters: Structure::default()
            .ints(&[p.batch(), source[0], source[1], result[0], result[1], part.steps_per_split as usize])
            .finish(),
    })
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
        parameters: Structure::default()
            .ints(&[p.batch(), source[0], source[1], result[0], result[1], strips])
            .finish(),
    };
    Ok(Plan { stages: vec![stage], workspace_bytes: 0 })
}

pub(crate) fn reduce(geometry: &Geometry, planes: u32, from: Pointer) -> Stage {
    let p = &geometry.problem;
    let [_, channels, h, w] = p.operand_shapes()[2];
    let elements = geometry.result_elements();
    Stage {
        kernel: Kernel {
            source: Source::Support,
            entry: "reduce",
            constants: vec![("TYPE", type_number(p.data_type()))],
        },
        grid: grid_x(elements, 256),
        block: 256,
        pointers: vec![from, Pointer::Bias, Pointer::Result],
        parameters: Structure::default()
            .long(elements)
            .ints(&[planes as usize, channels, if geometry.channels_last() { 1 } else { h * w }])
            .finish(),
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
    let quads = !channels_last && (p.out_size()[0] * p.out_size()[1]).is_multiple_of(4);
    let mut constants = vec![
        ("TYPE", type_number(p.data_type())),
        ("CHANNELS_LAST", i64::from(channels_last)),
        ("GROUPS", p.groups() as i64),
        ("CHANNELS", channels as i64),
        ("ROWS", rows as i64),
    ];
    constants.extend(geometry.window_constants());
    constants.extend(tile_constants(tile, !channels_last, !channels_last));
    constants
        .extend([("GRADIENT_QUADS", i64::from(quads)), ("POINTWISE", i64::from(quads && geometry.is_pointwise()))]);
    let tiles = rows.div_ceil(tile.rows) * (channels * geometry.taps()).div_ceil(tile.columns);
    let (source, gradient) = (p.in_size(), p.out_size());
    Stage {
        kernel: Kernel { source: Source::Weights, entry: "weights", constants },
        grid: [tiles as u32, p.groups() as u32, splits],
        block: tile.threads() as u32,
        pointers: pointers.to_vec(),
        parameters: Structure::default()
            .ints(&[p.batch(), source[0], source[1], gradient[0], gradient[1], steps_per_split as usize])
            .divisor(gradient[0] * gradient[1])
            .divisor(gradient[1])
            .finish(),
    }
}

pub(crate) fn reduce_weights(geometry: &Geometry, planes: u32, from: Pointer) -> Stage {
    let p = &geometry.problem;
    let elements = geometry.result_elements();
    Stage {
        kernel: Kernel {
            source: Source::Support,
            entry: "reduce_weights",
            constants: vec![("TYPE", type_number(p.data_type()))],
        },
        grid: grid_x(elements, 32),
        block: 256,
        pointers: vec![from, Pointer::Result],
        parameters: Structure::default()
            .ints(&[elements as usize, planes as usize, geometry.taps(), p.in_channels() / p.groups()])
            .ints(&[usize::from(geometry.channels_last())])
            .finish(),
    }
}

pub(crate) fn depthwise(geometry: &Geometry, strip: u32, splits: u32) -> Result<Plan, String> {
    let p = &geometry.problem;
    let strip = strip.max(1) as usize;
    let channels_last = geometry.channels_last();
    let (outputs, [oh, ow]) = (p.out_channels(), p.out_size());
    let mut constants = vec![
        ("TYPE", type_number(p.data_type())),
        ("CHANNELS_LAST", i64::from(channels_last)),
        ("CHANNELS", p.in_channels() as i64),
        ("MULTIPLIER", (outputs / p.in_channels()) as i64),
    ];
    constants.extend(geometry.window_constants());
    constants.push(("STRIP", strip as i64));
    let parameters = |size: [usize; 2], strips: usize, threads: usize, pixels: usize| {
        Structure::default()
            .ints(&[p.batch(), p.in_size()[0], p.in_size()[1], oh, ow])
            .ints(&[threads, pixels])
            .divisor(size[0] * size[1])
            .divisor(size[1])
            .divisor(strips)
            .finish()
    };
    let stage = |entry, grid, pointers, parameters| Stage {
        kernel: Kernel { source: Source::Depthwise, entry, constants: constants.clone() },
        grid,
        block: 256,
        pointers,
        parameters,
    };
    let unrolled = |rows: usize| {
        if rows * p.kernel()[1] > 256 { Err("the strip's rows are too many to unroll".to_owned()) } else { Ok(()) }
    };
    let operands = vec![geometry.first, geometry.second, Pointer::Bias, Pointer::Result];
    match p.direction() {
        Direction::Forward => {
            unrolled((strip - 1) * p.stride()[0] + (p.kernel()[0] - 1) * p.dilation()[0] + 1)?;
            let strips = oh.div_ceil(strip);
            let threads = p.batch() * outputs * strips * ow;
            let grid = grid_x(threads as u64, 256);
            let stages = vec![stage("depthwise_forward", grid, operands, parameters(p.out_size(), strips, threads, 0))];
            Ok(Plan { stages, workspace_bytes: 0 })
        }
        Direction::BackwardData => {
            if !strip.is_multiple_of(p.stride()[0]) {
                return Err(format!("a strip of {strip} rows is no multiple of the stride {}", p.stride()[0]));
            }
            unrolled((strip + (p.kernel()[0] - 1) * p.dilation()[0]) / p.stride()[0] + 2)?;
            let strips = p.in_size()[0].div_ceil(strip);
            let threads = p.batch() * p.in_channels() * strips * p.in_size()[1];
            let grid = grid_x(threads as u64, 256);
            let stages =
                vec![stage("depthwise_backward_data", grid, operands, parameters(p.in_size(), strips, threads, 0))];
            Ok(Plan { stages, workspace_bytes: 0 })
        }
        Direction::BackwardWeights => {
            let pixels = p.batch() * oh * ow;
            let per_split = pixels.div_ceil(splits.clamp(1, 65535) as usize).max(1);
            let splits = pixels.div_ceil(per_split) as u32;
            let mut workspace = Workspace::default();
            let planes = Pointer::Workspace(workspace.take(u64::from(splits) * geometry.result_elements() * 4));
            let groups = if channels_last { outputs.div_ceil(32) } else { outputs };
            let stages = vec![
                stage(
                    "depthwise_backward_weights",
                    [groups as u32, splits, 1],
                    vec![geometry.first, geometry.second, planes],
                    parameters(p.out_size(), 1, 0, per_split),
                ),
                reduce_weights(geometry, splits, planes),
            ];
            Ok(Plan { stages, workspace_bytes: workspace.bytes })
        }
    }
}

/// Neighbours that a thread of the depthwise kernels in vectors takes: channels in NHWC, columns in NCHW.
fn depthwise_width(geometry: &Geometry) -> Result<usize, String> {
    let p = &geometry.problem;
    if geometry.channels_last() {
        if p.direction() != Direction::BackwardWeights {
            return Err("in NHWC quads is for backward-weights".into());
        }
        // The sums of all taps and channels stay in registers.
        let width = if geometry.taps() <= 9 { 4 } else { 2 };
        let divides = p.in_channels().is_multiple_of(width);
        return if divides { Ok(width) } else { Err(format!("the channels do not divide by {width}")) };
    }
    let (input, output) = (p.in_size()[1], p.out_size()[1]);
    // The gradient is read in vectors of that many columns by backward-data.
    let narrower = if p.direction() == Direction::BackwardData { p.stride()[1] } else { 1 };
    [4, 2]
        .into_iter()
        .filter(|width| width % narrower == 0)
        .find(|width| input.is_multiple_of(*width) && output.is_multiple_of(width / narrower))
        .ok_or_else(|| format!("rows of {input} and {output} are not whole vectors"))
}

pub(crate) fn depthwise_quads(geometry: &Geometry, strip: u32, splits: u32) -> Result<Plan, String> {
    let p = &geometry.problem;
    let strip = strip.max(1) as usize;
    let channels_last = geometry.channels_last();
    let width = depthwise_width(geometry)?;
    let channels = p.in_channels();
    let mut constants = vec![
        ("TYPE", type_number(p.data_type())),
        ("CHANNELS_LAST", i64::from(channels_last)),
        ("CHANNELS", channels as i64),
    ];
    constants.extend(geometry.window_constants());
    constants.extend([("WIDTH", width as i64), ("STRIP", strip as i64)]);
    // `size` in vectors (pixels in NHWC).
    let parameters = |size: [usize; 2], strips: usize, threads: usize, each: usize| {
        Structure::default()
            .ints(&[p.batch()])
            .ints(&[p.in_size(), p.out_size()].concat())
            .ints(&[threads, each])
            .divisor(size[0] * size[1])
            .divisor(size[1])
            .divisor(strips)
            .finish()
    };
    let stage = |entry, grid, pointers, parameters| Stage {
        kernel: Kernel { source: Source::DepthwiseQuads, entry, constants: constants.clone() },
        grid,
        block: 256,
        pointers,
        parameters,
    };
    // gfx1010's compiler has all reads of a strip under way at once, beside sums and taps; more would cost it waves.
    let line = if channels_last {
        p.kernel()[1] * width
    } else {
        (width - 1) * p.stride()[1] + (p.kernel()[1] - 1) * p.dilation()[1] + 1
    };
    let taps = geometry.taps() * if channels_last { width } else { 1 };
    let unrolled = |rows: usize| {
        let numbers = rows * line + strip * width + taps;
        let most = if p.direction() == Direction::BackwardWeights { 104 } else { 100 };
        if numbers <= most { Ok(()) } else { Err(format!("a strip needs {numbers} numbers in registers")) }
    };
    let operands = vec![geometry.first, geometry.second, Pointer::Bias, Pointer::Result];
    // Columns that a thread has.
    let columns = if channels_last { 1 } else { width };
    match p.direction() {
        Direction::Forward => {
            unrolled((strip - 1) * p.stride()[0] + (p.kernel()[0] - 1) * p.dilation()[0] + 1)?;
            let (strips, vectors) = (p.out_size()[0].div_ceil(strip), p.out_size()[1].div_ceil(columns));
            let threads = p.batch() * channels * strips * vectors;
            let parameters = parameters([p.out_size()[0], vectors], strips, threads, 0);
            let stages = vec![stage("depthwise_quads_forward", grid_x(threads as u64, 256), operands, parameters)];
            Ok(Plan { stages, workspace_bytes: 0 })
        }
        Direction::BackwardData => {
            if !strip.is_multiple_of(p.stride()[0]) {
                return Err(format!("a strip of {strip} rows is no multiple of the stride {}", p.stride()[0]));
            }
            unrolled((strip - 1 + (p.kernel()[0] - 1) * p.dilation()[0]).div_ceil(p.stride()[0]) + 1)?;
            let (strips, vectors) = (p.in_size()[0].div_ceil(strip), p.in_size()[1].div_ceil(columns));
            let threads = p.batch() * channels * strips * vectors;
            let parameters = parameters([p.in_size()[0], vectors], strips, threads, 0);
            let stages =
                vec![stage("depthwise_quads_backward_data", grid_x(threads as u64, 256), operands, parameters)];
            Ok(Plan { stages, workspace_bytes: 0 })
        }
        Direction::BackwardWeights => {
            unrolled((strip - 1) * p.stride()[0] + (p.kernel()[0] - 1) * p.dilation()[0] + 1)?;
            let size = [p.out_size()[0].div_ceil(strip), p.out_size()[1] / columns];
            let vectors = p.batch() * size[0] * size[1];
            let per_split = vectors.div_ceil(splits.clamp(1, 65535) as usize).max(1);
            let splits = vectors.div_ceil(per_split) as u32;
            let mut workspace = Workspace::default();
            let planes = Pointer::Workspace(workspace.take(u64::from(splits) * geometry.result_elements() * 4));
            let groups = if channels_last { channels.div_ceil(32) } else { channels };
            let stages = vec![
                stage(
                    "depthwise_quads_backward_weights",
                    [groups as u32, splits, 1],
                    vec![geometry.first, geometry.second, planes],
                    parameters(size, 1, 0, per_split),
                ),
                reduce_weights(geometry, splits, planes),
            ];
            Ok(Plan { stages, workspace_bytes: workspace.bytes })
        }
    }
}

/// Winograd F(2×2, 3×3) in one kernel, behind the transform of the filter.
pub(crate) fn winograd_fused(geometry: &Geometry) -> Result<Plan, String> {
    let p = &geometry.problem;
    let forward = match p.direction() {
        Direction::Forward => true,
        Direction::BackwardData => false,
        Direction::BackwardWeights => return Err("fused is for forward and backward-data".into()),
    };
    if !is_winograd(p) || p.kernel() != [3, 3] || geometry.channels_last() {
        return Err("fused is for NCHW, 3x3 filters of stride and dilation 1, without groups, \
                    and a padding smaller than the filter"
            .into());
    }
    let (reduced, rows) = geometry.reduced_and_rows();
    let (source, result) = geometry.source_and_result();
    let pad = if forward { p.padding() } else { p.padding().map(|pad| 2 - pad) };
    let tiles = [result[0].div_ceil(2), result[1].div_ceil(2)];
    let all_tiles = p.batch() * tiles[0] * tiles[1];
    let (padded_rows, padded_reduced) = (rows.next_multiple_of(32), reduced.next_multiple_of(8));
    let constants = vec![
        ("TYPE", type_number(p.data_type())),
        ("REDUCED", reduced as i64),
        ("ROWS", rows as i64),
        ("PAD_H", pad[0] as i64),
        ("PAD_W", pad[1] as i64),
    ];
    let mut workspace = Workspace::default();
    let filter_bytes = (16 * padded_rows * padded_reduced * 4) as u64;
    if filter_bytes > MAX_TENSOR_BYTES {
        return Err("the transformed filter is beyond the 32-bit offsets of the fast kernels".into());
    }
    let filter = Pointer::Workspace(workspace.take(filter_bytes));
    let strides = if forward { [9 * reduced, 9] } else { [9, 9 * rows] };
    let kernel = |entry| Kernel { source: Source::WinogradFused, entry, constants: constants.clone() };
    let stages = vec![
        Stage {
            kernel: kernel("fused_filter"),
            grid: grid_x((padded_rows * padded_reduced) as u64, 128),
            block: 128,
            pointers: vec![geometry.second, filter],
            parameters: Structure::default().ints(&strides).ints(&[usize::from(!forward)]).finish(),
        },
        Stage {
            kernel: kernel("winograd_fused"),
            grid: [(all_tiles.div_ceil(32) * (padded_rows / 32)) as u32, 1, 1],
            block: 256,
            pointers: vec![filter, geometry.first, Pointer::Bias, Pointer::Result],
            parameters: Structure::default()
                .ints(&[p.batch(), source[0], source[1], result[0], result[1], all_tiles])
                .divisor(tiles[0] * tiles[1])
                .divisor(tiles[1])
                .finish(),
        },
    ];
    Ok(Plan { stages, workspace_bytes: workspace.bytes })
}

/// Whether Winograd's kernels compute an ordinary convolution.
pub(crate) fn is_winograd(p: &Problem) -> bool {
    let [height, width] = p.kernel();
    let square = height == width && (height == 3 || height == 5);
    let unit = p.stride() == [1, 1] && p.dilation() == [1, 1] && p.groups() == 1;
    square && unit && p.padding().iter().all(|&pad| pad < height)
}

/// Winograd's batch of 36 products is a 1×1 convolution with 36 groups over one "image" of all tiles.
pub(crate) fn winograd(geometry: &Geometry, tile: Tile, splits: u32) -> Result<Plan, String> {
    let p = &geometry.problem;
    let forward = p.direction() == Direction::Forward;
    let weights_direction = p.direction() == Direction::BackwardWeights;
    let (input_channels, output_channels) = (p.in_channels(), p.out_channels());
    // F(4×4, 3×3) or F(2×2, 5×5): both have tiles of 6×6.
    let filter_size = p.kernel()[0];
    let out = 7 - filter_size;
    let taps = filter_size * filter_size;
    // The image that is cut into tiles of results; in backward-weights these are tiles of the gradient.
    let target = if p.direction() == Direction::BackwardData { p.in_size() } else { p.out_size() };
    let tiles = [target[0].div_ceil(out), target[1].div_ceil(out)];
    let all_tiles = p.batch() * tiles[0] * tiles[1];
    let padded = all_tiles.next_multiple_of(4);
    let (reduced, rows) =
        if weights_direction { (input_channels, output_channels) } else { geometry.reduced_and_rows() };
    let bytes = |channels: usize| (36 * channels * padded * 4) as u64;
    if bytes(reduced.max(rows)) > MAX_TENSOR_BYTES {
        return Err("the transformed tensors are beyond the 32-bit offsets of the fast kernels".into());
    }
    let shape = |channels: usize, size: [usize; 2], pad: [usize; 2]| {
        Structure::default()
            .ints(&[p.batch(), channels, size[0], size[1]])
            .ints(&[tiles[0], tiles[1], all_tiles, padded])
            .ints(&pad)
            .finish()
    };
    let constants = vec![
        ("TYPE", type_number(p.data_type())),
        ("OUT", out as i64),
        ("FILTER", filter_size as i64),
        ("CHANNELS_LAST", i64::from(geometry.channels_last())),
    ];
    let stage = |entry, threads: usize, pointers, parameters| Stage {
        kernel: Kernel { source: Source::Winograd, entry, constants: constants.clone() },
        grid: grid_x(threads as u64, 128),
        block: 128,
        pointers,
        parameters,
    };
    let specification = unhang_conv::Specification {
        batch: 1,
        in_channels: 36 * reduced as i64,
        out_channels: 36 * rows as i64,
        in_size: [1, padded as i64],
        groups: 36,
        direction: if weights_direction { Direction::BackwardWeights } else { Direction::Forward },
        layout: p.layout(),
        ..unhang_conv::Specification::default()
    };
    let products = Problem::new(specification).map_err(|error| error.to_string())?;
    let products = Geometry { problem: products, first: Pointer::Null, second: Pointer::Null };
    let mut workspace = Workspace::default();
    let source = Pointer::Workspace(workspace.take(bytes(reduced)));

    if weights_direction {
        let gradient = Pointer::Workspace(workspace.take(bytes(rows)));
        let steps = padded.div_ceil(tile.depth) as u64;
        let per_split = steps.div_ceil(u64::from(splits.max(1)));
        let splits = steps.div_ceil(per_split);
        let planes = Pointer::Workspace(workspace.take(splits * (36 * rows * reduced * 4) as u64));
        let finish = Structure::default().ints(&[rows, reduced, splits as usize]).finish();
        let stages = vec![
            stage(
                "winograd_input",
                reduced * padded,
                vec![geometry.first, source],
                shape(reduced, p.in_size(), p.padding()),
            ),
            stage(
                "winograd_gradient",
                rows * padded,
                vec![geometry.second, gradient],
                shape(rows, p.out_size(), [0, 0]),
            ),
            weights(&products, tile, splits as u32, per_split as i32, [gradient, source, planes]),
            Stage {
                grid: grid_x((rows * reduced) as u64, 32),
                block: 256,
                ..stage("winograd_weights", 0, vec![planes, Pointer::Result], finish)
            },
        ];
        return Ok(Plan { stages, workspace_bytes: workspace.bytes });
    }

    let padded_rows = rows.next_multiple_of(tile.rows);
    let padded_reduced = reduced.next_multiple_of(tile.depth);
    let filter = Pointer::Workspace(workspace.take((36 * padded_rows * padded_reduced * 4) as u64));
    let sums = Pointer::Workspace(workspace.take(bytes(rows)));
    // Where an element lies in the filter: row, channel summed over, tap.
    let strides = match (forward, geometry.channels_last()) {
        (true, false) => [taps * reduced, taps, 1],
        (false, false) => [taps, taps * rows, 1],
        (true, true) => [taps * reduced, 1, reduced],
        (false, true) => [1, taps * rows, rows],
    };
    let filter_shape = Structure::default()
        .ints(&[rows, padded_rows, reduced, padded_reduced])
        .ints(&strides)
        .ints(&[usize::from(!forward)])
        .finish();
    let (source_size, result_size) = geometry.source_and_result();
    let pad = if forward { p.padding() } else { p.padding().map(|pad| filter_size - 1 - pad) };
    let part = GemmPart {
        tile,
        packed: true,
        flat: false,
        planes: false,
        skip_empty: false,
        half: false,
        splits: 1,
        steps_per_split: gemm_steps(&products, tile, false) as i32,
    };
    let stages = vec![
        stage("winograd_filter", padded_rows * padded_reduced, vec![geometry.second, filter], filter_shape),
        stage("winograd_input", reduced * padded, vec![geometry.first, source], shape(reduced, source_size, pad)),
        gemm(&products, &part, [filter, source, Pointer::Null, sums])?,
        stage(
            "winograd_output",
            rows * padded,
            vec![sums, Pointer::Bias, Pointer::Result],
            shape(rows, result_size, [0, 0]),
        ),
    ];
    Ok(Plan { stages, workspace_bytes: workspace.bytes })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn divisors_divide(n in 0u32..0x8000_0000, value in 1u32..0x7fff_ffff) {
            for value in [value, value % 1000 + 1] {
                let (multiplier, shift) = divisor(value);
                let high = (u64::from(n) * u64::from(multiplier)) >> 32;
                prop_assert_eq!((high + u64::from(n)) >> shift, u64::from(n / value));
            }
        }
    }

    #[test]
    fn structures_are_laid_out_as_in_c() {
        let bytes = Structure::default().ints(&[1]).long(2).ints(&[3]).finish();
        assert_eq!(bytes.len(), 24);
        assert_eq!(bytes[8], 2);
        assert_eq!(bytes[16], 3);
    }
}
