//! A convolution, for Python.

use pyo3::prelude::*;
use unhang_conv::{Problem, Specification, tile};
use unhang_engine::tolerance::{self, Tolerance};

use crate::errors::invalid;

/// One convolution, complete and valid.
#[pyclass(frozen, eq, hash, name = "Problem", module = "unhang._core")]
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct PyProblem {
    pub(crate) problem: Problem,
}

/// The output's channels, from the first two sizes of a weight that must match the input's channels.
pub(crate) fn out_channels(input: i64, weight: [i64; 2], transposed: bool, groups: i64) -> PyResult<i64> {
    let [first, second] = weight;
    let grouped = second.saturating_mul(groups);
    let (inward, outward) = if transposed { (first, grouped) } else { (grouped, first) };
    if inward != input {
        let message = format!("the input has {input} channels and the weight is for {inward} ({groups} groups)");
        return Err(invalid(message));
    }
    Ok(outward)
}

#[pymethods]
impl PyProblem {
    /// From torch's own arguments. Raises `ValueError`, with the numbers, if they do not describe a convolution.
    #[new]
    #[pyo3(signature = (input, weight, stride, padding, dilation, transposed, output_padding, groups, data_type, layout, direction))]
    #[allow(clippy::too_many_arguments, reason = "Python names its arguments")]
    fn new(
        input: [i64; 4],
        weight: [i64; 4],
        stride: [i64; 2],
        padding: [i64; 2],
        dilation: [i64; 2],
        transposed: bool,
        output_padding: [i64; 2],
        groups: i64,
        data_type: &str,
        layout: &str,
        direction: &str,
    ) -> PyResult<PyProblem> {
        let out_channels = out_channels(input[1], [weight[0], weight[1]], transposed, groups)?;
        let specification = Specification {
            batch: input[0],
            in_channels: input[1],
            in_size: [input[2], input[3]],
            out_channels,
            kernel: [weight[2], weight[3]],
            stride,
            padding,
            dilation,
            groups,
            transposed,
            output_padding: if transposed { output_padding } else { [0, 0] },
            data_type: data_type.parse().map_err(invalid)?,
            layout: layout.parse().map_err(invalid)?,
            direction: direction.parse().map_err(invalid)?,
        };
        Ok(PyProblem { problem: Problem::new(specification).map_err(invalid)? })
    }

    /// From its key.
    #[staticmethod]
    fn from_key(key: &str) -> PyResult<PyProblem> {
        Ok(PyProblem { problem: key.parse().map_err(invalid)? })
    }

    /// The stable text form.
    #[getter]
    fn key(&self) -> String {
        self.problem.to_string()
    }

    /// "forward", "backward-data" or "backward-weights".
    #[getter]
    fn direction(&self) -> &'static str {
        self.problem.direction().name()
    }

    /// This convolution in another direction.
    fn with_direction(&self, direction: &str) -> PyResult<PyProblem> {
        Ok(PyProblem { problem: self.problem.with_direction(direction.parse().map_err(invalid)?) })
    }

    /// Batch, channels, height, width of the input.
    #[getter]
    fn input_shape(&self) -> (usize, usize, usize, usize) {
        self.problem.input_shape().into()
    }

    /// Batch, channels, height, width of the output.
    #[getter]
    fn output_shape(&self) -> (usize, usize, usize, usize) {
        self.problem.output_shape().into()
    }

    /// The shape of the weight.
    #[getter]
    fn weight_shape(&self) -> (usize, usize, usize, usize) {
        self.problem.weight_shape().into()
    }

    /// Stride, padding, dilation, transposed, output padding, groups, in the order of torch's own arguments.
    #[getter]
    fn geometry(&self) -> Geometry {
        let it = &self.problem;
        (it.stride(), it.padding(), it.dilation(), it.transposed(), it.output_padding(), it.groups())
    }

    /// "f32", "f16", "bf16" or "f64".
    #[getter]
    fn data_type(&self) -> &'static str {
        self.problem.data_type().name()
    }

    /// "nchw" or "nhwc".
    #[getter]
    fn layout(&self) -> &'static str {
        self.problem.layout().name()
    }

    /// The shape of this direction's result.
    #[getter]
    fn result_shape(&self) -> (usize, usize, usize, usize) {
        self.problem.operand_shapes()[2].into()
    }

    /// Floating-point operations of the direct computation.
    #[getter]
    fn flops(&self) -> f64 {
        self.problem.flops()
    }

    fn __repr__(&self) -> String {
        format!("Problem({:?})", self.problem.to_string())
    }
}

/// Everything about a convolution except its tensors.
type Geometry = ([usize; 2], [usize; 2], [usize; 2], bool, [usize; 2], usize);

/// A span of rows or columns: output start and length, input start and length, zeros before and after.
type Span = (usize, usize, usize, usize, usize, usize);

/// Cuts a convolution (a transposed one in its lowered form) into tiles of at most `limit` output pixels per side.
#[pyfunction]
pub(crate) fn tiles(problem: &PyProblem, limit: usize) -> Vec<(Span, Span)> {
    let span = |s: tile::Span| (s.out_start, s.out_length, s.in_start, s.in_length, s.pad_before, s.pad_after);
    let lowered = problem.problem.lower().problem;
    tile::tiles(&lowered, limit.max(1)).into_iter().map(|[rows, columns]| (span(rows), span(columns))).collect()
}

/// How far a canary's result may be from the CPU's, relative to the largest element.
#[pyfunction]
pub(crate) fn canary_tolerance(data_type: &str) -> PyResult<f64> {
    Ok(tolerance::canary(data_type.parse().map_err(invalid)?))
}

/// The tolerance for engines in tests: relative error in L2, and of one element relative to the largest.
#[pyfunction]
pub(crate) fn engine_tolerance(data_type: &str) -> PyResult<(f64, f64)> {
    let Tolerance { l2, max } = Tolerance::of(data_type.parse().map_err(invalid)?);
    Ok((l2, max))
}
