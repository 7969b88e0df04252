//! The CPU engine: every convolution in all three directions, in Rust.
