//! Our GPU engine on AMD's own HIP runtime: every family of kernels in every direction, through the real libamdhip64 and
//! hiprtc, on the emulated card. It runs native, and under a runtime that takes the card for a gfx1030.
//!
//! The runtime must be started with the card preloaded, so the computing is done by this test program again, as a child.

mod common;

use std::collections::BTreeSet;
use std::ffi::{c_int, c_void};
use std::path::Path;
use std::sync::Mutex;

use common::{installed, run};
use libloading::Library;
use unhang_conv::{DataType, Direction, Layout, Problem, Specification};
use unhang_engine::{Elements, ElementsMut, Engine, EngineError, EngineName, Operands, Unsupported};
use unhang_gpu::candidates::candidates;
use unhang_gpu::choice::Choice;
use unhang_gpu::driver::{Driver, HipChip, VendorDriver};
use unhang_gpu::model::DeviceModel;
use unhang_gpu::{DevicePointers, GpuEngine, GpuSettings};
use unhang_suite::check;

/// Names the reported architecture in the child, and its folder for compiled kernels.
const CHILD: &str = "UNHANG_TEST_CARD_CHILD";
const CACHE: &str = "UNHANG_TEST_CARD_CACHE";

/// The few functions of HIP with which a program moves its numbers.
struct Memory {
    library: Library,
}

impl Memory {
    fn call<T: Copy>(&self, name: &str) -> T {
        // SAFETY: the functions below have HIP's signatures.
        *unsafe { self.library.get::<T>(name.as_bytes()) }.unwrap()
    }

    fn upload(&self, bytes: &[u8]) -> u64 {
        let allocate: unsafe extern "C" fn(*mut u64, usize) -> c_int = self.call("hipMalloc");
        let copy: unsafe extern "C" fn(u64, *const c_void, usize, c_int) -> c_int = self.call("hipMemcpy");
        let mut address = 0;
        // SAFETY: the place and the bytes are ours and as long as is said; 1 is host to device.
        unsafe {
            assert_eq!(allocate(&mut address, bytes.len().max(1)), 0);
            assert_eq!(copy(address, bytes.as_ptr().cast(), bytes.len(), 1), 0);
        }
        address
    }

    fn download(&self, address: u64, bytes: &mut [u8]) {
        let copy: unsafe extern "C" fn(*mut c_void, u64, usize, c_int) -> c_int = self.call("hipMemcpy");
        // SAFETY: as above; 2 is device to host.
        assert_eq!(unsafe { copy(bytes.as_mut_ptr().cast(), address, bytes.len(), 2) }, 0);
    }

    fn free(&self, address: u64) {
        let free: unsafe extern "C" fn(u64) -> c_int = self.call("hipFree");
        // SAFETY: what `upload` gave, or nothing.
        assert_eq!(unsafe { free(address) }, 0);
    }
}

struct HipEngine {
    gpu: GpuEngine,
    memory: Memory,
    choice: Mutex<Option<Choice>>,
}

fn bytes_of<'a>(elements: &'a Elements<'_>) -> &'a [u8] {
    let (pointer, count): (*const u8, usize) = match elements {
        Elements::F32(from) => (from.as_ptr().cast(), from.len()),
        Elements::F16(from) => (from.as_ptr().cast(), from.len()),
        Elements::Bf16(from) => (from.as_ptr().cast(), from.len()),
        Elements::F64(from) => (from.as_ptr().cast(), from.len()),
    };
    // SAFETY: the elements are numbers without padding, and stay borrowed.
    unsafe { std::slice::from_raw_parts(pointer, count * elements.data_type().size()) }
}

fn bytes_of_mut<'a>(elements: &'a mut ElementsMut<'_>) -> &'a mut [u8] {
    let size = elements.as_elements().data_type().size();
    let (pointer, count): (*mut u8, usize) = match elements {
        ElementsMut::F32(to) => (to.as_mut_ptr().cast(), to.len()),
        ElementsMut::F16(to) => (to.as_mut_ptr().cast(), to.len()),
        ElementsMut::Bf16(to) => (to.as_mut_ptr().cast(), to.len()),
        ElementsMut::F64(to) => (to.as_mut_ptr().cast(), to.len()),
    };
    // SAFETY: as above, and borrowed for writing; every pattern of bits is a number.
    unsafe { std::slice::from_raw_parts_mut(pointer, count * size) }
}

impl Engine for HipEngine {
    fn name(&self) -> EngineName {
        EngineName::Jit
    }

    fn supports(&self, problem: &Problem) -> Result<(), Unsupported> {
        self.gpu.supports(problem)
    }

    fn run(&self, problem: &Problem, operands: Operands<'_>) -> Result<(), EngineError> {
        let failed =
            |error: unhang_gpu::GpuError| EngineError::Failed { engine: EngineName::Jit, message: error.to_string() };
        let prepared = self.gpu.prepare_as(problem, *self.choice.lock().unwrap()).map_err(failed)?;
        let mut result = operands.result;
        let output = bytes_of_mut(&mut result);
        let pointers = DevicePointers {
            first: self.memory.upload(bytes_of(&operands.first)),
            second: self.memory.upload(bytes_of(&operands.second)),
            bias: operands.bias.map_or(0, |bias| self.memory.upload(bytes_of(&bias))),
            // What a kernel leaves unwritten shows: a NaN in every type.
            result: self.memory.upload(&vec![0xff; output.len()]),
            workspace: self.memory.upload(&vec![0xff; prepared.workspace_bytes() as usize]),
        };
        // SAFETY: device memory of the sizes that the problem and the plan say, freed after the copy has waited.
        unsafe { self.gpu.launch(&prepared, pointers, 0) }.map_err(failed)?;
        self.memory.download(pointers.result, output);
        for address in [pointers.first, pointers.second, pointers.bias, pointers.result, pointers.workspace] {
            self.memory.free(address);
        }
        Ok(())
    }
}

/// The smallest problem of each family, direction and two types.
fn trials() -> Vec<(Problem, Choice)> {
    let base = Specification { batch: 1, padding: [1, 1], kernel: [3, 3], ..Specification::default() };
    let shapes = [
        Specification { in_channels: 16, out_channels: 16, in_size: [6, 6], ..base },
        Specification { in_channels: 8, out_channels: 16, in_size: [5, 5], kernel: [1, 1], padding: [0, 0], ..base },
        Specification { in_channels: 3, out_channels: 8, in_size: [9, 9], kernel: [5, 5], stride: [2, 2], ..base },
        Specification { in_channels: 8, out_channels: 8, groups: 8, in_size: [6, 6], ..base },
        Specification { in_channels: 6, out_channels: 8, groups: 2, in_size: [5, 5], ..base },
        Specification { in_channels: 4, out_channels: 6, in_size: [4, 5], stride: [2, 2], transposed: true, ..base },
    ];
    let mut trials = Vec::new();
    for specification in shapes {
        for direction in Direction::ALL {
            for (data_type, layout) in [(DataType::F32, Layout::Nchw), (DataType::F16, Layout::Nhwc)] {
                let problem = Problem::new(Specification { direction, data_type, layout, ..specification }).unwrap();
                let all = candidates(&problem, &DeviceModel::rx_5600_xt(), 1 << 24);
                trials.extend(all.into_iter().map(|candidate| (problem.clone(), candidate.choice)));
            }
        }
    }
    trials.sort_by(|a, b| a.0.flops().total_cmp(&b.0.flops()));
    let mut seen = BTreeSet::new();
    trials.retain(|(problem, choice)| {
        seen.insert((choice.family().to_owned(), format!("{:?} {:?}", problem.direction(), problem.data_type())))
    });
    trials
}

/// The child: computes on whatever card the runtime finds.
#[test]
fn the_engine_computes_in_this_process() {
    let Some(reported) = std::env::var(CHILD).ok() else { return };
    let chip = HipChip {
        reported_architecture: reported,
        true_architecture: "gfx1010".to_owned(),
        compute_units: 36,
        clock_mhz: 1780,
        bandwidth: 288_000_000_000,
    };
    let driver = VendorDriver::hip(0, &chip).unwrap();
    assert!(driver.description().name.contains("(emulated)"), "{}", driver.description().name);
    // SAFETY: the runtime that the driver has loaded already.
    let memory = Memory { library: unsafe { Library::new("libamdhip64.so.5") }.unwrap() };
    let cache_folder = std::env::var_os(CACHE).map(Into::into);
    let settings =
        GpuSettings { workspace_limit: Some(1 << 24), cache_folder, cache_limit: 1 << 30, shipped_folder: None };
    let engine = HipEngine { gpu: GpuEngine::new(Box::new(driver), settings), memory, choice: Mutex::default() };
    let mut families = BTreeSet::new();
    for (turn, (problem, choice)) in trials().into_iter().enumerate() {
        families.insert(choice.family().to_owned());
        *engine.choice.lock().unwrap() = Some(choice);
        if let Err(failure) = check(&engine, &problem, turn as u64) {
            panic!("{choice} on {problem}: {failure}");
        }
    }
    println!("computed: {families:?}");
}

#[test]
fn every_family_is_right_on_the_real_hip_runtime_native_and_spoofed() {
    if !installed("/usr/lib/x86_64-linux-gnu/libamdhip64.so.5") || std::env::var_os(CHILD).is_some() {
        return;
    }
    let program = std::env::current_exe().unwrap();
    let cache = tempfile::tempdir().unwrap();
    let cache = cache.path().to_str().unwrap();
    let arguments = ["--exact", "the_engine_computes_in_this_process", "--nocapture"];
    for (reported, variables) in [("gfx1010", &[][..]), ("gfx1030", &[("HSA_OVERRIDE_GFX_VERSION", "10.3.0")][..])] {
        let mut all = vec![(CHILD, reported), (CACHE, cache)];
        all.extend_from_slice(variables);
        // Nothing but our kernels: HIP's own for filling memory are spoofed code, and copies go by SDMA.
        let ran = run("rx5600xt-rocm5.7", Path::new(&program), &arguments, &all);
        assert!(ran.status.success(), "{reported}\n{}\n{}", ran.output, ran.errors);
        assert!(ran.output.contains("computed: {"), "{}", ran.output);
        assert!(!ran.journal.contains("\"event\":\"hazard\""), "{}", ran.errors);
        println!("{reported}: {}", ran.output.lines().find(|line| line.contains("computed")).unwrap_or_default());
    }
}
