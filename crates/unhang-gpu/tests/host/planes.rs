//! The kernel that copies planes of 3-d tensors, against the loops that say what it copies.

use unhang_conv::{DataType, Layout, Planes, Volume};
use unhang_gpu::GpuEngine;
use unhang_gpu::strided::Move;

/// Memory that kernels read and write.
pub(crate) trait Memory {
    /// A copy of these bytes.
    fn put(&self, bytes: &[u8]) -> u64;
    /// That many bytes.
    fn get(&self, address: u64, length: usize) -> Vec<u8>;
}

/// Strides, paddings, dilations, remainders that no tap meets, groups, gaps, both layouts.
const VOLUMES: [&str; 7] = [
    "forward:f32:ncdhw:2x3x5x4x7:4x3x3x3:s1x1x1:p1x1x1:d1x1x1:g1",
    "forward:f16:ndhwc:2x4x6x3x5:6x2x3x1:s2x1x1:p0x1x0:d2x1x1:g2",
    "backward-data:f32:ncdhw:1x3x7x4x4:5x3x3x3:s2x1x1:p1x1x1:d1x1x1:g1",
    "backward-data:bf16:ndhwc:2x2x7x3x3:2x1x3x3:s3x1x1:p0x1x1:d1x1x1:g1",
    "backward-data:f64:ncdhw:1x2x9x4x4:3x4x2x2:s4x1x1:p2x0x0:d2x1x1:g1",
    "backward-weights:f32:ndhwc:2x4x5x4x4:6x3x3x3:s1x1x1:p1x1x1:d1x1x1:g2",
    "backward-weights:f64:ncdhw:3x4x5x4x4:6x3x3x3:s2x1x1:p2x1x1:d1x1x1:g1",
];

/// Gathers and scatters everything that these are folded into, whole and in small parts; the tensors have gaps.
pub(crate) fn check(gpu: &GpuEngine, memory: &dyn Memory) {
    for key in VOLUMES {
        let volume: Volume = key.parse().unwrap();
        let shapes = volume.operand_shapes();
        for limit in [usize::MAX, 1] {
            let fold = volume.fold(limit).unwrap();
            let strides = shapes.map(|[n, c, d, h, w]| match volume.layout() {
                Layout::Nchw => Volume::dense_strides([n, c, d, h + 1, w + 2], Layout::Nchw),
                Layout::Nhwc => Volume::dense_strides([n, c + 1, d, h, w + 2], Layout::Nhwc),
            });
            let trial =
                |at: usize| Trial { gpu, memory, layout: volume.layout(), strides: strides[at], shape: shapes[at] };
            for part in &fold.parts {
                for (index, planes) in part.planes[..2].iter().enumerate() {
                    trial(fold.order[index]).gather(volume.data_type(), planes, key);
                }
                trial(2).write(volume.data_type(), &part.planes[2], key, false);
            }
            for planes in &fold.zeros {
                trial(2).write(volume.data_type(), planes, key, true);
            }
        }
    }
}

struct Trial<'a> {
    gpu: &'a GpuEngine,
    memory: &'a dyn Memory,
    layout: Layout,
    strides: [usize; 5],
    shape: [usize; 5],
}

fn numbered(elements: usize, size: usize) -> Vec<u8> {
    (0..elements * size).map(|at| (at * 131 % 251 + 1) as u8).collect()
}

impl Trial<'_> {
    fn span(&self) -> usize {
        1 + self.shape.iter().zip(self.strides).map(|(size, stride)| (size - 1) * stride).sum::<usize>()
    }

    fn run(&self, launch: Option<Move>, from: &[u8], to: &[u8]) -> Vec<u8> {
        let launch = self.gpu.load_move(launch.expect("it can be counted"), 0).unwrap();
        let (source, target) = (self.memory.put(from), self.memory.put(to));
        // SAFETY: memory of what the planes and strides say.
        unsafe { self.gpu.launch_move(&launch, source, target, 0).unwrap() };
        self.memory.get(target, to.len())
    }

    fn gather(&self, data_type: DataType, planes: &Planes, key: &str) {
        let (size, length) = (data_type.size(), planes.shape().iter().product::<usize>());
        let from = numbered(self.span(), size);
        let mut expected = vec![0xee; length * size];
        let loops = planes.loops(self.layout.strides(planes.shape()), self.strides, false);
        loops.visit(|folded, volume, (count, step, far)| {
            for turn in 0..count {
                let to = (folded + turn * step) * size;
                match volume {
                    Some(volume) => {
                        let at = (volume as i64 + turn as i64 * far) as usize * size;
                        expected[to..to + size].copy_from_slice(&from[at..at + size]);
                    }
                    None => expected[to..to + size].fill(0),
                }
            }
        });
        let launch = Move::gather(data_type, planes, self.layout, self.strides);
        assert_eq!(self.run(launch, &from, &vec![0xff; length * size]), expected, "{key}: {planes:?}");
    }

    /// Writes planes; what is between them stays.
    fn write(&self, data_type: DataType, planes: &Planes, key: &str, is_zero: bool) {
        let (size, length) = (data_type.size(), planes.shape().iter().product::<usize>());
        let from = numbered(length, size);
        let mut expected = vec![0xff; self.span() * size];
        let before = expected.clone();
        let loops = planes.loops(self.layout.strides(planes.shape()), self.strides, false);
        loops.visit(|folded, volume, (count, step, far)| {
            for turn in 0..count {
                let at = (volume.expect("results are whole") as i64 + turn as i64 * far) as usize * size;
                let source = (folded + turn * step) * size;
                match is_zero {
                    true => expected[at..at + size].fill(0),
                    false => expected[at..at + size].copy_from_slice(&from[source..source + size]),
                }
            }
        });
        let launch = match is_zero {
            true => Move::clear(data_type, planes, self.layout, self.strides),
            false => Move::scatter(data_type, planes, self.layout, self.strides),
        };
        assert_eq!(self.run(launch, &from, &before), expected, "{key}: {planes:?}");
    }
}
