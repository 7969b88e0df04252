//! Launches of Winograd for 3×3 filters of stride 2: transforms around a batch of products, as `winograd_stride2.cu` has them.

use super::winograd::Launches;
use super::*;
use crate::shapes::{Shape, Stride2FilterShape, Stride2Shape, Stride2WeightsShape};

/// Pairs of points, each a group of the products.
pub(super) const PLACES: usize = 25;
/// Results of a tile on an axis.
const OUT: usize = 4;
/// Even and odd pixels on two axes.
pub(super) const PHASES: usize = 4;

/// Whether these kernels compute an ordinary convolution. Channels come in whole slices of every tile, so that a phase begins
/// with a slice.
pub(crate) fn is_stride2_winograd(p: &Problem) -> bool {
    p.kernel() == [3, 3]
        && p.stride() == [2, 2]
        && p.dilation() == [1, 1]
        && p.groups() == 1
        && p.padding().iter().all(|&pad| pad <= 2)
        && [p.in_channels(), p.out_channels()].iter().all(|channels| channels.is_multiple_of(16))
}

/// Where the first even pixel of the first tile is in backward-data, counted in even pixels of the padded image.
fn first_even(pad: usize) -> usize {
    pad.div_ceil(2)
}

/// Tiles of results (of gradients in backward-weights, of pixels of each phase in backward-data) down and across an image.
pub(super) fn stride2_tiles(p: &Problem) -> [usize; 2] {
    [0, 1].map(|axis| {
        if p.direction() != Direction::BackwardData {
            return p.out_size()[axis].div_ceil(OUT);
        }
        let (size, pad) = (p.in_size()[axis], p.padding()[axis]);
        // One more than the last even pixel, and odd ones begin one earlier.
        let even = (size + pad).div_ceil(2);
        let odd = (size + pad) / 2 + 1;
        even.max(odd).saturating_sub(first_even(pad)).div_ceil(OUT).max(1)
    })
}

/// Where a kernel of the products leaves out what places with ∞ do not have.
#[derive(Clone, Copy)]
enum Nested {
    /// Forward: the sum is over phases and channels.
    Reduction,
    /// Backward-data and backward-weights: the phases' channels are rows or columns.
    Side,
}

fn nested(mut stage: Stage, nested: Nested) -> Stage {
    stage.kernel.constants.push(("NESTED", 1 + nested as i64));
    stage
}

impl Launches<'_> {
    fn stride2_shape(&self, channels: usize, size: [usize; 2], begin: [i32; 2]) -> Shape {
        Stride2Shape {
            batch: int(self.geometry.problem.batch()),
            channels: int(channels),
            height: int(size[0]),
            width: int(size[1]),
            tiles: int(self.all_tiles),
            padded_tiles: int(self.padded),
            begin,
            by_image: Divisor::new(self.tiles[0] * self.tiles[1]),
            by_width: Divisor::new(self.tiles[1]),
            by_lane: Divisor::new(if self.geometry.channels_last() { channels } else { self.padded }),
        }
        .into()
    }

    fn stride2_stage(
        &self,
        entry: &'static str,
        threads: usize,
        phases: usize,
        pointers: Vec<Pointer>,
        shape: Shape,
    ) -> Stage {
        Stage {
            kernel: Kernel { source: SourceFile::WinogradStride2, entry, constants: self.geometry.constants() },
            grid: [threads.div_ceil(128) as u32, phases as u32, 1],
            block: 128,
            pointers,
            shape,
        }
    }
}

pub(crate) fn stride2_winograd(geometry: &Geometry, tile: Tile, splits: u32) -> Result<LaunchPlan, String> {
    geometry.refuse_general()?;
    let p = &geometry.problem;
    let launches = Launches::new(geometry, PLACES, stride2_tiles(p));
    let largest = (PHASES * p.in_channels()).max(p.out_channels());
    if launches.bytes(largest) > MAX_TENSOR_BYTES {
        return Err("the transformed tensors are beyond the 32-bit offsets of the fast kernels".into());
    }
    match p.direction() {
        Direction::BackwardWeights => stride2_weights(&launches, tile, splits),
        Direction::Forward | Direction::BackwardData => stride2_images(&launches, tile),
    }
}

/// Forward and backward-data: the filter and the source are transformed, multiplied, and the products brought back.
fn stride2_images(launches: &Launches<'_>, tile: Tile) -> Result<LaunchPlan, String> {
    let geometry = launches.geometry;
    let p = &geometry.problem;
    let forward = p.direction() == Direction::Forward;
    let (channels, out_channels) = (p.in_channels(), p.out_channels());
    let (reduced, rows) = if forward { (PHASES * channels, out_channels) } else { (out_channels, PHASES * channels) };
    let products = launches.products(reduced, rows, Direction::Forward)?;
    let padded_rows = rows.next_multiple_of(tile.rows);
    let mut workspace = Workspace::default();
    let filter = workspace.take((PLACES * padded_rows * reduced * 4) as u64);
    let source = workspace.take(launches.bytes(reduced));
    let sums = workspace.take(launches.bytes(rows));
    let [row_elements, channel_elements, tap_elements] =
        if geometry.channels_last() { [9 * channels, 1, channels] } else { [9 * channels, 9, 1] };
    let filter_lanes = if forward { padded_rows } else { channels };
    let filter_shape = Stride2FilterShape {
        rows: int(out_channels),
        channels: int(channels),
        padded_rows: int(padded_rows),
        row_elements: int(row_elements),
        channel_elements: int(channel_elements),
        tap_elements: int(tap_elements),
        turned: i32::from(!forward),
        by_lane: Divisor::new(filter_lanes),
    };
    let filter_threads = filter_lanes * if forward { channels } else { out_channels };
    let part = GemmPart::of_products(&products, tile);
    let multiply = gemm(&products, &part, [filter, source, Pointer::Null, sums])?;
    let transform = |entry, phases, channels: usize, size, begin| {
        let shape = launches.stride2_shape(channels, size, begin);
        launches.stride2_stage(entry, channels * launches.padded, phases, vec![geometry.first, source], shape)
    };
    let finish = |entry, phases, channels: usize, size, begin| {
        let shape = launches.stride2_shape(channels, size, begin);
        let pointers = vec![sums, Pointer::Bias, Pointer::Result];
        launches.stride2_stage(entry, channels * launches.padded, phases, pointers, shape)
    };
    let pad = p.padding().map(int);
    let first = p.padding().map(|pad| int(first_even(pad)));
    let (before, after) = if forward {
        (
            transform("stride2_input", 2, channels, p.in_size(), pad.map(|pad| -pad)),
            finish("stride2_output", 1, out_channels, p.out_size(), [0, 0]),
        )
    } else {
        (
            transform("stride2_source", 1, out_channels, p.out_size(), first.map(|first| first - 1)),
            finish("stride2_result", 2, channels, p.in_size(), [0, 1].map(|axis| 2 * first[axis] - pad[axis])),
        )
    };
    let stages = vec![
        launches.stride2_stage(
            "stride2_filter",
            filter_threads,
            PHASES,
            vec![geometry.second, filter],
            filter_shape.into(),
        ),
        before,
        nested(multiply, if forward { Nested::Reduction } else { Nested::Side }),
        after,
    ];
    Ok(LaunchPlan { stages, workspace_bytes: workspace.bytes })
}

fn stride2_weights(launches: &Launches<'_>, tile: Tile, splits: u32) -> Result<LaunchPlan, String> {
    let geometry = launches.geometry;
    let p = &geometry.problem;
    let (channels, rows) = (p.in_channels(), p.out_channels());
    let columns = PHASES * channels;
    let products = launches.products(columns, rows, Direction::BackwardWeights)?;
    let steps = launches.padded.div_ceil(tile.depth) as u64;
    let per_split = steps.div_ceil(u64::from(splits.max(1)));
    let splits = steps.div_ceil(per_split);
    let mut workspace = Workspace::default();
    let source = workspace.take(launches.bytes(columns));
    let gradient = workspace.take(launches.bytes(rows));
    let planes = workspace.take(splits * (PLACES * rows * columns * 4) as u64);
    let padded = launches.padded;
    let stages = vec![
        launches.stride2_stage(
            "stride2_input",
            channels * padded,
            2,
            vec![geometry.first, source],
            launches.stride2_shape(channels, p.in_size(), p.padding().map(|pad| -int(pad))),
        ),
        launches.stride2_stage(
            "stride2_gradient",
            rows * padded,
            1,
            vec![geometry.second, gradient],
            launches.stride2_shape(rows, p.out_size(), [0, 0]),
        ),
        nested(weights(&products, tile, splits as u32, per_split as i32, [gradient, source, planes]), Nested::Side),
        launches.stride2_stage(
            "stride2_weights",
            rows * channels,
            PHASES,
            vec![planes, Pointer::Result],
            Stride2WeightsShape { rows: int(rows), channels: int(channels), planes: splits as i32 }.into(),
        ),
    ];
    Ok(LaunchPlan { stages, workspace_bytes: workspace.bytes })
}
