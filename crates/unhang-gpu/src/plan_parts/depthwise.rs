//! Launches for one input and one output channel in a group.

use super::*;

/// What the launches of `depthwise.cu` share.
struct Depthwise<'a> {
    geometry: &'a Geometry,
    strip: usize,
}

impl Depthwise<'_> {
    fn multiplier(&self) -> usize {
        self.geometry.problem.out_channels() / self.geometry.problem.in_channels()
    }

    /// `size` is that of the image whose pixels threads have.
    fn shape(&self, size: [usize; 2], threads: usize, pixels_per_split: usize) -> DepthwiseShape {
        let p = &self.geometry.problem;
        let lanes = if p.direction() == Direction::BackwardData { p.in_channels() } else { p.out_channels() };
        DepthwiseShape {
            batch: int(p.batch()),
            input: ints(p.in_size()),
            output: ints(p.out_size()),
            channels: int(p.in_channels()),
            multiplier: int(self.multiplier()),
            threads: int(threads),
            pixels_per_split: int(pixels_per_split),
            by_image: Divisor::new(size[0] * size[1]),
            by_width: Divisor::new(size[1]),
            by_strips: Divisor::new(size[0].div_ceil(self.strip)),
            by_lanes: Divisor::new(lanes),
            by_multiplier: Divisor::new(self.multiplier()),
        }
    }

    fn stage(&self, entry: &'static str, grid: [u32; 3], pointers: Vec<Pointer>, shape: DepthwiseShape) -> Stage {
        let p = &self.geometry.problem;
        let mut constants = self.geometry.constants();
        if self.geometry.form == Form::Specialised {
            constants.extend([("CHANNELS", p.in_channels() as i64), ("MULTIPLIER", self.multiplier() as i64)]);
        }
        constants.extend(self.geometry.window_constants());
        constants.push(("STRIP", self.strip as i64));
        Stage {
            kernel: Kernel { source: SourceFile::Depthwise, entry, constants },
            grid,
            block: 256,
            pointers,
            shape: shape.into(),
        }
    }

    /// Forward and backward-data: a thread for each strip of the result. `rows` are those of the source that it reads.
    fn images(
        &self,
        entry: &'static str,
        channels: usize,
        size: [usize; 2],
        rows: usize,
    ) -> Result<LaunchPlan, String> {
        let geometry = self.geometry;
        if rows * geometry.problem.kernel()[1] > 256 {
            return Err("the strip's rows are too many to unroll".to_owned());
        }
        let threads = geometry.problem.batch() * channels * size[0].div_ceil(self.strip) * size[1];
        let operands = geometry.operands();
        let stages = vec![self.stage(entry, grid_x(threads as u64, 256), operands, self.shape(size, threads, 0))];
        Ok(LaunchPlan { stages, workspace_bytes: 0 })
    }
}

pub(crate) fn depthwise(geometry: &Geometry, strip: u32, splits: u32) -> Result<LaunchPlan, String> {
    let p = &geometry.problem;
    let launches = Depthwise { geometry, strip: strip.max(1) as usize };
    let strip = launches.strip;
    let reach = (p.kernel()[0] - 1) * p.dilation()[0];
    match p.direction() {
        Direction::Forward => {
            let rows = (strip - 1) * p.stride()[0] + reach + 1;
            launches.images("depthwise_forward", p.out_channels(), p.out_size(), rows)
        }
        Direction::BackwardData => {
            whole_strides(p, strip)?;
            let rows = (strip + reach) / p.stride()[0] + 2;
            launches.images("depthwise_backward_data", p.in_channels(), p.in_size(), rows)
        }
        Direction::BackwardWeights => {
            let [height, width] = p.out_size();
            let groups = if geometry.channels_last() { p.out_channels().div_ceil(32) } else { p.out_channels() } as u32;
            Ok(in_parts(geometry, p.batch() * height * width, splits, |part| {
                let pointers = vec![geometry.first, geometry.second, part.to];
                let shape = launches.shape(p.out_size(), 0, part.each);
                launches.stage("depthwise_backward_weights", [groups, part.splits, 1], pointers, shape)
            }))
        }
    }
}

fn whole_strides(p: &Problem, strip: usize) -> Result<(), String> {
    let stride = p.stride()[0];
    let is_whole = strip.is_multiple_of(stride);
    if is_whole { Ok(()) } else { Err(format!("a strip of {strip} rows is not a multiple of the stride {stride}")) }
}

/// How the filter's gradient is divided.
struct GradientPart {
    /// Where the sums go.
    to: Pointer,
    splits: u32,
    /// Pixels, or vectors of them, that a part has.
    each: usize,
}

/// The filter's gradient: sums over parts of what there is, and their sum. The sums of a single part are the gradient.
fn in_parts(geometry: &Geometry, all: usize, splits: u32, stage: impl FnOnce(GradientPart) -> Stage) -> LaunchPlan {
    let each = all.div_ceil(splits.clamp(1, 65535) as usize).max(1);
    let splits = all.div_ceil(each) as u32;
    if splits == 1 && geometry.problem.data_type() == DataType::F32 {
        return LaunchPlan {
            stages: vec![stage(GradientPart { to: Pointer::Result, splits, each })],
            workspace_bytes: 0,
        };
    }
    let mut workspace = Workspace::default();
    let planes = workspace.take(u64::from(splits) * geometry.result_elements() * 4);
    let stages = vec![stage(GradientPart { to: planes, splits, each }), reduce_weights(geometry, splits, planes)];
    LaunchPlan { stages, workspace_bytes: workspace.bytes }
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

/// What the launches of `depthwise_quads.cu` share.
struct Quads<'a> {
    geometry: &'a Geometry,
    strip: usize,
    /// Neighbours of a thread.
    width: usize,
}

impl Quads<'_> {
    /// Columns that a thread has.
    fn columns(&self) -> usize {
        if self.geometry.channels_last() { 1 } else { self.width }
    }

    /// Workgroups beside each other for all channels.
    fn groups(&self) -> usize {
        let channels = self.geometry.problem.in_channels();
        if self.geometry.channels_last() { channels.div_ceil(32) } else { channels }
    }

    /// Strips and vectors (pixels in NHWC) of an image.
    fn strips(&self, size: [usize; 2]) -> [usize; 2] {
        [size[0].div_ceil(self.strip), size[1].div_ceil(self.columns())]
    }

    fn shape(&self, by_image: [usize; 2], strips: usize, threads: usize, each: usize) -> DepthwiseQuadsShape {
        let p = &self.geometry.problem;
        DepthwiseQuadsShape {
            batch: int(p.batch()),
            input: ints(p.in_size()),
            output: ints(p.out_size()),
            channels: int(p.in_channels()),
            threads: int(threads),
            vectors_per_split: int(each),
            by_image: Divisor::new(by_image[0] * by_image[1]),
            by_width: Divisor::new(by_image[1]),
            by_strips: Divisor::new(strips),
            by_channels: Divisor::new(self.groups()),
        }
    }

    fn stage(&self, entry: &'static str, grid: [u32; 3], pointers: Vec<Pointer>, shape: DepthwiseQuadsShape) -> Stage {
        let geometry = self.geometry;
        let p = &geometry.problem;
        let mut constants = geometry.constants();
        if geometry.form == Form::Specialised {
            constants.push(("CHANNELS", p.in_channels() as i64));
        }
        constants.extend(geometry.window_constants());
        constants.extend([("WIDTH", self.width as i64), ("STRIP", self.strip as i64)]);
        if geometry.channels_last() {
            constants.push(("WEIGHTS", i64::from(p.direction() == Direction::BackwardWeights)));
        }
        Stage {
            kernel: Kernel { source: SourceFile::DepthwiseQuads, entry, constants },
            grid,
            block: 256,
            pointers,
            shape: shape.into(),
        }
    }

    /// An error where a strip that reads that many rows needs too many registers. gfx1010's compiler has all reads of a strip under way at
    /// once, as they lie in memory, beside sums and taps. More would cost it waves. Those of a filter's gradient it has
    /// one after the other, in a loop.
    fn fits_registers(&self, rows: usize) -> Result<(), String> {
        let (p, width, strip) = (&self.geometry.problem, self.width, self.strip);
        let channels_last = self.geometry.channels_last();
        let line = if channels_last {
            p.kernel()[1] * width
        } else {
            (width - 1) * p.stride()[1] + (p.kernel()[1] - 1) * p.dilation()[1] + 1
        };
        let taps = self.geometry.taps() * if channels_last { width } else { 1 };
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
    }

    /// Forward and backward-data: a thread for each strip of vectors of the result.
    fn images(&self, entry: &'static str, size: [usize; 2]) -> LaunchPlan {
        let geometry = self.geometry;
        let (channels, groups) = (geometry.problem.in_channels(), self.groups());
        let [strips, vectors] = self.strips(size);
        let pixels = geometry.problem.batch() * strips * vectors;
        let (threads, grid) = match geometry.channels_last() {
            true => (pixels, grid_x((pixels.div_ceil(8 * self.width) * groups) as u64, 1)),
            false => (pixels * channels, grid_x((pixels * channels) as u64, 256)),
        };
        let operands = geometry.operands();
        let shape = self.shape([size[0], vectors], strips, threads, 0);
        LaunchPlan { stages: vec![self.stage(entry, grid, operands, shape)], workspace_bytes: 0 }
    }
}

pub(crate) fn depthwise_quads(geometry: &Geometry, strip: u32, splits: u32) -> Result<LaunchPlan, String> {
    let p = &geometry.problem;
    let launches = Quads { geometry, strip: strip.max(1) as usize, width: depthwise_width(geometry)? };
    let strip = launches.strip;
    let reach = (p.kernel()[0] - 1) * p.dilation()[0];
    let rows = match p.direction() {
        Direction::BackwardData => (strip - 1 + reach).div_ceil(p.stride()[0]) + 1,
        Direction::Forward | Direction::BackwardWeights => (strip - 1) * p.stride()[0] + reach + 1,
    };
    if p.direction() == Direction::BackwardData {
        whole_strides(p, strip)?;
    }
    launches.fits_registers(rows)?;
    Ok(match p.direction() {
        Direction::Forward => launches.images("depthwise_quads_forward", p.out_size()),
        Direction::BackwardData => launches.images("depthwise_quads_backward_data", p.in_size()),
        Direction::BackwardWeights => {
            let strips = launches.strips(p.out_size());
            in_parts(geometry, p.batch() * strips[0] * strips[1], splits, |part| {
                let pointers = vec![geometry.first, geometry.second, part.to];
                let grid = [launches.groups() as u32, part.splits, 1];
                launches.stage(
                    "depthwise_quads_backward_weights",
                    grid,
                    pointers,
                    launches.shape(strips, 1, 0, part.each),
                )
            })
        }
    })
}
