//! Torch's interface: the types that its functions take, and the functions, looked up by name at run time. It is
//! torch's C interface for extensions (2.10 and newer), and the few C++ entries that let an exception through.
//!
//! The C interface turns exceptions into codes, which lose the type and the text that a user expects. So whatever may
//! raise is called through torch's C++ entries. Their mangled names state their argument types: if a torch has other
//! types, the name is not found, and calls go through Python as with an older torch. The only C++ types used here are a
//! pointer, a number, or both with a flag.

use std::ffi::{c_char, c_void};

use libloading::os::unix::{Library, RTLD_NOW};

/// `RTLD_NOLOAD`: only libraries that the process has already loaded.
const ONLY_LOADED: i32 = 4;

/// A tensor on the heap, as torch hands it out: a pointer to an `at::Tensor`, which is a pointer to the
/// reference-counted object.
pub(super) type Handle = *mut Raw;

/// An `at::Tensor`.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(super) struct Raw(pub(super) *mut c_void);

/// A list of numbers on torch's heap.
pub(super) type ListHandle = *mut c_void;

/// Numbers, as in `c10::ArrayRef<c10::SymInt>`. A symbolic integer that is a plain number is stored as that number.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Numbers {
    data: *const i64,
    length: usize,
}

impl Numbers {
    /// Valid as long as the slice.
    pub(super) fn of(slice: &[i64]) -> Numbers {
        Numbers { data: slice.as_ptr(), length: slice.len() }
    }
}

/// `c10::OptionalArrayRef`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct OptionalNumbers {
    numbers: Numbers,
    is_there: bool,
}

impl OptionalNumbers {
    /// Valid as long as the slice.
    pub(super) fn of(slice: Option<&[i64]>) -> OptionalNumbers {
        OptionalNumbers { numbers: Numbers::of(slice.unwrap_or_default()), is_there: slice.is_some() }
    }
}

/// `std::optional<at::Tensor>`, borrowed.
#[repr(C)]
pub(super) struct OptionalRaw {
    pub(super) tensor: Raw,
    pub(super) is_there: bool,
}

/// `std::optional<c10::ScalarType>`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct OptionalType {
    pub(super) number: i8,
    pub(super) is_there: bool,
}

/// `std::array<bool, 3>`: which gradients are requested.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Mask {
    pub(super) data: bool,
    pub(super) weights: bool,
    pub(super) bias: bool,
}

/// The return value of the C interface's functions: 0 on success.
pub(super) type Code = i32;
/// Keys, both operands, bias, stride, padding, dilation, whether transposed, output padding, groups.
#[rustfmt::skip]
type Convolution = unsafe extern "C-unwind" fn(
    *mut Raw, u64, Handle, Handle, *const OptionalRaw, Numbers, Numbers, Numbers, bool, Numbers, *const i64,
) -> *mut Raw;
/// [`Convolution`] and four flags.
#[rustfmt::skip]
type ConvolutionWithFlags = unsafe extern "C-unwind" fn(
    *mut Raw, u64, Handle, Handle, *const OptionalRaw, Numbers, Numbers, Numbers, bool, Numbers, *const i64, bool, bool, bool, bool,
) -> *mut Raw;
/// Keys, three operands, the bias's sizes, the geometry as for [`Convolution`], and which gradients are requested.
#[rustfmt::skip]
type ConvolutionBackward = unsafe extern "C-unwind" fn(
    *mut [Raw; 3], u64, Handle, Handle, Handle, OptionalNumbers, Numbers, Numbers, Numbers, bool, Numbers, *const i64, Mask,
) -> *mut [Raw; 3];
/// The last argument is a `c10::MemoryFormat`.
type Contiguous = unsafe extern "C-unwind" fn(*mut Raw, Handle, i8) -> *mut Raw;
type Sum = unsafe extern "C-unwind" fn(*mut Raw, Handle, OptionalNumbers, bool, OptionalType) -> *mut Raw;
/// A kernel, as torch calls it: it takes its arguments from the slots and puts its results there.
pub(super) type Boxed = unsafe extern "C-unwind" fn(*mut u64, u64, u64);

macro_rules! functions {
    ($($field:ident: $type:ty = $name:literal;)*) => {
        pub(super) struct Functions { $(pub(super) $field: $type,)* }
        impl Functions {
            pub(super) fn find(library: &Library) -> Result<Functions, String> {
                Ok(Functions { $($field: {
                    // SAFETY: the name is torch's, and so is the signature. Torch promises to keep C names for ever,
                    // and C++ names contain the types of their arguments.
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
    contiguous: Contiguous = "_ZN2at4_ops10contiguous4callERKNS_6TensorEN3c1012MemoryFormatE";
    sum: Sum
        = "_ZN2at4_ops15sum_dim_IntList4callERKNS_6TensorEN3c1016OptionalArrayRefIlEEbSt8optionalINS5_10ScalarTypeEE";
}

/// A library that the process has already loaded.
pub(super) fn loaded(name: &str) -> Option<Library> {
    // SAFETY: this loads nothing, so no code of a library runs.
    unsafe { Library::open(Some(name), RTLD_NOW | ONLY_LOADED) }.ok()
}
