//! Memory that the peer may write: riomap(3) and riounmap(3).

use ferroce_rsocket_calls::call::{Outcome, SocketRefusal};

use super::StreamSocket;

impl StreamSocket {
    pub(crate) fn map(&self, memory: (usize, usize), write: bool, offset: Option<u64>) -> Outcome<u64> {
        let (mut mapped, until) = (None, self.lock()?.options.send_deadline());
        let told = self.core.wait(false, until, |state| {
            let pd = match state.id() {
                Ok(id) => id.pd(),
                Err(refusal) => return Some(Err(refusal)),
            };
            let connection = match state.connection() {
                Ok(connection) => connection?,
                Err(refusal) => return Some(Err(refusal)),
            };
            if mapped.is_none() {
                match connection.map(pd, memory, write, offset) {
                    Ok(offset) => mapped = Some(offset),
                    Err(refusal) => return Some(Err(refusal)),
                }
            }
            (connection.has_told_mapped() || connection.ends.is_over()).then_some(Ok(()))
        });
        mapped.ok_or_else(|| told.err().unwrap_or_else(|| SocketRefusal::plain(libc::EIO)))
    }

    pub(crate) fn unmap(&self, memory: (usize, usize)) -> Outcome<()> {
        let mut state = self.core.progress()?;
        match state.connection()? {
            Some(connection) => connection.unmap(memory),
            None => Err(SocketRefusal::plain(libc::ENOTCONN)),
        }
    }
}
