//! Launches of both gradients where windows do not overlap: every pixel of the image has one tap.

use super::*;

/// The product that computes all taps of all patches at once: a 1×1 layer whose channels are those of the image times the taps.
/// `None` where windows overlap, or where a group's channels and taps do not lie side by side. A filter's gradient has its
/// patches put one after the other first ([`patched`]), so that its product is in NHWC.
pub(crate) fn as_product(p: &Problem) -> Option<Problem> {
    let (kernel, stride, dilation) = (p.kernel(), p.stride(), p.dilation());
    let is_apart = (0..2).all(|axis| kernel[axis] <= stride[axis] && (dilation[axis] == 1 || kernel[axis] == 1));
    let (is_together, layout) = match p.direction() {
        Direction::Forward => return None,
        Direction::BackwardData => (p.groups() == 1 || p.layout() == Layout::Nchw, p.layout()),
        Direction::BackwardWeights => (p.groups() == 1, Layout::Nhwc),
    };
    if kernel == [1, 1] || !is_apart || !is_together {
        return None;
    }
    Problem::new(Specification {
        direction: p.direction(),
        data_type: p.data_type(),
        layout,
        batch: p.batch() as i64,
        in_channels: (p.in_channels() * kernel[0] * kernel[1]) as i64,
        in_size: p.out_size().map(|n| n as i64),
        out_channels: p.out_channels() as i64,
        groups: p.groups() as i64,
        ..Specification::default()
    })
    .ok()
}

/// The operands of a filter's gradient as [`as_product`] wants them: patches one after the other, and channels of the gradient of
/// the output side by side.
pub(crate) fn patched(
    geometry: &Geometry,
    product: Problem,
    workspace: &mut Workspace,
    stages: &mut Vec<Stage>,
) -> Result<Geometry, String> {
    let p = &geometry.problem;
    let ([grid_h, grid_w], [_, filter_w]) = (p.out_size(), p.kernel());
    let patch = p.in_channels() * geometry.taps();
    let elements = p.batch() * grid_h * grid_w * patch;
    let first = workspace.take((elements * p.data_type().size()) as u64);
    let shape = PatchShape {
        elements: int(elements),
        image: ints(p.in_size()),
        channels: int(p.in_channels()),
        channels_last: i32::from(geometry.channels_last()),
        stride: ints(p.stride()),
        pad: ints(p.padding()),
        by_patch: Divisor::new(patch),
        by_grid: divisors(p.out_size()),
        by_inner: Divisor::new(if geometry.channels_last() { p.in_channels() } else { geometry.taps() }),
        by_filter_w: Divisor::new(filter_w),
    };
    stages.push(Stage {
        kernel: geometry.kernel(SourceFile::Support, "patch"),
        grid: grid_x(elements as u64, 256),
        block: 256,
        pointers: vec![geometry.first, first],
        shape: shape.into(),
    });
    let second = if geometry.channels_last() {
        geometry.second
    } else {
        weights::turn_over(geometry, p.out_channels(), p.out_size(), geometry.second, workspace, stages)?
    };
    Ok(Geometry { problem: product, first, second, form: geometry.form })
}

/// The product of [`as_product`] into planes of f32, and the kernel that puts its pixels in their places.
pub(crate) fn patches(geometry: &Geometry, product: Problem, tile: Tile, splits: u32) -> Result<LaunchPlan, String> {
    let product = Geometry { problem: product, first: geometry.first, second: geometry.second, form: geometry.form };
    let rows = product.reduced_and_rows().1;
    let mut stages = Vec::new();
    let mut workspace = Workspace::default();
    // Rows of the filter are neighbours in memory as they are: packing gains quads only where they are not whole.
    let packed = geometry.form == Form::General || !rows.is_multiple_of(4);
    let filter = if packed {
        let (stage, bytes) = pack(&product, tile, false, product.second);
        let at = workspace.take(bytes);
        stages.push(stage(at));
        at
    } else {
        product.second
    };
    let steps = gemm_steps(&product, tile, false);
    let per_split = steps.div_ceil(u64::from(splits.max(1))).max(1);
    let splits = steps.div_ceil(per_split).max(1);
    let plane_elements = product.result_elements();
    let planes = workspace.take(splits * plane_elements * 4);
    let part = GemmPart {
        tile,
        packed,
        flat: false,
        planes: true,
        skip_empty: false,
        spread: false,
        half: false,
        splits: splits as u32,
        steps_per_split: per_split as i32,
    };
    stages.push(gemm(&product, &part, [filter, product.first, Pointer::Null, planes])?);
    stages.push(unpatch(geometry, splits as usize, plane_elements as usize, planes));
    Ok(LaunchPlan { stages, workspace_bytes: workspace.bytes })
}

fn unpatch(geometry: &Geometry, planes: usize, plane_elements: usize, from: Pointer) -> Stage {
    let p = &geometry.problem;
    let elements = geometry.result_elements();
    let [image_h, image_w] = p.in_size();
    let shape = UnpatchShape {
        elements: int(elements as usize),
        planes: int(planes),
        plane_elements: int(plane_elements),
        channels: int(p.in_channels()),
        grid: ints(p.out_size()),
        filter: ints(p.kernel()),
        pad: ints(p.padding()),
        channels_last: i32::from(geometry.channels_last()),
        by_width: Divisor::new(image_w),
        by_height: Divisor::new(image_h),
        by_channels: Divisor::new(p.in_channels()),
        by_stride: divisors(p.stride()),
    };
    Stage {
        kernel: geometry.kernel(SourceFile::Support, "unpatch"),
        grid: grid_x(elements, 256),
        block: 256,
        pointers: vec![from, Pointer::Bias, Pointer::Result],
        shape: shape.into(),
    }
}
