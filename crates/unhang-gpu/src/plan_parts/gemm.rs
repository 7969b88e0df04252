//! Launches of the implicit GEMM: packing the filter, the products in phases of the stride, and adding up planes.

use super::*;

/// Brings the filter into the order that the GEMM kernel reads best; returns the stage, given where it writes, and how
/// many bytes it writes.
pub(crate) fn pack(
    geometry: &Geometry,
    tile: Tile,
    flat: bool,
    filter: Pointer,
) -> (impl FnOnce(Pointer) -> Stage + use<>, u64) {
    let p = &geometry.problem;
    let (reduced, rows) = geometry.reduced_and_rows();
    let taps = geometry.taps();
    let padded_rows = rows.next_multiple_of(tile.rows);
    let forward = p.direction() == Direction::Forward;
    let strides = if flat { [taps * reduced, 1, 1] } else { geometry.filter_strides() };
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
    // Neighbouring rows are far apart but where a gradient's filter is read the other way round.
    let (entry, blocks) = match forward {
        true => ("pack_across", (taps * padded_reduced).div_ceil(32) * padded_rows.div_ceil(32)),
        false => ("pack", (padded_reduced * padded_rows).div_ceil(256)),
    };
    let stage = move |to: Pointer| Stage {
        kernel: Kernel::of_type(SourceFile::Support, entry, data_type),
        grid: [blocks as u32, groups as u32, 1],
        block: 256,
        pointers: vec![filter, to],
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
pub(super) fn longest_phase(filter: usize, stride: usize, dilation: usize) -> usize {
    filter.div_ceil(stride / greatest_common_divisor(stride, dilation))
}

/// Whether backward-data is a matrix product whose pixels lie a stride apart in the result, with zeros between them. There
/// are general kernels for the stride that such layers have.
pub(crate) fn is_spread(geometry: &Geometry) -> bool {
    let p = &geometry.problem;
    p.direction() == Direction::BackwardData
        && (p.kernel(), p.padding()) == ([1, 1], [0, 0])
        && p.stride() != [1, 1]
        && (geometry.form == Form::Specialised || p.stride() == [2, 2])
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
    /// Whether the first phase of a stride writes the zeros of the others, which no tap meets.
    pub spread: bool,
    pub half: bool,
    pub splits: u32,
    pub steps_per_split: i32,
}

impl GemmPart {
    /// Winograd's products: a batch of 1×1 convolutions with a packed filter, each sum in one part.
    pub(super) fn of_products(products: &Geometry, tile: Tile) -> GemmPart {
        GemmPart {
            tile,
            packed: true,
            flat: false,
            planes: false,
            skip_empty: false,
            spread: false,
            half: false,
            splits: 1,
            steps_per_split: gemm_steps(products, tile, false) as i32,
        }
    }
}

pub(super) fn tile_constants(tile: Tile, pad_a: bool, pad_b: bool) -> Vec<(&'static str, i64)> {
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

fn gemm_constants(geometry: &Geometry, part: &GemmPart) -> Vec<(&'static str, i64)> {
    let p = &geometry.problem;
    let forward = p.direction() == Direction::Forward;
    let (reduced, rows) = geometry.reduced_and_rows();
    let ([height, width], _) = geometry.source_and_result();
    let channels_last = geometry.channels_last();
    let is_product = geometry.is_pointwise() || part.spread;
    let pointwise = is_product && !channels_last && !part.flat && (height * width).is_multiple_of(4);
    // Across in LDS: what is read along the reduction.
    let across = !part.packed && (forward || !channels_last);
    let mut constants = geometry.constants();
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
        Form::General if pointwise || part.spread => {
            constants.push(("DIRECTION", i64::from(part.spread)));
            constants.extend(geometry.window_constants());
        }
        Form::General => {}
    }
    if part.half {
        constants.push(("HALF", 1));
    }
    if part.spread {
        constants.push(("SPREAD", 1));
    }
    constants
}

pub(crate) fn gemm(geometry: &Geometry, part: &GemmPart, pointers: [Pointer; 4]) -> Result<Stage, String> {
    let p = &geometry.problem;
    let forward = p.direction() == Direction::Forward;
    let (reduced, rows) = geometry.reduced_and_rows();
    let (source, result) = geometry.source_and_result();
    let stride = if forward { [1, 1] } else { p.stride() };
    let phases = if part.spread { 1 } else { stride[0] * stride[1] };
    // The largest phase; smaller ones leave early.
    let columns = p.batch() as u64 * result[0].div_ceil(stride[0]) as u64 * result[1].div_ceil(stride[1]) as u64;
    let row_tiles = rows.div_ceil(part.tile.rows);
    let tiles = row_tiles as u64 * columns.div_ceil(part.tile.columns as u64);
    if tiles > i32::MAX as u64 {
        return Err(format!("{tiles} tiles are more than a grid has"));
    }
    let axes = [0, 1].map(|axis| PhaseAxis::new(p, axis));
    // Pixels of the only phase: those of the source where they are spread over the result.
    let one_phase = if part.spread { source } else { result };
    let shape = GemmShape {
        batch: int(p.batch()),
        source: ints(source),
        result: ints(result),
        groups: int(p.groups()),
        reduced: int(reduced),
        rows: int(rows),
        filter: ints(p.kernel()),
        stride: ints(p.stride()),
        pad: ints(p.padding()),
        dilation: ints(p.dilation()),
        backward: i32::from(!forward),
        phases: ints(stride),
        source_step: axes.map(|axis| axis.source_step),
        source_tap: axes.map(|axis| axis.source_tap),
        tap_step: axes.map(|axis| axis.tap_step),
        steps_per_split: part.steps_per_split,
        planes: i32::from(part.planes),
        skip_empty: i32::from(part.skip_empty),
        by_row_tiles: Divisor::new(row_tiles),
        by_phases: Divisor::new(phases),
        by_phases_w: Divisor::new(stride[1]),
        by_stride: divisors(p.stride()),
        by_taps: Divisor::new(geometry.taps()),
        by_filter_w: Divisor::new(p.kernel()[1]),
        by_reduced: Divisor::new(reduced),
        by_image: Divisor::new(one_phase[0] * one_phase[1]),
        by_width: Divisor::new(one_phase[1]),
    };
    Ok(Stage {
        kernel: Kernel { source: SourceFile::Gemm, entry: "gemm", constants: gemm_constants(geometry, part) },
        grid: [tiles as u32, (phases * p.groups()) as u32, part.splits],
        block: part.tile.threads() as u32,
        pointers: pointers.to_vec(),
        shape: shape.into(),
    })
}

/// One axis of forward or backward-data, as `phases.cuh` has it.
#[derive(Clone, Copy)]
struct PhaseAxis {
    /// From one pixel's window to the next.
    source_step: i32,
    /// From one tap of a phase to the next, in the source.
    source_tap: i32,
    /// From one tap of a phase to the next, in the filter.
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

/// How many planes each phase of the stride writes, where sums are split into parts of that many steps: one entry for a
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
        kernel: geometry.kernel(SourceFile::Support, "reduce"),
        grid: grid_x(elements, 256),
        block: 256,
        pointers: vec![from, Pointer::Bias, Pointer::Result],
        shape: ReduceShape {
            elements: int(elements as usize),
            planes: planes as i32,
            phases: int(by_phase.len().max(1)),
            planes_of_phases: [0, 1, 2, 3].map(word),
            by_channel_elements: Divisor::new(if geometry.channels_last() { 1 } else { h * w }),
            by_channels: Divisor::new(channels),
            by_height: Divisor::new(h),
            by_width: Divisor::new(w),
            by_stride: divisors(p.stride()),
        }
        .into(),
    }
}
