//! A choice made concrete: the launches of `plan_parts`, put together to a plan.

use unhang_conv::{DataType, Direction, Layout, Problem};

use crate::choice::{Choice, Tile};
use crate::plan::{Form, LaunchPlan, MAX_EXTENT, MAX_GRID_YZ, MAX_PHASES, MAX_TENSOR_BYTES, PlanError, Pointer};
use crate::plan_parts::{self as parts, Geometry};

/// The most channels that Winograd's algorithm sums in f32, for its errors: of 3×3 filters, of 5×5 ones, of 7×7 ones, and with a stride
/// of two. They are a fraction of what the suite allows (`docs/internals/benchmarks/gpu.md`), and grow with the root of the channels.
const MAX_WINOGRAD_CHANNELS: [usize; 4] = [2048, 384, 192, 768];
/// `reduce` receives a byte for each phase.
const MAX_PHASE_PLANES: u64 = 255;

impl LaunchPlan {
    /// Makes a choice concrete, with kernels for this problem.
    pub fn new(problem: &Problem, choice: &Choice) -> Result<LaunchPlan, PlanError> {
        LaunchPlan::with_form(problem, choice, Form::Specialised)
    }

    /// Makes a choice concrete with general kernels; an error where there are none for the choice.
    pub fn general(problem: &Problem, choice: &Choice) -> Result<LaunchPlan, PlanError> {
        LaunchPlan::with_form(problem, choice, Form::General)
    }

    /// Makes a choice concrete with kernels of the given form.
    pub fn with_form(problem: &Problem, choice: &Choice, form: Form) -> Result<LaunchPlan, PlanError> {
        let fail = |reason: String| PlanError { choice: choice.to_string(), problem: problem.to_string(), reason };
        let geometry = Geometry::new(problem, form);
        if let Some(extent) = geometry.largest_extent()
            && extent > MAX_EXTENT
        {
            return Err(fail(format!("a size of {extent} is more than {MAX_EXTENT}")));
        }
        if !matches!(choice, Choice::Plain) {
            fits_fast_kernels(&geometry).map_err(fail)?;
        }
        match *choice {
            Choice::Plain => parts::plain(&geometry),
            Choice::Gemm { tile, packed, flat, splits } => {
                gemm(&geometry, &Products { tile, packed, flat, half: false, splits })
            }
            Choice::HalfGemm { tile, packed, splits } => half_gemm(&geometry, tile, packed, splits),
            Choice::Patches { tile, splits } => patches(&geometry, tile, splits),
            Choice::Narrow { strip } => parts::narrow(&geometry, strip),
            Choice::Direct { rows, width, strip, splits } => parts::direct(&geometry, [rows, width, strip], splits),
            Choice::Weights { tile, splits } => weights(&geometry, tile, splits, Operands::AsTheyAre),
            Choice::WeightsTurned { tile, splits } => weights(&geometry, tile, splits, Operands::Turned),
            Choice::Depthwise { strip, splits } => depthwise(&geometry, strip, splits),
            Choice::DepthwiseQuads { strip, splits } => depthwise_quads(&geometry, strip, splits),
            Choice::DepthwiseLarge { splits } => parts::depthwise_large(&geometry, splits),
            Choice::WinogradFused => parts::winograd_fused(&geometry),
            Choice::Winograd { tile, splits } => winograd(&geometry, tile, splits),
        }
        .map_err(fail)
    }
}

fn fits_fast_kernels(geometry: &Geometry) -> Result<(), String> {
    if geometry.problem.data_type() == DataType::F64 {
        return Err("f64 is for the plain kernels".into());
    }
    let size = geometry.problem.data_type().size().max(4) as u64;
    for shape in geometry.problem.operand_shapes() {
        let bytes = shape.iter().map(|&n| n as u64).product::<u64>().saturating_mul(size);
        if bytes > MAX_TENSOR_BYTES {
            return Err(format!("a tensor of {bytes} bytes is beyond the 32-bit offsets of the fast kernels"));
        }
    }
    Ok(())
}

fn tile_fits(tile: Tile) -> Result<(), String> {
    if crate::choice::TILES.contains(&tile) { Ok(()) } else { Err(format!("{tile} is not a tile that we have")) }
}

fn half_gemm(geometry: &Geometry, tile: Tile, packed: bool, splits: u32) -> Result<LaunchPlan, String> {
    if geometry.problem.data_type() != DataType::F16 {
        return Err("products in pairs are for f16".into());
    }
    if !tile.is_for_half() {
        return Err(format!("{tile} needs too many registers for short and long sums"));
    }
    gemm(geometry, &Products { tile, packed, flat: false, half: true, splits })
}

/// [`Choice::Gemm`] or [`Choice::HalfGemm`].
struct Products {
    tile: Tile,
    packed: bool,
    flat: bool,
    half: bool,
    splits: u32,
}

fn gemm(geometry: &Geometry, products: &Products) -> Result<LaunchPlan, String> {
    let &Products { tile, packed, flat, half, splits } = products;
    tile_fits(tile)?;
    if !packed || half {
        geometry.refuse_general()?;
    }
    let problem = &geometry.problem;
    let forward = geometry.is_forward("gemm")?;
    if flat && !forward {
        return Err("a flat reduction is for forward only".into());
    }
    let phases = if forward { 1 } else { problem.stride()[0] * problem.stride()[1] };
    if phases > MAX_PHASES {
        return Err(format!("{phases} phases of the stride are more than {MAX_PHASES}"));
    }
    if (phases * problem.groups()) as u64 > MAX_GRID_YZ {
        return Err(format!("{} groups are too many for one grid", problem.groups()));
    }
    let (filter_pointer, source_pointer) = (geometry.second, geometry.first);
    let mut stages = Vec::new();
    let mut workspace = parts::Workspace::default();
    let filter = if packed {
        let (stage, bytes) = parts::pack(geometry, tile, flat, filter_pointer);
        let at = workspace.take(bytes);
        stages.push(stage(at));
        at
    } else {
        filter_pointer
    };
    let steps = parts::gemm_steps(geometry, tile, flat);
    let per_split = steps.div_ceil(u64::from(splits.max(1))).max(1);
    let splits = steps.div_ceil(per_split).max(1);
    let planes = splits > 1;
    if planes && phases > 1 && splits > MAX_PHASE_PLANES {
        return Err(format!("{splits} parts of a sum with phases are more than {MAX_PHASE_PLANES}"));
    }
    let spread = !planes && parts::is_spread(geometry);
    // Pixels that no tap meets are cheaper filled at once than written one by one between the others.
    let skip_empty = !planes && !spread && parts::has_empty_phases(problem);
    if skip_empty {
        stages.push(parts::reduce(geometry, 0, &[], Pointer::Null));
    }
    let result_elements: u64 = geometry.result_elements();
    let result = if planes { workspace.take(splits * result_elements * 4) } else { Pointer::Result };
    stages.push(parts::gemm(
        geometry,
        &parts::GemmPart {
            tile,
            packed,
            flat,
            planes,
            skip_empty,
            spread,
            half,
            splits: splits as u32,
            steps_per_split: per_split as i32,
        },
        [filter, source_pointer, if planes { Pointer::Null } else { Pointer::Bias }, result],
    )?);
    if planes {
        let by_phase = if flat { Vec::new() } else { parts::phase_planes(geometry, tile, per_split) };
        stages.push(parts::reduce(geometry, splits as u32, &by_phase, result));
    }
    Ok(LaunchPlan { stages, workspace_bytes: workspace.bytes })
}

fn patches(geometry: &Geometry, tile: Tile, splits: u32) -> Result<LaunchPlan, String> {
    tile_fits(tile)?;
    let product = parts::as_product(&geometry.problem).ok_or("patches is for gradients of windows apart")?;
    let planes = Geometry { problem: product.clone(), ..Geometry::new(&product, geometry.form) };
    if planes.largest_extent().is_some_and(|extent| extent > MAX_EXTENT) {
        return Err(format!("{} channels and taps are more than {MAX_EXTENT}", product.in_channels()));
    }
    fits_fast_kernels(&planes)?;
    if product.groups() as u64 > MAX_GRID_YZ {
        return Err(format!("{} groups are too many for one grid", product.groups()));
    }
    match product.direction() {
        Direction::BackwardWeights => weights(geometry, tile, splits, Operands::Patches(product)),
        _ => parts::patches(geometry, product, tile, splits),
    }
}

/// What becomes of the operands of a filter's gradient before they are multiplied.
enum Operands {
    /// They are read where they lie.
    AsTheyAre,
    /// Both are turned over.
    Turned,
    /// Windows are put one after the other, for this product.
    Patches(Problem),
}

fn weights(geometry: &Geometry, tile: Tile, splits: u32, operands: Operands) -> Result<LaunchPlan, String> {
    tile_fits(tile)?;
    let problem = &geometry.problem;
    if problem.direction() != Direction::BackwardWeights {
        return Err("weights is for backward-weights".into());
    }
    // With few channels a tap begins in the middle of what a thread gathers, which gfx1010 pays for in registers.
    let few_channels = problem.in_channels() / problem.groups() < 8 && !matches!(operands, Operands::Patches(_));
    if !tile.is_for_weights(false) || (few_channels && tile.rows == 16) {
        return Err(format!("{tile} needs too many registers for backward-weights"));
    }
    if problem.groups() as u64 > MAX_GRID_YZ {
        return Err(format!("{} groups are too many for one grid", problem.groups()));
    }
    let pixels = (problem.batch() * problem.out_size()[0] * problem.out_size()[1]) as u64;
    let steps = pixels.div_ceil(tile.depth as u64);
    let per_split = steps.div_ceil(u64::from(splits.clamp(1, 65535))).max(1);
    let splits = steps.div_ceil(per_split) as u32;
    let mut workspace = parts::Workspace::default();
    let mut stages = Vec::new();
    let (arranged, has_layout) = match operands {
        Operands::AsTheyAre => (None, problem.kernel() == [1, 1] || problem.layout() == Layout::Nhwc),
        Operands::Turned => (Some(parts::turned(geometry, &mut workspace, &mut stages)?), problem.kernel() == [1, 1]),
        Operands::Patches(product) => (Some(parts::patched(geometry, product, &mut workspace, &mut stages)?), true),
    };
    let read = arranged.as_ref().unwrap_or(geometry);
    // A single plane with the gradient's layout is the gradient.
    if splits == 1 && has_layout && problem.data_type() == DataType::F32 {
        stages.push(parts::weights(read, tile, 1, per_split as i32, [read.second, read.first, Pointer::Result]));
    } else {
        let planes = workspace.take(u64::from(splits) * geometry.result_elements() * 4);
        stages.push(parts::weights(read, tile, splits, per_split as i32, [read.second, read.first, planes]));
        // Planes have the layout of what was multiplied, or are brought to the gradient's.
        stages.push(parts::reduce_weights(if has_layout { read } else { geometry }, splits, planes));
    }
    Ok(LaunchPlan { stages, workspace_bytes: workspace.bytes })
}

fn depthwise(geometry: &Geometry, strip: u32, splits: u32) -> Result<LaunchPlan, String> {
    let problem = &geometry.problem;
    if problem.in_channels() != problem.groups() {
        return Err(format!(
            "{} input channels in {} groups are not depthwise",
            problem.in_channels(),
            problem.groups()
        ));
    }
    let [kh, kw] = problem.kernel();
    if kh * kw > parts::unrolled_taps(problem, strip) {
        return Err(format!("a filter of {kh}x{kw} has more taps than registers are set aside for"));
    }
    parts::depthwise(geometry, strip, splits)
}

fn depthwise_quads(geometry: &Geometry, strip: u32, splits: u32) -> Result<LaunchPlan, String> {
    let problem = &geometry.problem;
    if problem.in_channels() != problem.groups() || problem.out_channels() != problem.groups() {
        return Err("quads is for one input and one output channel in a group".into());
    }
    let [kh, kw] = problem.kernel();
    if kh * kw > parts::LARGE_TAPS {
        return Err(format!("a filter of {kh}x{kw} has more taps than registers are set aside for"));
    }
    parts::depthwise_quads(geometry, strip, splits)
}

fn winograd(geometry: &Geometry, tile: Tile, splits: u32) -> Result<LaunchPlan, String> {
    tile_fits(tile)?;
    let problem = &geometry.problem;
    let strided = parts::is_stride2_winograd(problem);
    if !strided && !parts::is_winograd(problem) {
        return Err(
            "winograd is for 3x3, 5x5 or 7x7 filters of stride 1 with a padding smaller than the dilated filter, and \
                    for 3x3 filters of stride 2 and channels in sixteens without groups"
                .into(),
        );
    }
    if problem.direction() == Direction::BackwardWeights && !tile.is_for_weights(true) {
        return Err(format!("{tile} needs too many registers for backward-weights"));
    }
    let [three, five, seven, by_two] = MAX_WINOGRAD_CHANNELS;
    let most = match problem.kernel() {
        _ if strided => by_two,
        [3, 3] => three,
        [5, 5] => five,
        _ => seven,
    };
    if problem.direction() != Direction::BackwardWeights
        && problem.data_type() == DataType::F32
        && geometry.reduced_and_rows().0 > most
    {
        return Err(format!("winograd sums at most {most} channels in f32, for its rounding errors"));
    }
    if strided { parts::stride2_winograd(geometry, tile, splits) } else { parts::winograd(geometry, tile, splits) }
}
