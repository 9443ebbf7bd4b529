//! E0382: a posted buffer belongs to the queue pair.
use ferroce::{Buffer, Result};
use ferroce::verbs::{RcQp, Send};

pub fn f(qp: &mut RcQp, buffer: Buffer) -> Result<()> {
    qp.post(1, Send::new(buffer))?;
    let _ = buffer.len(); // WRONG
    Ok(())
}
