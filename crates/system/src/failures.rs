//! The first failure of each queue pair of a device, so that a flush can name it.

use ferroce_buffers::{Fault, Status};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// By QPN.
#[derive(Default)]
pub(crate) struct Failures(Mutex<BTreeMap<u32, Option<Fault>>>);

impl Failures {
    fn map(&self) -> MutexGuard<'_, BTreeMap<u32, Option<Fault>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// There is a new queue pair.
    pub(crate) fn watch(&self, qpn: u32) {
        self.map().insert(qpn, None);
    }

    /// The queue pair has ended.
    pub(crate) fn forget(&self, qpn: u32) {
        self.map().remove(&qpn);
    }

    /// Why a request of a queue pair has failed.
    #[cold]
    pub(crate) fn fault(&self, qpn: u32, status: Status, vendor_err: u32) -> Fault {
        let mut map = self.map();
        let first = map.get_mut(&qpn);
        if status == Status::Flushed {
            return Fault::new(status, vendor_err, None, first.and_then(|first| first.clone()));
        }
        let fault = Fault::new(status, vendor_err, reason(vendor_err), None);
        if let Some(first @ None) = first {
            *first = Some(fault.clone());
        }
        fault
    }
}

/// On Ferroce's own library the error of the vendor has the number of a reason, whose decimal digits are its last three hexadecimal ones.
fn reason(vendor_err: u32) -> Option<Arc<str>> {
    const FERROCE: u32 = 0xfc;
    let number = vendor_err & 0xfff;
    (vendor_err >> 12 == FERROCE)
        .then(|| format!("FC{number:03x}: see `ferroce explain FC{number:03x}`").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_names_the_first_failure_of_its_queue_pair() {
        let failures = Failures::default();
        failures.watch(3);
        assert!(failures.fault(3, Status::Flushed, 0).first().is_none());
        failures.fault(3, Status::RemoteAccess, 0xf_c034);
        failures.fault(3, Status::RetriesExceeded, 7);
        let flush = failures.fault(3, Status::Flushed, 0);
        let first = flush.first().expect("a failure before");
        assert_eq!((first.status(), first.vendor()), (Status::RemoteAccess, 0xf_c034));
        assert_eq!(first.reason(), Some("FC034: see `ferroce explain FC034`"));
        failures.forget(3);
        assert!(failures.fault(3, Status::Flushed, 0).first().is_none());
        // Other vendors have numbers of their own.
        assert!(failures.fault(3, Status::RemoteAccess, 0x88).reason().is_none());
    }
}
