//! E0277: an unreliable connection can't return a loan.
use ferroce::verbs::{Lend, UcQp};
use ferroce::{Buffer, rights};

pub fn f(qp: &mut UcQp, buffer: Buffer) {
    let lend = Lend::new(buffer, rights::Read);
    let _ = qp.post(1, lend); // WRONG
    let _ = qp.number();
}
