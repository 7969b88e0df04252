//! The structures that kernels take by value behind their pointers, field for field as the `.cu` files declare them. A
//! test reads those files and compares.

use zerocopy::{Immutable, IntoBytes};

/// Division by a number that the host knows: (high(n × multiplier) + n) >> shift is n / value for 0 ≤ n < 2³¹.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoBytes, Immutable)]
pub struct Divisor {
    /// The multiplier.
    pub multiplier: u32,
    /// The shift.
    pub shift: u32,
    /// What is divided by.
    pub value: i32,
}

impl Divisor {
    /// The divisor for a number from 1 to 2³¹ - 1.
    pub fn new(value: usize) -> Divisor {
        let value = u32::try_from(value).unwrap_or(u32::MAX).clamp(1, i32::MAX as u32);
        let shift = 32 - (value - 1).leading_zeros();
        let multiplier = ((1u128 << 32) * ((1u128 << shift) - u128::from(value)) / u128::from(value) + 1) as u32;
        Divisor { multiplier, shift, value: value as i32 }
    }
}

impl Default for Divisor {
    /// Division by one.
    fn default() -> Divisor {
        Divisor::new(1)
    }
}

/// A field's type: where a kernel's fields differ in their endings only, an array of all.
macro_rules! field_type {
    ($type:ident) => { $type };
    ($type:ident $($ending:tt)+) => { [$type; [$(stringify!($ending)),+].len()] };
}

/// What a kernel calls a field, up to its ending.
#[cfg(test)]
macro_rules! stem {
    ($field:ident) => {
        stringify!($field)
    };
    ($field:ident $stem:ident) => {
        stringify!($stem)
    };
}

macro_rules! structures {
    ($($(#[$doc:meta])* $name:ident { $($field:ident $(($stem:ident))? $([$($ending:tt)+])?: $type:ident),* $(,)? })*) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, IntoBytes, Immutable)]
            #[allow(missing_docs, reason = "the kernels' sources say what their fields mean")]
            pub struct $name {
                $(pub $field: field_type!($type $($($ending)+)?)),*
            }

            #[cfg(test)]
            impl $name {
                /// Each field with its endings and its type.
                const DECLARED: Declared = (
                    stringify!($name),
                    &[$((stem!($field $($stem)?), &[$($(stringify!($ending)),+)?], stringify!($type))),*],
                );
            }
        )*
    };
}

#[cfg(test)]
const DIVISOR: Declared = ("Divisor", &[("multiplier", &[], "u32"), ("shift", &[], "u32"), ("value", &[], "i32")]);

#[cfg(test)]
type Declared = (&'static str, &'static [(&'static str, &'static [&'static str], &'static str)]);

macro_rules! shapes {
    ($($(#[$doc:meta])* $variant:ident($name:ident) { $($fields:tt)* })*) => {
        structures! { $($(#[$doc])* $name { $($fields)* })* }

        $(
            impl From<$name> for Shape {
                fn from(shape: $name) -> Shape {
                    Shape::$variant(shape)
                }
            }
        )*

        /// What a launch passes by value.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Shape {
            $($(#[$doc])* $variant($name)),*
        }

        impl Shape {
            /// The structure as the kernel takes it.
            pub fn bytes(&self) -> &[u8] {
                match self {
                    $(Shape::$variant(shape) => shape.as_bytes()),*
                }
            }
        }

        #[cfg(test)]
        const DECLARED: &[Declared] = &[DIVISOR, Scalar::DECLARED, PoolingAxis::DECLARED, $($name::DECLARED),*];
    };
}

impl Shape {
    /// What decides the way through a kernel's code, apart from sizes and strides.
    pub fn path(&self) -> Vec<i32> {
        match self {
            Shape::Reduction(shape) => vec![shape.lane_bits, shape.rows_first, shape.in_quads, shape.axes],
            Shape::Normalization(shape) => vec![shape.lane_bits, shape.in_quads],
            _ => Vec::new(),
        }
    }
}

structures! {
    /// A number of any type, as each kernel computes with it: the bits in single precision, and those in double precision.
    Scalar { single: u32, low: u32, high: u32 }
    /// An axis of a pooled tensor.
    PoolingAxis {
        input: i32, output: i32, window: i32, stride: i32, padding: i32, x: i32, y: i32, place: i32, by_stride: Divisor,
    }
}

impl From<f64> for Scalar {
    fn from(value: f64) -> Scalar {
        let bits = value.to_bits();
        Scalar { single: (value as f32).to_bits(), low: bits as u32, high: (bits >> 32) as u32 }
    }
}

shapes! {
    /// Of the plain kernels.
    Plain(PlainShape) {
        batch: i32, groups: i32, channels: i32, rows: i32,
        input[h w]: i32, output[h w]: i32,
        filter[h w]: i32, stride[h w]: i32, pad[h w]: i32, dilation[h w]: i32,
        channels_last: i32,
    }
    /// Of the implicit GEMM.
    Gemm(GemmShape) {
        batch: i32, source[h w]: i32, result[h w]: i32,
        groups: i32, reduced: i32, rows: i32,
        filter[h w]: i32, stride[h w]: i32, pad[h w]: i32, dilation[h w]: i32,
        backward: i32, phases[h w]: i32,
        source_step[h w]: i32, source_tap[h w]: i32, tap_step[h w]: i32,
        steps_per_split: i32, planes: i32, skip_empty: i32,
        by_row_tiles: Divisor, by_phases: Divisor, by_phases_w: Divisor, by_stride[h w]: Divisor,
        by_taps: Divisor, by_filter_w: Divisor, by_reduced: Divisor, by_image: Divisor, by_width: Divisor,
    }
    /// Of the kernel for few channels in the result.
    Narrow(NarrowShape) {
        batch: i32, source[h w]: i32, result[h w]: i32, strips: i32,
    }
    /// Of the kernel that reads straight into registers.
    Direct(DirectShape) {
        batch: i32, source[h w]: i32, result[h w]: i32,
        groups: i32, reduced: i32, rows: i32, threads: i32, channels_per_split: i32,
        by_width: Divisor, by_strips: Divisor, by_row_blocks: Divisor,
    }
    /// Of backward-weights.
    Weights(WeightsShape) {
        batch: i32, source[h w]: i32, gradient[h w]: i32,
        groups: i32, channels: i32, rows: i32,
        filter[h w]: i32, stride[h w]: i32, pad[h w]: i32, dilation[h w]: i32,
        steps_per_split: i32,
        by_image: Divisor, by_row: Divisor, by_row_tiles: Divisor, by_column_channels: Divisor, by_filter_w: Divisor,
    }
    /// Of the depthwise kernels.
    Depthwise(DepthwiseShape) {
        batch: i32, input[h w]: i32, output[h w]: i32,
        channels: i32, multiplier: i32, threads: i32, pixels_per_split: i32,
        by_image: Divisor, by_width: Divisor, by_strips: Divisor, by_lanes: Divisor, by_multiplier: Divisor,
    }
    /// Of the depthwise kernels in vectors.
    DepthwiseQuads(DepthwiseQuadsShape) {
        batch: i32, input[h w]: i32, output[h w]: i32,
        channels: i32, threads: i32, vectors_per_split: i32,
        by_image: Divisor, by_width: Divisor, by_strips: Divisor, by_channels: Divisor,
    }
    /// Of the depthwise kernels with large windows.
    DepthwiseLarge(DepthwiseLargeShape) {
        channels: i32, planes: i32, images: i32, images_per_split: i32,
        image[h w]: i32, window[h w]: i32, result[h w]: i32, pad[h w]: i32,
        turned: i32, by_channels: Divisor, by_tiles: Divisor, by_tiles_w: Divisor,
    }
    /// Of Winograd's transforms of images.
    Winograd(WinogradShape) {
        batch: i32, channels: i32, height: i32, width: i32, tiles: i32, padded_tiles: i32, pad[h w]: i32,
        by_image: Divisor, by_width: Divisor, by_lane: Divisor, by_dilation[h w]: Divisor,
    }
    /// Of Winograd's transform of the filter.
    WinogradFilter(WinogradFilterShape) {
        groups: i32, rows: i32, padded_rows: i32, reduced: i32, padded_reduced: i32,
        row_elements: i32, reduced_elements: i32, tap_elements: i32, turned: i32,
        by_padded_rows: Divisor,
    }
    /// Of Winograd's transform back to the filter's gradient.
    WinogradWeights(WinogradWeightsShape) { rows: i32, channels: i32, planes: i32 }
    /// Of Winograd's transforms of images for stride 2.
    Stride2(Stride2Shape) {
        batch: i32, channels: i32, height: i32, width: i32, tiles: i32, padded_tiles: i32, begin[h w]: i32,
        by_image: Divisor, by_width: Divisor, by_lane: Divisor,
    }
    /// Of its transform of the filter.
    Stride2Filter(Stride2FilterShape) {
        rows: i32, channels: i32, padded_rows: i32,
        row_elements: i32, channel_elements: i32, tap_elements: i32, turned: i32,
        by_lane: Divisor,
    }
    /// Of its transform back to the filter's gradient.
    Stride2Weights(Stride2WeightsShape) { rows: i32, channels: i32, planes: i32 }
    /// Of Winograd in one kernel.
    Fused(FusedShape) {
        batch: i32, source[h w]: i32, result[h w]: i32,
        reduced: i32, rows: i32, pad[h w]: i32, tiles: i32,
        by_image: Divisor, by_width: Divisor, by_row_tiles: Divisor,
    }
    /// Of its transform of the filter.
    FusedFilter(FusedFilterShape) {
        reduced: i32, rows: i32, row_elements: i32, reduced_elements: i32, turned: i32,
        by_padded_rows: Divisor,
    }
    /// Of the sum over planes.
    Reduce(ReduceShape) {
        elements: i32, planes: i32, phases: i32, planes_of_phases(planes)[0 1 2 3]: i32,
        by_channel_elements: Divisor, by_channels: Divisor,
        by_height: Divisor, by_width: Divisor, by_stride[h w]: Divisor,
    }
    /// Of the sum over planes of a filter's gradient.
    ReduceWeights(ReduceWeightsShape) { elements: i32, planes: i32, taps: i32, channels: i32, channels_last: i32 }
    /// Of the kernel that packs filters.
    Pack(PackShape) {
        rows: i32, padded_rows: i32, reduced: i32, padded_reduced: i32, taps: i32,
        row_elements: i32, channel_elements: i32, tap_elements: i32,
    }
    /// Of the kernel that puts patches in their places.
    Unpatch(UnpatchShape) {
        elements: i32, planes: i32, plane_elements: i32, channels: i32, grid[h w]: i32,
        filter[h w]: i32, pad[h w]: i32, channels_last: i32,
        by_width: Divisor, by_height: Divisor, by_channels: Divisor, by_stride[h w]: Divisor,
    }
    /// Of the kernel that puts windows one after the other.
    Patch(PatchShape) {
        elements: i32, image[h w]: i32, channels: i32, channels_last: i32,
        stride[h w]: i32, pad[h w]: i32,
        by_patch: Divisor, by_grid[h w]: Divisor, by_inner: Divisor, by_filter_w: Divisor,
    }
    /// Of the kernel that turns matrices over.
    Turn(TurnShape) { rows: i32, columns: i32 }
    /// Of the kernels on tensors of any strides.
    Strided(StridedShape) {
        elements: i32, from[0 1 2 3]: i32, to[0 1 2 3]: i32, by[1 2 3]: Divisor,
    }
    /// Of the kernel on planes of 3-d tensors.
    Planes(PlanesShape) {
        elements: i32, from_start: i32, to_start: i32, depth: i32, planes: i32,
        from[0 1 2 3 4 5]: i32, to[0 1 2 3 4 5]: i32, depths(depth)[0 1 2 3 4 5]: i32,
        by[1 2 3 4 5]: Divisor,
    }
    /// Of the kernels for batch normalisation.
    Normalization(NormalizationShape) {
        units: i32, count: i32, lane_bits: i32, chunks: i32, per_chunk: i32, in_quads: i32,
        by_unit_pixels: Divisor, by_pixels: Divisor,
        x[image channel pixel]: i32, y[image channel pixel]: i32, z[image channel pixel]: i32, parameter[channel pixel]: i32,
        scale_type: i32, bias_type: i32, mean_type: i32, variance_type: i32, activation: i32,
        alpha: Scalar, beta: Scalar, gamma: Scalar,
        epsilon: Scalar, momentum: Scalar, inverse_count: Scalar, unbiased: Scalar, x_factor: Scalar, z_factor: Scalar,
    }
    /// Of the kernels for pooling.
    Pooling(PoolingShape) {
        elements: i32, channels_last: i32,
        by_channels: Divisor, by_depth: Divisor, by_height: Divisor, by_width: Divisor,
        x[image channel]: i32, y[image channel]: i32,
        d: PoolingAxis, h: PoolingAxis, w: PoolingAxis,
        index_bits: i32, index_in_window: i32, taps: i32, inclusive: i32,
        inverse_taps: Scalar, alpha: Scalar, beta: Scalar,
    }
    /// Of the kernels for reductions.
    Reduction(ReductionShape) {
        units: i32, count: i32, lane_bits: i32, rows_first: i32, chunks: i32, per_chunk: i32, in_quads: i32, axes: i32,
        operation: i32, propagates: i32, y_type: i32,
        by_kept[1 2 3 4 5]: Divisor, x_kept[0 1 2 3 4 5]: i32, y_kept[0 1 2 3 4 5]: i32,
        by_reduced[1 2 3 4 5]: Divisor, x_reduced[0 1 2 3 4 5]: i32,
        inverse_count: Scalar, alpha: Scalar, beta: Scalar,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::sources::SourceFile;

    proptest! {
        #[test]
        fn divisors_divide(n in 0u32..0x8000_0000, value in 1u32..0x7fff_ffff) {
            for value in [value, value % 1000 + 1] {
                let Divisor { multiplier, shift, .. } = Divisor::new(value as usize);
                let high = (u64::from(n) * u64::from(multiplier)) >> 32;
                prop_assert_eq!((high + u64::from(n)) >> shift, u64::from(n / value));
            }
        }
    }

    /// `struct Name { int a, b; Divisor c; };` of a kernel's source, as names and types of Rust.
    fn structures(text: &str) -> BTreeMap<String, Vec<(String, String)>> {
        let code: Vec<&str> = text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect();
        let code = code.join("\n");
        let mut found = BTreeMap::new();
        for piece in code.split("struct ").skip(1) {
            let Some((name, rest)) = piece.split_once('{') else { continue };
            let Some((body, _)) = rest.split_once("};") else { continue };
            let mut fields = Vec::new();
            for declaration in body.split(';') {
                let Some((kind, names)) = declaration.trim().split_once(' ') else { continue };
                let kind = match kind {
                    "int" => "i32",
                    "unsigned" => "u32",
                    other => other,
                };
                fields.extend(names.split(',').map(|name| (name.trim().to_owned(), kind.to_owned())));
            }
            found.insert(name.trim().to_owned(), fields);
        }
        found
    }

    #[test]
    fn structures_are_those_of_the_kernels() {
        let declared: BTreeMap<String, Vec<(String, String)>> =
            SourceFile::ALL.iter().flat_map(|source| structures(&source.text())).collect();
        for (name, fields) in DECLARED {
            let names = |stem: &str, endings: &[&str]| match endings {
                [] => vec![stem.to_owned()],
                endings => endings.iter().map(|ending| format!("{stem}_{ending}")).collect(),
            };
            let each = fields.iter().flat_map(|(stem, endings, kind)| {
                names(stem, endings).into_iter().map(move |name| (name, (*kind).to_owned()))
            });
            let fields: Vec<(String, String)> = each.collect();
            assert_eq!(declared.get(*name), Some(&fields), "{name}");
        }
        let shapes = declared.keys().filter(|name| name.ends_with("Shape")).count();
        assert_eq!(shapes + 3, DECLARED.len(), "a structure of a kernel is missing here");
    }
}
