//! Torch's entries: what computes a convolution, and memory for it.

use std::ffi::c_void;
use std::mem::MaybeUninit;

use unhang_conv::{DataType, Layout};

use super::accelerator::{DeviceGuard, Give, OptionalDevice};
use super::c_interface::{Handle, ListHandle, Mask, Numbers, OptionalNumbers, OptionalRaw, OptionalType, Raw};
use super::tensors::{List, Tensor, TensorPlace};
use super::torch::Torch;

/// Everything about a convolution except its tensors.
pub struct Geometry<'a> {
    pub stride: &'a [i64],
    pub padding: &'a [i64],
    pub dilation: &'a [i64],
    pub transposed: bool,
    pub output_padding: &'a [i64],
    pub groups: i64,
}

/// How torch's own convolution chooses its kernel.
#[derive(Clone, Copy, Default)]
pub struct Flags {
    /// Whether to measure which kernel is fastest.
    pub benchmark: bool,
    pub deterministic: bool,
    /// Whether the vendor's library (cuDNN, MIOpen) may compute it.
    pub vendor: bool,
    pub allow_tf32: bool,
}

impl From<[bool; 4]> for Flags {
    /// In the order of torch's arguments.
    fn from([benchmark, deterministic, vendor, allow_tf32]: [bool; 4]) -> Flags {
        Flags { benchmark, deterministic, vendor, allow_tf32 }
    }
}

/// Memory of the accelerator for work that is queued before this is dropped. Torch reuses it only for later work of the
/// same stream.
pub enum Scratch<'a> {
    Tensor(Tensor<'a>),
    Bytes(*mut c_void, Give),
}

impl Scratch<'_> {
    /// Its address.
    pub fn address(&self) -> Option<u64> {
        match self {
            Scratch::Tensor(tensor) => tensor.address_to_write(),
            Scratch::Bytes(address, _) => Some(*address as u64),
        }
    }
}

impl Drop for Scratch<'_> {
    fn drop(&mut self) {
        if let Scratch::Bytes(address, give) = self {
            // SAFETY: this memory was taken from torch, and is given back once.
            unsafe { give(*address) };
        }
    }
}

impl Torch {
    /// Makes the device of a tensor this thread's current one until the returned guard is dropped, if it is not
    /// already.
    pub fn on_device_of(&self, tensor: &Tensor<'_>) -> Option<DeviceGuard> {
        self.accelerator.guard(tensor.place()?.device_index)
    }

    /// The place of CPU tensors.
    pub fn on_cpu(&self, data_type: DataType) -> TensorPlace {
        // SAFETY: no arguments.
        let device_type = unsafe { (self.functions.cpu)() };
        TensorPlace { data_type: self.number_of(data_type), device_type, device_index: -1 }
    }

    /// Allocates that many bytes on the place's device.
    pub fn scratch(&self, bytes: u64, place: TensorPlace) -> Option<Scratch<'_>> {
        if let Some((take, give)) = self.accelerator.scratch
            && place.device_index >= 0
            && self.accelerator.is_current(place.device_index)
        {
            let mut address = std::ptr::null_mut();
            // SAFETY: a valid pointer for the address.
            return (unsafe { take(bytes, &mut address) } == 0).then_some(Scratch::Bytes(address, give));
        }
        let of_bytes = TensorPlace { data_type: self.byte(), ..place };
        self.allocate(&[i64::try_from(bytes).ok()?], &[1], of_bytes).map(Scratch::Tensor)
    }

    /// Memory for a result. If memory runs out, torch itself raises on an accelerator; elsewhere this is `None`.
    pub fn result(&self, sizes: &[i64], strides: &[i64], place: TensorPlace) -> Option<Tensor<'_>> {
        let (Some(empty), true) = (self.accelerator.empty, place.device_index >= 0) else {
            return self.allocate(sizes, strides, place);
        };
        let number = |number: i32| i8::try_from(number).ok();
        let device =
            OptionalDevice { kind: number(place.device_type)?, index: number(place.device_index)?, is_there: true };
        let mut result = MaybeUninit::<Raw>::uninit();
        // SAFETY: the arguments match the mangled name, and each lives until the call returns.
        unsafe {
            let data_type = number(place.data_type)?;
            empty(result.as_mut_ptr(), Numbers::of(sizes), Numbers::of(strides), data_type, device);
            Some(self.kept(result.assume_init()))
        }
    }

    /// Memory from torch's allocator; `None` if torch has no memory left.
    pub fn allocate(&self, sizes: &[i64], strides: &[i64], place: TensorPlace) -> Option<Tensor<'_>> {
        let mut handle = std::ptr::null_mut();
        let TensorPlace { data_type, device_type, device_index } = place;
        // SAFETY: as many sizes and strides as dimensions, and a valid pointer for the handle.
        let code = unsafe {
            (self.functions.empty)(
                sizes.len() as i64,
                sizes.as_ptr(),
                strides.as_ptr(),
                data_type,
                device_type,
                device_index,
                &mut handle,
            )
        };
        (code == 0).then_some(Tensor { torch: self, handle })
    }

    /// An undefined tensor: stands for a gradient that was not requested.
    pub fn undefined(&self) -> Option<Tensor<'_>> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: a valid pointer for the handle.
        (unsafe { (self.functions.undefined)(&mut handle) } == 0).then_some(Tensor { torch: self, handle })
    }

    /// Moves a tensor that a C++ entry returned into a handle.
    fn kept(&self, raw: Raw) -> Tensor<'_> {
        let Some(tensor) = self.undefined() else {
            // Not even eight bytes are available, so nothing else can continue either.
            std::process::abort();
        };
        // SAFETY: an undefined tensor points to an object of torch that is not reference-counted, so overwriting it
        // loses nothing. The returned tensor is moved, as in C++.
        unsafe { *tensor.handle = raw };
        tensor
    }

    /// Computes a convolution with the kernel registered for the key set. Torch's exceptions pass through.
    pub fn convolution(
        &self,
        keys: u64,
        tensors: [&Tensor<'_>; 2],
        bias: Option<&Tensor<'_>>,
        it: &Geometry<'_>,
    ) -> Tensor<'_> {
        let mut result = MaybeUninit::<Raw>::uninit();
        let bias = optional(bias);
        // SAFETY: the arguments match the mangled name, and each lives until the call returns.
        unsafe {
            (self.functions.convolution)(
                result.as_mut_ptr(),
                keys,
                tensors[0].handle,
                tensors[1].handle,
                &bias,
                Numbers::of(it.stride),
                Numbers::of(it.padding),
                Numbers::of(it.dilation),
                it.transposed,
                Numbers::of(it.output_padding),
                &it.groups,
            );
            self.kept(result.assume_init())
        }
    }

    /// Torch's convolution with its flags.
    pub fn convolution_with_flags(
        &self,
        keys: u64,
        tensors: [&Tensor<'_>; 2],
        bias: Option<&Tensor<'_>>,
        it: &Geometry<'_>,
        flags: Flags,
    ) -> Tensor<'_> {
        let mut result = MaybeUninit::<Raw>::uninit();
        let bias = optional(bias);
        // SAFETY: the arguments match the mangled name, and each lives until the call returns.
        unsafe {
            (self.functions.convolution_with_flags)(
                result.as_mut_ptr(),
                keys,
                tensors[0].handle,
                tensors[1].handle,
                &bias,
                Numbers::of(it.stride),
                Numbers::of(it.padding),
                Numbers::of(it.dilation),
                it.transposed,
                Numbers::of(it.output_padding),
                &it.groups,
                flags.benchmark,
                flags.deterministic,
                flags.vendor,
                flags.allow_tf32,
            );
            self.kept(result.assume_init())
        }
    }

    /// The gradients of input, weight and bias that the mask requests, computed by the kernel of the key set.
    pub(super) fn convolution_backward(
        &self,
        keys: u64,
        tensors: [&Tensor<'_>; 3],
        bias_sizes: Option<&[i64]>,
        it: &Geometry<'_>,
        mask: Mask,
    ) -> [Tensor<'_>; 3] {
        let mut result = MaybeUninit::<[Raw; 3]>::uninit();
        // SAFETY: the arguments match the mangled name, and each lives until the call returns. A tuple of the C++
        // library holds its last element first.
        unsafe {
            (self.functions.convolution_backward)(
                result.as_mut_ptr(),
                keys,
                tensors[0].handle,
                tensors[1].handle,
                tensors[2].handle,
                OptionalNumbers::of(bias_sizes),
                Numbers::of(it.stride),
                Numbers::of(it.padding),
                Numbers::of(it.dilation),
                it.transposed,
                Numbers::of(it.output_padding),
                &it.groups,
                mask,
            );
            let [third, second, first] = result.assume_init();
            [self.kept(first), self.kept(second), self.kept(third)]
        }
    }

    /// The tensor in that layout and without gaps: a copy, unless it already has it. Torch's exceptions pass through.
    pub fn contiguous(&self, tensor: &Tensor<'_>, layout: Layout) -> Tensor<'_> {
        let mut result = MaybeUninit::<Raw>::uninit();
        let format = match layout {
            Layout::Nchw => 0,
            Layout::Nhwc => 2,
        };
        // SAFETY: the arguments match the mangled name, and each lives until the call returns.
        unsafe {
            (self.functions.contiguous)(result.as_mut_ptr(), tensor.handle, format);
            self.kept(result.assume_init())
        }
    }

    /// The sum over some dimensions.
    pub fn sum(&self, tensor: &Tensor<'_>, dimensions: &[i64]) -> Tensor<'_> {
        let mut result = MaybeUninit::<Raw>::uninit();
        // SAFETY: the arguments match the mangled name, and each lives until the call returns.
        unsafe {
            let same = OptionalType { number: 0, is_there: false };
            (self.functions.sum)(
                result.as_mut_ptr(),
                tensor.handle,
                OptionalNumbers::of(Some(dimensions)),
                false,
                same,
            );
            self.kept(result.assume_init())
        }
    }

    /// The tensor in a slot. It is ours from now on.
    ///
    /// # Safety
    /// The slot holds a tensor that nobody else deletes.
    pub unsafe fn tensor(&self, slot: u64) -> Tensor<'_> {
        Tensor { torch: self, handle: slot as Handle }
    }

    /// The numbers of a list in a slot. Deletes the list.
    ///
    /// # Safety
    /// The slot holds a list of numbers or flags that nobody else deletes.
    pub unsafe fn list(&self, slot: u64) -> List {
        let handle = slot as ListHandle;
        let (mut length, mut list) = (0, List::default());
        // SAFETY: a list of torch's, and valid pointers for what is read.
        unsafe {
            (self.functions.list_size)(handle, &mut length);
            for index in 0..length {
                let mut item = 0;
                (self.functions.list_item)(handle, index, &mut item);
                list.push(self.number(item));
            }
            (self.functions.delete_list)(handle);
        }
        list
    }
}

fn optional(tensor: Option<&Tensor<'_>>) -> OptionalRaw {
    match tensor {
        // SAFETY: a handle points to a tensor, which is borrowed here: torch receives a reference to a constant.
        Some(tensor) => OptionalRaw { tensor: unsafe { *tensor.handle }, is_there: true },
        None => OptionalRaw { tensor: Raw(std::ptr::null_mut()), is_there: false },
    }
}
