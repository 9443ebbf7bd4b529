//! Results that are awaited: a QP that hasn't been notified of a result finds that it may come.

use crate::explore;
use crate::protocol::{AwaitedCells, NO_CELL};
use loom::sync::Mutex;
use loom::thread;
use std::sync::Arc;

/// The cell whose result has come, and one that is sent later.
const COME: u64 = 10;
const LATER: u64 = 20;

struct Awaiting {
    cells: AwaitedCells,
    /// The cells whose results are awaited.
    unacked: Mutex<Vec<u64>>,
    /// The QP that has sent the first cell: whether it has been notified.
    qp: Mutex<bool>,
}

#[test]
fn a_result_is_to_come_until_its_qp_has_been_notified() {
    explore(3, || {
        let cells = AwaitedCells::new();
        cells.set_first(COME);
        let shared = Arc::new(Awaiting { cells, unacked: Mutex::new(vec![COME]), qp: Mutex::new(false) });
        let other = shared.clone();
        let reader = thread::spawn(move || {
            let mut unacked = other.unacked.lock().unwrap();
            other.cells.begin_notifying();
            unacked.remove(0);
            other.cells.set_first(unacked.first().copied().unwrap_or(NO_CELL));
            drop(unacked);
            *other.qp.lock().unwrap() = true;
            other.cells.end_notifying();
        });
        let other = shared.clone();
        let sender = thread::spawn(move || {
            let mut unacked = other.unacked.lock().unwrap();
            if unacked.is_empty() {
                other.cells.set_first(LATER);
            }
            unacked.push(LATER);
        });
        {
            let is_notified = shared.qp.lock().unwrap();
            let may_come = shared.cells.may_come_before(COME + 1, |first| first == COME);
            assert!(may_come || *is_notified);
        }
        reader.join().unwrap();
        sender.join().unwrap();
        assert!(!shared.cells.may_come_before(LATER, |_| true));
        assert!(shared.cells.may_come_before(LATER + 1, |first| first == LATER));
    });
}
