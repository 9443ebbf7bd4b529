//! Reading without a lock what others may take away: a few plain instructions for the reader. Who takes something away first makes sure
//! that nobody finds it any more, and then waits for the threads that are reading ([`wait_for_readers`]); the wait orders their words
//! for all threads at once, as a fork does.

use super::barrier::{order, order_all};
use super::gate::{own_place, places};
use super::reading_word::Reading;
use crate::{Patience, sys};
use std::marker::PhantomData;
use std::time::Duration;

/// Looks at a thread that is reading before the wait sleeps in between.
const YIELDS: u32 = 100;
const ROUND: Duration = Duration::from_micros(50);
/// The longest wait. A thread that reads for so long is held up by what the program has made of its memory: userfaultfd(2), FUSE.
const LIMIT: Duration = Duration::from_secs(1);

/// While this lives, what this thread finds stays. Its owner takes no lock that is held over [`wait_for_readers`], and does nothing
/// that takes long.
pub struct Reader {
    reading: &'static Reading,
    /// The word is this thread's.
    _not_send: PhantomData<*const ()>,
}

impl Reader {
    /// `None` in a thread that has never been in the library: it has to take locks.
    #[inline]
    #[must_use]
    pub fn enter() -> Option<Self> {
        let place = own_place()?;
        place.reading.enter(order);
        Some(Self { reading: &place.reading, _not_send: PhantomData })
    }
}

impl Drop for Reader {
    #[inline]
    fn drop(&mut self) {
        self.reading.leave();
    }
}

/// Waits until no other thread uses what nobody has been able to find since before this call. A thread that reads and is interrupted
/// by a signal's handler doesn't wait for itself there. False: after a second a thread still does.
#[must_use]
pub fn wait_for_readers() -> bool {
    order_all();
    let mut patience = Patience::new(LIMIT, ROUND);
    let own = own_place().map(std::ptr::from_ref);
    for place in places().filter(|&place| own != Some(std::ptr::from_ref(place))) {
        let seen = place.reading.seen();
        let mut rounds = 0;
        while !place.reading.has_left(seen) {
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
