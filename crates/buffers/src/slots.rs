//! The slots of a queue: they own what outstanding requests name.
//!
//! A ring with one poster and one retirer. The poster moves the head, the retirer moves the tail. Entries retire in the order
//! in which they were posted, so the entries of unsignalled requests retire with the next completion (rule S5).

use crate::sync::{Arc, AtomicU32, Ordering, UnsafeCell};
use std::mem::MaybeUninit;

/// The longest ring. Numbers of entries wrap at 2^32, and must stay distinct within a ring.
pub const MAX_DEPTH: u32 = 1 << 20;

struct Ring<T> {
    /// The number of the next entry. Only the poster stores it.
    head: AtomicU32,
    /// The number of the oldest entry. Only the retirer stores it.
    tail: AtomicU32,
    depth: u32,
    places: Box<[UnsafeCell<MaybeUninit<T>>]>,
}

// SAFETY: entries move from the poster to the retirer, which may be another thread. Places between tail and head belong to
// the retirer, the others to the poster; head and tail hand them over with release and acquire.
unsafe impl<T: Send> Sync for Ring<T> {}
// SAFETY: as above; a ring owns its entries.
unsafe impl<T: Send> Send for Ring<T> {}

impl<T> Ring<T> {
    #[inline]
    fn place(&self, number: u32) -> &UnsafeCell<MaybeUninit<T>> {
        // The count of places is a power of two: numbers lead to the same places after they wrap.
        &self.places[number as usize & (self.places.len() - 1)]
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        let (mut number, head) = (self.tail.load(Ordering::Relaxed), self.head.load(Ordering::Relaxed));
        while number != head {
            // SAFETY: places from tail to head contain entries, and each is dropped once.
            self.place(number).with_mut(|place| unsafe { (*place).assume_init_drop() });
            number = number.wrapping_add(1);
        }
    }
}

/// The end of a ring that adds entries.
pub struct Poster<T>(Arc<Ring<T>>);

/// The end of a ring that takes entries out, the oldest first.
pub struct Retirer<T>(Arc<Ring<T>>);

/// A ring for `depth` entries.
///
/// # Panics
/// `depth` is more than [`MAX_DEPTH`].
#[must_use]
pub fn ring<T>(depth: u32) -> (Poster<T>, Retirer<T>) {
    assert!(depth <= MAX_DEPTH, "a ring of {depth} entries");
    let places = (0..depth.next_power_of_two()).map(|_| UnsafeCell::new(MaybeUninit::uninit())).collect();
    let ring = Arc::new(Ring { head: AtomicU32::new(0), tail: AtomicU32::new(0), depth, places });
    (Poster(ring.clone()), Retirer(ring))
}

impl<T> Poster<T> {
    /// Entries that can be added now.
    #[must_use]
    #[inline]
    pub fn room(&self) -> u32 {
        let head = self.0.head.load(Ordering::Relaxed);
        self.0.depth - head.wrapping_sub(self.0.tail.load(Ordering::Acquire))
    }

    /// The number that the next entry will have.
    #[must_use]
    #[inline]
    pub fn next(&self) -> u32 {
        self.0.head.load(Ordering::Relaxed)
    }

    /// The place of the next entry, unless the ring is full.
    #[inline]
    pub fn free(&mut self) -> Option<Free<'_, T>> {
        (self.room() > 0).then_some(Free(self))
    }

    /// Adds an entry, and returns its number.
    ///
    /// # Errors
    /// The ring is full: the entry comes back.
    pub fn push(&mut self, entry: T) -> Result<u32, T> {
        match self.free() {
            Some(free) => Ok(free.fill(entry)),
            None => Err(entry),
        }
    }
}

/// A free place of a ring. No other place is taken while it is borrowed.
pub struct Free<'p, T>(&'p mut Poster<T>);

impl<T> Free<'_, T> {
    /// Adds the entry, and returns its number.
    #[inline]
    pub fn fill(self, entry: T) -> u32 {
        let number = self.0.next();
        let ring = &*self.0.0;
        // SAFETY: the place is free, so it belongs to the poster, of which there is one.
        ring.place(number).with_mut(|place| unsafe { (*place).write(entry) });
        ring.head.store(number.wrapping_add(1), Ordering::Release);
        number
    }
}

impl<T> Retirer<T> {
    /// Whether the entry with this number is in the ring. A completion whose number isn't is stale or forged.
    #[must_use]
    #[inline]
    pub fn is_outstanding(&self, number: u32) -> bool {
        let (tail, head) = self.ends();
        number.wrapping_sub(tail) < head.wrapping_sub(tail)
    }

    /// The number of the oldest entry, if there is one.
    #[must_use]
    #[inline]
    pub fn oldest(&self) -> Option<u32> {
        let tail = self.ends().0;
        self.is_outstanding(tail).then_some(tail)
    }

    /// The numbers of the oldest entry and of the next one to be added.
    #[must_use]
    #[inline]
    pub fn ends(&self) -> (u32, u32) {
        (self.0.tail.load(Ordering::Relaxed), self.0.head.load(Ordering::Acquire))
    }

    /// Takes the oldest entry out.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        let tail = self.oldest()?;
        // SAFETY: the place contains an entry, which belongs to the retirer, of which there is one.
        let entry = self.0.place(tail).with_mut(|place| unsafe { (*place).assume_init_read() });
        self.0.tail.store(tail.wrapping_add(1), Ordering::Release);
        Some(entry)
    }
}
