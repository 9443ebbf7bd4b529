//! What buffers point to, and the places of a pool that it occupies.

use crate::region::Region;
use smallvec::SmallVec;
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

/// What a [`Buffer`](crate::Buffer) points to. That of a buffer of a pool goes back to the pool with it.
pub(crate) struct Piece {
    pub(crate) region: Arc<Region>,
    pub(crate) start: usize,
    pub(crate) capacity: usize,
    pub(crate) len: usize,
    /// The place of a pool that it returns to.
    pub(crate) home: Option<Home>,
}

impl Piece {
    /// Memory of a region, empty.
    pub(crate) const fn new(region: Arc<Region>, start: usize, capacity: usize) -> Self {
        Self { region, start, capacity, len: 0, home: None }
    }

    /// It has this memory, and is empty.
    pub(crate) const fn reset(&mut self, start: usize, capacity: usize) {
        (self.start, self.capacity, self.len) = (start, capacity, 0);
    }
}

/// The free places of a pool, and the tasks that wait for one.
pub(crate) struct FreePlaces {
    /// Each with its memory.
    pub(crate) places: Vec<(u32, Box<Piece>)>,
    /// Each is woken once, by the next place that becomes free.
    waiting: Vec<Waker>,
}

/// The places of a pool.
pub(crate) struct Places {
    /// Bytes of a place.
    size: usize,
    free: Mutex<FreePlaces>,
    /// Parts of the buffer at each place: it is free when the last is dropped.
    parts: Box<[AtomicU32]>,
}

impl Places {
    /// So many free places of so many bytes.
    pub(crate) fn new(region: &Arc<Region>, count: u32, size: usize) -> Self {
        let piece = |place| Box::new(Piece::new(region.clone(), place as usize * size, size));
        let places = (0..count).rev().map(|place| (place, piece(place))).collect();
        let free = Mutex::new(FreePlaces { places, waiting: Vec::new() });
        Self { size, free, parts: (0..count).map(|_| AtomicU32::new(0)).collect() }
    }

    pub(crate) fn free(&self) -> MutexGuard<'_, FreePlaces> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has `waker` woken by the next place that becomes free. False: there is a free place already.
    pub(crate) fn wait(&self, waker: &Waker) -> bool {
        let mut free = self.free();
        if !free.places.is_empty() {
            return false;
        }
        if !free.waiting.iter().any(|waiting| waiting.will_wake(waker)) {
            free.waiting.push(waker.clone());
        }
        true
    }

    /// A place is free again, and gets a piece of the region.
    fn give_back(&self, place: u32, mut piece: Box<Piece>) {
        piece.reset(place as usize * self.size, self.size);
        let mut free = self.free();
        free.places.push((place, piece));
        let woken: SmallVec<[Waker; 4]> = free.waiting.drain(..).collect();
        drop(free);
        // A wakeup may run code of the program, which may use the pool.
        woken.into_iter().for_each(Waker::wake);
    }
}

/// The place in a pool that a buffer returns to. Each part of a buffer has one.
pub(crate) struct Home {
    places: Arc<Places>,
    place: u32,
}

impl Home {
    /// Takes a free place, with its memory.
    pub(crate) fn take(places: &Arc<Places>) -> Option<(Self, Box<Piece>)> {
        let (place, piece) = places.free().places.pop()?;
        places.parts[place as usize].store(1, Ordering::Relaxed);
        Some((Self { places: places.clone(), place }, piece))
    }

    pub(crate) fn is_same(one: Option<&Self>, other: Option<&Self>) -> bool {
        match (one, other) {
            (Some(one), Some(other)) => Arc::ptr_eq(&one.places, &other.places) && one.place == other.place,
            (None, None) => true,
            _ => false,
        }
    }

    /// That of one more part of the buffer.
    pub(crate) fn another(&self) -> Self {
        self.places.parts[self.place as usize].fetch_add(1, Ordering::Relaxed);
        Self { places: self.places.clone(), place: self.place }
    }

    /// Ends the pool, whose free places keep its region, if neither the pool nor another buffer of it exists.
    pub(crate) fn end_pool(self) -> Result<(), Self> {
        let Self { places, place } = self;
        Arc::try_unwrap(places).map(drop).map_err(|places| Self { places, place })
    }

    /// A part of the buffer is dropped.
    pub(crate) fn give_back(self, piece: Box<Piece>) {
        // The parts are used before this by the threads that drop them; the last of them sees all of that.
        if self.places.parts[self.place as usize].fetch_sub(1, Ordering::AcqRel) == 1 {
            self.places.give_back(self.place, piece);
        }
    }
}

impl fmt::Debug for Places {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Places").field("size", &self.size).field("free", &self.free().places.len()).finish()
    }
}
