//! E0277: an unreliable connection has no atomics.
use ferroce::verbs::{FetchAdd, UcQp};
use ferroce::{Remote, rights};

pub fn f(qp: &mut UcQp, at: Remote<rights::Atomic>) {
    let add = FetchAdd::new(at, 1);
    let _ = qp.post(1, add); // WRONG
    let _ = qp.number();
}
