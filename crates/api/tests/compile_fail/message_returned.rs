//! E0505: the buffer of a dropped message receives another one.
use ferroce::Result;
use ferroce::session::Connection;

pub fn f(peer: &Connection) -> Result<usize> {
    let message = peer.recv_blocking()?;
    let bytes = &message[..];
    drop(message); // WRONG
    Ok(bytes.len())
}
