//! A 3-d convolution and the 2-d ones that it is folded into, for Python.

use pyo3::prelude::*;
use unhang_conv::{Planes, Volume, VolumeSpecification};

use crate::errors::invalid;
use crate::problem::{PyProblem, out_channels};

/// One 3-d convolution, complete and valid.
#[pyclass(frozen, name = "Volume", module = "unhang._core")]
pub struct PyVolume {
    volume: Volume,
}

/// Images, channels, the first depth, depths along images and along channels. Each range is a start or a step, and a
/// count.
type Ranges = ((usize, usize), (usize, usize), i64, (i64, usize), (i64, usize));

/// A 2-d problem, and the parts of the 3-d convolution that make up its first operand, second operand and result.
/// `None` if they differ only by one axis less.
type FoldedPart = (PyProblem, Option<[Ranges; 3]>);

#[pymethods]
impl PyVolume {
    /// From torch's own arguments. Raises `ValueError`, with the numbers, if they do not describe a convolution.
    #[new]
    #[pyo3(signature = (input, weight, stride, padding, dilation, transposed, output_padding, groups, data_type, channels_last, direction))]
    #[allow(clippy::too_many_arguments, reason = "Python names its arguments")]
    fn new(
        input: [i64; 5],
        weight: [i64; 5],
        stride: [i64; 3],
        padding: [i64; 3],
        dilation: [i64; 3],
        transposed: bool,
        output_padding: [i64; 3],
        groups: i64,
        data_type: &str,
        channels_last: bool,
        direction: &str,
    ) -> PyResult<PyVolume> {
        let out_channels = out_channels(input[1], [weight[0], weight[1]], transposed, groups)?;
        let [_, _, in_size @ ..] = input;
        let [_, _, kernel @ ..] = weight;
        let specification = VolumeSpecification {
            batch: input[0],
            in_channels: input[1],
            in_size,
            out_channels,
            kernel,
            stride,
            padding,
            dilation,
            groups,
            transposed,
            output_padding: if transposed { output_padding } else { [0; 3] },
            data_type: data_type.parse().map_err(invalid)?,
            layout: if channels_last { unhang_conv::Layout::Nhwc } else { unhang_conv::Layout::Nchw },
            direction: direction.parse().map_err(invalid)?,
        };
        Ok(PyVolume { volume: Volume::new(specification).map_err(invalid)? })
    }

    /// The stable text form.
    #[getter]
    fn key(&self) -> String {
        self.volume.to_string()
    }

    /// Batch, channels, depth, height, width of the output.
    #[getter]
    fn output_shape(&self) -> [usize; 5] {
        self.volume.output_shape()
    }

    /// The 2-d convolutions that compute it, each with what its operands are made of. Then which operands of this
    /// convolution the parts' first, second and result are. Then the depths of the result that are zero.
    fn fold(&self) -> PyResult<(Vec<FoldedPart>, [usize; 3], Vec<Ranges>)> {
        let fold = self.volume.fold(self.volume.fold_limit()).map_err(invalid)?;
        let parts = fold.parts.into_iter().map(|part| {
            let [first, second, result] = part.planes.each_ref().map(ranges);
            let planes = first.zip(second).zip(result).map(|((first, second), result)| [first, second, result]);
            (PyProblem { problem: part.problem }, planes)
        });
        Ok((parts.collect(), fold.order, fold.zeros.iter().filter_map(ranges).collect()))
    }

    fn __repr__(&self) -> String {
        format!("Volume({:?})", self.volume.to_string())
    }
}

fn ranges(planes: &Planes) -> Option<Ranges> {
    let it = planes.ranges()?;
    Some((it.images, it.channels, it.depth, it.along_images, it.along_channels))
}
