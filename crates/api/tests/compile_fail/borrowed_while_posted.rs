//! E0505: a buffer isn't posted while it is borrowed.
use ferroce::{Buffer, Result};
use ferroce::verbs::{RcQp, Send};

pub fn f(qp: &mut RcQp, buffer: Buffer) -> Result<()> {
    let bytes = &buffer[..];
    qp.post(1, Send::new(buffer))?;
    let _ = bytes.len(); // WRONG
    Ok(())
}
