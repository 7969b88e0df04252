//! Random reductions and what is right of them, for whatever memory kernels work on.

use unhang_conv::DataType;
use unhang_engine::tolerance::Tolerance;
use unhang_gpu::reduction::{AXES, Axis, INDEX_BYTES, ReductionKind, Task};
use unhang_gpu::{GpuEngine, Way};

use crate::numbers::{Memory, Random, bytes_of, number_of, rounded};

/// A task, and how its memory is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Case {
    pub task: Task,
    pub in_chunks: bool,
    pub keeps_indices: bool,
    /// Whether x begins at an odd element, so that no four of them are aligned.
    pub is_shifted: bool,
    pub seed: u64,
}

impl Case {
    pub(crate) fn random(seed: u64, data_type: DataType, kind: ReductionKind) -> Case {
        let mut random = Random(seed * 8 + kind as u64);
        let count = 1 + random.below(AXES);
        let is_large = random.below(4) == 0;
        let is_reduced: Vec<bool> = {
            let certain = random.below(count);
            (0..count).map(|axis| axis == certain || random.below(2) == 0).collect()
        };
        let mut sizes: Vec<usize> = (0..count).map(|_| [1, 2, 3, 4, 8, 5 + random.below(8)][random.below(6)]).collect();
        while sizes.iter().product::<usize>() > 20_000 {
            let longest = (0..count).max_by_key(|&axis| sizes[axis]).unwrap();
            sizes[longest] = 1;
        }
        if is_large {
            let others: usize = sizes.iter().skip(1).product();
            sizes[0] = (4000 + random.below(9000)).div_ceil(others);
        }
        // x in any order of its axes, with and without gaps; the result in any other.
        let mut lie = |sizes: &[usize]| {
            let mut order: Vec<usize> = (0..count).rev().collect();
            if random.below(3) == 0 {
                (1..count).for_each(|at| order.swap(at, random.below(at + 1)));
            }
            let (mut strides, mut next, gap) = (vec![0; count], 1, [0, 0, 1, 4][random.below(4)]);
            for axis in order {
                strides[axis] = next;
                next = next * sizes[axis] + gap;
            }
            strides
        };
        let x = lie(&sizes);
        let results: Vec<usize> = (0..count).map(|axis| if is_reduced[axis] { 1 } else { sizes[axis] }).collect();
        let y = lie(&results);
        let (mut kept, mut reduced) = (Vec::new(), Vec::new());
        for axis in 0..count {
            let it = Axis { size: sizes[axis], x: x[axis], y: if is_reduced[axis] { 0 } else { y[axis] } };
            if is_reduced[axis] { reduced.push(it) } else { kept.push(it) }
        }
        let none = [Axis { size: 1, x: 0, y: 0 }; AXES];
        let task = Task {
            kind,
            propagates: random.below(2) == 0,
            data_type,
            result_type: [data_type, data_type, DataType::F32][random.below(3)],
            in_double: false,
            kept: none,
            reduced: none,
            factors: [[1.0, 0.0], [1.0, 0.0], [0.75, -0.5]][random.below(3)],
        };
        Case {
            task: task.with_axes(&kept, &reduced),
            in_chunks: random.below(2) == 0,
            keeps_indices: kind.is_extreme() && random.below(3) > 0,
            is_shifted: random.below(3) == 0,
            seed,
        }
    }

    /// Whether several workgroups share its units.
    pub(crate) fn is_divided(&self) -> bool {
        self.task.launches(self.in_chunks, 36).is_some_and(|launches| launches.workspace_bytes() > 0)
    }

    /// Whether four elements are read at once.
    pub(crate) fn is_in_quads(&self) -> bool {
        let last = self.task.reduced[AXES - 1];
        let others = self.task.reduced[..AXES - 1].iter().chain(&self.task.kept).filter(|axis| axis.size > 1);
        let in_fours = last.x == 1 && last.size.is_multiple_of(4) && others.clone().all(|it| it.x.is_multiple_of(4));
        in_fours && !self.is_shifted && self.task.data_type != DataType::F64
    }

    /// The size of the numbers. The squares of some norms are subnormal.
    fn scale(&self) -> f64 {
        match self.task.data_type {
            _ if self.task.kind != ReductionKind::Norm2 || !self.seed.is_multiple_of(4) => 1.0,
            DataType::F64 => 1e-156,
            _ => 1e-20,
        }
    }

    /// Numbers of which sums are exact enough to be compared, products stay near 1, and several are the largest.
    fn numbers(&self, random: &mut Random, count: usize) -> Vec<f64> {
        let (kind, type_, scale) = (self.task.kind, self.task.data_type, self.scale());
        let near = 1.0 / (self.task.count() as f64).sqrt();
        let one = |random: &mut Random| match random.below(40) {
            0 if kind.is_extreme() => f64::NAN,
            1 if kind.is_extreme() => [f64::NEG_INFINITY, f64::INFINITY][random.below(2)],
            _ if kind == ReductionKind::Product => rounded(type_, 1.0 + near * random.number()),
            at if at < 20 => rounded(type_, scale * (at as f64 - 10.0) / 8.0),
            _ => rounded(type_, scale * random.number()),
        };
        (0..count).map(|_| one(random)).collect()
    }

    /// Computes it with kernels on that memory; what is wrong, in words.
    pub(crate) fn check(&self, engine: &GpuEngine, memory: &mut impl Memory) -> Result<(), String> {
        self.check_by(self.task.way(36), engine, memory)
    }

    /// Computes it divided in a way.
    pub(crate) fn check_by(&self, way: Way, engine: &GpuEngine, memory: &mut impl Memory) -> Result<(), String> {
        let task = &self.task;
        let mut random = Random(self.seed ^ 0x5555);
        let [from, to] = task.spans().ok_or("no spans")?;
        let (x, size) = (self.numbers(&mut random, from), task.result_type.size());
        let before: Vec<f64> = (0..to + 1).map(|at| rounded(task.result_type, at as f64 % 7.0 - 3.0)).collect();
        let bytes = |values: &[f64], type_| values.iter().flat_map(|it| bytes_of(type_, *it)).collect::<Vec<u8>>();
        let shift = if self.is_shifted { task.data_type.size() } else { 0 };
        let x_at = memory.put(&[vec![0xff; shift], bytes(&x, task.data_type)].concat()) + shift as u64;
        let (kept, kept_indices) = (bytes(&before, task.result_type), vec![0xaa; (to + 1) * INDEX_BYTES]);
        let y_at = memory.put(&kept);
        let index_at = if self.keeps_indices { memory.put(&kept_indices) } else { 0 };
        let launches = task.launches_by(self.in_chunks, way).ok_or("no launches")?;
        let workspace_bytes = launches.workspace_bytes();
        let workspace = memory.put(&vec![0xff; workspace_bytes as usize + 64]);
        let loaded = engine.load_launches(launches, 0).map_err(|error| error.to_string())?;
        // SAFETY: memory as the task says, alive until the results were read.
        unsafe { engine.launch_all(&loaded, &[x_at, y_at, index_at, workspace], 0) }
            .map_err(|error| error.to_string())?;
        if memory.get(workspace + workspace_bytes, 64).iter().any(|&byte| byte != 0xff) {
            return Err("something was written behind the workspace".into());
        }

        let found = memory.get(y_at, kept.len());
        let indices = if self.keeps_indices { memory.get(index_at, kept_indices.len()) } else { Vec::new() };
        let [alpha, beta] = task.factors;
        let scale = self.scale();
        // Subnormal squares keep fewer digits.
        let lost = if scale == 1.0 { 1.0 } else { 1e3 };
        let single = lost * if task.data_type == DataType::F64 { 1e-14 } else { 1e-6 };
        let mut written = vec![false; to + 1];
        for unit in 0..task.units() {
            let [from, place] = task.unit(unit);
            let elements = (0..task.count()).map(|element| x[from + task.element(element)]);
            let magnitudes: f64 = elements.clone().map(f64::abs).filter(|it| it.is_finite()).sum();
            let (value, index) = task.kind.of(task.propagates, elements);
            let right = alpha * value + if beta == 0.0 { 0.0 } else { beta * before[place] };
            let right = rounded(task.result_type, right);
            written[place] = true;
            let number = number_of(task.result_type, &found[place * size..][..size]);
            let allowed = Tolerance::of(task.result_type).max * right.abs() + single * (magnitudes + 3.0 * scale);
            let is_right = (number.is_nan() && right.is_nan()) || number == right || (number - right).abs() <= allowed;
            if !is_right {
                return Err(format!("unit {unit}: {number} instead of {right}, allowed {allowed:.1e}"));
            }
            if self.keeps_indices && indices[place * INDEX_BYTES..][..INDEX_BYTES] != (index as u32).to_le_bytes() {
                let found = &indices[place * INDEX_BYTES..][..INDEX_BYTES];
                return Err(format!("index of unit {unit}: {found:?} instead of {index}"));
            }
        }
        for place in (0..to + 1).filter(|&place| !written[place]) {
            let is_index = self.keeps_indices && indices[place * INDEX_BYTES..][..INDEX_BYTES] != [0xaa; INDEX_BYTES];
            if found[place * size..][..size] != kept[place * size..][..size] || is_index {
                return Err(format!("a gap at {place} was written"));
            }
        }
        Ok(())
    }
}
