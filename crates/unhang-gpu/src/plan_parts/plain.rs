//! The launch of the plain kernels.

use super::*;

pub(crate) fn plain(geometry: &Geometry) -> Result<LaunchPlan, String> {
    let p = &geometry.problem;
    let (entry, pointers) = match p.direction() {
        Direction::Forward => ("plain_forward", geometry.operands()),
        Direction::BackwardData => ("plain_backward_data", geometry.operands()),
        Direction::BackwardWeights => {
            ("plain_backward_weights", vec![geometry.first, geometry.second, Pointer::Result])
        }
    };
    let groups = if p.direction() == Direction::BackwardWeights {
        geometry.result_elements()
    } else {
        geometry.result_elements().div_ceil(256)
    };
    if groups > i32::MAX as u64 {
        return Err(format!("{groups} workgroups are more than a grid has"));
    }
    let shape = PlainShape {
        batch: int(p.batch()),
        groups: int(p.groups()),
        channels: int(p.in_channels() / p.groups()),
        rows: int(p.out_channels() / p.groups()),
        input: ints(p.in_size()),
        output: ints(p.out_size()),
        filter: ints(p.kernel()),
        stride: ints(p.stride()),
        pad: ints(p.padding()),
        dilation: ints(p.dilation()),
        channels_last: i32::from(geometry.channels_last()),
    };
    let kernel = geometry.kernel(SourceFile::Plain, entry);
    let stage = Stage { kernel, grid: [groups as u32, 1, 1], block: 256, pointers, shape: shape.into() };
    Ok(LaunchPlan { stages: vec![stage], workspace_bytes: 0 })
}
