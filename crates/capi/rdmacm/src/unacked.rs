//! Events of an id that the program has got and not acknowledged: what ends or moves the id waits for them.

use std::collections::BTreeMap;
use std::ffi::c_int;

use ferroce_ibverbs::check::{self, Trace};
use ferroce_nic as nic;
use ferroce_os::sync::{Mutex, class};

use crate::names;

/// How many there are.
#[derive(Default)]
pub(crate) struct Unacked {
    all: nic::Unacked,
    /// Those that the program has, by their numbers.
    told: Mutex<class::CmUnacked, BTreeMap<c_int, Told>>,
}

/// Events with one number.
struct Told {
    count: u32,
    /// Where the program got the first of them, for the checker.
    place: Option<Trace>,
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
        let mut told = self.told.lock();
        told.entry(event).or_insert_with(|| Told { count: 0, place: check::place_now() }).count += 1;
    }

    /// The program acknowledges one that it was told of.
    pub(crate) fn ack(&self, event: c_int) {
        let mut told = self.told.lock();
        if let Some(of_number) = told.get_mut(&event) {
            of_number.count -= 1;
            if of_number.count == 0 {
                told.remove(&event);
            }
        }
        drop(told);
        // The id may be gone as soon as nothing is left.
        self.all.ack(1);
    }

    /// Waits until all are acknowledged, for ever if need be. After a second a line says that `caller` waits, and for which.
    pub(crate) fn wait(&self, caller: impl FnOnce() -> String) {
        self.all.wait(|_| {
            let mut told = self.told.lock();
            let known: Vec<String> = told
                .iter()
                .map(|(&event, told)| format!("{} {}", told.count, names::written(event)))
                .collect();
            let place = told.values_mut().find_map(|told| told.place.take());
            drop(told);
            check::waits(caller(), known.join(", "), place.as_ref());
        });
    }
}
