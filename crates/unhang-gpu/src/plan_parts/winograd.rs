//! Launches of Winograd: transforms around a batch of products, or everything in one kernel.

use super::weights::MANY_FILTERS;
use super::*;
use crate::shapes::Shape;

/// Winograd F(2×2, 3×3) in one kernel, behind the transform of the filter.
pub(crate) fn winograd_fused(geometry: &Geometry) -> Result<LaunchPlan, String> {
    let p = &geometry.problem;
    let forward = match p.direction() {
        Direction::Forward => true,
        Direction::BackwardData => false,
        Direction::BackwardWeights => return Err("fused is for forward and backward-data".into()),
    };
    if !is_winograd(p) || p.kernel() != [3, 3] || p.dilation() != [1, 1] || geometry.channels_last() {
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
    let mut constants = vec![("TYPE", type_number(p.data_type()))];
    if geometry.form == Form::Specialised {
        constants.extend([("REDUCED", reduced as i64), ("ROWS", rows as i64)]);
        constants.extend([("FILTER_W", 3), ("PAD_H", pad[0] as i64), ("PAD_W", pad[1] as i64)]);
    }
    let mut workspace = Workspace::default();
    let filter_bytes = (16 * padded_rows * padded_reduced * 4) as u64;
    if filter_bytes > MAX_TENSOR_BYTES {
        return Err("the transformed filter is beyond the 32-bit offsets of the fast kernels".into());
    }
    let filter = Pointer::Workspace(workspace.take(filter_bytes));
    let strides = if forward { [9 * reduced, 9] } else { [9, 9 * rows] };
    let kernel = |entry| Kernel { source: SourceFile::WinogradFused, entry, constants: constants.clone() };
    let stages = vec![
        Stage {
            kernel: kernel("fused_filter"),
            grid: grid_x((padded_rows * padded_reduced) as u64, 128),
            block: 128,
            pointers: vec![geometry.second, filter],
            shape: FusedFilterShape {
                reduced: int(reduced),
                rows: int(rows),
                row_elements: int(strides[0]),
                reduced_elements: int(strides[1]),
                turned: i32::from(!forward),
                by_padded_rows: Divisor::new(padded_rows),
            }
            .into(),
        },
        Stage {
            kernel: kernel("winograd_fused"),
            grid: [(all_tiles.div_ceil(32) * (padded_rows / 32)) as u32, 1, 1],
            block: 256,
            pointers: vec![filter, geometry.first, Pointer::Bias, Pointer::Result],
            shape: FusedShape {
                batch: int(p.batch()),
                source_h: int(source[0]),
                source_w: int(source[1]),
                result_h: int(result[0]),
                result_w: int(result[1]),
                reduced: int(reduced),
                rows: int(rows),
                pad_h: int(pad[0]),
                pad_w: int(pad[1]),
                tiles: int(all_tiles),
                by_image: Divisor::new(tiles[0] * tiles[1]),
                by_width: Divisor::new(tiles[1]),
                by_row_tiles: Divisor::new(padded_rows / 32),
            }
            .into(),
        },
    ];
    Ok(LaunchPlan { stages, workspace_bytes: workspace.bytes })
}

/// Whether Winograd's kernels compute an ordinary convolution.
pub(crate) fn is_winograd(p: &Problem) -> bool {
    let [height, width] = p.kernel();
    let square = height == width && [3, 5, 7].contains(&height);
    let unit = p.stride() == [1, 1] && p.groups() == 1;
    square && unit && (0..2).all(|axis| p.padding()[axis] <= p.dilation()[axis] * (height - 1))
}

/// Results of a tile on an axis: F(4×4, 3×3), F(4×4, 5×5) and F(2×2, 7×7).
fn results_of_tile(p: &Problem) -> usize {
    if p.kernel()[0] == 7 { 2 } else { 4 }
}

/// Pairs of points, each a group of the products: 36 for 3×3, 64 for larger filters.
pub(crate) fn winograd_places(p: &Problem) -> usize {
    (results_of_tile(p) + p.kernel()[0] - 1).pow(2)
}

/// Tiles of results (of gradients in backward-weights) down and across an image: each phase of a dilation has its own.
fn winograd_tiles(p: &Problem) -> [usize; 2] {
    let target = if p.direction() == Direction::BackwardData { p.in_size() } else { p.out_size() };
    [0, 1].map(|axis| p.dilation()[axis] * target[axis].div_ceil(p.dilation()[axis]).div_ceil(results_of_tile(p)))
}

/// The batch of matrix products that Winograd's transforms leave.
#[derive(Clone, Copy)]
pub(crate) struct Products {
    pub groups: usize,
    pub rows: usize,
    pub columns: usize,
    pub reduced: usize,
}

/// What Winograd multiplies for a problem, or nothing where it is not for it.
pub(crate) fn winograd_products(p: &Problem) -> Option<Products> {
    let (channels, out_channels) = (p.in_channels(), p.out_channels());
    let (groups, image_channels, tiles) = match () {
        () if is_winograd(p) => (winograd_places(p), channels, winograd_tiles(p)),
        () if is_stride2_winograd(p) => (stride2::PLACES, stride2::PHASES * channels, stride2::stride2_tiles(p)),
        () => return None,
    };
    let tiles = p.batch() * tiles[0] * tiles[1];
    let [rows, columns, reduced] = match p.direction() {
        Direction::Forward => [out_channels, tiles, image_channels],
        Direction::BackwardData => [image_channels, tiles, out_channels],
        Direction::BackwardWeights => [out_channels, image_channels, tiles],
    };
    Some(Products { groups, rows, columns, reduced })
}

/// Winograd's batch of products is a 1×1 convolution with a group for each pair of points, over one "image" of all tiles.
pub(crate) fn winograd(geometry: &Geometry, tile: Tile, splits: u32) -> Result<LaunchPlan, String> {
    let p = &geometry.problem;
    let forward = p.direction() == Direction::Forward;
    let weights_direction = p.direction() == Direction::BackwardWeights;
    if p.kernel() == [7, 7] {
        geometry.refuse_general()?;
    }
    let (input_channels, output_channels) = (p.in_channels(), p.out_channels());
    let (filter_size, places) = (p.kernel()[0], winograd_places(p));
    let taps = filter_size * filter_size;
    let tiles = winograd_tiles(p);
    let all_tiles = p.batch() * tiles[0] * tiles[1];
    let padded = all_tiles.next_multiple_of(4);
    let (reduced, rows) =
        if weights_direction { (input_channels, output_channels) } else { geometry.reduced_and_rows() };
    let bytes = |channels: usize| (places * channels * padded * 4) as u64;
    if bytes(reduced.max(rows)) > MAX_TENSOR_BYTES {
        return Err("the transformed tensors are beyond the 32-bit offsets of the fast kernels".into());
    }
    let shape = |channels: usize, size: [usize; 2], pad: [usize; 2]| -> Shape {
        WinogradShape {
            batch: int(p.batch()),
            channels: int(channels),
            height: int(size[0]),
            width: int(size[1]),
            tiles: int(all_tiles),
            padded_tiles: int(padded),
            pad_h: int(pad[0]),
            pad_w: int(pad[1]),
            by_image: Divisor::new(tiles[0] * tiles[1]),
            by_width: Divisor::new(tiles[1]),
            by_lane: Divisor::new(if geometry.channels_last() { channels } else { padded }),
            by_dilation_h: Divisor::new(p.dilation()[0]),
            by_dilation_w: Divisor::new(p.dilation()[1]),
        }
        .into()
    };
    let constants = vec![
        ("TYPE", type_number(p.data_type())),
        ("FILTER", filter_size as i64),
        ("CHANNELS_LAST", i64::from(geometry.channels_last())),
    ];
    let stage = |entry, threads: usize, pointers, shape: Shape| Stage {
        kernel: Kernel { source: SourceFile::Winograd, entry, constants: constants.clone() },
        grid: grid_x(threads as u64, 128),
        block: 128,
        pointers,
        shape,
    };
    let specification = unhang_conv::Specification {
        batch: 1,
        in_channels: (places * reduced) as i64,
        out_channels: (places * rows) as i64,
        in_size: [1, padded as i64],
        groups: places as i64,
        direction: if weights_direction { Direction::BackwardWeights } else { Direction::Forward },
        layout: p.layout(),
        ..unhang_conv::Specification::default()
    };
    let products = Problem::new(specification).map_err(|error| error.to_string())?;
    let products = Geometry { problem: products, first: Pointer::Null, second: Pointer::Null, form: geometry.form };
    let mut workspace = Workspace::default();
    let source = Pointer::Workspace(workspace.take(bytes(reduced)));

    if weights_direction {
        let gradient = Pointer::Workspace(workspace.take(bytes(rows)));
        let steps = padded.div_ceil(tile.depth) as u64;
        let per_split = steps.div_ceil(u64::from(splits.max(1)));
        let splits = steps.div_ceil(per_split);
        let planes = Pointer::Workspace(workspace.take(splits * (places * rows * reduced * 4) as u64));
        let finish = WinogradWeightsShape { rows: int(rows), channels: int(reduced), planes: splits as i32 };
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
            finish_weights(p, splits as u32, |entry, each| Stage {
                grid: grid_x((rows * reduced) as u64, each),
                block: 256,
                ..stage(entry, 0, vec![planes, Pointer::Result], finish.into())
            }),
        ];
        return Ok(LaunchPlan { stages, workspace_bytes: workspace.bytes });
    }

    let padded_rows = rows.next_multiple_of(tile.rows);
    let padded_reduced = reduced.next_multiple_of(tile.depth);
    let filter = Pointer::Workspace(workspace.take((places * padded_rows * padded_reduced * 4) as u64));
    let sums = Pointer::Workspace(workspace.take(bytes(rows)));
    // Where an element is in the filter: row, channel summed over, tap.
    let strides = match (forward, geometry.channels_last()) {
        (true, false) => [taps * reduced, taps, 1],
        (false, false) => [taps, taps * rows, 1],
        (true, true) => [taps * reduced, 1, reduced],
        (false, true) => [1, taps * rows, rows],
    };
    let filter_shape = WinogradFilterShape {
        rows: int(rows),
        padded_rows: int(padded_rows),
        reduced: int(reduced),
        padded_reduced: int(padded_reduced),
        row_elements: int(strides[0]),
        reduced_elements: int(strides[1]),
        tap_elements: int(strides[2]),
        turned: i32::from(!forward),
        by_padded_rows: Divisor::new(padded_rows),
    };
    let (source_size, result_size) = geometry.source_and_result();
    let pad = [0, 1].map(|axis| match forward {
        true => p.padding()[axis],
        false => p.dilation()[axis] * (filter_size - 1) - p.padding()[axis],
    });
    let stages = vec![
        stage("winograd_filter", padded_rows * padded_reduced, vec![geometry.second, filter], filter_shape.into()),
        stage("winograd_input", reduced * padded, vec![geometry.first, source], shape(reduced, source_size, pad)),
        gemm(&products, &GemmPart::of_products(&products, tile), [filter, source, Pointer::Null, sums])?,
        stage(
            "winograd_output",
            rows * padded,
            vec![sums, Pointer::Bias, Pointer::Result],
            shape(rows, result_size, [0, 0]),
        ),
    ];
    Ok(LaunchPlan { stages, workspace_bytes: workspace.bytes })
}

/// The last launch of the filter's gradient: with few planes and many 3×3 filters a thread for each of them, else eight.
fn finish_weights(p: &Problem, planes: u32, stage: impl FnOnce(&'static str, u64) -> Stage) -> Stage {
    let filters = p.in_channels() * p.out_channels();
    if planes <= 2 && filters >= MANY_FILTERS && p.kernel() == [3, 3] {
        stage("winograd_filters", 256)
    } else {
        stage("winograd_weights", 32)
    }
}
