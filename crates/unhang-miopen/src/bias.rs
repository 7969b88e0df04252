//! Adds and sums a convolution's bias, on cards where MIOpen's own kernels are not proven.

use std::ffi::c_void;
use std::sync::Arc;

use unhang_conv::Layout;
use unhang_gpu::GpuError;
use unhang_gpu::driver::Driver;
use unhang_gpu::strided::{self, Move};
use unhang_miopen_api::{BAD_PARAMETER, INTERNAL_ERROR, NOT_IMPLEMENTED, Opaque, SUCCESS, Status};
use unhang_session::{Device, Failure, Numbers, View, say_once as say};

use crate::describe::Bias;
use crate::face::{Process, process, scalars, stream_of, subject_of};
use crate::real::{self, Real};

/// A call: a bias, the tensor that it belongs to, and scalars.
pub(crate) struct Call {
    pub(crate) real: &'static Real,
    pub(crate) handle: Opaque,
    pub(crate) bias: Opaque,
    pub(crate) tensor: Opaque,
    pub(crate) alpha: *const c_void,
    pub(crate) beta: *const c_void,
}

/// Who computes it, if not MIOpen.
struct Ours {
    process: &'static Process,
    bias: Bias,
    device: Arc<Device>,
    stream: u64,
    /// Whether our kernels for it were seen to work on the card.
    by_kernels: bool,
}

impl Call {
    /// `None` if it is MIOpen's; a status if nobody computes it.
    fn ours(&self, memory: [Opaque; 2]) -> Option<Result<Ours, Status>> {
        if real::is_inside() {
            return None;
        }
        let process = process(self.real).filter(|process| process.is_endangered())?;
        Some(self.checked(process, memory))
    }

    fn checked(&self, process: &'static Process, memory: [Opaque; 2]) -> Result<Ours, Status> {
        let given = [self.handle, self.bias, self.tensor, memory[0], memory[1]];
        if given.iter().any(|it| it.is_null()) || self.alpha.is_null() || self.beta.is_null() {
            return Err(BAD_PARAMETER);
        }
        let refuse = |reason: String| {
            say(&format!("a bias is refused (not implemented): {reason}"));
            NOT_IMPLEMENTED
        };
        let bias = Bias::read(self.real, self.bias, self.tensor).map_err(refuse)?;
        // SAFETY: the caller's scalars, as the interface has them.
        let status = unsafe { scalars(bias.data_type, self.alpha, self.beta) };
        if status != SUCCESS {
            return Err(status);
        }
        let device = process.device_now().map_err(refuse)?;
        process.situation(&device);
        let by_kernels = device.engine.has_kernels().is_ok() && device.may_run(strided::FAMILY);
        let stream = stream_of(self.real, self.handle).ok_or(BAD_PARAMETER)?;
        Ok(Ours { process, bias, device, stream, by_kernels })
    }
}

/// The status for an error, which is printed once.
fn ended(result: Result<(), Failure>) -> Status {
    match result {
        Ok(()) => SUCCESS,
        Err(Failure::Declined(reason)) => {
            say(&format!("a bias is refused (not implemented): {reason}"));
            NOT_IMPLEMENTED
        }
        Err(failure) => {
            say(&format!("a bias failed: {}", failure.reason()));
            INTERNAL_ERROR
        }
    }
}

/// Adds a bias to a tensor. `None` if that is MIOpen's to do.
///
/// # Safety
/// Memory as the descriptors say.
pub(crate) unsafe fn add(call: &Call, b: Opaque, y: Opaque) -> Option<Status> {
    let ours = match call.ours([b, y])? {
        Ok(ours) => ours,
        Err(status) => return Some(status),
    };
    let Bias { data_type, step, view } = ours.bias;
    let launch = Move::add(data_type, view.shape, [0, step, 0, 0], view.strides);
    // SAFETY: the caller's promise.
    Some(ended(unsafe {
        ours.run(launch, b, y, |from, to| {
            for_each_of(&view, |at, channel| to.set(at, to.get(at) + from.get(channel * step)));
        })
    }))
}

/// Sums a tensor over everything except its channels. `None` if that is MIOpen's to do.
///
/// # Safety
/// Memory as the descriptors say.
pub(crate) unsafe fn sum(call: &Call, dy: Opaque, db: Opaque) -> Option<Status> {
    let ours = match call.ours([dy, db])? {
        Ok(ours) => ours,
        Err(status) => return Some(status),
    };
    let Bias { data_type, step, view } = ours.bias;
    let launch = Move::sum_over_channels(data_type, view.shape, view.strides, step);
    // SAFETY: the caller's promise.
    Some(ended(unsafe {
        ours.run_backward(launch, dy, db, |from, to| {
            let mut sums = vec![0.0; view.shape[1]];
            for_each_of(&view, |at, channel| sums[channel] += from.get(at));
            for (channel, sum) in sums.into_iter().enumerate() {
                to.set(channel * step, sum);
            }
        })
    }))
}

fn for_each_of(view: &View, mut visit: impl FnMut(usize, usize)) {
    let dense = View::dense_strides(view.shape, Layout::Nchw);
    for at in 0..view.elements() {
        let position = [0, 1, 2, 3].map(|axis| at / dense[axis] % view.shape[axis]);
        visit(position.iter().zip(view.strides).map(|(i, stride)| i * stride).sum(), position[1]);
    }
}

/// Elements on the device.
struct Place {
    address: u64,
    elements: usize,
}

impl Ours {
    fn bias_at(&self, address: Opaque) -> Place {
        Place { address: address as u64, elements: 1 + (self.bias.view.shape[1] - 1) * self.bias.step }
    }

    fn tensor_at(&self, address: Opaque) -> Place {
        Place { address: address as u64, elements: self.bias.view.span() }
    }

    /// # Safety
    /// A bias at `b`, a tensor at `y`.
    unsafe fn run(
        &self,
        launch: Option<Move>,
        b: Opaque,
        y: Opaque,
        on_host: impl FnOnce(&mut Numbers, &mut Numbers),
    ) -> Result<(), Failure> {
        // SAFETY: the caller's promise.
        unsafe { self.by_either(launch, self.bias_at(b), self.tensor_at(y), on_host) }
    }

    /// # Safety
    /// A tensor at `dy`, a bias at `db`.
    unsafe fn run_backward(
        &self,
        launch: Option<Move>,
        dy: Opaque,
        db: Opaque,
        on_host: impl FnOnce(&mut Numbers, &mut Numbers),
    ) -> Result<(), Failure> {
        // SAFETY: the caller's promise.
        unsafe { self.by_either(launch, self.tensor_at(dy), self.bias_at(db), on_host) }
    }

    /// Computes it with our kernel, or on the host.
    ///
    /// # Safety
    /// As many elements as are named at both places.
    unsafe fn by_either(
        &self,
        launch: Option<Move>,
        from: Place,
        to: Place,
        on_host: impl FnOnce(&mut Numbers, &mut Numbers),
    ) -> Result<(), Failure> {
        let engine = &self.device.engine;
        if let Some(launch) = launch.filter(|_| self.by_kernels) {
            match engine.load_move(launch, self.stream) {
                Ok(launch) => {
                    let subject = || subject_of(self.process, &self.device, "bias", strided::FAMILY);
                    // SAFETY: the caller's promise.
                    let run = || unsafe { engine.launch_move(&launch, from.address, to.address, self.stream) };
                    return self.process.watched(|| Some(self.stream), subject, run).map_err(Failure::from);
                }
                // Without a kernel of this type the host computes.
                Err(error @ (GpuError::Compile(_) | GpuError::Object(_))) => say(&error.to_string()),
                Err(error) => return Err(error.into()),
            }
        }
        let driver: &dyn Driver = engine.driver();
        if driver.is_capturing(self.stream)? {
            return Err(Failure::Declined(
                "a graph is being recorded, and copies to the host cannot be part of one".into(),
            ));
        }
        let data_type = self.bias.data_type;
        // SAFETY: the caller's promise.
        unsafe {
            let mut source = Numbers::read(driver, data_type, from.elements, from.address, self.stream)?;
            let mut target = Numbers::read(driver, data_type, to.elements, to.address, self.stream)?;
            on_host(&mut source, &mut target);
            target.write(driver, to.address, self.stream).map_err(Failure::from)
        }
    }
}
