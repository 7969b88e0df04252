//! The extension module behind the Python package.
