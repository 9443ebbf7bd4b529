//! A target's connection to a process with SRQs of its domain, and the bytes that go over connections of XRC.

use crate::handle_message;
use crate::message::{self, ReadRange};
use ferroce_host::frame;
use ferroce_os::sys::EngineFd;
use ferroce_proto::{DelegateError, Payload};
use ferroce_types::AsyncEvent;
use ferroce_wire::Headers;
use std::collections::VecDeque;
use std::io::ErrorKind;
use std::sync::Arc;

/// So many requests are reported even if no receive waits for one of them: their count doesn't overflow.
const MOST_UNREPORTED: u32 = 1 << 16;

/// A target's connection to a process with SRQs of its domain.
#[derive(Debug)]
pub struct SrqProcess {
    /// The process's.
    pub slot: u16,
    number: u64,
    connection: Arc<EngineFd>,
    /// It has answered the first message, and executes requests.
    pub is_reached: bool,
    outcomes: UnreportedOutcomes,
}

/// Requests that another process has executed. Their receives complete there when the acknowledgement is reported.
#[derive(Default, Debug)]
struct UnreportedOutcomes {
    /// Oldest first: the number of a request that a receive may wait for, and how many requests it is with those before it that none waits for. So
    /// the program's receives there bound the length, but for one entry in [`MOST_UNREPORTED`] requests.
    unacknowledged: VecDeque<(u64, u32)>,
    /// Requests after those.
    others: u32,
    /// Acknowledged, and not reported because the connection took nothing.
    acknowledged: u32,
}

impl SrqProcess {
    /// The process with this slot is asked over a connection.
    pub(crate) fn asked(slot: u16, number: u64, connection: Arc<EngineFd>) -> Self {
        Self { slot, number, connection, is_reached: false, outcomes: UnreportedOutcomes::default() }
    }

    /// The number of the connection, which no other connection of this process has.
    #[inline]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Gives a request away.
    ///
    /// # Errors
    /// [`DelegateError::Full`] when the connection takes no more, or the payload can't be had.
    pub fn execute(
        &self,
        headers: &Headers,
        payload: &impl Payload,
        run: u32,
    ) -> std::result::Result<(), DelegateError> {
        let Some((mut bytes, at)) = message::execute(headers, payload.len(), run) else {
            return Err(DelegateError::Gone);
        };
        payload.copy(&mut bytes[at..]).map_err(|_| DelegateError::Full)?;
        frame::send(self.connection.checked(), &mut bytes, &[]).map_err(|error| match error.raw_os_error() {
            Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => DelegateError::Full,
            _ => DelegateError::Gone,
        })
    }

    /// The process has executed a request with this number, or hasn't looked at it. `receives`: a receive may wait for the acknowledgement.
    pub fn note_outcome(&mut self, number: u64, receives: bool) {
        let UnreportedOutcomes { unacknowledged, others, .. } = &mut self.outcomes;
        *others += 1;
        if receives || *others >= MOST_UNREPORTED {
            unacknowledged.push_back((number, std::mem::take(others)));
        }
    }

    /// The initiator has the answers to all requests before this number, or gets none: reports that to the process if a receive waits for it,
    /// or if there are many.
    pub fn report_acknowledged(&mut self, from: u64) {
        let UnreportedOutcomes { unacknowledged, acknowledged, .. } = &mut self.outcomes;
        while let Some(&(number, count)) = unacknowledged.front()
            && number < from
        {
            unacknowledged.pop_front();
            *acknowledged += count;
        }
        // If the connection takes nothing now, the process still has requests to answer, and each answer comes back here.
        if *acknowledged > 0 && send(&self.connection, &mut message::acknowledged(*acknowledged)) {
            *acknowledged = 0;
        }
    }

    /// Asks for bytes of the other process's memory.
    pub fn fetch(&self, range: &ReadRange) -> bool {
        send(&self.connection, &mut message::fetch(range))
    }
}

/// The bytes of the next message; `Some(None)` when there is none, `None` when there will be none.
pub fn receive(connection: &EngineFd, bytes: &mut [u8]) -> Option<Option<usize>> {
    loop {
        return match frame::receive(connection.checked(), bytes) {
            Ok((len, _)) if len > 0 => Some(Some(len)),
            Err(e) if e.kind() == ErrorKind::WouldBlock => Some(None),
            // Returned once if the other end was closed with unread messages: the messages that it has sent can still be read.
            Err(e) if e.kind() == ErrorKind::ConnectionReset => continue,
            _ => None,
        };
    }
}

/// Sends a message. Never blocks.
pub fn send(connection: &EngineFd, bytes: &mut [u8]) -> bool {
    frame::send(connection.checked(), bytes, &[]).is_ok()
}

/// Grants another process a handle of a target. Never blocks.
pub fn grant_handle(connection: &EngineFd) -> bool {
    send(connection, &mut frame::header(frame::GRANTED))
}

/// Sends another process an event. The event is lost if the process doesn't read its messages. Never blocks.
pub fn send_event(connection: &EngineFd, event: AsyncEvent) {
    if let Some(mut bytes) = handle_message::event(event) {
        send(connection, &mut bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroce_os::sys;
    use std::os::unix::net::UnixDatagram;

    #[test]
    fn a_connection_whose_number_has_become_the_programs_has_ended() {
        let [connection, _other] = sys::socket_pair(libc::SOCK_SEQPACKET).unwrap();
        let (program, peer) = UnixDatagram::pair().unwrap();
        ferroce_tests::take_number(connection.raw(), &program);
        peer.send(b"the program's").unwrap();
        let mut bytes = [0; 64];
        assert_eq!(receive(&connection, &mut bytes), None);
        assert!(!send(&connection, &mut bytes));
        let (connection, outcomes) = (Arc::new(connection), UnreportedOutcomes::default());
        let reached = SrqProcess { slot: 1, number: 1, connection, is_reached: true, outcomes };
        assert!(!reached.fetch(&ReadRange { srqn: 1, rkey: 1, va: 0, len: 1 }));
        assert_eq!(program.recv(&mut bytes).unwrap(), b"the program's".len());
        peer.set_nonblocking(true).unwrap();
        assert_eq!(peer.recv(&mut bytes).unwrap_err().kind(), ErrorKind::WouldBlock);
    }

    #[test]
    fn acknowledgements_are_reported_where_a_receive_waits_for_them() {
        let [connection, other] = sys::socket_pair(libc::SOCK_SEQPACKET).unwrap();
        let (connection, outcomes) = (Arc::new(connection), UnreportedOutcomes::default());
        let mut process = SrqProcess { slot: 1, number: 1, connection, is_reached: true, outcomes };
        let mut bytes = [0; 64];
        let mut reported = || match receive(&other, &mut bytes) {
            Some(Some(len)) => match message::parse_request(&bytes[..len]) {
                Some(message::TargetRequest::Acknowledged(count)) => Some(count),
                other => panic!("{other:?}"),
            },
            Some(None) => None,
            None => panic!("the connection has ended"),
        };
        for (number, receives) in [(10, false), (11, true), (12, false), (13, true), (14, false)] {
            process.note_outcome(number, receives);
        }
        process.report_acknowledged(11);
        assert_eq!(reported(), None);
        process.report_acknowledged(12);
        assert_eq!(reported(), Some(2));
        process.report_acknowledged(u64::MAX);
        assert_eq!((reported(), reported()), (Some(2), None), "no receive waits for the last");
        process.note_outcome(15, true);
        process.report_acknowledged(u64::MAX);
        assert_eq!((reported(), reported()), (Some(2), None));
        (16..16 + u64::from(MOST_UNREPORTED)).for_each(|number| process.note_outcome(number, false));
        process.report_acknowledged(u64::MAX);
        assert_eq!((reported(), reported()), (Some(MOST_UNREPORTED), None), "many that no receive waits for");
    }
}
