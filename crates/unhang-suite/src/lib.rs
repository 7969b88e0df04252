//! For tests and benches: generated problems, the layer table, tolerances, one check.
