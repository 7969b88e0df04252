//! What is known of repeated calls: by everything that a plan depends on, how to compute them without Python.

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, RwLock};

use super::step::{Backward, Forward};
use super::tensors::Tensor;
use crate::forking::undisturbed;
use crate::layers;

/// A program that sees ever new sizes must not fill its memory with them.
const MOST: usize = 10_000;
/// The words of the longest key: three tensors of five dimensions, and the geometry.
const WORDS: usize = 80;

/// The device types whose convolutions come here.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Device {
    Cpu = 0,
    Cuda = 1,
}

impl Device {
    /// By torch's name.
    pub fn named(name: &str) -> Option<Device> {
        match name {
            "cpu" => Some(Device::Cpu),
            "cuda" => Some(Device::Cuda),
            _ => None,
        }
    }
}

/// How a call that is known is computed.
#[derive(Clone)]
pub enum Known {
    Forward(Arc<Forward>),
    Backward(Arc<Backward>),
}

/// Everything that a plan depends on: settings, sizes, strides, types, devices, geometry.
pub struct Key {
    words: [i64; WORDS],
    length: usize,
}

impl Key {
    /// For a kind of call by settings of that number.
    pub fn new(kind: u8, settings: u32) -> Key {
        let mut words = [0; WORDS];
        words[0] = i64::from(settings) << 8 | i64::from(kind);
        Key { words, length: 1 }
    }

    /// Adds numbers; none where they are too many.
    pub fn add(&mut self, numbers: &[i64]) -> Option<()> {
        let end = self.length + numbers.len();
        self.words.get_mut(self.length..end)?.copy_from_slice(numbers);
        self.length = end;
        Some(())
    }

    /// Adds what a plan depends on of a tensor; none for a tensor that has no strides.
    pub fn add_tensor(&mut self, tensor: &Tensor<'_>) -> Option<()> {
        let (sizes, strides) = tensor.shape()?;
        let place = tensor.place()?;
        let where_ = i64::from(place.device_type) << 32 | i64::from(place.device_index) & 0xffff_ffff;
        self.add(&[sizes.len() as i64, i64::from(place.data_type), where_])?;
        self.add(sizes)?;
        self.add(strides)
    }

    /// Adds numbers with how many they are.
    pub fn add_list(&mut self, numbers: &[i64]) -> Option<()> {
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
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

type Table = HashMap<Box<[i64]>, Known, BuildHasherDefault<Quick>>;

static TABLE: LazyLock<RwLock<Table>> = LazyLock::new(RwLock::default);
/// How often the table was cleared: what was planned before is not remembered after.
static GENERATION: AtomicU64 = AtomicU64::new(0);

/// A call that is being computed by Python, for the first time or because something about it is unusual.
struct Waiting {
    key: Box<[i64]>,
    generation: u64,
}

thread_local! {
    static WAITING: RefCell<Option<Waiting>> = const { RefCell::new(None) };
}

/// How a call is computed, if it is known.
pub fn look_up(key: &Key) -> Option<Known> {
    undisturbed(|| TABLE.read().unwrap_or_else(PoisonError::into_inner).get(key.as_slice()).cloned())
}

/// The state of the table, to be read before what a key is made of: what changes afterwards makes the call one of before.
pub fn generation() -> u64 {
    GENERATION.load(Relaxed)
}

/// Forgets everything: evidence or circumstances have changed.
pub fn clear() {
    let forgotten = undisturbed(|| {
        GENERATION.fetch_add(1, Relaxed);
        std::mem::take(&mut *TABLE.write().unwrap_or_else(PoisonError::into_inner))
    });
    drop(forgotten);
}

/// How many calls are known.
pub fn len() -> usize {
    undisturbed(|| TABLE.read().unwrap_or_else(PoisonError::into_inner).len())
}

/// While it lives, what Python computes in this thread may be remembered under the key; then what waited before waits
/// again. Without a key nothing is remembered.
pub struct Miss(Option<Waiting>);

impl Miss {
    /// `generation` is what [`generation`] gave before the settings in the key were read.
    pub fn of(key: Option<&Key>, generation: u64) -> Miss {
        let waiting = key.map(|key| Waiting { key: key.as_slice().into(), generation });
        Miss(WAITING.replace(waiting))
    }
}

impl Drop for Miss {
    fn drop(&mut self) {
        WAITING.set(self.0.take());
    }
}

/// Whether a call waits in this thread for somebody to say how it is computed.
pub fn is_waiting() -> bool {
    WAITING.with_borrow(Option::is_some)
}

/// Remembers how the call that this thread computes is computed.
pub fn remember(known: Known) {
    let Some(Waiting { key, generation }) = WAITING.take() else { return };
    let forgotten = undisturbed(|| {
        let mut table = TABLE.write().unwrap_or_else(PoisonError::into_inner);
        if GENERATION.load(Relaxed) != generation {
            return None;
        }
        let full = if table.len() >= MOST { Some(std::mem::take(&mut *table)) } else { None };
        table.insert(key, known);
        full
    });
    drop(forgotten);
}

/// The number of the settings that plan the convolutions of each device type; 0 leaves them to torch.
static ACTIVE: [AtomicU32; 2] = [AtomicU32::new(0), AtomicU32::new(0)];

/// By the address of a weight: the number of the settings of the layer that computed with it last. Backward runs on
/// autograd's own threads, where no thread-local would reach, and gets the very tensor that the forward had.
static BY_WEIGHT: LazyLock<Mutex<HashMap<u64, u32>>> = LazyLock::new(Mutex::default);
static WEIGHTS: AtomicUsize = AtomicUsize::new(0);

/// Has the settings of that number plan the convolutions of a device type.
pub fn activate(device: Device, settings: u32) {
    ACTIVE[device as usize].store(settings, Relaxed);
}

fn with_weights<Found>(section: impl FnOnce(&mut HashMap<u64, u32>) -> Found) -> Found {
    undisturbed(|| {
        let mut weights = BY_WEIGHT.lock().unwrap_or_else(PoisonError::into_inner);
        let found = section(&mut weights);
        WEIGHTS.store(weights.len(), Relaxed);
        found
    })
}

/// What plans a forward: the layer's settings where it has some, or the process's.
pub fn forward_settings(device: Device, weight: u64) -> u32 {
    let own = layers::current_settings();
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
    ACTIVE[device as usize].load(Relaxed)
}

/// What plans a backward: what planned the forward with this weight, or the process's settings.
pub fn backward_settings(device: Device, weight: u64) -> u32 {
    let own = if WEIGHTS.load(Relaxed) > 0 { with_weights(|weights| weights.get(&weight).copied()) } else { None };
    own.unwrap_or_else(|| ACTIVE[device as usize].load(Relaxed))
}
