//! Torch's functions, by name at run time: its C interface for extensions (2.10 and newer), and the few C++ entries that
//! let an exception through.
//!
//! The C interface turns exceptions into codes, and with them the type and the text that a user expects. What may raise
//! is therefore called through torch's C++ entries, whose mangled names say what their arguments are: where a torch has
//! others the name is not found, and calls go through Python as with an older torch. Of C++'s types only those occur
//! that are a pointer, a number, or both with a flag.

use std::ffi::{CStr, c_char, c_void};
use std::mem::MaybeUninit;

use libloading::os::unix::{Library, RTLD_NOW};
use unhang_conv::DataType;

use super::accelerator::{Accelerator, DeviceGuard, OptionalDevice, Scratch};
use super::tensors::{List, Place, Tensor};

/// `RTLD_NOLOAD`: only what the process has loaded.
const ONLY_LOADED: i32 = 4;

/// The version of the C interface that is spoken here: that of torch 2.10.
const SPOKEN: u64 = (2 << 56) | (10 << 48);

/// A tensor on the heap, as torch hands it out: a pointer to an `at::Tensor`, which is a pointer to what is counted.
pub type Handle = *mut Raw;

/// An `at::Tensor`.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Raw(*mut c_void);

/// A list of numbers on torch's heap.
pub type ListHandle = *mut c_void;

/// Numbers, as `c10::ArrayRef<c10::SymInt>` has them. A symbolic integer that is a number is the number.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Numbers {
    data: *const i64,
    length: usize,
}

impl Numbers {
    /// Valid as long as the slice.
    pub fn of(slice: &[i64]) -> Numbers {
        Numbers { data: slice.as_ptr(), length: slice.len() }
    }
}

/// `c10::OptionalArrayRef`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct OptionalNumbers {
    numbers: Numbers,
    is_there: bool,
}

impl OptionalNumbers {
    /// Valid as long as the slice.
    pub fn of(slice: Option<&[i64]>) -> OptionalNumbers {
        OptionalNumbers { numbers: Numbers::of(slice.unwrap_or_default()), is_there: slice.is_some() }
    }
}

/// `std::optional<at::Tensor>`, borrowed.
#[repr(C)]
pub struct OptionalRaw {
    tensor: Raw,
    is_there: bool,
}

/// `std::optional<c10::ScalarType>`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct OptionalType {
    number: i8,
    is_there: bool,
}

/// `std::array<bool, 3>`: which gradients are asked for.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Mask(pub [bool; 3]);

/// A number that every symbolic integer holds as such; one below -2^62 would be taken for a pointer.
const LEAST: i64 = -(1 << 62);

/// Everything about a convolution but its tensors.
pub struct Geometry<'a> {
    pub stride: &'a [i64],
    pub padding: &'a [i64],
    pub dilation: &'a [i64],
    pub transposed: bool,
    pub output_padding: &'a [i64],
    pub groups: i64,
}

/// What a function of the C interface returns: 0 where all went well.
pub type Code = i32;
type Convolution = unsafe extern "C-unwind" fn(
    *mut Raw,
    u64,
    Handle,
    Handle,
    *const OptionalRaw,
    Numbers,
    Numbers,
    Numbers,
    bool,
    Numbers,
    *const i64,
) -> *mut Raw;
type ConvolutionWithFlags = unsafe extern "C-unwind" fn(
    *mut Raw,
    u64,
    Handle,
    Handle,
    *const OptionalRaw,
    Numbers,
    Numbers,
    Numbers,
    bool,
    Numbers,
    *const i64,
    bool,
    bool,
    bool,
    bool,
) -> *mut Raw;
type ConvolutionBackward = unsafe extern "C-unwind" fn(
    *mut [Raw; 3],
    u64,
    Handle,
    Handle,
    Handle,
    OptionalNumbers,
    Numbers,
    Numbers,
    Numbers,
    bool,
    Numbers,
    *const i64,
    Mask,
) -> *mut [Raw; 3];
type Sum = unsafe extern "C-unwind" fn(*mut Raw, Handle, OptionalNumbers, bool, OptionalType) -> *mut Raw;
/// A kernel, as torch calls it: arguments come in the slots, results go there.
pub type Boxed = unsafe extern "C-unwind" fn(*mut u64, u64, u64);

macro_rules! functions {
    ($($field:ident: $type:ty = $name:literal;)*) => {
        pub(super) struct Functions { $(pub(super) $field: $type,)* }
        impl Functions {
            fn find(library: &Library) -> Result<Functions, String> {
                Ok(Functions { $($field: {
                    // SAFETY: the name is one of torch's, and with it the signature: C names are kept for ever by
                    // torch's own promise, C++ names contain the types of their arguments.
                    *unsafe { library.get::<$type>($name.as_bytes()) }
                        .map_err(|_| format!("this torch has no {}", $name))?
                },)* })
            }
        }
    };
}

functions! {
    is_defined: unsafe extern "C" fn(Handle, *mut bool) -> Code = "aoti_torch_is_defined";
    dimensions: unsafe extern "C" fn(Handle, *mut i64) -> Code = "aoti_torch_get_dim";
    sizes: unsafe extern "C" fn(Handle, *mut *const i64) -> Code = "aoti_torch_get_sizes";
    strides: unsafe extern "C" fn(Handle, *mut *const i64) -> Code = "aoti_torch_get_strides";
    data_type: unsafe extern "C" fn(Handle, *mut i32) -> Code = "aoti_torch_get_dtype";
    device_type: unsafe extern "C" fn(Handle, *mut i32) -> Code = "aoti_torch_get_device_type";
    device_index: unsafe extern "C" fn(Handle, *mut i32) -> Code = "aoti_torch_get_device_index";
    layout: unsafe extern "C" fn(Handle, *mut i32) -> Code = "aoti_torch_get_layout";
    strided: unsafe extern "C" fn() -> i32 = "aoti_torch_layout_strided";
    cpu: unsafe extern "C" fn() -> i32 = "aoti_torch_device_type_cpu";
    byte: unsafe extern "C" fn() -> i32 = "aoti_torch_dtype_uint8";
    half: unsafe extern "C" fn() -> i32 = "aoti_torch_dtype_float16";
    brain: unsafe extern "C" fn() -> i32 = "aoti_torch_dtype_bfloat16";
    single: unsafe extern "C" fn() -> i32 = "aoti_torch_dtype_float32";
    double: unsafe extern "C" fn() -> i32 = "aoti_torch_dtype_float64";
    read: unsafe extern "C" fn(Handle, *mut *const c_void) -> Code = "torch_get_const_data_ptr";
    written: unsafe extern "C" fn(Handle, *mut *mut c_void) -> Code = "torch_get_mutable_data_ptr";
    empty: unsafe extern "C" fn(i64, *const i64, *const i64, i32, i32, i32, *mut Handle) -> Code
        = "aoti_torch_empty_strided";
    undefined: unsafe extern "C" fn(*mut Handle) -> Code = "aoti_torch_new_uninitialized_tensor";
    copy: unsafe extern "C" fn(Handle, *mut Handle) -> Code = "aoti_torch_new_tensor_handle";
    delete: unsafe extern "C" fn(Handle) -> Code = "aoti_torch_delete_tensor_object";
    list_size: unsafe extern "C" fn(ListHandle, *mut usize) -> Code = "torch_list_size";
    list_item: unsafe extern "C" fn(ListHandle, usize, *mut u64) -> Code = "torch_list_get_item";
    delete_list: unsafe extern "C" fn(ListHandle) -> Code = "torch_delete_list";
    threads: unsafe extern "C" fn(*mut u32) -> Code = "torch_get_num_threads";
    library: unsafe extern "C" fn(*const c_char, *const c_char, *const c_char, u32, *mut *mut c_void) -> Code
        = "aoti_torch_library_init_impl";
    register: unsafe extern "C" fn(*mut c_void, *const c_char, Boxed, u64) -> Code = "torch_library_impl";
    tracing: unsafe extern "C" fn() -> *const *const c_void = "_ZN5torch3jit6tracer15getTracingStateEv";
    convolution: Convolution
        = "_ZN2at4_ops11convolution10redispatchEN3c1014DispatchKeySetERKNS_6TensorES6_RKSt8optionalIS4_ENS2_8ArrayRefINS2_6SymIntEEESD_SD_bSD_SC_";
    convolution_with_flags: ConvolutionWithFlags
        = "_ZN2at4_ops12_convolution10redispatchEN3c1014DispatchKeySetERKNS_6TensorES6_RKSt8optionalIS4_ENS2_8ArrayRefINS2_6SymIntEEESD_SD_bSD_SC_bbbb";
    convolution_backward: ConvolutionBackward
        = "_ZN2at4_ops20convolution_backward10redispatchEN3c1014DispatchKeySetERKNS_6TensorES6_S6_NS2_16OptionalArrayRefINS2_6SymIntEEENS2_8ArrayRefIS8_EESB_SB_bSB_S8_St5arrayIbLm3EE";
    sum: Sum
        = "_ZN2at4_ops15sum_dim_IntList4callERKNS_6TensorEN3c1016OptionalArrayRefIlEEbSt8optionalINS5_10ScalarTypeEE";
}

/// The torch of this process.
pub struct Torch {
    pub(super) functions: Functions,
    delete_optional: DeleteOptional,
    accelerator: Accelerator,
    pub(super) strided: i32,
}

enum DeleteOptional {
    /// From torch 2.13.
    Torchs(unsafe extern "C" fn(*mut u64) -> Code),
    /// Before, it is a plain object of C++.
    Cpps(unsafe extern "C" fn(*mut c_void)),
}

/// A library that the process has loaded.
pub fn loaded(name: &str) -> Option<Library> {
    // SAFETY: nothing is loaded, so nothing of a library runs.
    unsafe { Library::open(Some(name), RTLD_NOW | ONLY_LOADED) }.ok()
}

/// Whether what unwinds our frames is what unwinds torch's: an exception of torch's that passes through them asks both. A linker that
/// puts an unwinder of its own into this library makes two, and the first exception ends the process.
fn shares_the_unwinder(library: &Library) -> bool {
    unsafe extern "C" {
        fn _Unwind_GetLanguageSpecificData(context: *mut c_void) -> *const c_void;
    }
    let ours = _Unwind_GetLanguageSpecificData as *const () as usize;
    // SAFETY: the address alone is used. It is looked for in torch and in what torch is linked to.
    let torchs = unsafe { library.get::<*const ()>(b"_Unwind_GetLanguageSpecificData") };
    torchs.is_ok_and(|torchs| *torchs as usize == ours)
}

impl Torch {
    /// Finds the functions of the torch that is loaded; or why calls have to go through Python.
    pub fn find() -> Result<Torch, String> {
        if !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
            return Err("torch's calling convention is not known on this processor".to_owned());
        }
        let library = loaded("libtorch_cpu.so").ok_or("libtorch_cpu.so is not loaded")?;
        let functions = Functions::find(&library)?;
        if !shares_the_unwinder(&library) {
            return Err("exceptions are unwound by different libraries in torch and in this package".to_owned());
        }
        // SAFETY: the signature that torch's header gives.
        let newer = unsafe { library.get::<unsafe extern "C" fn(*mut u64) -> Code>(b"torch_delete_stable_ivalue") };
        let delete_optional = match newer {
            Ok(delete) => DeleteOptional::Torchs(*delete),
            // SAFETY: `operator delete(void*)`.
            Err(_) => match unsafe { library.get::<unsafe extern "C" fn(*mut c_void)>(b"_ZdlPv") } {
                Ok(delete) => DeleteOptional::Cpps(*delete),
                Err(_) => return Err("C++'s operator delete is not found".to_owned()),
            },
        };
        // SAFETY: no arguments.
        let strided = unsafe { (functions.strided)() };
        let torch = Torch { functions, delete_optional, accelerator: Accelerator::find(&library), strided };
        torch.check_handles()?;
        // The library is never closed: it is torch.
        std::mem::forget(library);
        Ok(torch)
    }

    /// A handle is a pointer to a tensor: torch is made that way but does not promise it. Two handles of one tensor must
    /// therefore point to the same.
    fn check_handles(&self) -> Result<(), String> {
        let made = self.allocate(&[1], &[1], self.on_cpu(DataType::F32));
        let first = made.ok_or("torch makes no tensor")?;
        let mut second = std::ptr::null_mut();
        // SAFETY: a handle of torch's, and a place for another one.
        let code = unsafe { (self.functions.copy)(first.handle, &mut second) };
        if code != 0 || second.is_null() {
            return Err("torch copies no tensor".to_owned());
        }
        let second = Tensor { torch: self, handle: second };
        // SAFETY: both point to at least a pointer: torch allocated an object for each.
        let same = unsafe { (*first.handle).0 == (*second.handle).0 && !(*first.handle).0.is_null() };
        if same && first.handle != second.handle {
            Ok(())
        } else {
            Err("torch's handles are made otherwise".to_owned())
        }
    }

    /// Registers kernels of a namespace for a dispatch key, for the life of the process.
    pub fn register(&self, namespace: &CStr, key: &CStr, kernels: &[(&CStr, Boxed)]) -> Result<(), String> {
        let mut library = std::ptr::null_mut();
        // SAFETY: texts that end in zero, and a place for the result, which is never deleted: that would take the
        // kernels out while other threads are in them.
        let code =
            unsafe { (self.functions.library)(namespace.as_ptr(), key.as_ptr(), c"unhang".as_ptr(), 0, &mut library) };
        if code != 0 {
            return Err("torch takes no kernels".to_owned());
        }
        for (name, kernel) in kernels {
            // SAFETY: a library of torch's and a kernel that keeps to torch's rules; see `kernels.rs`.
            if unsafe { (self.functions.register)(library, name.as_ptr(), *kernel, SPOKEN) } != 0 {
                return Err(format!("torch does not take {}", name.to_string_lossy()));
            }
        }
        Ok(())
    }

    /// Whether this thread records a graph with torch's tracer.
    pub fn is_tracing(&self) -> bool {
        // SAFETY: a reference to a shared pointer of this thread's, whose first word is what it points to.
        unsafe { !(*(self.functions.tracing)()).is_null() }
    }

    /// Threads that torch computes with.
    pub fn threads(&self) -> usize {
        let mut threads = 1;
        // SAFETY: a place for the number.
        unsafe { (self.functions.threads)(&mut threads) };
        threads as usize
    }

    /// The stream that this thread queues work on.
    pub fn stream(&self, device_index: i32) -> Option<u64> {
        let mut stream = std::ptr::null_mut();
        // SAFETY: a place for the stream.
        (unsafe { self.accelerator.stream?(device_index, &mut stream) } == 0).then_some(stream as u64)
    }

    /// Makes the device of a tensor this thread's current one until what is returned is dropped, where it is not.
    pub fn on_device_of(&self, tensor: &Tensor<'_>) -> Option<DeviceGuard> {
        self.accelerator.guard(tensor.place()?.device_index)
    }

    /// The number of torch's type for bytes.
    pub fn byte(&self) -> i32 {
        // SAFETY: no arguments.
        unsafe { (self.functions.byte)() }
    }

    /// The number of torch's type for the elements of our problems.
    pub fn number_of(&self, data_type: DataType) -> i32 {
        let functions = &self.functions;
        let ask = match data_type {
            DataType::F16 => functions.half,
            DataType::Bf16 => functions.brain,
            DataType::F32 => functions.single,
            DataType::F64 => functions.double,
        };
        // SAFETY: no arguments.
        unsafe { ask() }
    }

    /// Where tensors of the CPU lie.
    pub fn on_cpu(&self, data_type: DataType) -> Place {
        // SAFETY: no arguments.
        Place { data_type: self.number_of(data_type), device_type: unsafe { (self.functions.cpu)() }, device_index: -1 }
    }

    /// That many bytes of the place's device.
    pub fn scratch(&self, bytes: u64, place: Place) -> Option<Scratch<'_>> {
        if let Some((take, give)) = self.accelerator.scratch
            && place.device_index >= 0
            && self.accelerator.is_current(place.device_index)
        {
            let mut address = std::ptr::null_mut();
            // SAFETY: a place for the address.
            return (unsafe { take(bytes, &mut address) } == 0).then_some(Scratch::Bytes(address, give));
        }
        let of_bytes = Place { data_type: self.byte(), ..place };
        self.allocate(&[i64::try_from(bytes).ok()?], &[1], of_bytes).map(Scratch::Tensor)
    }

    /// Memory for a result. On an accelerator torch itself raises where there is none; elsewhere, none.
    pub fn result(&self, sizes: &[i64], strides: &[i64], place: Place) -> Option<Tensor<'_>> {
        let (Some(empty), true) = (self.accelerator.empty, place.device_index >= 0) else {
            return self.allocate(sizes, strides, place);
        };
        let number = |number: i32| i8::try_from(number).ok();
        let device =
            OptionalDevice { kind: number(place.device_type)?, index: number(place.device_index)?, is_there: true };
        let mut result = MaybeUninit::<Raw>::uninit();
        // SAFETY: the arguments that the mangled name says; each lives until the call returns.
        unsafe {
            let data_type = number(place.data_type)?;
            empty(result.as_mut_ptr(), Numbers::of(sizes), Numbers::of(strides), data_type, device);
            Some(self.kept(result.assume_init()))
        }
    }

    /// Memory from torch's allocator; none where torch has none to give.
    pub fn allocate(&self, sizes: &[i64], strides: &[i64], place: Place) -> Option<Tensor<'_>> {
        let mut handle = std::ptr::null_mut();
        let Place { data_type, device_type, device_index } = place;
        // SAFETY: as many sizes and strides as dimensions, and a place for the handle.
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

    /// No tensor: what stands for a gradient that was not asked for.
    pub fn undefined(&self) -> Option<Tensor<'_>> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: a place for the handle.
        (unsafe { (self.functions.undefined)(&mut handle) } == 0).then_some(Tensor { torch: self, handle })
    }

    /// Puts a tensor that a C++ entry returned behind a handle.
    fn kept(&self, raw: Raw) -> Tensor<'_> {
        let Some(tensor) = self.undefined() else {
            // Eight bytes are not to be had: nothing else goes on either.
            std::process::abort();
        };
        // SAFETY: an undefined tensor is a pointer to an object of torch's that is not counted, so that nothing is lost
        // by writing over it; the returned tensor is moved, as C++ moves it.
        unsafe { *tensor.handle = raw };
        tensor
    }

    /// A convolution by the kernel that is registered for the key set. Torch's exceptions pass through.
    pub fn convolution(
        &self,
        keys: u64,
        tensors: [&Tensor<'_>; 2],
        bias: Option<&Tensor<'_>>,
        it: &Geometry<'_>,
    ) -> Tensor<'_> {
        let mut result = MaybeUninit::<Raw>::uninit();
        let bias = optional(bias);
        // SAFETY: the arguments that the mangled name says; each lives until the call returns.
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

    /// Torch's convolution with its flags: whether to measure, to be deterministic, to use the vendor's library, to allow TF32.
    pub fn convolution_with_flags(
        &self,
        keys: u64,
        tensors: [&Tensor<'_>; 2],
        bias: Option<&Tensor<'_>>,
        it: &Geometry<'_>,
        flags: [bool; 4],
    ) -> Tensor<'_> {
        let mut result = MaybeUninit::<Raw>::uninit();
        let bias = optional(bias);
        // SAFETY: the arguments that the mangled name says; each lives until the call returns.
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
                flags[0],
                flags[1],
                flags[2],
                flags[3],
            );
            self.kept(result.assume_init())
        }
    }

    /// The gradients of input, weight and bias that the mask asks for, by the kernel of the key set.
    pub fn convolution_backward(
        &self,
        keys: u64,
        tensors: [&Tensor<'_>; 3],
        bias_sizes: Option<&[i64]>,
        it: &Geometry<'_>,
        mask: [bool; 3],
    ) -> [Tensor<'_>; 3] {
        let mut result = MaybeUninit::<[Raw; 3]>::uninit();
        // SAFETY: the arguments that the mangled name says; each lives until the call returns. A tuple of C++'s library
        // holds its last element first.
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
                Mask(mask),
            );
            let [third, second, first] = result.assume_init();
            [self.kept(first), self.kept(second), self.kept(third)]
        }
    }

    /// The sum over some dimensions.
    pub fn sum(&self, tensor: &Tensor<'_>, dimensions: &[i64]) -> Tensor<'_> {
        let mut result = MaybeUninit::<Raw>::uninit();
        // SAFETY: the arguments that the mangled name says; each lives until the call returns.
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

    /// The tensor in a slot, which is ours from now on.
    ///
    /// # Safety
    /// The slot holds a tensor that nobody else deletes.
    pub unsafe fn tensor(&self, slot: u64) -> Tensor<'_> {
        Tensor { torch: self, handle: slot as Handle }
    }

    /// What a slot of an optional type holds.
    ///
    /// # Safety
    /// The slot holds an optional value that nobody else deletes.
    pub unsafe fn optional(&self, slot: u64) -> Option<u64> {
        let value = slot as *mut u64;
        if value.is_null() {
            return None;
        }
        // SAFETY: the caller's word.
        let inner = unsafe { *value };
        match self.delete_optional {
            // SAFETY: as above; torch allocated it for us to delete.
            DeleteOptional::Torchs(delete) => unsafe {
                delete(value);
            },
            // SAFETY: as above.
            DeleteOptional::Cpps(delete) => unsafe { delete(value.cast()) },
        }
        Some(inner)
    }

    /// The number in a slot, as it may be handed on to torch, whose C++ entries take symbolic integers. One that is too low to be
    /// held as such is clamped: torch refuses every negative number of a convolution alike.
    pub fn number(&self, slot: u64) -> i64 {
        (slot as i64).max(LEAST)
    }

    /// The numbers of a list in a slot, which is deleted.
    ///
    /// # Safety
    /// The slot holds a list of numbers or flags that nobody else deletes.
    pub unsafe fn list(&self, slot: u64) -> List {
        let handle = slot as ListHandle;
        let (mut length, mut list) = (0, List::default());
        // SAFETY: a list of torch's, and places for what is read.
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
        // SAFETY: a handle points to a tensor, which is borrowed here: torch gets a reference to a constant.
        Some(tensor) => OptionalRaw { tensor: unsafe { *tensor.handle }, is_there: true },
        None => OptionalRaw { tensor: Raw(std::ptr::null_mut()), is_there: false },
    }
}
