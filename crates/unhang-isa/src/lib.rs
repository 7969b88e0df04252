//! gfx10 machine code: decoder, audit, repair of bytes.
