//! Which sources agree about each implemented instruction: `docs/internals/emulator-sources.md` is generated here.
//!
//! Files hold what the tests of other crates saw; those tests check the files. `UPDATE_DOCS=1 cargo test -p
//! unhang-emulator sources` writes the page.

use std::collections::BTreeSet;

use super::implemented;

/// A source: its column, what it says about an instruction, and the names.
struct Source {
    column: &'static str,
    meaning: &'static str,
    names: BTreeSet<&'static str>,
}

fn sources() -> [Source; 4] {
    let lines = |text: &'static str| text.lines().collect::<BTreeSet<_>>();
    [
        Source {
            column: "worked out",
            meaning: "Rows with results that were worked out from AMD's documentation (`crates/unhang-emulator/src/instruction_tests`).",
            names: super::tested(),
        },
        Source {
            column: "LLVM reads it alike",
            meaning: "Generated encodings mean the same to LLVM's assembler and disassembler (`crates/unhang-isa/tests/encodings.rs`): \
                      which instruction it is and what its operands are, not what it computes.",
            names: lines(include_str!("../../../unhang-isa/tests/fixtures/compared-with-llvm.txt")),
        },
        Source {
            column: "LLVM folds it alike",
            meaning: "LLVM computes the same from constants (`crates/unhang-fuzz/tests/folding.rs`).",
            names: lines(include_str!("../../../unhang-fuzz/recorded/folding.txt")),
        },
        Source {
            column: "random programs",
            meaning: "In the code of random programs that wrote on the emulator what they wrote on the host (`crates/unhang-fuzz`).",
            names: lines(include_str!("../../../unhang-fuzz/recorded/random-programs.txt")),
        },
    ]
}

/// Facts about buffers that belong to no single instruction, and their sources.
const BUFFERS: &[(&str, &str, &str)] = &[
    (
        "The fields of a descriptor: base, stride and swizzle enable in words 0 and 1; NUM_RECORDS in word 2; selections, format, index \
         stride, add-tid, resource level and OOB_SELECT in word 3",
        "Mesa, `src/amd/common/ac_descriptors.c` (`ac_build_buffer_descriptor`); LLVM, `mlir/lib/Conversion/AMDGPUToROCDL/AMDGPUToROCDL.cpp` \
         (`makeBufferRsrc`)",
        "`an_access_is_in_range_as_the_descriptor_says`",
    ),
    (
        "OOB_SELECT 0: index ≥ NUM_RECORDS or offset ≥ stride; 1: index ≥ NUM_RECORDS; 2: NUM_RECORDS = 0; 3: offset, or the swizzled \
         address, against NUM_RECORDS",
        "Mesa, `src/amd/vulkan/radv_image.c` (`radv_make_buffer_descriptor`), for gfx10; ROCm/rocMLIR pull request 678",
        "`an_access_is_in_range_as_the_descriptor_says`",
    ),
    (
        "Out of range loads are zero (a selected one stays a one), stores and atomics do nothing; words of wide accesses are checked one by \
         one, typed elements and atomics as a whole",
        "AMD, \"RDNA Instruction Set Architecture\", \"Range Checking\"",
        "`words_are_checked_one_by_one`, `the_descriptor_selects_components`, `typed_accesses`",
    ),
    (
        "With OOB_SELECT 3 a word whose last byte is past NUM_RECORDS is out of range, and offsets are not taken modulo 2^32",
        "LLVM, `docs/AMDGPUUsage.rst`, \"Relaxed Buffer OOB Mode\" (pull request 134734). Mesa writes offset ≥ NUM_RECORDS for gfx10: they \
         differ for accesses that are not aligned",
        "`an_access_is_in_range_as_the_descriptor_says`",
    ),
    (
        "The scalar offset is not swizzled, and checked in raw buffers alone: out of range is offset ≥ NUM_RECORDS − scalar offset",
        "AMD, \"Vega Instruction Set Architecture\", \"Range Checking\", for raw buffers. Not agreed: LLVM, `SIISelLowering.h` \
         (`splitBufferOffsets`), assumes no check; MLIR's AMDGPU dialect says that there may be one on some chips. rocBLAS 4.4's sgemm \
         for gfx1030 (`MT32x32x16`, m 1024, n 32, k 27) reads past its matrices without it",
        "`the_scalar_offset_is_checked_in_raw_buffers_alone`",
    ),
    (
        "Swizzled addresses: (index / n × stride + offset rounded down to 4) × n + index mod n × 4 + offset mod 4, with n = 8 << index \
         stride; add-tid adds the lane's number to the index",
        "AMD, \"RDNA Instruction Set Architecture\", \"Swizzled Buffer Addressing\"; elements of 4 bytes: the layout of private memory",
        "`an_access_is_in_range_as_the_descriptor_says`, `bytes_of_swizzled_buffers_lie_apart`",
    ),
    (
        "The descriptor of private memory has OOB_SELECT 2, the format 32_UINT and add-tid",
        "ROCr, `src/core/runtime/amd_aql_queue.cpp` (`FillBufRsrcWord3_Gfx10`)",
        "`an_access_is_in_range_as_the_descriptor_says`",
    ),
    (
        "Scalar loads find NUM_RECORDS × stride bytes, or NUM_RECORDS without a stride; OOB_SELECT is not read",
        "AMD, \"RDNA3 Instruction Set Architecture\", \"Scalar Memory Reads\". The document of RDNA2 prints a size without \
         the stride, against its own table of descriptors",
        "`scalar_loads_end_with_the_last_record`",
    ),
    (
        "Of each part of a scalar load's address the two lowest bits count as zero. A sum of offsets below zero is undefined: a fault for \
         buffers, for which compilers emit none",
        "AMD, \"RDNA Instruction Set Architecture\", \"Scalar Memory Addressing\"",
        "`scalar_loads_are_of_aligned_words_behind_the_start`",
    ),
    (
        "A descriptor of zeros stands for no buffer: loads give zeros, stores and atomics do nothing",
        "AMD, \"RDNA Instruction Set Architecture\", \"Buffer Resource\"",
        "`an_unbound_buffer_gives_zeros_and_takes_nothing`",
    ),
    (
        "The format of `tbuffer_*` is the instruction's, with components in their order; that of `buffer_*_format_*` the descriptor's, with \
         its selections; other accesses use neither",
        "AMD, \"RDNA Instruction Set Architecture\", \"Buffer Instructions\"",
        "`typed_accesses`, `the_descriptor_selects_components`",
    ),
    (
        "Numbers of formats; the lowest bits are X",
        "LLVM, `SIDefines.h` (`UfmtGFX10`), compared with its assembler; Mesa, `src/amd/common/gfx10_format_table.py`",
        "`numbers_of_formats_are_those_of_llvm`, `elements_are_converted_by_their_format`",
    ),
    (
        "With `lds` a lane's value goes to M0[15:0] + offset + 4 × lane; of typed loads only `format_x` has this form",
        "AMD, \"RDNA Instruction Set Architecture\", \"Memory Buffer Load to LDS\"",
        "`loads_to_local_memory`",
    ),
    (
        "Stores clamp normalised and whole numbers; normalised ones go to the nearest step, and NaN to zero. Within 0.1 of a \
         step of the middle it is a fault",
        "Microsoft, \"Data Conversion Rules\" of Direct3D, to which these chips conform: 0.6 of a step is allowed. AMD, Mesa \
         and LLVM say nothing",
        "`stores_are_clamped_and_rounded_where_the_rules_leave_no_choice`",
    ),
    (
        "Stores round floats of 16, 11 and 10 bits towards zero: what is too large becomes the largest, infinity and NaN stay, \
         and negative ones are zero without a sign",
        "Microsoft, \"Data Conversion Rules\" of Direct3D; Khronos, `EXT_packed_float` of OpenGL, for the sign; \
         Mesa, `src/amd/vulkan/radv_formats.c`, packs values that stand for stored ones in the same way",
        "`stores_are_clamped_and_rounded_where_the_rules_leave_no_choice`",
    ),
    (
        "Loads into half a register (`d16`) round singles towards zero and normalised numbers to the nearest half, and whole \
         numbers end at the limits",
        "Mesa, commit 3a35522c8a4 (2024-05-04, merge request 28730) for floats and normalised numbers; `integer_dest_saturates` \
         in `src/amd/vulkan/radv_pipeline.c` for whole ones",
        "`components_are_rounded_into_half_a_register`",
    ),
    (
        "Scaled numbers that are not exact, in stores and in loads into half a register, are a fault",
        "nobody: Direct3D 10 and newer and OpenCL have no such formats, and Vulkan requires no stores to them",
        "`stores_are_clamped_and_rounded_where_the_rules_leave_no_choice`, `components_are_rounded_into_half_a_register`",
    ),
];

/// Facts about lanes that exchange values, and their sources.
const LANES: &[(&str, &str, &str)] = &[
    (
        "Data-parallel permutation (DPP) exchanges lanes of source 0; of `v_subrev_nc_u32`, `v_subrev_co_ci_u32`, `v_lshlrev_b32`, \
         `v_lshrrev_b32` and `v_ashrrev_i32`, lanes of source 1. Reversed subtractions of floats exchange source 0",
        "Mesa, commit 140ca3bb50a (2026-01-27, merge request 39516): measured on GFX10.3 and GFX12. LLVM, pull request 216835 (2026-08-17, \
         by AMD): subtractions on every chip, shifts before GFX11. AMD's documents name source 0 for all",
        "`reversed_integer_operations_exchange_lanes_of_their_second_source`",
    ),
    (
        "`ds_swizzle_b32` has four modes. 0xe000 and up reorders as a fast Fourier transform does, 0xc000 and up rotates, 0x8000 and up \
         permutes four lanes. The rest combines and, or and xor",
        "AMD, \"Vega Instruction Set Architecture\", and Mesa, `src/amd/compiler/README-ISA.md`: GFX8 has all four already. The examples \
         are those of \"RDNA4 Instruction Set Architecture\"",
        "`lanes_exchange_values`",
    ),
];

fn table(facts: &[(&str, &str, &str)]) -> String {
    let rows: String = facts.iter().map(|(fact, place, tests)| format!("| {fact} | {place} | {tests} |\n")).collect();
    format!("| fact | place | tests |\n|---|---|---|\n{rows}")
}

/// The facts that belong to no single instruction, as tables.
fn facts_page() -> String {
    format!(
        "\n## Buffers\n\nWhat descriptors do, and where it is written. Not modelled: the resource level, the type, cache \
             swizzling, residency (`tfe`). Tests are those of `instruction_tests/buffers.rs`; they run the fast path too, where that \
             takes the access. Images are declined (emulator-declined.md).\n\n{}\n## Lanes\n\nHow lanes exchange values, where that is \
             not what one would expect. Tests are those of `instruction_tests/vector.rs` and `memory.rs`.\n\n{}",
        table(BUFFERS),
        table(LANES)
    )
}

fn page() -> String {
    let (implemented, sources) = (implemented(), sources());
    let mut page = format!(
        "# Which sources agree about each instruction\n\nThe {} instructions that the emulator implements. Generated by a test of \
         `unhang-emulator` from what the tests saw. No source is a card.\n\n",
        implemented.len()
    );
    for source in &sources {
        let count = source.names.intersection(&implemented).count();
        page += &format!("* **{}** ({count}): {}\n", source.column, source.meaning);
    }
    // The first two say nothing about results, or are our own reading.
    let computed =
        implemented.iter().filter(|name| sources[2..].iter().any(|source| source.names.contains(*name))).count();
    page += &format!("\nFor {computed} of them a source other than our own reading says what they compute: ");
    page += "LLVM folds them alike, or they are in the code of programs whose results agreed.\n\nLibraries' own tests on the emulated card \
             (`make test-rocm`) have no column: the card counts instructions by unit and not by name. Counting names takes the \
             plain path, on which those tests would be many times slower.\n\n| instruction |";
    sources.iter().for_each(|source| page += &format!(" {} |", source.column));
    page += &format!("\n|---|{}\n", "---|".repeat(sources.len()));
    for name in &implemented {
        page += &format!("| `{name}` |");
        sources.iter().for_each(|source| page += if source.names.contains(name) { " yes |" } else { " |" });
        page += "\n";
    }
    super::in_lines(&(page + &facts_page()))
}

#[test]
fn the_table_of_sources_is_the_one_in_the_documentation() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/internals/emulator-sources.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, page()).unwrap();
    }
    let written = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        written == page(),
        "docs/internals/emulator-sources.md is out of date: UPDATE_DOCS=1 cargo test -p unhang-emulator sources"
    );
}

/// Every instruction has a source other than our own reading, if only for its encoding, or is listed here with a
/// reason.
#[test]
fn every_instruction_has_a_second_source() {
    const ALONE: &[(&str, &str)] = &[("s_wakeup", "LLVM writes it with no constant; it does nothing here")];
    let sources = sources();
    let implemented = implemented();
    let alone: Vec<_> = implemented
        .iter()
        .filter(|name| sources.iter().filter(|source| source.names.contains(*name)).count() < 2)
        .collect();
    assert!(alone.iter().all(|name| ALONE.iter().any(|(known, _)| known == *name)), "only our own reading: {alone:?}");
}
