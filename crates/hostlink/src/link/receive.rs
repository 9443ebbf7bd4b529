//! The ring from the peer: what is taken out of it.

use super::{BYTES_AT, Link, RING};
use crate::payload::ReceivedRecord;
use crate::protocol::{Broken, Consumer, Lines};
use crate::record;
use ferroce_os::room;
use std::sync::atomic::Ordering;

/// Who reads the ring.
#[derive(Debug)]
pub(super) struct Receiver {
    consumer: Consumer,
    /// Room for a run of packets.
    run: Vec<ReceivedRecord<'static>>,
}

impl Receiver {
    pub(super) fn new() -> Self {
        Self { consumer: Consumer::new(RING), run: Vec::new() }
    }
}

impl Link {
    /// Takes packets, `limit` at most, and hands them to `f`, those in a row for one QP together. The peer gets the room
    /// back when `f` has dealt with them. Returns whether there was any.
    pub fn receive<'a>(&'a self, limit: usize, f: &mut dyn FnMut(&[ReceivedRecord<'a>])) -> bool {
        self.answered.load(Ordering::Acquire)
            && self.rx.try_lock().is_some_and(|mut rx| self.receive_with(&mut rx, limit, f))
    }

    /// As [`Link::receive`], for what a peer has left that is gone: all of it.
    pub fn receive_last<'a>(&'a self, f: &mut dyn FnMut(&[ReceivedRecord<'a>])) {
        self.receive_with(&mut self.rx.lock(), RING / Lines::GRAIN, f);
    }

    fn receive_with<'a>(
        &'a self,
        Receiver { consumer, run }: &mut Receiver,
        limit: usize,
        f: &mut dyn FnMut(&[ReceivedRecord<'a>]),
    ) -> bool {
        let mut packets = room::reuse(std::mem::take(run));
        let any = self.receive_into(&mut packets, consumer, limit, f);
        *run = room::reuse(packets);
        any
    }

    fn receive_into<'a>(
        &'a self,
        batch: &mut Vec<ReceivedRecord<'a>>,
        rx: &mut Consumer,
        limit: usize,
        f: &mut dyn FnMut(&[ReceivedRecord<'a>]),
    ) -> bool {
        let (ring, lines) = (self.ring(false), self.rx_lines());
        let mut any = false;
        let mut taken = 0;
        while taken < limit {
            // A run of packets for one QP; nothing is given back before they have been dealt with.
            batch.clear();
            let mut len = 0;
            let mut ahead = match rx.peek(lines) {
                Ok(Some(ahead)) => ahead,
                Ok(None) => return any,
                Err(Broken) => {
                    self.broken();
                    return any;
                }
            };
            while ahead.1 > 0 && taken < limit {
                let read = record::read(&self.memory, ring + BYTES_AT + ahead.0, ahead.1);
                let Ok((packet, total)) = read else {
                    self.broken();
                    return any;
                };
                if let Some(packet) = packet {
                    let other = |first: &ReceivedRecord<'_>| {
                        first.packet.headers.bth.dest_qp != packet.headers.bth.dest_qp
                    };
                    if batch.first().is_some_and(other) {
                        break;
                    }
                    batch.push(ReceivedRecord::new(self, packet));
                }
                taken += 1;
                len += total;
                ahead = (ahead.0 + total, ahead.1 - total);
            }
            any = true;
            if !batch.is_empty() {
                f(batch);
            }
            if rx.release(lines, len) {
                self.ring_bell();
            }
        }
        any
    }

    /// Whether the peer has published something that hasn't been dealt with.
    pub(crate) fn has_records(&self) -> bool {
        !self.is_dead() && self.answered.load(Ordering::Acquire) && self.rx_lines().has_records()
    }
}
