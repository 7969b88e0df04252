//! Random poolings and what is right of them, for whatever memory kernels work on.

use unhang_conv::DataType;
use unhang_engine::tolerance::Tolerance;
use unhang_gpu::pooling::{Buffers, IndexType, Pooling, PoolingKind, Task};
use unhang_gpu::{GpuEngine, Way};

use crate::numbers::{Memory, Random, bytes_of, number_of, rounded};

pub(crate) const KINDS: [PoolingKind; 3] = [PoolingKind::Largest, PoolingKind::Mean, PoolingKind::InclusiveMean];

/// A task, and whether indices of the largest elements are kept.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Case {
    pub task: Task,
    pub keeps_indices: bool,
    pub seed: u64,
}

/// The strides of a tensor: channels first or last, with and without gaps.
fn strides(sizes: [usize; 5], random: &mut Random) -> [usize; 5] {
    let order = [[4, 3, 2, 1, 0], [1, 4, 3, 2, 0]][random.below(2)];
    let gap = random.below(3) / 2;
    let (mut strides, mut next) = ([0; 5], 1);
    for axis in order {
        strides[axis] = next;
        next = next * sizes[axis] + gap;
    }
    strides
}

fn shape(sizes: &Pooling, [depth, height, width]: [usize; 3]) -> [usize; 5] {
    [sizes.batch, sizes.channels, depth, height, width]
}

/// Where an element is, counted in the order of the axes.
fn place(sizes: [usize; 5], strides: [usize; 5], mut at: usize) -> usize {
    let mut place = 0;
    for axis in (0..5).rev() {
        place += at % sizes[axis] * strides[axis];
        at /= sizes[axis];
    }
    place
}

impl Case {
    pub(crate) fn random(seed: u64, data_type: DataType, kind: PoolingKind, backward: bool) -> Case {
        let mut random = Random(seed * 2 + u64::from(backward));
        let is_deep = random.below(3) == 0;
        let mut sizes = Pooling {
            kind,
            batch: 1 + random.below(3),
            channels: 1 + random.below(6),
            input: [1; 3],
            output: [1; 3],
            window: [1; 3],
            stride: [1; 3],
            padding: [0; 3],
            index_in_window: random.below(2) == 0,
        };
        for axis in if is_deep { 0..3 } else { 1..3 } {
            sizes.input[axis] = 1 + random.below(11);
            sizes.window[axis] = [2, 3, 1 + random.below(6)][random.below(3)];
            sizes.stride[axis] = 1 + random.below(3);
            // Sometimes so much that windows lie outside of the image.
            sizes.padding[axis] = [0, sizes.window[axis] / 2, random.below(5)][random.below(3)];
            let room = sizes.input[axis] + 2 * sizes.padding[axis];
            let whole = room.saturating_sub(sizes.window[axis]) / sizes.stride[axis] + 1;
            // Callers may have fewer, or one more that is cut off by the image's end.
            sizes.output[axis] = [whole, whole, whole + 1, 1 + random.below(whole)][random.below(4)];
        }
        let x = strides(shape(&sizes, sizes.input), &mut random);
        let y = strides(shape(&sizes, sizes.output), &mut random);
        let wide_enough: Vec<IndexType> =
            IndexType::ALL.into_iter().filter(|index| index.holds(sizes.indices())).collect();
        let index = wide_enough[random.below(wide_enough.len())];
        let factors = [[1.0, 0.0], [1.0, 0.0], [0.75, -0.5]][random.below(3)];
        let task = Task { sizes, backward, data_type, x, y, index, factors };
        Case { task, keeps_indices: backward || random.below(3) > 0, seed }
    }

    /// Computes it with kernels on that memory; what is wrong, in words.
    pub(crate) fn check(&self, engine: &GpuEngine, memory: &mut impl Memory) -> Result<(), String> {
        self.check_by(self.task.way(), engine, memory)
    }

    /// Computes it divided in a way.
    pub(crate) fn check_by(&self, way: Way, engine: &GpuEngine, memory: &mut impl Memory) -> Result<(), String> {
        let (task, sizes) = (&self.task, &self.task.sizes);
        let mut random = Random(self.seed ^ 0x5555);
        let (type_, size) = (task.data_type, task.data_type.size());
        let (inputs, outputs) = (shape(sizes, sizes.input), shape(sizes, sizes.output));
        // Few different values, so that several are the largest; and NaN.
        let mut numbers = |count: usize| -> Vec<f64> {
            let one = |random: &mut Random| match random.below(40) {
                0 if sizes.kind == PoolingKind::Largest => f64::NAN,
                1 if sizes.kind == PoolingKind::Largest => f64::NEG_INFINITY,
                at if at < 20 => rounded(type_, (at as f64 - 10.0) / 8.0),
                _ => rounded(type_, random.number()),
            };
            (0..count).map(|_| one(&mut random)).collect()
        };
        let x = numbers(sizes.inputs());
        let (y, indices) = sizes.forward(&x);
        let dy: Vec<f64> =
            numbers(sizes.outputs()).into_iter().map(|it| if it.is_finite() { it } else { 0.5 }).collect();
        let (given, given_shape, given_strides) =
            if task.backward { (&dy, outputs, task.y) } else { (&x, inputs, task.x) };
        let (right, shape, strides) =
            if task.backward { (sizes.backward(&dy, &indices), inputs, task.x) } else { (y, outputs, task.y) };
        let before: Vec<f64> = (0..right.len()).map(|at| rounded(type_, at as f64 % 7.0 - 3.0)).collect();

        // Into memory: gaps hold what must stay.
        let spread = |values: &[f64], shape: [usize; 5], strides: [usize; 5]| {
            let last = place(shape, strides, values.len() - 1);
            let mut bytes = bytes_of(type_, 77.0).repeat(last + 2);
            for (at, value) in values.iter().enumerate() {
                bytes[place(shape, strides, at) * size..][..size].copy_from_slice(&bytes_of(type_, *value));
            }
            bytes
        };
        let kept = spread(&before, shape, strides);
        let width = task.index.bytes();
        let mut index_bytes: Vec<u8> = indices.iter().flat_map(|index| index.to_le_bytes()[..width].to_vec()).collect();
        if !task.backward {
            index_bytes.fill(0xaa);
        }
        index_bytes.extend([0xaa; 8]);
        let buffers = Buffers {
            from: memory.put(&spread(given, given_shape, given_strides)),
            to: memory.put(&kept),
            indices: if self.keeps_indices { memory.put(&index_bytes) } else { 0 },
        };
        let launches = task.launches_by(way).ok_or("no launches")?;
        let loaded = engine.load_launches(launches, 0).map_err(|error| error.to_string())?;
        // SAFETY: memory as the task says, alive until the results were read.
        unsafe { engine.launch_all(&loaded, &buffers.addresses(), 0) }.map_err(|error| error.to_string())?;

        let found = memory.get(buffers.to, kept.len());
        let largest = right.iter().filter(|it| it.is_finite()).fold(3.0f64, |most, it| most.max(it.abs()));
        let allowed = Tolerance::of(type_).max * largest;
        let [alpha, beta] = task.factors;
        let mut written = vec![false; kept.len() / size];
        for (at, right) in right.iter().enumerate() {
            let place = place(shape, strides, at);
            written[place] = true;
            let right = alpha * right + if beta == 0.0 { 0.0 } else { beta * before[at] };
            let found = number_of(type_, &found[place * size..][..size]);
            if found != right && (found - right).abs().partial_cmp(&allowed) != Some(std::cmp::Ordering::Less) {
                return Err(format!("element {at}: {found} instead of {right}, allowed {allowed:.1e}"));
            }
        }
        for place in (0..written.len()).filter(|&place| !written[place]) {
            if found[place * size..][..size] != kept[place * size..][..size] {
                return Err(format!("a gap at {place} was written"));
            }
        }
        if task.backward || !self.keeps_indices || sizes.kind != PoolingKind::Largest {
            return Ok(());
        }
        let found = memory.get(buffers.indices, index_bytes.len());
        if found[index_bytes.len() - 8..] != [0xaa; 8] {
            return Err("something was written behind the indices".into());
        }
        for (at, right) in indices.iter().enumerate() {
            // Of a window outside of the image no element has the index.
            let is_there = sizes.forward(&vec![1.0; sizes.inputs()]).0[at] == 1.0;
            if is_there && found[at * width..][..width] != right.to_le_bytes()[..width] {
                return Err(format!("index {at}: {:?} instead of {right}", &found[at * width..][..width]));
            }
        }
        Ok(())
    }
}
