//! The launch that reads the source straight into registers.

use super::*;

/// LDS that the taps may take: four workgroups fit a compute unit beside each other.
const LDS_BYTES: usize = 16 << 10;
/// Channels of the result in NHWC: a thread has all of them, and with more than these turning the source over did not pay (H200).
const MOST_CHANNELS_LAST: usize = 4;
/// Multiply-adds that a channel may be unrolled to.
const MOST_UNROLLED: usize = 1800;

pub(crate) fn direct(
    geometry: &Geometry,
    [block_rows, width, strip]: [u32; 3],
    splits: u32,
) -> Result<LaunchPlan, String> {
    let p = &geometry.problem;
    let forward = match p.direction() {
        Direction::Forward => true,
        Direction::BackwardData => false,
        Direction::BackwardWeights => return Err("direct is for forward and backward-data".into()),
    };
    let channels_last = geometry.channels_last();
    let (block_rows, width, strip) = (block_rows as usize, width as usize, strip as usize);
    if !block_rows.is_multiple_of(4) || ![2, 4].contains(&width) || !(4..=64).contains(&(block_rows * width * strip)) {
        return Err(format!("{block_rows} channels, {width} columns and {strip} rows are not what it is built for"));
    }
    if p.groups() as u64 > MAX_GRID_YZ {
        return Err(format!("{} groups are too many for one grid", p.groups()));
    }
    let (reduced, rows) = geometry.reduced_and_rows();
    if channels_last && (forward || p.groups() > 1 || rows > MOST_CHANNELS_LAST) {
        return Err("in NHWC direct is for gradients of images with few channels".into());
    }
    let pointwise = geometry.is_pointwise();
    if pointwise && strip != 1 {
        return Err("an image of a 1x1 layer is one row".into());
    }
    // Rows do not matter to a 1×1 layer: the image is one long one.
    let (mut source, mut result) = geometry.source_and_result();
    if pointwise {
        (source, result) = ([1, source[0] * source[1]], [1, result[0] * result[1]]);
    }
    let [stride, dilation] = [p.stride()[0], p.dilation()[0]];
    let narrower = if forward { 1 } else { p.stride()[1] };
    if !width.is_multiple_of(narrower)
        || !result[1].is_multiple_of(width)
        || !source[1].is_multiple_of(width / narrower)
    {
        return Err(format!("rows of {} and {} are not whole vectors of {width}", source[1], result[1]));
    }
    if !forward && !strip.is_multiple_of(stride) {
        return Err(format!("a strip of {strip} rows is not a multiple of the stride {stride}"));
    }
    // Columns and rows of the source that a thread has in registers: one channel of them.
    let (columns, lines) = if forward {
        (
            (width - 1) * p.stride()[1] + (p.kernel()[1] - 1) * p.dilation()[1] + 1,
            (strip - 1) * stride + (p.kernel()[0] - 1) * dilation + 1,
        )
    } else {
        (
            (width + (p.kernel()[1] - 1) * p.dilation()[1]).div_ceil(p.stride()[1]) + 1,
            (strip + (p.kernel()[0] - 1) * dilation).div_ceil(stride) + 1,
        )
    };
    let sums = block_rows * width * strip;
    if sums * geometry.taps() > MOST_UNROLLED {
        return Err(format!("{} taps of {sums} sums are too many to unroll", geometry.taps()));
    }
    if sums + columns * lines > 116 {
        return Err(format!("{} numbers are more than registers are set aside for", sums + columns * lines));
    }
    // Whole groups of four channels, which 1×1 layers read at once.
    let chunk = (LDS_BYTES / (geometry.taps() * block_rows * 4) / 4 * 4).max(4);
    let chunk = if geometry.form == Form::General { chunk } else { chunk.min(reduced) };
    let strips = result[0].div_ceil(strip);
    let threads = p.batch() * strips * (result[1] / width);
    let blocks = (threads as u64).div_ceil(128).max(1) * rows.div_ceil(block_rows) as u64;
    if blocks > i32::MAX as u64 {
        return Err(format!("{blocks} workgroups are more than a grid has"));
    }
    let mut constants = vec![
        ("TYPE", type_number(p.data_type())),
        ("CHANNELS_LAST", i64::from(channels_last)),
        ("DIRECTION", i64::from(!forward)),
    ];
    if geometry.form == Form::Specialised {
        constants.push(("REDUCED", reduced as i64));
    }
    // A thread that has all of a pixel's channels receives their number.
    if geometry.form == Form::Specialised || channels_last {
        constants.extend([("GROUPS", p.groups() as i64), ("ROWS", rows as i64)]);
    }
    constants.extend(geometry.window_constants());
    constants.extend([
        ("WIDTH", width as i64),
        ("STRIP", strip as i64),
        ("BLOCK_ROWS", block_rows as i64),
        ("CHUNK", chunk as i64),
    ]);
    // Parts are whole quads of channels: 1×1 layers read four at once.
    let per_split = reduced.div_ceil(splits.max(1) as usize).next_multiple_of(4).min(reduced);
    let splits = reduced.div_ceil(per_split);
    let planes = splits > 1;
    if planes {
        geometry.refuse_general()?;
    }
    constants.push(("PLANES", i64::from(planes)));
    let (mut workspace, mut stages) = (Workspace::default(), Vec::new());
    let source_pointer = if channels_last {
        let [_, channels, h, w] = p.operand_shapes()[0];
        let bytes = (p.batch() * channels * h * w * p.data_type().size()) as u64;
        let turned = Pointer::Workspace(workspace.take(bytes));
        stages.push(turn(geometry, [h * w, channels], geometry.first, turned)?);
        turned
    } else {
        geometry.first
    };
    let (bias, result_pointer) = match planes {
        true => (Pointer::Null, Pointer::Workspace(workspace.take(splits as u64 * geometry.result_elements() * 4))),
        false => (Pointer::Bias, Pointer::Result),
    };
    let stage = Stage {
        kernel: Kernel { source: SourceFile::Direct, entry: "direct", constants },
        grid: [blocks as u32, p.groups() as u32, splits as u32],
        block: 128,
        pointers: vec![geometry.second, source_pointer, bias, result_pointer],
        shape: DirectShape {
            batch: int(p.batch()),
            source_h: int(source[0]),
            source_w: int(source[1]),
            result_h: int(result[0]),
            result_w: int(result[1]),
            groups: int(p.groups()),
            reduced: int(reduced),
            rows: int(rows),
            threads: int(threads),
            channels_per_split: int(per_split),
            by_width: Divisor::new(result[1] / width),
            by_strips: Divisor::new(strips),
            by_row_blocks: Divisor::new(rows.div_ceil(block_rows)),
        }
        .into(),
    };
    stages.push(stage);
    if planes {
        stages.push(reduce(geometry, splits as u32, &[], result_pointer));
    }
    Ok(LaunchPlan { stages, workspace_bytes: workspace.bytes })
}

/// Turns the images of a tensor over: pixels and channels change places.
pub(super) fn turn(
    geometry: &Geometry,
    [rows, columns]: [usize; 2],
    from: Pointer,
    to: Pointer,
) -> Result<Stage, String> {
    let p = &geometry.problem;
    let grid = [rows.div_ceil(32), columns.div_ceil(32), p.batch()];
    if grid[1..].iter().any(|&blocks| blocks as u64 > MAX_GRID_YZ) {
        return Err(format!("{} images of {columns} channels are too many for one grid", p.batch()));
    }
    let constants = vec![("TYPE", type_number(p.data_type()))];
    Ok(Stage {
        kernel: Kernel { source: SourceFile::Support, entry: "turn", constants },
        grid: grid.map(|blocks| blocks as u32),
        block: 256,
        pointers: vec![from, to],
        shape: TurnShape { rows: int(rows), columns: int(columns) }.into(),
    })
}
