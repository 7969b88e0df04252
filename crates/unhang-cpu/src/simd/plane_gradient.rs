//! Weight gradients with pixels in vectors on both sides, in NCHW: those of narrow groups and of few channels.
//!
//! Channels in vectors ask for one side transposed, which over few channels costs more than the products; here nothing is.
//! The input is packed with its zeros, so that every tap meets the pixels of a row of results next to each other. The
//! output's gradient is read in place. A tile holds the sums of a few filters by a few channels and taps, lane by lane.
//! The lanes are added in the end.
//!
//! A tile sums up a chunk of pixels. Chunks are summed in chains of at most [`CHAIN`] pixels that are added in pairs,
//! as in [`super::weights`]. Units are groups and segments of pixels, which depend on the problem alone, so threads
//! change nothing.

use unhang_conv::{Direction, Problem, Specification};

use super::geometry::{Gather, segments};
use super::packed_planes::{PackedPlanes, Window};
use super::pairwise::PairwiseSums;
use super::weights::{self, Chunk};
use super::work::Work;
use super::workspace::{Shared, Workspace};
use crate::parallel::for_each_unit;
use crate::plain::CHAIN;
use unhang_simd::even_parts;
use unhang_simd::{Kernels, PlaneProducts};

/// Packed numbers of a chunk's input, and numbers of its output's gradient, which is read again for each few channels and taps:
/// both stay in a second-level cache.
const CHUNK_NUMBERS: [usize; 2] = [64 * 1024; 2];

/// Everything that is the same for all units.
struct GradientWork<'a> {
    gather: &'a Gather,
    kernels: &'static Kernels,
    planes: PackedPlanes<'a>,
    /// Rows of the largest chunk, and its images.
    rows: usize,
    images: usize,
    /// Numbers of a filter.
    numbers: usize,
    x: &'a [f32],
    dy: &'a [f32],
}

/// Computes a weight gradient of an ordinary problem.
///
/// # Panics
/// When a slice is not as long as the problem says, or its pixels do not lie together.
pub(super) fn compute(problem: &Problem, work: Work<'_>) {
    let Work { kernels, first: x, second: dy, bias, result, threads } = work;
    let lengths = problem.operand_shapes().map(|shape| shape.iter().product::<usize>());
    assert_eq!([x.len(), dy.len(), result.len()], lengths, "the operands' lengths");
    let forward = Problem::new(Specification { direction: Direction::Forward, ..problem.specification() });
    let gather = Gather::new(&forward.expect("the problem in another direction"));
    let driver = GradientWork::new(&gather, kernels, x, dy);
    let chunks = driver.chunks();
    let segments = segments(lengths[0] + lengths[1], lengths[2]).div_ceil(gather.groups).min(chunks.len());
    let parts: Vec<(usize, usize)> = even_parts(chunks.len(), chunks.len().div_ceil(segments)).collect();
    let room = gather.result_channels * driver.numbers;
    let mut partial = Workspace::take(if parts.len() > 1 { gather.groups * parts.len() * room } else { 0 });
    // The gradients of all segments or, if there is one, the result itself.
    let sums = Shared(if parts.len() > 1 { partial.as_mut_ptr() } else { result.as_mut_ptr() });
    for_each_unit(threads, gather.groups * parts.len(), |unit| {
        let (first, count) = parts[unit % parts.len()];
        let unit_sums = driver.sums(unit / parts.len(), &chunks[first..first + count]);
        // SAFETY: this unit's own gradient, which no other writes.
        unsafe { (kernels.row)(unit_sums.as_ptr(), 1, room, sums.get().add(unit * room)) };
    });
    if parts.len() > 1 {
        for (of_group, to) in partial.chunks(parts.len() * room).zip(result.chunks_mut(room)) {
            to.copy_from_slice(&of_group[..room]);
            for segment in of_group.chunks(room).skip(1) {
                // SAFETY: two slices of this length.
                unsafe { (kernels.add)(segment.as_ptr(), to.as_mut_ptr(), room) };
            }
        }
    }
    // Padding was multiplied too, with which a gradient that is not finite spoils taps that do not meet it. What is then spoiled
    // is what the blocked gradient spoils.
    if result.iter().any(|number| !number.is_finite()) {
        weights::compute(problem, Work { kernels, first: x, second: dy, bias, result, threads });
    }
}

impl<'a> GradientWork<'a> {
    fn new(gather: &'a Gather, kernels: &'static Kernels, x: &'a [f32], dy: &'a [f32]) -> GradientWork<'a> {
        let planes = PackedPlanes::new(gather, kernels);
        let [height, width] = [gather.axes[0].result, gather.axes[1].result];
        let of_row = [planes.numbers_of_row(), gather.result_channels * width];
        let most = |index: usize| CHUNK_NUMBERS[index] / of_row[index].max(1);
        let rows = most(0).saturating_sub(planes.packed_rows(0)).min(most(1)).min(CHAIN / width).clamp(1, height);
        let of_image = [planes.packed_rows(height) * of_row[0], height * of_row[1]];
        let most = |index: usize| CHUNK_NUMBERS[index] / of_image[index].max(1);
        let images = most(0).min(most(1)).min(CHAIN / (height * width)).clamp(1, gather.batch);
        let images = if rows < height { 1 } else { images };
        let numbers = gather.weight_group / gather.result_channels;
        GradientWork { gather, kernels, planes, rows, images, numbers, x, dy }
    }

    fn chunks(&self) -> Vec<Chunk> {
        let height = self.gather.axes[0].result;
        let of_images = |(first_image, images)| {
            even_parts(height, self.rows).map(move |(first_row, rows)| Chunk { first_image, images, first_row, rows })
        };
        even_parts(self.gather.batch, self.images).flat_map(of_images).collect()
    }

    /// The gradient of a group over some chunks: filter by filter, in the order of the result.
    fn sums(&self, group: usize, chunks: &[Chunk]) -> Workspace {
        let (gather, kernels, numbers) = (self.gather, self.kernels, self.numbers);
        let [by_image, by_channel, by_row, _] = gather.result;
        let width = gather.axes[1].result;
        let room = self.planes.room(self.rows);
        let of_image = gather.source_channels * room.plane;
        let [rows, columns] = &gather.axes;
        let taps = || rows.phases[0].iter().flat_map(|&row| columns.phases[0].iter().map(move |&column| [row, column]));
        let places: Vec<usize> = (0..gather.source_channels)
            .flat_map(|channel| taps().map(move |tap| (channel, tap)))
            .map(|(channel, tap)| channel * room.plane + self.planes.offset(&room, tap))
            .collect();
        let [most_filters, most_places] = kernels.plane_products_tile;
        let mut packed = Workspace::take(self.images * of_image);
        let mut sums = PairwiseSums::new(kernels, gather.result_channels * numbers);
        for chunk in chunks {
            let begins = sums.begin_chunk(chunk.images * chunk.rows * width);
            for (image, to) in packed.chunks_mut(of_image).take(chunk.images).enumerate() {
                let image = chunk.first_image + image;
                let window = Window { image, group, first_row: chunk.first_row, rows: chunk.rows };
                self.planes.pack(self.x, &window, &room, to);
            }
            let first =
                chunk.first_image * by_image + group * gather.result_channels * by_channel + chunk.first_row * by_row;
            // Rows without a gap between them are one.
            let (rows, count) = if self.planes.pitch == width { (1, chunk.rows * width) } else { (chunk.rows, width) };
            for (place, of_tile) in even_parts(places.len(), most_places) {
                for (filter, filters) in even_parts(gather.result_channels, most_filters) {
                    let dy = &self.dy[first + filter * by_channel..];
                    assert!(
                        (chunk.images - 1) * by_image + (filters - 1) * by_channel + chunk.rows * by_row <= dy.len()
                    );
                    let to = &mut sums.chain(filter * numbers + place, (filters - 1) * numbers + of_tile);
                    // SAFETY: the gradient of these images, filters and rows was just checked. The packed images hold
                    // what every tap of these rows meets, and the sums have a line for each filter.
                    unsafe {
                        kernels.plane_products(filters, of_tile)(&PlaneProducts {
                            x: packed.as_ptr(),
                            places: places[place..][..of_tile].as_ptr(),
                            x_steps: [of_image, self.planes.pitch],
                            dy: dy.as_ptr(),
                            dy_steps: [by_image, by_row],
                            filter_step: by_channel,
                            images: chunk.images,
                            rows,
                            count,
                            sums: to.as_mut_ptr(),
                            sums_step: numbers,
                            begins,
                        });
                    }
                }
            }
        }
        sums.finish()
    }
}
