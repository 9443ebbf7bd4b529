//! Counters of one local address.

use std::sync::atomic::AtomicU64;

/// What an [`super::Endpoint`] has counted since it was made. Written with relaxed ordering.
#[derive(Debug, Default)]
pub struct Stats {
    /// Packets received and handed on, those for other processes included.
    pub received: AtomicU64,
    /// Datagrams and segments too short to be a packet.
    pub malformed: AtomicU64,
    /// Packets the kernel took.
    pub sent: AtomicU64,
    /// Packets the kernel didn't take (buffers full, no route, too long, forbidden …): lost, as on a wire.
    pub dropped: AtomicU64,
    /// Trains of two or more packets among those sent.
    pub trains: AtomicU64,
}
