//! The HIP driver against a stand-in for the runtime (`stand_in/hip.c`). The stand-in keeps errors as HIP 7 does,
//! notices objects that are freed too early, and answers as the real ones were seen to answer.

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use libloading::os::unix::Library;
use unhang_gpu::compiler::{Compiler, Hiprtc};
use unhang_gpu::driver::{
    DeviceEvents, Driver, DriverError, Function, HipChip, StreamEvent, VendorDriver, hip_pci_address,
};

/// Compiles the stand-in under the name of the runtime. `None` where there is no C compiler.
fn compile(folder: &Path, option: &str) -> Option<Library> {
    let file = folder.join("libamdhip64.so.7");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/stand_in/hip.c");
    let options = ["-shared", "-fPIC", "-Wall", "-Werror", option, "-o"];
    let status = Command::new("cc").args(options).arg(&file).arg(source).status().ok()?;
    assert!(status.success());
    // SAFETY: the stand-in has no initialisers.
    Some(unsafe { Library::new(&file) }.unwrap())
}

struct StandIn {
    library: Library,
    hip: VendorDriver,
    _folder: tempfile::TempDir,
}

impl StandIn {
    /// The one that this test program has loaded, as torch would have.
    fn loaded() -> Option<&'static StandIn> {
        static STAND_IN: OnceLock<Option<StandIn>> = OnceLock::new();
        let stand_in = STAND_IN.get_or_init(|| {
            let folder = tempfile::tempdir().unwrap();
            let option = std::env::var("UNHANG_TEST_OTHER_BUILD").unwrap_or_else(|_| "-O0".into());
            let library = compile(folder.path(), &option)?;
            let chip = HipChip {
                reported_architecture: "gfx1030".into(),
                true_architecture: "gfx1010".into(),
                compute_units: 36,
                clock_mhz: 1780,
                bandwidth: 288_000_000_000,
            };
            let hip = VendorDriver::hip(0, &chip).unwrap();
            Some(StandIn { library, hip, _folder: folder })
        });
        if stand_in.is_none() {
            println!("skipped: cc is not installed");
        }
        stand_in.as_ref()
    }

    fn call(&self, name: &str) -> i32 {
        // SAFETY: functions of the stand-in without arguments.
        unsafe { self.library.get::<unsafe extern "C" fn() -> i32>(name.as_bytes()).unwrap()() }
    }

    /// The error that torch's next look would find.
    fn last_error(&self) -> i32 {
        self.call("hipPeekAtLastError")
    }
}

fn code<T: std::fmt::Debug>(result: Result<T, DriverError>) -> i32 {
    match result.unwrap_err() {
        DriverError::Call { code, .. } => code,
        other => panic!("{other}"),
    }
}

#[test]
fn a_failed_call_of_ours_leaves_no_error_for_torch_to_find() {
    let Some(stand_in) = StandIn::loaded() else { return };
    let hip = &stand_in.hip;
    assert_eq!(code(hip.load(b"wrong chip\0", "kernel")), 303);
    assert_eq!(stand_in.last_error(), 0);
    assert_eq!(code(hip.load(b"the object\0", "missing")), 500);
    assert_eq!(code(hip.allocate(1 << 30)), 2);
    assert_eq!(code(hip.destroy_event(StreamEvent(0))), 400);
    assert_eq!(code(hip.is_capturing(9)), 400);
    assert_eq!(hip.elapsed(StreamEvent(1), StreamEvent(2)), Ok(None), "not ready is no failure");
    assert_eq!(code(hip_pci_address(5)), 101);
    let events = DeviceEvents::hip(0).unwrap();
    assert_eq!(events.has_happened(StreamEvent(2)), Ok(false));
    assert_eq!(stand_in.last_error(), 0);
}

#[test]
fn an_error_that_was_there_before_us_is_left_for_its_owner() {
    let Some(stand_in) = StandIn::loaded() else { return };
    // SAFETY: a stream of the stand-in's, and no place is written but the given one.
    let theirs = unsafe {
        let mut status = 0;
        let call = stand_in.library.get::<unsafe extern "C" fn(usize, *mut i32) -> i32>(b"hipStreamIsCapturing");
        call.unwrap()(9, &mut status)
    };
    assert_eq!((theirs, stand_in.last_error()), (400, 400));
    stand_in.hip.synchronize(1).unwrap();
    assert_eq!(stand_in.last_error(), 400);
    assert_eq!(code(stand_in.hip.load(b"wrong chip\0", "kernel")), 303);
    assert_ne!(stand_in.last_error(), 0, "whoever made it still hears that something failed");
    stand_in.call("hipGetLastError");
}

/// Whoever is given memory may write it in a stream that does not wait for the null stream.
#[test]
fn memory_is_filled_when_it_is_handed_out_and_kept_by_nobody_if_that_fails() {
    let Some(stand_in) = StandIn::loaded() else { return };
    let address = stand_in.hip.allocate(64).unwrap();
    assert_eq!((stand_in.call("fillsUnderWay"), stand_in.call("memoryInUse")), (0, 1));
    // SAFETY: allocated above.
    unsafe { stand_in.hip.free(address) }.unwrap();
    assert_eq!(code(stand_in.hip.allocate(906 * 4)), 906);
    assert_eq!(stand_in.call("memoryInUse"), 0);
    assert_eq!(stand_in.last_error(), 0);
}

#[test]
fn the_default_stream_counts_as_capturing_while_another_one_is() {
    let Some(stand_in) = StandIn::loaded() else { return };
    let events = DeviceEvents::hip(0).unwrap();
    for (stream, capturing) in [(0, true), (1, true), (2, false)] {
        assert_eq!(stand_in.hip.is_capturing(stream), Ok(capturing), "{stream}");
        assert_eq!(events.is_capturing(stream), Ok(capturing), "{stream}");
    }
    assert_eq!(stand_in.last_error(), 0);
}

#[test]
fn an_object_outlives_the_callers_copy_of_it() {
    let Some(stand_in) = StandIn::loaded() else { return };
    let mut object = b"the object\0".to_vec();
    let function: Function = stand_in.hip.load(&object, "kernel").unwrap();
    object.fill(b'x');
    drop(object);
    // SAFETY: the stand-in starts nothing.
    unsafe { stand_in.hip.launch(function, [1; 3], 64, &mut [], 1) }.unwrap();
}

#[test]
fn a_refused_object_is_explained() {
    let Some(stand_in) = StandIn::loaded() else { return };
    let error = stand_in.hip.load(b"wrong chip\0", "kernel").unwrap_err().to_string();
    assert!(error.contains("303") && error.contains("another chip"), "{error}");
}

#[test]
fn compilers_of_one_version_and_file_name_are_told_apart_by_their_build() {
    let Some(stand_in) = StandIn::loaded() else { return };
    let ours = stand_in.hip.compiler().version();
    assert!(ours.starts_with("hiprtc 9.0 (libamdhip64.so.7, build "), "{ours}");
    assert_eq!(Hiprtc::find().unwrap().version(), ours, "the same library gives the same name");
    // Another build of the same sources, in a separate process: this test again, as a child.
    if std::env::var_os("UNHANG_TEST_OTHER_BUILD").is_some() {
        println!("version: {ours}");
        return;
    }
    let versions = ["-O0", "-O2", "-Wl,--build-id=none"].map(|option| {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture", "compilers_of_one_version_and_file_name_are_told_apart_by_their_build"])
            .env("UNHANG_TEST_OTHER_BUILD", option)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.lines().find_map(|line| Some(line.split_once("version: ")?.1.to_owned())).expect("the child's version")
    });
    assert_ne!(versions[0], versions[1]);
    assert_ne!(versions[0], versions[2]);
    assert_eq!(versions[0], ours, "-O0 is what this process has");
}
