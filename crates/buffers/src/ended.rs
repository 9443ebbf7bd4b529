//! Completions, as each backend reports them.

use crate::Fault;
use ferroce_types::{Completion, WcStatus};

/// When a request ended.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stamp {
    /// By the device's clock, in its units.
    pub clock: u64,
    /// In nanoseconds since 1970.
    pub wall_clock: u64,
}

/// What of a [`Stamp`] a completion queue is made for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stamped {
    /// [`Stamp::clock`].
    pub clock: bool,
    /// [`Stamp::wall_clock`].
    pub wall_clock: bool,
}

/// A completion of an adapter.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ended {
    /// What the adapter reports. Of a request that has failed, only the numbers of the request and of its queue pair count.
    pub completion: Completion,
    /// When the request ended, if the completion queue was made for that.
    pub stamp: Stamp,
}

/// Completions that were taken from an adapter together, the oldest first.
#[derive(Debug, Default)]
pub struct Polled {
    ended: Vec<Ended>,
    /// Why requests have failed, by their places in `ended`.
    faults: Vec<(usize, Fault)>,
    /// One may have failed, or has invalidated a key.
    is_unusual: bool,
}

impl Polled {
    /// Forgets them.
    #[inline]
    pub fn clear(&mut self) {
        self.ended.clear();
        if self.is_unusual {
            self.faults.clear();
            self.is_unusual = false;
        }
    }

    /// Makes room for so many more.
    #[inline]
    pub fn reserve(&mut self, more: usize) {
        self.ended.reserve(more);
    }

    /// Adds one. If the request has failed, [`Polled::fail`] or [`Polled::explain`] follows.
    #[inline]
    pub fn push(&mut self, completion: &Completion, stamp: Stamp) {
        self.is_unusual |= completion.status != WcStatus::Success || completion.invalidated_rkey().is_some();
        self.ended.push(Ended { completion: *completion, stamp });
    }

    /// The last one has failed.
    pub fn fail(&mut self, fault: Fault) {
        self.is_unusual = true;
        self.faults.push((self.ended.len() - 1, fault));
    }

    /// Adds the faults of those with a bad status, from this place on.
    #[inline]
    pub fn explain(&mut self, first: usize, fault: impl FnMut(&Completion) -> Fault) {
        if self.is_unusual {
            self.explain_each(first, fault);
        }
    }

    #[cold]
    fn explain_each(&mut self, first: usize, mut fault: impl FnMut(&Completion) -> Fault) {
        for (place, Ended { completion, .. }) in self.ended.iter().enumerate().skip(first) {
            if completion.status != WcStatus::Success {
                self.faults.push((place, fault(completion)));
            }
        }
    }

    /// Whether one may have failed, or has invalidated a key.
    #[must_use]
    #[inline]
    pub const fn is_unusual(&self) -> bool {
        self.is_unusual
    }

    /// The one at this place.
    #[must_use]
    #[inline]
    pub fn get(&self, place: usize) -> Option<&Ended> {
        self.ended.get(place)
    }

    /// Why the request of the one at this place has failed, if it has.
    #[must_use]
    #[inline]
    pub fn fault(&self, place: usize) -> Option<&Fault> {
        if self.is_unusual { self.find_fault(place) } else { None }
    }

    #[cold]
    fn find_fault(&self, place: usize) -> Option<&Fault> {
        self.faults.iter().find(|(of, _)| *of == place).map(|(_, fault)| fault)
    }

    /// Number of completions.
    #[must_use]
    #[inline]
    pub const fn len(&self) -> usize {
        self.ended.len()
    }

    /// There are none.
    #[must_use]
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.ended.is_empty()
    }
}
