//! What a call asks for: its descriptors, read through MIOpen's own getters, and the convolution that they describe.

use std::ffi::c_int;

use serde::{Deserialize, Serialize};
use unhang_conv::{DataType, Direction, Layout, Problem, Specification};
use unhang_miopen_api::{MODE_TRANSPOSE, Opaque, SUCCESS, code_of, data_type_of};
use unhang_session::{Convolution, Placed, View};

use crate::real::Real;

/// The most axes of a tensor: batch, channels, and three of space.
const AXES: usize = 5;

/// A convolution call, in MIOpen's own terms.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call {
    pub(crate) direction: Direction,
    pub(crate) handle: Opaque,
    pub(crate) convolution: Opaque,
    pub(crate) x: Opaque,
    pub(crate) w: Opaque,
    pub(crate) y: Opaque,
}

/// A tensor's descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub(crate) struct Tensor {
    pub(crate) axes: c_int,
    pub(crate) data_type: c_int,
    pub(crate) sizes: [c_int; AXES],
    pub(crate) strides: [c_int; AXES],
    /// As MIOpen counts them.
    pub(crate) bytes: usize,
}

/// Everything that descriptors say about a call: equal ones are the same call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Described {
    pub(crate) direction: Direction,
    pub(crate) mode: c_int,
    pub(crate) groups: c_int,
    pub(crate) padding: [c_int; 3],
    pub(crate) stride: [c_int; 3],
    pub(crate) dilation: [c_int; 3],
    pub(crate) x: Tensor,
    pub(crate) w: Tensor,
    pub(crate) y: Tensor,
}

/// Reads a tensor's descriptor; `None` if the getters cannot, or if it has fewer than three axes or too many.
pub(crate) fn read_tensor(real: &Real, descriptor: Opaque) -> Option<Tensor> {
    let mut tensor = Tensor::default();
    let Tensor { sizes, strides, .. } = &mut tensor;
    let (axes, data_type, bytes) = read_axes(real, descriptor, 3, sizes, strides)?;
    Some(Tensor { axes, data_type, bytes, ..tensor })
}

/// Reads a tensor's sizes and strides; returns the number of its axes, its type, and its bytes as MIOpen counts them.
/// `None` if the getters cannot, or if it has fewer axes than `least` or more than there is room for.
pub(crate) fn read_axes<const ROOM: usize>(
    real: &Real,
    descriptor: Opaque,
    least: c_int,
    sizes: &mut [c_int; ROOM],
    strides: &mut [c_int; ROOM],
) -> Option<(c_int, c_int, usize)> {
    let f = &real.functions;
    let (mut axes, mut data_type, mut bytes) = (0, 0, 0);
    if descriptor.is_null() {
        return None;
    }
    // SAFETY: the caller's descriptor, and places that hold what is returned: more axes are not asked for.
    unsafe {
        if f.tensor_size?(descriptor, &mut axes) != SUCCESS || !(least..=ROOM as c_int).contains(&axes) {
            return None;
        }
        let status = f.tensor?(descriptor, &mut data_type, sizes.as_mut_ptr(), strides.as_mut_ptr());
        let is_read = status == SUCCESS && f.tensor_bytes?(descriptor, &mut bytes) == SUCCESS;
        is_read.then_some((axes, data_type, bytes))
    }
}

/// The contents of a convolution's descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Window {
    spatial: c_int,
    pub(crate) mode: c_int,
    groups: c_int,
    padding: [c_int; 3],
    stride: [c_int; 3],
    dilation: [c_int; 3],
}

impl Window {
    /// Reads a descriptor; `None` if the getters cannot.
    pub(crate) fn read(real: &Real, convolution: Opaque) -> Option<Window> {
        let f = &real.functions;
        let (mut spatial, mut given, mut mode, mut groups) = (0, 0, 0, 0);
        let [mut padding, mut stride, mut dilation] = [[0; 3]; 3];
        if convolution.is_null() {
            return None;
        }
        // SAFETY: the caller's descriptor, and places for as many numbers as are asked for: three at most.
        unsafe {
            if f.spatial?(convolution, &mut spatial) != SUCCESS || !(1..=3).contains(&spatial) {
                return None;
            }
            let numbers = [&mut padding, &mut stride, &mut dilation].map(|it| it.as_mut_ptr());
            let [p, s, d] = numbers;
            if f.convolution?(convolution, spatial, &mut given, p, s, d, &mut mode) != SUCCESS
                || f.groups?(convolution, &mut groups) != SUCCESS
            {
                return None;
            }
        }
        Some(Window { spatial, mode, groups, padding, stride, dilation })
    }

    /// The result of an ordinary convolution with this window, in x's order of axes; `None` if the sizes have no
    /// result.
    pub(crate) fn result_of(&self, x: &Tensor, w: &Tensor) -> Option<Tensor> {
        let axes = x.axes as usize;
        if self.mode == MODE_TRANSPOSE || self.spatial != x.axes - 2 || w.axes != x.axes {
            return None;
        }
        let mut sizes = x.sizes;
        sizes[1] = w.sizes[0];
        for (axis, size) in sizes.iter_mut().enumerate().take(axes).skip(2) {
            let at = axis - 2;
            let reach = self.dilation[at].checked_mul(w.sizes[axis] - 1)?.checked_add(1)?;
            let room = self.padding[at].checked_mul(2)?.checked_add(x.sizes[axis])?.checked_sub(reach)?;
            *size = room.checked_div(self.stride[at])?.checked_add(1).filter(|_| room >= 0)?;
        }
        // The order of the axes in memory stays.
        let mut order: Vec<usize> = (0..axes).collect();
        order.sort_by_key(|&axis| (x.strides[axis], std::cmp::Reverse(axis)));
        let (mut strides, mut next) = ([0; AXES], 1i32);
        for axis in order {
            strides[axis] = next;
            next = next.checked_mul(sizes[axis])?;
        }
        let size = data_type_of(x.data_type)?.size();
        Some(Tensor { axes: x.axes, data_type: x.data_type, sizes, strides, bytes: next as usize * size })
    }
}

impl Described {
    /// Reads a call's descriptors; `None` if the getters cannot read one: it is null, or has too many axes.
    pub(crate) fn read(real: &Real, call: &Call) -> Option<Described> {
        let (x, w, y) = (read_tensor(real, call.x)?, read_tensor(real, call.w)?, read_tensor(real, call.y)?);
        Described::of(call.direction, &Window::read(real, call.convolution)?, [x, w, y])
    }

    /// A convolution of x, w and y; `None` if these have other axes than the window.
    pub(crate) fn of(direction: Direction, window: &Window, [x, w, y]: [Tensor; 3]) -> Option<Described> {
        let Window { spatial, mode, groups, padding, stride, dilation } = *window;
        (spatial == x.axes - 2).then_some(Described { direction, mode, groups, padding, stride, dilation, x, w, y })
    }

    /// The type of the elements of all tensors.
    pub(crate) fn data_type(&self) -> Result<DataType, String> {
        let data_type = data_type_of(self.x.data_type)
            .ok_or_else(|| format!("elements of type {} are not supported", self.x.data_type))?;
        if self.w.data_type != self.x.data_type || self.y.data_type != self.x.data_type {
            return Err("tensors of different types are not supported".to_owned());
        }
        if self.w.axes != self.x.axes || self.y.axes != self.x.axes {
            return Err("tensors of different numbers of axes".to_owned());
        }
        Ok(data_type)
    }

    /// Which of x, w and y are the ordinary convolution's input, filter and output, and its direction. A transposed one is the
    /// ordinary one with input and output, and with them the directions, exchanged.
    pub(crate) fn ordinary(&self) -> ([usize; 3], Direction) {
        match (self.direction, self.mode == MODE_TRANSPOSE) {
            (Direction::Forward, true) => ([2, 1, 0], Direction::BackwardData),
            (Direction::BackwardData, true) => ([2, 1, 0], Direction::Forward),
            (direction, true) => ([2, 1, 0], direction),
            (direction, false) => ([0, 1, 2], direction),
        }
    }

    /// The 1-d or 2-d convolution, or why our engines do not support it.
    pub(crate) fn convolution(&self) -> Result<Convolution, String> {
        let data_type = self.data_type()?;
        let views = [self.x.view(data_type)?, self.w.view(data_type)?, self.y.view(data_type)?];
        let ([input, filter, output], direction) = self.ordinary();
        let pair = |numbers: [c_int; 3]| match self.x.axes {
            3 => [None, Some(numbers[0])],
            _ => [Some(numbers[0]), Some(numbers[1])],
        };
        let or = |numbers: [c_int; 3], otherwise: i64| pair(numbers).map(|it| it.map_or(otherwise, i64::from));
        let size = |view: &View, axis: usize| view.shape[axis] as i64;
        let (shape, taps) = (&views[input], &views[filter]);
        let order = match direction {
            Direction::Forward => [input, filter, output],
            Direction::BackwardData => [output, filter, input],
            Direction::BackwardWeights => [input, output, filter],
        };
        let layout = layout_of(&order.map(|which| views[which]));
        let problem = Problem::new(Specification {
            batch: size(shape, 0),
            in_channels: size(shape, 1),
            in_size: [size(shape, 2), size(shape, 3)],
            out_channels: size(taps, 0),
            kernel: [size(taps, 2), size(taps, 3)],
            stride: or(self.stride, 1),
            padding: or(self.padding, 0),
            dilation: or(self.dilation, 1),
            groups: i64::from(self.groups),
            data_type,
            layout,
            direction,
            ..Specification::default()
        })
        .map_err(|error| error.to_string())?;
        for (which, expected) in
            [(filter, problem.weight_shape()), (output, problem.output_shape()), (input, problem.input_shape())]
        {
            if views[which].shape != expected {
                return Err(format!("a tensor of {:?} where {problem} has {expected:?}", views[which].shape));
            }
        }
        Ok(Convolution { problem, views: order.map(|which| views[which]), order })
    }
}

impl Tensor {
    /// One element for each channel, of the same type.
    pub(crate) fn as_channels(&self) -> Option<Tensor> {
        let (mut sizes, mut strides) = (self.sizes, [1; AXES]);
        sizes[2..].fill(1);
        (sizes[0], strides[0]) = (1, sizes[1]);
        let bytes = usize::try_from(sizes[1]).ok()? * data_type_of(self.data_type)?.size();
        Some(Tensor { sizes, strides, bytes, ..*self })
    }

    /// MIOpen's defaults for the parameters of a batch normalisation without descriptors: single precision, unless
    /// tensors are double, for each channel or each position.
    pub(crate) fn parameters(&self, mode: c_int) -> Option<Tensor> {
        let data_type = match data_type_of(self.data_type)? {
            DataType::F64 => DataType::F64,
            _ => DataType::F32,
        };
        let it = Tensor { data_type: code_of(data_type), ..*self };
        if mode != 0 {
            return it.as_channels();
        }
        let mut sizes = self.sizes;
        sizes[0] = 1;
        let axes = self.axes as usize;
        let elements = sizes[..axes].iter().try_fold(1i32, |all, &size| all.checked_mul(size))?;
        Some(Tensor { sizes, bytes: elements as usize * data_type.size(), ..it })
    }

    /// Its type, sizes and strides, padded to three axes of space; `None` if the getters truncated something.
    pub(crate) fn placed(&self) -> Option<(DataType, Placed)> {
        let (data_type, axes) = (data_type_of(self.data_type)?, self.axes as usize);
        let mut placed = Placed { sizes: [1; 5], strides: [1; 5] };
        for axis in 0..axes {
            let to = if axis < 2 { axis } else { axis + 5 - axes };
            placed.sizes[to] = usize::try_from(self.sizes[axis]).ok().filter(|&size| size > 0)?;
            placed.strides[to] = usize::try_from(self.strides[axis]).ok()?;
        }
        let far: usize = placed.sizes.iter().zip(placed.strides).map(|(size, stride)| (size - 1) * stride).sum();
        ((far + 1) * data_type.size() == self.bytes).then_some((data_type, placed))
    }

    fn view(&self, data_type: DataType) -> Result<View, String> {
        let axes = self.axes as usize;
        if axes == 5 {
            return self.flat(data_type);
        }
        let mut view = View { shape: [1; 4], strides: [1; 4] };
        for axis in 0..axes {
            // A 1-d convolution is a 2-d one of height 1.
            let to = if axes == 3 && axis == 2 { 3 } else { axis };
            let (size, stride) = (usize::try_from(self.sizes[axis]), usize::try_from(self.strides[axis]));
            let (Ok(size @ 1..), Ok(stride)) = (size, stride) else {
                return Err(format!("a tensor of {:?} with strides {:?}", &self.sizes[..axes], &self.strides[..axes]));
            };
            (view.shape[to], view.strides[to]) = (size, stride);
        }
        self.check_bytes(view.span() * data_type.size())?;
        Ok(view)
    }

    /// The sizes and strides of a tensor of five axes.
    pub(crate) fn five(&self, data_type: DataType) -> Result<[[usize; AXES]; 2], String> {
        let numbers = |given: [c_int; AXES]| given.map(|it| usize::try_from(it).unwrap_or(usize::MAX));
        let [sizes, strides] = [self.sizes, self.strides].map(numbers);
        if sizes.contains(&0) || sizes.iter().chain(&strides).any(|it| *it == usize::MAX) {
            return Err(format!("a tensor of {:?} with strides {:?}", self.sizes, self.strides));
        }
        let span = 1 + sizes.iter().zip(strides).map(|(size, stride)| (size - 1) * stride).sum::<usize>();
        self.check_bytes(span * data_type.size())?;
        Ok([sizes, strides])
    }

    /// A tensor of five axes as one of four, for a bias: depth and height as one axis, or height and width.
    fn flat(&self, data_type: DataType) -> Result<View, String> {
        let [[n, c, d, h, w], [sn, sc, sd, sh, sw]] = self.five(data_type)?;
        if d == 1 || sd == h * sh {
            Ok(View { shape: [n, c, d * h, w], strides: [sn, sc, sh, sw] })
        } else if h == 1 || sh == w * sw {
            Ok(View { shape: [n, c, d, h * w], strides: [sn, sc, sd, sw] })
        } else {
            Err(format!("a tensor of {:?} with gaps in two axes of space: {:?}", self.sizes, self.strides))
        }
    }

    /// Getters truncate values over 31 bits and report success; they do not report vectorised layouts at all.
    pub(crate) fn check_bytes(&self, bytes: usize) -> Result<(), String> {
        if bytes != self.bytes {
            return Err(format!("its descriptor tells of {bytes} bytes and MIOpen counts {}", self.bytes));
        }
        Ok(())
    }
}

/// The layout of most of the tensors.
fn layout_of(views: &[View; 3]) -> Layout {
    let count = |layout| views.iter().filter(|view| view.is_dense(layout)).count();
    if count(Layout::Nhwc) > count(Layout::Nchw) { Layout::Nhwc } else { Layout::Nchw }
}

/// A bias and the tensor that it belongs to.
pub(crate) struct Bias {
    pub(crate) data_type: DataType,
    /// The stride of the bias in elements.
    pub(crate) step: usize,
    pub(crate) view: View,
}

impl Bias {
    /// Reads both descriptors; fails if we cannot add them.
    pub(crate) fn read(real: &Real, bias: Opaque, tensor: Opaque) -> Result<Bias, String> {
        let none = || "a descriptor that cannot be read".to_owned();
        let (bias, tensor) = (read_tensor(real, bias).ok_or_else(none)?, read_tensor(real, tensor).ok_or_else(none)?);
        let data_type = match tensor.data_type {
            0 => DataType::F16,
            1 => DataType::F32,
            5 => DataType::Bf16,
            6 => DataType::F64,
            other => return Err(format!("elements of type {other} are not supported")),
        };
        let (numbers, view) = (bias.view(data_type)?, tensor.view(data_type)?);
        if bias.data_type != tensor.data_type || numbers.shape != [1, view.shape[1], 1, 1] {
            return Err(format!("a bias of {:?} for a tensor of {:?}", numbers.shape, view.shape));
        }
        Ok(Bias { data_type, step: numbers.strides[1], view })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(sizes: &[c_int], strides: &[c_int], data_type: c_int) -> Tensor {
        let mut tensor = Tensor { axes: sizes.len() as c_int, data_type, ..Tensor::default() };
        tensor.sizes[..sizes.len()].copy_from_slice(sizes);
        tensor.strides[..sizes.len()].copy_from_slice(strides);
        let span: c_int = 1 + sizes.iter().zip(strides).map(|(size, stride)| (size - 1) * stride).sum::<c_int>();
        tensor.bytes = span as usize * if data_type == 1 { 4 } else { 2 };
        tensor
    }

    fn packed(sizes: &[c_int]) -> Tensor {
        let mut strides = vec![1; sizes.len()];
        for axis in (0..sizes.len() - 1).rev() {
            strides[axis] = strides[axis + 1] * sizes[axis + 1];
        }
        tensor(sizes, &strides, 1)
    }

    fn described(direction: Direction, mode: c_int, x: Tensor, w: Tensor, y: Tensor) -> Described {
        let (padding, stride, dilation) = ([1, 1, 0], [2, 2, 0], [1, 1, 0]);
        Described { direction, mode, groups: 1, padding, stride, dilation, x, w, y }
    }

    #[test]
    fn a_transposed_convolution_is_the_ordinary_one_with_input_and_output_exchanged() {
        // 5 -> 10 by stride 2 with an output padding of one, which no getter reports: the shapes show it.
        let (x, w, y) = (packed(&[1, 4, 5, 5]), packed(&[4, 3, 3, 3]), packed(&[1, 3, 10, 10]));
        let found = described(Direction::Forward, MODE_TRANSPOSE, x, w, y).convolution().unwrap();
        assert_eq!(found.problem.to_string(), "backward-data:f32:nchw:1x3x10x10:4x3x3:s2x2:p1x1:d1x1:g1");
        assert_eq!(found.order, [0, 1, 2], "x is the gradient of the output, y that of the input");
    }

    #[test]
    fn a_1d_convolution_has_height_one() {
        let (x, w, y) = (packed(&[2, 4, 9]), packed(&[6, 4, 3]), packed(&[2, 6, 5]));
        let found = described(Direction::Forward, 0, x, w, y).convolution().unwrap();
        assert_eq!(found.problem.to_string(), "forward:f32:nchw:2x4x1x9:6x1x3:s1x2:p0x1:d1x1:g1");
    }

    #[test]
    fn a_tensor_of_five_axes_that_has_a_bias_has_four() {
        let view = |strides: &[c_int]| tensor(&[2, 3, 4, 5, 6], strides, 1).view(DataType::F32);
        let whole = view(&[360, 120, 30, 6, 1]).unwrap();
        assert_eq!((whole.shape, whole.strides), ([2, 3, 20, 6], [360, 120, 6, 1]));
        let gaps = view(&[480, 160, 40, 6, 1]).unwrap();
        assert_eq!((gaps.shape, gaps.strides), ([2, 3, 4, 30], [480, 160, 40, 1]));
        assert!(view(&[960, 320, 80, 8, 1]).is_err());
    }

    #[test]
    fn what_getters_cut_off_is_declined() {
        let (w, y) = (packed(&[6, 4, 3, 3]), packed(&[2, 6, 5, 5]));
        let x = Tensor { bytes: 6_400_000_000, ..packed(&[2, 4, 9, 9]) };
        let error = described(Direction::Forward, 0, x, w, y).convolution().unwrap_err();
        assert!(error.contains("MIOpen counts 6400000000"), "{error}");
    }

    #[test]
    fn another_output_than_the_definition_gives_is_declined() {
        let (x, w, y) = (packed(&[2, 4, 9, 9]), packed(&[6, 4, 3, 3]), packed(&[2, 6, 4, 5]));
        assert!(described(Direction::Forward, 0, x, w, y).convolution().is_err());
    }
}
