//! The vendors' compilers, where they are installed: every kernel family compiles, is safe, and can be retagged.

use unhang_conv::{DataType, Direction, Layout, Problem, Specification, Volume};
use unhang_gpu::choice::{Choice, TILES};
use unhang_gpu::compiler::{Clang, Compiler, Hiprtc, Nvrtc};
use unhang_gpu::object;
use unhang_gpu::plan::LaunchPlan;
use unhang_gpu::sources::Kernel;
use unhang_gpu::strided::Move;
use unhang_isa::Chip;
use unhang_isa::elf::CodeObject;

fn problem(direction: Direction, data_type: DataType, layout: Layout) -> Problem {
    Problem::new(Specification {
        batch: 4,
        in_channels: 64,
        out_channels: 128,
        in_size: [28, 28],
        kernel: [3, 3],
        padding: [1, 1],
        direction,
        data_type,
        layout,
        ..Specification::default()
    })
    .unwrap()
}

/// One kernel of each kind: all tiles of the GEMM, both layouts, 16-bit types, all the transforms.
fn kernels() -> Vec<Kernel> {
    let mut plans = Vec::new();
    for tile in TILES {
        let forward = problem(Direction::Forward, DataType::F32, Layout::Nchw);
        plans.push(LaunchPlan::new(&forward, &Choice::Gemm { tile, packed: true, flat: false, splits: 1 }));
        let weights = problem(Direction::BackwardWeights, DataType::F32, Layout::Nchw);
        if tile.is_for_weights(false) {
            plans.push(LaunchPlan::new(&weights, &Choice::Weights { tile, splits: 8 }));
        }
        if tile.is_for_weights(true) {
            plans.push(LaunchPlan::new(&weights, &Choice::Winograd { tile, splits: 8 }));
        }
    }
    for strip in [2, 4, 8] {
        let few = Specification {
            in_channels: 3,
            ..problem(Direction::BackwardData, DataType::F32, Layout::Nchw).specification()
        };
        plans.push(LaunchPlan::new(&Problem::new(few).unwrap(), &Choice::Narrow { strip }));
    }
    let depthwise = |direction, layout, stride| {
        let forward = problem(direction, DataType::F32, layout).specification();
        let specification = Specification { in_channels: 128, groups: 128, stride: [stride; 2], ..forward };
        Problem::new(specification).unwrap()
    };
    for direction in Direction::ALL {
        for (layout, stride, strip) in [(Layout::Nchw, 1, 4), (Layout::Nchw, 2, 2), (Layout::Nhwc, 1, 2)] {
            if layout == Layout::Nhwc && direction != Direction::BackwardWeights {
                continue;
            }
            let choice = Choice::DepthwiseQuads { strip, splits: 8 };
            plans.push(LaunchPlan::new(&depthwise(direction, layout, stride), &choice));
        }
    }
    // As much as a strip may need: four columns of f32, eight of 16 bits.
    for (data_type, strip) in [(DataType::F32, 4), (DataType::F16, 4), (DataType::Bf16, 2)] {
        for direction in Direction::ALL {
            let forward = depthwise(direction, Layout::Nchw, 1).specification();
            let five = Specification { kernel: [5, 5], padding: [2, 2], data_type, ..forward };
            plans.push(LaunchPlan::new(&Problem::new(five).unwrap(), &Choice::DepthwiseQuads { strip, splits: 8 }));
        }
    }
    // Windows that are unrolled with a stride alone.
    for (direction, strip) in [(Direction::Forward, 1), (Direction::Forward, 2), (Direction::BackwardData, 2)] {
        for (layout, size) in [(Layout::Nchw, 9), (Layout::Nhwc, 11)] {
            let strided = depthwise(direction, layout, 2).specification();
            let large = Specification { kernel: [size; 2], padding: [size / 2; 2], ..strided };
            plans.push(LaunchPlan::new(&Problem::new(large).unwrap(), &Choice::Depthwise { strip, splits: 1 }));
        }
    }
    for (kernel, stride, [rows, width, strip]) in
        [(1, 1, [16, 4, 1]), (3, 1, [16, 4, 1]), (3, 2, [4, 4, 2]), (5, 1, [8, 4, 1])]
    {
        for (direction, data_type) in [(Direction::Forward, DataType::F32), (Direction::BackwardData, DataType::F16)] {
            let few = Specification {
                in_channels: 20,
                out_channels: 36,
                in_size: [32, 32],
                kernel: [kernel, kernel],
                stride: [stride, stride],
                padding: [kernel / 2, kernel / 2],
                direction,
                data_type,
                ..Specification::default()
            };
            plans.push(LaunchPlan::new(&Problem::new(few).unwrap(), &Choice::Direct { rows, width, strip, splits: 1 }));
        }
    }
    let fused = problem(Direction::Forward, DataType::F32, Layout::Nchw);
    plans.push(LaunchPlan::new(&fused, &Choice::WinogradFused));
    plans.push(LaunchPlan::new(&fused.with_layout(Layout::Nhwc), &Choice::Winograd { tile: TILES[2], splits: 1 }));
    for tile in TILES.into_iter().filter(|tile| tile.is_for_half()) {
        let half = problem(Direction::Forward, DataType::F16, Layout::Nchw);
        plans.push(LaunchPlan::new(&half, &Choice::HalfGemm { tile, packed: true, splits: 1 }));
    }
    let tile = TILES[0];
    for (data_type, layout) in [(DataType::F16, Layout::Nchw), (DataType::Bf16, Layout::Nhwc)] {
        let data = problem(Direction::BackwardData, data_type, layout);
        plans.push(LaunchPlan::new(&data, &Choice::Gemm { tile, packed: false, flat: false, splits: 2 }));
        plans.push(LaunchPlan::new(&data, &Choice::Plain));
    }
    for direction in Direction::ALL {
        let f32 = problem(direction, DataType::F32, Layout::Nchw);
        plans.push(LaunchPlan::new(&f32, &Choice::Winograd { tile, splits: 1 }));
        plans.push(LaunchPlan::new(&f32.with_data_type(DataType::F64), &Choice::Plain));
    }
    for direction in Direction::ALL {
        let dense = problem(direction, DataType::F32, Layout::Nchw).specification();
        let strided = Problem::new(Specification { stride: [2, 2], ..dense }).unwrap();
        for layout in Layout::ALL {
            for tile in [TILES[0], TILES[2], TILES[6]] {
                plans.push(LaunchPlan::new(&strided.with_layout(layout), &Choice::Winograd { tile, splits: 1 }));
            }
        }
    }
    // Tiles of 8×8, and a filter for each thread where there are many.
    for direction in Direction::ALL {
        let dense = problem(direction, DataType::F32, Layout::Nchw).specification();
        let channels = Specification { in_channels: 128, out_channels: 256, ..dense };
        for (size, out_channels) in [(5, 256), (7, 128)] {
            let large = Specification { kernel: [size; 2], padding: [size / 2; 2], out_channels, ..channels };
            let large = Problem::new(large).unwrap();
            for layout in Layout::ALL {
                for splits in [1, 8] {
                    plans.push(LaunchPlan::new(&large.with_layout(layout), &Choice::Winograd { tile, splits }));
                }
            }
        }
    }
    for (layout, tile) in [(Layout::Nchw, TILES[0]), (Layout::Nchw, TILES[4]), (Layout::Nhwc, TILES[0])] {
        let data = problem(Direction::BackwardData, DataType::F32, layout).specification();
        let spread = Specification { kernel: [1, 1], padding: [0, 0], stride: [2, 2], ..data };
        let choice = Choice::Gemm { tile, packed: false, flat: false, splits: 1 };
        plans.push(LaunchPlan::new(&Problem::new(spread).unwrap(), &choice));
    }
    let mut kernels: Vec<Kernel> =
        plans.into_iter().flat_map(|plan| plan.unwrap().stages).map(|stage| stage.kernel).collect();
    kernels.extend(DataType::ALL.map(|data_type| {
        let volume: Volume = "forward:f32:ncdhw:2x3x5x7x8:8x3x3x3:s1x1x1:p1x1x1:d1x1x1:g1".parse().unwrap();
        let (planes, strides) = (volume.fold(usize::MAX).unwrap().parts[0].planes[0], [840, 280, 56, 8, 1]);
        Move::gather(data_type, &planes, Layout::Nchw, strides).unwrap().kernel().clone()
    }));
    kernels.sort();
    kernels.dedup();
    kernels
}

#[test]
fn kernels_compile_for_rdna1_without_spills_or_hazards() {
    let compiler = match Hiprtc::find() {
        Ok(compiler) => compiler,
        Err(error) => return println!("skipped: {error}"),
    };
    for kernel in kernels() {
        let object = compiler.compile(&kernel, &compiler.options(&kernel, "gfx1010")).unwrap();
        object::refuse_unsafe(&object, Chip::Gfx1010).unwrap();
        for figures in object::figures(&object, Chip::Gfx1010).unwrap() {
            assert_eq!(figures.vgpr_spills + figures.sgpr_spills + figures.scratch_bytes, 0, "{kernel}: {figures}");
            println!("{kernel}: {figures}");
            assert!(figures.vgprs <= 128, "{kernel}: {figures}");
            assert!(figures.hazards.is_empty() && figures.calls == 0, "{kernel}: {:?}", figures.hazards);
        }
    }
}

/// RDNA2, 3, 3.5 and 4. Only the first seven are decoded and audited; what is known of the others is what the compiler says.
const NEWER_CHIPS: [&str; 16] = [
    "gfx1030", "gfx1031", "gfx1032", "gfx1033", "gfx1034", "gfx1035", "gfx1036", "gfx1100", "gfx1101", "gfx1102",
    "gfx1103", "gfx1150", "gfx1151", "gfx1152", "gfx1200", "gfx1201",
];

/// Kernels compile for a chip without spills, in waves of 32 lanes, and leave room for at least three waves a SIMD: the tile of four rows
/// has as few because of its LDS, on RDNA1 too.
fn check_newer_chips(kernels: &[Kernel], chips: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let compiler = match Clang::newest(folder.path()) {
        Ok(compiler) => compiler,
        Err(error) => return println!("skipped: {error}"),
    };
    let jobs: Vec<(&Kernel, &str)> = chips.iter().flat_map(|chip| kernels.iter().map(move |it| (it, *chip))).collect();
    let next = std::sync::atomic::AtomicUsize::new(0);
    let work = || {
        while let Some((kernel, chip)) = jobs.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed)) {
            let object = compiler.compile(kernel, &compiler.options(kernel, chip)).unwrap();
            let figures = object::figures_for(&object, chip).unwrap();
            assert!(!figures.is_empty(), "{kernel} for {chip}");
            for one in figures {
                println!("{kernel} for {chip}: {one}");
                assert_eq!(one.vgpr_spills + one.sgpr_spills + one.scratch_bytes, 0, "{kernel} for {chip}: {one}");
                assert_eq!(one.lanes, 32, "{kernel} for {chip}");
                assert!(one.waves_per_simd >= 3, "{kernel} for {chip}: {one}");
                assert_eq!(one.audited, chip.starts_with("gfx103"), "{kernel} for {chip}");
                assert!(one.hazards.is_empty() && one.calls == 0, "{kernel} for {chip}: {:?}", one.hazards);
            }
        }
    };
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..workers).for_each(|_| drop(scope.spawn(work))));
}

/// A kernel of each source for a chip of each generation; with `UNHANG_TEST_ALL=1` every kernel for every chip, which takes minutes.
#[test]
fn kernels_compile_for_newer_chips_without_spills() {
    let mut kernels = kernels();
    if std::env::var_os("UNHANG_TEST_ALL").is_some_and(|value| value == "1") {
        return check_newer_chips(&kernels, &NEWER_CHIPS);
    }
    // In their order the last of each function has the most constants set: the widest types and the largest tiles.
    kernels.reverse();
    let mut seen = std::collections::BTreeSet::new();
    kernels.retain(|kernel| seen.insert(kernel.source.name()));
    check_newer_chips(&kernels, &["gfx1030", "gfx1100", "gfx1102", "gfx1151", "gfx1201"]);
}

#[test]
fn objects_for_another_chip_are_refused() {
    let compiler = match Hiprtc::find() {
        Ok(compiler) => compiler,
        Err(error) => return println!("skipped: {error}"),
    };
    let forward = problem(Direction::Forward, DataType::F32, Layout::Nchw);
    let plan =
        LaunchPlan::new(&forward, &Choice::Gemm { tile: TILES[0], packed: true, flat: false, splits: 1 }).unwrap();
    let kernel = &plan.stages[1].kernel;
    let object = compiler.compile(kernel, &compiler.options(kernel, "gfx1030")).unwrap();
    // What a spoof would run: it has the hazards that the compiler does not know of for its target.
    let refused = object::refuse_unsafe(&object, Chip::Gfx1010).unwrap_err();
    assert!(refused.to_string().contains("unsafe on gfx1010"), "{refused}");
}

#[test]
fn retagging_changes_the_tags_and_not_the_code() {
    let compiler = match Hiprtc::find() {
        Ok(compiler) => compiler,
        Err(error) => return println!("skipped: {error}"),
    };
    let plan = LaunchPlan::new(&problem(Direction::Forward, DataType::F32, Layout::Nchw), &Choice::Plain).unwrap();
    let kernel = &plan.stages[0].kernel;
    let object = compiler.compile(kernel, &compiler.options(kernel, "gfx1010")).unwrap();
    let tagged = object::retag(&object, Chip::Gfx1010, Chip::Gfx1030).unwrap();
    let (before, after) = (CodeObject::parse(&object).unwrap(), CodeObject::parse(&tagged).unwrap());
    assert_eq!(after.chip(), Some(Chip::Gfx1030));
    assert_eq!(after.flags, 0x36);
    assert_eq!(CodeObject::marked_chip(&tagged), Some(Chip::Gfx1010));
    assert_eq!(CodeObject::marked_chip(&object), None);
    assert_eq!(before.functions.len(), after.functions.len());
    for (old, new) in before.functions.iter().zip(&after.functions) {
        assert_eq!((old.name, old.code), (new.name, new.code));
    }
    let text = |object: &[u8], name: &[u8]| object.windows(name.len()).filter(|window| *window == name).count();
    assert_eq!(text(&tagged, b"amdgcn-amd-amdhsa--gfx1030"), 1);
    assert_eq!(text(&tagged, b"amdgcn-amd-amdhsa--gfx1010"), 0);
    assert!(object::retag(&object, Chip::Gfx1012, Chip::Gfx1030).is_err());
}

#[test]
fn kernels_compile_for_nvidia() {
    let compiler = match Nvrtc::find() {
        Ok(compiler) => compiler,
        Err(error) => return println!("skipped: {error}"),
    };
    for kernel in kernels() {
        let object = compiler.compile(&kernel, &compiler.options(&kernel, "sm_80")).unwrap();
        assert!(object.starts_with(b"\x7fELF"), "{kernel}");
    }
}
