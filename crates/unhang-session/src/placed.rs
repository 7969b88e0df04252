//! Tensors of up to three axes of space on a device: copied to the host and back, and memory to try kernels on.

use unhang_conv::DataType;
use unhang_gpu::GpuEngine;
use unhang_gpu::normalization::Strides;

use crate::device::Device;
use crate::failure::Failure;
use crate::host::Numbers;

/// A tensor of images, channels and up to three axes of space, with its place in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Placed {
    /// Its sizes.
    pub sizes: [usize; 5],
    /// Elements from one to the next along each axis.
    pub strides: [usize; 5],
}

impl Placed {
    /// That many elements, one after the other.
    pub(crate) fn row(count: usize) -> Placed {
        Placed { sizes: [1, 1, 1, 1, count], strides: [1; 5] }
    }

    pub(crate) fn pixels(&self) -> usize {
        self.sizes[2..].iter().product()
    }

    pub(crate) fn elements(&self) -> usize {
        self.sizes.iter().product()
    }

    /// The elements from the first to past the last.
    pub(crate) fn span(&self) -> usize {
        1 + self.sizes.iter().zip(self.strides).map(|(&size, stride)| (size - 1) * stride).sum::<usize>()
    }

    /// Its strides, if its axes of space can be treated as one.
    pub(crate) fn as_planes(&self) -> Option<Strides> {
        let mut space = (2..5).rev().filter(|&axis| self.sizes[axis] > 1);
        let last = space.next();
        let pixel = last.map_or(1, |axis| self.strides[axis]);
        let mut next = last.map_or(0, |axis| pixel * self.sizes[axis]);
        for axis in space {
            if self.strides[axis] != next {
                return None;
            }
            next *= self.sizes[axis];
        }
        Some(Strides { image: self.strides[0], channel: self.strides[1], pixel })
    }

    /// The offset of an element, counted in the order of the axes.
    pub(crate) fn place(&self, mut at: usize) -> usize {
        let mut place = 0;
        for axis in (0..5).rev() {
            place += at % self.sizes[axis] * self.strides[axis];
            at /= self.sizes[axis];
        }
        place
    }
}

/// An error if a stream records a graph, for callers that copy to the host.
pub(crate) fn not_while_recording(engine: &GpuEngine, stream: u64) -> Result<(), Failure> {
    if engine.driver().is_capturing(stream)? {
        let reason = "a graph is being recorded, and copies to the host cannot be part of one: run it once before";
        return Err(Failure::Declined(reason.to_owned()));
    }
    Ok(())
}

/// The numbers of a tensor on the device, and the place of each element among them.
pub(crate) struct Brought {
    numbers: Numbers,
    placed: Placed,
}

impl Brought {
    /// Reads a tensor once the stream has reached this point.
    ///
    /// # Safety
    /// They must lie there.
    pub(crate) unsafe fn new(
        engine: &GpuEngine,
        data_type: DataType,
        placed: Placed,
        from: u64,
        stream: u64,
    ) -> Result<Brought, Failure> {
        // SAFETY: the caller's promise.
        let numbers = unsafe { Numbers::read(engine.driver(), data_type, placed.span(), from, stream)? };
        Ok(Brought { numbers, placed })
    }

    /// Its elements, in the order of the axes.
    pub(crate) fn all(&self) -> Vec<f64> {
        (0..self.placed.elements()).map(|at| self.numbers.get(self.placed.place(at))).collect()
    }

    /// Puts elements in their places and writes them back. The gaps of a tensor are not ours to change.
    ///
    /// # Safety
    /// The tensor must still lie there.
    pub(crate) unsafe fn write(
        mut self,
        engine: &GpuEngine,
        values: &[f64],
        to: u64,
        stream: u64,
    ) -> Result<(), Failure> {
        values.iter().enumerate().for_each(|(at, value)| self.numbers.set(self.placed.place(at), *value));
        // SAFETY: the caller's promise.
        unsafe { self.numbers.write(engine.driver(), to, stream).map_err(Failure::from) }
    }
}

/// Device memory, freed on drop.
pub(crate) struct Memory<'a> {
    device: &'a Device,
    places: Vec<u64>,
}

impl Memory<'_> {
    pub(crate) fn new(device: &Device) -> Memory<'_> {
        Memory { device, places: Vec::new() }
    }

    /// That many bytes.
    pub(crate) fn allocate(&mut self, bytes: usize) -> Result<u64, Failure> {
        let place = self.device.engine.driver().allocate(bytes.max(1))?;
        self.places.push(place);
        Ok(place)
    }
}

impl Drop for Memory<'_> {
    fn drop(&mut self) {
        for place in &self.places {
            // SAFETY: allocated above; everything that used it was waited for, or failed.
            let _ = unsafe { self.device.engine.driver().free(*place) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_of_space_are_one_where_they_lie_so() {
        let sizes = [2, 3, 4, 5, 6];
        let dense = Placed { sizes, strides: [360, 120, 30, 6, 1] };
        assert_eq!(dense.as_planes(), Some(Strides { image: 360, channel: 120, pixel: 1 }));
        let last = Placed { sizes, strides: [360, 1, 90, 18, 3] };
        assert_eq!(last.as_planes(), Some(Strides { image: 360, channel: 1, pixel: 3 }));
        assert_eq!(Placed { sizes, strides: [360, 120, 32, 6, 1] }.as_planes(), None);
        let flat = Placed { sizes: [2, 3, 1, 1, 1], strides: [3, 1, 9, 9, 9] };
        assert_eq!(flat.as_planes(), Some(Strides { image: 3, channel: 1, pixel: 1 }));
        assert_eq!((dense.place(359 + 360), dense.span()), (719, 720));
    }
}
