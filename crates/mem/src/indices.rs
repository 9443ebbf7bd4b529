//! The indices of keys: which are taken, and the tag of the next key at each.

use ferroce_types::Instant;
use std::collections::VecDeque;

/// Regions there may be at once.
pub const MAX_MR: usize = 1 << 20;
/// Windows there may be at once.
pub const MAX_MW: usize = 1 << 20;

/// Free indices that aren't reused. A key comes again 256 × this number registrations after its region's deregistration, at the earliest.
const RESTING: usize = 512;

/// Keys that were given back and are remembered, to report the use of such a key as that of a deregistered region.
pub(crate) const REMEMBERED: usize = 256;

/// The table of indices. `K` is what a key stands for.
#[derive(Debug)]
pub(crate) struct KeySlots<K> {
    pub(crate) all: Vec<KeySlot<K>>,
    /// The one that has been free for the longest time first.
    pub(crate) free: VecDeque<u32>,
    pub(crate) regions: usize,
    pub(crate) windows: usize,
    /// Keys that were given back, the last one at the end, and when.
    pub(crate) returned: VecDeque<(u32, Instant)>,
}

#[derive(Debug)]
pub(crate) struct KeySlot<K> {
    pub(crate) tag: u8,
    pub(crate) held: Option<K>,
}

impl<K> KeySlots<K> {
    pub(crate) const fn new() -> Self {
        Self { all: Vec::new(), free: VecDeque::new(), regions: 0, windows: 0, returned: VecDeque::new() }
    }

    /// A free place with its next key. The caller fills it.
    pub(crate) fn take(&mut self) -> (usize, u32) {
        let rested = if self.free.len() > RESTING { self.free.pop_front() } else { None };
        let index = rested.unwrap_or_else(|| {
            self.all.push(KeySlot { tag: 0, held: None });
            self.all.len() as u32 - 1
        });
        let slot = &mut self.all[index as usize];
        slot.tag = slot.tag.wrapping_add(1);
        // Index 0 would give keys that look like small integers; keys start at 0x101.
        let key = (index + 1) << 8 | u32::from(slot.tag);
        (index as usize, key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn a_stale_key_names_new_memory_late_and_indices_are_few() {
        const LATE: usize = 256 * RESTING;
        let mut slots = KeySlots::<()>::new();
        // Others that stay, as a program has them.
        let others: HashSet<_> = (0..8).map(|_| slots.take().0).collect();
        let (index, stale) = slots.take();
        slots.free.push_back(index as u32);
        let mut indices = HashSet::new();
        let is_stale = |_: &usize| {
            let (index, key) = slots.take();
            slots.free.push_back(index as u32);
            indices.insert(index);
            key == stale
        };
        let again = (1..).find(is_stale).expect("a number that comes again");
        assert!(again >= LATE, "after {again} registrations");
        assert!(indices.len() <= 2 * RESTING && indices.is_disjoint(&others));
    }
}
