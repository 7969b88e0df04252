//! Our kernels, as torch calls them: arguments arrive in slots that we must delete, and results return in the slots.
//!
//! A known call is computed here. Every other call goes to Python's kernel, which is registered under a dispatch key
//! that no device uses. If unhang is off, the call goes to torch's own kernel, through another such key. Both may
//! raise: the exception passes through these functions, and everything that they hold is dropped on its way.

use std::ffi::CStr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use unhang_conv::Layout;

use super::c_interface::{Boxed, Mask};
use super::entries::{Flags, Geometry};
use super::step::{Backward, Forward, Step};
use super::table::{self, Device, Key, Known, Miss};
use super::tensors::{Described, List, Tensor};
use super::torch::Torch;
use crate::layers;

/// What the kernels need: torch's functions, and the key sets that lead to torch's own kernels and to Python's.
pub(super) struct DirectPath {
    pub torch: Torch,
    pub original: AtomicU64,
    /// By device type.
    pub python: [AtomicU64; 2],
}

impl DirectPath {
    fn original(&self) -> u64 {
        self.original.load(Relaxed)
    }

    fn python(&self, device: Device) -> u64 {
        self.python[device as usize].load(Relaxed)
    }
}

/// Set before any kernel is registered.
pub(super) static DIRECT_PATH: OnceLock<DirectPath> = OnceLock::new();

/// Our kernels for a device type, each with its op.
pub(super) fn kernels(device: Device) -> [(&'static CStr, Boxed); 3] {
    match device {
        Device::Cpu => [
            (c"convolution", convolution_on_cpu),
            (c"_convolution", convolution_with_flags_on_cpu),
            (c"convolution_backward", convolution_backward_on_cpu),
        ],
        Device::Cuda => [
            (c"convolution", convolution_on_cuda),
            (c"_convolution", convolution_with_flags_on_cuda),
            (c"convolution_backward", convolution_backward_on_cuda),
        ],
    }
}

macro_rules! boxed {
    ($name:ident, $call:ident, $device:expr $(, $flags:literal)?) => {
        unsafe extern "C-unwind" fn $name(slots: *mut u64, _: u64, _: u64) {
            // It is set before registration: see `register`.
            let Some(direct) = DIRECT_PATH.get() else { std::process::abort() };
            // SAFETY: torch calls this with the slots of the op for which it is registered.
            unsafe { $call(direct, $device, slots $(, $flags)?) };
        }
    };
}

boxed!(convolution_on_cpu, forward, Device::Cpu, false);
boxed!(convolution_on_cuda, forward, Device::Cuda, false);
boxed!(convolution_with_flags_on_cpu, forward, Device::Cpu, true);
boxed!(convolution_with_flags_on_cuda, forward, Device::Cuda, true);
boxed!(convolution_backward_on_cpu, backward, Device::Cpu);
boxed!(convolution_backward_on_cuda, backward, Device::Cuda);

/// The arguments after the tensors.
struct Rest {
    stride: List,
    padding: List,
    dilation: List,
    transposed: bool,
    output_padding: List,
    groups: i64,
}

impl Rest {
    /// # Safety
    /// From there on, the slots hold a convolution's geometry.
    unsafe fn take(torch: &Torch, slots: *const u64) -> Rest {
        // SAFETY: guaranteed by the caller; each slot is read once.
        unsafe {
            Rest {
                stride: torch.list(*slots),
                padding: torch.list(*slots.add(1)),
                dilation: torch.list(*slots.add(2)),
                transposed: *slots.add(3) as u8 != 0,
                output_padding: torch.list(*slots.add(4)),
                groups: torch.number(*slots.add(5)),
            }
        }
    }

    fn geometry(&self) -> Geometry<'_> {
        Geometry {
            stride: self.stride.as_slice(),
            padding: self.padding.as_slice(),
            dilation: self.dilation.as_slice(),
            transposed: self.transposed,
            output_padding: self.output_padding.as_slice(),
            groups: self.groups,
        }
    }

    fn add_to(&self, key: &mut Key) -> Option<()> {
        for list in [&self.stride, &self.padding, &self.dilation, &self.output_padding] {
            key.add_list(list.as_slice())?;
        }
        key.add(&[self.groups, i64::from(self.transposed)])
    }
}

/// A forward's arguments.
struct Call<'a> {
    input: Tensor<'a>,
    weight: Tensor<'a>,
    bias: Option<Tensor<'a>>,
    rest: Rest,
    /// The flags of traced graphs. They say which vendor library the tracing process had, and are not part of a plan.
    flags: Option<Flags>,
}

impl<'a> Call<'a> {
    /// # Safety
    /// The slots hold the arguments of `aten::convolution`, or of `aten::_convolution`, which has flags.
    unsafe fn take(torch: &'a Torch, slots: *const u64, has_flags: bool) -> Call<'a> {
        // SAFETY: guaranteed by the caller; each slot is read once.
        unsafe {
            Call {
                input: torch.tensor(*slots),
                weight: torch.tensor(*slots.add(1)),
                bias: torch.optional(*slots.add(2)).map(|slot| torch.tensor(slot)).filter(Tensor::is_defined),
                rest: Rest::take(torch, slots.add(3)),
                flags: has_flags.then(|| [9, 10, 11, 12].map(|slot| *slots.add(slot) as u8 != 0).into()),
            }
        }
    }

    /// Torch's description of its tensors: input, weight, bias. `None` for tensors without strides.
    fn described(&self) -> Option<([Described<'_, 'a>; 2], Option<Described<'_, 'a>>)> {
        let bias = match &self.bias {
            Some(bias) => Some(bias.described()?),
            None => None,
        };
        Some(([self.input.described()?, self.weight.described()?], bias))
    }

    fn key(&self, settings: u32, tensors: &[Described<'_, 'a>; 2], bias: Option<&Described<'_, 'a>>) -> Option<Key> {
        let mut key = Key::new(u8::from(bias.is_some()), settings);
        for tensor in tensors.iter().chain(bias) {
            key.add_tensor(tensor)?;
        }
        self.rest.add_to(&mut key)?;
        Some(key)
    }

    /// Computes with the kernel of the key set.
    fn by(&self, torch: &'a Torch, keys: u64) -> Tensor<'a> {
        let (tensors, geometry) = ([&self.input, &self.weight], self.rest.geometry());
        match self.flags {
            Some(flags) => torch.convolution_with_flags(keys, tensors, self.bias.as_ref(), &geometry, flags),
            None => torch.convolution(keys, tensors, self.bias.as_ref(), &geometry),
        }
    }

    fn by_known(
        &self,
        direct: &'a DirectPath,
        known: &Forward,
        settings: u32,
        described: &[Described<'_, 'a>; 2],
        bias: Option<&Described<'_, 'a>>,
    ) -> Option<Tensor<'a>> {
        let result = match known.step.original_flags() {
            Some(flags) => {
                let _record = direct.torch.profiler.record(known.step.record());
                let (tensors, bias) = ([&self.input, &self.weight], self.bias.as_ref());
                direct.torch.convolution_with_flags(direct.original(), tensors, bias, &self.rest.geometry(), flags)
            }
            None => known.step.compute(&direct.torch, *described, bias)?,
        };
        known.step.count();
        layers::count_current(&known.label, known.step.is_bypass(), settings);
        Some(result)
    }
}

/// # Safety
/// The slots are those of `aten::convolution`, or of `aten::_convolution`, which has flags.
unsafe fn forward(direct: &'static DirectPath, device: Device, slots: *mut u64, has_flags: bool) {
    let torch = &direct.torch;
    // SAFETY: guaranteed by the caller.
    let call = unsafe { Call::take(torch, slots, has_flags) };
    let result = if torch.is_tracing() {
        // Python handles torch's tracer.
        let _miss = Miss::of(None, table::generation());
        call.by(torch, direct.python(device))
    } else {
        planned(direct, device, &call)
    };
    // SAFETY: the result's slot, whose argument was taken.
    unsafe { *slots = result.into_slot() };
}

fn planned<'a>(direct: &'a DirectPath, device: Device, call: &Call<'a>) -> Tensor<'a> {
    let torch = &direct.torch;
    let generation = table::generation();
    let settings = table::forward_settings(device, call.weight.address().unwrap_or(0));
    if settings == 0 {
        if device == Device::Cpu && call.flags.is_none() {
            // Torch's own kernel calls this in turn, with flags that change nothing on the CPU; that call would arrive
            // here too.
            let (tensors, geometry) = ([&call.input, &call.weight], call.rest.geometry());
            return torch.convolution_with_flags(
                direct.original(),
                tensors,
                call.bias.as_ref(),
                &geometry,
                Flags::default(),
            );
        }
        return call.by(torch, direct.original());
    }
    let described = call.described();
    let key = described.as_ref().and_then(|(tensors, bias)| call.key(settings, tensors, bias.as_ref()));
    if let Some((tensors, bias)) = &described
        && let Some(Known::Forward(known)) = key.as_ref().and_then(table::look_up)
        && let Some(result) = call.by_known(direct, &known, settings, tensors, bias.as_ref())
    {
        return result;
    }
    let _miss = Miss::of(key.as_ref(), generation);
    call.by(torch, direct.python(device))
}

/// A backward's arguments.
struct Gradients<'a> {
    grad_output: Tensor<'a>,
    input: Tensor<'a>,
    weight: Tensor<'a>,
    bias_sizes: Option<List>,
    rest: Rest,
    mask: Mask,
}

impl<'a> Gradients<'a> {
    /// # Safety
    /// The slots hold the arguments of `aten::convolution_backward`.
    unsafe fn take(torch: &'a Torch, slots: *const u64) -> Gradients<'a> {
        // SAFETY: guaranteed by the caller; each slot is read once.
        unsafe {
            let mask = torch.list(*slots.add(10));
            let asked = |which: usize| mask.as_slice().get(which).is_some_and(|flag| *flag as u8 != 0);
            Gradients {
                grad_output: torch.tensor(*slots),
                input: torch.tensor(*slots.add(1)),
                weight: torch.tensor(*slots.add(2)),
                bias_sizes: torch.optional(*slots.add(3)).map(|slot| torch.list(slot)),
                rest: Rest::take(torch, slots.add(4)),
                mask: Mask { data: asked(0), weights: asked(1), bias: asked(2) },
            }
        }
    }

    /// Torch's description of its tensors: gradient of the output, input, weight. `None` for tensors without strides.
    fn described(&self) -> Option<[Described<'_, 'a>; 3]> {
        Some([self.grad_output.described()?, self.input.described()?, self.weight.described()?])
    }

    fn key(&self, settings: u32, tensors: &[Described<'_, 'a>; 3]) -> Option<Key> {
        if self.mask.bias && self.bias_sizes.is_none() {
            return None; // Python's path derives them
        }
        let Mask { data, weights, bias } = self.mask;
        let mut key = Key::new(2 | u8::from(data) << 2 | u8::from(weights) << 3 | u8::from(bias) << 4, settings);
        for tensor in tensors {
            key.add_tensor(tensor)?;
        }
        self.rest.add_to(&mut key)?;
        Some(key)
    }

    /// Computes with the kernel of the key set.
    fn by(&self, torch: &'a Torch, keys: u64) -> [Tensor<'a>; 3] {
        let tensors = [&self.grad_output, &self.input, &self.weight];
        let sizes = self.bias_sizes.as_ref().map(List::as_slice);
        torch.convolution_backward(keys, tensors, sizes, &self.rest.geometry(), self.mask)
    }

    /// Computes with torch's own kernel. On an accelerator, torch has a kernel that first makes the tensors' device the
    /// current one. Ours replaces that kernel, so it must do the same.
    fn by_original(&self, direct: &'a DirectPath) -> [Tensor<'a>; 3] {
        let _guard = direct.torch.on_device_of(&self.grad_output);
        self.by(&direct.torch, direct.original())
    }

    /// A copy of the output's gradient in the layout that our engines read, if it has another one. The gradient of a
    /// sum is one expanded element.
    fn dense_gradient(&self, torch: &'a Torch, layout: Layout) -> Option<Tensor<'a>> {
        let gradient = self.grad_output.described()?;
        let is_copied = !gradient.is_dense(layout) && (layout == Layout::Nchw || gradient.sizes.len() == 4);
        is_copied.then(|| torch.contiguous(&self.grad_output, layout))
    }

    fn by_known(
        &self,
        direct: &'a DirectPath,
        known: &Backward,
        [grad_output, input, weight]: [Described<'_, 'a>; 3],
    ) -> Option<[Tensor<'a>; 3]> {
        let torch = &direct.torch;
        let steps = || known.data.iter().chain(&known.weights);
        let found = if let Some(step) = steps().find(|step| step.original_flags().is_some()) {
            let _record = torch.profiler.record(step.record());
            self.by_original(direct)
        } else {
            let copy = steps().find_map(Step::layout).and_then(|layout| self.dense_gradient(torch, layout));
            let grad_output = match &copy {
                Some(copy) => copy.described()?,
                None => grad_output,
            };
            let one = |step: &Option<Step>, operands| match step {
                Some(step) => step.compute(torch, operands, None),
                None => torch.undefined(),
            };
            let data = one(&known.data, [grad_output, weight])?;
            let weights = one(&known.weights, [input, grad_output])?;
            let bias = if self.mask.bias {
                let over = [0, 2, 3];
                torch.sum(&self.grad_output, over.get(..input.sizes.len().checked_sub(1)?)?)
            } else {
                torch.undefined()?
            };
            [data, weights, bias]
        };
        for step in steps() {
            step.count();
        }
        Some(found)
    }
}

/// # Safety
/// The slots are those of `aten::convolution_backward`.
unsafe fn backward(direct: &'static DirectPath, device: Device, slots: *mut u64) {
    let torch = &direct.torch;
    // SAFETY: guaranteed by the caller.
    let call = unsafe { Gradients::take(torch, slots) };
    let results = planned_backward(direct, device, &call);
    for (place, result) in results.into_iter().enumerate() {
        // SAFETY: the results' slots, whose arguments were taken; there are more arguments than results.
        unsafe { *slots.add(place) = result.into_slot() };
    }
}

fn planned_backward<'a>(direct: &'a DirectPath, device: Device, call: &Gradients<'a>) -> [Tensor<'a>; 3] {
    let torch = &direct.torch;
    let generation = table::generation();
    let settings = table::backward_settings(device, call.weight.address().unwrap_or(0));
    if settings == 0 {
        return call.by_original(direct);
    }
    let described = call.described();
    let key = described.as_ref().and_then(|tensors| call.key(settings, tensors));
    if let Some(tensors) = described
        && let Some(Known::Backward(known)) = key.as_ref().and_then(table::look_up)
        && let Some(results) = call.by_known(direct, &known, tensors)
    {
        return results;
    }
    let _miss = Miss::of(key.as_ref(), generation);
    call.by(torch, direct.python(device))
}
