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

/// One call of the micro-kernel: `P` scalars × `V` vectors of sums, for every step of every run
/// `sum[p][v] += x[p × pitch] × w[v]`, after which `x` and `w` move on by their steps.
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
    /// From one scalar of a step to the next; used by the pitched kernels, one in the others.
    pub pitch: usize,
    /// From one step's first scalar to the next's.
    pub x_step: usize,
    /// From one step's first vector to the next's.
    pub w_step: usize,
    /// What the sums begin with: those of scalar `p` at `p × init_step`.
    pub init: *const f32,
    /// See `init`; zero gives all scalars the same (a bias).
    pub init_step: usize,
    /// Where the sums go: those of scalar `p` to `p × sums_step`.
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

/// The most vectors of one tile.
pub const MAX_VECTORS: usize = 4;
/// The most scalars of one tile.
pub const MAX_SCALARS: usize = 28;

/// The kernels of one instruction set.
pub struct Kernels {
    /// Numbers in a vector.
    pub lanes: usize,
    /// The most scalars of a tile with that many vectors (index 0 is for none): as many as the registers hold.
    pub most_scalars: [usize; MAX_VECTORS + 1],
    /// Tiles by vectors and scalars.
    tiles: fn(usize, usize) -> Option<TileKernel>,
    /// Tiles whose scalars lie apart.
    pitched_tiles: fn(usize, usize) -> Option<TileKernel>,
    /// Transposition.
    pub transpose: TransposeKernel,
    /// Copying of rows.
    pub row: RowKernel,
    /// Adds `count` numbers to others.
    pub add: unsafe fn(*const f32, *mut f32, usize),
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

    /// The micro-kernel for that many scalars and vectors.
    ///
    /// # Panics
    /// When the registers do not hold such a tile: see [`Kernels::most_scalars`].
    pub fn tile(&self, scalars: usize, vectors: usize) -> TileKernel {
        (self.tiles)(vectors, scalars).expect("the tile fits the registers")
    }

    /// The same for scalars that lie apart.
    ///
    /// # Panics
    /// As [`Kernels::tile`].
    pub fn pitched_tile(&self, scalars: usize, vectors: usize) -> TileKernel {
        (self.pitched_tiles)(vectors, scalars).expect("the tile fits the registers")
    }
}

/// # Safety
/// Inlined where the features of `V` are on; all pointers of the tile are good for what its fields describe.
#[inline(always)]
unsafe fn tile<V: Vector, const P: usize, const VECTORS: usize>(tile: &Tile<'_>, pitch: usize) {
    // SAFETY: the function's own conditions.
    unsafe {
        let mut sums = [[V::zero(); VECTORS]; P];
        for (p, of_scalar) in sums.iter_mut().enumerate() {
            for (v, sum) in of_scalar.iter_mut().enumerate() {
                *sum = V::load(tile.init.add(p * tile.init_step + v * V::LANES));
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
                for (p, of_scalar) in sums.iter_mut().enumerate() {
                    let scalar = V::splat(*x.add(p * pitch));
                    for (sum, vector) in of_scalar.iter_mut().zip(vectors) {
                        *sum = scalar.multiply_add(vector, *sum);
                    }
                }
                // The last step moves past the end of what is read: not an `add`, which may only stay inside.
                x = x.wrapping_add(tile.x_step);
                w = w.wrapping_add(tile.w_step);
            }
        }
        for (p, of_scalar) in sums.iter().enumerate() {
            for (v, sum) in of_scalar.iter().enumerate() {
                sum.store(tile.sums.add(p * tile.sums_step + v * V::LANES));
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

/// One set of kernels: the wrappers with the features on, and the table of them. The lists of scalars say which tiles
/// are compiled for one, two, three and four vectors; the last of each is the largest.
macro_rules! kernels {
    ($module:ident, $vector:ty, $(#[$features:meta])?, [$($one:literal)*], [$($two:literal)*], [$($three:literal)*], [$($four:literal)*]) => {
        mod $module {
            use super::*;

            /// # Safety
            /// The machine has the features; see [`super::tile`].
            $(#[$features])?
            unsafe fn tile<const P: usize, const VECTORS: usize>(tile: &Tile<'_>) {
                // SAFETY: the same conditions.
                unsafe { super::tile::<$vector, P, VECTORS>(tile, 1) }
            }

            /// # Safety
            /// The machine has the features; see [`super::tile`].
            $(#[$features])?
            unsafe fn pitched_tile<const P: usize, const VECTORS: usize>(tile: &Tile<'_>) {
                // SAFETY: the same conditions.
                unsafe { super::tile::<$vector, P, VECTORS>(tile, tile.pitch) }
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
            /// The machine has the features; see [`super::add`].
            $(#[$features])?
            unsafe fn add(from: *const f32, to: *mut f32, count: usize) {
                // SAFETY: the same conditions.
                unsafe { super::add::<$vector>(from, to, count) }
            }

            fn tiles(vectors: usize, scalars: usize) -> Option<TileKernel> {
                match (vectors, scalars) {
                    $((1, $one) => Some(tile::<$one, 1>),)*
                    $((2, $two) => Some(tile::<$two, 2>),)*
                    $((3, $three) => Some(tile::<$three, 3>),)*
                    $((4, $four) => Some(tile::<$four, 4>),)*
                    _ => None,
                }
            }

            fn pitched_tiles(vectors: usize, scalars: usize) -> Option<TileKernel> {
                match (vectors, scalars) {
                    $((1, $one) => Some(pitched_tile::<$one, 1>),)*
                    $((2, $two) => Some(pitched_tile::<$two, 2>),)*
                    $((3, $three) => Some(pitched_tile::<$three, 3>),)*
                    $((4, $four) => Some(pitched_tile::<$four, 4>),)*
                    _ => None,
                }
            }

            const fn last(of: &[usize]) -> usize {
                of[of.len() - 1]
            }

            pub static KERNELS: Kernels = Kernels {
                lanes: <$vector>::LANES,
                most_scalars: [0, last(&[$($one),*]), last(&[$($two),*]), last(&[$($three),*]), last(&[$($four),*])],
                tiles,
                pitched_tiles,
                transpose,
                row,
                add,
            };
        }
    };
}

// 32 registers: sums, the vectors, and one for the scalar (with one vector the scalar is a memory operand).
#[cfg(target_arch = "x86_64")]
kernels!(
    avx512, Avx512, #[target_feature(enable = "avx512f")],
    [1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28],
    [1 2 3 4 5 6 7 8 9 10 11 12 13 14],
    [1 2 3 4 5 6 7 8 9],
    [1 2 3 4 5 6]
);
// 16 registers, and the scalar always takes one.
#[cfg(target_arch = "x86_64")]
kernels!(avx2, Avx2, #[target_feature(enable = "avx2,fma")], [1 2 3 4 5 6 7 8 9 10 11 12], [1 2 3 4 5 6], [1 2 3 4], [1 2]);
// Eight numbers are two registers of the baseline, which has 16.
kernels!(portable, Portable, , [1 2 3 4 5], [1 2 3], [1], [1]);
