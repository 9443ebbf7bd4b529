//! What a peer can prolong, and what it can take from a listener, has a bound.

use super::pair::{Fate, Pair, address, answer, config, ip, listen, ms, route, wanted};
use ferroce_cm::{
    Accept, Cm, Config, ConnectionEvent, Event, Handle, Listen, ListenerId, Lookup, LookupReply,
};
use ferroce_types::HostAddr;
use ferroce_wire::cm::{
    CommIds, Ece, IpHeader, Mad, MadError, Message, Mra, PortSpace, Reject, RejectReason, Rejected, Request,
    ServiceId, SidrRequest, SidrStatus,
};
use proptest::prelude::*;
use std::time::Duration;

/// The longest wait that one MRA can cause: 65,536 ms of service timeout and two packet lifetimes.
const MRA_WAIT: Duration = ms(65_536 + 2048);
/// A message is sent 16 times at most.
const LONGEST_WAIT: Duration = Duration::from_millis(16 * MRA_WAIT.as_millis() as u64);
/// Place of a MAD's attribute ID, and the number of a LAP.
const ATTRIBUTE: usize = 17;
const LAP: u8 = 0x19;

fn mad(transaction: u64, message: Message) -> Mad {
    Mad { transaction, message }
}

fn mra(ids: CommIds, received: Rejected) -> Message {
    Message::Mra(Mra { ids, received, service_timeout: 31 })
}

/// Lets time pass while a side gets all of `mads` each half second, until it reports the end of its wait; how long that took.
fn bombarded(pair: &mut Pair, side: usize, handle: Handle, mads: &[Mad]) -> Duration {
    let begin = pair.now;
    pair.judge = Box::new(|_| Fate::Lost);
    pair.events[side].clear();
    while pair.now - begin < 2 * LONGEST_WAIT {
        let now = pair.now;
        for mad in mads {
            pair.cms[side].handle(now, address(1 - side), address(side), mad);
        }
        // Processes of the peer's host end all the time.
        pair.cms[side].ask_again(now, |_| true);
        pair.run(ms(50));
        let ended = |event: &Event| {
            matches!(event, Event::Of(of, ConnectionEvent::Unreachable | ConnectionEvent::Disconnected { timed_out: true })
                if *of == handle)
        };
        if pair.events[side].iter().any(ended) {
            return pair.now - begin;
        }
        pair.run(ms(450));
    }
    panic!("side {side} waits after {:?}", pair.now - begin);
}

/// Every message of a peer that could prolong a wait for it: MRAs to any message. (A LAP isn't parsed.)
fn delays(transaction: u64, ids: CommIds) -> Vec<Mad> {
    let mras = [Rejected::Request, Rejected::Reply, Rejected::Other];
    mras.map(|received| mad(transaction, mra(ids, received))).into()
}

#[test]
fn a_lap_is_ignored() {
    let mut lap = mad(1, mra(CommIds { local: 9, remote: 1 }, Rejected::Request)).emit();
    lap[ATTRIBUTE] = LAP;
    assert_eq!(Mad::parse(&lap), Err(MadError::Attribute(LAP.into())));
}

#[test]
fn no_peer_prolongs_the_wait_for_a_reply_beyond_its_bound() {
    let mut pair = Pair::new();
    pair.judge = Box::new(|_| Fate::Lost);
    let mine = pair.connect(0x11);
    let mads = delays(pair.sent[0].2.transaction, CommIds { local: 9, remote: mine.0 });
    let took = bombarded(&mut pair, 0, mine, &mads);
    assert!(took <= LONGEST_WAIT + ms(500), "{took:?}");
}

#[test]
fn no_peer_prolongs_the_wait_for_its_rtu_beyond_its_bound() {
    // The longest times that a REQ can name: 2.3 hours, 16 times.
    let mut pair = Pair::listening();
    pair.judge = Box::new(|_| Fate::Lost);
    let mine = pair.connect(0x11);
    let request = pair.sent[0].2;
    let Message::Request(message) = request.message else { panic!("a request") };
    let long = Request { local_response_timeout: 31, max_cm_retries: 15, ..message };
    let long = mad(request.transaction, Message::Request(long));
    let now = pair.now;
    pair.cms[1].handle(now, address(0), address(1), &long);
    pair.pump();
    let theirs = pair.request();
    pair.accept(theirs);
    let mut mads = delays(request.transaction, CommIds { local: mine.0, remote: theirs.0 });
    mads.push(long);
    let took = bombarded(&mut pair, 1, theirs, &mads);
    assert!(took <= LONGEST_WAIT + ms(500), "{took:?}");
}

#[test]
fn no_peer_prolongs_the_end_of_a_connection_beyond_its_bound() {
    for side in [0, 1] {
        let mut pair = Pair::listening();
        let mine = pair.cms[0].connect(pair.now, &wanted(0x11)).expect("a request");
        let transmit = pair.cms[0].poll_transmit().expect("a REQ");
        let request = transmit.mad;
        let Message::Request(message) = request.message else { panic!("a request") };
        let mut long = Request { local_response_timeout: 31, max_cm_retries: 15, ..message };
        long.primary.ack_timeout = 31;
        let long = mad(request.transaction, Message::Request(long));
        let now = pair.now;
        pair.cms[1].handle(now, address(0), address(1), &long);
        pair.pump();
        let theirs = pair.request();
        pair.accept(theirs);
        pair.run(ms(10));
        let reply = pair.sent.iter().find(|(_, by, _)| *by == 1).expect("a REP").2;
        pair.establish(mine);
        pair.run(ms(10));
        let (own, peer) = if side == 0 { (mine, theirs) } else { (theirs, mine) };
        pair.judge = Box::new(|_| Fate::Lost);
        pair.disconnect(side, own);
        let mut mads = delays(request.transaction, CommIds { local: peer.0, remote: own.0 });
        mads.push(if side == 0 { reply } else { long });
        let took = bombarded(&mut pair, side, own, &mads);
        assert!(took <= LONGEST_WAIT + ms(500), "side {side}: {took:?}");
        // Time-wait is as long as the field of the REQ, within the same bound.
        let begin = pair.now;
        while !pair.events[side].iter().any(|e| matches!(e, Event::Of(_, ConnectionEvent::TimewaitExit))) {
            assert!(pair.now - begin < MRA_WAIT, "side {side}: time-wait");
            pair.run(ms(1000));
        }
    }
}

#[test]
fn no_peer_prolongs_a_lookup_beyond_its_bound() {
    let mut pair = Pair::new();
    pair.judge = Box::new(|_| Fate::Lost);
    let mine = pair.cms[0].lookup(pair.now, &lookup()).expect("a lookup");
    pair.pump();
    let request = pair.sent[0].2;
    let mut mads = delays(request.transaction, CommIds { local: 9, remote: mine.0 });
    mads.push(request);
    let took = bombarded(&mut pair, 0, mine, &mads);
    assert!(took <= LONGEST_WAIT + ms(500), "{took:?}");
}

#[test]
fn one_mra_defers_each_repetition_and_never_hastens_it() {
    let mut pair = Pair::new();
    pair.judge = Box::new(|_| Fate::Lost);
    let mine = pair.connect(0x11);
    let transaction = pair.sent[0].2.transaction;
    let say = |pair: &mut Pair, service_timeout| {
        let ids = CommIds { local: 9, remote: mine.0 };
        let message = Message::Mra(Mra { ids, received: Rejected::Request, service_timeout });
        let now = pair.now;
        pair.cms[0].handle(now, address(1), address(0), &mad(transaction, message));
    };
    // The second and third MRA for the same REQ change nothing.
    for _ in 0..3 {
        say(&mut pair, 22);
        pair.run(ms(5000));
    }
    pair.run(ms(5000));
    assert_eq!(pair.times(0, "REQ"), [0, 16_384 + 2048]);
    // An MRA that asks for less time than the REQ has anyway.
    say(&mut pair, 0);
    pair.run(ms(8000));
    assert_eq!(pair.times(0, "REQ"), [0, 18_432, 18_432 + 6144]);
}

#[test]
fn a_request_that_the_table_has_no_room_for_takes_no_place_of_the_listener() {
    let mut cm = Cm::new(Config { max_connections: 4, ..config(1) });
    cm.listen(listen(2));
    cm.listen(lookup_listener(2));
    let own: Vec<Handle> = (0..4).map(|_| cm.connect(ms(0), &back()).expect("a request")).collect();
    for id in 1..100 {
        cm.handle(ms(1), address(0), address(1), &request(id));
        cm.handle(ms(1), address(0), address(1), &sidr_request(id));
    }
    assert!(cm.poll_event().is_none());
    own.into_iter().for_each(|handle| cm.destroy(ms(2), handle));
    for id in 100..103 {
        cm.handle(ms(3), address(0), address(1), &request(id));
        cm.handle(ms(3), address(0), address(1), &sidr_request(id));
    }
    let events: Vec<Event> = std::iter::from_fn(|| cm.poll_event()).collect();
    assert_eq!(events.len(), 4, "{events:?}");
}

#[test]
fn requests_that_are_given_up_keep_their_places_until_the_program_has_fetched_them() {
    let mut cm = Cm::new(config(1));
    cm.listen(listen(2));
    for id in 1..1000 {
        cm.handle(ms(1), address(0), address(1), &request(id));
        cm.handle(ms(1), address(0), address(1), &given_up(id));
    }
    let events: Vec<Event> = std::iter::from_fn(|| cm.poll_event()).collect();
    assert_eq!((events.len(), cm.count()), (2, 2));
}

/// A request of side 1, which is asked for connections otherwise.
fn back() -> ferroce_cm::Connect<'static> {
    ferroce_cm::Connect { route: route(1), ..wanted(1) }
}

fn lookup() -> Lookup<'static> {
    Lookup {
        route: route(0),
        service_id: ServiceId::of_port(PortSpace::Udp, super::pair::PORT),
        header: Some(IpHeader { source: (ip(0), 40000).into(), destination: ip(1) }),
        pkey: 0xffff,
        private_data: b"",
    }
}

fn lookup_listener(backlog: u32) -> Listen {
    Listen { space: PortSpace::Udp, transport: None, ..listen(backlog) }
}

/// The REQ of side 0 that calls its connection `id`.
fn request(id: u32) -> Mad {
    let mut pair = Pair::new();
    pair.connect(id);
    let Message::Request(request) = pair.sent[0].2.message else { panic!("a request") };
    mad(u64::from(id), Message::Request(Request { local_comm_id: id, ..request }))
}

/// Side 0 gives the request `id` up.
fn given_up(id: u32) -> Mad {
    let reject = Reject::of_request(CommIds { local: id, remote: 0 }, RejectReason::TIMEOUT);
    let mut reject = Reject { rejected: Rejected::Other, info_length: 8, ..reject };
    reject.info[..8].copy_from_slice(&super::pair::guid(0).to_be_bytes());
    mad(u64::from(id), Message::Reject(reject))
}

/// The SIDR_REQ of side 0 that it calls `id`.
fn sidr_request(id: u32) -> Mad {
    let mut pair = Pair::new();
    pair.cms[0].lookup(ms(0), &lookup()).expect("a lookup");
    pair.pump();
    let Message::SidrRequest(request) = pair.sent[0].2.message else { panic!("a lookup") };
    mad(u64::from(id), Message::SidrRequest(SidrRequest { request_id: id, ..request }))
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Request(u32),
    Lookup(u32),
    /// The peer gives a request up.
    GiveUp(u32),
    /// The program connects to other peers: the table fills.
    Connect,
    EndOwn,
    /// What the program does with the oldest request that it hasn't fetched.
    Take,
    Accept,
    Reject,
    Destroy,
    /// The peer's process is gone.
    Gone(u32),
    Time(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (1_u32..40).prop_map(Step::Request),
        8 => (1_u32..40).prop_map(Step::Lookup),
        3 => (1_u32..40).prop_map(Step::GiveUp),
        4 => Just(Step::Connect),
        2 => Just(Step::EndOwn),
        3 => Just(Step::Take),
        2 => Just(Step::Accept),
        2 => Just(Step::Reject),
        2 => Just(Step::Destroy),
        1 => (1_u32..40).prop_map(Step::Gone),
        1 => (0_u64..200_000).prop_map(Step::Time),
    ]
}

const BACKLOG: u32 = 3;
const MOST: usize = 10;

/// A communication manager with two listeners, and what a program knows of their requests.
struct Program {
    cm: Cm,
    now: Duration,
    listeners: [ListenerId; 2],
    own: Vec<Handle>,
    /// Requests that count, oldest first, and their listener.
    waiting: Vec<(Handle, ListenerId)>,
    /// Requests that the program has fetched and not destroyed.
    fetched: Vec<Handle>,
}

impl Program {
    fn new() -> Self {
        let mut cm = Cm::new(Config { max_connections: MOST, ..config(1) });
        let listeners = [cm.listen(listen(BACKLOG)), cm.listen(lookup_listener(BACKLOG))];
        let (own, waiting, fetched) = Default::default();
        Self { cm, now: ms(0), listeners, own, waiting, fetched }
    }

    fn handle(&mut self, mad: &Mad) {
        let from: HostAddr = address(0);
        self.cm.handle(self.now, from, address(1), mad);
    }

    fn settle(&mut self) {
        while self.cm.poll_transmit().is_some() {}
        while let Some(event) = self.cm.poll_event() {
            if let Event::Request { listener, handle, .. } | Event::Lookup { listener, handle, .. } = event {
                self.waiting.push((handle, listener));
            }
        }
    }

    fn oldest(&mut self) -> Option<(Handle, ListenerId)> {
        if self.waiting.is_empty() { None } else { Some(self.waiting.remove(0)) }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Request(id) => self.handle(&request(id)),
            Step::Lookup(id) => self.handle(&sidr_request(id)),
            Step::GiveUp(id) => self.handle(&given_up(id)),
            Step::Connect => self.own.extend(self.cm.connect(self.now, &back())),
            Step::EndOwn => {
                if let Some(own) = self.own.pop() {
                    self.cm.destroy(self.now, own);
                }
            }
            Step::Take => {
                if let Some((handle, _)) = self.oldest() {
                    self.cm.take(handle);
                    self.fetched.push(handle);
                }
            }
            Step::Accept | Step::Reject => {
                if let Some((handle, listener)) = self.oldest() {
                    self.cm.take(handle);
                    let now = self.now;
                    // The peer may have given up.
                    let _ = match (step, listener == self.listeners[0]) {
                        (Step::Accept, true) => self.cm.accept(now, handle, &Accept { ..answer() }),
                        (_, true) => self.cm.reject(handle, RejectReason::CONSUMER, b""),
                        (_, false) => self.cm.answer(handle, &refusal()),
                    };
                    self.fetched.push(handle);
                }
            }
            Step::Destroy => {
                if let Some((handle, _)) = self.oldest() {
                    self.cm.destroy(self.now, handle);
                }
            }
            Step::Gone(id) => self.cm.peer_gone(self.now, |remote, _| remote == id),
            Step::Time(time) => {
                self.now += ms(time);
                self.cm.handle_timeout(self.now);
            }
        }
        self.settle();
    }

    fn waits_at(&self, listener: ListenerId) -> usize {
        self.waiting.iter().filter(|(_, of)| *of == listener).count()
    }
}

fn refusal() -> LookupReply<'static> {
    LookupReply { status: SidrStatus::REJECT, qpn: 0, qkey: 0, ece: Ece::default(), private_data: b"" }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whatever happens to requests, also where the table of connections is full, a listener has as many free places as its backlog
    /// has more than requests that wait.
    #[test]
    fn a_listener_counts_the_requests_that_wait_and_no_others(steps in proptest::collection::vec(step(), 0..120)) {
        let mut program = Program::new();
        for step in steps {
            program.step(step);
            for listener in program.listeners {
                prop_assert!(program.waits_at(listener) <= BACKLOG as usize);
            }
        }
        // The table has room again.
        let now = program.now;
        for handle in program.own.drain(..).chain(program.fetched.drain(..)) {
            program.cm.destroy(now, handle);
        }
        program.settle();
        for id in 1000..1020 {
            program.step(Step::Request(id));
            program.step(Step::Lookup(id));
        }
        for listener in program.listeners {
            prop_assert_eq!(program.waits_at(listener), BACKLOG as usize);
        }
    }
}
