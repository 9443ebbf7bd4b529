//! E0382: a buffer that is lent belongs to the peer.
use ferroce::verbs::{Lend, RcQp};
use ferroce::{Buffer, rights};

pub fn f(qp: &mut RcQp, buffer: Buffer) {
    let _ = qp.post(1, Lend::new(buffer, rights::Write));
    let _ = buffer.len(); // WRONG
}
