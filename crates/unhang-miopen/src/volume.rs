//! Descriptors with three axes of space: the 3-d convolution that they describe.

use unhang_conv::{DataType, Direction, Layout, Volume, VolumeSpecification};
use unhang_session::{Asked, VolumeConvolution};

use crate::describe::{Described, Tensor};

/// A tensor of five axes, as it is in memory.
#[derive(Debug, Clone, Copy)]
struct Lying {
    shape: [usize; 5],
    strides: [usize; 5],
}

impl Lying {
    fn of(tensor: &Tensor, data_type: DataType) -> Result<Lying, String> {
        let [shape, strides] = tensor.five(data_type)?;
        Ok(Lying { shape, strides })
    }

    /// Whether it has no gaps in that layout; an axis of one element may have any stride.
    fn is_dense(&self, layout: Layout) -> bool {
        let dense = Volume::dense_strides(self.shape, layout);
        let mut axes = self.shape.iter().zip(self.strides.iter().zip(dense));
        axes.all(|(&size, (&found, dense))| size == 1 || found == dense)
    }
}

impl Described {
    /// The convolution, or why our engines do not support it.
    pub(crate) fn asked(&self) -> Result<Asked, String> {
        match self.x.axes {
            5 => self.volume().map(Asked::Volume),
            _ => self.convolution().map(Asked::Plane),
        }
    }

    /// The 3-d convolution, or why our engines do not support it; as [`Described::convolution`].
    fn volume(&self) -> Result<VolumeConvolution, String> {
        let data_type = self.data_type()?;
        let tensors = [Lying::of(&self.x, data_type)?, Lying::of(&self.w, data_type)?, Lying::of(&self.y, data_type)?];
        let ([input, filter, output], direction) = self.ordinary();
        let order = match direction {
            Direction::Forward => [input, filter, output],
            Direction::BackwardData => [output, filter, input],
            Direction::BackwardWeights => [input, output, filter],
        };
        let count = |layout| tensors.iter().filter(|tensor| tensor.is_dense(layout)).count();
        let layout = if count(Layout::Nhwc) > count(Layout::Nchw) { Layout::Nhwc } else { Layout::Nchw };
        let size = |which: usize, axis: usize| tensors[which].shape[axis] as i64;
        let volume = Volume::new(VolumeSpecification {
            batch: size(input, 0),
            in_channels: size(input, 1),
            in_size: [2, 3, 4].map(|axis| size(input, axis)),
            out_channels: size(filter, 0),
            kernel: [2, 3, 4].map(|axis| size(filter, axis)),
            stride: self.stride.map(i64::from),
            padding: self.padding.map(i64::from),
            dilation: self.dilation.map(i64::from),
            groups: i64::from(self.groups),
            data_type,
            layout,
            direction,
            ..VolumeSpecification::default()
        })
        .map_err(|error| error.to_string())?;
        for (which, expected) in
            [(filter, volume.weight_shape()), (output, volume.output_shape()), (input, volume.input_shape())]
        {
            if tensors[which].shape != expected {
                return Err(format!("a tensor of {:?} where {volume} has {expected:?}", tensors[which].shape));
            }
        }
        Ok(VolumeConvolution { volume, strides: order.map(|which| tensors[which].strides), order })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use unhang_miopen_api::MODE_TRANSPOSE;

    fn tensor(sizes: [i32; 5], strides: [i32; 5]) -> Tensor {
        let span: i32 = 1 + sizes.iter().zip(strides).map(|(size, stride)| (size - 1) * stride).sum::<i32>();
        Tensor { axes: 5, data_type: 1, sizes, strides, bytes: span as usize * 4 }
    }

    fn packed(sizes: [i32; 5]) -> Tensor {
        let [_, c, d, h, w] = sizes;
        tensor(sizes, [c * d * h * w, d * h * w, h * w, w, 1])
    }

    fn described(direction: Direction, mode: i32, x: Tensor, w: Tensor, y: Tensor) -> Described {
        let (padding, stride, dilation) = ([1, 1, 0], [2, 1, 1], [1, 1, 1]);
        Described { direction, mode, groups: 1, padding, stride, dilation, x, w, y }
    }

    #[test]
    fn five_axes_are_a_3d_convolution() {
        let (x, w, y) = (packed([2, 4, 7, 8, 9]), packed([6, 4, 3, 3, 3]), packed([2, 6, 4, 8, 7]));
        let found = described(Direction::BackwardWeights, 0, x, w, y).volume().unwrap();
        let key = "backward-weights:f32:ncdhw:2x4x7x8x9:6x3x3x3:s2x1x1:p1x1x0:d1x1x1:g1";
        assert_eq!(found.volume.to_string(), key);
        assert_eq!(found.order, [0, 2, 1]);
        assert_eq!(found.strides[2], [108, 27, 9, 3, 1]);
    }

    #[test]
    fn a_transposed_one_is_the_ordinary_one_with_input_and_output_exchanged() {
        let (x, w, y) = (packed([1, 4, 3, 5, 5]), packed([4, 3, 3, 3, 3]), packed([1, 3, 6, 5, 7]));
        let found = described(Direction::Forward, MODE_TRANSPOSE, x, w, y).volume().unwrap();
        let key = "backward-data:f32:ncdhw:1x3x6x5x7:4x3x3x3:s2x1x1:p1x1x0:d1x1x1:g1";
        assert_eq!((found.volume.to_string().as_str(), found.order), (key, [0, 1, 2]));
    }

    #[test]
    fn channels_last_is_told_by_the_strides() {
        let last = |[n, c, d, h, w]: [i32; 5]| tensor([n, c, d, h, w], [c * d * h * w, 1, c * h * w, c * w, c]);
        let (x, w, y) = (last([2, 4, 7, 8, 9]), last([6, 4, 3, 3, 3]), last([2, 6, 4, 8, 7]));
        let found = described(Direction::Forward, 0, x, w, y).volume().unwrap();
        assert_eq!(found.volume.layout(), Layout::Nhwc);
        let wrong = described(Direction::Forward, 0, x, w, packed([2, 6, 4, 8, 8])).volume().unwrap_err();
        assert!(wrong.contains("[2, 6, 4, 8, 7]"), "{wrong}");
    }
}
