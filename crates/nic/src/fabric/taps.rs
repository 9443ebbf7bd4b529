//! The capture and the faults of this process, between the adapter and the fabrics.
//!
//! Faults befall packets of the `udp` fabric; while there are any, every QP uses it. A packet that a fault has touched
//! leaves alone, so that its ICRC (of identification 0) is right unless `corrupt` made it wrong.

use crate::adapter::Adapter;
use ferroce_engine::Source;
use ferroce_network::{Faults, Taps};
use ferroce_os::clock;
use ferroce_types::{Datagram, Instant};
use ferroce_udp::tap::Direction;
use std::sync::atomic::Ordering;

/// Packets that faults hold back as a source.
pub(crate) struct TapSource(pub(crate) &'static Adapter);

impl Source for TapSource {
    #[inline]
    fn poll(&self, _now: Instant) -> bool {
        self.0.run_taps()
    }

    fn poll_neglected(&self, _now: Instant) -> bool {
        false
    }

    #[inline]
    fn next(&self) -> u64 {
        self.0.taps.map_or(u64::MAX, Taps::next)
    }
}

impl Adapter {
    /// Takes packets from a socket: shows them to the capture, puts them through the faults, hands on the rest.
    pub(crate) fn arrived(&'static self, datagrams: &[Datagram<'_>], now: Instant) {
        self.has_arrived.store(true, Ordering::Relaxed);
        let Some(taps) = self.taps else {
            if let [datagram] = datagrams
                && self.take_alone(datagram, now)
            {
                return;
            }
            return self.with_work(|work| self.dispatch(datagrams, work, now));
        };
        taps.show_datagrams(Direction::In, datagrams);
        let Some(faults) = &taps.faults else {
            return self.with_work(|work| self.dispatch(datagrams, work, now));
        };
        for d in datagrams {
            let meta = (d.source, d.destination, d.tos, d.ttl, d.flow_label, d.is_of_user, d.segment);
            faults.incoming.lock().push(now.0, meta, d.bytes);
        }
        self.run_incoming(faults);
    }

    fn run_incoming(&'static self, faults: &Faults) {
        loop {
            let mut queue = faults.incoming.lock();
            let due = queue.pop_due(clock::now().0);
            let Some(((source, destination, tos, ttl, flow_label, is_of_user, segment), bytes)) = due else {
                faults.next.fetch_min(queue.next_due().unwrap_or(u64::MAX), Ordering::AcqRel);
                drop(queue);
                return self.wake_for_taps();
            };
            drop(queue);
            let datagram =
                Datagram { source, destination, tos, ttl, flow_label, is_of_user, segment, bytes: &bytes };
            self.with_work(|work| self.dispatch(&[datagram], work, clock::now()));
        }
    }

    /// Lets the packets go that faults have held back for long enough.
    fn run_taps(&'static self) -> bool {
        let Some(taps) = self.taps.filter(|taps| taps.next() <= clock::now().0) else { return false };
        if let Some(faults) = &taps.faults {
            faults.next.store(u64::MAX, Ordering::Release);
            taps.run_outgoing(faults);
            self.run_incoming(faults);
        }
        true
    }
}
