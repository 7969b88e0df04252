//! What every engine is: the trait, operands, verdicts, errors.
