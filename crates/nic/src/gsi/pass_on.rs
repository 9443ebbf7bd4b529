//! MADs from the network for other processes of the host that have too much to read just now.
//!
//! The queue of a UNIX socket has room for ten messages (net.unix.max_dgram_qlen). A peer that isn't answered repeats a request after
//! seconds, so what finds no room is kept for a while and tried again.

use super::{PACKET_LEN, Receiver, TOGETHER};
use ferroce_host::{Delivery, Host};
use ferroce_os::sync::{Mutex, class};
use ferroce_proto::Instant;
use ferroce_types::Datagram;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Between two attempts.
const TRY_AGAIN: Duration = Duration::from_millis(1);
/// How long: a process that is stopped gets them when they are repeated.
const PATIENCE: Duration = Duration::from_secs(1);
/// MADs that are kept; further ones are lost, as on a wire.
const MOST_KEPT: usize = 1024;

/// What is kept.
#[derive(Default)]
pub(super) struct PassOn {
    kept: Mutex<class::GsiPassOn, VecDeque<Kept>>,
    /// When there is something to do; 0: there is nothing.
    due: AtomicU64,
}

struct Kept {
    receiver: Receiver,
    /// Without its bytes.
    datagram: Datagram<'static>,
    bytes: [u8; PACKET_LEN],
    until: Instant,
}

impl PassOn {
    /// Keeps a MAD's packet. When it is tried again, if that isn't known.
    pub(super) fn keep(&self, receiver: Receiver, datagram: &Datagram<'_>, now: Instant) -> Option<Instant> {
        let bytes = datagram.bytes.try_into().ok()?;
        let mut kept = self.kept.lock();
        if kept.len() >= MOST_KEPT {
            return None;
        }
        let datagram = Datagram { bytes: &[], ..*datagram };
        kept.push_back(Kept { receiver, datagram, bytes, until: now.after(PATIENCE) });
        self.wait(now)
    }

    /// When there is something to do; `u64::MAX` for never.
    pub(super) fn next(&self) -> u64 {
        match self.due.load(Ordering::Acquire) {
            0 => u64::MAX,
            due => due,
        }
    }

    fn wait(&self, now: Instant) -> Option<Instant> {
        let at = now.after(TRY_AGAIN);
        let waits = self.due.compare_exchange(0, at.0, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        waits.then_some(at)
    }

    /// Tries again what is due, those for one process together. When to call this again, if that isn't known.
    pub(super) fn try_again(&self, host: &Host, now: Instant) -> Option<Instant> {
        if self.next() > now.0 {
            return None;
        }
        self.due.store(0, Ordering::Release);
        let mut left = std::mem::take(&mut *self.kept.lock());
        left.retain(|kept| kept.until > now);
        let mut still = VecDeque::new();
        while let Some(receiver) = left.front().map(|kept| kept.receiver) {
            let (mut same, others): (VecDeque<_>, _) =
                left.into_iter().partition(|kept| kept.receiver == receiver);
            left = others;
            while !same.is_empty() {
                let count = same.len().min(TOGETHER);
                let packets: Vec<Datagram<'_>> = same
                    .iter()
                    .take(count)
                    .map(|kept| Datagram { bytes: &kept.bytes, ..kept.datagram })
                    .collect();
                // One that has gone meanwhile has no port any more, as the answer to the repetition says.
                if receiver.deliver(host, &packets, true) == Delivery::Busy {
                    still.append(&mut same);
                } else {
                    same.drain(..count);
                }
            }
        }
        let mut kept = self.kept.lock();
        still.append(&mut kept);
        *kept = still;
        if kept.is_empty() { None } else { self.wait(now) }
    }
}
