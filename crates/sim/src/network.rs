//! The network between the hosts: links, partitions, and what happens to packets on their way.

use crate::faults::Faults;
use crate::frame::Frame;
use crate::state::{State, Transit};
use crate::trace::What;
use ferroce_types::{Instant, QpState as TransportState};
use ferroce_wire::cm::GSI_QPN;
use ferroce_wire::{Bth, Headers, Opcode, Service};
use std::net::Ipv4Addr;
use std::time::Duration;

/// Bytes of a packet beside its payload: Ethernet, IPv4, UDP, BTH, RETH, ICRC.
const HEADERS: u64 = 14 + 20 + 8 + 12 + 16 + 4;

/// A receiver notifies a sender of congestion at most so often.
const NOTIFICATIONS: Duration = Duration::from_micros(50);

const fn pair(a: usize, b: usize) -> (usize, usize) {
    if a < b { (a, b) } else { (b, a) }
}

impl State {
    /// What the network does to packets between two hosts.
    pub(crate) fn faults_between(&self, a: usize, b: usize) -> &Faults {
        self.links.get(&pair(a, b)).and_then(|link| link.faults.as_ref()).unwrap_or(&self.faults)
    }

    pub(crate) fn set_link_faults(&mut self, a: usize, b: usize, faults: Option<Faults>) {
        self.links.entry(pair(a, b)).or_default().faults = faults;
    }

    pub(crate) fn set_link_down(&mut self, a: usize, b: usize, down: bool) {
        self.links.entry(pair(a, b)).or_default().down = down;
    }

    /// Cuts all paths between two groups.
    pub(crate) fn partition(&mut self, some: &[usize], others: &[usize]) {
        self.note(What::Network { what: "is partitioned".into() });
        for a in some {
            self.cut.extend(others.iter().map(|b| pair(*a, *b)));
        }
    }

    /// Ends all partitions.
    pub(crate) fn heal(&mut self) {
        self.note(What::Network { what: "is healed".into() });
        self.cut.clear();
    }

    fn is_reachable(&self, from: usize, to: usize) -> bool {
        let path = pair(from, to);
        let works = |host: usize| self.hosts[host].plugged && self.hosts[host].up;
        works(from)
            && works(to)
            && !self.cut.contains(&path)
            && self.links.get(&path).is_none_or(|link| !link.down)
    }

    /// Puts a packet on the wire, with the faults of the network.
    pub(crate) fn send(&mut self, from: usize, mut frame: Frame) {
        let Some(to) = self.hosts.iter().position(|host| host.ip == frame.to) else { return };
        let faults = self.faults_between(from, to).clone();
        let bth = frame.headers.bth;
        let is = |what: &str| {
            let (operation, psn) = (bth.opcode.operation, bth.psn);
            format!(
                "{operation:?} PSN {psn:#x} of {} to {} is {what}",
                self.hosts[from].name, self.hosts[to].name
            )
        };
        let lost = self.chances.fault(faults.loss, || is("lost"));
        let doubled = self.chances.fault(faults.duplicate, || is("duplicated"));
        let damaged = self.chances.fault(faults.corrupt, || is("damaged"));
        let lost = lost || !self.is_reachable(from, to);
        let leaves = if lost { None } else { self.leaves_queue(to, &faults, &mut frame) };
        let copies = match leaves {
            None => 0,
            Some(_) if doubled => 2,
            Some(_) => 1,
        };
        self.note(What::Sent {
            from: self.hosts[from].name.clone(),
            to: self.hosts[to].name.clone(),
            qpn: bth.dest_qp,
            operation: bth.opcode.operation,
            psn: bth.psn,
            len: frame.payload.len(),
            copies,
        });
        if let Some(capture) = &mut self.capture {
            let added = capture.add(Duration::from_nanos(self.now.0), self.hosts[from].ip, &frame);
            added.unwrap_or_else(|error| panic!("the capture can't be written: {error}"));
        }
        for _ in 0..copies {
            let mut arrives = leaves.unwrap_or(self.now).after(self.chances.time(&faults.delay));
            let names = (&self.hosts[from].name, &self.hosts[to].name);
            let overtaken = self.chances.fault(faults.reorder, || {
                format!(
                    "{:?} PSN {:#x} of {} to {} is overtaken",
                    bth.opcode.operation, bth.psn, names.0, names.1
                )
            });
            if overtaken {
                // Overtaken by what is sent within the longest delay, and a little more.
                arrives = arrives.after(faults.delay.end + Duration::from_micros(1));
            } else {
                let latest = self.latest.entry((from, to)).or_insert(Instant(0));
                arrives = arrives.max(latest.after(Duration::from_nanos(1)));
                *latest = arrives;
            }
            let number = self.new_number();
            self.wire.insert((arrives, number), Transit { from, to, damaged, frame: frame.clone() });
        }
    }

    /// When a packet leaves the queue of the switch before its destination. `None`: the queue is full.
    fn leaves_queue(&mut self, to: usize, faults: &Faults, frame: &mut Frame) -> Option<Instant> {
        let now = self.now;
        frame.ecn = faults.marks_from.is_some();
        let Some(rate) = faults.bytes_per_second else { return Some(now) };
        let nanos = |bytes: u64| Duration::from_nanos(bytes.saturating_mul(1_000_000_000) / rate.max(1));
        let free = self.queues.entry(to).or_insert(now);
        *free = (*free).max(now);
        let waiting = free.since(now).as_nanos() as u64 * (rate / 1000) / 1_000_000;
        let bytes = HEADERS + frame.payload.len() as u64;
        if faults.queue.is_some_and(|most| waiting + bytes > most) {
            return None;
        }
        frame.marked = faults.marks_from.is_some_and(|from| waiting >= from);
        *free = free.after(nanos(bytes));
        Some(*free)
    }

    pub(crate) fn arrive(&mut self, Transit { from, to, damaged, frame }: &Transit) {
        let (from, to) = (*from, *to);
        let bth = frame.headers.bth;
        let (at, source, now) = (self.hosts[to].name.clone(), self.hosts[from].ip, self.now);
        if !self.is_reachable(from, to) {
            return;
        }
        let (qpn, operation, psn) = (bth.dest_qp, bth.opcode.operation, bth.psn);
        if *damaged {
            return self.note(What::Dropped { at, qpn, operation, psn });
        }
        self.note(What::Arrived { at, qpn, operation, psn });
        if qpn == GSI_QPN {
            return self.mad_arrives(to, source, &frame.payload);
        }
        let Some((qp, mut env, _)) = self.qp(to, qpn) else { return };
        if env.side.peer != Some(source) && !env.side.is_for_datagrams {
            return;
        }
        env.side.grh = grh(source, frame.to, frame.payload.len());
        qp.handle_packet(now, &frame.headers, &frame.payload[..], &mut env);
        let notifies = frame.marked
            && env.side.is_reliable
            && bth.opcode.service != Service::Cnp
            && qp.state() != TransportState::Err
            && now >= env.side.notifies_from;
        let peer = qp.params().dest_qpn;
        if notifies {
            env.side.notifies_from = now.after(NOTIFICATIONS);
            let headers = Headers::new(Bth::new(Opcode::CNP, peer, 0));
            env.side.out.push(Frame::new(source, headers, vec![0; 16]));
        }
        self.work(to, qpn);
    }
}

/// A GRH of RoCEv2: an IPv4 header after 20 bytes.
fn grh(from: Ipv4Addr, to: Ipv4Addr, payload: usize) -> [u8; 40] {
    /// Headers of UDP, of the transport (BTH, DETH), and the ICRC.
    const AROUND: usize = 8 + 12 + 8 + 4;
    let mut grh = [0; 40];
    grh[20] = 0x45;
    grh[22..24].copy_from_slice(&((20 + AROUND + payload) as u16).to_be_bytes());
    // TTL, UDP.
    (grh[28], grh[29]) = (64, 17);
    grh[32..36].copy_from_slice(&from.octets());
    grh[36..40].copy_from_slice(&to.octets());
    grh
}
