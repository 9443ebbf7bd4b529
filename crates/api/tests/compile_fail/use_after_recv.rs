//! E0382: memory that was posted for a message belongs to the queue pair.
use ferroce::{Buffer, Result};
use ferroce::verbs::RcQp;

pub fn f(qp: &mut RcQp, mut buffer: Buffer) -> Result<()> {
    buffer.set_len(0);
    qp.recv(1, buffer)?;
    buffer.set_len(1); // WRONG
    Ok(())
}
