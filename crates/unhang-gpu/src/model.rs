//! A model of the device: how long a plan would take, to choose when nothing has been measured, and to say what a card
//! that nobody here has could reach.
//!
//! A launch takes the longer of its arithmetic and its memory traffic, and a fixed cost. Arithmetic of matrix kernels runs
//! at the peak rate, times two shares: that of multiply-adds in the tile's loop, and how well the workgroups fill the
//! compute units. Arithmetic of the others is counted in instructions. What was fitted for each kind of chip is in
//! [`crate::fit`] (`examples/compare_choices.rs` says how well it fits).

use unhang_conv::{Direction, Layout, Problem};

use crate::choice::{Choice, Tile};
use crate::fit::{H200, RDNA1, Shares};
use crate::plan::{LaunchPlan, Stage};
use crate::plan_parts::{LARGE_TAPS, as_product, winograd_places};
use crate::shapes::Shape;
use crate::sources::{Constant, SourceFile};

/// A device, as the model knows it.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceModel {
    /// Compute units (AMD) or multiprocessors (NVIDIA).
    pub compute_units: usize,
    /// Peak f32 operations a second, a multiply-add counted as two.
    pub flops: f64,
    /// Bytes a second to and from memory.
    pub bandwidth: f64,
    /// Seconds that a launch costs by itself in a row of launches.
    pub launch: f64,
    /// The share of the peak that the best tile reaches in the middle of its work.
    pub efficiency: f64,
    /// Bytes of the last cache.
    pub cache: f64,
    /// Bytes of memory.
    pub memory: u64,
    /// What kernels reach of that, by kind.
    pub shares: &'static Shares,
}

impl DeviceModel {
    /// An RX 5600 XT: 36 compute units, 7.2 TFLOP/s, 288 GB/s, 4 MiB of L2: the vendor's figures, not measured here. Its
    /// efficiency is what other people's OpenCL GEMM kernels were seen to reach on the card; the shares of kernels come from
    /// predictions.
    pub fn rx_5600_xt() -> DeviceModel {
        DeviceModel {
            compute_units: 36,
            flops: 7.2e12,
            bandwidth: 288e9,
            launch: 6e-6,
            efficiency: 0.8,
            cache: 4e6,
            memory: 6 << 30,
            shares: &RDNA1,
        }
    }

    /// One NVIDIA H200: 132 multiprocessors at 1.98 GHz, 4.3 TB/s measured by a copy, 60 MB of L2.
    pub fn h200() -> DeviceModel {
        DeviceModel {
            compute_units: 132,
            flops: 132.0 * 256.0 * 1.75e9,
            bandwidth: 4.3e12,
            launch: 1.4e-6,
            efficiency: 0.66,
            cache: 50e6,
            memory: 139 << 30,
            shares: &H200,
        }
    }
}

/// A tile's rate relative to the best one: small tiles read LDS more often for each product, and small or flat ones
/// read memory more often.
fn tile_share(tile: Tile, shares: &Shares) -> f64 {
    let shape = match (tile.thread_rows, tile.thread_columns) {
        (8, 8) => 1.0,
        (8, 4) => shares.eight_by_four,
        (4, 8) => shares.four_by_eight,
        _ => shares.four_by_four,
    };
    // Products for each element that is read from memory, in the tile; 128 × 128 has 64.
    let shared = (tile.rows * tile.columns) as f64 / (tile.rows + tile.columns) as f64;
    shape * (shared / (shared + 8.5)) / (64.0 / 72.5)
}

/// The slow-down of general kernels against the same choice specialised: geometric means over 78 layers in all
/// directions on an H200 (`gpu_bench.py bench --table layer` and `--table more`).
pub fn general_slowdown(problem: &Problem, choice: &Choice) -> f64 {
    let is_last = problem.layout() == Layout::Nhwc;
    match choice {
        Choice::Gemm { .. } | Choice::HalfGemm { .. } | Choice::Patches { .. } => 1.15,
        Choice::Weights { .. } | Choice::WeightsTurned { .. } => 1.14,
        Choice::Direct { .. } | Choice::Narrow { .. } => 1.08,
        Choice::Winograd { .. } => 1.07,
        Choice::DepthwiseQuads { .. } => 1.04,
        // Measured on 43 other layers.
        Choice::Depthwise { .. } if is_last && problem.direction() == Direction::BackwardData => 1.15,
        Choice::Depthwise { .. } => 1.03,
        Choice::WinogradFused => 1.02,
        Choice::Plain | Choice::DepthwiseLarge { .. } => 1.0,
    }
}

/// Seconds of a plan on a device.
pub fn estimate(problem: &Problem, choice: &Choice, plan: &LaunchPlan, device: &DeviceModel) -> f64 {
    // The kernels see another problem where windows are patches.
    let product = matches!(choice, Choice::Patches { .. }).then(|| as_product(&problem.lower().problem)).flatten();
    let turned = matches!(choice, Choice::WeightsTurned { .. }).then(|| problem.with_layout(Layout::Nhwc));
    let problem = product.as_ref().or(turned.as_ref()).unwrap_or(problem);
    plan.stages.iter().map(|stage| device.launch + stage_seconds(problem, choice, stage, device)).sum()
}

/// Seconds of the plain kernels. A thread waits for the two loads of each product of its sum, one product after the
/// other. A workgroup of backward-weights starts and ends for each element of the filter. The launch hides anything
/// shorter.
fn plain_seconds(problem: &Problem, stage: &Stage, device: &DeviceModel) -> f64 {
    let elements = elements(problem);
    let moved = elements.iter().sum::<f64>() * problem.data_type().size() as f64 / device.bandwidth;
    let products = problem.flops() / 2.0 / elements[2].max(1.0);
    let (units, waits) = (device.compute_units as f64, &device.shares.waits);
    let waiting = if stage.kernel.entry == "plain_backward_weights" {
        let turns = (products / 256.0).ceil();
        let [many, one] = waits.plain_turn;
        (f64::from(stage.grid[0]) / units * (waits.plain_workgroup + turns * many)).max(turns * one)
    } else {
        products * waits.plain_product + elements[2] / units * waits.plain_place
    };
    // Computing its place, and its first loads, which nothing hides.
    let begin = if problem.direction() == Direction::BackwardData { waits.plain_begin_data } else { waits.plain_begin };
    // One or two loads for each product, mostly from caches, and 64-bit addressing.
    (waiting + begin - device.launch).max(problem.flops() / (device.flops * 0.02)).max(moved)
}

/// A constant of a stage's kernel; 1 if it has none of that name, as general kernels lack sizes.
fn constant(stage: &Stage, which: Constant) -> f64 {
    stage.kernel.value(which).unwrap_or(1) as f64
}

fn stage_seconds(problem: &Problem, choice: &Choice, stage: &Stage, device: &DeviceModel) -> f64 {
    let size = problem.data_type().size() as f64;
    let elements = elements(problem);
    let all: f64 = elements.iter().sum();
    let constant = |which: Constant| constant(stage, which);
    match stage.kernel.source {
        SourceFile::Plain => plain_seconds(problem, stage, device),
        SourceFile::Gemm | SourceFile::Weights => {
            let tile = match *choice {
                Choice::Gemm { tile, .. }
                | Choice::HalfGemm { tile, .. }
                | Choice::Patches { tile, .. }
                | Choice::Weights { tile, .. }
                | Choice::WeightsTurned { tile, .. }
                | Choice::Winograd { tile, .. } => tile,
                _ => return f64::INFINITY,
            };
            matrix_seconds(problem, choice, stage, tile, device)
        }
        SourceFile::Narrow => narrow_seconds(problem, stage, device),
        SourceFile::Direct => direct_seconds(problem, stage, device),
        SourceFile::Depthwise | SourceFile::DepthwiseQuads => depthwise_seconds(problem, stage, device),
        SourceFile::DepthwiseLarge => depthwise_large_seconds(problem, stage, device),
        SourceFile::WinogradFused if stage.kernel.entry == "fused_filter" => {
            elements[1] * (size + 64.0 / 9.0) / device.bandwidth
        }
        SourceFile::WinogradFused => {
            let blocks = f64::from(stage.grid[0]);
            let Shape::Fused(shape) = stage.shape else { return f64::INFINITY };
            let steps = (f64::from(shape.reduced) / 8.0).ceil();
            // 16 places × 32 × 32 sums, eight channels a step; what begins and ends a workgroup is worth half a step.
            let products = 16.0 * 32.0 * 32.0 * 8.0 * (steps + 0.5);
            let each = blocks / device.compute_units as f64;
            let rounds = if each > 6.0 { each + 0.8 } else { each.ceil() };
            let filled = (each.ceil().min(2.0) / 2.0).powf(0.45);
            let rate =
                device.flops / 2.0 / device.compute_units as f64 * device.efficiency * device.shares.fused * filled;
            (rounds * products / rate + 1.2e-6).max(all * size / (device.bandwidth * 0.8))
        }
        SourceFile::WinogradStride2 => stride2_seconds(problem, choice, stage, device),
        SourceFile::Winograd
        | SourceFile::Support
        | SourceFile::Strided
        | SourceFile::Normalization
        | SourceFile::Pooling
        | SourceFile::Reduction => {
            // That many numbers of f32 for each filter, or for a tile of 4×4.
            let places = winograd_places(problem) as f64;
            let enlarged = 4.0 * places / (constant(Constant::Filter) * constant(Constant::Filter));
            let moved = match stage.kernel.entry {
                "pack" | "pack_across" => elements[1] * size * 2.2,
                "turn" => match stage.shape {
                    Shape::Turn(shape) => {
                        f64::from(shape.rows) * f64::from(shape.columns) * f64::from(stage.grid[2]) * size * 2.0
                    }
                    _ => f64::INFINITY,
                },
                "patch" => elements[0] * size * 2.0,
                "unpatch" => elements[2] * (size + 4.0 * splits_of(choice)),
                "reduce" | "reduce_weights" | "reduce_filters" => {
                    // Read once, by few threads where the result is small, and each adds its planes one after the other.
                    let planes = splits_of(choice);
                    let moved = elements[2] * (size + 4.0 * planes) / (device.bandwidth * 0.5) + planes * 8e-9;
                    // Eight threads for each element come in rounds.
                    let rounds = f64::from(stage.grid[0]) * 256.0 / (device.compute_units as f64 * 2048.0);
                    return if stage.kernel.entry == "reduce_weights" { moved.max(rounds * 1.2e-6) } else { moved };
                }
                "winograd_filter" => elements[1] * (size + enlarged),
                "winograd_weights" | "winograd_filters" => elements[2] * (size + enlarged * splits_of(choice)),
                _ => {
                    let transformed = f64::from(stage.grid[0]) * 128.0;
                    transformed * (places * 4.0 + 16.0 * size)
                }
            };
            // Data that was just written and fits in the last cache is not read from memory.
            let rate = if moved < device.cache { device.bandwidth } else { device.bandwidth * 0.6 };
            moved / rate
        }
    }
}

/// The traffic of Winograd's transforms for stride 2. A thread has 25 numbers of a transformed tensor, or 81 in four
/// phases.
fn stride2_seconds(problem: &Problem, choice: &Choice, stage: &Stage, device: &DeviceModel) -> f64 {
    let size = problem.data_type().size() as f64;
    let elements = elements(problem);
    let threads = f64::from(stage.grid[0]) * 128.0;
    let phases = f64::from(stage.grid[1]);
    let moved = match stage.kernel.entry {
        "stride2_filter" => elements[1] * (size + 36.0),
        "stride2_weights" => {
            // Each thread adds its planes one after the other.
            return elements[2] * (size + 36.0 * splits_of(choice)) / device.bandwidth + splits_of(choice) * 1e-6;
        }
        _ if phases > 1.0 => threads * (81.0 * 4.0 + 64.0 * size),
        _ => threads * (25.0 * 4.0 + 16.0 * size),
    };
    moved / if moved < device.cache { device.bandwidth } else { device.bandwidth * 0.6 }
}

/// Sides of a launch that overlap: the longer one, and a part of the shorter.
fn overlapped(one: f64, other: f64, rest: f64) -> f64 {
    one.max(other) + one.min(other) * rest
}

/// The loss when a thread needs more registers than that many: fewer waves hide each other's reads.
fn crowded(registers: f64, free: f64, power: f64) -> f64 {
    (registers / free).max(1.0).powf(power)
}

/// Rows and vectors (or elements) of the source that a strip of `strip` rows and `width` columns reads.
fn strip_reads(stage: &Stage, backward_data: bool, in_vectors: bool) -> (f64, f64) {
    let constant = |which: Constant| constant(stage, which);
    let (strip, high, wide) = (constant(Constant::Strip), constant(Constant::FilterH), constant(Constant::FilterW));
    let beside = if wide > 1.0 { 2.0 } else { 0.0 };
    let rows = match backward_data {
        true => (strip + high - 1.0) / constant(Constant::StrideH) + 1.0,
        false => (strip - 1.0) * constant(Constant::StrideH) + high,
    };
    let each = match (in_vectors, backward_data) {
        (false, _) => wide,
        (true, true) => 1.0 + beside,
        (true, false) => constant(Constant::StrideW) + beside,
    };
    (rows, each)
}

/// In addition to the products, for each row and tap of a strip a read of the first cache. For each tap of the filter
/// one of LDS. Too few threads leave units idle. Fitted to an H200.
fn narrow_seconds(problem: &Problem, stage: &Stage, device: &DeviceModel) -> f64 {
    let constant = |which: Constant| constant(stage, which);
    let size = problem.data_type().size() as f64;
    let elements = elements(problem);
    let (strip, rows) = (constant(Constant::Strip), constant(Constant::Rows));
    let high = constant(Constant::FilterH);
    let backward_data = constant(Constant::Direction) == 1.0;
    let for_each = strip * high * rows;
    let share = for_each / (for_each + 4.0 * (strip + high - 1.0) + 4.0 * high);
    let threads = f64::from(stage.grid[0]) * f64::from(stage.grid[1]) * 128.0;
    let filled = (threads / (device.compute_units as f64 * 512.0)).min(1.0).powf(0.5);
    let products = problem.flops() / (device.flops * share * filled * 0.42);
    // A phase's neighbours lie a stride apart: long strips gain less than they read.
    let apart = if backward_data && constant(Constant::StrideW) > 1.0 { 1.08 * (strip / 2.0).powf(0.25) } else { 1.0 };
    // Each phase of a stride reads the source again: from memory where it does not fit the last cache.
    let again = match backward_data && elements[0] * size > device.cache {
        true => elements[0] * (constant(Constant::StrideH) * constant(Constant::StrideW) - 1.0),
        false => 0.0,
    };
    let moved = (elements.iter().sum::<f64>() + again) * size / (device.bandwidth * 0.8);
    // Channels follow one another, and each waits for its rows.
    let taps = if backward_data { (high / constant(Constant::StrideH)).ceil() } else { high };
    let waiting = constant(Constant::Reduced) * (strip + taps - 1.0).powf(0.8) * device.shares.waits.narrow_row;
    (products * apart).max(scattered_seconds(stage, threads, size, device)).max(moved).max(waiting) + 1.2e-6
}

/// In NHWC the pixels of neighbouring lanes lie all channels apart: reads cost by the lines that they touch.
fn scattered_seconds(stage: &Stage, threads: f64, size: f64, device: &DeviceModel) -> f64 {
    let constant = |which: Constant| constant(stage, which);
    if constant(Constant::ChannelsLast) != 1.0 {
        return 0.0;
    }
    let backward_data = constant(Constant::Direction) == 1.0;
    // Taps of a phase, or of the whole window.
    let [high, wide] =
        [[Constant::FilterH, Constant::StrideH], [Constant::FilterW, Constant::StrideW]].map(|[filter, stride]| {
            if backward_data { (constant(filter) / constant(stride)).ceil() } else { constant(filter) }
        });
    let step = if backward_data { 1.0 } else { constant(Constant::StrideH) };
    let channels = constant(Constant::Reduced);
    let at_once = if channels % 4.0 == 0.0 { 4.0 } else { 1.0 };
    let reads = threads * ((constant(Constant::Strip) - 1.0) * step + high) * wide * channels / at_once;
    // Few channels share a line of 128 bytes with their neighbours.
    let lines = reads * (channels * size / 128.0).min(1.0);
    let filled = (threads / (device.compute_units as f64 * 100.0)).min(1.0);
    lines * device.shares.line / (device.flops / 2.0 * filled)
}

fn direct_seconds(problem: &Problem, stage: &Stage, device: &DeviceModel) -> f64 {
    let constant = |which: Constant| constant(stage, which);
    let size = problem.data_type().size() as f64;
    let elements = elements(problem);
    let data = constant(Constant::Direction) == 1.0;
    let Shape::Direct(shape) = stage.shape else { return f64::INFINITY };
    let (width, strip) = (constant(Constant::Width), constant(Constant::Strip));
    let (reduced, splits) = (f64::from(shape.channels_per_split), f64::from(stage.grid[2]));
    let taps = constant(Constant::FilterH) * constant(Constant::FilterW);
    let sums = constant(Constant::BlockRows) * width * strip;
    let parts = (f64::from(shape.rows) / constant(Constant::BlockRows)).ceil();
    let (rows, vectors) = strip_reads(stage, data, true);
    // A channel's products, the reads of its taps from LDS (one for four channels) and of its lines.
    let products = sums * taps / if data { constant(Constant::StrideH) * constant(Constant::StrideW) } else { 1.0 };
    let channel = products + products / (4.0 * width * strip) * 1.7 + rows * vectors * 4.4;
    let instructions = reduced * channel + 40.0 + sums * 2.0;
    let threads = f64::from(stage.grid[0]) * f64::from(stage.grid[1]) * splits * 128.0;
    let registers = sums + rows * if data { width + 2.0 } else { vectors * width };
    let shares = device.shares;
    let share = if constant(Constant::BlockRows) >= 16.0 { shares.direct_many_rows } else { shares.direct };
    let issued = threads * instructions / (device.flops / 2.0 * 0.6 * share) * crowded(registers, 64.0, 0.46);
    // One channel waits for its lines before the next begins; 1×1 layers have four under way.
    let waited = reduced * shares.waits.direct_channel / if taps == 1.0 { 4.0 } else { 1.0 };
    // A large window keeps a thread busy for longer than its lines take.
    let [channel, product] = shares.waits.direct_large;
    let waited = if taps > 25.0 { waited.max(reduced * (channel + products * product)) } else { waited };
    // Each part of the channels reads the source again, mostly from a cache.
    let written = if splits > 1.0 { splits * 4.0 } else { size };
    let moved = (elements[0] * (1.0 + 0.08 * (parts - 1.0)) + elements[1]) * size + elements[2] * written;
    overlapped(issued.max(waited), moved / (device.bandwidth * 0.8), 0.12)
}

fn depthwise_seconds(problem: &Problem, stage: &Stage, device: &DeviceModel) -> f64 {
    let constant = |which: Constant| constant(stage, which);
    let size = problem.data_type().size() as f64;
    let elements = elements(problem);
    let quads = stage.kernel.source == SourceFile::DepthwiseQuads;
    let channels_last = constant(Constant::ChannelsLast) == 1.0;
    let (strip, width) = (constant(Constant::Strip), if quads { constant(Constant::Width) } else { 1.0 });
    let taps = constant(Constant::FilterH) * constant(Constant::FilterW);
    let memory = elements.iter().sum::<f64>() * size / (device.bandwidth * 0.8);
    let rate = device.flops / 2.0 * 0.57;
    let backward_data = stage.kernel.entry.ends_with("data");
    let (rows, vectors) = strip_reads(stage, backward_data, quads && !channels_last);
    if stage.kernel.entry.ends_with("weights") {
        // How many vectors (pixels) a workgroup has; all its threads take turns on them.
        let each = match stage.shape {
            Shape::Depthwise(shape) => shape.pixels_per_split,
            Shape::DepthwiseQuads(shape) => shape.vectors_per_split,
            _ => 1,
        };
        let workers = if channels_last { 8.0 * width } else { 256.0 };
        let turns = (f64::from(each) / workers).ceil();
        let threads = f64::from(stage.grid[0]) * f64::from(stage.grid[1]) * 256.0;
        let products = if quads { strip * width * taps } else { taps };
        let rows = if quads { rows } else { constant(Constant::FilterH) };
        let registers = strip * width + taps * if channels_last { width } else { 1.0 } + vectors * width;
        let late = crowded(registers, 64.0, 0.04);
        let turn = if channels_last { device.shares.depthwise.turn } else { 0.55e-6 };
        let issued = threads * turns * (products + rows * vectors * 6.5) / rate * late + turns * turn;
        // In NHWC the sums of several taps are added at a time.
        let at_once = match (channels_last, quads) {
            (true, true) => 16.0 / width,
            (true, false) => 8.0,
            (false, _) => 1.0,
        };
        return overlapped(issued, memory * late, 0.18) + (taps / at_once).ceil() * 0.28e-6;
    }
    let products = strip * width * taps
        / if backward_data { constant(Constant::StrideH) * constant(Constant::StrideW) } else { 1.0 };
    let threads = f64::from(stage.grid[0]) * 256.0;
    let fit = &device.shares.depthwise;
    let in_vectors = quads && channels_last;
    let kind = usize::from(!in_vectors);
    let kept = if taps > LARGE_TAPS as f64 { 0.0 } else { taps };
    let registers = strip * width + kept * if in_vectors { width } else { 1.0 } + rows * vectors * width * size / 4.0;
    if !channels_last {
        let late = crowded(registers, 64.0, 0.04);
        let issued = threads * (products + rows * vectors * 6.5 + taps * 1.8) / rate * late;
        // A long strip's reads follow one another, which only many threads hide.
        let [begin, read] = device.shares.waits.depthwise;
        let waited = if quads { 0.0 } else { begin + rows * vectors * read };
        return overlapped(issued.max(waited), memory * late, 0.18);
    }
    // Vectors of channels cost by their width, and so do their taps, which are read from LDS; the rows of a strip lie far apart.
    let [read, tap] = [fit.read[kind], fit.tap[kind]].map(|cost| if in_vectors { cost * width } else { cost });
    let apart = if in_vectors { 1.0 + fit.apart * (strip - 1.0) } else { 1.0 };
    // Few threads leave units idle, which their reads wait for.
    let filled = (threads / (device.compute_units as f64 * 1024.0)).min(1.0);
    let filled = if in_vectors { filled.powf(fit.filled) } else { 1.0 };
    let late = crowded(registers, fit.registers[kind], fit.crowded[kind]);
    let issued = threads * (products + rows * vectors * read + taps * tap) / (rate * filled) * late;
    let bytes = elements.iter().sum::<f64>() * size;
    let moved = bytes / (device.bandwidth * fit.bandwidth[usize::from(bytes < device.cache)]);
    overlapped(issued, moved * late * apart, fit.rest) + fit.begin[kind] + rows * fit.row[kind]
}

/// Two reads of LDS for 32 products leave less than half of the peak; rows of the window beyond the image are skipped.
fn depthwise_large_seconds(problem: &Problem, stage: &Stage, device: &DeviceModel) -> f64 {
    let Shape::DepthwiseLarge(shape) = stage.shape else { return f64::INFINITY };
    let elements = elements(problem);
    let moved = elements.iter().sum::<f64>() * problem.data_type().size() as f64 / (device.bandwidth * 0.6);
    let workgroups = f64::from(stage.grid[0]) * f64::from(stage.grid[1]);
    let rows = f64::from(shape.window[0]).min(f64::from(shape.image[0]));
    let columns = f64::from((shape.window[1] + 3) / 4 * 4);
    let products = f64::from(stage.block) * 8.0 * rows * columns * f64::from(shape.images_per_split);
    let rounds = (workgroups / (device.compute_units as f64 * 4.0)).ceil() * 4.0;
    (rounds * products / (device.flops / 2.0 / device.compute_units as f64 * 0.35) + 2e-6).max(moved)
}

/// Elements of both operands and of the result.
fn elements(problem: &Problem) -> [f64; 3] {
    problem.operand_shapes().map(|shape| shape.iter().map(|&n| n as f64).product())
}

fn splits_of(choice: &Choice) -> f64 {
    match *choice {
        Choice::Gemm { splits, .. }
        | Choice::Direct { splits, .. }
        | Choice::Weights { splits, .. }
        | Choice::WeightsTurned { splits, .. }
        | Choice::HalfGemm { splits, .. }
        | Choice::Patches { splits, .. }
        | Choice::Depthwise { splits, .. }
        | Choice::DepthwiseQuads { splits, .. }
        | Choice::DepthwiseLarge { splits }
        | Choice::Winograd { splits, .. } => f64::from(splits),
        Choice::Plain | Choice::Narrow { .. } | Choice::WinogradFused => 1.0,
    }
}

/// Slices of the reduction for a workgroup: on average, and in the longest one.
fn slices(problem: &Problem, stage: &Stage, in_phases: bool) -> (f64, f64) {
    let longest = match stage.shape {
        Shape::Gemm(shape) => f64::from(shape.steps_per_split),
        Shape::Weights(shape) => f64::from(shape.steps_per_split),
        _ => 1.0,
    };
    let mut steps = longest;
    if in_phases {
        // Phases differ in length; the grid counts them all as the longest.
        let (kernel, stride) = (problem.kernel(), problem.stride());
        for axis in 0..2 {
            steps *= (kernel[axis] as f64 / stride[axis] as f64) / kernel[axis].div_ceil(stride[axis]) as f64;
        }
    }
    // Of 100 places in the phases of a 5×5 window, 81 exist.
    match stage.kernel.value(Constant::Nested) {
        // Sums of different length leave units waiting for the longest.
        Some(1) => steps *= 0.88,
        Some(_) => steps *= 0.81,
        None => {}
    }
    (steps, longest)
}

/// Workgroups that a compute unit has one after the other, of `each` in all.
fn rounds(each: f64, tile: Tile) -> f64 {
    let resident = resident(tile);
    // Few workgroups leave the unit waiting for memory and barriers.
    let filled = |blocks: f64| ((blocks.ceil().min(resident) * tile.threads() as f64).min(512.0) / 512.0).powf(0.28);
    // Few workgroups run in rounds, the last one with fewer; many even out.
    if each > 3.0 * resident {
        return each + 0.4 * resident;
    }
    let whole = (each / resident).floor() * resident;
    let rest = each - whole;
    whole + if rest > 0.0 { rest.ceil() / filled(rest) } else { 0.0 }
}

/// Workgroups that a compute unit has beside each other.
fn resident(tile: Tile) -> f64 {
    (512.0 / tile.threads() as f64).max(1.0)
}

fn matrix_seconds(problem: &Problem, choice: &Choice, stage: &Stage, tile: Tile, device: &DeviceModel) -> f64 {
    let shares = device.shares;
    let blocks: f64 = stage.grid.iter().map(|&n| f64::from(n)).product();
    let each = blocks / device.compute_units as f64;
    let backward_data = matches!(stage.shape, Shape::Gemm(shape) if shape.backward == 1);
    let in_phases = backward_data && stage.kernel.value(Constant::Spread).is_none();
    let (steps, longest) = slices(problem, stage, in_phases);
    // What begins and ends a tile is worth eight more products of each sum.
    let products = (tile.rows * tile.columns) as f64 * (tile.depth as f64 * steps + 8.0);
    let size = problem.data_type().size() as f64;
    let elements = elements(problem);
    let reached = device.efficiency
        * tile_share(tile, shares)
        * reading_share(problem, choice, backward_data, shares)
        * waiting_share(choice, stage, tile, shares)
        * gathering_share(choice, stage, tile, shares);
    // A slice of eight pixels is a quarter of a line: of many workgroups none finds the rest of it in the first caches.
    let crowded = match stage.kernel.source == SourceFile::Weights && tile.depth == 8 && each > 2.0 {
        true if tile.rows * tile.columns < 128 * 128 => shares.weights_crowded,
        _ => 1.0,
    };
    // Phases of a stride differ in length and write every other pixel.
    let is_strided = in_phases && problem.stride() != [1, 1];
    let are_many = each > 3.0 * resident(tile);
    let strided = match is_strided {
        false => 1.0,
        // The longest phase is the last to end: with few workgroups small ones fill the gaps.
        true if !are_many && tile.rows == 32 && tile.columns <= 64 => shares.strided_in_small_tiles,
        true if !are_many => shares.strided_in_few_tiles,
        true => shares.strided,
    };
    // In NHWC pixels are turned over on their way into LDS, one element at a time.
    let turned = match (stage.kernel.source, stage.kernel.value(Constant::ChannelsLast)) {
        (SourceFile::Gemm, Some(1)) if tile.columns == 256 && tile.thread_rows == 8 => shares.turned_in_few_threads,
        (SourceFile::Gemm, Some(1)) => (1.0 / (1.0 + tile.columns as f64 / (tile.rows * 8) as f64)).max(0.9),
        _ => 1.0,
    };
    let unit_rate = device.flops / 2.0 / device.compute_units as f64 * reached * strided * crowded * turned;
    // A start and an end that nothing overlaps.
    let fixed = 1.2e-6;
    let moved = match choice {
        Choice::Winograd { .. } => blocks * (tile.rows * tile.columns) as f64 * 4.0 * 2.0,
        Choice::Gemm { .. } | Choice::Patches { .. } if matches!(stage.shape, Shape::Gemm(shape) if shape.planes == 1) => {
            (elements[0] + elements[1]) * size + elements[2] * 4.0 * splits_of(choice)
        }
        _ => elements.iter().sum::<f64>() * size,
    };
    // With few workgroups the unit that has the longest phase of a stride is waited for.
    let active = if splits_of(choice) > 1.0 { each * steps / longest } else { each };
    let late = match is_strided && active < 2.5 {
        true => 0.6 * (tile.rows * tile.columns * tile.depth) as f64 * longest / unit_rate,
        false => 0.0,
    };
    (rounds(each, tile) * products / unit_rate + late + fixed).max(moved / (device.bandwidth * 0.8))
}

/// The share that remains if operands are not laid out as a tile likes them.
fn reading_share(problem: &Problem, choice: &Choice, backward_data: bool, shares: &Shares) -> f64 {
    let filter_bytes = problem.operand_shapes()[1].iter().product::<usize>() * problem.data_type().size();
    let is_pointwise = problem.kernel() == [1, 1];
    match *choice {
        Choice::Gemm { flat: true, .. } => shares.flat,
        // Rows of the filter lie a window apart: neighbouring threads read neighbouring lines, and deep slices more of them.
        // A small filter stays in the first cache.
        Choice::Gemm { tile, packed: false, .. }
            if backward_data && problem.layout() == Layout::Nchw && !is_pointwise && filter_bytes >= 128_000 =>
        {
            if tile.depth > 8 { shares.unpacked_data_deep } else { shares.unpacked_data }
        }
        Choice::Gemm { packed: false, .. } | Choice::HalfGemm { packed: false, .. }
            if is_pointwise && !backward_data =>
        {
            shares.unpacked_pointwise
        }
        Choice::Gemm { packed: false, .. } if problem.kernel()[1] != 1 => shares.unpacked,
        Choice::HalfGemm { packed: false, .. } if !is_pointwise => shares.unpacked_half,
        // Columns are gathered tap by tap, rows in quads.
        Choice::Weights { tile, .. } | Choice::WeightsTurned { tile, .. } | Choice::Patches { tile, .. }
            if problem.direction() == Direction::BackwardWeights =>
        {
            let by_layout = if problem.layout() == Layout::Nhwc { shares.weights_channels_last } else { 1.0 };
            by_layout
                * match (tile.rows, tile.columns) {
                    (rows, columns) if columns > rows => shares.weights_wide,
                    (128, 128) => shares.weights_large,
                    _ => shares.weights,
                }
        }
        _ => 1.0,
    }
}

/// What backward-weights in NCHW gains if both operands are read in quads, and loses in small tiles that gather each
/// element.
fn gathering_share(choice: &Choice, stage: &Stage, tile: Tile, shares: &Shares) -> f64 {
    match (choice, stage.kernel.value(Constant::SourceQuads)) {
        (Choice::Weights { .. }, Some(1))
            if stage.kernel.value(Constant::ChannelsLast) == Some(0) && tile.depth == 8 =>
        {
            shares.weights_in_quads
        }
        (Choice::Weights { .. }, Some(0)) if tile.rows * tile.columns <= 16 * 128 => {
            shares.weights_gathered_in_small_tiles
        }
        _ => 1.0,
    }
}

/// The share that remains if few threads with many sums each wait for their reads, in kernels that do little except
/// reading and multiplying. Also what products in pairs gain.
fn waiting_share(choice: &Choice, stage: &Stage, tile: Tile, shares: &Shares) -> f64 {
    let is_gemm = stage.kernel.source == SourceFile::Gemm;
    let pointwise = is_gemm && stage.kernel.value(Constant::Pointwise) == Some(1);
    let in_whole_rows = matches!(stage.shape, Shape::Gemm(shape) if shape.rows % 64 == 0);
    let is_nested = stage.kernel.value(Constant::Nested).is_some();
    let is_specialised = stage.kernel.value(Constant::Rows).is_some();
    let winograd = if is_nested { 1.0 } else { shares.winograd };
    match choice {
        Choice::HalfGemm { .. } if tile.depth > 8 => shares.pairs * shares.pairs_deep,
        Choice::HalfGemm { .. } => shares.pairs,
        Choice::Gemm { .. } if is_specialised && tile.rows * tile.columns == 128 * 128 => shares.large,
        Choice::Gemm { .. } if pointwise && in_whole_rows && tile.threads() < 256 => shares.pointwise_few_threads,
        Choice::Winograd { .. } if pointwise && tile.threads() == 64 => winograd * shares.winograd_few_threads,
        // Large tiles end beyond the phases that a place has, and there are few of them.
        Choice::Winograd { .. }
            if is_gemm && stage.kernel.value(Constant::Nested) == Some(2) && tile.rows * tile.columns >= 8192 =>
        {
            shares.winograd_nested_large
        }
        Choice::Winograd { .. } if is_gemm => winograd,
        // Both sides of the filter's gradient are read across: tall tiles share more of it.
        Choice::Winograd { .. } if tile.rows == 64 && tile.thread_rows == 8 => shares.winograd_weights_tall,
        Choice::Winograd { .. } if tile.rows * tile.columns == 128 * 128 && !is_nested => shares.winograd_weights_large,
        Choice::Winograd { .. } if tile.rows == 128 && !is_nested => shares.winograd_weights_high,
        _ => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use unhang_conv::DataType;

    use super::*;
    use crate::candidates::candidates;

    #[test]
    fn each_constant_that_is_read_is_one_of_a_kernel() {
        let layers = unhang_suite::layers();
        let mut left = Constant::ALL.to_vec();
        for (layer, layout) in layers.iter().flat_map(|layer| Layout::ALL.map(|layout| (layer, layout))) {
            for direction in Direction::ALL {
                let problem = layer.problem.with_data_type(DataType::F32).with_layout(layout).with_direction(direction);
                let stages =
                    candidates(&problem, &DeviceModel::h200(), 1 << 30).into_iter().flat_map(|it| it.plan.stages);
                stages.for_each(|stage| left.retain(|which| stage.kernel.value(*which).is_none()));
            }
        }
        assert_eq!(left, [], "no kernel of the layers has these");
    }
}
