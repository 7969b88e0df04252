//! What a convolution is: the problem, its validation and arithmetic, the plain reference.
