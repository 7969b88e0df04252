#!/bin/sh
# Builds what a GPU machine without Rust needs, into build/gpu-bench: the engine as a shared library with a C interface,
# and the suite's problems. Copy that folder and tools/gpu-bench; the machine needs Python, torch and nvrtc.
#
#   tools/gpu-bench/pack.sh [random problems, default 900]
set -eu
cd "$(dirname "$0")/../.."
target=${CARGO_TARGET_DIR:-target}
mkdir -p build/gpu-bench
cargo rustc -p unhang-gpu --lib --crate-type cdylib --features c-abi --release
cp "$target/release/libunhang_gpu.so" build/gpu-bench/
strip --strip-unneeded build/gpu-bench/libunhang_gpu.so 2>/dev/null || true
cargo run -q -p unhang-gpu --example suite_problems -- "${1:-900}" > build/gpu-bench/problems.txt
ls -l build/gpu-bench
