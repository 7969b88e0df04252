//! A model of the device: how long a plan would take, to choose when nothing has been measured, and to say what a card
//! that nobody here has could reach.
//!
//! A launch takes the longer of its arithmetic and its memory traffic, and a fixed cost. Arithmetic runs at the peak
//! rate, times the share of multiply-adds in the tile's loop, times how well the workgroups fill the compute units.

use unhang_conv::{Direction, Problem};

use crate::choice::{Choice, Tile};
use crate::plan::{Plan, Stage};
use crate::sources::Source;

/// What the model knows of a device.
#[derive(Debug, Clone, PartialEq)]
pub struct Device {
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
}

impl Device {
    /// An RX 5600 XT: 36 compute units, 7.2 TFLOP/s, 288 GB/s, 4 MiB of L2: the vendor's figures, not measured here. Its
    /// efficiency is what other people's OpenCL GEMM kernels were seen to reach on the card.
    pub fn rx_5600_xt() -> Device {
        Device {
            compute_units: 36,
            flops: 7.2e12,
            bandwidth: 288e9,
            launch: 6e-6,
            efficiency: 0.8,
            cache: 4e6,
            memory: 6 << 30,
        }
    }

    /// One NVIDIA H200: 132 multiprocessors at 1.98 GHz, 4.3 TB/s measured by a copy, 60 MB of L2.
    pub fn h200() -> Device {
        Device {
            compute_units: 132,
            flops: 132.0 * 256.0 * 1.75e9,
            bandwidth: 4.3e12,
            launch: 1.4e-6,
            efficiency: 0.62,
            cache: 50e6,
            memory: 139 << 30,
        }
    }
}

/// What a tile reaches, relative to the best one: small tiles read LDS more often for each product, and small or flat
/// ones read memory more often. Fitted to what was measured on an H200.
fn tile_share(tile: Tile) -> f64 {
    let shape = match (tile.thread_rows, tile.thread_columns) {
        (8, 8) => 1.0,
        (8, 4) => 0.92,
        (4, 8) => 0.89,
        _ => 0.90,
    };
    // Products for each element that is read from memory, in the tile; 128 × 128 has 64.
    let shared = (tile.rows * tile.columns) as f64 / (tile.rows + tile.columns) as f64;
    shape * (shared / (shared + 8.0)) / (64.0 / 72.0)
}

/// Seconds of a plan on a device.
pub fn estimate(problem: &Problem, choice: &Choice, plan: &Plan, device: &Device) -> f64 {
    plan.stages.iter().map(|stage| device.launch + stage_seconds(problem, choice, stage, device)).sum()
}

fn stage_seconds(problem: &Problem, choice: &Choice, stage: &Stage, device: &Device) -> f64 {
    let size = problem.data_type().size() as f64;
    let elements = problem.operand_shapes().map(|shape| shape.iter().map(|&n| n as f64).product::<f64>());
    let all: f64 = elements.iter().sum();
    let constant = |name: &str| stage.kernel.constant(name).unwrap_or(1) as f64;
    match stage.kernel.source {
        // One or two loads for each product, mostly from caches, and 64-bit addressing.
        Source::Plain => (problem.flops() / (device.flops * 0.02)).max(all * size / device.bandwidth),
        Source::Gemm | Source::Weights => {
            let tile = match *choice {
                Choice::Gemm { tile, .. }
                | Choice::HalfGemm { tile, .. }
                | Choice::Weights { tile, .. }
                | Choice::Winograd { tile, .. } => tile,
                _ => return f64::INFINITY,
            };
            matrix_seconds(problem, choice, stage, tile, device)
        }
        Source::Narrow => {
            // A read of the first cache for each row and tap of a strip, and one of LDS for each tap of the filter,
            // beside the products; threads that are too few leave units idle. Fitted to an H200.
            let (strip, rows) = (constant("STRIP"), constant("ROWS"));
            let high = constant("FILTER_H");
            let for_each = strip * high * rows;
            let share = for_each / (for_each + 4.0 * (strip + high - 1.0) + 4.0 * high);
            let threads = f64::from(stage.grid[0]) * f64::from(stage.grid[1]) * 128.0;
            let filled = (threads / (device.compute_units as f64 * 512.0)).min(1.0).powf(0.5);
            let products = problem.flops() / (device.flops * share * filled * 0.42);
            products.max(all * size / (device.bandwidth * 0.8)) + 1.2e-6
        }
        Source::Direct => {
            // Each part of the channels reads the source again, mostly from a cache; one read of LDS serves WIDTH × STRIP
            // products of four channels. Fitted to an H200.
            let (rows, width, strip) = (constant("BLOCK_ROWS"), constant("WIDTH"), constant("STRIP"));
            let parts = (constant("ROWS") / rows).ceil();
            let share = width * strip / (width * strip + 1.0);
            let waste = parts * rows / constant("ROWS");
            let threads = f64::from(stage.grid[0]) * f64::from(stage.grid[1]) * 128.0;
            let filled = (threads / (device.compute_units as f64 * 512.0)).min(1.0).powf(0.5);
            let products = problem.flops() * waste / (device.flops * 0.6 * share * filled);
            let moved = (elements[0] * parts.sqrt() + elements[1] + elements[2]) * size;
            products.max(moved / (device.bandwidth * 0.8)) + 1.2e-6
        }
        Source::Depthwise => {
            let strip = constant("STRIP");
            let reads = match problem.direction() {
                Direction::BackwardWeights => constant("FILTER_H") * constant("FILTER_W") + 1.0,
                _ => constant("FILTER_W") * (strip + constant("FILTER_H") - 1.0) / strip,
            };
            let pixels = elements[0].max(elements[2]);
            // Reads hit the first cache: about 32 lanes a clock and unit at the model's clock.
            let cached = pixels * reads / (device.flops / 256.0 * 32.0);
            (all * size / (device.bandwidth * 0.8)).max(cached) + cached * 0.5
        }
        Source::DepthwiseQuads => {
            let (strip, width) = (constant("STRIP"), constant("WIDTH"));
            // Vectors read for each row of WIDTH results, and rows for each row of results.
            let vectors = if constant("CHANNELS_LAST") == 1.0 {
                constant("FILTER_W")
            } else {
                constant("STRIDE_W") + if constant("FILTER_W") > 1.0 { 2.0 } else { 0.0 }
            };
            let reads = match problem.direction() {
                Direction::BackwardWeights => vectors * (strip + constant("FILTER_H") - 1.0) / strip + 1.0,
                _ => vectors * (strip + constant("FILTER_H") - 1.0) / strip,
            } / width;
            let pixels = elements[0].max(elements[2]);
            let cached = pixels * reads / (device.flops / 256.0 * 24.0);
            (all * size / (device.bandwidth * 0.8)).max(cached) + cached * 0.5
        }
        Source::WinogradFused if stage.kernel.entry == "fused_filter" => {
            elements[1] * (size + 64.0 / 9.0) / device.bandwidth
        }
        Source::WinogradFused => {
            let blocks = f64::from(stage.grid[0]);
            let steps = (constant("REDUCED") / 8.0).ceil();
            // 16 places × 32 × 32 sums, eight channels a step; what begins and ends a workgroup is worth half a step.
            // Transforms and two barriers a step leave less for the products than a matrix tile has. Fitted to an H200.
            let products = 16.0 * 32.0 * 32.0 * 8.0 * (steps + 0.5);
            let each = blocks / device.compute_units as f64;
            let rounds = if each > 6.0 { each + 0.8 } else { each.ceil() };
            let filled = (each.ceil().min(2.0) / 2.0).powf(0.45);
            let rate = device.flops / 2.0 / device.compute_units as f64 * device.efficiency * 0.7 * filled;
            (rounds * products / rate + 1.2e-6).max(all * size / (device.bandwidth * 0.8))
        }
        Source::Winograd | Source::Support => {
            // 36 numbers of f32 for each filter.
            let enlarged = 144.0 / (constant("FILTER") * constant("FILTER"));
            let moved = match stage.kernel.entry {
                "pack" => elements[1] * size * 3.0,
                "reduce" => elements[2] * (size + 4.0 * splits_of(choice)),
                "reduce_weights" => elements[2] * (size + 4.0 * splits_of(choice)),
                "winograd_filter" => elements[1] * (size + enlarged),
                "winograd_weights" => elements[2] * (size + enlarged * splits_of(choice)),
                _ => {
                    let transformed = f64::from(stage.grid[0]) * 128.0;
                    transformed * (36.0 * 4.0 + 16.0 * size)
                }
            };
            // What was just written and fits the last cache does not come from memory.
            let rate = if moved < device.cache { device.bandwidth } else { device.bandwidth * 0.6 };
            moved / rate
        }
    }
}

fn splits_of(choice: &Choice) -> f64 {
    match *choice {
        Choice::Gemm { splits, .. }
        | Choice::Weights { splits, .. }
        | Choice::HalfGemm { splits, .. }
        | Choice::Depthwise { splits, .. }
        | Choice::DepthwiseQuads { splits, .. }
        | Choice::Winograd { splits, .. } => f64::from(splits),
        Choice::Plain | Choice::Narrow { .. } | Choice::Direct { .. } | Choice::WinogradFused => 1.0,
    }
}

fn matrix_seconds(problem: &Problem, choice: &Choice, stage: &Stage, tile: Tile, device: &Device) -> f64 {
    let blocks: f64 = stage.grid.iter().map(|&n| f64::from(n)).product();
    // The kernels' parameter structures hold the steps of a split as their sixth number.
    let steps = stage.parameters.get(20..24).map_or(1, |b| i32::from_ne_bytes([b[0], b[1], b[2], b[3]])).max(1);
    let mut steps = f64::from(steps);
    if stage.kernel.constant("DIRECTION") == Some(1) {
        // Phases differ in length; the grid counts them all as the longest.
        let (kernel, stride) = (problem.kernel(), problem.stride());
        for axis in 0..2 {
            steps *= (kernel[axis] as f64 / stride[axis] as f64) / kernel[axis].div_ceil(stride[axis]) as f64;
        }
    }
    let products = (tile.rows * tile.columns * tile.depth) as f64 * steps;
    let resident = (512.0 / tile.threads() as f64).max(1.0);
    let each = blocks / device.compute_units as f64;
    // Workgroups come in rounds as long as there are few of them; many even out.
    let rounds = if each > 3.0 * resident { each + 0.4 * resident } else { each.ceil() };
    // One workgroup alone leaves the unit waiting for memory and barriers.
    let threads = (each.ceil().min(resident) * tile.threads() as f64).min(512.0);
    let filled = (threads / 512.0).powf(0.45);
    let direct = match *choice {
        Choice::Gemm { flat: true, .. } => 0.8,
        Choice::Gemm { packed: false, .. } if stage.kernel.constant("FILTER_W") != Some(1) => 0.9,
        Choice::Weights { .. } => 0.9,
        _ => 1.0,
    };
    // Both sides are gathered along the reduction here: the largest tile waits for its reads, the smallest has too few
    // threads for them.
    let gathered = match (stage.kernel.source, tile.rows, tile.columns, tile.thread_columns) {
        (Source::Weights, 128, 128, _) | (Source::Weights, 64, 64, 8) => 0.9,
        _ => 1.0,
    };
    // A 1×1 layer does nothing but read and multiply: few threads with many sums each wait for their reads, as do the
    // smallest groups of threads in Winograd's products.
    let pointwise = stage.kernel.source == Source::Gemm && stage.kernel.constant("POINTWISE") == Some(1);
    let in_whole_rows = stage.kernel.constant("ROWS").is_some_and(|rows| rows % 64 == 0);
    let waiting = match choice {
        Choice::Gemm { .. } if pointwise && in_whole_rows && tile.threads() < 256 => 0.87,
        Choice::Winograd { .. } if pointwise && tile.threads() == 64 => 0.88,
        _ => 1.0,
    };
    // In NHWC pixels are turned over on their way into LDS, one element at a time.
    let turned = match (stage.kernel.source, stage.kernel.constant("CHANNELS_LAST")) {
        (Source::Gemm, Some(1)) => 1.0 / (1.0 + tile.columns as f64 / (tile.rows * 8) as f64),
        _ => 1.0,
    };
    let unit_rate = device.flops / 2.0 / device.compute_units as f64
        * device.efficiency
        * tile_share(tile)
        * filled
        * direct
        * waiting
        * turned
        * gathered;
    // A start and an end that nothing overlaps.
    let fixed = 1.2e-6;
    let size = problem.data_type().size() as f64;
    let elements = problem.operand_shapes().map(|shape| shape.iter().map(|&n| n as f64).product::<f64>());
    let moved = match choice {
        Choice::Winograd { .. } => blocks * (tile.rows * tile.columns) as f64 * 4.0 * 2.0,
        Choice::Gemm { .. } if stage.kernel.constant("PLANES") == Some(1) => {
            (elements[0] + elements[1]) * size + elements[2] * 4.0 * splits_of(choice)
        }
        _ => elements.iter().sum::<f64>() * size,
    };
    (rounds * products / unit_rate + fixed).max(moved / (device.bandwidth * 0.8))
}
