//! Workspace: buffers aligned to cache lines, kept by each thread for its next computation.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;

const ALIGNMENT: usize = 64;
/// Buffers that a thread keeps.
const KEPT: usize = 6;

/// Numbers that the workspace of a computation may always have: 4 MiB, with which images one at a time are transformed too.
const ALWAYS: usize = 1024 * 1024;

/// Numbers that the workspace of a computation may have at most: as many as its operands, and a few megabytes whatever they are.
pub(crate) fn memory_for(operands: usize) -> usize {
    operands.max(ALWAYS)
}

thread_local! {
    static FREE: RefCell<Vec<Buffer>> = const { RefCell::new(Vec::new()) };
}

/// An aligned block of numbers; their old contents are arbitrary.
struct Buffer {
    start: NonNull<f32>,
    capacity: usize,
}

// SAFETY: a buffer owns its memory, and gives out references to it only as it is borrowed itself.
unsafe impl Send for Buffer {}
// SAFETY: the same.
unsafe impl Sync for Buffer {}

impl Buffer {
    fn new(capacity: usize) -> Buffer {
        let layout = Buffer::layout(capacity);
        // SAFETY: the layout is not empty. What was just allocated is as large as the layout. Zeros are a valid f32 in
        // every place, so the buffer may always be lent out as a slice.
        let start = unsafe {
            let start = alloc(layout);
            if start.is_null() {
                handle_alloc_error(layout);
            }
            // Before it is touched for the first time.
            ask_for_large_pages_at(start as usize..start as usize + layout.size());
            start.write_bytes(0, layout.size());
            start
        };
        Buffer { start: NonNull::new(start.cast()).expect("not null"), capacity }
    }

    fn layout(capacity: usize) -> Layout {
        let layout = Layout::array::<f32>(capacity.max(1)).expect("a size that can be addressed");
        let alignment = if layout.size() >= LARGE_PAGE { LARGE_PAGE } else { ALIGNMENT };
        layout.align_to(alignment).expect("a size that can be addressed")
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with the same layout.
        unsafe { dealloc(self.start.as_ptr().cast(), Buffer::layout(self.capacity)) }
    }
}

/// A lent buffer; it goes back to its thread's store when dropped.
pub(super) struct Workspace {
    buffer: Option<Buffer>,
    length: usize,
}

impl Workspace {
    /// Room for that many numbers, whatever they are.
    pub(super) fn take(length: usize) -> Workspace {
        let found = FREE.with_borrow_mut(|free| {
            // The smallest that is large enough.
            let fits = free.iter().enumerate().filter(|(_, b)| b.capacity >= length).min_by_key(|(_, b)| b.capacity);
            fits.map(|(index, _)| index).map(|index| free.swap_remove(index))
        });
        #[cfg(test)]
        peak::taken(length);
        Workspace { buffer: Some(found.unwrap_or_else(|| Buffer::new(length))), length }
    }

    fn buffer(&self) -> &Buffer {
        self.buffer.as_ref().expect("there until dropped")
    }
}

impl Deref for Workspace {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        // SAFETY: the buffer holds at least `length` valid numbers and is ours alone.
        unsafe { std::slice::from_raw_parts(self.buffer().start.as_ptr(), self.length) }
    }
}

impl DerefMut for Workspace {
    fn deref_mut(&mut self) -> &mut [f32] {
        // SAFETY: as above, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.buffer().start.as_ptr(), self.length) }
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        let Some(buffer) = self.buffer.take() else { return };
        #[cfg(test)]
        peak::returned(self.length);
        // At the end of a thread the store may be gone already; then the buffer is simply freed.
        let _ = FREE.try_with(|free| {
            let mut free = free.borrow_mut();
            free.push(buffer);
            if free.len() > KEPT {
                let smallest = free.iter().enumerate().min_by_key(|(_, b)| b.capacity).map(|(index, _)| index);
                smallest.map(|index| free.swap_remove(index));
            }
        });
    }
}

/// Bytes of a result from which on large pages are asked for.
const LARGE_RESULT: usize = 4 << 20;
/// Bytes of a large page; where it is another number the system finds its own within these bounds.
const LARGE_PAGE: usize = 2 << 20;

/// Asks the system for large pages behind a large result. Results often are new memory, and a page that is touched for
/// the first time costs more than a page's worth of many computations: 58 MB took 43 ms to touch in pages of 4 KiB
/// and 16 ms in pages of 2 MiB. A hint: nothing changes where the pages are there, or the system gives none.
pub(super) fn ask_for_large_pages(result: &mut [f32]) {
    if std::mem::size_of_val(result) >= LARGE_RESULT {
        let bytes = result.as_mut_ptr_range();
        // SAFETY: the result is ours.
        unsafe { ask_for_large_pages_at(bytes.start as usize..bytes.end as usize) };
    }
}

/// Asks for large pages at these addresses.
///
/// # Safety
/// They are memory of the caller's.
unsafe fn ask_for_large_pages_at(bytes: Range<usize>) {
    #[cfg(target_os = "linux")]
    {
        let begin = bytes.start.next_multiple_of(LARGE_PAGE);
        let end = bytes.end / LARGE_PAGE * LARGE_PAGE;
        if begin < end {
            // SAFETY: whole pages of the caller's; their contents stay as they are.
            unsafe { libc::madvise(begin as *mut libc::c_void, end - begin, libc::MADV_HUGEPAGE) };
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = bytes;
}

/// A pointer that threads share: each writes to separate places.
#[derive(Clone, Copy)]
pub(super) struct Shared(pub *mut f32);

// SAFETY: whoever dereferences the pointer answers for writing where no other thread reads or writes; the drivers give
// every unit its own part of the result.
unsafe impl Send for Shared {}
// SAFETY: the same.
unsafe impl Sync for Shared {}

impl Shared {
    /// The pointer. A method, so that closures capture the whole and not the bare field.
    pub(super) fn get(self) -> *mut f32 {
        self.0
    }
}

/// How much was lent out at once on this thread: for the test of its bound.
#[cfg(test)]
pub(super) mod peak {
    use std::cell::Cell;

    thread_local! {
        static NOW_AND_MOST: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
    }

    pub(crate) fn taken(length: usize) {
        let (now, most) = NOW_AND_MOST.get();
        NOW_AND_MOST.set((now + length, most.max(now + length)));
    }

    pub(crate) fn returned(length: usize) {
        let (now, most) = NOW_AND_MOST.get();
        // What another thread took may be dropped here.
        NOW_AND_MOST.set((now.saturating_sub(length), most));
    }

    pub(crate) fn reset() {
        NOW_AND_MOST.set((0, 0));
    }

    pub(crate) fn numbers() -> usize {
        NOW_AND_MOST.get().1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_reused_and_aligned() {
        let first = Workspace::take(1000);
        let address = first.as_ptr();
        assert_eq!(address as usize % ALIGNMENT, 0);
        drop(first);
        let again = Workspace::take(900);
        assert_eq!(again.as_ptr(), address);
        assert_eq!(again.len(), 900);
        assert_ne!(Workspace::take(10).as_ptr(), address);
    }
}
