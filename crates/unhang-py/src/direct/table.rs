//! What is known of repeated calls: by everything that a plan depends on, how to compute them without Python.

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

/// A program that sees ever new sizes must not fill its memory with them.
const MOST: usize = 10_000;
/// 2^64 by the golden ratio: multiples of it are spread evenly.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
/// The words of the longest key: three tensors of five dimensions, and the geometry.
const WORDS: usize = 80;

/// The device types whose convolutions come here.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Device {
    Cpu = 0,
    Cuda = 1,
}

impl Device {
    /// By torch's name.
    pub(super) fn named(name: &str) -> Option<Device> {
        match name {
            "cpu" => Some(Device::Cpu),
            "cuda" => Some(Device::Cuda),
            _ => None,
        }
    }
}

/// How a call that is known is computed.
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
    /// For a kind of call by settings of that number.
    pub(super) fn new(kind: u8, settings: u32) -> Key {
        let mut words = [0; WORDS];
        words[0] = i64::from(settings) << 8 | i64::from(kind);
        Key { words, length: 1 }
    }

    /// Adds numbers; `None` if they are too many.
    pub(super) fn add(&mut self, numbers: &[i64]) -> Option<()> {
        let end = self.length + numbers.len();
        self.words.get_mut(self.length..end)?.copy_from_slice(numbers);
        self.length = end;
        Some(())
    }

    /// Adds what a plan depends on of a tensor.
    pub(super) fn add_tensor(&mut self, tensor: &Described<'_, '_>) -> Option<()> {
        let Described { sizes, strides, place, .. } = *tensor;
        let where_ = i64::from(place.device_type) << 32 | i64::from(place.device_index) & 0xffff_ffff;
        self.add(&[sizes.len() as i64, i64::from(place.data_type), where_])?;
        self.add(sizes)?;
        self.add(strides)
    }

    /// Adds numbers with how many they are.
    pub(super) fn add_list(&mut self, numbers: &[i64]) -> Option<()> {
        self.add(&[numbers.len() as i64])?;
        self.add(numbers)
    }

    fn as_slice(&self) -> &[i64] {
        &self.words[..self.length]
    }
}

/// Multiplies and rotates. Keys come from the user's own model, so that nobody gains by making them collide, and the standard
/// hash would be most of a look-up's time.
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

/// The calls that are known, as many as [`MOST`].
#[derive(Default)]
struct Table {
    known: HashMap<Arc<[i64]>, Known, BuildHasherDefault<Quick>>,
    /// Every key once, so that one can be picked.
    keys: Vec<Arc<[i64]>>,
    evictions: u64,
}

impl Table {
    /// Keeps how a call is computed; returns what that replaces, to be dropped by whoever holds no lock. A full table loses one entry
    /// by a spread of its places: in the order of their arrival every call of a program that goes round and round over a few
    /// more sizes than fit would be lost right before it returns.
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
/// How often the table was cleared: what was planned before is not remembered after.
static GENERATION: AtomicU64 = AtomicU64::new(0);

/// The right to say how one call is computed from now on. Torch's call makes it, the kernel of Python's that computes that very call
/// takes it, and no other convolution that is computed meanwhile has one.
pub(super) struct Ticket {
    key: Box<[i64]>,
    generation: u64,
}

thread_local! {
    static WAITING: RefCell<Option<Ticket>> = const { RefCell::new(None) };
}

/// How a call is computed, if it is known.
pub(super) fn look_up(key: &Key) -> Option<Known> {
    undisturbed(|| TABLE.read().unwrap_or_else(PoisonError::into_inner).known.get(key.as_slice()).cloned())
}

/// The state of the table, to be read before what a key is made of: what changes afterwards makes the call one of before.
pub(super) fn generation() -> u64 {
    GENERATION.load(Relaxed)
}

/// Forgets everything: evidence or circumstances have changed.
pub(super) fn clear() {
    let forgotten = undisturbed(|| {
        GENERATION.fetch_add(1, Relaxed);
        std::mem::take(&mut *TABLE.write().unwrap_or_else(PoisonError::into_inner))
    });
    drop(forgotten);
}

/// How many calls are known.
pub(super) fn len() -> usize {
    undisturbed(|| TABLE.read().unwrap_or_else(PoisonError::into_inner).known.len())
}

/// A call on its way to Python's kernel, which finds the ticket for its key; then what waited before waits again. Without a key there
/// is no ticket.
pub(super) struct Miss(Option<Ticket>);

impl Miss {
    /// `generation` is what [`generation`] gave before the settings in the key were read.
    pub(super) fn of(key: Option<&Key>, generation: u64) -> Miss {
        Miss(WAITING.replace(key.map(|key| Ticket { key: key.as_slice().into(), generation })))
    }
}

impl Drop for Miss {
    fn drop(&mut self) {
        WAITING.set(self.0.take());
    }
}

/// The ticket of the call that this thread was just handed, once: Python's kernel asks before anything else.
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

/// The number of the settings that plan the convolutions of each device type; 0 leaves them to torch.
static ACTIVE: [AtomicU32; 2] = [AtomicU32::new(0), AtomicU32::new(0)];

/// For a torch that does not tell which node of a graph a thread evaluates (before 2.1). By the address of a weight: the number of
/// the settings of the layer that computed with it last. Most backwards get the very tensor that the forward had.
static BY_WEIGHT: LazyLock<Mutex<HashMap<u64, u32>>> = LazyLock::new(Mutex::default);
static WEIGHTS: AtomicUsize = AtomicUsize::new(0);

/// Has the settings of that number plan the convolutions of a device type.
pub(super) fn activate(device: Device, settings: u32) {
    ACTIVE[device as usize].store(settings, Relaxed);
}

/// What plans where nothing else is said: the block that the thread is in, or the process.
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

/// What plans a forward: the settings of the layer that the thread is in, those in the graph where the forward is part of a
/// gradient's gradient, the thread's block's, or the process's.
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

/// What plans a backward: the settings in the graph, the thread's block's, or the process's.
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
