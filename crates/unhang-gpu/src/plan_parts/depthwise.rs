//! Launches for one input and one output channel in a group.

use super::*;

pub(crate) fn depthwise(geometry: &Geometry, strip: u32, splits: u32) -> Result<LaunchPlan, String> {
    let p = &geometry.problem;
    let strip = strip.max(1) as usize;
    let channels_last = geometry.channels_last();
    let (outputs, [oh, ow]) = (p.out_channels(), p.out_size());
    let multiplier = outputs / p.in_channels();
    let mut constants = vec![("TYPE", type_number(p.data_type())), ("CHANNELS_LAST", i64::from(channels_last))];
    if geometry.form == Form::Specialised {
        constants.extend([("CHANNELS", p.in_channels() as i64), ("MULTIPLIER", multiplier as i64)]);
    }
    constants.extend(geometry.window_constants());
    constants.push(("STRIP", strip as i64));
    let lanes = if p.direction() == Direction::BackwardData { p.in_channels() } else { outputs };
    let parameters = |size: [usize; 2], strips: usize, threads: usize, pixels: usize| DepthwiseShape {
        batch: int(p.batch()),
        input_h: int(p.in_size()[0]),
        input_w: int(p.in_size()[1]),
        output_h: int(oh),
        output_w: int(ow),
        channels: int(p.in_channels()),
        multiplier: int(multiplier),
        threads: int(threads),
        pixels_per_split: int(pixels),
        by_image: Divisor::new(size[0] * size[1]),
        by_width: Divisor::new(size[1]),
        by_strips: Divisor::new(strips),
        by_lanes: Divisor::new(lanes),
        by_multiplier: Divisor::new(multiplier),
    };
    let stage = |entry, grid, pointers, shape: DepthwiseShape| Stage {
        kernel: Kernel { source: SourceFile::Depthwise, entry, constants: constants.clone() },
        grid,
        block: 256,
        pointers,
        shape: shape.into(),
    };
    let unrolled = |rows: usize| {
        if rows * p.kernel()[1] > 256 { Err("the strip's rows are too many to unroll".to_owned()) } else { Ok(()) }
    };
    let operands = vec![geometry.first, geometry.second, Pointer::Bias, Pointer::Result];
    match p.direction() {
        Direction::Forward => {
            unrolled((strip - 1) * p.stride()[0] + (p.kernel()[0] - 1) * p.dilation()[0] + 1)?;
            let strips = oh.div_ceil(strip);
            let threads = p.batch() * outputs * strips * ow;
            let grid = grid_x(threads as u64, 256);
            let stages = vec![stage("depthwise_forward", grid, operands, parameters(p.out_size(), strips, threads, 0))];
            Ok(LaunchPlan { stages, workspace_bytes: 0 })
        }
        Direction::BackwardData => {
            if !strip.is_multiple_of(p.stride()[0]) {
                return Err(format!("a strip of {strip} rows is no multiple of the stride {}", p.stride()[0]));
            }
            unrolled((strip + (p.kernel()[0] - 1) * p.dilation()[0]) / p.stride()[0] + 2)?;
            let strips = p.in_size()[0].div_ceil(strip);
            let threads = p.batch() * p.in_channels() * strips * p.in_size()[1];
            let grid = grid_x(threads as u64, 256);
            let stages =
                vec![stage("depthwise_backward_data", grid, operands, parameters(p.in_size(), strips, threads, 0))];
            Ok(LaunchPlan { stages, workspace_bytes: 0 })
        }
        Direction::BackwardWeights => {
            let pixels = p.batch() * oh * ow;
            let per_split = pixels.div_ceil(splits.clamp(1, 65535) as usize).max(1);
            let splits = pixels.div_ceil(per_split) as u32;
            let mut workspace = Workspace::default();
            let planes = Pointer::Workspace(workspace.take(u64::from(splits) * geometry.result_elements() * 4));
            let groups = if channels_last { outputs.div_ceil(32) } else { outputs };
            let stages = vec![
                stage(
                    "depthwise_backward_weights",
                    [groups as u32, splits, 1],
                    vec![geometry.first, geometry.second, planes],
                    parameters(p.out_size(), 1, 0, per_split),
                ),
                reduce_weights(geometry, splits, planes),
            ];
            Ok(LaunchPlan { stages, workspace_bytes: workspace.bytes })
        }
    }
}

/// Neighbours that a thread of the depthwise kernels in vectors takes: channels in NHWC, columns in NCHW.
fn depthwise_width(geometry: &Geometry) -> Result<usize, String> {
    let p = &geometry.problem;
    if geometry.channels_last() {
        if p.direction() == Direction::BackwardData {
            return Err("in NHWC quads is for forward and backward-weights".into());
        }
        // The taps of all channels, or their sums, stay in registers.
        let width = if geometry.taps() <= 9 { 4 } else { 2 };
        let divides = p.in_channels().is_multiple_of(width);
        return if divides { Ok(width) } else { Err(format!("the channels do not divide by {width}")) };
    }
    let (input, output) = (p.in_size()[1], p.out_size()[1]);
    // The gradient is read in vectors of that many columns by backward-data.
    let narrower = if p.direction() == Direction::BackwardData { p.stride()[1] } else { 1 };
    // Sixteen bytes at once: eight columns of 16 bits.
    let widest = if p.data_type() == DataType::F32 { 4 } else { 8 };
    [8, 4, 2]
        .into_iter()
        .filter(|&width| width <= widest)
        .filter(|width| width % narrower == 0)
        .find(|width| input.is_multiple_of(*width) && output.is_multiple_of(width / narrower))
        .ok_or_else(|| format!("rows of {input} and {output} are not whole vectors"))
}

pub(crate) fn depthwise_quads(geometry: &Geometry, strip: u32, splits: u32) -> Result<LaunchPlan, String> {
    let p = &geometry.problem;
    let strip = strip.max(1) as usize;
    let channels_last = geometry.channels_last();
    let width = depthwise_width(geometry)?;
    let channels = p.in_channels();
    let mut constants = vec![("TYPE", type_number(p.data_type())), ("CHANNELS_LAST", i64::from(channels_last))];
    if geometry.form == Form::Specialised {
        constants.push(("CHANNELS", channels as i64));
    }
    constants.extend(geometry.window_constants());
    constants.extend([("WIDTH", width as i64), ("STRIP", strip as i64)]);
    if channels_last {
        constants.push(("WEIGHTS", i64::from(p.direction() == Direction::BackwardWeights)));
    }
    // Columns that a thread has, and workgroups beside each other for all channels.
    let (columns, groups) = if channels_last { (1, channels.div_ceil(32)) } else { (width, channels) };
    // `size` in vectors (pixels in NHWC).
    let parameters = |size: [usize; 2], strips: usize, threads: usize, each: usize| DepthwiseQuadsShape {
        batch: int(p.batch()),
        input_h: int(p.in_size()[0]),
        input_w: int(p.in_size()[1]),
        output_h: int(p.out_size()[0]),
        output_w: int(p.out_size()[1]),
        channels: int(channels),
        threads: int(threads),
        vectors_per_split: int(each),
        by_image: Divisor::new(size[0] * size[1]),
        by_width: Divisor::new(size[1]),
        by_strips: Divisor::new(strips),
        by_channels: Divisor::new(groups),
    };
    let stage = |entry, grid, pointers, shape: DepthwiseQuadsShape| Stage {
        kernel: Kernel { source: SourceFile::DepthwiseQuads, entry, constants: constants.clone() },
        grid,
        block: 256,
        pointers,
        shape: shape.into(),
    };
    // gfx1010's compiler has all reads of a strip under way at once, as they lie in memory, beside sums and taps; more would
    // cost it waves. Those of a filter's gradient it has one after the other, in a loop.
    let line = if channels_last {
        p.kernel()[1] * width
    } else {
        (width - 1) * p.stride()[1] + (p.kernel()[1] - 1) * p.dilation()[1] + 1
    };
    let taps = geometry.taps() * if channels_last { width } else { 1 };
    let unrolled = |rows: usize| {
        let read = rows * line * p.data_type().size().min(4) / 4;
        let (numbers, most) = match p.direction() {
            Direction::BackwardWeights => (read + strip * width + taps, 190),
            // Taps come from LDS, and may do so again.
            _ if channels_last => (read + strip * width, 130),
            // One row has its taps one after the other.
            _ if strip == 1 => return Ok(()),
            _ => (read + strip * width + 2 * taps, 130),
        };
        if numbers <= most { Ok(()) } else { Err(format!("a strip needs {numbers} numbers in registers")) }
    };
    let operands = vec![geometry.first, geometry.second, Pointer::Bias, Pointer::Result];
    match p.direction() {
        Direction::Forward => {
            unrolled((strip - 1) * p.stride()[0] + (p.kernel()[0] - 1) * p.dilation()[0] + 1)?;
            let (strips, vectors) = (p.out_size()[0].div_ceil(strip), p.out_size()[1].div_ceil(columns));
            let pixels = p.batch() * strips * vectors;
            let (threads, grid) = match channels_last {
                true => (pixels, grid_x((pixels.div_ceil(8 * width) * groups) as u64, 1)),
                false => (pixels * channels, grid_x((pixels * channels) as u64, 256)),
            };
            let parameters = parameters([p.out_size()[0], vectors], strips, threads, 0);
            let stages = vec![stage("depthwise_quads_forward", grid, operands, parameters)];
            Ok(LaunchPlan { stages, workspace_bytes: 0 })
        }
        Direction::BackwardData => {
            if !strip.is_multiple_of(p.stride()[0]) {
                return Err(format!("a strip of {strip} rows is no multiple of the stride {}", p.stride()[0]));
            }
            unrolled((strip - 1 + (p.kernel()[0] - 1) * p.dilation()[0]).div_ceil(p.stride()[0]) + 1)?;
            let (strips, vectors) = (p.in_size()[0].div_ceil(strip), p.in_size()[1].div_ceil(columns));
            let threads = p.batch() * channels * strips * vectors;
            let parameters = parameters([p.in_size()[0], vectors], strips, threads, 0);
            let stages =
                vec![stage("depthwise_quads_backward_data", grid_x(threads as u64, 256), operands, parameters)];
            Ok(LaunchPlan { stages, workspace_bytes: 0 })
        }
        Direction::BackwardWeights => {
            unrolled((strip - 1) * p.stride()[0] + (p.kernel()[0] - 1) * p.dilation()[0] + 1)?;
            let size = [p.out_size()[0].div_ceil(strip), p.out_size()[1] / columns];
            let vectors = p.batch() * size[0] * size[1];
            let per_split = vectors.div_ceil(splits.clamp(1, 65535) as usize).max(1);
            let splits = vectors.div_ceil(per_split) as u32;
            let mut workspace = Workspace::default();
            let planes = Pointer::Workspace(workspace.take(u64::from(splits) * geometry.result_elements() * 4));
            let stages = vec![
                stage(
                    "depthwise_quads_backward_weights",
                    [groups as u32, splits, 1],
                    vec![geometry.first, geometry.second, planes],
                    parameters(size, 1, 0, per_split),
                ),
                reduce_weights(geometry, splits, planes),
            ];
            Ok(LaunchPlan { stages, workspace_bytes: workspace.bytes })
        }
    }
}
