//! E0599: a scope ends with the answers of a peer.
use ferroce::verbs::{Cq, UdQp};

pub fn f(qp: &mut UdQp, cq: &mut Cq) {
    let _ = (qp.number(), cq.poll().is_ok());
    let _ = qp.scope(cq, |_| ()); // WRONG
}
