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
    /// How long a packet takes. Packets with different times arrive in order unless they are reordered.
    pub delay: Range<Duration>,
}

impl Default for Faults {
    fn default() -> Self {
        let micros = Duration::from_micros;
        Self { loss: 0.0, duplicate: 0.0, reorder: 0.0, delay: micros(1)..micros(1) }
    }
}
