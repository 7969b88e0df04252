//! What is in flight: registers that belong to a load until it was waited for.
//!
//! Results are in their registers at once here. To find code that does not wait, each load owns its destination from
//! its issue until a counter says that it has arrived. `vmcnt` counts vector memory, in order. `lgkmcnt` counts LDS and
//! flat accesses, in order, and scalar loads, in any order. Flat loads count in both, and have arrived when `vmcnt`
//! says so. Reading or overwriting a register before that is a fault.
//!
//! Stores own no register: their data is read when they are issued, and on gfx10 LLVM does not wait before such a
//! register is written again. `lgkmcnt` counts stores to LDS and flat ones. `vscnt` counts those to global memory,
//! which matters only to other waves ([`crate::races`]). `expcnt` counts exports and global data share, which compute
//! kernels do not have.

use unhang_isa::{Effects, Field, Format, Instruction, OperandValue, ScalarSet, scalar_name};

use crate::FaultKind;
use crate::access::Access;
use crate::semantics::Semantics;
use crate::wave::Wave;

/// Vector registers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct VectorSet([u64; 4]);

impl VectorSet {
    /// The union of both.
    pub(crate) fn union(&self, other: &VectorSet) -> VectorSet {
        VectorSet(std::array::from_fn(|part| self.0[part] | other.0[part]))
    }

    /// One bit per register.
    pub(crate) fn words(&self) -> [u64; 4] {
        self.0
    }

    /// Adds up to 16 registers.
    #[inline(always)]
    fn add(&mut self, first: u8, count: u8) {
        let bits = ((1u64 << count.min(32)) - 1, first as usize / 64, first as u32 % 64);
        self.0[bits.1] |= bits.0 << bits.2;
        if bits.1 < 3 && bits.2 > 0 {
            self.0[bits.1 + 1] |= bits.0 >> (64 - bits.2);
        }
    }

    #[inline(always)]
    pub(crate) fn meets(&self, other: &VectorSet) -> bool {
        (0..4).fold(0, |bits, part| bits | self.0[part] & other.0[part]) != 0
    }

    fn first_common(&self, other: &VectorSet) -> Option<usize> {
        (0..256).find(|register| self.0[register / 64] & other.0[register / 64] & 1 << (register % 64) != 0)
    }
}

/// An instruction's effect on what is in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flight {
    None,
    /// It waits until no more than this many are in flight.
    Wait {
        vector: u8,
        other: u8,
        store: u8,
    },
    /// A load, or something that counts like one.
    Load {
        counter: Counter,
        first: u8,
        count: u8,
    },
}

/// What counts a load, and in which order loads arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Counter {
    Vector,
    Local,
    Scalar,
    Flat,
    /// Nothing is returned. Counted by `vscnt`, and by `lgkmcnt` too if it may go to LDS.
    Store,
    FlatStore,
}

impl Flight {
    /// Whether it waits for registers.
    pub(crate) fn waits(self) -> bool {
        matches!(self, Flight::Wait { vector, other, .. } if vector != u8::MAX || other != u8::MAX)
    }

    /// Whether the counter of such a wait counts it.
    pub(crate) fn is_counted(self) -> bool {
        matches!(self, Flight::Load { counter, .. } if counter != Counter::Store)
    }
}

/// The vector registers that an instruction reads or writes, and its effect on what is in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Touch {
    pub registers: VectorSet,
    pub flight: Flight,
}

impl Touch {
    pub(crate) fn of(instruction: &Instruction, semantics: &Semantics) -> Touch {
        let (reads, writes) = Touch::registers(instruction, semantics);
        Touch { registers: reads.union(&writes), flight: flight(instruction, semantics) }
    }

    /// The registers that belong to its load from then on.
    pub(crate) fn loads(&self) -> (VectorSet, ScalarSet) {
        match self.flight {
            Flight::Load { counter, first, count } => {
                let load = Load { address: 0, counter, first, count, lanes: 0 };
                (load.vectors(), load.scalars())
            }
            _ => (VectorSet::default(), ScalarSet::EMPTY),
        }
    }

    /// The registers that it reads, and those that it writes.
    pub(crate) fn registers(instruction: &Instruction, semantics: &Semantics) -> (VectorSet, VectorSet) {
        let flight = flight(instruction, semantics);
        let (mut reads, mut writes) = (VectorSet::default(), VectorSet::default());
        let format = instruction.format();
        if matches!(format, Format::Mubuf | Format::Mtbuf) {
            // Index and offset. Stored data is read, and so are an atomic's operands.
            reads.add(instruction.high_bits(0, 8) as u8, instruction.bits(12, 2).count_ones() as u8);
            let words = match semantics {
                Semantics::Memory(Access::Store { count, .. }) => *count,
                Semantics::Memory(Access::TypedStore(typed)) => typed.registers(),
                Semantics::Memory(Access::Atomic { wide, .. }) => 1 + *wide as u8,
                _ => 0,
            };
            reads.add(instruction.high_bits(8, 8) as u8, words);
        } else {
            for &slot in instruction.definition.operands() {
                let OperandValue::Vector(first) = instruction.operand(slot) else { continue };
                let mut count = slot.width.registers(false);
                match slot.field {
                    // An atomic that returns nothing writes nothing.
                    Field::Destination
                        if instruction.is_atomic()
                            && matches!(flight, Flight::None | Flight::Load { count: 0, .. }) => {}
                    Field::Destination => writes.add(first, count),
                    _ => {
                        let has_base = !matches!(instruction.high_bits(16, 7), 0x7d | 0x7f);
                        match (format, slot.field) {
                            (Format::Global, Field::Source0) if has_base => count = 1,
                            (Format::Scratch, Field::Source0) => count = !has_base as u8,
                            _ => {}
                        }
                        reads.add(first, count);
                    }
                }
            }
        }
        if let Flight::Load { counter: Counter::Vector | Counter::Local | Counter::Flat, first, count } = flight {
            writes.add(first, count);
        }
        (reads, writes)
    }
}

fn flight(instruction: &Instruction, semantics: &Semantics) -> Flight {
    if instruction.format() == Format::Sopp && instruction.definition.mnemonic == "s_waitcnt" {
        let bits = instruction.immediate();
        let (vector, other) = ((bits & 15 | bits >> 14 << 4) as u8, (bits >> 8 & 63) as u8);
        return Flight::Wait { vector, other, store: u8::MAX };
    }
    // With a register, the count is not known here; only `null` adds nothing to it.
    let limit = if instruction.bits(16, 7) == 0x7d { instruction.immediate().min(255) as u8 } else { u8::MAX };
    let nothing = u8::MAX;
    match instruction.definition.mnemonic {
        "s_waitcnt_vmcnt" => return Flight::Wait { vector: limit, other: nothing, store: nothing },
        "s_waitcnt_lgkmcnt" => return Flight::Wait { vector: nothing, other: limit, store: nothing },
        "s_waitcnt_vscnt" => return Flight::Wait { vector: nothing, other: nothing, store: limit },
        _ => {}
    }
    let Semantics::Memory(access) = *semantics else { return Flight::None };
    let counter = match instruction.format() {
        Format::Smem => Counter::Scalar,
        Format::Ds => Counter::Local,
        Format::Flat => Counter::Flat,
        _ => Counter::Vector,
    };
    let count = match access {
        Access::Load { count, .. } => count,
        Access::TypedLoad(typed) => typed.registers(),
        // It loads into no register.
        Access::LoadToLocal { .. } | Access::TypedLoadToLocal(_) => 0,
        Access::LoadTwo { count, .. } => count * 2,
        Access::Atomic { wide, returns: true, .. } => 1 + wide as u8,
        Access::Swizzle | Access::Permute { .. } => 1,
        Access::ScalarLoad { count } => count,
        Access::Clock => 2,
        // It returns nothing, but is counted.
        Access::Store { .. } | Access::TypedStore(_) | Access::StoreTwo { .. } | Access::Atomic { .. } => {
            let counter = match counter {
                Counter::Vector => Counter::Store,
                Counter::Flat => Counter::FlatStore,
                counter => counter,
            };
            return Flight::Load { counter, first: 0, count: 0 };
        }
        _ => return Flight::None,
    };
    let first = match instruction.format() {
        Format::Mubuf | Format::Mtbuf => instruction.high_bits(8, 8) as u8,
        _ => Wave::destination(instruction, Field::Destination).unwrap_or(0),
    };
    Flight::Load { counter, first, count }
}

/// A load in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Load {
    address: u64,
    counter: Counter,
    first: u8,
    count: u8,
    lanes: u64,
}

impl Load {
    fn vectors(&self) -> VectorSet {
        let mut set = VectorSet::default();
        if self.counter != Counter::Scalar {
            set.add(self.first, self.count);
        }
        set
    }

    fn scalars(&self) -> ScalarSet {
        if self.counter == Counter::Scalar { ScalarSet::range(self.first, self.count) } else { ScalarSet::EMPTY }
    }
}

/// Loads in the order of issue, in a ring. Counters have six bits: an instruction that would exceed them waits for the
/// oldest.
#[derive(Clone)]
struct Queue {
    loads: [Load; Queue::MOST],
    first: usize,
    count: usize,
}

impl Queue {
    const MOST: usize = 64;
    const EMPTY: Load = Load { address: 0, counter: Counter::Vector, first: 0, count: 0, lanes: 0 };

    fn all(&self) -> impl Iterator<Item = &Load> {
        (0..self.count).map(|place| &self.loads[(self.first + place) % Queue::MOST])
    }

    #[inline(always)]
    fn push(&mut self, load: Load) {
        self.loads[(self.first + self.count) % Queue::MOST] = load;
        self.count += 1;
    }

    /// Removes the oldest.
    #[inline(always)]
    fn pop(&mut self) -> Load {
        let load = self.loads[self.first % Queue::MOST];
        self.first = (self.first + 1) % Queue::MOST;
        self.count -= 1;
        load
    }
}

impl Default for Queue {
    fn default() -> Queue {
        Queue { loads: [Queue::EMPTY; Queue::MOST], first: 0, count: 0 }
    }
}

/// The registers that loads own, and how many loads own each.
#[derive(Clone)]
struct Owners {
    set: VectorSet,
    counts: [u8; 256],
}

impl Default for Owners {
    fn default() -> Owners {
        Owners { set: VectorSet::default(), counts: [0; 256] }
    }
}

impl Owners {
    #[inline(always)]
    fn add(&mut self, load: &Load) {
        self.set.add(load.first, load.count);
        for register in load.first as usize..(load.first as usize + load.count as usize).min(256) {
            self.counts[register] = self.counts[register].saturating_add(1);
        }
    }

    #[inline(always)]
    fn remove(&mut self, load: &Load) {
        for register in load.first as usize..(load.first as usize + load.count as usize).min(256) {
            self.counts[register] = self.counts[register].saturating_sub(1);
            let free = (self.counts[register] == 0) as u64;
            self.set.0[register / 64] &= !(free << (register % 64));
        }
    }
}

/// Loads of a wave that are in flight.
#[derive(Clone, Default)]
pub(crate) struct Flights {
    /// Counted by `vmcnt`, and by `lgkmcnt`. Flat loads are in both, and own their registers as loads of `vmcnt`: data
    /// from global memory has arrived then, and AMD's own copy kernels wait for no more.
    vector: Queue,
    other: Queue,
    /// How many of those in `other` arrive in any order.
    unordered: usize,
    owned: Owners,
    owned_scalars: ScalarSet,
}

/// A compact form of loads in flight, for comparing and keeping.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FlightsInShort {
    vector: Vec<Load>,
    other: Vec<Load>,
    owned_scalars: ScalarSet,
}

impl Flights {
    pub(crate) fn in_short(&self) -> FlightsInShort {
        FlightsInShort {
            vector: self.vector.all().copied().collect(),
            other: self.other.all().copied().collect(),
            owned_scalars: self.owned_scalars,
        }
    }

    pub(crate) fn of(short: &FlightsInShort) -> Flights {
        let mut flights = Flights { owned_scalars: short.owned_scalars, ..Flights::default() };
        for load in &short.vector {
            flights.vector.push(*load);
            flights.owned.add(load);
        }
        for load in &short.other {
            flights.other.push(*load);
            match load.counter {
                Counter::Scalar => flights.unordered += 1,
                _ => flights.owned.add(load),
            }
        }
        flights
    }

    /// Whether an instruction that touches these registers must wait for a load.
    #[inline(always)]
    pub(crate) fn may_meet(&self, vectors: &VectorSet, scalars: ScalarSet) -> bool {
        self.owned.set.meets(vectors) || self.owned_scalars.meets(scalars)
    }

    /// The fault of an instruction at an address, if it does not wait for a load.
    #[cold]
    pub(crate) fn check(
        &self,
        instruction: &Instruction,
        semantics: &Semantics,
        effects: &Effects,
        lanes: u64,
        address: u64,
        text: impl Fn(u64) -> String,
    ) -> Result<(), FaultKind> {
        let (reads, writes) = Touch::registers(instruction, semantics);
        let flight = flight(instruction, semantics);
        for load in self.vector.all().chain(self.other.all()) {
            // Loads of one kind arrive in order, so the later one's result stays.
            let in_order = match flight {
                Flight::Load { counter, .. } if counter == load.counter => {
                    matches!(counter, Counter::Vector | Counter::Local)
                }
                // A flat load that did not go to LDS, as `lgkmcnt` has shown, is one of global memory.
                Flight::Load { counter: Counter::Vector, .. } if load.counter == Counter::Flat => {
                    !self.other.all().any(|other| (other.counter, other.address) == (Counter::Flat, load.address))
                }
                _ => false,
            };
            let owned = load.vectors();
            let read = owned.first_common(&reads);
            let written = owned.first_common(&writes).filter(|_| !in_order);
            let vector = read.or(written).filter(|_| load.lanes & lanes != 0).map(|register| format!("v{register}"));
            let scalar = (load.scalars() & effects.touched()).first().map(scalar_name);
            if let Some(register) = vector.or(scalar) {
                let distance = address.wrapping_sub(load.address) as i64;
                return Err(FaultKind::Wait { register, earlier: text(load.address), distance });
            }
        }
        Ok(())
    }

    /// Records an instruction's effect on what is in flight.
    #[inline(always)]
    pub(crate) fn note(&mut self, flight: Flight, address: u64, lanes: u64) {
        match flight {
            Flight::None => {}
            Flight::Wait { vector, other, .. } => self.wait(vector as usize, other as usize),
            Flight::Load { counter: Counter::Store, .. } => {}
            Flight::Load { counter, first, count } => self.start(Load { address, counter, first, count, lanes }),
        }
    }

    #[inline(always)]
    fn start(&mut self, load: Load) {
        if matches!(load.counter, Counter::Vector | Counter::Flat) {
            if self.vector.count == Queue::MOST {
                self.wait(Queue::MOST - 1, usize::MAX);
            }
            self.vector.push(load);
            self.owned.add(&load);
        }
        match load.counter {
            Counter::Vector | Counter::Store => return,
            Counter::Flat | Counter::FlatStore => {}
            Counter::Local => self.owned.add(&load),
            Counter::Scalar => self.owned_scalars |= load.scalars(),
        }
        if self.other.count == Queue::MOST {
            self.wait(usize::MAX, Queue::MOST - 1);
            // All that are left arrive in any order, so this takes the oldest here.
            if self.other.count == Queue::MOST {
                self.other.pop();
                self.unordered -= 1;
            }
        }
        let count = if load.counter == Counter::Flat { 0 } else { load.count };
        self.other.push(Load { count, ..load });
        self.unordered += (load.counter == Counter::Scalar) as usize;
    }

    /// Lets results arrive until at most this many are in flight. Repeating a wait has no effect.
    #[inline(always)]
    pub(crate) fn wait(&mut self, vector: usize, other: usize) {
        while self.vector.count > vector {
            let load = self.vector.pop();
            self.owned.remove(&load);
        }
        if self.other.count <= other {
            return;
        }
        if self.unordered == 0 {
            while self.other.count > other {
                let load = self.other.pop();
                self.owned.remove(&load);
            }
        } else {
            self.wait_among_unordered(other);
        }
    }

    /// All loads without an order may be among those that have arrived; the rest are the oldest of the others.
    fn wait_among_unordered(&mut self, other: usize) {
        let mut arrived = (self.other.count - other).saturating_sub(self.unordered);
        for _ in 0..self.other.count {
            let load = self.other.pop();
            if other == 0 || arrived > 0 && load.counter != Counter::Scalar {
                arrived = arrived.saturating_sub(1);
                if load.counter != Counter::Scalar {
                    self.owned.remove(&load);
                }
            } else {
                self.other.push(load);
            }
        }
        if other == 0 {
            (self.unordered, self.owned_scalars) = (0, ScalarSet::EMPTY);
        }
    }
}
