//! The launch of the plain kernels.

use super::*;

pub(crate) fn plain(geometry: &Geometry) -> Result<LaunchPlan, String> {
    let p = &geometry.problem;
    let (entry, pointers) = match p.direction() {
        Direction::Forward => ("plain_forward", vec![geometry.first, geometry.second, Pointer::Bias, Pointer::Result]),
        Direction::BackwardData => {
            ("plain_backward_data", vec![geometry.first, geometry.second, Pointer::Bias, Pointer::Result])
        }
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
        input_h: int(p.in_size()[0]),
        input_w: int(p.in_size()[1]),
        output_h: int(p.out_size()[0]),
        output_w: int(p.out_size()[1]),
        filter_h: int(p.kernel()[0]),
        filter_w: int(p.kernel()[1]),
        stride_h: int(p.stride()[0]),
        stride_w: int(p.stride()[1]),
        pad_h: int(p.padding()[0]),
        pad_w: int(p.padding()[1]),
        dilation_h: int(p.dilation()[0]),
        dilation_w: int(p.dilation()[1]),
        channels_last: i32::from(geometry.channels_last()),
    };
    let kernel = Kernel { source: SourceFile::Plain, entry, constants: vec![("TYPE", type_number(p.data_type()))] };
    let stage = Stage { kernel, grid: [groups as u32, 1, 1], block: 256, pointers, shape: shape.into() };
    Ok(LaunchPlan { stages: vec![stage], workspace_bytes: 0 })
}
