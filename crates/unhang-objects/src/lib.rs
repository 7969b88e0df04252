//! Containers of GPU code: ELF objects, fat binaries, databases, wheels.
