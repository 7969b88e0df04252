//! Which kernels could compute a problem, and which one is used before anything is measured.

use std::collections::BTreeSet;

use unhang_conv::{DataType, Direction, Layout, Problem};

use crate::choice::{Choice, DEEP_TILE, HALF_TILE, TILES, Tile};
use crate::model::{DeviceModel, estimate, general_slowdown};
use crate::plan::{Form, LaunchPlan};
use crate::plan_parts::{Geometry, LARGE_TAPS, as_product, gemm_steps, winograd_products};

/// In NHWC, rows of at least this many elements lose by strips of seven in a filter's gradient: 160 pixels of 48
/// channels do.
const FAR_ROWS: usize = 6000;

/// The plain kernels are used if the model predicts at least this speed-up; with less, measurements showed a loss.
const PLAIN_PAYS: f64 = 1.6;
/// Up to this many launches they are used anyway: compiling would gain nothing there.
const PLAIN_LAUNCHES: f64 = 3.0;

/// A choice with its plan and predicted time.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// The choice.
    pub choice: Choice,
    /// Whether its kernels are the problem's own or general ones.
    pub form: Form,
    /// What it would run.
    pub plan: LaunchPlan,
    /// Seconds, by the model.
    pub seconds: f64,
}

/// All possible ways, fastest by the model first; never empty for a supported problem.
pub fn candidates(problem: &Problem, device: &DeviceModel, workspace_limit: u64) -> Vec<Candidate> {
    rate(problem, propose(problem, device).into_iter(), Form::Specialised, device, workspace_limit)
}

/// The ways with general kernels, fastest by the model first, the plain ones among them.
pub fn general_candidates(problem: &Problem, device: &DeviceModel, workspace_limit: u64) -> Vec<Candidate> {
    let choices = propose(problem, device).into_iter().filter_map(Choice::as_general);
    let choices: BTreeSet<Choice> = choices.collect();
    rate(problem, choices.into_iter(), Form::General, device, workspace_limit)
}

/// The seconds by which a choice is ranked.
fn rated(choice: &Choice, seconds: f64, device: &DeviceModel) -> f64 {
    let is_long = seconds > PLAIN_LAUNCHES * device.launch;
    if *choice == Choice::Plain && is_long { seconds * PLAIN_PAYS } else { seconds }
}

fn rate(
    problem: &Problem,
    choices: impl Iterator<Item = Choice>,
    form: Form,
    device: &DeviceModel,
    workspace_limit: u64,
) -> Vec<Candidate> {
    let mut found: Vec<Candidate> = choices
        .filter_map(|choice| {
            let plan = LaunchPlan::with_form(problem, &choice, form).ok()?;
            (plan.workspace_bytes <= workspace_limit).then(|| Candidate {
                choice,
                form,
                seconds: rated(&choice, estimate(problem, &choice, &plan, device), device)
                    * if form == Form::General { general_slowdown(problem, &choice) } else { 1.0 },
                plan,
            })
        })
        .collect();
    found.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    found
}

/// The ways with products of f16 in pairs, for a caller who asked for them; empty if there are none.
pub fn half_candidates(problem: &Problem, device: &DeviceModel, workspace_limit: u64) -> Vec<Candidate> {
    let geometry = Geometry::new(problem, Form::Specialised);
    let p = &geometry.problem;
    if p.data_type() != DataType::F16 || p.direction() == Direction::BackwardWeights || p.is_depthwise() {
        return Vec::new();
    }
    let tiles = tiles_for(geometry.reduced_and_rows().1, &[DEEP_TILE, HALF_TILE]);
    let choices = propose_gemm(&geometry, tiles, device).into_iter().filter_map(|choice| match choice {
        Choice::Gemm { tile, packed, flat: false, splits } => Some(Choice::HalfGemm { tile, packed, splits }),
        _ => None,
    });
    rate(problem, choices, Form::Specialised, device, workspace_limit)
}

fn propose(problem: &Problem, device: &DeviceModel) -> Vec<Choice> {
    let geometry = Geometry::new(problem, Form::Specialised);
    let p = &geometry.problem;
    let mut choices = vec![Choice::Plain];
    if p.data_type() == DataType::F64 {
        return choices;
    }
    if p.is_depthwise() {
        choices.extend(propose_depthwise(p, device));
        // A matrix product with one channel is mostly waste: it is kept for filters too large to unroll.
        if choices.iter().any(|choice| *choice != Choice::Plain && LaunchPlan::new(problem, choice).is_ok()) {
            return choices;
        }
    }
    let channels = [p.in_channels() / p.groups(), p.out_channels() / p.groups()];
    let winograd = winograd_products(p).filter(|_| channels.iter().all(|&c| c >= 16));
    match p.direction() {
        Direction::Forward | Direction::BackwardData => {
            choices.extend(propose_gemm(&geometry, tiles_for(geometry.reduced_and_rows().1, &[]), device));
            choices.extend([2, 4, 8].map(|strip| Choice::Narrow { strip }));
            choices.extend(propose_direct(&geometry, device));
            choices.push(Choice::WinogradFused);
            choices.extend(propose_patches(p, device));
            if let Some(products) = winograd {
                choices.extend(tiles_for(products.rows, &[]).map(|tile| Choice::Winograd { tile, splits: 1 }));
            }
        }
        Direction::BackwardWeights => {
            let taps = p.kernel()[0] * p.kernel()[1];
            let steps = |depth: usize| (p.batch() * p.out_size()[0] * p.out_size()[1]).div_ceil(depth);
            // The smallest tile has few columns: worth half of its rows for filters with few taps and channels.
            let small = |tile: &Tile| tile.rows == 16 || (tile.rows == 32 && tile.columns == 32);
            let is_apart = as_product(p).is_some();
            let offered = |tile: &Tile| *tile != DEEP_TILE || device.shares.takes_deep_tile;
            let wasteful = |tile: &Tile| tile.rows >= channels[1] * 2 && !small(tile);
            for tile in TILES.into_iter().filter(|tile| offered(tile) && !wasteful(tile)) {
                let tiles = channels[1].div_ceil(tile.rows) * (channels[0] * taps).div_ceil(tile.columns) * p.groups();
                for splits in split_counts(tiles, steps(tile.depth), tile, device) {
                    choices.push(Choice::Weights { tile, splits });
                    if p.layout() == Layout::Nchw {
                        choices.push(Choice::WeightsTurned { tile, splits });
                    }
                    if is_apart {
                        choices.push(Choice::Patches { tile, splits });
                    }
                }
                if let Some(products) = winograd {
                    let tiles =
                        products.groups * products.rows.div_ceil(tile.rows) * products.columns.div_ceil(tile.columns);
                    // The transforms amplify rounding errors: no long chains of additions, and shorter ones for larger
                    // filters.
                    let chain = match p.kernel()[0] {
                        3 => 1024,
                        5 => 448,
                        _ => 96,
                    };
                    let least = products.reduced.div_ceil(chain) as u32;
                    for splits in split_counts(tiles, products.reduced.div_ceil(tile.depth), tile, device) {
                        choices.push(Choice::Winograd { tile, splits: splits.max(least) });
                    }
                }
            }
        }
    }
    choices.sort();
    choices.dedup();
    choices
}

/// Tiles that waste at most half of their rows, or are small; the flat one only for few rows. Of the tiles for
/// particular kernels, the named ones.
fn tiles_for(rows: usize, special: &[Tile]) -> impl Iterator<Item = Tile> {
    let is_offered = |tile: &Tile| ![DEEP_TILE, HALF_TILE].contains(tile) || special.contains(tile);
    TILES.into_iter().filter(is_offered).filter(move |tile| match tile.rows {
        4 => rows <= 8,
        16 => rows > 4,
        more => more < rows * 2,
    })
}

/// Splits that give each compute unit one, two, four or eight workgroups, if the reduction is long enough.
fn split_counts(tiles: usize, steps: usize, tile: Tile, device: &DeviceModel) -> Vec<u32> {
    let most = (steps * tile.depth / 64).max(1);
    let units = device.compute_units.max(1);
    let mut counts: Vec<u32> = [1usize, 2, 4, 8]
        .into_iter()
        .map(|each| (units * each).div_ceil(tiles.max(1)).clamp(1, most).min(4096) as u32)
        .collect();
    counts.push(1);
    counts.sort_unstable();
    counts.dedup();
    counts
}

/// The numbers of parts that forward and backward-data are split into: only with few tiles, and at most `most`.
fn gemm_splits(tiles: usize, steps: usize, tile: Tile, device: &DeviceModel, most: u32) -> Vec<u32> {
    if tiles >= 2 * device.compute_units {
        return vec![1];
    }
    let mut counts: Vec<u32> = split_counts(tiles, steps, tile, device).into_iter().map(|n| n.min(most)).collect();
    counts.dedup();
    counts
}

fn propose_gemm(geometry: &Geometry, tiles: impl Iterator<Item = Tile>, device: &DeviceModel) -> Vec<Choice> {
    let p = &geometry.problem;
    let forward = p.direction() == Direction::Forward;
    let (reduced, rows) = geometry.reduced_and_rows();
    let columns = (p.batch() * if forward { p.out_size() } else { p.in_size() }.iter().product::<usize>()).max(1);
    let phases = if forward { 1 } else { p.stride()[0] * p.stride()[1] };
    // A filter that is already in order gains nothing by packing.
    let in_order = !forward && rows.is_multiple_of(4) && (p.layout() == Layout::Nhwc || p.kernel() == [1, 1]);
    let mut choices = Vec::new();
    for tile in tiles {
        let flat_ways: &[bool] = match forward {
            false => &[false],
            true if reduced < 8 => &[true],
            true if !reduced.is_multiple_of(8) => &[true, false],
            true => &[false],
        };
        for &flat in flat_ways {
            let tiles =
                rows.div_ceil(tile.rows) * columns.div_ceil(phases).div_ceil(tile.columns) * p.groups() * phases;
            let steps = gemm_steps(geometry, tile, flat) as usize;
            for splits in gemm_splits(tiles, steps, tile, device, 32) {
                choices.push(Choice::Gemm { tile, packed: false, flat, splits });
                if !in_order {
                    choices.push(Choice::Gemm { tile, packed: true, flat, splits });
                }
            }
        }
    }
    choices
}

/// Windows that do not overlap, backward-data: the tiles and splits of the product that they are.
fn propose_patches(p: &Problem, device: &DeviceModel) -> Vec<Choice> {
    let Some(product) = as_product(p) else { return Vec::new() };
    let geometry = Geometry::new(&product, Form::Specialised);
    let rows = geometry.reduced_and_rows().1;
    let columns = product.batch() * product.in_size()[0] * product.in_size()[1];
    let mut choices = Vec::new();
    for tile in tiles_for(rows, &[]) {
        let tiles = rows.div_ceil(tile.rows) * columns.div_ceil(tile.columns) * product.groups();
        let steps = gemm_steps(&geometry, tile, false) as usize;
        let splits = gemm_splits(tiles, steps, tile, device, 8);
        choices.extend(splits.into_iter().map(|splits| Choice::Patches { tile, splits }));
    }
    choices
}

/// For few channels on one side: its channels in even parts, and as many columns and rows as registers allow.
fn propose_direct(geometry: &Geometry, device: &DeviceModel) -> Vec<Choice> {
    let p = &geometry.problem;
    let (reduced, rows) = geometry.reduced_and_rows();
    if reduced.min(rows) > 48 {
        return Vec::new();
    }
    let least = if p.direction() == Direction::BackwardData { p.stride()[0] as u32 } else { 1 };
    let pixels = p.batch() * geometry.source_and_result().1.iter().product::<usize>();
    let mut choices = Vec::new();
    for most in [8, 16, 32] {
        let part = (rows.div_ceil(rows.div_ceil(most)).next_multiple_of(4)) as u32;
        for width in [2, 4] {
            for strip in [1, 2, 4].map(|strip: u32| strip.next_multiple_of(least)) {
                if (24..=64).contains(&(part * width * strip)) {
                    // With few threads, each sums only a part of the channels.
                    let threads = pixels * rows.div_ceil(part as usize) / (width * strip) as usize;
                    let few = threads < device.compute_units * 512 && reduced >= 32;
                    for splits in if few { &[1, 2, 4, 8][..] } else { &[1] } {
                        choices.push(Choice::Direct { rows: part, width, strip, splits: *splits });
                    }
                }
            }
        }
    }
    choices
}

fn propose_depthwise(p: &Problem, device: &DeviceModel) -> Vec<Choice> {
    let stride = if p.direction() == Direction::BackwardData { p.stride()[0] as u32 } else { 1 };
    if p.kernel()[0] * p.kernel()[1] > LARGE_TAPS {
        if p.stride() != [1, 1] {
            return [1, 2]
                .map(|strip: u32| Choice::Depthwise { strip: strip.next_multiple_of(stride), splits: 1 })
                .into();
        }
        let most = if p.direction() == Direction::BackwardWeights { p.batch() as u32 } else { 1 };
        return [1, 2, 4, 8]
            .into_iter()
            .filter(|&n| n <= most)
            .map(|splits| Choice::DepthwiseLarge { splits })
            .collect();
    }
    match p.direction() {
        Direction::Forward | Direction::BackwardData => {
            let strips = |strips: &[u32]| strips.iter().map(|strip| strip.next_multiple_of(stride)).collect::<Vec<_>>();
            let single = strips(&[1, 2, 4, 8]).into_iter().map(|strip| Choice::Depthwise { strip, splits: 1 });
            let quads = strips(&[1, 2, 4]).into_iter().map(|strip| Choice::DepthwiseQuads { strip, splits: 1 });
            single.chain(quads).collect()
        }
        Direction::BackwardWeights => {
            let pixels = p.batch() * p.out_size()[0] * p.out_size()[1];
            let blocks = match p.layout() {
                Layout::Nchw => p.out_channels(),
                Layout::Nhwc => p.out_channels().div_ceil(32),
            };
            // Parts of 1024 pixels, or smaller ones if that leaves units idle; in NHWC fewer of a workgroup's threads
            // work on pixels.
            let small = if p.layout() == Layout::Nhwc { pixels / 32 } else { 0 };
            let most = (pixels / 1024).max(small.min(4 * device.compute_units / blocks)).clamp(1, 4096);
            let ways: &[usize] = if p.layout() == Layout::Nhwc { &[1, 4, 16, 32] } else { &[16, 32] };
            ways.iter()
                .map(|each| (device.compute_units * each).div_ceil(blocks).clamp(1, most) as u32)
                .flat_map(|splits| {
                    // In NHWC rows of a strip are far apart: they pay if they share what they read.
                    let row_elements = p.in_size()[1] * p.in_channels();
                    let strips: &[u32] = match p.layout() {
                        Layout::Nchw => &[1, 2, 4],
                        Layout::Nhwc if p.stride()[0] > 1 => &[1],
                        Layout::Nhwc if row_elements > FAR_ROWS => &[1, 2, 4],
                        Layout::Nhwc => &[1, 2, 4, 7],
                    };
                    let quads = strips.iter().map(move |&strip| Choice::DepthwiseQuads { strip, splits });
                    [Choice::Depthwise { strip: 1, splits }].into_iter().chain(quads)
                })
                .collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_read_back() {
        let device = DeviceModel::rx_5600_xt();
        for layer in unhang_suite::layers() {
            for direction in Direction::ALL {
                let found = candidates(&layer.problem.with_direction(direction), &device, 1 << 30);
                assert!(found.len() > 1, "{} {direction}", layer.name);
                for candidate in found {
                    assert_eq!(candidate.choice.to_string().parse(), Ok(candidate.choice));
                }
            }
        }
        assert!("gemm:1x1x1/1x1:packed:flat:s1".parse::<Choice>().is_err());
        assert!("plain:1".parse::<Choice>().is_err());
    }

    #[test]
    fn chips_differ_in_what_they_choose() {
        let problem: Problem =
            "forward:f32:nchw:32x128x56x56:128x3x3:s2x2:p1x1:d1x1:g1".parse().expect("a problem's key");
        let first = |device| candidates(&problem, &device, 1 << 28).first().map(|candidate| candidate.choice);
        // RDNA1 reads a filter that is not packed at half of its speed, by prediction; measured, an H200 wants Winograd here.
        assert!(matches!(first(DeviceModel::rx_5600_xt()), Some(Choice::Gemm { packed: true, .. })));
        assert!(matches!(first(DeviceModel::h200()), Some(Choice::Winograd { .. })));
    }
}
