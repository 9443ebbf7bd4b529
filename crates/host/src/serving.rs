//! Answering the host's other processes, and passing on what came to the wrong one.

use super::epoll::{
    ATTENDED, GUESTS_TIMER, LEADER, LEASES_TIMER, LISTENER, PORT, PORT_CLIENT, PORT_REQUESTS, SILENT_CLIENT,
};
use super::exposed::ExposedSocket;
use super::forward::{ForwardReceiver, INBOX_BURST};
use super::handover::{self, OwnSockets};
use super::names::{BACKLOG, USABLE};
use super::ports;
use super::process::Host;
use super::services::{Reception, TURN};
use super::slots::OwnSlot;
use ferroce_os::sys::{self, EngineFd};
use ferroce_types::{Datagram, HostAddr, slot_of};
use ferroce_wire::cm::GSI_QPN;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

impl Host {
    /// Does what is to be done: answers processes that join, hands forwarded packets to `f`, and has `read` read sockets of an address for
    /// guests, by steering value. To be called when [`poll_fd`](Self::poll_fd) is readable.
    ///
    /// # Errors
    /// The inner `epoll` is gone (EBADF: a child of `fork`).
    pub fn service(
        &self,
        f: &mut dyn FnMut(&[Datagram<'_>]),
        read: &mut dyn FnMut(HostAddr, u8),
    ) -> io::Result<()> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 32];
        let ready = match sys::epoll_wait(self.epoll.raw(), &mut events, Some(Duration::ZERO)) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => 0,
            result => result?,
        };
        let (mut inboxes, mut spoken) = (false, false);
        for event in &events[..ready] {
            let (data, slot) = (event.u64, event.u64 as u16);
            match data & 0xffff_0000 {
                LEADER => self.serve_leader(),
                LISTENER => self.serve_slot(slot),
                SILENT_CLIENT => spoken = true,
                PORT => self.recv_for_port(slot, f),
                PORT_CLIENT => self.recv_from_port_clients(f),
                PORT_REQUESTS => self.serve_port_requests(slot),
                GUESTS_TIMER => self.ask_attendants(),
                LEASES_TIMER => self.attendance.end_leases(&|address| self.group(address), &self.epoll),
                ATTENDED => {
                    if let Some(address) = self.attendance.address((data >> 32) as usize) {
                        read(address, slot as u8);
                    }
                }
                _ => inboxes = true,
            }
        }
        if spoken {
            self.with_reception(|reception| self.services.serve_silent(reception));
        }
        if inboxes {
            self.recv_forwarded(f);
        }
        Ok(())
    }

    /// All who ask, whether it shows or not; for a thread that waits for others itself.
    pub fn answer_requests(&self) {
        self.with_reception(|reception| self.services.serve_silent(reception));
        self.serve_leader();
        for slot in self.slots() {
            self.serve_slot(slot);
        }
        self.serve_all_port_requests();
    }

    /// Answers what has been asked of a slot so far: also the last of as many connections as can wait.
    pub fn answer_requests_to(&self, slot: u16) {
        self.with_reception(|reception| self.services.serve_silent(reception));
        for _ in 0..=BACKLOG / TURN {
            self.serve_slot(slot);
        }
    }

    /// Another thread is answering something at this moment, or a process that has asked for leave to send memory before `since` is
    /// about to introduce itself. To be asked after a call of [`Self::answer_requests_to`] that has ended before `since`.
    #[must_use]
    pub fn is_being_asked(&self, since: Instant) -> bool {
        let is_asked = || self.services.expects_memory(since) || self.services.is_answering();
        // A client is answered, has leave, and is answered again: where one goes on between two looks, a later look finds it.
        is_asked() || is_asked()
    }

    fn serve_leader(&self) {
        // The answer to a request may need any lock.
        let listener = self.leader.read().clone();
        if let Some(listener) = listener {
            self.serve(&listener);
        }
    }

    fn serve_slot(&self, number: u16) {
        let slot = self.slots.read().iter().find(|s| s.number == number).map(Arc::clone);
        if let Some(slot) = slot {
            self.serve(&slot.listener);
        }
    }

    pub(super) fn serve(&self, listener: &ExposedSocket) {
        self.with_reception(|reception| self.services.serve(listener, reception));
    }

    fn with_reception(&self, f: impl FnOnce(&Reception<'_>)) {
        f(&Reception {
            user: self.user,
            trust: &self.trust,
            epoll: &self.epoll,
            spoken: SILENT_CLIENT,
            rest: &|connection, request| {
                if let Some((space, port)) = ports::parse_request(request) {
                    return self.answer_for_number(connection, space, port);
                }
                handover::answer(connection, request, &mut |address| {
                    // Before the groups are looked at: what is made in between is found there.
                    let is_making = self.making.load(Ordering::Acquire);
                    // Groups live as long as this object: the numbers stay valid.
                    match self.groups.read().get(&address) {
                        Some(group) => OwnSockets::Have(group.iter().map(EngineFd::checked).collect()),
                        None if is_making => OwnSockets::Coming,
                        None => OwnSockets::Nothing,
                    }
                })
            },
        });
    }

    /// Passes packets on to the processes that own the slots of their QPNs. Never blocks; a packet without room in
    /// the queue, or without an owner, is dropped and counted.
    pub fn forward(&self, datagrams: &[Datagram<'_>]) {
        let Some(own) = self.slots.read().first().map(Arc::clone) else { return };
        for same in datagrams.chunk_by(|a, b| slot_of(a.dest_qpn()) == slot_of(b.dest_qpn())) {
            let Some(first) = same.first() else { continue };
            let slot = slot_of(first.dest_qpn());
            if USABLE.contains(&slot) && !self.owns(first.dest_qpn()) {
                self.forwarder.forward(own.inbox.raw(), slot, same);
            } else {
                self.forwarder.stats.unknown.fetch_add(same.len() as u64, Ordering::Relaxed);
            }
        }
    }

    /// Whether a packet that a process has passed on is to be believed: it is one of this user, or of the user to whom the
    /// kernel gives what is sent to the packet's destination.
    pub(super) fn is_believed(&self, is_own: bool, sender: Option<u32>, packet: &Datagram<'_>) -> bool {
        is_own || self.guests.are_some() && self.is_of_holder(sender, packet.destination)
    }

    /// Takes one datagram of packets; whether there was one.
    fn receive(
        &self,
        inbox: &mut ForwardReceiver,
        socket: &ExposedSocket,
        f: &mut dyn FnMut(&[Datagram<'_>]),
    ) -> bool {
        let Ok(Some(received)) = inbox.receive(socket) else { return false };
        let (sender, bytes) = inbox.bytes(&received);
        if self.take_notice(sender, bytes) {
            return true;
        }
        let is_own = self.user.has_sent(sender);
        let mut is_mine = |packet: &Datagram<'_>| {
            let qpn = packet.dest_qpn();
            (self.owns(qpn) || qpn == GSI_QPN) && self.is_believed(is_own, sender, packet)
        };
        inbox.hand_on(&received, self.stats(), is_own, &mut is_mine, f);
        true
    }

    /// Takes what other processes have passed on to this one's slots; `f` gets it in batches, and must not call this
    /// method. Returns how many packets; `None` when another thread is at it.
    pub fn recv_forwarded(&self, f: &mut dyn FnMut(&[Datagram<'_>])) -> Option<usize> {
        let mut inbox = self.inbox.try_lock()?;
        let slots: smallvec::SmallVec<[Arc<OwnSlot>; 4]> = self.slots.read().iter().map(Arc::clone).collect();
        let mut packets = 0;
        for slot in slots {
            // The program may have closed it, and have a socket of its own with the number.
            if slot.inbox.checked() < 0 {
                continue;
            }
            for _ in 0..INBOX_BURST {
                let mut count = |batch: &[Datagram<'_>]| {
                    packets += batch.len();
                    f(batch);
                };
                if !self.receive(&mut inbox, &slot.inbox, &mut count) {
                    break;
                }
            }
        }
        Some(packets)
    }
}
