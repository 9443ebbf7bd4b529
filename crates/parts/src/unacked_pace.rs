//! A QP's part of the pace of UC and UD.

use crate::path::PeerSocket;
use ferroce_proto::{Pace, Portion, TransmitError};
use ferroce_types::Instant;
use std::sync::{Arc, Weak};

/// How much a QP may send to a destination, of packets that aren't acknowledged.
#[derive(Debug, Default)]
pub struct UnackedPace {
    portion: Portion,
    /// The socket of a peer whose pace the portion is taken from; empty: `own`.
    of: Weak<PeerSocket>,
    /// Towards the QPs of this host that are reached without sockets.
    own: Pace,
}

impl UnackedPace {
    /// May a packet go to this socket of a peer?
    ///
    /// # Errors
    /// [`TransmitError::Later`].
    #[inline]
    pub fn ask(&mut self, socket: &Arc<PeerSocket>, now: Instant, len: usize) -> Result<(), TransmitError> {
        if self.of.as_ptr() != Arc::as_ptr(socket) {
            (self.of, self.portion) = (Arc::downgrade(socket), Portion::default());
        }
        socket.pace.lock().ask(&mut self.portion, now, len as u32).map_err(TransmitError::Later)
    }

    /// May a packet go to this process, or through shared memory?
    ///
    /// # Errors
    /// [`TransmitError::Later`].
    #[inline]
    pub fn ask_own(&mut self, now: Instant, len: usize) -> Result<(), TransmitError> {
        if self.of.as_ptr() != Weak::new().as_ptr() {
            (self.of, self.portion) = (Weak::new(), Portion::default());
        }
        self.own.ask(&mut self.portion, now, len as u32).map_err(TransmitError::Later)
    }
}
