//! Events of an id that the program has got and not acknowledged: what ends or moves the id waits for them.

use std::ffi::c_int;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use ferroce_ibverbs::check::{self, Trace};
use ferroce_nic as nic;

use crate::names;

/// How many there are.
#[derive(Default)]
pub(crate) struct Unacked {
    all: nic::Unacked,
    /// Those that the program has, by their numbers.
    by_event: [AtomicU32; names::EVENTS],
    /// Where the program got the first one, for the checker.
    taken: OnceLock<Option<Box<Trace>>>,
}

impl Unacked {
    /// One is taken out of the channel. The channel is locked.
    pub(crate) fn got(&self) {
        self.all.got();
    }

    /// The program isn't told of one that was taken.
    pub(crate) fn untold(&self) {
        self.all.ack(1);
    }

    /// The program is told of one that was taken.
    pub(crate) fn told(&self, event: c_int) {
        if let Some(count) = self.count(event) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        self.taken.get_or_init(|| check::place_now().map(Box::new));
    }

    /// The program acknowledges one that it was told of.
    pub(crate) fn ack(&self, event: c_int) {
        if let Some(count) = self.count(event) {
            count.fetch_sub(1, Ordering::Relaxed);
        }
        // The id may be gone as soon as nothing is left.
        self.all.ack(1);
    }

    fn count(&self, event: c_int) -> Option<&AtomicU32> {
        self.by_event.get(usize::try_from(event).ok()?)
    }

    /// Waits until all are acknowledged, for ever if need be. After a second a line says that `caller` waits, and for which.
    pub(crate) fn wait(&self, caller: impl FnOnce() -> String) {
        self.all.wait(|_| {
            let known: Vec<String> = (0..names::EVENTS)
                .filter_map(|event| match self.by_event[event].load(Ordering::Relaxed) {
                    0 => None,
                    count => Some(format!("{count} {}", names::written(event as c_int))),
                })
                .collect();
            let taken = self.taken.get().and_then(Option::as_deref);
            check::waits(caller(), known.join(", "), taken);
        });
    }
}
