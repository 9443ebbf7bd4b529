//! The slots of a queue: they own what outstanding requests name.
//!
//! A ring with one poster and one retirer. The poster moves the head, the retirer moves the tail. Entries retire in the order
//! in which they were posted, so the entries of unsignalled requests retire with the next completion (rule S5).

use crate::sync::{Arc, AtomicBool, AtomicU32, Ordering, UnsafeCell, pause};
use std::ops::{Deref, DerefMut};

/// The longest ring. Numbers of entries wrap at 2^32, and must stay distinct within a ring.
pub const MAX_DEPTH: u32 = 1 << 20;

struct Ring<T> {
    /// The number of the next entry. Only the poster stores it.
    head: AtomicU32,
    /// The number of the oldest entry. Only a thread that retires stores it.
    tail: AtomicU32,
    /// A thread retires an entry: the end of the queue, or the completion queue.
    retires: AtomicBool,
    depth: u32,
    /// Those without an entry have what the retirer has left there.
    places: Box<[UnsafeCell<T>]>,
}

// SAFETY: entries move from the poster to the retirer, which may be another thread. Places between tail and head belong to
// the retirer, the others to the poster; head and tail hand them over with release and acquire. Of the threads that share the retirer one at
// a time has what belongs to it, which `retires` hands over with release and acquire.
unsafe impl<T: Send> Sync for Ring<T> {}
// SAFETY: as above; a ring owns its entries.
unsafe impl<T: Send> Send for Ring<T> {}

impl<T> Ring<T> {
    #[inline]
    fn place(&self, number: u32) -> &UnsafeCell<T> {
        // The count of places is a power of two: numbers lead to the same places after they wrap.
        let place = number as usize & (self.places.len() - 1);
        // SAFETY: `ring` makes at least one place, so it is less than their count.
        unsafe { self.places.get_unchecked(place) }
    }
}

/// The end of a ring that adds entries.
pub struct Poster<T> {
    ring: Arc<Ring<T>>,
    /// The ring's.
    head: u32,
    /// That of the ring, as it was when there was last no room.
    tail: u32,
}

/// The end of a ring that takes entries out, the oldest first. Threads share it, and take turns.
pub struct Retirer<T>(Arc<Ring<T>>);

/// A ring for `depth` entries. Its places stay where they are, and are written and read there.
///
/// # Panics
/// `depth` is more than [`MAX_DEPTH`].
#[must_use]
pub fn ring<T: Default>(depth: u32) -> (Poster<T>, Retirer<T>) {
    assert!(depth <= MAX_DEPTH, "a ring of {depth} entries");
    let places = (0..depth.next_power_of_two()).map(|_| UnsafeCell::new(T::default())).collect();
    let [head, tail] = [0; 2].map(AtomicU32::new);
    let ring = Arc::new(Ring { head, tail, retires: AtomicBool::new(false), depth, places });
    (Poster { ring: ring.clone(), head: 0, tail: 0 }, Retirer(ring))
}

impl<T> Poster<T> {
    #[inline]
    fn room_after(&self, tail: u32) -> u32 {
        self.ring.depth - self.head.wrapping_sub(tail)
    }

    /// The number that the next entry gets.
    #[must_use]
    #[inline]
    pub const fn next(&self) -> u32 {
        self.head
    }

    /// Entries that can be added now.
    #[must_use]
    #[inline]
    pub fn room(&self) -> u32 {
        self.room_after(self.ring.tail.load(Ordering::Acquire))
    }

    /// Whether an entry can be added. The retirer's position is read again only if there was no room.
    #[must_use]
    #[inline]
    pub fn has_room(&mut self) -> bool {
        if self.room_after(self.tail) == 0 {
            self.tail = self.ring.tail.load(Ordering::Acquire);
        }
        self.room_after(self.tail) > 0
    }

    /// The place of the next entry, with what the retirer has left there, unless the ring is full.
    #[inline]
    pub fn place(&mut self) -> Option<FreePlace<'_, T>> {
        if !self.has_room() {
            return None;
        }
        let at = self.ring.place(self.head).with_mut(|place| place);
        Some(FreePlace { at, poster: self })
    }

    /// Adds an entry, and returns its number.
    ///
    /// # Errors
    /// The ring is full: the entry comes back.
    pub fn push(&mut self, entry: T) -> Result<u32, T> {
        let Some(mut place) = self.place() else { return Err(entry) };
        *place = entry;
        Ok(place.publish())
    }
}

/// The place of the next entry, before the entry is added.
pub struct FreePlace<'p, T> {
    at: *mut T,
    poster: &'p mut Poster<T>,
}

impl<T> FreePlace<'_, T> {
    /// Adds what is in the place, and returns the number of the entry.
    #[inline]
    pub fn publish(self) -> u32 {
        let number = self.poster.next();
        let Poster { ring, head, .. } = self.poster;
        *head = number.wrapping_add(1);
        ring.head.store(*head, Ordering::Release);
        number
    }
}

impl<T> Deref for FreePlace<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the place is free, so it belongs to the poster, of which there is one. That is borrowed for as long as `self` exists.
        unsafe { &*self.at }
    }
}

impl<T> DerefMut for FreePlace<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { &mut *self.at }
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

    /// The numbers of the oldest entry and of the next one to be added. Beside a thread that retires entries, the first may be older than the
    /// second.
    #[must_use]
    #[inline]
    pub fn ends(&self) -> (u32, u32) {
        // The head that a thread reads after a tail isn't behind it.
        (self.0.tail.load(Ordering::Acquire), self.0.head.load(Ordering::Acquire))
    }

    /// If the entry with this number is in the ring: swaps the oldest entry with `into`, which its place has from then on. Whether that is
    /// the entry with this number.
    #[inline]
    pub fn retire(&self, number: u32, into: &mut T) -> Option<bool> {
        self.take(into, |tail, head| {
            let after = number.wrapping_sub(tail);
            (after < head.wrapping_sub(tail)).then_some(after == 0)
        })
    }

    /// Swaps the oldest entry with `into` if `look` returns something of the tail and the head. It does so for a ring that isn't empty alone,
    /// and doesn't panic.
    #[inline(always)]
    fn take(&self, into: &mut T, look: impl FnOnce(u32, u32) -> Option<bool>) -> Option<bool> {
        // Pairs with the store of `end_turn`.
        while self.0.retires.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            pause();
        }
        let (tail, head) = self.ends();
        let Some(looked) = look(tail, head) else {
            self.end_turn();
            return None;
        };
        // SAFETY: the place contains an entry, which belongs to the retirer, of which one thread at a time is here. `into` is
        // elsewhere.
        self.0.place(tail).with_mut(|place| unsafe { std::ptr::swap_nonoverlapping(place, into, 1) });
        self.0.tail.store(tail.wrapping_add(1), Ordering::Release);
        self.end_turn();
        Some(looked)
    }

    /// Another thread may retire an entry.
    #[inline(always)]
    fn end_turn(&self) {
        // Pairs with the exchange.
        self.0.retires.store(false, Ordering::Release);
    }
}

impl<T: Default> Retirer<T> {
    /// Takes the oldest entry out.
    pub fn pop(&self) -> Option<T> {
        let mut entry = T::default();
        self.take(&mut entry, |tail, head| (tail != head).then_some(true))?;
        Some(entry)
    }
}
