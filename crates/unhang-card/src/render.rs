//! `ioctl` on a render node: reports the driver's name. Management tools ask for it; memory belongs to the driver's
//! other device.

use crate::Errno;
use crate::kfd::is_there;
use crate::process::Process;

/// The letter of DRM's requests, and the one that asks for the driver.
const LETTER: u32 = b'd' as u32;
const VERSION: u32 = 0;

/// A text that the kernel copies out: as much as fits, and how long it is.
#[repr(C)]
struct Text {
    length: usize,
    bytes: *mut u8,
}

impl Text {
    fn put(&mut self, text: &[u8]) -> Result<(), Errno> {
        let count = self.length.min(text.len());
        if count > 0 && !self.bytes.is_null() {
            if !is_there(self.bytes as u64, count) {
                return Err(libc::EFAULT);
            }
            // SAFETY: the caller of `ioctl` says that this many bytes may be written there, and the memory is there.
            unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), self.bytes, count) };
        }
        self.length = text.len();
        Ok(())
    }
}

/// `struct drm_version`
#[repr(C)]
struct Version {
    numbers: [i32; 3],
    name: Text,
    date: Text,
    description: Text,
}

/// Answers a request on a render node.
pub(crate) fn ioctl(process: &Process, request: u64, pointer: *mut u8) -> Result<(), Errno> {
    let (number, letter, size) = (request as u32 & 0xff, request as u32 >> 8 & 0xff, request as u32 >> 16 & 0x3fff);
    if letter != LETTER || number != VERSION {
        process.journal.say_once(&format!("request {number:#04x} of the render node is not known and was refused"));
        return Err(libc::EINVAL);
    }
    if (size as usize) < size_of::<Version>() {
        return Err(libc::EINVAL);
    }
    let version = pointer.cast::<Version>();
    if !version.is_aligned() || !is_there(pointer as u64, size_of::<Version>()) {
        return Err(libc::EFAULT);
    }
    // SAFETY: the caller of `ioctl` gives a structure of the size that the request's number names, and it is the caller's until
    // the call returns.
    let version = unsafe { &mut *version };
    version.numbers = [3, 49, 0];
    version.name.put(b"amdgpu")?;
    version.date.put(b"20150101")?;
    version.description.put(b"AMD GPU (emulated)")
}
