# make demo   a guided first run on whatever machine you have
# make test   the full test suite; CI runs this and nothing else
.PHONY: help demo test quick test-all test-rocm test-frameworks test-torch fuzz-emulator wheel check deny bench-cpu bench-overhead clean

help:
	@sed -n 's/^# make/make/p' Makefile

# The part that needs no torch comes first: it is there in minutes, torch is not.
demo:
	@tools/setup hip build
	@target/release/unhang demo --part machine
	@tools/setup python
	@.venv/bin/unhang demo --part torch

test:
	@tools/setup tests
	@.venv/bin/python tools/test

# make quick   the tests that catch most mistakes: under five minutes once everything is built
quick:
	@tools/setup build python
	@.venv/bin/python tools/test --only quick

# make test-all   the same with long fuzzing and every combination
test-all:
	@tools/setup tests
	@UNHANG_TEST_ALL=1 .venv/bin/python tools/test

# make test-rocm   AMD's own ROCm 6.4 on the emulated card: MIOpen, rocBLAS and others; 0.7 GB to fetch once, 8 GB on disk
test-rocm:
	@tools/setup build
	@tools/rocm-root build/rocm-root
	@python3 tools/test-rocm

# make test-frameworks   JAX, TensorFlow, CuPy, MIGraphX, llama.cpp and others on the emulated card: about 4 GB to fetch once, 20 GB on disk
test-frameworks:
	@tools/setup build
	@python3 tools/test-frameworks

# make test-torch   PyTorch 2.6 for HIP, compiled here, on the emulated card: 2 GB to fetch once, 12 GB on disk, 42 minutes on two cores
test-torch:
	@tools/setup build python
	@tools/torch-hip
	@python3 tools/test-torch

# make fuzz-emulator   random programs on the host and on the emulator, for an hour or UNHANG_FUZZ_MINUTES
fuzz-emulator:
	@tools/setup tests
	@UNHANG_FUZZ_MINUTES=$${UNHANG_FUZZ_MINUTES:-60} cargo test -p unhang-fuzz --test random_programs -- --nocapture

# make check   formatting, lints, types and words only
check:
	@tools/setup build python
	@.venv/bin/python tools/test --only check

# make deny   advisories, licences and sources of all dependencies, with cargo-deny (fetches the advisory database)
deny:
	@command -v cargo-deny > /dev/null || { echo "error: cargo-deny was not found; hint: cargo install --locked cargo-deny" >&2; exit 2; }
	@cargo deny --locked check

# make wheel   one abi3 wheel for Python 3.9 and newer, glibc 2.28 and newer, in dist/
wheel:
	@tools/setup packing
	@tools/wheel

# make bench-overhead   what a call through unhang costs over plain torch
bench-overhead:
	@tools/setup build python
	@.venv/bin/python tools/bench_overhead.py

# make bench-cpu   our CPU engine against torch's and others, in every setting; tables in build/bench-cpu.md
bench-cpu:
	@tools/setup build python
	@.venv/bin/python tools/bench-cpu/bench.py --setup --json build/bench-cpu.json --markdown build/bench-cpu.md

clean:
	rm -rf build dist target unhang.data python/unhang/*.so
