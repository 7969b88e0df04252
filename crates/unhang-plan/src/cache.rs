//! Plans that were made before.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::sync::{Arc, PoisonError, RwLock};

use unhang_conv::Problem;

use crate::plan::Plan;

/// Threads on different problems should not wait for each other.
const SHARDS: usize = 16;
/// Problems a shard keeps. A program with ever new shapes (say, images of any size) must not fill the memory.
const SHARD_CAPACITY: usize = 4096;

/// Plans by problem, so that deciding on a repeated problem is one look-up in memory.
///
/// A plan is only as good as the evidence that it was made from: [`Evidence::generation`] goes in with every question,
/// and plans of another generation are not found.
///
/// [`Evidence::generation`]: unhang_evidence::Evidence::generation
#[derive(Debug, Default)]
pub struct PlanCache {
    shards: [RwLock<Shard>; SHARDS],
}

type Shard = HashMap<Problem, Vec<Entry>, BuildHasherDefault<Mixer>>;

#[derive(Debug)]
struct Entry {
    context: u64,
    generation: u64,
    plan: Arc<Plan>,
}

impl PlanCache {
    /// An empty cache.
    pub fn new() -> PlanCache {
        PlanCache::default()
    }

    /// The plan for the problem, made by `make` if there is none yet.
    ///
    /// `context` is the caller's number for a combination of settings and situation; `generation` is the evidence's.
    /// `make` runs without any lock held; two threads may both make the same plan, which does no harm.
    pub fn plan(&self, problem: &Problem, context: u64, generation: u64, make: impl FnOnce() -> Plan) -> Arc<Plan> {
        let shard = &self.shards[shard_of(problem)];
        if let Some(plan) = find(&shard.read().unwrap_or_else(PoisonError::into_inner), problem, context, generation) {
            return plan;
        }
        let plan = Arc::new(make());
        let mut shard = shard.write().unwrap_or_else(PoisonError::into_inner);
        if shard.len() >= SHARD_CAPACITY && !shard.contains_key(problem) {
            shard.clear();
        }
        let entries = shard.entry(problem.clone()).or_default();
        entries.retain(|entry| entry.context != context);
        // Contexts are few; should a caller number every call, the oldest go.
        if entries.len() >= 16 {
            entries.remove(0);
        }
        entries.push(Entry { context, generation, plan: plan.clone() });
        plan
    }

    /// Forgets all plans.
    pub fn clear(&self) {
        for shard in &self.shards {
            shard.write().unwrap_or_else(PoisonError::into_inner).clear();
        }
    }

    /// How many problems have plans.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.read().unwrap_or_else(PoisonError::into_inner).len()).sum()
    }

    /// Whether there are no plans.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

fn find(shard: &Shard, problem: &Problem, context: u64, generation: u64) -> Option<Arc<Plan>> {
    let entry = shard.get(problem)?.iter().find(|entry| entry.context == context)?;
    (entry.generation == generation).then(|| entry.plan.clone())
}

fn shard_of(problem: &Problem) -> usize {
    let mut hasher = Mixer::default();
    problem.hash(&mut hasher);
    // The map below uses the low and the highest bits.
    (hasher.finish() >> 40) as usize % SHARDS
}

/// A multiply-and-rotate hash. Problems come from the user's own model, so nobody gains by making them collide, and the
/// standard hash would be most of the look-up's time.
#[derive(Default)]
struct Mixer(u64);

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        // Spread the upper bits, where multiplication leaves its best, over the lower, which pick the bucket.
        let mixed = (self.0 ^ (self.0 >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^ (mixed >> 29)
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_u8(&mut self, byte: u8) {
        self.write_u64(u64::from(byte));
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(u64::from(word));
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    fn write_isize(&mut self, word: isize) {
        self.write_u64(word as u64);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use unhang_engine::EngineName;

    use super::*;

    fn plan_named(name: &str) -> Plan {
        Plan {
            engines: vec![EngineName::Cpu],
            tile: None,
            reason: name.to_owned(),
            evidence: Vec::new(),
            warnings: Vec::new(),
        }
    }

    fn problem(channels: usize, size: usize) -> Problem {
        format!("forward:f32:nchw:1x{channels}x{size}x{size}:32x3x3:s1x1:p1x1:d1x1:g1").parse().unwrap()
    }

    #[test]
    fn a_plan_is_found_only_where_it_holds() {
        let cache = PlanCache::new();
        let never = || -> Plan { panic!("it should have been found") };
        cache.plan(&problem(3, 8), 1, 1, || plan_named("a"));
        assert_eq!(cache.plan(&problem(3, 8), 1, 1, never).reason, "a");
        assert_eq!(cache.plan(&problem(4, 8), 1, 1, || plan_named("other problem")).reason, "other problem");
        assert_eq!(cache.plan(&problem(3, 8), 2, 1, || plan_named("other context")).reason, "other context");
        assert_eq!(cache.plan(&problem(3, 8), 1, 1, never).reason, "a");
        assert_eq!(cache.plan(&problem(3, 8), 1, 2, || plan_named("new evidence")).reason, "new evidence");
        assert_eq!(cache.plan(&problem(3, 8), 1, 2, never).reason, "new evidence");
        assert_eq!(cache.len(), 2);
        cache.clear();
        assert!(cache.is_empty());
    }

    #[test]
    fn ever_new_shapes_and_contexts_do_not_fill_the_memory() {
        let cache = PlanCache::new();
        for size in 1..=(SHARDS * SHARD_CAPACITY + 20_000) {
            cache.plan(&problem(1 + size % 512, 3 + size / 512), 0, 1, || plan_named("x"));
        }
        assert!(cache.len() <= SHARDS * SHARD_CAPACITY);
        for context in 0..1000 {
            cache.plan(&problem(1, 3), context, 1, || plan_named("x"));
        }
        let shard = cache.shards[shard_of(&problem(1, 3))].read().unwrap();
        assert!(shard[&problem(1, 3)].len() <= 16);
    }

    #[test]
    fn the_hash_spreads() {
        let hashes: HashSet<u64> = (1..=64)
            .flat_map(|channels| (3..=66).map(move |size| problem(channels, size)))
            .map(|problem| {
                let mut hasher = Mixer::default();
                problem.hash(&mut hasher);
                hasher.finish()
            })
            .collect();
        assert_eq!(hashes.len(), 64 * 64);
        let shards: HashSet<usize> = (3..=66).map(|size| shard_of(&problem(16, size))).collect();
        assert!(shards.len() >= SHARDS / 2, "{shards:?}");
    }
}
