//! Batch normalisation against its definition, on thousands of random problems.

use unhang_conv::DataType;

use crate::engine;
use crate::normalizations::{Case, OPERATIONS};
use crate::numbers::Memory;

/// The host's own memory.
#[derive(Default)]
pub(crate) struct Host(Vec<Vec<u128>>);

impl Memory for Host {
    fn put(&mut self, bytes: &[u8]) -> u64 {
        let mut words = vec![0u128; bytes.len().div_ceil(16) + 1];
        // SAFETY: as many bytes and more are there.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), words.as_mut_ptr().cast::<u8>(), bytes.len()) };
        let at = words.as_ptr() as u64;
        self.0.push(words);
        at
    }

    fn get(&self, at: u64, bytes: usize) -> Vec<u8> {
        // SAFETY: asked for within what was put there, and still held.
        unsafe { std::slice::from_raw_parts(at as *const u8, bytes) }.to_vec()
    }
}

#[test]
fn random_normalisations_are_right() {
    let Some(engine) = engine() else { return };
    let (mut counts, mut in_quads) = ([0; 2], [0; 3]);
    for data_type in DataType::ALL {
        for operation in OPERATIONS {
            for seed in 0..140 {
                let case = Case::random(seed * 4 + operation as u64, data_type, operation, 700);
                let mut memory = Host::default();
                if let Err(wrong) = case.check(&engine.gpu, &mut memory) {
                    panic!("{wrong} in {case:?}");
                }
                // One in five in another way too: each of the six ways equally often.
                let [_, others @ ..] = case.task.way(36).near();
                let way = others[seed as usize % others.len()];
                if seed % 5 == 0
                    && let Err(wrong) = case.check_by(way, &engine.gpu, &mut memory)
                {
                    panic!("{wrong} in {way} of {case:?}");
                }
                counts[usize::from(case.is_divided())] += 1;
                let kinds =
                    [case.is_in_quads(true), case.is_in_quads(true) && case.is_divided(), case.is_in_quads(false)];
                in_quads.iter_mut().zip(kinds).for_each(|(count, is)| *count += usize::from(is));
            }
        }
    }
    println!("{} on one workgroup a unit, {} divided", counts[0], counts[1]);
    assert!(counts[0] > 2000 && counts[1] > 40, "{counts:?}");
    assert!(in_quads[0] > 100 && in_quads[1] > 5 && in_quads[2] > 100, "aligned, divided, not aligned: {in_quads:?}");
}
