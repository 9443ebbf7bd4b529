//! E0382: a buffer that is under way belongs to the connection.
use ferroce::session::Connection;
use ferroce::{Buffer, Result};

pub async fn f(peer: &Connection, buffer: Buffer) -> Result<usize> {
    let sent = peer.send(buffer);
    let _ = buffer.len(); // WRONG
    Ok(sent.await?.len())
}
