//! Launches of Winograd: transforms around a batch of products, or everything in one kernel.

use super::weights::MANY_FILTERS;
use super::*;
use crate::shapes::Shape;

/// Winograd F(2×2, 3×3) in one kernel, behind the transform of the filter.
pub(crate) fn winograd_fused(geometry: &Geometry) -> Result<LaunchPlan, String> {
    let p = &geometry.problem;
    let forward = geometry.is_forward("fused")?;
    let is_plain = p.kernel() == [3, 3] && p.dilation() == [1, 1] && p.groups() == 1;
    if !is_winograd(p) || !is_plain || geometry.channels_last() {
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
    let filter = workspace.take(filter_bytes);
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
                source: ints(source),
                result: ints(result),
                reduced: int(reduced),
                rows: int(rows),
                pad: ints(pad),
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
    square && p.stride() == [1, 1] && (0..2).all(|axis| p.padding()[axis] <= p.dilation()[axis] * (height - 1))
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
    let (channels, out_channels) = (p.in_channels() / p.groups(), p.out_channels() / p.groups());
    let (groups, image_channels, tiles) = match () {
        () if is_winograd(p) => (winograd_places(p) * p.groups(), channels, winograd_tiles(p)),
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

pub(crate) fn winograd(geometry: &Geometry, tile: Tile, splits: u32) -> Result<LaunchPlan, String> {
    let p = &geometry.problem;
    if p.kernel() == [7, 7] {
        geometry.refuse_general()?;
    }
    let launches = Launches::new(geometry, winograd_places(p), winograd_tiles(p));
    if launches.bytes(p.in_channels().max(p.out_channels())) > MAX_TENSOR_BYTES {
        return Err("the transformed tensors are beyond the 32-bit offsets of the fast kernels".into());
    }
    if (launches.places * p.groups()) as u64 > MAX_GRID_YZ {
        return Err(format!("{} groups are too many for one grid", p.groups()));
    }
    match p.direction() {
        Direction::BackwardWeights => winograd_weights(&launches, tile, splits),
        Direction::Forward | Direction::BackwardData => winograd_images(&launches, tile),
    }
}

/// What all launches share.
pub(super) struct Launches<'a> {
    pub geometry: &'a Geometry,
    /// Pairs of points, each a group of the products.
    places: usize,
    pub all_tiles: usize,
    pub padded: usize,
    pub tiles: [usize; 2],
}

impl<'a> Launches<'a> {
    /// `tiles` are those down and across an image.
    pub(super) fn new(geometry: &'a Geometry, places: usize, tiles: [usize; 2]) -> Launches<'a> {
        let all_tiles = geometry.problem.batch() * tiles[0] * tiles[1];
        Launches { geometry, places, all_tiles, padded: all_tiles.next_multiple_of(4), tiles }
    }

    /// Of a transformed tensor of that many channels, those of all groups.
    pub(super) fn bytes(&self, channels: usize) -> u64 {
        (self.places * channels * self.padded * 4) as u64
    }

    fn shape(&self, channels: usize, size: [usize; 2], pad: [usize; 2]) -> Shape {
        let p = &self.geometry.problem;
        WinogradShape {
            batch: int(p.batch()),
            channels: int(channels),
            height: int(size[0]),
            width: int(size[1]),
            tiles: int(self.all_tiles),
            padded_tiles: int(self.padded),
            pad: ints(pad),
            by_image: Divisor::new(self.tiles[0] * self.tiles[1]),
            by_width: Divisor::new(self.tiles[1]),
            by_lane: Divisor::new(if self.geometry.channels_last() { channels } else { self.padded }),
            by_dilation: divisors(p.dilation()),
        }
        .into()
    }

    fn stage(&self, entry: &'static str, threads: usize, pointers: Vec<Pointer>, shape: Shape) -> Stage {
        let p = &self.geometry.problem;
        let constants = vec![
            ("TYPE", type_number(p.data_type())),
            ("FILTER", p.kernel()[0] as i64),
            ("CHANNELS_LAST", i64::from(self.geometry.channels_last())),
        ];
        Stage {
            kernel: Kernel { source: SourceFile::Winograd, entry, constants },
            grid: grid_x(threads as u64, 128),
            block: 128,
            pointers,
            shape,
        }
    }

    /// The transform of a tensor's images, or of the sums back to images: a thread for each tile of each channel.
    fn images(
        &self,
        entry: &'static str,
        channels: usize,
        pointers: Vec<Pointer>,
        size: [usize; 2],
        pad: [usize; 2],
    ) -> Stage {
        self.stage(entry, channels * self.padded, pointers, self.shape(channels, size, pad))
    }

    /// The batch of products as a 1×1 convolution with a group for each pair of points and group, over one "image" of all tiles.
    pub(super) fn products(&self, reduced: usize, rows: usize, direction: Direction) -> Result<Geometry, String> {
        let groups = self.places * self.geometry.problem.groups();
        let specification = unhang_conv::Specification {
            batch: 1,
            in_channels: (groups * reduced) as i64,
            out_channels: (groups * rows) as i64,
            in_size: [1, self.padded as i64],
            groups: groups as i64,
            direction,
            layout: self.geometry.problem.layout(),
            ..unhang_conv::Specification::default()
        };
        let problem = Problem::new(specification).map_err(|error| error.to_string())?;
        Ok(Geometry { problem, first: Pointer::Null, second: Pointer::Null, form: self.geometry.form })
    }

    /// Forward and backward-data: the filter's transform, padded for a tile of the products.
    fn filter(&self, tile: Tile, to: Pointer) -> Stage {
        let geometry = self.geometry;
        let groups = geometry.problem.groups();
        let (reduced, rows) = geometry.reduced_and_rows();
        let forward = geometry.problem.direction() == Direction::Forward;
        let strides = geometry.filter_strides();
        let (padded_rows, padded_reduced) = (rows.next_multiple_of(tile.rows), reduced.next_multiple_of(tile.depth));
        let shape = WinogradFilterShape {
            groups: int(groups),
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
        let [blocks, ..] = grid_x((padded_rows * padded_reduced) as u64, 128);
        let stage = self.stage("winograd_filter", 0, vec![geometry.second, to], shape.into());
        Stage { grid: [blocks, groups as u32, 1], ..stage }
    }
}

/// Forward and backward-data: the filter and the source are transformed, multiplied, and the products brought back.
fn winograd_images(launches: &Launches<'_>, tile: Tile) -> Result<LaunchPlan, String> {
    let geometry = launches.geometry;
    let p = &geometry.problem;
    let (reduced, rows) = geometry.reduced_and_rows();
    let products = launches.products(reduced, rows, Direction::Forward)?;
    let padded = rows.next_multiple_of(tile.rows) * reduced.next_multiple_of(tile.depth);
    let (reduced, rows) = (reduced * p.groups(), rows * p.groups());
    let mut workspace = Workspace::default();
    let source = workspace.take(launches.bytes(reduced));
    let filter = workspace.take((launches.places * p.groups() * padded * 4) as u64);
    let sums = workspace.take(launches.bytes(rows));
    let (source_size, result_size) = geometry.source_and_result();
    let pad = [0, 1].map(|axis| match p.direction() {
        Direction::Forward => p.padding()[axis],
        _ => p.dilation()[axis] * (p.kernel()[axis] - 1) - p.padding()[axis],
    });
    let results = vec![sums, Pointer::Bias, Pointer::Result];
    let stages = vec![
        launches.filter(tile, filter),
        launches.images("winograd_input", reduced, vec![geometry.first, source], source_size, pad),
        gemm(&products, &GemmPart::of_products(&products, tile), [filter, source, Pointer::Null, sums])?,
        launches.images("winograd_output", rows, results, result_size, [0, 0]),
    ];
    Ok(LaunchPlan { stages, workspace_bytes: workspace.bytes })
}

fn winograd_weights(launches: &Launches<'_>, tile: Tile, splits: u32) -> Result<LaunchPlan, String> {
    let geometry = launches.geometry;
    let p = &geometry.problem;
    let (channels, rows) = (p.in_channels(), p.out_channels());
    let in_group = channels / p.groups();
    let products = launches.products(in_group, rows / p.groups(), Direction::BackwardWeights)?;
    let steps = launches.padded.div_ceil(tile.depth) as u64;
    let per_split = steps.div_ceil(u64::from(splits.max(1)));
    let splits = steps.div_ceil(per_split);
    let mut workspace = Workspace::default();
    let source = workspace.take(launches.bytes(channels));
    let gradient = workspace.take(launches.bytes(rows));
    let planes = workspace.take(splits * (launches.places * rows * in_group * 4) as u64);
    // Rows of all groups follow one another in the planes as in the gradient.
    let finish = WinogradWeightsShape { rows: int(rows), channels: int(in_group), planes: splits as i32 };
    let stages = vec![
        launches.images("winograd_input", channels, vec![geometry.first, source], p.in_size(), p.padding()),
        launches.images("winograd_gradient", rows, vec![geometry.second, gradient], p.out_size(), [0, 0]),
        weights(&products, tile, splits as u32, per_split as i32, [gradient, source, planes]),
        finish_weights(p, splits as u32, |entry, each| Stage {
            grid: grid_x((rows * in_group) as u64, each),
            block: 256,
            ..launches.stage(entry, 0, vec![planes, Pointer::Result], finish.into())
        }),
    ];
    Ok(LaunchPlan { stages, workspace_bytes: workspace.bytes })
}

/// The last launch of the filter's gradient: with few planes and many 3×3 filters a thread for each of them, else eight.
fn finish_weights(p: &Problem, planes: u32, stage: impl FnOnce(&'static str, u64) -> Stage) -> Stage {
    let filters = p.in_channels() / p.groups() * p.out_channels();
    if planes <= 2 && filters >= MANY_FILTERS && p.kernel() == [3, 3] {
        stage("winograd_filters", 256)
    } else {
        stage("winograd_weights", 32)
    }
}
