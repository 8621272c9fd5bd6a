//! Chance that a seed repeats.

/// SplitMix64: every seed gives another sequence, and always the same one.
#[derive(Clone)]
pub struct Random(u64);

impl Random {
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A sequence for one thing that is named by numbers. It stays the same when other things are left out, so that
    /// a scenario that shrinks does not change in every other place.
    pub fn of(seed: u64, names: &[u64]) -> Self {
        let mut random = Self(seed);
        for name in names {
            random = Self(random.next() ^ name.wrapping_mul(0xd6e8_feb8_6659_fd93));
        }
        random
    }

    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `end`, which is not 0.
    pub const fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub const fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// Once in `n`.
    pub const fn once_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// So many times in a thousand.
    pub fn per_mille(&mut self, share: u32) -> bool {
        self.below(1000) < u64::from(share)
    }

    pub const fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.index(from.len())]
    }
}
