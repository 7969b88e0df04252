//! How to compute repeated calls without Python, looked up by everything that a plan depends on.

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, RwLock};

use super::step::{Backward, Forward};
use super::tensors::Described;
use super::{block, graph};
use crate::forking::undisturbed;
use crate::layers;

/// A program with ever new sizes must not fill its memory with them.
const MOST: usize = 10_000;
/// 2^64 divided by the golden ratio: its multiples are spread evenly.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
/// The words of the longest key: three tensors of five dimensions, and the geometry.
const WORDS: usize = 80;

/// The device types whose convolutions arrive here.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Device {
    Cpu = 0,
    Cuda = 1,
}

impl Device {
    /// Finds a device type by torch's name.
    pub(super) fn named(name: &str) -> Option<Device> {
        match name {
            "cpu" => Some(Device::Cpu),
            "cuda" => Some(Device::Cuda),
            _ => None,
        }
    }
}

/// How a known call is computed.
#[derive(Clone)]
pub(super) enum Known {
    Forward(Arc<Forward>),
    Backward(Arc<Backward>),
}

/// Everything that a plan depends on: settings, sizes, strides, types, devices, geometry.
pub(super) struct Key {
    words: [i64; WORDS],
    length: usize,
}

impl Key {
    /// A key for a kind of call with the settings of that number.
    pub(super) fn new(kind: u8, settings: u32) -> Key {
        let mut words = [0; WORDS];
        words[0] = i64::from(settings) << 8 | i64::from(kind);
        Key { words, length: 1 }
    }

    /// Adds numbers; `None` if there are too many.
    pub(super) fn add(&mut self, numbers: &[i64]) -> Option<()> {
        let end = self.length + numbers.len();
        self.words.get_mut(self.length..end)?.copy_from_slice(numbers);
        self.length = end;
        Some(())
    }

    /// Adds everything about a tensor that a plan depends on.
    pub(super) fn add_tensor(&mut self, tensor: &Described<'_, '_>) -> Option<()> {
        let Described { sizes, strides, place, .. } = *tensor;
        let where_ = i64::from(place.device_type) << 32 | i64::from(place.device_index) & 0xffff_ffff;
        self.add(&[sizes.len() as i64, i64::from(place.data_type), where_])?;
        self.add(sizes)?;
        self.add(strides)
    }

    /// Adds numbers after their count.
    pub(super) fn add_list(&mut self, numbers: &[i64]) -> Option<()> {
        self.add(&[numbers.len() as i64])?;
        self.add(numbers)
    }

    fn as_slice(&self) -> &[i64] {
        &self.words[..self.length]
    }
}

/// Multiplies and rotates. Keys come from the user's own model, so nobody gains by making them collide. The standard
/// hash would take most of a look-up's time.
#[derive(Default)]
struct Quick(u64);

impl Hasher for Quick {
    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(SPREAD);
    }
}

/// The known calls, at most [`MOST`].
#[derive(Default)]
struct Table {
    known: HashMap<Arc<[i64]>, Known, BuildHasherDefault<Quick>>,
    /// Every key once, so that one can be chosen for eviction.
    keys: Vec<Arc<[i64]>>,
    evictions: u64,
}

impl Table {
    /// Keeps how a call is computed. Returns what it replaces, so that the caller can drop it without a lock. A full
    /// table evicts an entry at evenly spread positions. In order of arrival, a program that cycles through a few more
    /// sizes than fit would lose every call right before it recurs.
    fn keep(&mut self, key: Box<[i64]>, known: Known) -> Option<Known> {
        let key: Arc<[i64]> = key.into();
        if let Some(place) = self.known.get_mut(&key) {
            return Some(std::mem::replace(place, known));
        }
        let mut replaced = None;
        if self.keys.len() < MOST {
            self.keys.push(Arc::clone(&key));
        } else {
            self.evictions += 1;
            let place = (self.evictions.wrapping_mul(SPREAD) >> 32) as usize % self.keys.len();
            let evicted = std::mem::replace(&mut self.keys[place], Arc::clone(&key));
            replaced = self.known.remove(&evicted);
        }
        self.known.insert(key, known);
        replaced
    }
}

static TABLE: LazyLock<RwLock<Table>> = LazyLock::new(RwLock::default);
/// How often the table was cleared. A plan made before is not remembered afterwards.
static GENERATION: AtomicU64 = AtomicU64::new(0);

/// The right to say how one call is computed from now on. Torch's call creates it, and Python's kernel that computes
/// this very call takes it. No other convolution computed meanwhile has one.
pub(super) struct Ticket {
    key: Box<[i64]>,
    generation: u64,
}

thread_local! {
    static WAITING: RefCell<Option<Ticket>> = const { RefCell::new(None) };
}

/// How a call is computed, if known.
pub(super) fn look_up(key: &Key) -> Option<Known> {
    undisturbed(|| TABLE.read().unwrap_or_else(PoisonError::into_inner).known.get(key.as_slice()).cloned())
}

/// The state of the table. Read it before the parts of a key: if they change afterwards, the call counts as an old one.
pub(super) fn generation() -> u64 {
    GENERATION.load(Relaxed)
}

/// Forgets everything, because evidence or circumstances have changed.
pub(super) fn clear() {
    let forgotten = undisturbed(|| {
        GENERATION.fetch_add(1, Relaxed);
        std::mem::take(&mut *TABLE.write().unwrap_or_else(PoisonError::into_inner))
    });
    drop(forgotten);
}

/// The number of known calls.
pub(super) fn len() -> usize {
    undisturbed(|| TABLE.read().unwrap_or_else(PoisonError::into_inner).known.len())
}

/// A call on its way to Python's kernel, which finds the ticket for its key. Dropping this restores the ticket that
/// waited before. Without a key there is no ticket.
pub(super) struct Miss(Option<Ticket>);

impl Miss {
    /// `generation` is the value of [`generation`] from before the settings in the key were read.
    pub(super) fn of(key: Option<&Key>, generation: u64) -> Miss {
        Miss(WAITING.replace(key.map(|key| Ticket { key: key.as_slice().into(), generation })))
    }
}

impl Drop for Miss {
    fn drop(&mut self) {
        WAITING.set(self.0.take());
    }
}

/// The ticket of the call that this thread just received, once: Python's kernel asks before anything else.
pub(super) fn take_ticket() -> Option<Ticket> {
    WAITING.take()
}

/// Remembers how a ticket's call is computed.
pub(super) fn remember(ticket: &Ticket, known: Known) {
    let replaced = undisturbed(|| {
        let mut table = TABLE.write().unwrap_or_else(PoisonError::into_inner);
        if GENERATION.load(Relaxed) != ticket.generation {
            return Some(known);
        }
        table.keep(ticket.key.clone(), known)
    });
    drop(replaced);
}

/// The number of the settings for the convolutions of each device type; 0 leaves them to torch.
static ACTIVE: [AtomicU32; 2] = [AtomicU32::new(0), AtomicU32::new(0)];

/// For a torch that does not say which node of a graph a thread evaluates (before 2.1). By the address of a weight, the
/// number of the settings of the layer that last computed with it. Most backwards get the very tensor that the forward
/// had.
static BY_WEIGHT: LazyLock<Mutex<HashMap<u64, u32>>> = LazyLock::new(Mutex::default);
static WEIGHTS: AtomicUsize = AtomicUsize::new(0);

/// Sets the settings for the convolutions of a device type, by number.
pub(super) fn activate(device: Device, settings: u32) {
    ACTIVE[device as usize].store(settings, Relaxed);
}

/// The default settings: of the block that the thread is in, or of the process.
fn active(device: Device) -> u32 {
    block::settings(device as usize).unwrap_or_else(|| ACTIVE[device as usize].load(Relaxed))
}

fn with_weights<Found>(section: impl FnOnce(&mut HashMap<u64, u32>) -> Found) -> Found {
    undisturbed(|| {
        let mut weights = BY_WEIGHT.lock().unwrap_or_else(PoisonError::into_inner);
        let found = section(&mut weights);
        WEIGHTS.store(weights.len(), Relaxed);
        found
    })
}

/// The settings for a forward, first match: the layer that the thread is in, the graph if the forward is part of a
/// gradient's gradient, the thread's block, the process.
pub(super) fn forward_settings(device: Device, weight: u64) -> u32 {
    let own = layers::current_settings();
    if graph::is_carried() {
        let own = if own == 0 { graph::settings(false) } else { own };
        return if own == 0 { active(device) } else { own };
    }
    let own = if own == 0 { block::settings(device as usize).unwrap_or(0) } else { own };
    if own != 0 {
        with_weights(|weights| {
            if weights.len() >= MOST {
                weights.clear();
            }
            weights.insert(weight, own);
        });
        return own;
    }
    if WEIGHTS.load(Relaxed) > 0 {
        with_weights(|weights| weights.remove(&weight));
    }
    active(device)
}

/// The settings for a backward, first match: the graph, the thread's block, the process.
pub(super) fn backward_settings(device: Device, weight: u64) -> u32 {
    let own = if graph::is_carried() {
        Some(graph::settings(true)).filter(|own| *own != 0)
    } else if WEIGHTS.load(Relaxed) > 0 {
        with_weights(|weights| weights.get(&weight).copied())
    } else {
        None
    };
    own.unwrap_or_else(|| active(device))
}
