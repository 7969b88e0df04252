//! Memory: a process's allocations on its cards, and each card's page table.
//!
//! Video memory, memory of the driver and doorbells are in one sparse file without a name (the *store*). A descriptor of
//! the card is a descriptor of this file, so that mapping it needs no help. The card looks at its memory through a
//! separate mapping, because the runtime maps private video memory without any access.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use unhang_emulator::HostRegion;

use super::abi::{MEMORY_DOORBELL, MEMORY_REGISTERS, MEMORY_SYSTEM, MEMORY_USER, MEMORY_VIDEO, MEMORY_WRITABLE};
use crate::Errno;

/// Pages of the card and of the processor.
pub(crate) const PAGE: u64 = 4096;
/// The sparse file's size: more than a process can map.
const STORE: i64 = 1 << 46;
/// A card's page of doorbells.
pub(crate) const DOORBELLS: u64 = 8192;
/// Pages of doorbells begin at multiples of this in the store: libhsakmt takes the lower half of the offset that a new
/// queue gets for the doorbell's place in the page.
const DOORBELL_STEP: u64 = 1 << 32;
/// Alignment of ranges in the store, so that large pages line up.
const STEP: u64 = 2 << 20;

/// A range of this process's memory that stays mapped while somebody holds it.
#[derive(Debug)]
pub(crate) struct Stretch {
    host: *mut u8,
    size: u64,
    /// Its offset in the store, and the store; nothing for memory of the program.
    backing: Option<(u64, Arc<OwnedFd>)>,
}

// SAFETY: a stretch is an address and a size; what is there is accessed through raw pointers and atomics only.
unsafe impl Send for Stretch {}
// SAFETY: as above.
unsafe impl Sync for Stretch {}

impl Stretch {
    /// Its address in this process.
    pub(crate) fn host(&self) -> *mut u8 {
        self.host
    }

    /// Bytes.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }
}

impl Drop for Stretch {
    fn drop(&mut self) {
        if let Some((offset, store)) = &self.backing {
            // SAFETY: the mapping was made for this stretch alone and nobody holds it any more; the hole is its part of
            // the store.
            unsafe {
                libc::munmap(self.host.cast(), self.size as usize);
                let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                libc::fallocate(store.as_raw_fd(), mode, *offset as i64, self.size as i64);
            }
        }
    }
}

/// Memory that a card sees at an address.
#[derive(Clone, Debug)]
pub(crate) struct Mapping {
    /// Bytes.
    pub size: u64,
    /// Whether the card may write.
    pub writable: bool,
    /// What is there.
    pub stretch: Arc<Stretch>,
}

/// A card's page table. Cheap to clone: a packet is processed with the table as it was at its start.
#[derive(Clone, Default)]
pub(crate) struct PageTable {
    mappings: Arc<BTreeMap<u64, Mapping>>,
    /// These mappings, for the emulator.
    emulated: unhang_emulator::Memory,
}

/// Why the card cannot access an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AccessFault {
    /// The first byte that cannot be accessed.
    pub address: u64,
    /// Whether it exists but is read-only.
    pub is_read_only: bool,
}

impl PageTable {
    /// The address of `size` bytes in this process, if one mapping holds them all.
    pub(crate) fn host(&self, address: u64, size: u64, writes: bool) -> Result<*mut u8, AccessFault> {
        let missing = |address| AccessFault { address, is_read_only: false };
        let (&base, mapping) = self.mappings.range(..=address).next_back().ok_or(missing(address))?;
        let offset = address - base;
        if offset >= mapping.size {
            return Err(missing(address));
        }
        if size > mapping.size - offset {
            return Err(missing(base + mapping.size));
        }
        if writes && !mapping.writable {
            return Err(AccessFault { address, is_read_only: true });
        }
        Ok(mapping.stretch.host.wrapping_add(offset as usize))
    }

    /// How many bytes from an address on are in one mapping.
    pub(crate) fn reach(&self, address: u64) -> u64 {
        match self.mappings.range(..=address).next_back() {
            Some((base, mapping)) => (base + mapping.size).saturating_sub(address),
            None => 0,
        }
    }

    /// What kernels see.
    pub(crate) fn emulated(&self) -> &unhang_emulator::Memory {
        &self.emulated
    }

    fn insert(&mut self, address: u64, mapping: Mapping) {
        let region = HostRegion {
            address,
            size: mapping.size,
            host: mapping.stretch.host,
            writable: mapping.writable,
            keep: mapping.stretch.clone(),
        };
        // SAFETY: the stretch stays mapped while it is held. The program's own memory stays mapped as long as the
        // program leaves it so, which it has promised the driver by registering it. No Rust reference to either exists.
        unsafe { self.emulated.map_host(region) };
        Arc::make_mut(&mut self.mappings).insert(address, mapping);
    }

    fn remove(&mut self, address: u64) {
        self.emulated.unmap_host(address);
        Arc::make_mut(&mut self.mappings).remove(&address);
    }
}

#[derive(Debug)]
struct Allocation {
    address: u64,
    size: u64,
    flags: u32,
    card: usize,
    stretch: Arc<Stretch>,
    mapped: Vec<usize>,
}

#[derive(Default)]
struct CardMemory {
    allocations: HashMap<u64, Allocation>,
    tables: Vec<PageTable>,
    next_handle: u64,
    next_offset: u64,
    video_used: Vec<u64>,
    system_used: u64,
}

/// The memory of a process.
pub(crate) struct Memory {
    store: Arc<OwnedFd>,
    state: Mutex<CardMemory>,
    doorbells: Vec<(u64, Arc<Stretch>)>,
    video: Vec<u64>,
    system: u64,
}

/// A request for an allocation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    /// Where the card will see it.
    pub address: u64,
    /// Bytes.
    pub size: u64,
    /// The driver's flags.
    pub flags: u32,
    /// The index of the card that owns it.
    pub card: usize,
    /// The program's own memory, for user pointers.
    pub user: u64,
}

impl Memory {
    /// The memory of a process on cards of these sizes.
    pub(crate) fn new(video: Vec<u64>) -> Result<Memory, Errno> {
        // SAFETY: the name is a C string; the descriptor is new and owned from here on.
        let store = unsafe {
            let store = libc::memfd_create(c"unhang-card".as_ptr(), libc::MFD_CLOEXEC);
            if store < 0 || libc::ftruncate(store, STORE) != 0 {
                return Err(libc::ENOMEM);
            }
            Arc::new(OwnedFd::from_raw_fd(store))
        };
        let mut doorbells = Vec::new();
        for card in 1..=video.len() as u64 {
            let offset = card * DOORBELL_STEP;
            doorbells.push((offset, Arc::new(stretch_of(&store, offset, DOORBELLS)?)));
        }
        let next_offset = (video.len() as u64 + 1) * DOORBELL_STEP;
        let mut state = CardMemory { next_handle: 1, next_offset, ..CardMemory::default() };
        state.tables.resize_with(video.len(), PageTable::default);
        state.video_used.resize(video.len(), 0);
        Ok(Memory { store, state: Mutex::new(state), doorbells, video, system: system_limit() })
    }

    fn lock(&self) -> MutexGuard<'_, CardMemory> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The store's descriptor.
    pub(crate) fn store(&self) -> RawFd {
        self.store.as_raw_fd()
    }

    /// A card's page of doorbells: its offset for mapping, and where it is here.
    pub(crate) fn doorbells(&self, card: usize) -> &(u64, Arc<Stretch>) {
        &self.doorbells[card]
    }

    /// What a card sees now.
    pub(crate) fn table(&self, card: usize) -> PageTable {
        self.lock().tables[card].clone()
    }

    /// Free video memory in bytes.
    pub(crate) fn available(&self, card: usize) -> u64 {
        self.video[card].saturating_sub(self.lock().video_used[card])
    }

    /// Allocates, and returns a handle and the offset at which it can be mapped.
    pub(crate) fn allocate(&self, request: Request) -> Result<(u64, u64), Errno> {
        let Request { address, size, flags, card, user } = request;
        if size == 0 || size > 1 << 47 || !address.is_multiple_of(PAGE) {
            return Err(libc::EINVAL);
        }
        let mut state = self.lock();
        let rounded = size.next_multiple_of(PAGE);
        let (stretch, offset) = if flags & MEMORY_USER != 0 {
            if !user.is_multiple_of(PAGE) {
                return Err(libc::EINVAL);
            }
            if !is_mapped(user, rounded) {
                return Err(libc::EFAULT);
            }
            (Arc::new(Stretch { host: user as *mut u8, size: rounded, backing: None }), user)
        } else if flags & MEMORY_DOORBELL != 0 {
            if size != DOORBELLS {
                return Err(libc::EINVAL);
            }
            let (offset, stretch) = &self.doorbells[card];
            (stretch.clone(), *offset)
        } else {
            let kind = flags & (MEMORY_VIDEO | MEMORY_SYSTEM | MEMORY_REGISTERS);
            let (used, limit) = match kind {
                MEMORY_VIDEO => (state.video_used[card], self.video[card]),
                MEMORY_SYSTEM => (state.system_used, self.system),
                MEMORY_REGISTERS if size == PAGE => (0, u64::MAX),
                _ => return Err(libc::EINVAL),
            };
            if rounded > limit.saturating_sub(used) {
                return Err(libc::ENOMEM);
            }
            let offset = state.take_offset(rounded)?;
            let stretch = Arc::new(stretch_of(&self.store, offset, rounded)?);
            match kind {
                MEMORY_VIDEO => state.video_used[card] += rounded,
                MEMORY_SYSTEM => state.system_used += rounded,
                _ => {}
            }
            (stretch, offset)
        };
        let handle = state.next_handle;
        state.next_handle += 1;
        let allocation = Allocation { address, size: rounded, flags, card, stretch, mapped: Vec::new() };
        state.allocations.insert(handle, allocation);
        Ok((handle, offset))
    }

    /// An allocation of the store as memory of this process.
    pub(crate) fn stretch(&self, handle: u64) -> Option<Arc<Stretch>> {
        let state = self.lock();
        state.allocations.get(&handle).map(|allocation| allocation.stretch.clone()).filter(|it| it.backing.is_some())
    }

    /// Frees an allocation; one that a card still maps cannot be freed.
    pub(crate) fn free(&self, handle: u64) -> Result<(), Errno> {
        let mut state = self.lock();
        let allocation = state.allocations.get(&handle).ok_or(libc::EINVAL)?;
        if !allocation.mapped.is_empty() {
            return Err(libc::EBUSY);
        }
        let Some(allocation) = state.allocations.remove(&handle) else { return Err(libc::EINVAL) };
        match allocation.flags & (MEMORY_VIDEO | MEMORY_SYSTEM) {
            MEMORY_VIDEO => state.video_used[allocation.card] -= allocation.size,
            MEMORY_SYSTEM => state.system_used -= allocation.size,
            _ => {}
        }
        Ok(())
    }

    /// Maps an allocation on a card. Video memory of another card is refused: the topology has no link for it.
    pub(crate) fn map(&self, handle: u64, card: usize) -> Result<(), Errno> {
        let mut state = self.lock();
        let allocation = state.allocations.get_mut(&handle).ok_or(libc::EINVAL)?;
        let is_own = allocation.flags & (MEMORY_VIDEO | MEMORY_DOORBELL | MEMORY_REGISTERS) != 0;
        if is_own && allocation.card != card {
            return Err(libc::EINVAL);
        }
        if allocation.mapped.contains(&card) {
            return Ok(());
        }
        allocation.mapped.push(card);
        let writable = allocation.flags & MEMORY_WRITABLE != 0;
        let mapping = Mapping { size: allocation.size, writable, stretch: allocation.stretch.clone() };
        let address = allocation.address;
        state.tables[card].insert(address, mapping);
        Ok(())
    }

    /// Unmaps an allocation from a card.
    pub(crate) fn unmap(&self, handle: u64, card: usize) -> Result<(), Errno> {
        let mut state = self.lock();
        let allocation = state.allocations.get_mut(&handle).ok_or(libc::EINVAL)?;
        if let Some(place) = allocation.mapped.iter().position(|mapped| *mapped == card) {
            allocation.mapped.remove(place);
            let address = allocation.address;
            state.tables[card].remove(address);
        }
        Ok(())
    }
}

impl CardMemory {
    /// An unused range of the store: the file is sparse, and there is plenty of room.
    fn take_offset(&mut self, size: u64) -> Result<u64, Errno> {
        let offset = self.next_offset;
        let end = offset + size.next_multiple_of(STEP);
        if end > STORE as u64 {
            return Err(libc::ENOMEM);
        }
        self.next_offset = end;
        Ok(offset)
    }
}

fn stretch_of(store: &Arc<OwnedFd>, offset: u64, size: u64) -> Result<Stretch, Errno> {
    // SAFETY: a new shared mapping at an address of the system's choice. A child must not inherit it: its card is another.
    let host = unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        let host = libc::mmap(std::ptr::null_mut(), size as usize, protection, flags, store.as_raw_fd(), offset as i64);
        if host == libc::MAP_FAILED {
            return Err(libc::ENOMEM);
        }
        libc::madvise(host, size as usize, libc::MADV_DONTFORK);
        host.cast()
    };
    Ok(Stretch { host, size, backing: Some((offset, store.clone())) })
}

/// Whether every page of a range of this process is mapped.
pub(crate) fn is_mapped(address: u64, size: u64) -> bool {
    const PAGES: u64 = 4096;
    let mut states = [0u8; PAGES as usize];
    let (mut at, end) = (address, address.saturating_add(size));
    while at < end {
        let length = (end - at).min(PAGES * PAGE);
        // SAFETY: the vector has a byte for each page that is asked about; nothing is read at the address.
        if unsafe { libc::mincore(at as *mut libc::c_void, length as usize, states.as_mut_ptr().cast()) } != 0 {
            return false;
        }
        at += length;
    }
    true
}

/// How much of the processor's memory the driver gives to its cards: fifteen sixteenths, as Linux does.
fn system_limit() -> u64 {
    // SAFETY: `sysconf` only reads.
    let (pages, size) = unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    (pages.max(0) as u64).saturating_mul(size.max(0) as u64) / 16 * 15
}

#[cfg(test)]
mod tests {
    use super::*;

    fn video(size: u64) -> Request {
        Request { address: 0x1000_0000, size, flags: MEMORY_VIDEO | MEMORY_WRITABLE, card: 0, user: 0 }
    }

    #[test]
    fn memory_ends_at_the_cards_size_and_comes_back() {
        let memory = Memory::new(vec![1 << 20]).unwrap();
        let (handle, _) = memory.allocate(video(0xff000)).unwrap();
        assert_eq!(memory.available(0), PAGE);
        assert_eq!(memory.allocate(video(2 * PAGE)).unwrap_err(), libc::ENOMEM);
        memory.free(handle).unwrap();
        assert_eq!(memory.free(handle), Err(libc::EINVAL));
        assert_eq!(memory.available(0), 1 << 20);
        assert!(memory.allocate(video(1 << 20)).is_ok());
    }

    #[test]
    fn a_card_sees_what_is_mapped_for_it_to_the_byte() {
        let memory = Memory::new(vec![1 << 20, 1 << 20]).unwrap();
        let (handle, _) = memory.allocate(video(2 * PAGE)).unwrap();
        let missing = |address| Err(AccessFault { address, is_read_only: false });
        assert_eq!(memory.table(0).host(0x1000_0000, 4, true).map(drop), missing(0x1000_0000));
        memory.map(handle, 0).unwrap();
        let table = memory.table(0);
        assert!(table.host(0x1000_1ffc, 4, true).is_ok());
        assert_eq!(table.host(0x1000_1ffd, 4, true).map(drop), missing(0x1000_2000));
        assert_eq!(table.host(0x0fff_ffff, 4, true).map(drop), missing(0x0fff_ffff));
        assert_eq!(table.reach(0x1000_1000), PAGE);
        assert_eq!(memory.map(handle, 1), Err(libc::EINVAL), "another card's video memory");
        assert_eq!(memory.free(handle), Err(libc::EBUSY));
        memory.unmap(handle, 0).unwrap();
        memory.free(handle).unwrap();
        // A packet that started before keeps its view.
        assert!(table.host(0x1000_0000, 4, true).is_ok());
        assert!(memory.table(0).host(0x1000_0000, 4, true).is_err());
    }

    #[test]
    fn the_programs_memory_must_be_there_and_may_be_read_only() {
        let memory = Memory::new(vec![1 << 20]).unwrap();
        let page = vec![0u8; 3 * PAGE as usize];
        let user = (page.as_ptr() as u64).next_multiple_of(PAGE);
        let request =
            |user, flags| Request { address: 0x2000_0000, size: PAGE, flags: MEMORY_USER | flags, card: 0, user };
        assert_eq!(memory.allocate(request(1 << 46, 0)).unwrap_err(), libc::EFAULT);
        assert_eq!(memory.allocate(request(user + 1, 0)).unwrap_err(), libc::EINVAL);
        let (handle, _) = memory.allocate(request(user, 0)).unwrap();
        memory.map(handle, 0).unwrap();
        assert!(memory.table(0).host(0x2000_0000, 8, false).is_ok());
        let fault = AccessFault { address: 0x2000_0000, is_read_only: true };
        assert_eq!(memory.table(0).host(0x2000_0000, 8, true).map(drop), Err(fault));
    }
}
