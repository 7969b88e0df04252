//! Products of matrices on operands where they lie: 1×1 convolutions in NCHW whose filters stay in a cache, and those of one
//! pixel an image (squeeze-and-excite).
//!
//! * A result's row is summed along the inner dimension with its columns in vectors ([`Product`]): pixels of planes, or the
//!   channels of one pixel. The larger operand is read in place, a panel of columns at a time for all rows; the next panel
//!   is asked for meanwhile. Only planes of few pixels are packed, images beside each other, so that vectors are full.
//! * A result's number is a sum along two rows that lie together ([`dot_rows`]): forward of one pixel, of few filters in NHWC, and
//!   the weight gradient of few filters in NCHW.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use unhang_conv::{Direction, Layout, Problem};

use super::cache;
use super::pairwise::PairwiseSums;
use super::pointwise::pieces;
use super::tiling::choose_tile;
use super::work::Work;
use super::workspace::{Shared, Workspace};
use crate::parallel::for_each_unit;
use crate::plain::CHAIN;
use unhang_simd::even_parts;
use unhang_simd::{Kernels, MAX_VECTORS, PlaneProducts, Run, Tile};

/// Numbers of a source that is read for some rows after the other: they stay in the first-level cache or, where more is written
/// than read, in the second-level one, so that results are written in longer pieces.
const UNIT_NUMBERS: [usize; 2] = [8 * 1024, 16 * 1024];
/// The sums of one tile at most: those that registers hold.
const TILE_NUMBERS: usize = 32 * 16;

/// Source channels for each image from which on sums along two rows are faster than transposing the filter, which all images
/// share.
const CHANNELS_OF_IMAGE: usize = 32;
/// Pixels along which the weight gradient of few filters is summed at a time: those of a few channels stay in the first-level
/// cache.
const CHUNK_PIXELS: usize = 2048;
/// Pixels of one unit of work that has few filters.
const UNIT_PIXELS: usize = 512;
/// Filters, or channels of them, that one unit of work sums.
const UNIT_PLACES: usize = 24;

/// `result = first × second`, with the columns of `second` and of the result in vectors.
struct Product<'a> {
    kernels: &'static Kernels,
    /// The rows of `first`, cut into what one tile takes.
    parts: &'a [(usize, usize)],
    /// Columns of `first` and rows of `second`.
    inner: usize,
    /// Packed as `[part][inner][row]`.
    first: &'a [f32],
    second: &'a [f32],
    /// Vectors of a panel.
    vectors: usize,
    begin: Begin<'a>,
    result: Shared,
    columns: Columns,
}

/// What sums begin with.
#[derive(Clone, Copy)]
enum Begin<'a> {
    /// Vectors for each row, that far apart.
    Rows(&'a [f32], usize),
    /// One number for each column.
    Columns(&'a [f32]),
}

/// What the columns are, and so where they lie.
#[derive(Clone, Copy)]
enum Columns {
    /// This many, beside each other in every row of `second` and of the result, which are as long.
    Together(usize),
    /// Pixels of several images, this many of each. Rows of an image are its channels, in `second` and in the result.
    OfImages(usize),
}

/// Some columns of `second`.
#[derive(Clone, Copy)]
struct Panel {
    /// The first number, and how far the next row is.
    second: *const f32,
    row: usize,
    vectors: usize,
    /// The first column, and the one behind the last that is stored.
    at: usize,
    end: usize,
    /// From the numbers of each row to those that are read later.
    ahead: usize,
}

impl Product<'_> {
    fn rows(&self) -> usize {
        self.first.len() / self.inner
    }

    /// Computes the columns from `begin` to `end`.
    fn compute(&self, begin: usize, end: usize) {
        match self.columns {
            Columns::Together(row) => self.compute_together(row, begin, end),
            Columns::OfImages(pixels) => self.compute_images(pixels, begin, end),
        }
    }

    /// A few panels at a time for all rows, and those for some rows after the other.
    fn compute_together(&self, row: usize, begin: usize, end: usize) {
        let lanes = self.kernels.lanes;
        let width = self.vectors * lanes;
        assert!(end - begin >= width && end <= row && self.inner * row <= self.second.len());
        let numbers = UNIT_NUMBERS[usize::from(self.rows() >= self.inner)];
        let unit = (numbers / self.inner / width).max(1) * width;
        for first in (begin..end).step_by(unit) {
            // The next few panels, or the first few of what comes behind these rows.
            let ahead = if first + unit < end { unit } else { self.inner * row - (first - begin) };
            for part in self.parts {
                for at in (first..end.min(first + unit)).step_by(width) {
                    let vectors = (end - at).div_ceil(lanes).min(self.vectors);
                    // The last panel may begin among the columns of the one before: their sums are the same again.
                    let at = at.min(end - vectors * lanes);
                    let panel = Panel { second: self.second[at..].as_ptr(), row, vectors, at, end, ahead };
                    // SAFETY: whole vectors of columns in all rows, and the last ends before `end`.
                    unsafe { self.tile(part, &panel, None) };
                }
            }
        }
    }

    /// Panel by panel, packed: images beside each other.
    fn compute_images(&self, pixels: usize, begin: usize, end: usize) {
        let (kernels, lanes) = (self.kernels, self.kernels.lanes);
        let width = self.vectors * lanes;
        let image = self.inner * pixels;
        assert!(end.div_ceil(pixels) * image <= self.second.len());
        let mut packed = Workspace::take(self.inner * width);
        let mut buffer = [0.0f32; TILE_NUMBERS];
        for at in (begin..end).step_by(width) {
            let end = end.min(at + width);
            if end < at + width {
                packed.fill(0.0);
            }
            for (column, count) in pieces(pixels, at, end) {
                let from = &self.second[column / pixels * image..][..image];
                // SAFETY: this many pixels of each channel of an image, to rows of a panel.
                unsafe {
                    let (from, to) = (from.as_ptr().add(column % pixels), packed.as_mut_ptr().add(column - at));
                    (kernels.rows)(from, pixels, to, width, count, self.inner);
                }
            }
            let vectors = (end - at).div_ceil(lanes);
            let panel = Panel { second: packed.as_ptr(), row: width, vectors, at, end, ahead: 0 };
            for part in self.parts {
                // SAFETY: the packed panel.
                unsafe { self.tile(part, &panel, Some((pixels, &mut buffer))) };
            }
        }
    }

    /// A panel's sums of some rows: to the result, or by way of a buffer to pixels of images.
    ///
    /// # Safety
    /// The panel's pointer is good for its vectors in all of its rows; the result has its columns, which no other thread writes.
    unsafe fn tile(
        &self,
        &(row, rows): &(usize, usize),
        panel: &Panel,
        mut images: Option<(usize, &mut [f32; TILE_NUMBERS])>,
    ) {
        let (kernels, width) = (self.kernels, panel.vectors * self.kernels.lanes);
        // SAFETY: the caller's conditions; the rows' part of `first` has `inner` lines. The buffer has room for the largest tile.
        unsafe {
            let (sums, sums_step) = match (self.columns, &mut images) {
                (Columns::Together(step), _) => (self.result.get().add(row * step + panel.at), step),
                (_, Some((_, buffer))) => (buffer.as_mut_ptr(), width),
                _ => unreachable!("pixels of images have a buffer"),
            };
            let (init, init_step) = match self.begin {
                Begin::Rows(begin, step) => (begin[row * step..].as_ptr(), step),
                Begin::Columns(begin) => (begin[panel.at..][..width].as_ptr(), 0),
            };
            // What is ahead is asked for once.
            let asks = row == 0 && panel.ahead > 0;
            let tile = if asks {
                kernels.streaming_tile(panel.vectors, rows)
            } else {
                kernels.tile(panel.vectors, 1, rows, 1)
            };
            tile(&Tile {
                x: self.first[row * self.inner..][..rows * self.inner].as_ptr(),
                w: panel.second,
                runs: &[Run { x: 0, w: 0 }],
                count: self.inner,
                pitch: 1,
                row_step: panel.ahead,
                x_step: rows,
                w_step: panel.row,
                init,
                init_step,
                sums,
                sums_step,
                fetch: false,
            });
            if let Some((pixels, buffer)) = images {
                for (column, count) in pieces(pixels, panel.at, panel.end) {
                    let to = column / pixels * self.rows() * pixels + row * pixels + column % pixels;
                    let from = buffer[column - panel.at..].as_ptr();
                    (kernels.rows)(from, width, self.result.get().add(to), pixels, count, rows);
                }
            }
        }
    }
}

/// Columns of one unit of work, the last of which has more: whole panels, and at least two units for each of several threads,
/// where there are as many products.
fn unit_columns(width: usize, columns: usize, products: usize, threads: usize) -> (usize, usize) {
    let wanted = if threads > 1 { (2 * threads).div_ceil(products) } else { 1 };
    let of_unit = columns.div_ceil(wanted).next_multiple_of(width);
    (of_unit, (columns / of_unit).max(1))
}

/// Transposes a matrix of that many columns.
fn transpose(kernels: &Kernels, from: &[f32], columns: usize, to: &mut [f32]) {
    let rows = from.len() / columns;
    assert!(from.len() == rows * columns && to.len() == from.len());
    let offsets: Vec<usize> = (0..columns).map(|column| column * rows).collect();
    // SAFETY: that many rows and columns on both sides.
    unsafe { (kernels.transpose)(from.as_ptr(), columns, rows, columns, to.as_mut_ptr(), offsets.as_ptr()) };
}

/// Filters with their source channels apart, kept where that pays.
fn transposed_filters(kernels: &Kernels, weight: &[f32], sources: usize, batch: usize) -> Arc<Workspace> {
    let pack = |to: &mut [f32]| transpose(kernels, weight, sources, to);
    if cache::is_worth_keeping(weight.len(), batch) {
        let mut hasher = DefaultHasher::new();
        ("transposed", sources).hash(&mut hasher);
        return cache::packed(kernels, weight, hasher.finish(), weight.len(), pack);
    }
    let mut transposed = Workspace::take(weight.len());
    pack(&mut transposed);
    Arc::new(transposed)
}

/// Forward and backward-data of images of one pixel, or of filters that have a tap for each pixel, which are its channels then.
///
/// # Panics
/// When a slice is not as long as the problem says, or the problem is another one.
pub(super) fn single_pixels(problem: &Problem, work: Work<'_>) {
    let Work { kernels, first: source, second: weight, bias, result, threads } = work;
    let lengths = problem.operand_shapes().map(|shape| shape.iter().product::<usize>());
    assert_eq!([source.len(), weight.len(), result.len()], lengths, "the operands' lengths");
    let (batch, lanes) = (problem.batch(), kernels.lanes);
    let [sources, results] = [source.len(), result.len()].map(|all| all / batch);
    assert_eq!(weight.len(), sources * results, "one pixel and one group");
    let forward = problem.direction() != Direction::BackwardData;
    let result = Shared(result.as_mut_ptr());
    if forward && sources >= CHANNELS_OF_IMAGE * batch {
        let parts: Vec<(usize, usize)> = even_parts(results, UNIT_PLACES).collect();
        return for_each_unit(threads, parts.len(), |unit| {
            let (first, count) = parts[unit];
            dot_rows(
                kernels,
                [source, &weight[first * sources..][..count * sources]],
                sources,
                |image, filter, sum| {
                    let filter = first + filter;
                    // SAFETY: this unit's own filters of the result.
                    unsafe {
                        *result.get().add(image * results + filter) = sum + bias.map_or(0.0, |bias| bias[filter])
                    };
                },
            );
        });
    }
    // Fewer results than a vector has lanes go by way of a packed panel, as if they were pixels of one image.
    let narrow = results < lanes;
    let vectors = choose_tile(kernels, results, batch, 1).vectors.min(results.div_ceil(lanes));
    let vectors = if narrow { 1 } else { vectors.min(results / lanes) };
    let width = vectors * lanes;
    let parts: Vec<(usize, usize)> = even_parts(batch, kernels.most_scalars(vectors, 1)).collect();
    let mut first = Workspace::take(source.len());
    for &(row, rows) in &parts {
        let range = row * sources..(row + rows) * sources;
        transpose(kernels, &source[range.clone()], sources, &mut first[range]);
    }
    let transposed = forward.then(|| transposed_filters(kernels, weight, sources, batch));
    let mut begin = Workspace::take(results.max(width));
    begin.fill(0.0);
    if let Some(bias) = bias {
        // A transposed convolution spreads one pixel: each of its channels has several results.
        let each = results / bias.len();
        for (result, begin) in begin[..results].iter_mut().enumerate() {
            *begin = match problem.layout() {
                Layout::Nchw => bias[result / each],
                Layout::Nhwc => bias[result % bias.len()],
            };
        }
    }
    let product = Product {
        kernels,
        parts: &parts,
        inner: sources,
        first: &first,
        second: transposed.as_ref().map_or(weight, |transposed| transposed),
        vectors,
        begin: Begin::Columns(&begin),
        result,
        columns: if narrow { Columns::OfImages(results) } else { Columns::Together(results) },
    };
    let (of_unit, units) = unit_columns(width, results, 1, threads);
    for_each_unit(threads, units, |unit| {
        product.compute(unit * of_unit, if unit + 1 == units { results } else { (unit + 1) * of_unit });
    });
}

/// 1×1 with few results for each pixel in NHWC, forward, or with one, backward-data: sums along a pixel's channels and a filter's.
///
/// # Panics
/// When a slice is not as long as the problem says, or the problem is another one.
pub(super) fn few_filters(problem: &Problem, work: Work<'_>) {
    let Work { kernels, first: source, second: weight, bias, result, threads } = work;
    let lengths = problem.operand_shapes().map(|shape| shape.iter().product::<usize>());
    assert_eq!([source.len(), weight.len(), result.len()], lengths, "the operands' lengths");
    let [channels, _, results] = problem.operand_shapes().map(|shape| shape[1]);
    let transposed = problem.direction() == Direction::BackwardData && results > 1;
    assert!(weight.len() == channels * results && !transposed, "filters whose channels lie together");
    crate::parallel::for_each_chunk(threads, result, UNIT_PIXELS * results, |unit, result| {
        let pixels = &source[unit * UNIT_PIXELS * channels..][..result.len() / results * channels];
        let result = Shared(result.as_mut_ptr());
        dot_rows(kernels, [weight, pixels], channels, |filter, pixel, sum| {
            // SAFETY: a result of this unit's own pixels.
            unsafe { *result.get().add(pixel * results + filter) = sum + bias.map_or(0.0, |bias| bias[filter]) };
        });
    });
}

/// The weight gradient of images of one pixel: each filter's is a sum over images of whole ones by a number each.
///
/// # Panics
/// When a slice is not as long as the problem says, or the problem is another one. When an image has fewer numbers than
/// fill a vector.
pub(super) fn single_pixels_weights(problem: &Problem, work: Work<'_>) {
    let Work { kernels, first: x, second: dy, result, threads, .. } = work;
    let lengths = problem.operand_shapes().map(|shape| shape.iter().product::<usize>());
    assert_eq!([x.len(), dy.len(), result.len()], lengths, "the operands' lengths");
    let (batch, lanes) = (problem.batch(), kernels.lanes);
    let [numbers, filters] = [x.len(), dy.len()].map(|all| all / batch);
    assert!(result.len() == numbers * filters && numbers >= lanes, "one pixel and one group");
    let vectors = choose_tile(kernels, numbers, filters, 1).vectors.min(numbers / lanes);
    let parts: Vec<(usize, usize)> = even_parts(filters, kernels.most_scalars(vectors, 1)).collect();
    let mut first = Workspace::take(dy.len());
    for &(filter, count) in &parts {
        let to = &mut first[filter * batch..][..count * batch];
        // SAFETY: a row of this many filters for each image.
        unsafe { (kernels.rows)(dy[filter..].as_ptr(), filters, to.as_mut_ptr(), count, count, batch) };
    }
    let zeros = [0.0f32; MAX_VECTORS * 16];
    let product = Product {
        kernels,
        parts: &parts,
        inner: batch,
        first: &first,
        second: x,
        vectors,
        begin: Begin::Rows(&zeros, 0),
        result: Shared(result.as_mut_ptr()),
        columns: Columns::Together(numbers),
    };
    let (of_unit, units) = unit_columns(vectors * lanes, numbers, 1, threads);
    for_each_unit(threads, units, |unit| {
        product.compute(unit * of_unit, if unit + 1 == units { numbers } else { (unit + 1) * of_unit });
    });
}

/// Calls `write` with the sum of each row of the first operand by each of the second: `length` numbers each, which lie together.
fn dot_rows(kernels: &Kernels, [first, second]: [&[f32]; 2], length: usize, write: impl Fn(usize, usize, f32)) {
    let [most_rows, most_places] = kernels.plane_products_tile;
    let mut sums = [0.0f32; 64];
    let offsets: Vec<usize> = (0..most_places).map(|place| place * length).collect();
    for (place, places) in even_parts(second.len() / length, most_places) {
        for (row, rows) in even_parts(first.len() / length, most_rows) {
            let x = &second[place * length..][..places * length];
            let dy = &first[row * length..][..rows * length];
            // SAFETY: whole rows of both operands; room for the sums of the largest tile.
            unsafe {
                kernels.plane_products(rows, places)(&PlaneProducts {
                    x: x.as_ptr(),
                    places: offsets.as_ptr(),
                    x_steps: [0, 0],
                    dy: dy.as_ptr(),
                    dy_steps: [0, 0],
                    filter_step: length,
                    images: 1,
                    rows: 1,
                    count: length,
                    sums: sums.as_mut_ptr(),
                    sums_step: places,
                    begins: true,
                });
            }
            for (of_row, sums) in sums.chunks(places).take(rows).enumerate() {
                sums.iter().enumerate().for_each(|(of_place, &sum)| write(row + of_row, place + of_place, sum));
            }
        }
    }
}

/// The weight gradient of 1×1 with few filters in NCHW: each number is a sum along pixels that lie together on both sides.
///
/// # Panics
/// When a slice is not as long as the problem says, or the problem is another one.
pub(super) fn few_filters_weights(problem: &Problem, work: Work<'_>) {
    let Work { kernels, first: x, second: dy, result, threads, .. } = work;
    let lengths = problem.operand_shapes().map(|shape| shape.iter().product::<usize>());
    assert_eq!([x.len(), dy.len(), result.len()], lengths, "the operands' lengths");
    let (batch, channels, filters) = (problem.batch(), problem.in_channels(), problem.out_channels());
    let pixels = dy.len() / (batch * filters);
    assert_eq!((x.len(), result.len()), (batch * channels * pixels, channels * filters), "one tap at each pixel");
    // Several whole images, or a part of one.
    let images = (CHUNK_PIXELS.min(CHAIN) / pixels).clamp(1, batch);
    let count = pixels.min(CHUNK_PIXELS.min(CHAIN));
    let chunks: Vec<[(usize, usize); 2]> = even_parts(batch, images)
        .flat_map(|images| even_parts(pixels, count).map(move |pixels| [images, pixels]))
        .collect();
    let parts: Vec<(usize, usize)> = even_parts(channels, UNIT_PLACES).collect();
    let [most_filters, most_places] = kernels.plane_products_tile;
    let to = Shared(result.as_mut_ptr());
    for_each_unit(threads, parts.len(), |unit| {
        let (first_channel, of_unit) = parts[unit];
        let mut sums = PairwiseSums::new(kernels, filters * of_unit);
        let offsets: Vec<usize> = (0..most_places).map(|place| place * pixels).collect();
        for &[(first_image, images), (first_pixel, count)] in &chunks {
            let begins = sums.begin_chunk(images * count);
            for (place, places) in even_parts(of_unit, most_places) {
                let x = &x[(first_image * channels + first_channel + place) * pixels + first_pixel..];
                assert!(((images - 1) * channels + places - 1) * pixels + count <= x.len());
                for (filter, of_tile) in even_parts(filters, most_filters) {
                    let dy = &dy[(first_image * filters + filter) * pixels + first_pixel..];
                    assert!(((images - 1) * filters + of_tile - 1) * pixels + count <= dy.len());
                    let to = sums.chain(filter * of_unit + place, (of_tile - 1) * of_unit + places);
                    // SAFETY: rows of both operands, whose last was just checked; the sums have a line for each filter.
                    unsafe {
                        kernels.plane_products(of_tile, places)(&PlaneProducts {
                            x: x.as_ptr(),
                            places: offsets.as_ptr(),
                            x_steps: [channels * pixels, 0],
                            dy: dy.as_ptr(),
                            dy_steps: [filters * pixels, 0],
                            filter_step: pixels,
                            images,
                            rows: 1,
                            count,
                            sums: to.as_mut_ptr(),
                            sums_step: of_unit,
                            begins,
                        });
                    }
                }
            }
        }
        // SAFETY: this unit's own channels of each filter's gradient.
        unsafe {
            let sums = sums.finish();
            (kernels.rows)(sums.as_ptr(), of_unit, to.get().add(first_channel), channels, of_unit, filters);
        }
    });
}
