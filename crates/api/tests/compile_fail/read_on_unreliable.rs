//! E0277: an unreliable connection has no READ.
use ferroce::verbs::{Read, Send, UcQp};
use ferroce::{Buffer, Remote, rights};

pub fn f(qp: &mut UcQp, buffer: Buffer, from: Remote<rights::Read>) {
    let _ = qp.post(1, Send::new(()));
    let read = Read::new(buffer, from);
    let _ = qp.post(2, read); // WRONG
}
