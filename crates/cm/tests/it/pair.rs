//! Two communication managers and the wire between them. Time jumps to whatever is next.

use ferroce_cm::{
    Accept, AddressedMad, Cm, Config, Connect, ConnectionEvent, ConnectionQp, ConnectionRoute, Event, Handle,
    Listen, ListenerId,
};
use ferroce_types::HostAddr;
use ferroce_wire::cm::{Ece, IpHeader, Mad, PortSpace, Request, ServiceId, TransportService};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

pub const PORT: u16 = 7174;
pub const DELAY: Duration = Duration::from_millis(1);

pub const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

pub const fn ip(side: usize) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, side as u8 + 1))
}

pub fn address(side: usize) -> HostAddr {
    HostAddr::new(ip(side), 0)
}

pub fn guid(side: usize) -> u64 {
    0xab00 + side as u64
}

/// From `side` to the other one.
pub fn route(side: usize) -> ConnectionRoute {
    ConnectionRoute {
        from: address(side),
        to: address(1 - side),
        traffic_class: 8,
        hop_limit: 64,
        flow_label: 0x1_2345,
        sl: 0,
    }
}

/// What the wire does to a MAD.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    Arrives,
    Lost,
    Twice,
    /// It is overtaken by what comes in this time.
    Late(u64),
}

/// A wire's decision about a MAD.
pub type Judge = Box<dyn FnMut(&Mad) -> Fate>;

/// 0 asks, 1 is asked.
pub struct Pair {
    pub now: Duration,
    pub cms: [Cm; 2],
    /// The events of each side, oldest first.
    pub events: [Vec<Event>; 2],
    /// All MADs that were sent, with when and by whom.
    pub sent: Vec<(Duration, usize, Mad)>,
    wire: Vec<(Duration, u64, usize, AddressedMad)>,
    number: u64,
    pub judge: Judge,
}

pub fn config(side: usize) -> Config {
    Config { id_prefix: 0x1230_0000 * (side as u32 + 1), id_bits: 20, first_id: 0x77, max_connections: 64 }
}

impl Pair {
    pub fn new() -> Self {
        Self {
            now: Duration::from_secs(1000),
            cms: [0, 1].map(|side| Cm::new(config(side))),
            events: [Vec::new(), Vec::new()],
            sent: Vec::new(),
            wire: Vec::new(),
            number: 0,
            judge: Box::new(|_| Fate::Arrives),
        }
    }

    /// Side 1 listens.
    pub fn listening() -> Self {
        let mut pair = Self::new();
        pair.listen(8);
        pair
    }

    pub fn listen(&mut self, backlog: u32) -> ListenerId {
        self.cms[1].listen(listen(backlog))
    }

    /// Side 0 asks for a connection.
    pub fn connect(&mut self, qpn: u32) -> Handle {
        let handle = self.cms[0].connect(self.now, &wanted(qpn)).expect("a connection");
        self.pump();
        handle
    }

    pub fn accept(&mut self, handle: Handle) {
        let now = self.now;
        self.cms[1].accept(now, handle, &answer()).expect("accepted");
        self.pump();
    }

    pub fn establish(&mut self, handle: Handle) {
        self.cms[0].establish(handle).expect("established");
        self.pump();
    }

    pub fn disconnect(&mut self, side: usize, handle: Handle) {
        let now = self.now;
        self.cms[side].disconnect(now, handle).expect("disconnected");
        self.pump();
    }

    pub fn destroy(&mut self, side: usize, handle: Handle) {
        let now = self.now;
        self.cms[side].destroy(now, handle);
        self.pump();
    }

    /// Both sides' handles of a connection whose reply has come.
    pub fn answered(&mut self) -> [Handle; 2] {
        let mine = self.connect(0x11);
        self.run(ms(10));
        let theirs = self.request();
        self.accept(theirs);
        self.run(ms(10));
        self.expect(0, mine, |h| matches!(h, ConnectionEvent::Reply(_)));
        [mine, theirs]
    }

    /// Both sides' handles of an established connection.
    pub fn connected(&mut self) -> [Handle; 2] {
        let [mine, theirs] = self.answered();
        self.establish(mine);
        self.run(ms(10));
        self.expect(1, theirs, |h| *h == ConnectionEvent::Established);
        self.sent.clear();
        [mine, theirs]
    }

    /// Takes the next event of side 1, a request.
    pub fn request(&mut self) -> Handle {
        self.request_and_what().0
    }

    pub fn request_and_what(&mut self) -> (Handle, Box<Request>) {
        assert!(!self.events[1].is_empty(), "no request");
        match self.events[1].remove(0) {
            Event::Request { handle, request, .. } => {
                self.cms[1].take(handle);
                (handle, request)
            }
            other => panic!("{other:?}"),
        }
    }

    /// Takes the next event of a side.
    #[track_caller]
    pub fn expect(&mut self, side: usize, handle: Handle, is_it: impl Fn(&ConnectionEvent) -> bool) {
        assert!(!self.events[side].is_empty(), "no event of side {side}");
        match self.events[side].remove(0) {
            Event::Of(of, happening) => {
                assert!(of == handle && is_it(&happening), "side {side}: {happening:?}");
            }
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    pub fn expect_silence(&self) {
        assert!(self.events.iter().all(Vec::is_empty), "{:?}", self.events);
    }

    /// What has been sent, in short.
    pub fn traffic(&self) -> Vec<(usize, &'static str)> {
        self.sent.iter().map(|(_, side, mad)| (*side, mad.message.name())).collect()
    }

    /// When a side has sent such messages.
    pub fn times(&self, side: usize, what: &str) -> Vec<u128> {
        let begin = self.sent.first().map_or(Duration::ZERO, |(at, ..)| *at);
        let is_it = |(_, by, mad): &&(Duration, usize, Mad)| *by == side && mad.message.name() == what;
        self.sent.iter().filter(is_it).map(|(at, ..)| (*at - begin).as_millis()).collect()
    }

    /// Puts the sides' messages on the wire, and keeps their events.
    pub fn pump(&mut self) {
        for side in 0..2 {
            while let Some(transmit) = self.cms[side].poll_transmit() {
                assert_eq!((transmit.from, transmit.to), (address(side), address(1 - side)));
                let mad = Mad::parse(&transmit.mad.emit()).expect("a message");
                self.sent.push((self.now, side, mad));
                match (self.judge)(&mad) {
                    Fate::Arrives => self.put(side, transmit, DELAY),
                    Fate::Lost => {}
                    Fate::Twice => {
                        self.put(side, transmit, DELAY);
                        self.put(side, transmit, 2 * DELAY);
                    }
                    Fate::Late(late) => self.put(side, transmit, ms(late)),
                }
            }
            while let Some(event) = self.cms[side].poll_event() {
                self.events[side].push(event);
            }
        }
    }

    fn put(&mut self, side: usize, transmit: AddressedMad, delay: Duration) {
        self.number += 1;
        self.wire.push((self.now + delay, self.number, side, transmit));
    }

    /// Lets a time pass.
    pub fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.step(end) {}
        self.now = end;
    }

    /// The next thing that is due by `end`.
    pub fn step(&mut self, end: Duration) -> bool {
        self.pump();
        let next = (0..self.wire.len()).min_by_key(|&at| (self.wire[at].0, self.wire[at].1));
        let arrival = next.map(|at| self.wire[at].0);
        let timer = self.cms.iter().filter_map(Cm::poll_timeout).min();
        let Some(at) = [arrival, timer].into_iter().flatten().min().filter(|&at| at <= end) else {
            return false;
        };
        self.now = self.now.max(at);
        let now = self.now;
        match next.filter(|_| arrival == Some(at)) {
            Some(next) => {
                let (_, _, side, AddressedMad { from, to, mad, .. }) = self.wire.remove(next);
                self.cms[1 - side].handle(now, from, to, &mad);
            }
            None => self.cms.iter_mut().for_each(|cm| cm.handle_timeout(now)),
        }
        self.pump();
        true
    }
}

/// The first message of this kind is lost, and no other.
pub fn lose_first(what: &'static str) -> Judge {
    let mut lost = false;
    Box::new(move |mad| {
        let first = !lost && mad.message.name() == what;
        lost |= first;
        if first { Fate::Lost } else { Fate::Arrives }
    })
}

/// All messages of these kinds are lost.
pub fn lose_all(what: &'static [&'static str]) -> Judge {
    Box::new(move |mad| if what.contains(&mad.message.name()) { Fate::Lost } else { Fate::Arrives })
}

pub fn listen(backlog: u32) -> Listen {
    Listen {
        space: PortSpace::Tcp,
        port: PORT,
        address: ip(1),
        v6_only: false,
        transport: Some(TransportService::Rc),
        backlog,
    }
}

pub fn wanted(qpn: u32) -> Connect<'static> {
    Connect {
        route: route(0),
        service_id: ServiceId::of_port(PortSpace::Tcp, PORT),
        header: Some(IpHeader { source: (ip(0), 40000).into(), destination: ip(1) }),
        ca_guid: guid(0),
        qp: ConnectionQp {
            transport: TransportService::Rc,
            qpn,
            srq: false,
            starting_psn: 0x1234,
            pkey: 0xffff,
            path_mtu: 3,
            responder_resources: 7,
            initiator_depth: 5,
            flow_control: true,
            retry_count: 4,
            rnr_retry_count: 3,
            ack_timeout: 19,
        },
        ece: Ece::default(),
        private_data: b"hello",
    }
}

pub fn answer() -> Accept<'static> {
    Accept {
        ca_guid: guid(1),
        qpn: 0x22,
        eecn: 0,
        srq: false,
        starting_psn: 0x4321,
        responder_resources: 3,
        initiator_depth: 2,
        flow_control: false,
        rnr_retry_count: 6,
        target_ack_delay: 15,
        ece: Ece::default(),
        private_data: b"welcome",
    }
}
