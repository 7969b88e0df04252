//! Tensors and lists of torch's, as they come in a kernel's arguments.

use super::torch::{Handle, Torch};

/// Numbers that are few: a convolution has as many as axes.
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

/// Where a tensor lies and what it holds, by torch's numbers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Place {
    pub data_type: i32,
    pub device_type: i32,
    pub device_index: i32,
}

/// A tensor that is ours to delete.
pub struct Tensor<'a> {
    pub(super) torch: &'a Torch,
    pub(super) handle: Handle,
}

impl Drop for Tensor<'_> {
    fn drop(&mut self) {
        // SAFETY: the handle is ours and is used no more.
        unsafe { (self.torch.functions.delete)(self.handle) };
    }
}

impl Tensor<'_> {
    /// Into a slot, from where torch takes it.
    pub fn into_slot(self) -> u64 {
        let slot = self.handle as u64;
        std::mem::forget(self);
        slot
    }

    /// Whether it is one at all: torch has objects that stand for none.
    pub fn is_defined(&self) -> bool {
        let mut found = false;
        // SAFETY: a tensor, and a place for the answer.
        let failed = unsafe { (self.torch.functions.is_defined)(self.handle, &mut found) };
        failed == 0 && found
    }

    /// Sizes and strides; none for a tensor that has none to tell.
    pub fn shape(&self) -> Option<(&[i64], &[i64])> {
        let functions = &self.torch.functions;
        let (mut layout, mut dimensions) = (0, 0);
        let (mut sizes, mut strides) = (std::ptr::null(), std::ptr::null());
        // SAFETY: a tensor, and places for what is read. Torch keeps sizes and strides with the tensor, which lives as
        // long as what is returned.
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

    /// Where it lies and what it holds.
    pub fn place(&self) -> Option<Place> {
        let functions = &self.torch.functions;
        let mut place = Place { data_type: 0, device_type: 0, device_index: 0 };
        // SAFETY: a tensor, and places for what is read.
        let failed = unsafe {
            (functions.data_type)(self.handle, &mut place.data_type)
                | (functions.device_type)(self.handle, &mut place.device_type)
                | (functions.device_index)(self.handle, &mut place.device_index)
        };
        (failed == 0).then_some(place)
    }

    /// The address of its first element, to read from.
    pub fn address(&self) -> Option<u64> {
        let mut address = std::ptr::null();
        // SAFETY: a tensor, and a place for the address.
        (unsafe { (self.torch.functions.read)(self.handle, &mut address) } == 0).then_some(address as u64)
    }

    /// The same, to write to.
    pub fn address_to_write(&self) -> Option<u64> {
        let mut address = std::ptr::null_mut();
        // SAFETY: a tensor, and a place for the address.
        (unsafe { (self.torch.functions.written)(self.handle, &mut address) } == 0).then_some(address as u64)
    }
}
