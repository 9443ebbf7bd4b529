//! Where an environment has the packets that one queue pair keeps.

use crate::{KeptPacket, Payload, PlaceError};
use ferroce_wire::Headers;
use std::collections::BTreeMap;

/// The packets that one queue pair keeps, by number.
#[derive(Default, Debug)]
pub struct KeptPackets {
    packets: BTreeMap<u64, KeptPacket>,
    bytes: usize,
}

impl KeptPackets {
    /// Keeps a copy of a packet, instead of another one with its number. False: its payload can't be read.
    pub fn keep(&mut self, number: u64, headers: &Headers, payload: &impl Payload) -> bool {
        let mut copy = vec![0; payload.len()].into_boxed_slice();
        if payload.copy(&mut copy) == Err(PlaceError) {
            return false;
        }
        self.bytes += copy.len();
        let replaced = self.packets.insert(number, KeptPacket { headers: *headers, payload: copy });
        self.bytes -= replaced.map_or(0, |packet| packet.payload.len());
        true
    }

    /// Takes the packet with this number.
    pub fn take(&mut self, number: u64) -> Option<KeptPacket> {
        let packet = self.packets.remove(&number)?;
        self.bytes -= packet.payload.len();
        Some(packet)
    }

    /// Bytes of all payloads.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Packets.
    #[must_use]
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// No packet at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }
}
