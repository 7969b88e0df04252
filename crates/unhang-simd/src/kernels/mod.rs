//! The kernels, written once over [`Vector`] and compiled for each instruction set.
//!
//! A set of kernels is a table of functions ([`Kernels`]); drivers take one and are ordinary code. Each entry is a
//! wrapper that carries the target features and into which the generic body is inlined.

mod arguments;
mod axes;
mod copy;
mod depthwise;
mod lines;
mod pixel_rows;
mod planes;
mod tile;
mod together;
mod winograd;

use crate::isa::Isa;
#[cfg(target_arch = "x86_64")]
use crate::vector::{Avx2, Avx512};
use crate::vector::{Portable, Vector};
pub use arguments::{
    CorrelateChannelsKernel, CorrelateKernel, CorrelateRowKernel, GradientLine, GradientLineKernel, GradientPlanes,
    GradientProductsKernel, GradientRows, MOST_TAPS, PackingTile, PackingTileKernel, PaddedRows, PixelRow, Pixels,
    PlaneProducts, PlaneProductsKernel, ProductsChannelsKernel, ProductsKernel, ProductsKernelOfElement,
    ProductsTogetherKernel, RowKernel, Rows, RowsAheadKernel, RowsKernel, Run, TAP_COUNTS, TapColumn, Tile, TileKernel,
    TransposeKernel,
};
pub use axes::{AXIS_TILE, AxisFilters, AxisGradient, AxisResults, AxisSource, AxisTaps, axis_tile, pairs_for};
pub use pixel_rows::{FEWEST_PIXELS, TAP_COLUMNS};
pub use winograd::{
    ELEMENTS, Filters, GradientProducts, MOST_PLACES, PATCH, Products, ResultTiles, SourceTiles, WeightTiles,
};

/// The most vectors of one tile.
pub const MAX_VECTORS: usize = 4;
/// The most scalars of one tile.
pub const MAX_SCALARS: usize = 28;
/// The rows that the scalars of a tile may lie in: the fewest first.
pub const TILE_ROWS: [usize; 3] = [1, 2, 4];
/// The distance of scalars, other than one, that has separate tiles: that of pixels with a full block of channels.
pub const COMMON_PITCH: usize = 64;

/// The kernels of one instruction set.
pub struct Kernels {
    /// The instruction set.
    pub isa: Isa,
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
    /// Tiles of one row of neighbouring scalars that ask for vectors further ahead.
    streaming_tiles: fn(usize, usize) -> Option<TileKernel>,
    /// Tiles of one row of scalars that lie apart, which ask for scalars further ahead.
    fetching_tiles: fn(usize, usize) -> Option<TileKernel>,
    /// Streaming tiles that pack their vectors too.
    packing_tiles: fn(usize, usize) -> Option<PackingTileKernel>,
    /// Transposition.
    pub transpose: TransposeKernel,
    /// Copying of a row.
    pub row: RowKernel,
    /// Copying of rows.
    pub rows: RowsKernel,
    /// Copying of rows, while others are asked for.
    pub rows_ahead: RowsAheadKernel,
    /// Copying of rows with zeros around them.
    pub padded_rows: unsafe fn(&PaddedRows),
    /// Brings every second number and those between them together: even, odd, count of both, to.
    pub interleave: unsafe fn(*const f32, *const f32, usize, *mut f32),
    /// Adds `count` numbers to others.
    pub add: unsafe fn(*const f32, *mut f32, usize),
    /// Depthwise rows.
    pub correlate: CorrelateKernel,
    /// Depthwise pixels.
    pub correlate_channels: CorrelateChannelsKernel,
    /// Depthwise rows of results.
    pub correlate_row: CorrelateRowKernel,
    /// Depthwise weight gradients by rows.
    pub products: ProductsKernel,
    /// Depthwise weight gradients by pixels, tap by tap.
    pub products_channels: ProductsChannelsKernel,
    /// Depthwise weight gradients by pixels, all taps at a time.
    pub products_line: GradientLineKernel,
    /// Depthwise pixels with channels in whole vectors.
    pub correlate_together: CorrelateChannelsKernel,
    /// Depthwise weight gradients with channels in whole vectors.
    pub products_together: ProductsTogetherKernel,
    /// The most filters and places of [`PlaneProducts`] whose sums the registers hold.
    pub plane_products_tile: [usize; 2],
    /// Weight gradients with pixels in vectors, by filters and places.
    plane_products: fn(usize, usize) -> Option<PlaneProductsKernel>,
    /// What stands for this many numbers.
    pub fingerprint: unsafe fn(*const f32, usize) -> u64,
    /// Winograd: sums by vectors and scalars.
    element_products: fn(usize, usize) -> Option<ProductsKernelOfElement>,
    /// Winograd: tiles of the source.
    pub source_tiles: unsafe fn(&SourceTiles),
    /// Winograd: filters, and whether all are finite.
    pub filters: unsafe fn(&Filters) -> bool,
    /// Winograd: tiles of the result, and whether all are finite.
    pub result_tiles: unsafe fn(&ResultTiles) -> bool,
    /// Winograd: sums of weight gradients by vectors and scalars.
    gradient_products: fn(usize, usize) -> Option<GradientProductsKernel>,
    /// Winograd: tiles of the result's gradient.
    pub gradient_tiles: unsafe fn(&SourceTiles),
    /// Winograd: weight gradients, and whether all are finite.
    pub weight_tiles: unsafe fn(&WeightTiles) -> bool,
    /// Winograd along one axis: rows of the source.
    pub axis_source: unsafe fn(&AxisSource),
    /// Winograd along one axis: filters, and whether all are finite.
    pub axis_filters: unsafe fn(&AxisFilters) -> bool,
    /// Winograd along one axis: rows of the result, and whether all are finite.
    pub axis_results: unsafe fn(&AxisResults) -> bool,
    /// Winograd along one axis: rows of the result's gradient.
    pub axis_gradient: unsafe fn(&AxisGradient),
    /// Winograd along one axis: weight gradients, and whether all are finite.
    pub axis_taps: unsafe fn(&AxisTaps) -> bool,
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

    /// Kernels that do nothing, of the same shapes: for tests of what else drivers do.
    pub fn idle(&self) -> Kernels {
        fn tiles(_: usize, _: usize, _: usize) -> Option<TileKernel> {
            Some(|_| {})
        }
        Kernels {
            isa: self.isa,
            lanes: self.lanes,
            scalars: self.scalars,
            tiles,
            common_tiles: tiles,
            pitched_tiles: tiles,
            streaming_tiles: |_, _| Some(|_| {}),
            fetching_tiles: |_, _| Some(|_| {}),
            packing_tiles: |_, _| Some(|_| {}),
            transpose: |_, _, _, _, _, _| {},
            row: |_, _, _, _| {},
            rows: |_, _, _, _, _, _| {},
            rows_ahead: |_, _, _, _, _, _, _| {},
            padded_rows: |_| {},
            interleave: |_, _, _, _| {},
            add: |_, _, _| {},
            correlate: |_, _, _| {},
            correlate_channels: |_| {},
            correlate_row: |_| {},
            products: |_, _, _| {},
            products_channels: |_, _, _, _, _, _, _| {},
            products_line: |_| {},
            correlate_together: |_| {},
            products_together: |_, _, _| {},
            plane_products_tile: self.plane_products_tile,
            plane_products: |_, _| Some(|_| {}),
            fingerprint: |_, _| 0,
            element_products: |_, _| Some(|_| {}),
            source_tiles: |_| {},
            filters: |_| true,
            result_tiles: |_| true,
            gradient_products: |_, _| Some(|_| {}),
            gradient_tiles: |_| {},
            weight_tiles: |_| true,
            axis_source: |_| {},
            axis_filters: |_| true,
            axis_results: |_| true,
            axis_gradient: |_| {},
            axis_taps: |_| true,
        }
    }

    /// The most scalars in each of this many rows of a tile with that many vectors; none if there is no such tile.
    pub fn most_scalars(&self, vectors: usize, rows: usize) -> usize {
        match rows {
            1 | 2 => self.scalars[vectors] / rows,
            4 if vectors == 1 => self.scalars[vectors] / rows,
            _ => 0,
        }
    }

    /// The micro-kernel for this many vectors and rows of scalars, and the distance of neighbouring scalars.
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

    /// The micro-kernel for this many vectors and one row of neighbouring scalars that asks for what [`Tile::row_step`] names.
    ///
    /// # Panics
    /// When there is no such tile: see [`Kernels::most_scalars`].
    pub fn streaming_tile(&self, vectors: usize, scalars: usize) -> TileKernel {
        (self.streaming_tiles)(vectors, scalars).expect("the tile fits the registers")
    }

    /// The micro-kernel for this many vectors and one row of scalars that lie apart, which asks for what [`Tile::row_step`]
    /// names.
    ///
    /// # Panics
    /// When there is no such tile: see [`Kernels::most_scalars`].
    pub fn fetching_tile(&self, vectors: usize, scalars: usize) -> TileKernel {
        (self.fetching_tiles)(vectors, scalars).expect("the tile fits the registers")
    }

    /// The streaming micro-kernel, which packs its vectors too.
    ///
    /// # Panics
    /// When there is no such tile: see [`Kernels::most_scalars`].
    pub fn packing_tile(&self, vectors: usize, scalars: usize) -> PackingTileKernel {
        (self.packing_tiles)(vectors, scalars).expect("the tile fits the registers")
    }

    /// Sums of a weight gradient with pixels in vectors for this many filters and places.
    ///
    /// # Panics
    /// When there is no such kernel: see [`Kernels::plane_products_tile`].
    pub fn plane_products(&self, filters: usize, places: usize) -> PlaneProductsKernel {
        (self.plane_products)(filters, places).expect("the sums fit the registers")
    }

    /// Winograd's sums for this many vectors and tiles.
    ///
    /// # Panics
    /// When there is no such kernel: see [`Kernels::most_scalars`].
    pub fn element_products(&self, vectors: usize, scalars: usize) -> ProductsKernelOfElement {
        (self.element_products)(vectors, scalars).expect("the tiles fit the registers")
    }

    /// Winograd's sums of a weight gradient for this many vectors and source channels.
    ///
    /// # Panics
    /// When there is no such kernel: see [`Kernels::most_scalars`].
    pub fn gradient_products(&self, vectors: usize, scalars: usize) -> GradientProductsKernel {
        (self.gradient_products)(vectors, scalars).expect("the channels fit the registers")
    }
}

/// One kernel of a set: the body, which knows no features, called where they are on. `[CONSTANT …]` are the constants that the
/// body takes in addition to the vector, and `with` is a separate last argument.
macro_rules! kernel {
    (
        [$(#[$features:meta])?] $vector:ty;
        $name:ident [$($constant:ident)*] ($($argument:ident: $type:ty),*) $(-> $result:ty)?
            = $room:ident::$body:ident $(with $last:expr)?
    ) => {
        /// # Safety
        /// The machine has the features, and what the body asks for holds.
        $(#[$features])?
        unsafe fn $name<$(const $constant: usize),*>($($argument: $type),*) $(-> $result)? {
            // SAFETY: the same conditions.
            unsafe { super::$room::$body::<$vector $(, $constant)*>($($argument,)* $($last)?) }
        }
    };
}

/// One set of kernels: each body with the features on, and the table of them. `registers` are the scalars that the
/// registers hold with one to four vectors. Each entry of the list names vectors, rows, and the scalars of a row.
/// Behind it the same for sums of filters by places: the most, and the places that there are with each number of
/// filters.
macro_rules! kernels {
    ($module:ident, $vector:ident, [$(#[$features:meta])?], $registers:expr,
        $($vectors:literal by $rows:literal [$($scalars:literal)*])*;
        $places_tile:expr, $($filters:literal of [$($places:literal)*])*) => {
        mod $module {
            use super::*;

            kernel!([$(#[$features])?] $vector; tile [R P VECTORS] (tile: &Tile<'_>) = tile::tile with 1);
            kernel!([$(#[$features])?] $vector; pitched_tile [R P VECTORS] (tile: &Tile<'_>) = tile::tile with tile.pitch);
            kernel!([$(#[$features])?] $vector; common_tile [R P VECTORS] (tile: &Tile<'_>) = tile::tile with COMMON_PITCH);
            kernel!([$(#[$features])?] $vector; streaming_tile_of [P VECTORS] (tile: &Tile<'_>) = tile::streaming);
            kernel!([$(#[$features])?] $vector; fetching_tile_of [P VECTORS] (tile: &Tile<'_>) = tile::fetching);
            kernel!([$(#[$features])?] $vector; packing_tile_of [P VECTORS] (
                tile: &PackingTile<'_>
            ) = tile::packing);
            kernel!([$(#[$features])?] $vector; transpose [] (
                from: *const f32, row_step: usize, rows: usize, columns: usize, to: *mut f32, offsets: *const usize
            ) = copy::transpose);
            kernel!([$(#[$features])?] $vector; row [] (
                from: *const f32, step: usize, count: usize, to: *mut f32
            ) = copy::row);
            kernel!([$(#[$features])?] $vector; rows [] (
                from: *const f32, from_step: usize, to: *mut f32, to_step: usize, count: usize, rows: usize
            ) = copy::rows);
            kernel!([$(#[$features])?] $vector; rows_ahead [] (
                from: *const f32, from_step: usize, to: *mut f32, to_step: usize, count: usize, rows: usize, ahead: isize
            ) = copy::rows_ahead);
            kernel!([$(#[$features])?] $vector; padded_rows [] (rows: &PaddedRows) = copy::padded_rows);
            kernel!([$(#[$features])?] $vector; interleave [] (
                even: *const f32, odd: *const f32, count: usize, to: *mut f32
            ) = copy::interleave);
            kernel!([$(#[$features])?] $vector; add [] (from: *const f32, to: *mut f32, count: usize) = copy::add);
            kernel!([$(#[$features])?] $vector; correlate [] (
                rows: &Rows, columns: &[TapColumn], bias: f32
            ) = depthwise::correlate);
            kernel!([$(#[$features])?] $vector; correlate_channels [] (
                pixels: &Pixels<'_>
            ) = depthwise::correlate_channels);
            kernel!([$(#[$features])?] $vector; correlate_row [] (row: &PixelRow<'_>) = pixel_rows::correlate);
            kernel!([$(#[$features])?] $vector; products [] (
                rows: &GradientRows, offsets: &[usize], sums: *mut f32
            ) = depthwise::products);
            kernel!([$(#[$features])?] $vector; products_channels [] (
                dy: *const f32, dy_step: usize, x: *const f32, x_step: usize, count: usize, channels: usize, sums: *mut f32
            ) = depthwise::products_channels);
            kernel!([$(#[$features])?] $vector; products_line [] (line: &GradientLine<'_>) = lines::products);
            kernel!([$(#[$features])?] $vector; correlate_together [] (
                pixels: &Pixels<'_>
            ) = together::correlate);
            kernel!([$(#[$features])?] $vector; products_together [] (
                planes: &GradientPlanes, offsets: &[usize], sums: *mut f32
            ) = together::products);
            kernel!([$(#[$features])?] $vector; plane_products_of [F P] (
                products: &PlaneProducts
            ) = planes::products);
            kernel!([$(#[$features])?] $vector; products_of_element [P VECTORS] (
                products: &Products
            ) = winograd::products);
            kernel!([$(#[$features])?] $vector; source_tiles [] (tiles: &SourceTiles) = winograd::source);
            kernel!([$(#[$features])?] $vector; filters [] (filters: &Filters) -> bool = winograd::filters);
            kernel!([$(#[$features])?] $vector; result_tiles [] (tiles: &ResultTiles) -> bool = winograd::results);
            kernel!([$(#[$features])?] $vector; gradient_products_of [P VECTORS] (
                products: &GradientProducts
            ) = winograd::gradient_products);
            kernel!([$(#[$features])?] $vector; gradient_tiles [] (tiles: &SourceTiles) = winograd::gradient);
            kernel!([$(#[$features])?] $vector; weight_tiles [] (tiles: &WeightTiles) -> bool = winograd::weights);
            kernel!([$(#[$features])?] $vector; axis_source [] (rows: &AxisSource) = axes::source);
            kernel!([$(#[$features])?] $vector; axis_filters [] (filters: &AxisFilters) -> bool = axes::filters);
            kernel!([$(#[$features])?] $vector; axis_results [] (sums: &AxisResults) -> bool = axes::results);
            kernel!([$(#[$features])?] $vector; axis_gradient [] (rows: &AxisGradient) = axes::gradient);
            kernel!([$(#[$features])?] $vector; axis_taps [] (sums: &AxisTaps) -> bool = axes::taps);

            /// # Safety
            /// The machine has the features; see [`super::copy::fingerprint`].
            $(#[$features])?
            unsafe fn fingerprint(from: *const f32, count: usize) -> u64 {
                // SAFETY: the same conditions.
                unsafe { super::copy::fingerprint(from, count) }
            }

            fn plane_products(filters: usize, places: usize) -> Option<PlaneProductsKernel> {
                match (filters, places) {
                    $($(($filters, $places) => Some(plane_products_of::<$filters, $places>),)*)*
                    _ => None,
                }
            }

            fn gradient_products(vectors: usize, scalars: usize) -> Option<GradientProductsKernel> {
                match (vectors, 1, scalars) {
                    $($(($vectors, $rows, $scalars) => Some(gradient_products_of::<$scalars, $vectors>),)*)*
                    _ => None,
                }
            }

            fn element_products(vectors: usize, scalars: usize) -> Option<ProductsKernelOfElement> {
                match (vectors, 1, scalars) {
                    $($(($vectors, $rows, $scalars) => Some(products_of_element::<$scalars, $vectors>),)*)*
                    _ => None,
                }
            }

            fn streaming_tiles(vectors: usize, scalars: usize) -> Option<TileKernel> {
                match (vectors, 1, scalars) {
                    $($(($vectors, $rows, $scalars) => Some(streaming_tile_of::<$scalars, $vectors>),)*)*
                    _ => None,
                }
            }

            fn fetching_tiles(vectors: usize, scalars: usize) -> Option<TileKernel> {
                match (vectors, 1, scalars) {
                    $($(($vectors, $rows, $scalars) => Some(fetching_tile_of::<$scalars, $vectors>),)*)*
                    _ => None,
                }
            }

            fn packing_tiles(vectors: usize, scalars: usize) -> Option<PackingTileKernel> {
                match (vectors, 1, scalars) {
                    $($(($vectors, $rows, $scalars) => Some(packing_tile_of::<$scalars, $vectors>),)*)*
                    _ => None,
                }
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

            pub(super) static KERNELS: Kernels = Kernels {
                isa: Isa::$vector,
                lanes: <$vector>::LANES,
                scalars: $registers,
                tiles,
                common_tiles,
                pitched_tiles,
                streaming_tiles,
                fetching_tiles,
                packing_tiles,
                transpose,
                row,
                rows,
                rows_ahead,
                padded_rows,
                interleave,
                add,
                correlate,
                correlate_channels,
                correlate_row,
                products,
                products_channels,
                products_line,
                correlate_together,
                products_together,
                plane_products_tile: $places_tile,
                plane_products,
                fingerprint,
                element_products,
                source_tiles,
                filters,
                result_tiles,
                gradient_products,
                gradient_tiles,
                weight_tiles,
                axis_source,
                axis_filters,
                axis_results,
                axis_gradient,
                axis_taps,
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
    4 by 2 [1 2 3];
    [4, 6],
    1 of [1 2 3 4 5 6] 2 of [1 2 3 4 5 6] 3 of [1 2 3 4 5 6] 4 of [1 2 3 4 5 6]
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
    4 by 2 [1];
    [3, 4],
    1 of [1 2 3 4] 2 of [1 2 3 4] 3 of [1 2 3 4]
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
    4 by 1 [1];
    [2, 2],
    1 of [1 2] 2 of [1 2]
);
