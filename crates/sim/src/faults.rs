//! What the network does to packets.

use std::ops::Range;
use std::time::Duration;

/// What the network does to packets. The default loses nothing, and takes one microsecond.
#[derive(Clone, PartialEq, Debug)]
pub struct Faults {
    /// The probability that a packet is lost.
    pub loss: f64,
    /// The probability that a packet arrives twice.
    pub duplicate: f64,
    /// The probability that a packet is overtaken by later ones.
    pub reorder: f64,
    /// The probability that a packet arrives with a wrong checksum (ICRC). The adapter drops it.
    pub corrupt: f64,
    /// How long a packet takes. Packets with different times arrive in order unless they are reordered.
    pub delay: Range<Duration>,
    /// Bytes that a host's cable delivers in a second. Packets wait in a queue of the switch. `None`: no limit.
    pub bytes_per_second: Option<u64>,
    /// Bytes that this queue holds. A packet that doesn't fit is lost. `None`: no limit.
    pub queue: Option<u64>,
    /// Packets that find so many bytes in the queue are marked (ECN). The receiver notifies the sender, which sends more slowly.
    pub marks_from: Option<u64>,
}

impl Default for Faults {
    fn default() -> Self {
        let micros = Duration::from_micros;
        Self {
            loss: 0.0,
            duplicate: 0.0,
            reorder: 0.0,
            corrupt: 0.0,
            delay: micros(1)..micros(1),
            bytes_per_second: None,
            queue: None,
            marks_from: None,
        }
    }
}
