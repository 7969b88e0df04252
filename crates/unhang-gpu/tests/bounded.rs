//! A program that sees ever new convolutions does not fill the device and the memory with kernels for each. On a driver and a
//! compiler that make nothing: what is counted is what they are asked for.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use unhang_conv::Problem;
use unhang_gpu::compiler::{CompileError, Compiler};
use unhang_gpu::driver::{Description, Driver, DriverError, Function};
use unhang_gpu::model::DeviceModel;
use unhang_gpu::plan::Form;
use unhang_gpu::sources::Kernel;
use unhang_gpu::{GpuEngine, GpuError, GpuSettings, Request};

#[derive(Default)]
struct Nothing;

impl Compiler for Nothing {
    fn version(&self) -> String {
        "nothing".to_owned()
    }

    fn options(&self, kernel: &Kernel, _architecture: &str) -> Vec<String> {
        kernel.definitions()
    }

    fn compile(&self, _kernel: &Kernel, options: &[String]) -> Result<Vec<u8>, CompileError> {
        Ok(options.concat().into_bytes())
    }
}

struct Counting {
    description: Description,
    loaded: Arc<AtomicUsize>,
}

impl Driver for Counting {
    fn description(&self) -> &Description {
        &self.description
    }

    fn compiler(&self) -> Arc<dyn Compiler> {
        Arc::new(Nothing)
    }

    fn load(&self, _object: &[u8], _entry: &str) -> Result<Function, DriverError> {
        Ok(Function(self.loaded.fetch_add(1, Ordering::Relaxed) as u64))
    }

    unsafe fn launch(
        &self,
        _function: Function,
        _grid: [u32; 3],
        _block: u32,
        _arguments: &mut [*mut c_void],
        _stream: u64,
    ) -> Result<(), DriverError> {
        Ok(())
    }

    fn is_capturing(&self, _stream: u64) -> Result<bool, DriverError> {
        Ok(false)
    }
}

fn engine(most_kernels: usize) -> (GpuEngine, Arc<AtomicUsize>) {
    let loaded = Arc::new(AtomicUsize::new(0));
    let description = Description {
        name: "counting".to_owned(),
        reported_architecture: "none".to_owned(),
        true_architecture: "none".to_owned(),
        driver: "counting".to_owned(),
        model: DeviceModel::rx_5600_xt(),
    };
    let settings = GpuSettings { cache_folder: None, ..GpuSettings::default() };
    let driver = Counting { description, loaded: loaded.clone() };
    (GpuEngine::new(Box::new(driver), settings).with_room_for(most_kernels), loaded)
}

/// A matrix product, for which kernels of its own pay by the model. They are made for its channels and its window; other
/// heights and widths would share them.
fn convolution(number: usize) -> Problem {
    format!("forward:f32:nchw:8x{}x60x60:64x5x5:s1x1:p2x2:d1x1:g1", 64 + number).parse().unwrap()
}

#[test]
fn beyond_the_limit_general_kernels_serve_new_convolutions() {
    let (engine, loaded) = engine(40);
    let forms: Vec<Form> = (0..120)
        .map(|number| {
            engine.prepare_on(&convolution(number), Request { wait: true, ..Request::default() }).unwrap().form()
        })
        .collect();
    assert_eq!(forms[0], Form::Specialised, "the first have specialised kernels");
    assert_eq!(forms[119], Form::General, "the last have not");
    // The general ones are a few more, and the last that had room may have several stages.
    assert!(loaded.load(Ordering::Relaxed) < 40 + 20, "{loaded:?} kernels were loaded");
    // What is loaded is used as before.
    let again = engine.prepare_on(&convolution(0), Request { wait: true, ..Request::default() }).unwrap();
    assert_eq!(again.form(), Form::Specialised);
}

#[test]
fn kernels_that_nobody_comes_back_for_are_not_compiled_for_ever() {
    let (engine, _) = engine(40);
    // Each comes once: general kernels serve it, and its own are compiled in the background for nobody.
    for number in 0..400 {
        engine.prepare_on(&convolution(number), Request::default()).unwrap();
    }
    assert!(engine.settle(Duration::from_secs(60)));
    assert!(engine.kernels() < 40 + 20, "{} kernels are held", engine.kernels());
    assert!(engine.compiled() < 40 + 20, "{} kernels were compiled", engine.compiled());
    assert!(engine.kernels() >= 40, "only {} kernels are held: nothing came to the limit", engine.kernels());
}

#[test]
fn candidates_that_are_measured_come_to_the_limit_too() {
    let (engine, loaded) = engine(40);
    let mut refused = 0;
    for number in 0..400 {
        let problem = convolution(number);
        // As tuning does: the first candidates are compiled in the background, then loaded and timed.
        for candidate in engine.candidates(&problem).into_iter().take(3) {
            let compiled = engine.compile_choice_later(&problem, candidate.choice);
            let prepared = engine.prepare_as(&problem, Some(candidate.choice));
            for refusal in [compiled.err(), prepared.err()].into_iter().flatten() {
                assert!(matches!(refusal, GpuError::NoRoom { most: 40, .. }), "{refusal}");
                assert!(refusal.is_refusal());
                refused += 1;
            }
        }
    }
    assert!(engine.settle(Duration::from_secs(60)));
    assert!(refused > 1000, "only {refused} were refused");
    assert!(engine.kernels() < 40 + 20, "{} kernels are held", engine.kernels());
    assert!(loaded.load(Ordering::Relaxed) < 40 + 20, "{loaded:?} kernels were loaded");
    // What is loaded can be measured again, and general kernels can always be had.
    let first = engine.candidates(&convolution(0)).remove(0).choice;
    engine.prepare_as(&convolution(0), Some(first)).unwrap();
    let served = engine.prepare_on(&convolution(500), Request { wait: true, ..Request::default() }).unwrap();
    assert_eq!(served.form(), Form::General);
}
