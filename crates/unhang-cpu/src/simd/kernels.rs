//! The kernels, written once over [`Vector`] and compiled for each instruction set.
//!
//! A set of kernels is a table of functions ([`Kernels`]); drivers take one and are ordinary code. Each entry is a
//! wrapper that carries the target features and into which the generic body is inlined.

#[cfg(target_arch = "x86_64")]
use super::vector::{Avx2, Avx512};
use super::vector::{Portable, Vector};
use crate::isa::Isa;

/// Where a run of multiplications begins: offsets of its first scalar and of its first vector.
#[derive(Debug, Clone, Copy)]
pub struct Run {
    /// From [`Tile::x`].
    pub x: usize,
    /// From [`Tile::w`].
    pub w: usize,
}

/// One call of the micro-kernel: `R` rows of `P` scalars × `V` vectors of sums, for every step of every run
/// `sum[r][p][v] += x[r × row_step + p × pitch] × w[v]`, after which `x` and `w` move on by their steps. Sums are
/// numbered row by row.
#[derive(Debug, Clone, Copy)]
pub struct Tile<'a> {
    /// The scalars, which are broadcast.
    pub x: *const f32,
    /// The vectors.
    pub w: *const f32,
    /// The runs.
    pub runs: &'a [Run],
    /// Steps of each run.
    pub count: usize,
    /// From one scalar of a step to the next: what the kernel was looked up with.
    pub pitch: usize,
    /// From one row of scalars to the next.
    pub row_step: usize,
    /// From one step's first scalar to the next's.
    pub x_step: usize,
    /// From one step's first vector to the next's.
    pub w_step: usize,
    /// What the sums begin with: those of the n-th scalar at `n × init_step`.
    pub init: *const f32,
    /// See `init`; zero gives all scalars the same (a bias).
    pub init_step: usize,
    /// Where the sums go: those of the n-th scalar to `n × sums_step`.
    pub sums: *mut f32,
    /// See `sums`.
    pub sums_step: usize,
}

/// The micro-kernel for one shape of tile.
pub type TileKernel = unsafe fn(&Tile<'_>);

/// Transposes any number of rows and columns; see [`Vector::transpose`].
pub type TransposeKernel = unsafe fn(*const f32, usize, usize, usize, *mut f32, *const usize);

/// Copies `count` numbers that lie `step` apart into a dense row.
pub type RowKernel = unsafe fn(*const f32, usize, usize, *mut f32);

/// Copies rows of `count` numbers: from, its step, to, its step, count, rows.
pub type RowsKernel = unsafe fn(*const f32, usize, *mut f32, usize, usize, usize);

/// Rows of a depthwise result.
#[derive(Debug, Clone, Copy)]
pub struct Rows {
    /// The source's numbers that the taps count from.
    pub x: *const f32,
    /// From one row's to the next's.
    pub x_step: usize,
    /// The results.
    pub to: *mut f32,
    /// From one row of results to the next.
    pub to_step: usize,
    /// Results of a row.
    pub count: usize,
    /// How many rows.
    pub rows: usize,
}

/// Depthwise rows: `to[i] = bias + Σ weight × x[offset + i]` over the taps. Reads whole vectors.
pub type CorrelateKernel = unsafe fn(&Rows, &[(usize, f32)], f32);

/// A pixel of a depthwise result, channels together: `to[c] = bias[c] + Σ w[tap × w_step + c] × x[offset + c]` over
/// taps (offset, tap).
pub type CorrelateChannelsKernel =
    unsafe fn(*const f32, &[(isize, usize)], *const f32, usize, *const f32, usize, *mut f32);

/// A row's share of a depthwise weight gradient: lane by lane `sums[tap] += Σ dy[i] × x[offset(tap) + i]`.
pub type ProductsKernel = unsafe fn(*const f32, *const f32, &[usize], usize, *mut f32);

/// The same with channels together: `sums[c] += Σ dy[i × dy_step + c] × x[i × x_step + c]`.
pub type ProductsChannelsKernel = unsafe fn(*const f32, usize, *const f32, usize, usize, usize, *mut f32);

/// The most vectors of one tile.
pub const MAX_VECTORS: usize = 4;
/// The most scalars of one tile.
pub const MAX_SCALARS: usize = 28;
/// The rows that the scalars of a tile may lie in: the fewest first.
pub const TILE_ROWS: [usize; 3] = [1, 2, 4];
/// The distance of scalars that has tiles of its own, besides one: that of pixels with a full block of channels.
pub const COMMON_PITCH: usize = 64;

/// The kernels of one instruction set.
pub struct Kernels {
    /// Numbers in a vector.
    pub lanes: usize,
    /// The scalars that the registers hold with that many vectors (index 0 is for none).
    scalars: [usize; MAX_VECTORS + 1],
    /// Tiles by vectors, rows and scalars of a row.
    tiles: fn(usize, usize, usize) -> Option<TileKernel>,
    /// Tiles whose scalars lie [`COMMON_PITCH`] apart.
    common_tiles: fn(usize, usize, usize) -> Option<TileKernel>,
    /// Tiles whose scalars lie apart in any other way.
    pitched_tiles: fn(usize, usize, usize) -> Option<TileKernel>,
    /// Transposition.
    pub transpose: TransposeKernel,
    /// Copying of a row.
    pub row: RowKernel,
    /// Copying of rows.
    pub rows: RowsKernel,
    /// Adds `count` numbers to others.
    pub add: unsafe fn(*const f32, *mut f32, usize),
    /// Depthwise rows.
    pub correlate: CorrelateKernel,
    /// Depthwise pixels.
    pub correlate_channels: CorrelateChannelsKernel,
    /// Depthwise weight gradients by rows.
    pub products: ProductsKernel,
    /// Depthwise weight gradients by pixels.
    pub products_channels: ProductsChannelsKernel,
}

impl Kernels {
    /// The kernels of an instruction set, which the machine must have: [`Isa`] is only made where it does.
    pub fn of(isa: Isa) -> &'static Kernels {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => &avx512::KERNELS,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => &avx2::KERNELS,
            _ => &portable::KERNELS,
        }
    }

    /// The most scalars in each of so many rows of a tile with that many vectors; none if there is no such tile.
    pub fn most_scalars(&self, vectors: usize, rows: usize) -> usize {
        match rows {
            1 | 2 => self.scalars[vectors] / rows,
            4 if vectors == 1 => self.scalars[vectors] / rows,
            _ => 0,
        }
    }

    /// The micro-kernel for so many vectors and rows of scalars, and the distance of neighbouring scalars.
    ///
    /// # Panics
    /// When there is no such tile: see [`Kernels::most_scalars`].
    pub fn tile(&self, vectors: usize, rows: usize, scalars: usize, pitch: usize) -> TileKernel {
        let tiles = match pitch {
            1 => self.tiles,
            COMMON_PITCH => self.common_tiles,
            _ => self.pitched_tiles,
        };
        tiles(vectors, rows, scalars).expect("the tile fits the registers")
    }
}

/// # Safety
/// Inlined where the features of `V` are on; all pointers of the tile are good for what its fields describe.
#[inline(always)]
unsafe fn tile<V: Vector, const R: usize, const P: usize, const VECTORS: usize>(tile: &Tile<'_>, pitch: usize) {
    // SAFETY: the function's own conditions.
    unsafe {
        let mut sums = [[[V::zero(); VECTORS]; P]; R];
        for (n, of_scalar) in sums.as_flattened_mut().iter_mut().enumerate() {
            for (v, sum) in of_scalar.iter_mut().enumerate() {
                *sum = V::load(tile.init.add(n * tile.init_step + v * V::LANES));
            }
        }
        for run in tile.runs {
            let mut x = tile.x.add(run.x);
            let mut w = tile.w.add(run.w);
            for _ in 0..tile.count {
                let mut vectors = [V::zero(); VECTORS];
                for (v, vector) in vectors.iter_mut().enumerate() {
                    *vector = V::load(w.add(v * V::LANES));
                }
                for (r, of_row) in sums.iter_mut().enumerate() {
                    for (p, of_scalar) in of_row.iter_mut().enumerate() {
                        let scalar = V::splat(*x.add(r * tile.row_step + p * pitch));
                        for (sum, vector) in of_scalar.iter_mut().zip(vectors) {
                            *sum = scalar.multiply_add(vector, *sum);
                        }
                    }
                }
                // The last step moves past the end of what is read: not an `add`, which may only stay inside.
                x = x.wrapping_add(tile.x_step);
                w = w.wrapping_add(tile.w_step);
            }
        }
        for (n, of_scalar) in sums.as_flattened().iter().enumerate() {
            for (v, sum) in of_scalar.iter().enumerate() {
                sum.store(tile.sums.add(n * tile.sums_step + v * V::LANES));
            }
        }
    }
}

/// # Safety
/// As [`Vector::transpose`], for any number of rows and columns.
#[inline(always)]
unsafe fn transpose<V: Vector>(
    from: *const f32,
    row_step: usize,
    rows: usize,
    columns: usize,
    to: *mut f32,
    offsets: *const usize,
) {
    let mut i = 0;
    while i < rows {
        let mut j = 0;
        while j < columns {
            // SAFETY: blocks of the same rows and columns.
            unsafe {
                V::transpose(
                    from.add(i * row_step + j),
                    row_step,
                    (rows - i).min(V::LANES),
                    (columns - j).min(V::LANES),
                    to.add(i),
                    offsets.add(j),
                );
            }
            j += V::LANES;
        }
        i += V::LANES;
    }
}

/// # Safety
/// `from` is good for `(count - 1) × step + 1` numbers, `to` for `count`; the features of `V` are on.
#[inline(always)]
unsafe fn row<V: Vector>(from: *const f32, step: usize, count: usize, to: *mut f32) {
    let mut i = 0;
    // SAFETY: the loops stay below `count`; `load_even` reads one number less than two vectors, the last of which is
    // the last number of the row at most.
    unsafe {
        match step {
            1 => {
                while i + V::LANES <= count {
                    V::load(from.add(i)).store(to.add(i));
                    i += V::LANES;
                }
                if i < count {
                    V::load_part(from.add(i), count - i).store_part(to.add(i), count - i);
                }
                return;
            }
            2 => {
                while i + V::LANES <= count {
                    V::load_even(from.add(2 * i)).store(to.add(i));
                    i += V::LANES;
                }
            }
            _ => {}
        }
        while i < count {
            *to.add(i) = *from.add(i * step);
            i += 1;
        }
    }
}

/// # Safety
/// Both pointers are good for `count` numbers in each of the rows; the features of `V` are on.
#[inline(always)]
unsafe fn rows<V: Vector>(from: *const f32, from_step: usize, to: *mut f32, to_step: usize, count: usize, rows: usize) {
    for r in 0..rows {
        // SAFETY: one of the rows.
        unsafe { row::<V>(from.add(r * from_step), 1, count, to.add(r * to_step)) };
    }
}

/// # Safety
/// Both pointers are good for `count` numbers; the features of `V` are on.
#[inline(always)]
unsafe fn add<V: Vector>(from: *const f32, to: *mut f32, count: usize) {
    let mut i = 0;
    // SAFETY: the loops stay below `count`.
    unsafe {
        while i + V::LANES <= count {
            V::load(to.add(i)).add(V::load(from.add(i))).store(to.add(i));
            i += V::LANES;
        }
        while i < count {
            *to.add(i) += *from.add(i);
            i += 1;
        }
    }
}

/// # Safety
/// The features of `V` are on. At every tap of every row `x` is good for `count` numbers rounded up to whole vectors,
/// `to` for `count` in every row.
#[inline(always)]
unsafe fn correlate<V: Vector>(rows: &Rows, taps: &[(usize, f32)], bias: f32) {
    // SAFETY: blocks of the same rows and columns.
    unsafe {
        let mut row = 0;
        while row < rows.rows {
            let mut i = 0;
            while i < rows.count {
                let left = rows.count - i;
                match (rows.rows - row >= 4, left > V::LANES) {
                    (true, true) => correlate_block::<V, 4, 2>(rows, row, i, taps, bias),
                    (true, false) => correlate_block::<V, 4, 1>(rows, row, i, taps, bias),
                    (false, true) => correlate_block::<V, 1, 2>(rows, row, i, taps, bias),
                    (false, false) => correlate_block::<V, 1, 1>(rows, row, i, taps, bias),
                }
                i += 2 * V::LANES;
            }
            row += if rows.rows - row >= 4 { 4 } else { 1 };
        }
    }
}

/// # Safety
/// As [`correlate`], for `R` rows and `VECTORS` vectors from there on.
#[inline(always)]
unsafe fn correlate_block<V: Vector, const R: usize, const VECTORS: usize>(
    rows: &Rows,
    row: usize,
    column: usize,
    taps: &[(usize, f32)],
    bias: f32,
) {
    // SAFETY: the function's own conditions.
    unsafe {
        let mut sums = [[V::splat(bias); VECTORS]; R];
        let x = rows.x.add(row * rows.x_step + column);
        for &(offset, weight) in taps {
            let weight = V::splat(weight);
            for (r, of_row) in sums.iter_mut().enumerate() {
                for (v, sum) in of_row.iter_mut().enumerate() {
                    *sum = weight.multiply_add(V::load(x.add(offset + r * rows.x_step + v * V::LANES)), *sum);
                }
            }
        }
        for (r, of_row) in sums.iter().enumerate() {
            for (v, sum) in of_row.iter().enumerate() {
                let i = column + v * V::LANES;
                sum.store_part(rows.to.add((row + r) * rows.to_step + i), (rows.count - i).min(V::LANES));
            }
        }
    }
}

/// # Safety
/// The features of `V` are on. At every tap `x` and `w` are good for `channels` numbers, and so are `bias` and `to`.
#[inline(always)]
unsafe fn correlate_channels<V: Vector>(
    x: *const f32,
    taps: &[(isize, usize)],
    w: *const f32,
    w_step: usize,
    bias: *const f32,
    channels: usize,
    to: *mut f32,
) {
    let mut c = 0;
    // SAFETY: all accesses stay below `channels`. The pixel that offsets count from may lie outside of the source: only
    // with an offset added is it a pointer into it, so wrapping arithmetic.
    unsafe {
        while c < channels {
            let left = channels - c;
            let (x, w, bias, to) = (x.wrapping_add(c), w.add(c), bias.add(c), to.add(c));
            match left.div_ceil(V::LANES) {
                1 => correlate_pixel::<V, 1>(x, taps, w, w_step, bias, left, to),
                2 => correlate_pixel::<V, 2>(x, taps, w, w_step, bias, left, to),
                3 => correlate_pixel::<V, 3>(x, taps, w, w_step, bias, left, to),
                _ => correlate_pixel::<V, 4>(x, taps, w, w_step, bias, left, to),
            }
            c += 4 * V::LANES;
        }
    }
}

/// # Safety
/// As [`correlate_channels`], for up to `VECTORS` vectors.
#[inline(always)]
unsafe fn correlate_pixel<V: Vector, const VECTORS: usize>(
    x: *const f32,
    taps: &[(isize, usize)],
    w: *const f32,
    w_step: usize,
    bias: *const f32,
    channels: usize,
    to: *mut f32,
) {
    // Only the last vector may be a part.
    let last = (channels - (VECTORS - 1) * V::LANES).min(V::LANES);
    // SAFETY: as above.
    unsafe {
        let load = |from: *const f32, v: usize| {
            let from = from.add(v * V::LANES);
            if v + 1 < VECTORS { V::load(from) } else { V::load_part(from, last) }
        };
        let mut sums = [V::zero(); VECTORS];
        for (v, sum) in sums.iter_mut().enumerate() {
            *sum = load(bias, v);
        }
        for &(offset, tap) in taps {
            let (x, w) = (x.wrapping_offset(offset), w.add(tap * w_step));
            for (v, sum) in sums.iter_mut().enumerate() {
                *sum = load(w, v).multiply_add(load(x, v), *sum);
            }
        }
        for (v, sum) in sums.iter().enumerate() {
            sum.store_part(to.add(v * V::LANES), if v + 1 < VECTORS { V::LANES } else { last });
        }
    }
}

/// # Safety
/// The features of `V` are on. `dy` and, at every offset, `x` are good for `count` numbers, `sums` for a vector for
/// each offset.
#[inline(always)]
unsafe fn products<V: Vector>(dy: *const f32, x: *const f32, offsets: &[usize], count: usize, sums: *mut f32) {
    const TOGETHER: usize = 3;
    let mut tap = 0;
    // SAFETY: all accesses stay below `count`; parts are loaded as such on both sides, because what lies behind them
    // might not be finite.
    unsafe {
        while tap < offsets.len() {
            let taps = (offsets.len() - tap).min(TOGETHER);
            // With fewer taps left the last is computed again, and not stored.
            let at: [usize; TOGETHER] = std::array::from_fn(|t| offsets[(tap + t).min(offsets.len() - 1)]);
            let mut of_taps = [V::zero(); TOGETHER];
            for (t, sum) in of_taps.iter_mut().enumerate().take(taps) {
                *sum = V::load(sums.add((tap + t) * V::LANES));
            }
            let mut i = 0;
            while i + V::LANES <= count {
                let dy = V::load(dy.add(i));
                for (sum, at) in of_taps.iter_mut().zip(at) {
                    *sum = dy.multiply_add(V::load(x.add(at + i)), *sum);
                }
                i += V::LANES;
            }
            if i < count {
                let dy = V::load_part(dy.add(i), count - i);
                for (sum, at) in of_taps.iter_mut().zip(at) {
                    *sum = dy.multiply_add(V::load_part(x.add(at + i), count - i), *sum);
                }
            }
            for (t, sum) in of_taps.iter().enumerate().take(taps) {
                sum.store(sums.add((tap + t) * V::LANES));
            }
            tap += taps;
        }
    }
}

/// # Safety
/// The features of `V` are on. `dy` and `x` are good for `count` pixels with `channels` numbers each, `sums` for
/// `channels`.
#[inline(always)]
unsafe fn products_channels<V: Vector>(
    dy: *const f32,
    dy_step: usize,
    x: *const f32,
    x_step: usize,
    count: usize,
    channels: usize,
    sums: *mut f32,
) {
    const TOGETHER: usize = 4;
    let mut c = 0;
    // SAFETY: all accesses stay below `count` and `channels`.
    unsafe {
        while c + TOGETHER * V::LANES <= channels {
            let mut of_channels = [V::zero(); TOGETHER];
            for (v, sum) in of_channels.iter_mut().enumerate() {
                *sum = V::load(sums.add(c + v * V::LANES));
            }
            for i in 0..count {
                let (dy, x) = (dy.add(i * dy_step + c), x.add(i * x_step + c));
                for (v, sum) in of_channels.iter_mut().enumerate() {
                    *sum = V::load(dy.add(v * V::LANES)).multiply_add(V::load(x.add(v * V::LANES)), *sum);
                }
            }
            for (v, sum) in of_channels.iter().enumerate() {
                sum.store(sums.add(c + v * V::LANES));
            }
            c += TOGETHER * V::LANES;
        }
        while c < channels {
            let part = (channels - c).min(V::LANES);
            let mut sum = V::load_part(sums.add(c), part);
            for i in 0..count {
                let x = V::load_part(x.add(i * x_step + c), part);
                sum = V::load_part(dy.add(i * dy_step + c), part).multiply_add(x, sum);
            }
            sum.store_part(sums.add(c), part);
            c += V::LANES;
        }
    }
}

/// One set of kernels: the wrappers with the features on, and the table of them. `registers` are the scalars that the
/// registers hold with one to four vectors; each entry of the list names vectors, rows, and the scalars of a row.
macro_rules! kernels {
    ($module:ident, $vector:ty, [$(#[$features:meta])?], $registers:expr, $($vectors:literal by $rows:literal [$($scalars:literal)*])*) => {
        mod $module {
            use super::*;

            /// # Safety
            /// The machine has the features; see [`super::tile`].
            $(#[$features])?
            unsafe fn tile<const R: usize, const P: usize, const VECTORS: usize>(tile: &Tile<'_>) {
                // SAFETY: the same conditions.
                unsafe { super::tile::<$vector, R, P, VECTORS>(tile, 1) }
            }

            /// # Safety
            /// The machine has the features; see [`super::tile`].
            $(#[$features])?
            unsafe fn pitched_tile<const R: usize, const P: usize, const VECTORS: usize>(tile: &Tile<'_>) {
                // SAFETY: the same conditions.
                unsafe { super::tile::<$vector, R, P, VECTORS>(tile, tile.pitch) }
            }

            /// # Safety
            /// The machine has the features; see [`super::tile`].
            $(#[$features])?
            unsafe fn common_tile<const R: usize, const P: usize, const VECTORS: usize>(tile: &Tile<'_>) {
                // SAFETY: the same conditions.
                unsafe { super::tile::<$vector, R, P, VECTORS>(tile, COMMON_PITCH) }
            }

            /// # Safety
            /// The machine has the features; see [`super::transpose`].
            $(#[$features])?
            unsafe fn transpose(
                from: *const f32,
                row_step: usize,
                rows: usize,
                columns: usize,
                to: *mut f32,
                offsets: *const usize,
            ) {
                // SAFETY: the same conditions.
                unsafe { super::transpose::<$vector>(from, row_step, rows, columns, to, offsets) }
            }

            /// # Safety
            /// The machine has the features; see [`super::row`].
            $(#[$features])?
            unsafe fn row(from: *const f32, step: usize, count: usize, to: *mut f32) {
                // SAFETY: the same conditions.
                unsafe { super::row::<$vector>(from, step, count, to) }
            }

            /// # Safety
            /// The machine has the features; see [`super::rows`].
            $(#[$features])?
            unsafe fn rows(
                from: *const f32,
                from_step: usize,
                to: *mut f32,
                to_step: usize,
                count: usize,
                rows: usize,
            ) {
                // SAFETY: the same conditions.
                unsafe { super::rows::<$vector>(from, from_step, to, to_step, count, rows) }
            }

            /// # Safety
            /// The machine has the features; see [`super::add`].
            $(#[$features])?
            unsafe fn add(from: *const f32, to: *mut f32, count: usize) {
                // SAFETY: the same conditions.
                unsafe { super::add::<$vector>(from, to, count) }
            }

            /// # Safety
            /// The machine has the features; see [`super::correlate`].
            $(#[$features])?
            unsafe fn correlate(rows: &Rows, taps: &[(usize, f32)], bias: f32) {
                // SAFETY: the same conditions.
                unsafe { super::correlate::<$vector>(rows, taps, bias) }
            }

            /// # Safety
            /// The machine has the features; see [`super::correlate_channels`].
            $(#[$features])?
            unsafe fn correlate_channels(
                x: *const f32,
                taps: &[(isize, usize)],
                w: *const f32,
                w_step: usize,
                bias: *const f32,
                channels: usize,
                to: *mut f32,
            ) {
                // SAFETY: the same conditions.
                unsafe { super::correlate_channels::<$vector>(x, taps, w, w_step, bias, channels, to) }
            }

            /// # Safety
            /// The machine has the features; see [`super::products`].
            $(#[$features])?
            unsafe fn products(dy: *const f32, x: *const f32, offsets: &[usize], count: usize, sums: *mut f32) {
                // SAFETY: the same conditions.
                unsafe { super::products::<$vector>(dy, x, offsets, count, sums) }
            }

            /// # Safety
            /// The machine has the features; see [`super::products_channels`].
            $(#[$features])?
            unsafe fn products_channels(
                dy: *const f32,
                dy_step: usize,
                x: *const f32,
                x_step: usize,
                count: usize,
                channels: usize,
                sums: *mut f32,
            ) {
                // SAFETY: the same conditions.
                unsafe { super::products_channels::<$vector>(dy, dy_step, x, x_step, count, channels, sums) }
            }

            fn tiles(vectors: usize, rows: usize, scalars: usize) -> Option<TileKernel> {
                match (vectors, rows, scalars) {
                    $($(($vectors, $rows, $scalars) => Some(tile::<$rows, $scalars, $vectors>),)*)*
                    _ => None,
                }
            }

            fn common_tiles(vectors: usize, rows: usize, scalars: usize) -> Option<TileKernel> {
                match (vectors, rows, scalars) {
                    $($(($vectors, $rows, $scalars) => Some(common_tile::<$rows, $scalars, $vectors>),)*)*
                    _ => None,
                }
            }

            fn pitched_tiles(vectors: usize, rows: usize, scalars: usize) -> Option<TileKernel> {
                match (vectors, rows, scalars) {
                    $($(($vectors, $rows, $scalars) => Some(pitched_tile::<$rows, $scalars, $vectors>),)*)*
                    _ => None,
                }
            }

            pub static KERNELS: Kernels = Kernels {
                lanes: <$vector>::LANES,
                scalars: $registers,
                tiles,
                common_tiles,
                pitched_tiles,
                transpose,
                row,
                rows,
                add,
                correlate,
                correlate_channels,
                products,
                products_channels,
            };
        }
    };
}

// 32 registers: sums, the vectors, and one for the scalar (with one vector the scalar is a memory operand).
#[cfg(target_arch = "x86_64")]
kernels!(
    avx512, Avx512, [#[target_feature(enable = "avx512f")]], [0, 28, 14, 9, 6],
    1 by 1 [1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28]
    1 by 2 [1 2 3 4 5 6 7 8 9 10 11 12 13 14]
    1 by 4 [1 2 3 4 5 6 7]
    2 by 1 [1 2 3 4 5 6 7 8 9 10 11 12 13 14]
    2 by 2 [1 2 3 4 5 6 7]
    3 by 1 [1 2 3 4 5 6 7 8 9]
    3 by 2 [1 2 3 4]
    4 by 1 [1 2 3 4 5 6]
    4 by 2 [1 2 3]
);
// 16 registers, and the scalar always takes one.
#[cfg(target_arch = "x86_64")]
kernels!(
    avx2, Avx2, [#[target_feature(enable = "avx2,fma")]], [0, 12, 6, 4, 2],
    1 by 1 [1 2 3 4 5 6 7 8 9 10 11 12]
    1 by 2 [1 2 3 4 5 6]
    1 by 4 [1 2 3]
    2 by 1 [1 2 3 4 5 6]
    2 by 2 [1 2 3]
    3 by 1 [1 2 3 4]
    3 by 2 [1 2]
    4 by 1 [1 2]
    4 by 2 [1]
);
// Eight numbers are two registers of the baseline, which has 16.
kernels!(
    portable, Portable, [], [0, 5, 3, 1, 1],
    1 by 1 [1 2 3 4 5]
    1 by 2 [1 2]
    1 by 4 [1]
    2 by 1 [1 2 3]
    2 by 2 [1]
    3 by 1 [1]
    4 by 1 [1]
);
