//! What an adapter may do and seldom does.

use std::ops::Range;
use std::time::Duration;

/// What a host's adapter may do: the specification permits it, programs seldom see it. The default is the friendliest adapter,
/// which uses none of these.
///
/// A program that works with all of them doesn't depend on the habits of one adapter.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Licences {
    /// The bytes of a message are placed in any order: within a packet, and between packets. They are all there when its
    /// acknowledgement leaves, and when a later completion of the queue pair is reported. It finds programs that poll the last
    /// byte of a WRITE.
    pub scattered_placement: bool,
    /// Completions come so much later than what they report. Those of a queue stay in order. It finds programs that use memory again
    /// after a timeout.
    pub late_completions: Range<Duration>,
    /// A repeated READ reads the memory again. Without this licence it is answered as the first time. It finds programs that change
    /// exposed memory while a peer reads it.
    pub reread_on_retry: bool,
    /// The probability that a message is answered with RNR although a receive is posted, never twice in a row. It finds programs
    /// that allow no RNR retry.
    pub receiver_not_ready: f64,
    /// After each packet of a longer message or answer, a queue pair pauses for so long. Others go on. It finds programs that assume
    /// an order between queue pairs, or take a READ for a snapshot.
    pub pauses: Range<Duration>,
    /// The probability that a registration, or the exposure of a buffer, fails for lack of memory.
    pub registration_fails: f64,
    /// Entries of the largest completion queue. More are refused. It finds programs that don't look at the
    /// limits of a device.
    pub most_cq_entries: Option<u32>,
}

impl Licences {
    /// All that a correct program doesn't notice, with usual values: registrations succeed, and completion queues are
    /// large.
    #[must_use]
    pub const fn all() -> Self {
        const fn micros(from: u64, to: u64) -> Range<Duration> {
            Duration::from_micros(from)..Duration::from_micros(to)
        }
        Self {
            scattered_placement: true,
            late_completions: micros(0, 20),
            reread_on_retry: true,
            receiver_not_ready: 0.05,
            pauses: micros(0, 5),
            registration_fails: 0.0,
            most_cq_entries: None,
        }
    }
}
