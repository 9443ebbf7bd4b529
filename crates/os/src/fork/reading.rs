//! Reading without a lock what other threads may take away: a few plain instructions for the reader. A thread that takes something away
//! first makes sure that it isn't found any more, and then waits for the threads that are reading; the wait orders their words
//! for all threads at once, as a fork does.
//!
//! There are two kinds of readers. A [`ForkReader`] looks something up, which takes no time ([`wait_for_readers`]). An [`InUse`] names one thing
//! and may last as long as a page fault of the program's memory: only a thread that takes this very thing away waits for it
//! ([`wait_for_users`]).

use super::barrier::{order, order_all};
use super::gate::{ThreadSlot, own_place, places};
use super::reading_word::ReadingFlag;
use super::using_word::Using;
use crate::{Patience, sys};
use std::marker::PhantomData;
use std::time::Duration;

/// Looks at a thread that is reading before the wait sleeps in between.
const YIELDS: u32 = 100;
const ROUND: Duration = Duration::from_micros(50);
/// The longest wait. A reader that takes longer was stopped; a use is also held up by what the program has made of its memory:
/// userfaultfd(2), FUSE.
const LIMIT: Duration = Duration::from_secs(1);

/// While this lives, what this thread finds stays. Its owner takes no lock that is held over [`wait_for_readers`], and does nothing
/// that takes long.
pub struct ForkReader {
    reading: &'static ReadingFlag,
    /// The word is this thread's.
    _not_send: PhantomData<*const ()>,
}

impl ForkReader {
    /// `None` in a thread that has never been in the library: it has to take locks.
    #[inline]
    #[must_use]
    pub fn enter() -> Option<Self> {
        let place = own_place()?;
        place.reading.enter(order);
        Some(Self { reading: &place.reading, _not_send: PhantomData })
    }
}

impl Drop for ForkReader {
    #[inline]
    fn drop(&mut self) {
        self.reading.leave();
    }
}

/// While this lives, what this thread finds by one name stays. Its owner may touch the program's memory.
pub struct InUse {
    using: &'static Using,
    /// The word is this thread's.
    _not_send: PhantomData<*const ()>,
}

impl InUse {
    /// A use of what has this name. `None` in a thread that has never been in the library, and in one that has a use already: it has to
    /// take locks.
    #[inline]
    #[must_use]
    pub fn enter(name: u32) -> Option<Self> {
        let place = own_place()?;
        place.using.enter(name, order).then_some(Self { using: &place.using, _not_send: PhantomData })
    }
}

impl Drop for InUse {
    #[inline]
    fn drop(&mut self) {
        self.using.leave();
    }
}

/// A grace period: waits until every other thread has left the read section ([`ForkReader`]) that it was in. A signal's handler that
/// interrupts a reader doesn't wait for its own thread. False: after a second a thread is still reading.
#[must_use]
pub fn wait_for_readers() -> bool {
    wait_for_all(|place| {
        let seen = place.reading.seen();
        move || place.reading.has_left(seen)
    })
}

/// As [`wait_for_readers`], for the uses of what has this name.
#[must_use]
pub fn wait_for_users(name: u32) -> bool {
    wait_for_all(|place| {
        let seen = place.using.seen();
        move || !Using::names(seen, name) || place.using.has_left(seen)
    })
}

/// Waits for each other thread until it `has_left`, as seen first when the wait begins with it.
fn wait_for_all<F: Fn() -> bool>(has_left: impl Fn(&'static ThreadSlot) -> F) -> bool {
    order_all();
    let mut patience = Patience::new(LIMIT, ROUND);
    let own = own_place().map(std::ptr::from_ref);
    for place in places().filter(|&place| own != Some(std::ptr::from_ref(place))) {
        let has_left = has_left(place);
        let mut rounds = 0;
        while !has_left() {
            rounds += 1;
            if rounds <= YIELDS {
                sys::yield_processor();
            } else if patience.has_ended() {
                return false;
            } else {
                sys::pause(ROUND);
            }
        }
    }
    true
}
