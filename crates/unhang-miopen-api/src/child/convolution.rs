//! Computes one convolution with MIOpen as torch does.

use std::time::Instant;

use unhang_conv::reference::Indexer;
use unhang_conv::{Direction, Layout, Problem, TensorShape};
use unhang_probe::trial::Convolved;

use crate::{DirectionFunctions, MODE_CONVOLUTION, Opaque, Performance, code_of};

use super::library::{Functions, Miopen, MiopenError, call};
use super::memory::{Descriptor, HipEvent, Memory};

/// The most algorithms that a search may return.
const MOST_ALGORITHMS: usize = 16;
/// The time limit in seconds, and the limit on repetitions, for timing a convolution.
const TIMING_SECONDS: f64 = 0.2;
const TIMING_CALLS: usize = 10;

impl Miopen {
    /// Computes an ordinary (not transposed) problem on operands in this process's memory. `first` and `second` are the
    /// operands in the problem's own order; `result` is overwritten. Calls `found` when the search is done and the
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
        HipEvent::now(functions)?.wait()?;
        let first_seconds = began.elapsed().as_secs_f64();
        let seconds = call.time(best.algorithm, workspace.address, bytes)?;
        memory[2].read(result)?;
        let detail = format!(
            "{}, the best of {count}, {:.3} ms by its own measure, {} bytes of workspace",
            algorithm_name(problem.direction(), best.algorithm),
            best.milliseconds,
            best.memory
        );
        Ok(Convolved { first_seconds, seconds, detail })
    }

    /// Whether the device accepts data and returns it. Each convolution tests what the device computes.
    pub fn copies(&self) -> Result<bool, MiopenError> {
        let sent: Vec<u32> = (0..4096).collect();
        let mut received = vec![0; sent.len()];
        let memory = Memory::of(&self.functions, &sent)?;
        HipEvent::now(&self.functions)?.wait()?;
        memory.read(&mut received)?;
        Ok(received == sent)
    }
}

/// The arguments that the three calls of a direction share.
struct Call<'a> {
    functions: &'a Functions,
    handle: Opaque,
    direction: Direction,
    convolution: Descriptor,
    /// Descriptors and addresses in MIOpen's order: two operands, result.
    tensors: [Opaque; 3],
    memory: [Opaque; 3],
}

impl Call<'_> {
    fn functions(&self) -> &DirectionFunctions {
        self.functions.miopen.of(self.direction)
    }

    fn workspace_size(&self) -> Result<usize, MiopenError> {
        let [first, second, result] = self.tensors;
        // Only here, the forward direction has its operands in the opposite order.
        let [first, second] = if self.direction == Direction::Forward { [second, first] } else { [first, second] };
        let mut bytes = 0;
        // SAFETY: the descriptors outlive the call, and there is room for the number.
        unsafe {
            let (workspace_size, convolution) = (self.functions().workspace_size, self.convolution.handle);
            call!(
                workspace_size,
                "query of the workspace's size",
                self.handle,
                first,
                second,
                convolution,
                result,
                &mut bytes
            )?;
        }
        Ok(bytes)
    }

    /// The best algorithm, and how many there are.
    fn find(&self, workspace: Opaque, bytes: usize) -> Result<(Performance, i32), MiopenError> {
        let ([a, b, c], [x, y, z]) = (self.tensors, self.memory);
        let mut results = [Performance::default(); MOST_ALGORITHMS];
        let mut count = 0;
        // SAFETY: the descriptors and the memory have the described sizes and outlive the call. There is room for as
        // many results as are counted.
        unsafe {
            call!(
                self.functions().find,
                "search for an algorithm",
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
                false
            )?;
        }
        if count < 1 { Err(MiopenError::NoAlgorithm) } else { Ok((results[0], count)) }
    }

    fn execute(&self, algorithm: i32, workspace: Opaque, bytes: usize) -> Result<(), MiopenError> {
        let ([a, b, c], [x, y, z]) = (self.tensors, self.memory);
        let scalars = [1.0f32, 0.0];
        let [one, zero] = [0, 1].map(|at| (&raw const scalars[at]).cast());
        let convolution = self.convolution.handle;
        // SAFETY: as in `find`; the scalars are read before the call returns.
        unsafe {
            call!(
                self.functions().execute,
                "convolution",
                self.handle,
                one,
                a,
                x,
                b,
                y,
                convolution,
                algorithm,
                zero,
                c,
                z,
                workspace,
                bytes
            )
        }
    }

    /// Seconds of one warm call: the best of a few.
    fn time(&self, algorithm: i32, workspace: Opaque, bytes: usize) -> Result<f64, MiopenError> {
        let (mut best, mut spent) = (f64::INFINITY, 0.0);
        for _ in 0..TIMING_CALLS {
            let begin = HipEvent::now(self.functions)?;
            self.execute(algorithm, workspace, bytes)?;
            let end = HipEvent::now(self.functions)?;
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
    let miopen = &functions.miopen;
    let descriptor = Descriptor::new(miopen.create_tensor, miopen.destroy_tensor)?;
    let sizes = shape.map(|size| size as i32);
    let (sizes, strides) = (sizes.as_ptr(), strides(shape, problem.layout()));
    let (handle, data_type) = (descriptor.handle, code_of(problem.data_type()));
    // SAFETY: a valid descriptor, and four sizes and strides as counted.
    unsafe { call!(miopen.set_tensor, "miopenSetTensorDescriptor", handle, data_type, 4, sizes, strides.as_ptr()) }?;
    Ok(descriptor)
}

/// The strides of the four axes, in elements.
fn strides(shape: TensorShape, layout: Layout) -> [i32; 4] {
    let indexer = Indexer::new(shape, layout);
    [0, 1, 2, 3].map(|axis| {
        let mut position = [0; 4];
        position[axis] = 1;
        indexer.index(position) as i32
    })
}

fn convolution(functions: &Functions, problem: &Problem) -> Result<Descriptor, MiopenError> {
    let miopen = &functions.miopen;
    let descriptor = Descriptor::new(miopen.create_convolution, miopen.destroy_convolution)?;
    let handle = descriptor.handle;
    let [[ph, pw], [sh, sw], [dh, dw]] =
        [problem.padding(), problem.stride(), problem.dilation()].map(|pair| pair.map(|number| number as i32));
    let set = miopen.set_convolution;
    // SAFETY: a descriptor of ours.
    unsafe {
        call!(set, "miopenInitConvolutionDescriptor", handle, MODE_CONVOLUTION, ph, pw, sh, sw, dh, dw)?;
        call!(miopen.set_groups, "miopenSetConvolutionGroupCount", handle, problem.groups() as i32)?;
    }
    Ok(descriptor)
}

/// MIOpen's name of an algorithm. A number means the same in all directions, with two exceptions.
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
