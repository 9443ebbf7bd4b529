//! The responder of RC beyond a gap: it keeps SENDs and WRITEs until what is missing has come, and executes them in their order then.
//!
//! Nothing of a kept packet counts before its turn: no memory, no receive, no key, no error. [`Env::keep`] decides whether the peer is one that
//! understands the report of what is kept, and how much memory that may take.

use crate::state::{GapReport, KEPT_RANGE, PsnSet};
use crate::{Env, Payload as _, PayloadSource, QpProtocol, Telling};
use core::time::Duration;
use ferroce_types::{Instant, QpState};
use ferroce_wire::{Headers, Service};

/// So long packets are kept while the gap doesn't move: the peer, which probes twice in a second, is dead or stopped.
const MOST_WAIT: Duration = Duration::from_secs(5);

impl<A: Clone> QpProtocol<A> {
    /// Keeps a packet beyond the expected one, if it can be. Returns whether it shows that something else is missing too.
    pub(crate) fn keep<E: Env<Address = A>>(
        &mut self,
        (now, number): (Instant, u64),
        headers: &Headers,
        payload: &E::Payload<'_>,
        env: &mut E,
    ) -> bool {
        let (opcode, resp) = (headers.bth.opcode, &self.resp);
        // The first request shows that both sides agree on PSNs, and on how a message is cut into packets.
        let may = self.service == Service::Rc
            && !self.params.lossless
            && !resp.waits_for_receive
            && resp.expected > resp.first
            && number - resp.expected < KEPT_RANGE
            && (opcode.is_send() || opcode.is_write())
            && self.packet_len(opcode, payload.len() as u64).is_ok();
        let may = may && (!self.is_reconnected || self.resp.kept.is_past_earlier_connection(now));
        let kept = &mut self.resp.kept;
        if !may || kept.numbers.contains(number) || !env.keep(number, headers, payload) {
            return false;
        }
        let before = if kept.numbers.is_empty() { self.resp.expected } else { kept.top };
        kept.numbers.insert(number);
        kept.top = before.max(number);
        kept.reports = true;
        number > before + 1
    }

    /// Executes the kept packets whose turn it is, after a packet of so many bytes. `before`: what was expected before that.
    pub(crate) fn take_kept<E: Env<Address = A>>(
        &mut self,
        now: Instant,
        (before, payload): (u64, usize),
        env: &mut E,
    ) {
        self.execute_kept(now, (before, payload), env);
        let kept = &mut self.resp.kept;
        if kept.numbers.is_empty() {
            kept.expires = None;
        } else if self.resp.expected > before || kept.expires.is_none() {
            kept.expires = Some(now.after(MOST_WAIT));
        }
    }

    fn execute_kept<E: Env<Address = A>>(
        &mut self,
        now: Instant,
        (before, payload): (u64, usize),
        env: &mut E,
    ) {
        if self.resp.expected > before {
            self.resp.kept.note_packet(payload);
        }
        // A READ has taken the PSNs of kept packets: no correct peer does that.
        for number in before..self.resp.expected.min(self.resp.kept.top + 1) {
            if self.resp.kept.numbers.remove(number) {
                env.take_kept(number);
            }
        }
        let (mut is_taken, mut awaiting) = (false, Vec::new());
        loop {
            // Each takes one PSN.
            let next = self.resp.expected + awaiting.len() as u64;
            if !self.resp.kept.numbers.remove(next) {
                break;
            }
            let Some(packet) = env.take_kept(next) else {
                // What is kept isn't the requester's, which gets a report of nothing and sends all of it again.
                self.forget_kept(env);
                self.resp.gap = Some(self.resp.expected);
                self.owe_nak_of_gap();
                return;
            };
            if !awaiting.is_empty() || !self.has_memory_for(&packet.headers, packet.payload.len(), env) {
                awaiting.push(packet);
                continue;
            }
            is_taken = true;
            self.take_request(now, &packet.headers, &E::payload_of(&packet.payload), env);
        }
        let awaits_memory = !awaiting.is_empty();
        if awaits_memory {
            env.await_memory_of_kept(awaiting);
        }
        if self.resp.gap.is_some() {
            return;
        }
        if !awaits_memory && !self.resp.kept.numbers.is_empty() {
            // The requester learns what is missing by now, and what isn't.
            self.resp.gap = Some(self.resp.kept.top);
            self.owe_nak_of_gap();
        } else if is_taken && self.state != QpState::Err {
            self.answers.owe_ack();
        }
    }

    /// Sends a sequence NAK with these headers, and a report before it if the peer understands one and has sent enough for both. False: not
    /// now.
    pub(crate) fn send_sequence_nak<E: Env<Address = A>>(&mut self, nak: &Headers, env: &mut E) -> bool {
        let kept = &self.resp.kept;
        let reports = kept.reports && kept.may_report() && env.telling() == Telling::BeforeNak;
        if reports {
            let report = GapReport::of(kept, self.resp.expected);
            if env.transmit(nak, PayloadSource::Bytes(report.bytes()), None).is_err() {
                return false;
            }
        }
        let is_sent = env.transmit(nak, PayloadSource::None, None).is_ok();
        if is_sent {
            self.resp.kept.note_nak(reports);
        }
        is_sent
    }

    /// Forgets what is kept: the peer sends it again.
    pub(crate) fn forget_kept<E: Env<Address = A>>(&mut self, env: &mut E) {
        self.resp.kept.numbers = PsnSet::default();
        self.resp.kept.expires = None;
        env.forget_kept();
    }
}
