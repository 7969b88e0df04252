//! One convolution, as torch has MIOpen do it.

use std::time::Instant;

use unhang_conv::reference::Indexer;
use unhang_conv::{DataType, Direction, Layout, Problem, TensorShape};
use unhang_probe::trial::Convolved;

use crate::library::{Functions, Handle, Miopen, MiopenError, Performance, check_miopen};
use crate::memory::{Descriptor, Event, Memory};

/// `miopenConvolution`: torch uses this mode for everything, groups and transposed convolutions included.
const ORDINARY: i32 = 0;
/// How many algorithms a search may name.
const MOST_ALGORITHMS: usize = 16;
/// Seconds that repeating a convolution to time it may take, and how often it is repeated at most.
const TIMING_SECONDS: f64 = 0.2;
const TIMING_CALLS: usize = 10;

impl Miopen {
    /// Computes a problem that is not transposed on operands in this process's memory. `first` and `second` are the
    /// operands in the problem's own order, `result` is overwritten. `found` is called when the search is done and the
    /// convolution itself begins.
    pub fn convolve<T: Copy>(
        &mut self,
        problem: &Problem,
        [first, second]: [&[T]; 2],
        result: &mut [T],
        found: impl FnOnce(),
    ) -> Result<Convolved, MiopenError> {
        assert!(!problem.transposed(), "transposed problems are lowered before");
        assert_eq!(size_of::<T>(), problem.data_type().size());
        let shapes = problem.operand_shapes();
        for (shape, length) in shapes.iter().zip([first.len(), second.len(), result.len()]) {
            assert_eq!(shape.iter().product::<usize>(), length, "{problem}");
        }
        let handle = self.handle()?;
        let functions = &self.functions;
        // MIOpen takes the gradient of the output first, whatever else it reads.
        let order = if problem.direction() == Direction::BackwardWeights { [1, 0, 2] } else { [0, 1, 2] };
        let tensors = shapes.map(|shape| tensor(functions, shape, problem));
        let [a, b, c] = tensors;
        let tensors = [a?, b?, c?];
        let memory = [Memory::of(functions, first)?, Memory::of(functions, second)?, Memory::of(functions, result)?];
        let call = Call {
            functions,
            handle,
            direction: problem.direction(),
            convolution: convolution(functions, problem)?,
            tensors: order.map(|at| tensors[at].handle),
            memory: order.map(|at| memory[at].address),
        };
        let began = Instant::now();
        let bytes = call.workspace_size()?;
        let workspace = Memory::new(functions, bytes)?;
        let (best, count) = call.find(workspace.address, bytes)?;
        found();
        call.execute(best.algorithm, workspace.address, bytes)?;
        Event::now(functions)?.wait()?;
        let first_seconds = began.elapsed().as_secs_f64();
        let seconds = call.time(best.algorithm, workspace.address, bytes)?;
        memory[2].read(result)?;
        let detail = format!(
            "{}, the best of {count}, {:.3} ms by its own measure, {} bytes of workspace",
            algorithm_name(problem.direction(), best.algorithm),
            best.milliseconds,
            best.workspace
        );
        Ok(Convolved { first_seconds, seconds, detail })
    }

    /// Whether the device takes data and gives it back. What it computes is each convolution's own question.
    pub fn copies(&self) -> Result<bool, MiopenError> {
        let sent: Vec<u32> = (0..4096).collect();
        let mut received = vec![0; sent.len()];
        let memory = Memory::of(&self.functions, &sent)?;
        Event::now(&self.functions)?.wait()?;
        memory.read(&mut received)?;
        Ok(received == sent)
    }
}

/// What the three calls of a direction share.
struct Call<'a> {
    functions: &'a Functions,
    handle: Handle,
    direction: Direction,
    convolution: Descriptor,
    /// Descriptors and addresses in MIOpen's order: two operands, result.
    tensors: [Handle; 3],
    memory: [Handle; 3],
}

impl Call<'_> {
    fn calls(&self) -> &crate::library::Direction {
        &self.functions.directions[match self.direction {
            Direction::Forward => 0,
            Direction::BackwardData => 1,
            Direction::BackwardWeights => 2,
        }]
    }

    fn workspace_size(&self) -> Result<usize, MiopenError> {
        let [first, second, result] = self.tensors;
        // Here alone the forward direction has its operands the other way round.
        let [first, second] = if self.direction == Direction::Forward { [second, first] } else { [first, second] };
        let mut bytes = 0;
        // SAFETY: descriptors that live as long as this, and a place for the number.
        let code = unsafe {
            (self.calls().workspace_size)(self.handle, first, second, self.convolution.handle, result, &mut bytes)
        };
        check_miopen(code, "asking for the workspace's size").map(|()| bytes)
    }

    /// The best algorithm and how many there are.
    fn find(&self, workspace: Handle, bytes: usize) -> Result<(Performance, i32), MiopenError> {
        let ([a, b, c], [x, y, z]) = (self.tensors, self.memory);
        let mut results = [Performance::default(); MOST_ALGORITHMS];
        let mut count = 0;
        // SAFETY: descriptors and memory of the described sizes that live as long as this, and as many places as are
        // counted.
        let code = unsafe {
            (self.calls().find)(
                self.handle,
                a,
                x,
                b,
                y,
                self.convolution.handle,
                c,
                z,
                MOST_ALGORITHMS as i32,
                &mut count,
                results.as_mut_ptr(),
                workspace,
                bytes,
                false,
            )
        };
        check_miopen(code, "the search for an algorithm")?;
        if count < 1 { Err(MiopenError::NoAlgorithm) } else { Ok((results[0], count)) }
    }

    fn execute(&self, algorithm: i32, workspace: Handle, bytes: usize) -> Result<(), MiopenError> {
        let ([a, b, c], [x, y, z]) = (self.tensors, self.memory);
        let (one, zero) = (1.0, 0.0);
        // SAFETY: as in `find`; the scalars are read before the call returns.
        let code = unsafe {
            let convolution = self.convolution.handle;
            (self.calls().execute)(self.handle, &one, a, x, b, y, convolution, algorithm, &zero, c, z, workspace, bytes)
        };
        check_miopen(code, "the convolution")
    }

    /// Seconds of one call when warm: the best of a few.
    fn time(&self, algorithm: i32, workspace: Handle, bytes: usize) -> Result<f64, MiopenError> {
        let (mut best, mut spent) = (f64::INFINITY, 0.0);
        for _ in 0..TIMING_CALLS {
            let begin = Event::now(self.functions)?;
            self.execute(algorithm, workspace, bytes)?;
            let end = Event::now(self.functions)?;
            end.wait()?;
            let seconds = end.seconds_since(&begin)?;
            best = best.min(seconds);
            spent += seconds;
            if spent >= TIMING_SECONDS {
                break;
            }
        }
        Ok(best)
    }
}

fn tensor(functions: &Functions, shape: TensorShape, problem: &Problem) -> Result<Descriptor, MiopenError> {
    let data_type = match problem.data_type() {
        DataType::F16 => 0,
        DataType::F32 => 1,
        DataType::Bf16 => 5,
        DataType::F64 => 6,
    };
    let descriptor = Descriptor::new(functions.create_tensor, functions.destroy_tensor)?;
    let sizes = shape.map(|size| size as i32);
    let strides = strides(shape, problem.layout());
    // SAFETY: a descriptor, and four sizes and strides as counted.
    let code = unsafe { (functions.set_tensor)(descriptor.handle, data_type, 4, sizes.as_ptr(), strides.as_ptr()) };
    check_miopen(code, "miopenSetTensorDescriptor").map(|()| descriptor)
}

/// How far apart neighbours lie on each of the four axes.
fn strides(shape: TensorShape, layout: Layout) -> [i32; 4] {
    let indexer = Indexer::new(shape, layout);
    [0, 1, 2, 3].map(|axis| {
        let mut position = [0; 4];
        position[axis] = 1;
        indexer.index(position) as i32
    })
}

fn convolution(functions: &Functions, problem: &Problem) -> Result<Descriptor, MiopenError> {
    let descriptor = Descriptor::new(functions.create_convolution, functions.destroy_convolution)?;
    let [padding, stride, dilation] =
        [problem.padding(), problem.stride(), problem.dilation()].map(|pair| pair.map(|number| number as i32));
    // SAFETY: a descriptor of ours.
    unsafe {
        let [[ph, pw], [sh, sw], [dh, dw]] = [padding, stride, dilation];
        let code = (functions.set_convolution)(descriptor.handle, ORDINARY, ph, pw, sh, sw, dh, dw);
        check_miopen(code, "miopenInitConvolutionDescriptor")?;
        let code = (functions.set_groups)(descriptor.handle, problem.groups() as i32);
        check_miopen(code, "miopenSetConvolutionGroupCount")?;
    }
    Ok(descriptor)
}

/// MIOpen's name of an algorithm; the same number means the same in all directions, with two exceptions.
fn algorithm_name(direction: Direction, algorithm: i32) -> String {
    match (algorithm, direction) {
        (0, _) => "GEMM".to_owned(),
        (1, _) => "direct".to_owned(),
        (2, Direction::Forward | Direction::BackwardData) => "FFT".to_owned(),
        (3, _) => "Winograd".to_owned(),
        (4, Direction::BackwardData) => "transposed GEMM".to_owned(),
        (5, _) => "implicit GEMM".to_owned(),
        (other, _) => format!("algorithm {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strides_are_those_of_the_layout() {
        assert_eq!(strides([2, 3, 5, 7], Layout::Nchw), [105, 35, 7, 1]);
        assert_eq!(strides([2, 3, 5, 7], Layout::Nhwc), [105, 1, 21, 3]);
    }
}
