//! Tiles at the edges of a source: taps that meet padding are left out.
//!
//! Of a packed source, with its zeros, that are those that meet nothing else at any pixel of a tile. The rest is about a
//! source that is read in place.
//! Along a row a tap meets the source from some pixel of a tile to some other. The taps that meet it at the same pixels
//! are computed together, with a tile of this many pixels. What they add goes through memory from one such tile to the
//! next. So no pixel is copied, and zeros are never multiplied.

use super::geometry::{Axis, Gather};
use super::source::SourceView;
use unhang_simd::{Kernels, Run, Tile};

/// Taps of a row that meet the source at the same pixels of a tile.
#[derive(Debug, Clone, Copy)]
struct Stretch {
    /// The first tap of the phase's.
    first: usize,
    /// How many follow each other, that one included.
    taps: usize,
    /// The first pixel.
    begin: usize,
    /// The pixel behind the last.
    end: usize,
}

/// What a tile at the edges has to know of the work that it is a part of.
pub(super) struct Surroundings<'a> {
    /// What is computed.
    pub gather: &'a Gather,
    /// By which kernels.
    pub kernels: &'static Kernels,
    /// How the source is read.
    pub source: &'a SourceView<'a>,
    /// Source channels of a tap.
    pub channels: usize,
    /// Whether the taps of a row are one run.
    pub row_taps_together: bool,
    /// Vectors of filters in the tile.
    pub vectors: usize,
}

/// What the taps of one tile meet; kept from tile to tile for its room.
#[derive(Debug, Default)]
pub(super) struct Edges {
    stretches: Vec<Stretch>,
    /// Row taps that meet the source.
    rows: Vec<usize>,
    runs: Vec<Run>,
    pixels: usize,
}

/// The pixels of `count` from `first` on at which a tap at that offset meets the source.
fn met(axis: &Axis, offset: isize, first: usize, count: usize) -> (usize, usize) {
    let origin = (first * axis.in_step) as isize + offset;
    let begin = ((-origin).max(0) as usize).div_ceil(axis.in_step).min(count);
    let end = ((axis.source as isize - origin).max(0) as usize).div_ceil(axis.in_step).min(count);
    (begin, end.max(begin))
}

/// Of a phase's runs, one for each tap, those whose tap meets the source at some pixel of a tile: `size` are its rows
/// and columns from `place` on, in steps.
pub(super) fn met_runs<'a>(
    gather: &Gather,
    place: [usize; 2],
    size: [usize; 2],
    phase: [usize; 2],
    runs: &'a [Run],
    room: &'a mut Vec<Run>,
) -> &'a [Run] {
    let meets = |axis: usize, tap: usize| {
        let of_axis = &gather.axes[axis];
        let (begin, end) = met(of_axis, of_axis.phases[phase[axis]][tap].offset, place[axis], size[axis]);
        begin < end
    };
    let [rows, columns] = [0, 1].map(|axis| gather.axes[axis].phases[phase[axis]].len());
    if (0..rows).all(|tap| meets(0, tap)) && (0..columns).all(|tap| meets(1, tap)) {
        return runs;
    }
    let met = runs.iter().enumerate().filter(|(tap, _)| meets(0, tap / columns) && meets(1, tap % columns));
    room.clear();
    room.extend(met.map(|(_, run)| *run));
    room
}

impl Edges {
    /// Finds what the taps of a phase meet for a tile of this many pixels at a row and a column, in steps. True if all
    /// taps meet the source at all pixels.
    pub(super) fn find(
        &mut self,
        gather: &Gather,
        [row, column]: [usize; 2],
        pixels: usize,
        phase: [usize; 2],
    ) -> bool {
        let [rows, columns] = &gather.axes;
        let (row_taps, column_taps) = (&rows.phases[phase[0]], &columns.phases[phase[1]]);
        self.rows.clear();
        self.rows.extend((0..row_taps.len()).filter(|&tap| met(rows, row_taps[tap].offset, row, 1) == (0, 1)));
        self.stretches.clear();
        self.pixels = pixels;
        for (tap, at) in column_taps.iter().enumerate() {
            let (begin, end) = met(columns, at.offset, column, pixels);
            match self.stretches.last_mut() {
                Some(last) if (last.begin, last.end) == (begin, end) => last.taps += 1,
                _ => self.stretches.push(Stretch { first: tap, taps: 1, begin, end }),
            }
        }
        let whole = |stretch: &Stretch| (stretch.begin, stretch.end) == (0, pixels);
        self.rows.len() == row_taps.len() && self.stretches.iter().all(whole)
    }

    /// Computes the tile that was found last; `all` is what it would be with all of its taps.
    pub(super) fn compute(&mut self, of: &Surroundings<'_>, all: &Tile<'_>, phase: [usize; 2]) {
        let channels = of.channels;
        let [rows, columns] = &of.gather.axes;
        let (row_taps, column_taps) = (&rows.phases[phase[0]], &columns.phases[phase[1]]);
        let columns_of = |row: usize| -> usize {
            let before: usize = columns.phases[..phase[1]].iter().map(Vec::len).sum();
            let of_rows: usize = rows.phases[..phase[0]].iter().map(Vec::len).sum();
            let all: usize = columns.phases.iter().map(Vec::len).sum();
            of_rows * all + row_taps.len() * before + row * column_taps.len()
        };
        let mut tile = *all;
        // The widest stretch begins the sums of all pixels, if it has all of them.
        let widest = self.stretches.iter().position(|stretch| (stretch.begin, stretch.end) == (0, self.pixels));
        if let Some(widest) = widest {
            self.stretches.swap(0, widest);
        } else {
            tile.runs = &[];
            // SAFETY: without runs the sums are what they begin with; see the caller for both.
            unsafe { of.kernels.tile(of.vectors, 1, self.pixels, tile.pitch)(&tile) };
            (tile.init, tile.init_step) = (tile.sums, tile.sums_step);
        }
        for stretch in self.stretches.iter().filter(|stretch| stretch.begin < stretch.end) {
            self.runs.clear();
            for &row in &self.rows {
                let run = |tap: usize| {
                    let from_low = [row_taps[row].offset - rows.low, column_taps[tap].offset - columns.low];
                    let x = of.source.tap(from_low[0] as usize, from_low[1] as usize);
                    Run { x, w: (columns_of(row) + tap) * channels * tile.w_step }
                };
                let taps = stretch.first..stretch.first + stretch.taps;
                if of.row_taps_together {
                    self.runs.push(run(stretch.first));
                } else {
                    self.runs.extend(taps.map(run));
                }
            }
            let count = if of.row_taps_together { stretch.taps * channels } else { channels };
            let part = Tile {
                x: tile.x.wrapping_add(stretch.begin * tile.pitch),
                runs: &self.runs,
                count,
                init: tile.init.wrapping_add(stretch.begin * tile.init_step),
                sums: tile.sums.wrapping_add(stretch.begin * tile.sums_step),
                ..tile
            };
            // SAFETY: the taps of the runs meet the source at all pixels of the stretch; all else as for the whole tile.
            unsafe { of.kernels.tile(of.vectors, 1, stretch.end - stretch.begin, tile.pitch)(&part) };
            (tile.init, tile.init_step) = (tile.sums, tile.sums_step);
        }
    }
}
