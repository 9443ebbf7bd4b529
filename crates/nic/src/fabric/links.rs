//! The `shm` fabric as the adapter sees it: which process holds a slot, whose ring has something, who waits for room.

use crate::adapter::Adapter;
use crate::qp::{Qp, QpEnv};
use ferroce_engine::Source;
use ferroce_hostlink::{
    Link, LinkWithWork, Receive, RecordRun, RingRecord, SentPacket, ShmPayload, Unserved,
};
use ferroce_os::clock;
use ferroce_parts::Poller;
use ferroce_types::{Error, Instant, Result, slot_of};
use ferroce_udp::tap::Direction;
use std::sync::Arc;

/// Packets taken from a ring before the next ring has its turn.
const TURN: usize = 64;

/// The links as a source.
pub(crate) struct LinkSource(pub(crate) &'static Adapter);

impl Source for LinkSource {
    #[inline]
    fn poll(&self, _now: Instant) -> bool {
        // Polls between two rounds don't look there: a thread that leaves something for its own process takes it.
        let found_own = self.0.links.to_itself().is_some() && self.0.take_what_was_left();
        let found = self.poll_memory();
        if found {
            self.0.engine.found_in_memory();
        }
        found_own | found
    }

    #[inline]
    fn poll_memory(&self) -> bool {
        let work = self.0.links.next_with_work(0);
        work.is_some_and(|first| self.0.read_rings(first, None))
    }

    fn has_memory(&self) -> bool {
        self.0.links.has_work()
    }

    fn is_invited(&self) -> bool {
        self.0.links.was_rung()
    }

    fn watch_memory(&self) -> bool {
        let Some(own) = self.0.links.own() else { return false };
        own.attention().looks(clock::ticks());
        self.0.links.has_work() && {
            own.attention().works(clock::ticks());
            self.poll_memory()
        }
    }

    fn look_away(&self) {
        if let Some(own) = self.0.links.own() {
            own.attention().ends();
        }
    }

    fn attend(&self) {
        self.0.attend_links();
    }

    /// Peers wake the background thread for what they leave from now on.
    fn about_to_sleep(&self) -> bool {
        let Some(own) = self.0.links.own() else { return false };
        // All leases have expired: a waiting thread that is still counted was cancelled, or adds itself again.
        own.bell().forget_waiters();
        own.bell().background_sleeps();
        self.0.links.has_work()
    }

    fn woke(&self) {
        if let Some(own) = self.0.links.own() {
            own.bell().background_wakes();
        }
    }

    fn about_to_wait(&self) -> bool {
        let Some(own) = self.0.links.own() else { return false };
        own.bell().waiter_sleeps();
        self.0.links.has_work()
    }

    fn waited(&self) {
        if let Some(own) = self.0.links.own() {
            own.bell().waiter_wakes();
        }
    }
}

/// Hands packets out of rings to their QPs.
struct Dispatch<'a, 'b> {
    adapter: &'static Adapter,
    /// The thread that reads the rings, if it polls for completions.
    poller: Option<&'a mut Poller<'b>>,
}

impl Receive for Dispatch<'_, '_> {
    #[inline]
    fn run(&mut self, run: &mut RecordRun<'_>) -> bool {
        self.adapter.dispatch_run(run, self.poller.as_deref_mut());
        self.poller.as_ref().is_none_or(|poller| poller.has_room())
    }

    #[inline]
    fn executed(&mut self, last: SentPacket, answer: Option<ShmPayload<'_>>) {
        if let Some(qp) = self.adapter.qp(last.qpn) {
            qp.executed(&last, answer, self.poller.as_deref_mut());
        }
    }
}

impl Adapter {
    /// Puts the connections of links where sleepers look.
    ///
    /// # Errors
    /// The system refused.
    pub(crate) fn watch_links(&self) -> Result<()> {
        self.engine.watch(self.links.poll_fd()).map_err(Error::os("epoll_ctl of the links"))
    }

    /// Takes what other processes have left in their rings, of which `first` is the first with anything.
    #[inline(never)]
    pub(crate) fn read_rings(
        &'static self,
        first: LinkWithWork,
        mut poller: Option<&mut Poller<'_>>,
    ) -> bool {
        let (mut done, mut found) = (false, Some(first));
        while let Some(LinkWithWork { link, next }) = found {
            done |= self.read_ring(&link, poller.as_deref_mut()).unwrap_or(false);
            found = next.and_then(|next| self.links.next_with_work(next));
        }
        done
    }

    /// Whether there was anything; `None` if another thread reads the ring.
    #[inline(always)]
    fn read_ring(&'static self, link: &Link, poller: Option<&mut Poller<'_>>) -> Option<bool> {
        let done = link.receive(TURN, &mut Dispatch { adapter: self, poller });
        self.use_room(link);
        done
    }

    /// Lets queue pairs go on that wait for room in the ring of `link`, if there is some. Called after each look at the ring: to read results
    /// frees room, and so does to read the ring of a link that leads to this process.
    #[inline]
    fn use_room(&self, link: &Link) {
        if link.has_room_for_blocked() {
            self.enqueue_all(&link.take_blocked());
        }
    }

    /// Takes what threads of this process have left for it, this one among them, which has no QP locked. If another thread is at it,
    /// that thread does. Returns whether there was anything.
    #[inline(never)]
    pub(crate) fn take_what_was_left(&'static self) -> bool {
        /// Turns that a thread gives before it goes back to what it was called for.
        const TURNS: usize = 16;
        let Some(link) = self.links.to_itself() else { return false };
        let mut done = false;
        for _ in 0..TURNS {
            if !link.has_unclaimed() && !link.has_room_for_blocked() {
                return done;
            }
            // A thread that has had the ring looks once more: others have left their cells to it, also where it has found none.
            let Some(any) = self.read_ring(link, None) else { return done };
            done |= any;
        }
        self.engine.wake_for(clock::now());
        done
    }

    /// Processes that have introduced themselves to the slot of a QP have a link when this returns. One that isn't answered for a tenth of
    /// a second sends by its link all the same. One that asks for leave while this waits isn't waited for: its peers may do so without end.
    /// `waits` as in [`Adapter::empty_rings`].
    pub(super) fn answer_introductions(&self, qpn: u32, waits: &mut dyn FnMut() -> bool) {
        if self.links.own().is_none() {
            return;
        }
        self.host.answer_requests_to(slot_of(qpn));
        let since = std::time::Instant::now();
        while self.host.is_being_asked(since) && waits() {
            self.host.answer_requests_to(slot_of(qpn));
        }
    }

    /// Takes all that other processes have left in the rings of `links` so far. `waits` waits a moment for another thread that has some of it
    /// in its hands, and returns false when that is to be given up.
    pub(super) fn empty_rings(&'static self, links: &[Arc<Link>], waits: &mut dyn FnMut() -> bool) {
        for link in links {
            let arrived = link.arrived();
            while !link.receive_arrived(arrived, &mut Dispatch { adapter: self, poller: None }) && waits() {}
            self.use_room(link);
        }
        self.take_what_was_left();
    }

    /// The QP that packets from another process are for. The sender's process learns that there is none.
    fn receiver(&self, qpn: u32, link: &Link) -> Option<Arc<Qp>> {
        let qp = self.qp(qpn);
        if qp.is_none() {
            link.note_unserved(qpn, Unserved::NoQp);
        }
        qp
    }

    /// Packets for one QP.
    #[inline]
    fn dispatch_run(&'static self, run: &mut RecordRun<'_>, mut poller: Option<&mut Poller<'_>>) {
        let Some(qp) = self.receiver(run.dest_qp(), run.link()) else {
            while let Some(record) = run.next() {
                self.show_received(run.link(), record);
                run.settle(false);
            }
            return;
        };
        while run.next().is_some() {
            if !qp.take_by_result(run, poller.as_deref_mut()) && !self.dispatch_general(&qp, run) {
                return;
            }
        }
    }

    /// The packets of a run up to the next one that may take the short way. False: the QP is broken, and what comes for it is lost.
    #[inline(never)]
    fn dispatch_general(&'static self, qp: &Arc<Qp>, run: &mut RecordRun<'_>) -> bool {
        qp.note_unserved(run.link());
        let (now, mut works) = (clock::now(), false);
        let handle = |proto: &mut ferroce_proto::QpProtocol<_>, env: &mut QpEnv<'_>| {
            let link = run.link();
            works = true;
            while let Some(record) = run.next() {
                self.show_received(link, record);
                match record {
                    RingRecord::Compact(packet) => env.handle_compact(proto, link, packet),
                    RingRecord::Whole(packet) => env.handle_whole(proto, link, packet),
                }
                run.settle(false);
                if run.next_compact().is_some_and(|packet| env.may_be_short(proto, link, packet)) {
                    break;
                }
            }
        };
        self.with_work(|work| qp.work(work, now, handle));
        works
    }

    fn show_received(&self, link: &Link, record: RingRecord<'_>) {
        // What this process sends to itself has been shown when it was sent. A process that captures packets gets all with addresses.
        if let RingRecord::Whole(packet) = record
            && self.has_capture()
            && !link.is_to_itself()
        {
            let payload = link.payload_of_whole(packet).to_vec();
            self.show_message(Direction::In, &packet.headers, &payload, &packet.meta);
        }
    }

    /// Looks after connections to other processes: bells, new answers, and processes that have ended.
    fn attend_links(&'static self) {
        if self.links.is_empty() {
            return;
        }
        let waiting = self.links.attend(&mut |link| {
            // The last packets of a process that has ended are handled before QPs learn of its end.
            link.receive_last(&mut Dispatch { adapter: self, poller: None });
        });
        self.enqueue_all(&waiting);
    }

    /// The QPs with these numbers have waited for room, and go on now.
    fn enqueue_all(&self, qpns: &[u32]) {
        for qp in qpns.iter().filter_map(|&qpn| self.qp(qpn)) {
            self.enqueue(&qp);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::namespace::in_namespace;
    use crate::side::{Side, open};
    use ferroce_host::Host;
    use ferroce_hostlink::{CompactHeaders, LinkRefusal, SendOutcome};
    use ferroce_os::sys;
    use ferroce_proto::SendOp;
    use ferroce_types::{WcStatus, first_qpn};
    use ferroce_wire::{Opcode, Operation, Service};
    use std::time::Duration;

    /// Leaves a packet for no queue pair in the ring, or finds no room. Returns the position after its cell.
    pub(crate) fn leave(link: &Link) -> SendOutcome<()> {
        let opcode = Opcode { service: Service::Rc, operation: Operation::SendOnly };
        let headers = CompactHeaders::of_send(opcode, (0xffff, 0), 0, (false, 0));
        link.send_on_connection(&headers, (0, 0), 0, |_| Ok(()))
    }

    /// Takes what comes by holding the ring until another thread has run this.
    pub(crate) struct Meanwhile<F>(pub(crate) Option<F>);

    impl<F: FnOnce() + Send> Receive for Meanwhile<F> {
        fn run(&mut self, _: &mut RecordRun<'_>) -> bool {
            if let Some(meanwhile) = self.0.take() {
                // Another thread, which takes locks of its own.
                std::thread::scope(|scope| scope.spawn(meanwhile).join().unwrap());
            }
            true
        }

        fn executed(&mut self, _: SentPacket, _: Option<ShmPayload<'_>>) {}
    }

    #[test]
    fn a_queue_pair_that_waits_goes_on_though_the_thread_that_has_made_room_does_not_look() {
        const NAME: &str = "fabric::links::tests::\
            a_queue_pair_that_waits_goes_on_though_the_thread_that_has_made_room_does_not_look";
        in_namespace(NAME, || {
            let context = open();
            let [sends, receives] = [(); 2].map(|()| Side::new(&context, Service::Rc, 64));
            sends.connect(receives.qp.qpn());
            receives.connect(sends.qp.qpn());
            receives.recv(1, receives.sge(0, 8));
            let adapter = context.adapter().unwrap();
            let link = adapter.links.to_itself().unwrap();
            let mut meanwhile = Meanwhile(Some(|| {
                while leave(link) != SendOutcome::Full {}
                sends.send(2, SendOp::Send, sends.sge(0, 8), None);
            }));
            // Another thread may take the first packet.
            while meanwhile.0.is_some() {
                leave(link);
                link.receive_last(&mut meanwhile);
            }
            adapter.take_what_was_left();
            let ended = [sends.wait(), receives.wait()].map(|completion| completion.status);
            assert_eq!(ended, [WcStatus::Success; 2]);
            sends.close();
            receives.close();
        });
    }

    #[test]
    fn a_full_queue_of_connections_is_not_a_refusal() {
        const NAME: &str = "fabric::links::tests::a_full_queue_of_connections_is_not_a_refusal";
        in_namespace(NAME, || {
            let side = Side::new(&open(), Service::Rc, 64);
            let adapter = side.context.adapter().unwrap();
            // As another process that answers when this thread has it answer.
            let other = Host::join().unwrap();
            let slot = other.slots()[0];
            let fill = || while adapter.host.dial(slot).is_ok() {};
            let route = adapter.route(&side.context, &side.av()).unwrap();
            let has_link = || adapter.shm_path(&route, first_qpn(slot)).is_some();

            fill();
            for _ in 0..2 {
                assert!(!has_link());
                assert_eq!(adapter.links.refusal(slot), Some(LinkRefusal::Crowded));
            }
            for _ in 0..10 {
                other.answer_requests();
            }
            assert!(has_link(), "the next QP is asked for again");

            fill();
            let late = Duration::from_secs(60);
            std::thread::scope(|scope| {
                let dials = scope.spawn(|| adapter.host.dial_trusted(slot, late).is_ok());
                while !dials.is_finished() {
                    sys::pause(Duration::from_millis(20));
                    other.answer_requests();
                }
                assert!(dials.join().unwrap(), "it is tried until there is room");
            });
            drop(other);
            side.close();
        });
    }
}
