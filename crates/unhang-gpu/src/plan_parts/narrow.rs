//! The launch for few channels in the result.

use super::gemm::longest_phase;
use super::*;

/// LDS that the taps of a narrow kernel may take.
const NARROW_LDS_BYTES: usize = 16 << 10;

pub(crate) fn narrow(geometry: &Geometry, strip: u32) -> Result<LaunchPlan, String> {
    let p = &geometry.problem;
    let forward = geometry.is_forward("narrow")?;
    geometry.refuse_general()?;
    let (reduced, rows) = geometry.reduced_and_rows();
    if rows > 4 {
        return Err("narrow is for at most 4 channels of the result in a group".into());
    }
    let strip = strip.clamp(1, 16) as usize;
    let most: Vec<usize> = (0..2)
        .map(|axis| {
            if forward {
                p.kernel()[axis]
            } else {
                longest_phase(p.kernel()[axis], p.stride()[axis], p.dilation()[axis])
            }
        })
        .collect();
    let (step, tap) = if forward { (p.stride()[0], p.dilation()[0]) } else { (1, p.dilation()[0]) };
    if (strip * step + most[0] * tap) * most[1] > 192 || most[0] > 8 {
        return Err("the window is too large to unroll".into());
    }
    let stride = if forward { [1, 1] } else { p.stride() };
    let phases = stride[0] * stride[1];
    if phases > MAX_PHASES || (phases * p.groups()) as u64 > MAX_GRID_YZ {
        return Err(format!("{phases} phases of the stride and {} groups are too many for one grid", p.groups()));
    }
    // Four channels are read at once in NHWC: whole quads of them lie in LDS.
    let at_once = if geometry.channels_last() && reduced.is_multiple_of(4) { 4 } else { 1 };
    let chunk = (NARROW_LDS_BYTES / (most[0] * most[1] * 16) / at_once * at_once).clamp(at_once, reduced);
    let (source, result) = geometry.source_and_result();
    let strips = result[0].div_ceil(stride[0]).div_ceil(strip);
    let threads = p.batch() as u64 * strips as u64 * result[1].div_ceil(stride[1]) as u64;
    let mut constants = vec![
        ("TYPE", type_number(p.data_type())),
        ("DIRECTION", i64::from(!forward)),
        ("CHANNELS_LAST", i64::from(geometry.channels_last())),
        ("GROUPS", p.groups() as i64),
        ("REDUCED", reduced as i64),
        ("ROWS", rows as i64),
    ];
    constants.extend(geometry.window_constants());
    constants.extend([("STRIP", strip as i64), ("CHUNK", chunk as i64)]);
    let stage = Stage {
        kernel: Kernel { source: SourceFile::Narrow, entry: "narrow_rows", constants },
        grid: [threads.div_ceil(128).max(1) as u32, (phases * p.groups()) as u32, 1],
        block: 128,
        pointers: vec![geometry.second, geometry.first, Pointer::Bias, Pointer::Result],
        shape: NarrowShape { batch: int(p.batch()), source: ints(source), result: ints(result), strips: int(strips) }
            .into(),
    };
    Ok(LaunchPlan { stages: vec![stage], workspace_bytes: 0 })
}
