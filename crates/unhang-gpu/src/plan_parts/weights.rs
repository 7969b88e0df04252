//! Launches of backward-weights as a split GEMM.

use super::gemm::tile_constants;
use super::*;

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
    let mut constants = geometry.constants();
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
        source: ints(source),
        gradient: ints(gradient),
        groups: int(p.groups()),
        channels: int(channels),
        rows: int(rows),
        filter: ints(p.kernel()),
        stride: ints(p.stride()),
        pad: ints(p.padding()),
        dilation: ints(p.dilation()),
        steps_per_split,
        by_image: Divisor::new(gradient[0] * gradient[1]),
        by_row: Divisor::new(gradient[1]),
        by_row_tiles: Divisor::new(row_tiles),
        by_column_channels: Divisor::new(reads.column_channels),
        by_filter_w: Divisor::new(p.kernel()[1]),
    };
    Stage {
        kernel: Kernel { source: SourceFile::Weights, entry: "weights", constants },
        grid: [tiles as u32, p.groups() as u32, splits],
        block: tile.threads() as u32,
        pointers: pointers.to_vec(),
        shape: shape.into(),
    }
}

/// Turns both operands of backward-weights over: from NCHW to what the kernels for NHWC read.
pub(crate) fn turned(
    geometry: &Geometry,
    workspace: &mut Workspace,
    stages: &mut Vec<Stage>,
) -> Result<Geometry, String> {
    let p = &geometry.problem;
    if geometry.channels_last() {
        return Err("channels of both operands are neighbours already".into());
    }
    Ok(Geometry {
        first: turn_over(geometry, p.in_channels(), p.in_size(), geometry.first, workspace, stages)?,
        second: turn_over(geometry, p.out_channels(), p.out_size(), geometry.second, workspace, stages)?,
        problem: p.with_layout(Layout::Nhwc),
        form: geometry.form,
    })
}

/// Brings the images of an operand from NCHW to NHWC.
pub(super) fn turn_over(
    geometry: &Geometry,
    channels: usize,
    [height, width]: [usize; 2],
    from: Pointer,
    workspace: &mut Workspace,
    stages: &mut Vec<Stage>,
) -> Result<Pointer, String> {
    let p = &geometry.problem;
    let bytes = p.batch() * channels * height * width * p.data_type().size();
    let to = workspace.take(bytes as u64);
    stages.push(direct::turn(geometry, [channels, height * width], from, to)?);
    Ok(to)
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

/// Up to that many planes of a filter's gradient are added up by one thread for each row and channel. These must be
/// enough to fill a device.
const FEW_PLANES: u32 = 16;
pub(super) const MANY_FILTERS: usize = 1 << 14;

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
        kernel: geometry.kernel(SourceFile::Support, entry),
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
