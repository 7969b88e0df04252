//! What a 3-d convolution accepts, what it refuses, and what it is folded into.

use unhang_conv::{ProblemError, Volume, VolumeSpecification};

fn base() -> VolumeSpecification {
    VolumeSpecification {
        batch: 2,
        in_channels: 4,
        in_size: [7, 8, 9],
        out_channels: 6,
        kernel: [3, 3, 2],
        padding: [1, 1, 0],
        ..Default::default()
    }
}

fn refused(change: impl FnOnce(&mut VolumeSpecification)) -> ProblemError {
    let mut spec = base();
    change(&mut spec);
    Volume::new(spec).expect_err("this makes no convolution")
}

#[test]
fn bad_numbers_are_named() {
    use ProblemError::*;
    assert_eq!(refused(|s| s.stride[0] = 0), NotPositive { name: "stride depth", value: 0 });
    assert_eq!(refused(|s| s.stride[2] = -3), NotPositive { name: "stride width", value: -3 });
    assert_eq!(refused(|s| s.padding[0] = -1), Negative { name: "padding depth", value: -1 });
    assert!(matches!(refused(|s| s.kernel[0] = 10), FilterLargerThanInput { axis: "depth", span: 10, padded: 9, .. }));
    assert_eq!(refused(|s| s.output_padding = [1, 0, 0]), OutputPaddingNotTransposed { output_padding: vec![1, 0, 0] });
    assert_eq!(
        refused(|s| {
            s.transposed = true;
            s.output_padding = [1, 0, 0];
        }),
        OutputPaddingTooLarge { axis: "depth", output_padding: 1, stride: 1 }
    );
    assert!(matches!(refused(|s| s.in_size[0] = i64::MAX), TooLarge { what: "input depth", .. }));
    let error = refused(|s| {
        s.in_size = [2_000_000_000, 2_000_000_000, 9];
        s.kernel = [1, 1, 1];
    });
    assert!(matches!(error, TooLarge { what: "the input tensor", .. }), "{error}");
}

#[test]
fn a_key_reads_as_what_wrote_it() {
    for key in [
        "forward:f32:ncdhw:1x16x8x64x64:32x3x3x3:s1x1x1:p1x1x1:d1x1x1:g1",
        "backward-data:f16:ndhwc:2x4x5x6x7:6x3x1x2:s2x1x3:p1x0x2:d1x2x1:g2",
        "backward-weights:bf16:ncdhw:2x4x5x6x7:6x3x1x2:s2x1x3:p1x0x2:d1x2x1:g2:t:o1x0x2",
    ] {
        assert_eq!(key.parse::<Volume>().unwrap().to_string(), key);
    }
    let wrong = |key: &str| key.parse::<Volume>().unwrap_err().to_string();
    assert!(wrong("forward:f32:nchw:1x16x8x64x64:32x3x3x3:s1x1x1:p1x1x1:d1x1x1:g1").contains("ncdhw, ndhwc"));
    assert!(wrong("forward:f32:ncdhw:1x16x64x64:32x3x3x3:s1x1x1:p1x1x1:d1x1x1:g1").contains("1x16x8x64x64"));
    assert!(wrong("forward:f32:ncdhw:1x16x8x64x64:32x3x3x3:s1x1x1:p1x1x1:d1x1x1").contains("9 parts"));
}

/// The keys of the 2-d convolutions of a 3-d one; an asterisk at the end marks a gathered operand.
fn folded(key: &str) -> Vec<String> {
    let volume: Volume = key.parse().unwrap();
    let strides = volume.operand_shapes().map(|shape| Volume::dense_strides(shape, volume.layout()));
    let fold = volume.fold(usize::MAX).unwrap();
    let mark = |gathered: bool| if gathered { "*" } else { "-" };
    fold.parts
        .iter()
        .map(|part| {
            let dense = [0, 1, 2].map(|at| part.planes[at].dense(strides[fold.order[at]], volume.layout()));
            format!("{} {}", part.problem, dense.map(|start| mark(start.is_none())).concat())
        })
        .collect()
}

#[test]
fn what_is_folded_into_what() {
    let check = |key: &str, expected: &[&str]| assert_eq!(folded(key), expected, "{key}");
    check(
        "forward:f32:ncdhw:2x16x8x64x64:32x3x3x3:s1x1x1:p1x1x1:d1x1x1:g1",
        &["forward:f32:nchw:16x48x64x64:32x3x3:s1x1:p1x1:d1x1:g1 *-*"],
    );
    // One tap along the depth: images in NDHWC, in place.
    check(
        "forward:f32:ndhwc:2x16x8x64x64:32x1x3x3:s1x1x1:p0x1x1:d1x1x1:g1",
        &["forward:f32:nhwc:16x16x64x64:32x3x3:s1x1:p1x1:d1x1:g1 ---"],
    );
    // A window that covers the depth: channels in place.
    check(
        "forward:f32:ncdhw:2x3x2x64x64:32x2x16x16:s2x16x16:p0x0x0:d1x1x1:g1",
        &["forward:f32:nchw:2x6x64x64:32x16x16:s16x16:p0x0:d1x1:g1 ---"],
    );
    // Single taps in a plane: nothing is gathered, whatever the depth does.
    check(
        "backward-data:f32:ncdhw:2x16x8x5x7:32x3x1x1:s2x1x1:p1x0x0:d1x1x1:g1",
        &["backward-data:f32:nchw:2x16x8x35:32x3x1:s2x1:p1x0:d1x1:g1 ---"],
    );
    // A stride of two: depths that meet one tap, and depths that meet two.
    check(
        "backward-data:f32:ncdhw:1x16x9x8x8:32x3x3x3:s2x1x1:p1x1x1:d1x1x1:g1",
        &[
            "backward-data:f32:nchw:5x16x8x8:32x3x3:s1x1:p1x1:d1x1:g1 ***",
            "backward-data:f32:nchw:4x16x8x8:64x3x3:s1x1:p1x1:d1x1:g1 ***",
        ],
    );
    check(
        "forward:f32:ncdhw:1x8x4x8x8:6x2x2x2:s2x2x2:p0x0x0:d1x1x1:g2:t:o0x1x0",
        &[
            "forward:f32:nchw:4x8x8x8:6x2x2:s2x2:p0x0:d1x1:g2:t:o1x0 ***",
            "forward:f32:nchw:4x8x8x8:6x2x2:s2x2:p0x0:d1x1:g2:t:o1x0 ***",
        ],
    );
    check(
        "backward-weights:f32:ncdhw:2x16x8x6x6:32x3x3x3:s1x1x1:p1x1x1:d1x1x1:g1",
        &["backward-weights:f32:nchw:16x48x6x6:32x3x3:s1x1:p1x1:d1x1:g1 **-"],
    );
}

#[test]
fn depths_that_no_tap_meets_are_zero() {
    let volume: Volume = "backward-data:f32:ncdhw:1x2x7x3x3:2x1x3x3:s3x1x1:p0x1x1:d1x1x1:g1".parse().unwrap();
    let fold = volume.fold(usize::MAX).unwrap();
    assert_eq!((fold.parts.len(), fold.zeros.len()), (1, 2));
    assert_eq!(fold.zeros.iter().map(|planes| planes.shape()[0]).collect::<Vec<_>>(), [2, 2]);
}

#[test]
fn no_part_has_more_elements_than_the_limit_allows() {
    let key = "forward:f32:ncdhw:3x16x12x20x20:32x3x3x3:s1x1x1:p1x1x1:d1x1x1:g1";
    let gradient = key.replace("forward", "backward-data");
    let weights = key.replace("forward", "backward-weights");
    for key in [key, &gradient, &weights] {
        let volume: Volume = key.parse().unwrap();
        for limit in [300_000, 500_000, 5_000_000] {
            for part in volume.fold(limit).unwrap().parts {
                let elements: usize = part.problem.operand_shapes().iter().map(|it| it.iter().product::<usize>()).sum();
                assert!(elements <= limit, "{}: {elements} of {limit}", part.problem);
            }
        }
    }
}
