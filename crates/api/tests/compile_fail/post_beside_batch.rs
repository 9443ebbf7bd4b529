//! E0499: a batch has the queue pair for itself.
use ferroce::verbs::{RcQp, Send};

pub fn f(qp: &mut RcQp) {
    let batch = qp.batch();
    let _ = qp.post(1, Send::new(())); // WRONG
    batch.post();
}
