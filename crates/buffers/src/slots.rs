//! The slots of a queue: they own what outstanding requests name.
//!
//! A ring with one poster and one retirer. The poster moves the head, the retirer moves the tail. Entries retire in the order
//! in which they were posted, so the entries of unsignalled requests retire with the next completion (rule S5).

use crate::sync::{Arc, AtomicU32, Ordering, UnsafeCell};
use std::ops::{Deref, DerefMut};

/// The longest ring. Numbers of entries wrap at 2^32, and must stay distinct within a ring.
pub const MAX_DEPTH: u32 = 1 << 20;

struct Ring<T> {
    /// The number of the next entry. Only the poster stores it.
    head: AtomicU32,
    /// The number of the oldest entry. Only the retirer stores it.
    tail: AtomicU32,
    depth: u32,
    /// Those without an entry have what the retirer has left there.
    places: Box<[UnsafeCell<T>]>,
}

// SAFETY: entries move from the poster to the retirer, which may be another thread. Places between tail and head belong to
// the retirer, the others to the poster; head and tail hand them over with release and acquire.
unsafe impl<T: Send> Sync for Ring<T> {}
// SAFETY: as above; a ring owns its entries.
unsafe impl<T: Send> Send for Ring<T> {}

impl<T> Ring<T> {
    #[inline]
    fn place(&self, number: u32) -> &UnsafeCell<T> {
        // The count of places is a power of two: numbers lead to the same places after they wrap.
        &self.places[number as usize & (self.places.len() - 1)]
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

/// The end of a ring that takes entries out, the oldest first.
pub struct Retirer<T>(Arc<Ring<T>>);

/// A ring for `depth` entries. Its places stay where they are, and are written and read there.
///
/// # Panics
/// `depth` is more than [`MAX_DEPTH`].
#[must_use]
pub fn ring<T: Default>(depth: u32) -> (Poster<T>, Retirer<T>) {
    assert!(depth <= MAX_DEPTH, "a ring of {depth} entries");
    let places = (0..depth.next_power_of_two()).map(|_| UnsafeCell::new(T::default())).collect();
    let ring = Arc::new(Ring { head: AtomicU32::new(0), tail: AtomicU32::new(0), depth, places });
    (Poster { ring: ring.clone(), head: 0, tail: 0 }, Retirer(ring))
}

impl<T> Poster<T> {
    #[inline]
    fn room_after(&self, tail: u32) -> u32 {
        self.ring.depth - self.head.wrapping_sub(tail)
    }

    /// Entries that can be added now.
    #[must_use]
    #[inline]
    pub fn room(&self) -> u32 {
        self.room_after(self.ring.tail.load(Ordering::Acquire))
    }

    /// Whether an entry can be added. The retirer's position is read again only if there was no room.
    #[inline]
    fn has_room(&mut self) -> bool {
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
        let Poster { ring, head, .. } = self.poster;
        let number = *head;
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

    /// The numbers of the oldest entry and of the next one to be added.
    #[must_use]
    #[inline]
    pub fn ends(&self) -> (u32, u32) {
        (self.0.tail.load(Ordering::Relaxed), self.0.head.load(Ordering::Acquire))
    }

    /// If the entry with this number is in the ring: gives the oldest entry to `take`, after which its place is free. Whether that is the
    /// entry with this number.
    #[inline]
    pub fn retire(&mut self, number: u32, take: impl FnOnce(&mut T)) -> Option<bool> {
        let (tail, head) = self.ends();
        let after = number.wrapping_sub(tail);
        if after >= head.wrapping_sub(tail) {
            return None;
        }
        // SAFETY: the place contains an entry, which belongs to the retirer, of which there is one.
        self.0.place(tail).with_mut(|place| take(unsafe { &mut *place }));
        self.0.tail.store(tail.wrapping_add(1), Ordering::Release);
        Some(after == 0)
    }
}

impl<T: Default> Retirer<T> {
    /// Takes the oldest entry out.
    pub fn pop(&mut self) -> Option<T> {
        let mut entry = T::default();
        self.retire(self.ends().0, |place| std::mem::swap(place, &mut entry))?;
        Some(entry)
    }
}
