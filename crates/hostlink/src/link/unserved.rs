//! Why the process at a link's other end doesn't answer a packet: the consumer of a ring reports it to the producer.

use super::Link;
use ferroce_os::clock;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Why a packet is dropped without an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unserved {
    /// No QP of the process has the number.
    NoQp,
    /// The QP is in this state, which receives nothing.
    State(u8),
}

/// Parts of a word: milliseconds, a state or [`NO_QP`], and the QPN.
const MILLISECONDS: u64 = 0xffff_ffff;
const STATE: u32 = 32;
const QPN: u32 = 40;
const QPN_MASK: u64 = 0xff_ffff;
/// Where a state would be: there is no QP.
const NO_QP: u8 = 0xff;

fn milliseconds() -> u64 {
    (clock::now().0 / 1_000_000) & MILLISECONDS
}

fn word(qpn: u32, why: Unserved, now: u64) -> u64 {
    let state = match why {
        Unserved::NoQp => NO_QP,
        Unserved::State(state) => state,
    };
    ((u64::from(qpn) & QPN_MASK) << QPN) | (u64::from(state) << STATE) | now
}

fn read(word: u64, qpn: u32, now: u64, within: Duration) -> Option<Unserved> {
    let age = now.wrapping_sub(word) & MILLISECONDS;
    let fits = word >> QPN == u64::from(qpn) && u128::from(age) <= within.as_millis();
    fits.then_some(match (word >> STATE) as u8 {
        NO_QP => Unserved::NoQp,
        state => Unserved::State(state),
    })
}

impl Link {
    /// Reports to the peer's process that a packet for QP `qpn` of this process is dropped.
    #[cold]
    pub fn note_unserved(&self, qpn: u32, why: Unserved) {
        self.terms(true).unserved.store(word(qpn, why, milliseconds()), Ordering::Relaxed);
    }

    /// Why the peer's process has dropped the latest unanswered packet, if that was for its QP `qpn` and at most `within` ago.
    pub fn unserved(&self, qpn: u32, within: Duration) -> Option<Unserved> {
        read(self.terms(false).unserved.load(Ordering::Relaxed), qpn, milliseconds(), within)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_of_one_qp_and_recent() {
        let second = Duration::from_secs(1);
        for why in [Unserved::NoQp, Unserved::State(1)] {
            for at in [7, MILLISECONDS - 100] {
                let word = word(0x12_3456, why, at);
                let now = (at + 1000) & MILLISECONDS;
                assert_eq!(read(word, 0x12_3456, now, second), Some(why));
                assert_eq!(read(word, 0x12_3456, (now + 1) & MILLISECONDS, second), None);
                assert_eq!(read(word, 0x12_3457, now, second), None);
            }
        }
        assert_eq!(read(0, 0x12_3456, 5, second), None, "no report yet");
    }
}
