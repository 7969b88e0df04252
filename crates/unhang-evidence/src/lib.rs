//! What is known of a convolution on an engine here: the store, the rules, the exchange format.
