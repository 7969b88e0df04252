//! Which engine computes a convolution, and why.
