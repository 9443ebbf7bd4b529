//! Events of an id that the program has got and not acknowledged: what ends or moves the id waits for them.

use std::collections::BTreeMap;
use std::ffi::c_int;

use ferroce_check::{self as check, CallTrace};
use ferroce_os::sync::{Mutex, class};

use crate::names;

/// How many there are.
#[derive(Default)]
pub(crate) struct UnackedEvents {
    all: ferroce_queues::Unacked,
    /// Those that the program has, by their numbers.
    delivered: Mutex<class::CmUnacked, BTreeMap<c_int, Delivered>>,
}

/// Events with one number.
struct Delivered {
    count: u32,
    /// Where the program got the first of them, for the checker.
    place: Option<CallTrace>,
}

impl UnackedEvents {
    /// One is taken out of the channel. The channel is locked.
    pub(crate) fn got(&self) {
        self.all.got();
    }

    /// An event that was taken isn't delivered.
    pub(crate) fn undelivered(&self) {
        self.all.ack(1);
    }

    /// An event that was taken is delivered to the program.
    pub(crate) fn delivered(&self, event: c_int) {
        let mut delivered = self.delivered.lock();
        delivered.entry(event).or_insert_with(|| Delivered { count: 0, place: check::place_now() }).count +=
            1;
    }

    /// The program acknowledges a delivered event.
    pub(crate) fn ack(&self, event: c_int) {
        let mut delivered = self.delivered.lock();
        if let Some(of_number) = delivered.get_mut(&event) {
            of_number.count -= 1;
            if of_number.count == 0 {
                delivered.remove(&event);
            }
        }
        drop(delivered);
        // The id may be gone as soon as nothing is left.
        self.all.ack(1);
    }

    /// Waits until all are acknowledged, for ever if need be. After a second it logs that `caller` waits, and for which events.
    pub(crate) fn wait(&self, caller: impl FnOnce() -> String) {
        self.all.wait(|_| {
            let mut delivered = self.delivered.lock();
            let known: Vec<String> = delivered
                .iter()
                .map(|(&event, of_number)| format!("{} {}", of_number.count, names::written(event)))
                .collect();
            let place = delivered.values_mut().find_map(|of_number| of_number.place.take());
            drop(delivered);
            check::waits(caller(), known.join(", "), place.as_ref());
        });
    }
}
