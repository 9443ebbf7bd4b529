//! unused_must_use: a refused request gives its memory back.
use ferroce::Buffer;
use ferroce::verbs::{RcQp, Send};

pub fn f(qp: &mut RcQp, buffer: Buffer) {
    let _ = qp.post(1, Send::new(buffer));
    qp.post(1, Send::new(())); // WRONG
}
