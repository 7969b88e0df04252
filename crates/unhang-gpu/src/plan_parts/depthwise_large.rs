//! Launches of depthwise convolutions whose windows are too large to be unrolled.

use super::*;

/// The most taps that the other depthwise kernels unroll: registers are set aside for each.
pub(crate) const LARGE_TAPS: usize = 49;
/// The most taps of a window with a stride, which the kernels of this module do not compute.
const LARGE_STRIDED_TAPS: usize = 121;
/// The most columns of such a window: a row of its taps is unrolled.
const MOST_COLUMNS: usize = 11;

/// The most taps that `depthwise.cu` unrolls for a strip. Where the strip is no longer than the stride, forward and
/// backward-data use a tap seldom: it is read where it is used, and only a row of taps is unrolled.
pub(crate) fn unrolled_taps(p: &Problem, strip: u32) -> usize {
    let is_apart = p.direction() != Direction::BackwardWeights && p.stride()[0] > 1;
    let is_narrow = p.kernel()[1] <= MOST_COLUMNS;
    if is_apart && is_narrow && strip as usize <= p.stride()[0] { LARGE_STRIDED_TAPS } else { LARGE_TAPS }
}

/// Rows and columns of a tile, and the planes that a workgroup has: small results share one.
fn tile_of(result: [usize; 2]) -> [usize; 3] {
    match result {
        [high, wide] if high <= 16 && wide <= 16 => [16, 16, 4],
        [_, wide] if wide <= 32 => [32, 32, 2],
        _ => [32, 64, 1],
    }
}

pub(crate) fn depthwise_large(geometry: &Geometry, splits: u32) -> Result<LaunchPlan, String> {
    let p = &geometry.problem;
    if p.in_channels() != p.groups() || p.out_channels() != p.groups() {
        return Err("large is for one input and one output channel in a group".into());
    }
    if p.stride() != [1, 1] || (0..2).any(|axis| p.dilation()[axis] > 1 && p.kernel()[axis] > 1) {
        return Err("large is for windows of stride 1 without dilation".into());
    }
    let (channels, kernel, padding) = (p.in_channels(), p.kernel(), p.padding());
    let weights = p.direction() == Direction::BackwardWeights;
    let turned = p.direction() == Direction::BackwardData;
    let (image, window, result) = match p.direction() {
        Direction::Forward => (p.in_size(), kernel, p.out_size()),
        Direction::BackwardData => (p.out_size(), kernel, p.in_size()),
        Direction::BackwardWeights => (p.in_size(), p.out_size(), kernel),
    };
    let pad = |axis: usize| if turned { int(kernel[axis]) - 1 - int(padding[axis]) } else { int(padding[axis]) };
    let [tile_h, tile_w, at_once] = tile_of(result);
    let planes = if weights { channels } else { p.batch() * channels };
    let tiles = [result[0].div_ceil(tile_h), result[1].div_ceil(tile_w)];
    let groups = planes.div_ceil(at_once) as u64 * (tiles[0] * tiles[1]) as u64;
    if groups > i32::MAX as u64 {
        return Err(format!("{groups} workgroups are more than a grid has"));
    }
    let per_split = if weights { p.batch().div_ceil(splits.max(1) as usize) } else { 1 };
    let splits = if weights { p.batch().div_ceil(per_split) as u32 } else { 1 };
    if u64::from(splits) > MAX_GRID_YZ {
        return Err(format!("{splits} parts are too many for one grid"));
    }
    let shape = DepthwiseLargeShape {
        channels: int(channels),
        planes: int(planes),
        images: int(p.batch()),
        images_per_split: int(per_split),
        image: ints(image),
        window: ints(window),
        result: ints(result),
        pad: [0, 1].map(pad),
        turned: i32::from(turned),
        by_channels: Divisor::new(channels),
        by_tiles: Divisor::new(tiles[0] * tiles[1]),
        by_tiles_w: Divisor::new(tiles[1]),
    };
    let mut constants = geometry.constants();
    constants.extend([("TILE_H", tile_h as i64), ("TILE_W", tile_w as i64), ("PLANES", at_once as i64)]);
    let stage = |entry, pointers| Stage {
        kernel: Kernel { source: SourceFile::DepthwiseLarge, entry, constants: constants.clone() },
        grid: [groups as u32, splits, 1],
        block: (tile_h * tile_w * at_once / 8) as u32,
        pointers,
        shape: shape.into(),
    };
    if !weights {
        let pointers = geometry.operands();
        return Ok(LaunchPlan { stages: vec![stage("depthwise_large", pointers)], workspace_bytes: 0 });
    }
    let mut workspace = Workspace::default();
    let sums = workspace.take(u64::from(splits) * geometry.result_elements() * 4);
    let stages = vec![
        stage("depthwise_large_weights", vec![geometry.first, geometry.second, sums]),
        reduce_weights(geometry, splits, sums),
    ];
    Ok(LaunchPlan { stages, workspace_bytes: workspace.bytes })
}
