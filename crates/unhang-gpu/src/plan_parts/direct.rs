//! The launch that reads the source straight into registers.

use super::*;

/// LDS that the taps may take: four workgroups fit a compute unit beside each other.
const LDS_BYTES: usize = 16 << 10;
/// Channels of the result in NHWC: a thread has all of them, and with more than these turning the source over did not pay (H200).
const MOST_CHANNELS_LAST: usize = 4;
/// Multiply-adds that a channel may be unrolled to.
const MOST_UNROLLED: usize = 1800;

/// What a thread has, and the images as it sees them.
struct Direct<'a> {
    geometry: &'a Geometry,
    forward: bool,
    /// Channels of the result.
    block_rows: usize,
    /// Neighbouring columns of the result.
    width: usize,
    /// Rows of the result.
    strip: usize,
    source: [usize; 2],
    result: [usize; 2],
}

impl<'a> Direct<'a> {
    /// An error where it is not for this problem.
    fn new(geometry: &'a Geometry, thread: [u32; 3]) -> Result<Direct<'a>, String> {
        let p = &geometry.problem;
        let forward = geometry.is_forward("direct")?;
        let [block_rows, width, strip] = thread.map(|it| it as usize);
        let is_built = block_rows.is_multiple_of(4) && [2, 4].contains(&width);
        if !is_built || !(4..=64).contains(&(block_rows * width * strip)) {
            return Err(format!(
                "{block_rows} channels, {width} columns and {strip} rows are not what it is built for"
            ));
        }
        if p.groups() as u64 > MAX_GRID_YZ {
            return Err(format!("{} groups are too many for one grid", p.groups()));
        }
        let rows = geometry.reduced_and_rows().1;
        if geometry.channels_last() && (forward || p.groups() > 1 || rows > MOST_CHANNELS_LAST) {
            return Err("in NHWC direct is for gradients of images with few channels".into());
        }
        if geometry.is_pointwise() && strip != 1 {
            return Err("an image of a 1x1 layer is one row".into());
        }
        // Rows do not matter to a 1×1 layer: the image is one long one.
        let (mut source, mut result) = geometry.source_and_result();
        if geometry.is_pointwise() {
            (source, result) = ([1, source[0] * source[1]], [1, result[0] * result[1]]);
        }
        let [stride, across] = if forward { [1, 1] } else { p.stride() };
        if !width.is_multiple_of(across)
            || !result[1].is_multiple_of(width)
            || !source[1].is_multiple_of(width / across)
        {
            return Err(format!("rows of {} and {} are not whole vectors of {width}", source[1], result[1]));
        }
        if !strip.is_multiple_of(stride) {
            return Err(format!("a strip of {strip} rows is not a multiple of the stride {stride}"));
        }
        let direct = Direct { geometry, forward, block_rows, width, strip, source, result };
        direct.fits_registers().map(|()| direct)
    }

    fn fits_registers(&self) -> Result<(), String> {
        let p = &self.geometry.problem;
        // Rows and columns of the source that a thread has in registers: one channel of them.
        let [lines, columns] = [(0, self.strip), (1, self.width)].map(|(axis, count)| {
            let (reach, stride) = ((p.kernel()[axis] - 1) * p.dilation()[axis], p.stride()[axis]);
            if self.forward { (count - 1) * stride + reach + 1 } else { (count + reach).div_ceil(stride) + 1 }
        });
        let (taps, sums) = (self.geometry.taps(), self.block_rows * self.width * self.strip);
        if sums * taps > MOST_UNROLLED {
            return Err(format!("{taps} taps of {sums} sums are too many to unroll"));
        }
        let numbers = sums + columns * lines;
        if numbers > 116 { Err(format!("{numbers} numbers are more than registers are set aside for")) } else { Ok(()) }
    }

    fn constants(&self, planes: bool) -> Vec<(&'static str, i64)> {
        let geometry = self.geometry;
        let is_specialised = geometry.form == Form::Specialised;
        let (reduced, rows) = geometry.reduced_and_rows();
        // Whole groups of four channels, which 1×1 layers read at once.
        let chunk = (LDS_BYTES / (geometry.taps() * self.block_rows * 4) / 4 * 4).max(4);
        let chunk = if is_specialised { chunk.min(reduced) } else { chunk };
        let mut constants = geometry.constants();
        constants.push(("DIRECTION", i64::from(!self.forward)));
        if is_specialised {
            constants.push(("REDUCED", reduced as i64));
        }
        // A thread that has all of a pixel's channels receives their number.
        if is_specialised || geometry.channels_last() {
            constants.extend([("GROUPS", geometry.problem.groups() as i64), ("ROWS", rows as i64)]);
        }
        constants.extend(geometry.window_constants());
        constants.extend([
            ("WIDTH", self.width as i64),
            ("STRIP", self.strip as i64),
            ("BLOCK_ROWS", self.block_rows as i64),
            ("CHUNK", chunk as i64),
            ("PLANES", i64::from(planes)),
        ]);
        constants
    }
}

pub(crate) fn direct(geometry: &Geometry, thread: [u32; 3], splits: u32) -> Result<LaunchPlan, String> {
    let p = &geometry.problem;
    let direct = Direct::new(geometry, thread)?;
    let (reduced, rows) = geometry.reduced_and_rows();
    let (strips, vectors) = (direct.result[0].div_ceil(direct.strip), direct.result[1] / direct.width);
    let (threads, row_blocks) = (p.batch() * strips * vectors, rows.div_ceil(direct.block_rows));
    let blocks = (threads as u64).div_ceil(128).max(1) * row_blocks as u64;
    if blocks > i32::MAX as u64 {
        return Err(format!("{blocks} workgroups are more than a grid has"));
    }
    // Parts are whole quads of channels: 1×1 layers read four at once.
    let per_split = reduced.div_ceil(splits.max(1) as usize).next_multiple_of(4).min(reduced);
    let splits = reduced.div_ceil(per_split);
    let planes = splits > 1;
    if planes {
        geometry.refuse_general()?;
    }
    let (mut workspace, mut stages) = (Workspace::default(), Vec::new());
    let source = if geometry.channels_last() {
        let [_, channels, h, w] = p.operand_shapes()[0];
        let turned = workspace.take((p.batch() * channels * h * w * p.data_type().size()) as u64);
        stages.push(turn(geometry, [h * w, channels], geometry.first, turned)?);
        turned
    } else {
        geometry.first
    };
    let (bias, result) = match planes {
        true => (Pointer::Null, workspace.take(splits as u64 * geometry.result_elements() * 4)),
        false => (Pointer::Bias, Pointer::Result),
    };
    stages.push(Stage {
        kernel: Kernel { source: SourceFile::Direct, entry: "direct", constants: direct.constants(planes) },
        grid: [blocks as u32, p.groups() as u32, splits as u32],
        block: 128,
        pointers: vec![geometry.second, source, bias, result],
        shape: DirectShape {
            batch: int(p.batch()),
            source: ints(direct.source),
            result: ints(direct.result),
            groups: int(p.groups()),
            reduced: int(reduced),
            rows: int(rows),
            threads: int(threads),
            channels_per_split: int(per_split),
            by_width: Divisor::new(vectors),
            by_strips: Divisor::new(strips),
            by_row_blocks: Divisor::new(row_blocks),
        }
        .into(),
    });
    if planes {
        stages.push(reduce(geometry, splits as u32, &[], result));
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
    Ok(Stage {
        kernel: geometry.kernel(SourceFile::Support, "turn"),
        grid: grid.map(|blocks| blocks as u32),
        block: 256,
        pointers: vec![from, to],
        shape: TurnShape { rows: int(rows), columns: int(columns) }.into(),
    })
}
