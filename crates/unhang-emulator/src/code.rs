//! Code in memory: decoded when first reached, and again if its bytes have changed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::fast::function::FastFunction;
use crate::function::{Function, Reading};
use crate::pending::KnownStates;
use crate::{FaultKind, Memory};

/// The decoded code of all launches. Nothing in it is used before its bytes are compared with memory: code is freed,
/// and its place reused.
#[derive(Default)]
pub(crate) struct CodeCache {
    /// By entry and by reading: one kernel may be launched alternately in two modes.
    functions: Mutex<HashMap<(u64, Reading), Arc<FastFunction>>>,
    /// What threads of earlier launches have learned about pending states of waves.
    known: Mutex<Vec<KnownStates>>,
}

/// The cache is cleared after this many entries: freed code is never requested again.
const CACHED: usize = 4096;

impl CodeCache {
    fn get(&self, memory: &Memory, entry: u64, reading: Reading) -> Arc<FastFunction> {
        let lock = || self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        let known = lock().get(&(entry, reading)).cloned();
        if let Some(function) = known.filter(|function| function.plain.is_current(memory)) {
            return function;
        }
        let function = Arc::new(FastFunction::of(Function::decode(memory, entry, reading)));
        let mut functions = lock();
        if functions.len() >= CACHED {
            functions.clear();
        }
        functions.insert((entry, reading), function.clone());
        function
    }

    fn known(&self) -> MutexGuard<'_, Vec<KnownStates>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The code of one launch: each function is checked once, when it is first reached.
pub(crate) struct Code<'a> {
    memory: &'a Memory,
    cache: &'a CodeCache,
    reading: Reading,
    functions: Mutex<Vec<Arc<FastFunction>>>,
}

impl<'a> Code<'a> {
    pub(crate) fn new(memory: &'a Memory, cache: &'a CodeCache, reading: Reading) -> Code<'a> {
        Code { memory, cache, reading, functions: Mutex::default() }
    }

    /// Whether it is resolved for the float mode that flushes single-precision denormals.
    pub(crate) fn flushes(&self) -> bool {
        self.reading.flushes
    }

    /// A function that has an instruction at an address.
    fn find(&self, address: u64) -> Option<Arc<FastFunction>> {
        let mut functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(function) = functions.iter().find(|function| function.plain.index_at(address).is_some()) {
            return Some(function.clone());
        }
        if !address.is_multiple_of(4) || self.memory.read_some(address, &mut [0; 4]) < 4 {
            return None;
        }
        let function = self.cache.get(self.memory, address, self.reading);
        functions.push(function.clone());
        Some(function)
    }
}

/// The functions that one thread has encountered, and the targets of its jumps.
pub(crate) struct Paths<'a> {
    code: &'a Code<'a>,
    pub functions: Vec<Arc<FastFunction>>,
    jumps: HashMap<u64, (u32, u32)>,
    /// The pending states of its waves.
    pub known: KnownStates,
}

impl<'a> Paths<'a> {
    /// `keep` says whether to remember states of waves, and `hazards` whether to check hazards.
    pub(crate) fn new(code: &'a Code<'a>, keep: bool, hazards: bool) -> Paths<'a> {
        let mut known = code.cache.known();
        let earlier = known.iter().position(|it| keep && it.serves(hazards)).map(|place| known.swap_remove(place));
        let known = earlier.unwrap_or_else(|| KnownStates::new(keep, hazards));
        Paths { code, functions: Vec::new(), jumps: HashMap::new(), known }
    }

    /// Keeps what was learned for later launches.
    pub(crate) fn keep(self) {
        if self.known.serves(true) || self.known.serves(false) {
            self.code.cache.known().push(self.known);
        }
    }

    /// The function and the instruction at an address.
    pub(crate) fn find(&mut self, address: u64) -> Result<(u32, u32), FaultKind> {
        if let Some(&place) = self.jumps.get(&address) {
            return Ok(place);
        }
        let function = self.code.find(address).ok_or(FaultKind::Jump { address })?;
        let index = function.plain.index_at(address).ok_or(FaultKind::Jump { address })?;
        let known = self.functions.iter().position(|other| Arc::ptr_eq(other, &function));
        let number = known.unwrap_or_else(|| {
            self.functions.push(function);
            self.functions.len() - 1
        });
        self.jumps.insert(address, (number as u32, index));
        Ok((number as u32, index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::function::tests::{END, NOP, READING, words};

    #[test]
    fn code_that_was_replaced_is_decoded_anew() {
        let mut memory = Memory::default();
        let at = memory.allocate_bytes(&words(&[NOP, NOP, END]));
        let cache = CodeCache::default();
        let first = cache.get(&memory, at, READING);
        assert!(Arc::ptr_eq(&first, &cache.get(&memory, at, READING)), "nothing has changed");
        memory.write(at + 4, &END.to_le_bytes()).unwrap();
        let second = cache.get(&memory, at, READING);
        assert_eq!((first.plain.addresses.len(), second.plain.addresses.len()), (3, 2));
    }

    #[test]
    fn two_readings_of_one_kernel_do_not_displace_each_other() {
        let mut memory = Memory::default();
        let at = memory.allocate_bytes(&words(&[NOP, END]));
        let cache = CodeCache::default();
        let readings = [READING, Reading { flushes: true, ..READING }, Reading { wave64: true, ..READING }]
            .map(|reading| (reading, cache.get(&memory, at, reading)));
        for (reading, function) in &readings {
            assert_eq!(function.plain.reading, *reading);
            assert!(Arc::ptr_eq(function, &cache.get(&memory, at, *reading)), "{reading:?} is decoded once");
        }
    }
}
