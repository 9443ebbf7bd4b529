//! Which ends of a connection are open: whether either side may still send, and why not, without I/O.

use std::ffi::c_int;

use crate::wire::ControlMessage;

/// The two ends of an established connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SocketAddresses {
    readable: bool,
    writable: bool,
    /// The peer has closed its sending end: no more data comes, whatever happens to the connection.
    ended: bool,
    /// Either side has sent DISCONNECT.
    disconnected: bool,
    /// What broke the connection, as an errno.
    broken: Option<c_int>,
    /// The program has closed its sending end.
    shut: bool,
    /// The program knows what broke the connection.
    told: bool,
}

impl Default for SocketAddresses {
    fn default() -> Self {
        Self {
            readable: true,
            writable: true,
            ended: false,
            disconnected: false,
            broken: None,
            shut: false,
            told: false,
        }
    }
}

impl SocketAddresses {
    /// Whether more data may come.
    #[must_use]
    pub fn is_readable(&self) -> bool {
        self.readable
    }

    /// Whether the peer has sent all data. A receive then returns 0, also when the connection is lost later.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Whether data may be sent.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// Whether the connection is over, in order or not.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.disconnected || self.broken.is_some()
    }

    /// Whether both sides have closed the ends that they send by, as far as the program may know, or the connection is broken. A peer
    /// that has closed its socket has closed one.
    #[must_use]
    pub fn has_hung_up(&self) -> bool {
        !self.readable && (self.shut || self.broken.is_some())
    }

    /// What broke the connection.
    #[must_use]
    pub fn broken(&self) -> Option<c_int> {
        self.broken
    }

    /// What broke the connection, if it hasn't been reported to the program.
    #[must_use]
    pub fn error(&self) -> Option<c_int> {
        self.broken.filter(|_| !self.told)
    }

    /// The same, and it counts as reported: as of a socket, an error is reported once.
    pub fn take_error(&mut self) -> Option<c_int> {
        let error = self.error();
        self.told |= error.is_some();
        error
    }

    /// The peer has sent a message about its ends.
    pub fn received(&mut self, control: ControlMessage) {
        self.ended |= !self.is_over() && control != ControlMessage::KeepAlive;
        match control {
            ControlMessage::KeepAlive => {}
            ControlMessage::Shutdown if self.writable => self.readable = false,
            ControlMessage::Shutdown | ControlMessage::Disconnect => self.disconnect(),
        }
    }

    /// Both sides are done, or need no message any more.
    pub fn disconnect(&mut self) {
        self.disconnected = true;
        self.readable = false;
        self.writable = false;
    }

    /// The connection is lost. What comes after its end changes nothing. A reset by a peer that has sent all data is EPIPE, as of a TCP
    /// socket in CLOSE_WAIT.
    pub fn fail(&mut self, errno: c_int) {
        if !self.is_over() {
            let is_late_reset = self.ended && errno == libc::ECONNRESET;
            self.broken = Some(if is_late_reset { libc::EPIPE } else { errno });
            self.readable = false;
            self.writable = false;
        }
    }

    /// The program closes ends; returns the message for the peer.
    pub fn shut(&mut self, reading: bool, writing: bool) -> Option<ControlMessage> {
        self.shut |= writing;
        if self.is_over() {
            return None;
        }
        let (could_read, could_write) = (self.readable, self.writable);
        self.readable &= !reading;
        self.writable &= !writing;
        match (self.readable, self.writable) {
            (false, false) if could_write || reading && could_read => Some(ControlMessage::Disconnect),
            (true, false) if could_write => Some(ControlMessage::Shutdown),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_end_that_is_shut_alone_leaves_the_other() {
        let (mut a, mut b) = (SocketAddresses::default(), SocketAddresses::default());
        let told = a.shut(false, true).expect("a message for the peer");
        b.received(told);
        assert_eq!((told, a.is_readable(), b.is_writable()), (ControlMessage::Shutdown, true, true));
        assert!(!a.is_writable() && !b.is_readable() && !a.is_over() && !b.is_over());
        let told = b.shut(false, true).expect("a message for the peer");
        assert_eq!(told, ControlMessage::Disconnect);
        a.received(told);
        assert!(a.is_over());
    }

    #[test]
    fn shutting_reading_alone_is_told_nobody() {
        let mut ends = SocketAddresses::default();
        assert_eq!(ends.shut(true, false), None);
        assert_eq!(ends.shut(false, true), Some(ControlMessage::Disconnect));
        assert_eq!(ends.shut(true, true), None);
    }

    #[test]
    fn a_peer_that_closes_its_socket_has_not_hung_up_alone() {
        let mut ends = SocketAddresses::default();
        ends.received(ControlMessage::Disconnect);
        assert!(ends.is_over() && !ends.has_hung_up());
        ends.shut(false, true);
        assert!(ends.has_hung_up());
    }

    #[test]
    fn an_error_is_reported_once() {
        let mut ends = SocketAddresses::default();
        assert_eq!(ends.take_error(), None);
        ends.fail(libc::ECONNRESET);
        assert_eq!((ends.error(), ends.take_error()), (Some(libc::ECONNRESET), Some(libc::ECONNRESET)));
        assert_eq!((ends.error(), ends.take_error(), ends.broken()), (None, None, Some(libc::ECONNRESET)));
    }

    #[test]
    fn a_peer_that_has_sent_all_data_ends_them_also_if_it_resets_the_connection_later() {
        let mut ends = SocketAddresses::default();
        assert!(!ends.has_ended());
        ends.received(ControlMessage::KeepAlive);
        assert!(!ends.has_ended());
        ends.received(ControlMessage::Shutdown);
        ends.fail(libc::ECONNRESET);
        assert_eq!((ends.has_ended(), ends.take_error()), (true, Some(libc::EPIPE)));
        // What is left in a queue after a reset isn't looked at.
        let mut ends = SocketAddresses::default();
        ends.fail(libc::ECONNRESET);
        ends.received(ControlMessage::Shutdown);
        assert_eq!((ends.has_ended(), ends.take_error()), (false, Some(libc::ECONNRESET)));
    }

    #[test]
    fn what_breaks_after_the_end_is_no_error() {
        let mut ends = SocketAddresses::default();
        ends.received(ControlMessage::Disconnect);
        ends.fail(libc::EIO);
        assert_eq!(ends.broken(), None);
    }

    proptest! {
        #[test]
        fn ends_never_open_again(steps in proptest::collection::vec(0..6u8, 0..20)) {
            let mut ends = SocketAddresses::default();
            for step in steps {
                let before = ends;
                match step {
                    0 => { ends.shut(true, false); }
                    1 => { ends.shut(false, true); }
                    2 => { ends.shut(true, true); }
                    3 => ends.received(ControlMessage::Shutdown),
                    4 => ends.received(ControlMessage::Disconnect),
                    _ => ends.fail(libc::ECONNRESET),
                }
                prop_assert!(!ends.is_readable() || before.is_readable());
                prop_assert!(!ends.is_writable() || before.is_writable());
                prop_assert!(ends.is_over() || !before.is_over());
                prop_assert!(!ends.is_over() || !ends.is_readable() && !ends.is_writable());
            }
        }
    }
}
