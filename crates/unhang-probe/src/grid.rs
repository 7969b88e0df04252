//! The grid of the reports ("the seeds", `docs/internals/seeds.md`): the channels and sizes that they cover.

use unhang_conv::{Problem, Specification};

/// The input and output channels in the reports.
pub const CHANNELS: [(i64, i64); 7] = [(1, 32), (3, 16), (3, 64), (16, 32), (32, 64), (64, 64), (64, 128)];
/// Sizes on both sides of every limit in the reports: 32, 42, 48 and 64.
pub const SIZES: [i64; 7] = [32, 42, 44, 48, 64, 128, 224];

/// The convolutions of the grid, small ones first: forward, fp32, 3×3, one image, as in the reports.
pub fn problems() -> Vec<Problem> {
    let cell = |size: i64, in_channels: i64, out_channels: i64| {
        let specification = Specification {
            in_channels,
            out_channels,
            in_size: [size, size],
            kernel: [3, 3],
            padding: [1, 1],
            ..Specification::default()
        };
        Problem::new(specification).expect("the grid's own convolutions are valid")
    };
    SIZES.iter().flat_map(|&size| CHANNELS.map(|(from, to)| cell(size, from, to))).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_grid_is_whole() {
        let problems = super::problems();
        assert_eq!(problems.len(), 49);
        assert_eq!(problems[0].to_string(), "forward:f32:nchw:1x1x32x32:32x3x3:s1x1:p1x1:d1x1:g1");
    }
}
