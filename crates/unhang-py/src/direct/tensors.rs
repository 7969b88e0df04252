//! Torch's tensors and lists, as they arrive in a kernel's arguments.

use unhang_conv::{Layout, TensorShape};

use super::c_interface::Handle;
use super::torch::Torch;

/// A short list of numbers: a convolution has as many as axes.
#[derive(Default)]
pub struct List {
    few: [i64; 4],
    length: usize,
    many: Vec<i64>,
}

impl List {
    pub(super) fn push(&mut self, number: i64) {
        if self.length < self.few.len() {
            self.few[self.length] = number;
        } else {
            if self.many.is_empty() {
                self.many.extend_from_slice(&self.few);
            }
            self.many.push(number);
        }
        self.length += 1;
    }

    /// The numbers.
    pub fn as_slice(&self) -> &[i64] {
        if self.many.is_empty() { &self.few[..self.length] } else { &self.many }
    }
}

/// A tensor's device and type, by torch's numbers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TensorPlace {
    pub data_type: i32,
    pub device_type: i32,
    pub device_index: i32,
}

/// A tensor with torch's description of it, read once per call.
#[derive(Clone, Copy)]
pub struct Described<'t, 'a> {
    pub tensor: &'t Tensor<'a>,
    pub sizes: &'t [i64],
    pub strides: &'t [i64],
    pub place: TensorPlace,
}

impl Described<'_, '_> {
    /// Whether it has that layout, without gaps.
    pub fn is_dense(&self, layout: Layout) -> bool {
        let shape = match self.sizes {
            &[batch, channels, length] => [batch, channels, 1, length],
            sizes => sizes.try_into().unwrap_or_default(),
        };
        dense_length(self.sizes, self.strides, shape.map(|size| size as usize), layout).is_some()
    }
}

/// The number of elements of a tensor with these sizes and strides, if it has that shape and is dense in that layout. A
/// tensor of a 1-d convolution has no height.
pub(super) fn dense_length(sizes: &[i64], strides: &[i64], shape: TensorShape, layout: Layout) -> Option<usize> {
    let (sizes, strides) = match (sizes, strides) {
        (&[batch, channels, length], &[over_batch, over_channels, over_length]) => {
            ([batch, channels, 1, length], [over_batch, over_channels, 0, over_length])
        }
        _ => (sizes.try_into().ok()?, strides.try_into().ok()?),
    };
    let inner_to_outer = match layout {
        Layout::Nchw => [3, 2, 1, 0],
        Layout::Nhwc => [1, 3, 2, 0],
    };
    let mut length = 1;
    for axis in inner_to_outer {
        let (size, stride) = (usize::try_from(sizes[axis]).ok()?, usize::try_from(strides[axis]).ok()?);
        if size != shape[axis] || (size != 1 && stride != length) {
            return None;
        }
        length = length.checked_mul(size)?;
    }
    Some(length)
}

/// A tensor that we must delete.
pub struct Tensor<'a> {
    pub(super) torch: &'a Torch,
    pub(super) handle: Handle,
}

impl Drop for Tensor<'_> {
    fn drop(&mut self) {
        // SAFETY: the handle is ours and is not used again.
        unsafe { (self.torch.functions.delete)(self.handle) };
    }
}

impl<'a> Tensor<'a> {
    /// Torch's description of it; `None` for a tensor without strides.
    pub fn described(&self) -> Option<Described<'_, 'a>> {
        let (sizes, strides) = self.shape()?;
        Some(Described { tensor: self, sizes, strides, place: self.place()? })
    }

    /// Moves it into a slot, from where torch takes it.
    pub fn into_slot(self) -> u64 {
        let slot = self.handle as u64;
        std::mem::forget(self);
        slot
    }

    /// Whether it is a tensor at all: torch has objects that stand for none.
    pub fn is_defined(&self) -> bool {
        let mut found = false;
        // SAFETY: a tensor, and a valid pointer for the answer.
        let failed = unsafe { (self.torch.functions.is_defined)(self.handle, &mut found) };
        failed == 0 && found
    }

    /// Sizes and strides; `None` for a tensor without them.
    fn shape(&self) -> Option<(&[i64], &[i64])> {
        let functions = &self.torch.functions;
        let (mut layout, mut dimensions) = (0, 0);
        let (mut sizes, mut strides) = (std::ptr::null(), std::ptr::null());
        // SAFETY: a tensor, and valid pointers for what is read. Torch keeps sizes and strides with the tensor, which
        // lives as long as the returned slices.
        unsafe {
            if (functions.layout)(self.handle, &mut layout) != 0 || layout != self.torch.strided {
                return None;
            }
            let failed = (functions.dimensions)(self.handle, &mut dimensions)
                | (functions.sizes)(self.handle, &mut sizes)
                | (functions.strides)(self.handle, &mut strides);
            let length = usize::try_from(dimensions).ok()?;
            if failed != 0 || length == 0 || sizes.is_null() || strides.is_null() {
                return None;
            }
            Some((std::slice::from_raw_parts(sizes, length), std::slice::from_raw_parts(strides, length)))
        }
    }

    /// Its device and type.
    pub fn place(&self) -> Option<TensorPlace> {
        let functions = &self.torch.functions;
        let mut place = TensorPlace { data_type: 0, device_type: 0, device_index: 0 };
        // SAFETY: a tensor, and valid pointers for what is read.
        let failed = unsafe {
            (functions.data_type)(self.handle, &mut place.data_type)
                | (functions.device_type)(self.handle, &mut place.device_type)
                | (functions.device_index)(self.handle, &mut place.device_index)
        };
        (failed == 0).then_some(place)
    }

    /// The address of its first element, for reading.
    pub fn address(&self) -> Option<u64> {
        let mut address = std::ptr::null();
        // SAFETY: a tensor, and a valid pointer for the address.
        (unsafe { (self.torch.functions.read)(self.handle, &mut address) } == 0).then_some(address as u64)
    }

    /// The address of its first element, for writing.
    pub fn address_to_write(&self) -> Option<u64> {
        let mut address = std::ptr::null_mut();
        // SAFETY: a tensor, and a valid pointer for the address.
        (unsafe { (self.torch.functions.written)(self.handle, &mut address) } == 0).then_some(address as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_is_that_of_a_dense_tensor_of_the_very_shape() {
        let shape = [2, 3, 4, 5];
        let dense = |sizes: &[i64], strides: &[i64], layout| dense_length(sizes, strides, shape, layout);
        assert_eq!(dense(&[2, 3, 4, 5], &[60, 20, 5, 1], Layout::Nchw), Some(120));
        assert_eq!(dense(&[2, 3, 4, 5], &[60, 1, 15, 3], Layout::Nhwc), Some(120));
        assert_eq!(dense(&[2, 3, 4, 5], &[60, 1, 15, 3], Layout::Nchw), None);
        assert_eq!(dense(&[2, 3, 4, 4], &[60, 20, 5, 1], Layout::Nchw), None, "another size");
        assert_eq!(dense(&[2, 3, 4, 5], &[0, 0, 0, 0], Layout::Nchw), None, "an expanded element");
        assert_eq!(dense(&[2, 3, 4, 5], &[120, 20, 5, 1], Layout::Nchw), None, "with gaps");
        assert_eq!(dense(&[2, 3, 4, 5], &[-60, 20, 5, 1], Layout::Nchw), None);
        assert_eq!(dense(&[120], &[1], Layout::Nchw), None);
        // Strides of one-element axes say nothing. A 1-d convolution's tensors have three dimensions.
        assert_eq!(dense_length(&[1, 3, 1, 5], &[7, 5, 9, 1], [1, 3, 1, 5], Layout::Nchw), Some(15));
        assert_eq!(dense_length(&[2, 3, 5], &[15, 5, 1], [2, 3, 1, 5], Layout::Nchw), Some(30));
        assert_eq!(dense_length(&[2, 3, 5], &[15, 1, 3], [2, 3, 1, 5], Layout::Nhwc), Some(30));
        assert_eq!(dense_length(&[2, 3, 5], &[15, 5, 1], [2, 3, 2, 5], Layout::Nchw), None);
    }
}
