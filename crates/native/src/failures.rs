//! The first failure of each queue pair, so that a completion can name it.

use ferroce_buffers::{Fault, Status};
use ferroce_explain::{Report, RequestOutcome, Subject, sentence, title};
use ferroce_parts::voice;
use ferroce_types::{WcStatus, vendor_err};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// By QPN: the number of the reason, and the fault.
type Failures = BTreeMap<u32, Option<(u16, Fault)>>;

static FAILURES: Mutex<Failures> = Mutex::new(BTreeMap::new());

/// For threads in the library, so that a fork waits until it is unlocked.
fn failures() -> MutexGuard<'static, Failures> {
    FAILURES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notes the failures of a new queue pair.
pub(crate) fn watch(qpn: u32) {
    voice::keep(note);
    failures().insert(qpn, None);
}

/// The queue pair has ended.
pub(crate) fn forget(qpn: u32) {
    failures().remove(&qpn);
}

fn note(report: &Report) {
    let status = match report.subject {
        // The queue pair goes on.
        Subject::Dropped | Subject::Request { outcome: RequestOutcome::Waits, .. } => return,
        Subject::Request { outcome: RequestOutcome::Ends(status), .. } => status,
        Subject::Refusal { .. } | Subject::QueuePair => WcStatus::WrFlushErr,
    };
    let number = report.reason.number();
    if let Some(first @ None) = failures().get_mut(&report.qpn) {
        let fault =
            Fault::new(of(status as u32), vendor_err(number), Some(sentence(&report.reason).into()), None);
        *first = Some((number, fault));
    }
}

fn of(status: u32) -> Status {
    Status::from_number(status).unwrap_or(Status::Other(0))
}

/// Why a request has failed.
#[cold]
pub(crate) fn fault(qpn: u32, status: u32, number: u16) -> Fault {
    let first = failures().get(&qpn).cloned().flatten();
    let status = of(status);
    if status == Status::Flushed {
        return Fault::new(status, vendor_err(number), None, first.map(|(_, first)| first));
    }
    let reason = match first {
        Some((of_first, first)) if of_first == number => first.reason().map(Arc::from),
        _ => (number != 0).then(|| title(number).into()),
    };
    Fault::new(status, vendor_err(number), reason, None)
}
