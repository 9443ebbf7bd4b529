//! SENDs, READs and atomics that take the short way: whatever the requests, the receives, the keys and the network are, all ends as it does the
//! general way.

use crate::host::{ALL, BASE, Frame};
use crate::net::{CLEAN, Ends, Faults, Pair, Side, params, wr};
use core::time::Duration;
use ferroce_proto::{
    Counters, Data, DataRef, Env as _, FetchOp, PlainSend, QpEvent, QpParams, RateLimit, SendOp, SendWr,
};
use ferroce_types::{Access, AtomicOp, Completion, Instant, QpState, RecvWqe, Sge, WcStatus};
use ferroce_wire::{AtomicEth, Bth, Headers, Opcode, Operation, Reth, Service};
use proptest::prelude::*;

const SOURCES: u64 = BASE + (1 << 20);
const RECEIVES: u64 = BASE + (2 << 20);
/// What atomics are done to.
const WORDS: u64 = BASE + (3 << 20);
const LONGEST: u32 = 300;
/// A key of no region.
const NO_KEY: u32 = 0x9900;

#[derive(Clone, Copy, Debug)]
enum Step {
    Send {
        len: u32,
        immediate: bool,
        solicited: bool,
        fence: bool,
        signaled: bool,
        key: u32,
        inline: bool,
    },
    Write {
        len: u32,
        immediate: bool,
    },
    Read {
        len: u32,
        fence: bool,
        signaled: bool,
        /// The peer's key, and the key of where the answer goes.
        keys: [u32; 2],
    },
    Atomic {
        adds: bool,
        /// Where, from [`WORDS`] on.
        at: u64,
        fence: bool,
        keys: [u32; 2],
    },
    /// A receive for the peer's messages.
    Receive {
        len: u32,
        key: u32,
    },
    /// The network goes on.
    Pause {
        steps: u8,
    },
    /// The fabric takes so many packets more until the next step of this kind.
    Room {
        packets: Option<usize>,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let key = || prop_oneof![30 => Just(ALL), 1 => Just(NO_KEY)];
    let len = || prop_oneof![Just(0), 1..LONGEST];
    prop_oneof![
        6 => (len(), any::<bool>(), any::<bool>(), prop::bool::weighted(0.1), any::<bool>(), key(), any::<bool>())
            .prop_map(|(len, immediate, solicited, fence, signaled, key, inline)| Step::Send {
                len, immediate, solicited, fence, signaled, key, inline
            }),
        3 => (len(), any::<bool>()).prop_map(|(len, immediate)| Step::Write { len, immediate }),
        3 => (len(), prop::bool::weighted(0.1), any::<bool>(), [key(), key()])
            .prop_map(|(len, fence, signaled, keys)| Step::Read { len, fence, signaled, keys }),
        3 => (any::<bool>(), prop_oneof![20 => Just(0), 20 => Just(8), 1 => Just(4)], prop::bool::weighted(0.1), [key(), key()])
            .prop_map(|(adds, at, fence, keys)| Step::Atomic { adds, at, fence, keys }),
        6 => (prop_oneof![9 => Just(LONGEST), 1 => len()], key()).prop_map(|(len, key)| Step::Receive { len, key }),
        4 => (1..6u8).prop_map(|steps| Step::Pause { steps }),
        1 => prop::option::of(0..4usize).prop_map(|packets| Step::Room { packets }),
    ]
}

/// Posts a SEND or a WRITE the short way if that is possible.
fn post_plain(side: &mut Side, now: Instant, wr: &SendWr<u32>, by_result: bool) -> bool {
    let request = wr.request();
    let writes = matches!(request.op, SendOp::Write { .. }) && request.is_single() && !request.fence;
    if !(request.is_plain() || writes) || side.host.room.is_some() {
        return false;
    }
    let payload = match request.data {
        DataRef::Sges([sge]) if sge.length == 0 || side.host.regions.contains_key(&sge.lkey) => {
            side.host.bytes(sge.addr, sge.length as usize).to_vec()
        }
        DataRef::Sges(_) => return false,
        DataRef::Inline(bytes) => bytes.to_vec(),
    };
    let Some(psn) = side.qp.plain_psn(payload.len() as u64, || side.host.window()) else { return false };
    let immediate = match request.op {
        SendOp::SendWithImmediate { immediate } => Some(immediate),
        _ => None,
    };
    let (operation, reth) = match request.op {
        SendOp::SendWithImmediate { .. } => (Operation::SendOnlyWithImmediate, None),
        SendOp::Write { va, rkey } => {
            (Operation::WriteOnly, Some(Reth { va, rkey, dma_len: payload.len() as u32 }))
        }
        _ => (Operation::SendOnly, None),
    };
    let bth = Bth::new(Opcode { service: Service::Rc, operation }, side.qp.params().dest_qpn, psn);
    let bth = Bth { solicited: wr.solicited, ack_request: true, ..bth };
    side.host.log.push((operation, psn));
    side.host.out.push(Frame { headers: Headers { immediate, reth, ..Headers::new(bth) }, payload });
    if by_result && !writes && !side.qp.awaits_data() {
        side.host.awaited.insert(psn);
    }
    side.qp.plain_sent(|| now, &request);
    side.host.plain += 1;
    true
}

/// Posts a READ or an atomic, the short way if that is possible and wanted.
fn post_fetch(side: &mut Side, now: Instant, wr: SendWr<u32>, short: bool) {
    let fetch = wr.request();
    let psn = match short && side.host.room.is_none() {
        true => side.qp.fetch_psn(&fetch, || side.host.window()),
        false => None,
    };
    let Some(psn) = psn else { return side.post(wr) };
    let atomic = |va, rkey, swap_or_add, compare| AtomicEth { va, rkey, swap_or_add, compare };
    let (operation, reth, atomic) = match fetch.op {
        SendOp::Read { va, rkey } => {
            (Operation::ReadRequest, Some(Reth { va, rkey, dma_len: fetch.data.len() as u32 }), None)
        }
        SendOp::CompareSwap { va, rkey, compare, swap } => {
            (Operation::CompareSwap, None, Some(atomic(va, rkey, swap, compare)))
        }
        SendOp::FetchAdd { va, rkey, add } => (Operation::FetchAdd, None, Some(atomic(va, rkey, add, 0))),
        _ => unreachable!("it isn't a fetch"),
    };
    let bth = Bth::new(Opcode { service: Service::Rc, operation }, side.qp.params().dest_qpn, psn);
    let headers = Headers::new(Bth { ack_request: true, ..bth });
    side.host.log.push((operation, psn));
    side.host.out.push(Frame { headers: Headers { reth, atomic, ..headers }, payload: Vec::new() });
    if side.qp.params().lossless {
        side.host.awaited.insert(psn);
    }
    side.qp.fetch_sent(|| now, &fetch);
    side.host.plain += 1;
}

/// All that can be seen of a run from outside.
#[derive(PartialEq, Debug)]
struct Outcome {
    sends: Vec<Completion>,
    receives: Vec<Completion>,
    events: [Vec<QpEvent>; 2],
    packets: [Vec<(Operation, u32)>; 2],
    memory: [Vec<u8>; 2],
    counters: [Counters; 2],
    end: Instant,
}

/// Gives the element of a request another key.
fn name(wr: &mut SendWr<u32>, lkey: u32) {
    if let Data::Sges(sges) = &mut wr.data {
        sges.iter_mut().for_each(|sge| sge.lkey = lkey);
    }
}

/// Which ways SENDs may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ways {
    General,
    Short,
    /// The short way, and the fabric reports which packets were executed.
    ByResult,
}

/// Runs the steps, and returns the outcome and how many packets went the short way.
fn run(steps: &[Step], faults: Faults, seed: u64, side: QpParams, ways: Ways) -> (Outcome, u32) {
    let plain = ways != Ways::General;
    let mut p = Pair::with(Service::Rc, side, side, 0xff_fff0).seeded(seed, faults);
    for host in [&mut p.a.host, &mut p.b.host] {
        host.takes_plain = plain;
        // A fetch that takes the short way is answered at once.
        host.answers_at_once = true;
    }
    p.a.host.fill(SOURCES, 100_000, 7);
    for (i, step) in (0..).zip(steps) {
        let (source, immediate) = (SOURCES + i * 512, (i as u32).to_be_bytes());
        match *step {
            Step::Send { len, immediate: has, solicited, fence, signaled, key, inline } => {
                let op = if has { SendOp::SendWithImmediate { immediate } } else { SendOp::Send };
                let sge = Sge { addr: source, length: len, lkey: key };
                let data = if inline {
                    Data::Inline(p.a.host.bytes(source, len as usize).into())
                } else {
                    Data::Sges(std::iter::once(sge).collect())
                };
                let wr = SendWr { data, solicited, fence, signaled, ..wr(i, op, source, len) };
                if p.a.qp.check_post(&wr.request(), 0).is_err() {
                    continue;
                }
                if !(plain && post_plain(&mut p.a, p.now, &wr, ways == Ways::ByResult)) {
                    p.a.post(wr);
                }
            }
            Step::Write { len, immediate: has } => {
                let (va, rkey) = (BASE + i * 512, ALL);
                let op = if has {
                    SendOp::WriteWithImmediate { va, rkey, immediate }
                } else {
                    SendOp::Write { va, rkey }
                };
                let wr = wr(i, op, source, len);
                if !(plain && post_plain(&mut p.a, p.now, &wr, ways == Ways::ByResult)) {
                    p.a.post(wr);
                }
            }
            Step::Read { len, fence, signaled, keys: [rkey, lkey] } => {
                let mut wr =
                    SendWr { fence, signaled, ..wr(i, SendOp::Read { va: BASE, rkey }, BASE + i * 512, len) };
                name(&mut wr, lkey);
                post_fetch(&mut p.a, p.now, wr, plain);
            }
            Step::Atomic { adds, at, fence, keys: [rkey, lkey] } => {
                let va = WORDS + at;
                let op = if adds {
                    SendOp::FetchAdd { va, rkey, add: i + 1 }
                } else {
                    SendOp::CompareSwap { va, rkey, compare: 0, swap: i << 32 }
                };
                let mut wr = SendWr { fence, ..wr(i, op, BASE + i * 512, 8) };
                name(&mut wr, lkey);
                post_fetch(&mut p.a, p.now, wr, plain);
            }
            Step::Receive { len, key } => {
                let sge = Sge { addr: RECEIVES + i * 512, length: len, lkey: key };
                p.b.host.receives.push_back(RecvWqe { wr_id: i, sges: std::iter::once(sge).collect() });
            }
            Step::Pause { steps } => {
                for _ in 0..steps {
                    p.step();
                }
            }
            Step::Room { packets } => p.a.host.room = packets,
        }
        // Posting lets the QP send at once.
        p.transmit();
    }
    p.a.host.room = None;
    p.run_for(Duration::from_millis(150));
    let outcome = Outcome {
        sends: p.a.host.sends,
        receives: p.b.host.recvs,
        events: [p.a.host.events, p.b.host.events],
        packets: [p.a.host.log, p.b.host.log],
        memory: [p.a.host.memory, p.b.host.memory],
        counters: [p.a.qp.counters(), p.b.qp.counters()],
        end: p.now,
    };
    (outcome, p.a.host.plain + p.b.host.plain)
}

fn faults() -> impl Strategy<Value = Faults> {
    prop_oneof![
        2 => Just(Faults { loss: 0, duplicate: 0, reorder: 0, delay: Duration::from_micros(2), link: None }),
        1 => (0..60u32, 0..60u32, 0..60u32).prop_map(|(loss, duplicate, reorder)| Faults {
            loss, duplicate, reorder, delay: Duration::from_micros(2), link: None
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 250, max_shrink_iters: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn short_way_ends_as_the_general_one_does(
        steps in prop::collection::vec(step(), 1..80),
        faults in faults(),
        seed: u64,
        rnr_retry in prop::sample::select(vec![0u8, 2, 7]),
        max_rd_atomic in prop::sample::select(vec![1u8, 3, 16]),
        lossless: bool,
    ) {
        let side = QpParams {
            lossless,
            rnr_retry,
            retry_cnt: 2,
            min_rnr_timer: 12,
            timeout: 10,
            max_rd_atomic,
            ..params(65_536)
        };
        let (general, none) = run(&steps, faults, seed, side, Ways::General);
        let (short, _) = run(&steps, faults, seed, side, Ways::Short);
        prop_assert_eq!(none, 0);
        prop_assert_eq!(&short.sends, &general.sends);
        prop_assert_eq!(&short.receives, &general.receives);
        prop_assert_eq!(&short.events, &general.events);
        prop_assert_eq!(&short.packets, &general.packets);
        prop_assert_eq!(&short.counters, &general.counters);
        prop_assert!(short == general, "memory or time");
    }

    #[test]
    fn acknowledgements_by_result_end_as_those_by_packets_do(
        steps in prop::collection::vec(step(), 1..80),
        seed: u64,
        rnr_retry in prop::sample::select(vec![0u8, 2, 7]),
    ) {
        let side = QpParams { lossless: true, rnr_retry, retry_cnt: 2, min_rnr_timer: 12, timeout: 10, ..params(65_536) };
        let (general, _) = run(&steps, CLEAN, seed, side, Ways::General);
        let (by_result, _) = run(&steps, CLEAN, seed, side, Ways::ByResult);
        prop_assert_eq!(&by_result.sends, &general.sends);
        prop_assert_eq!(&by_result.receives, &general.receives);
        prop_assert_eq!(&by_result.events, &general.events);
        // The sender has asked for the same; what the receiver answers is less.
        prop_assert_eq!(&by_result.packets[0], &general.packets[0]);
        prop_assert!(by_result.memory == general.memory && by_result.end == general.end);
    }
}

/// Ten SENDs, half of them inline, each with a receive for it, and how many packets went the short way.
fn ten_sends(ways: Ways) -> (Outcome, u32) {
    let side = QpParams { lossless: true, ..params(65_536) };
    let send = |inline| Step::Send {
        len: 8,
        immediate: false,
        solicited: false,
        fence: false,
        signaled: true,
        key: ALL,
        inline,
    };
    let steps: Vec<Step> = (0..10)
        .flat_map(|i| [Step::Receive { len: 8, key: ALL }, send(i % 2 == 0), Step::Pause { steps: 3 }])
        .collect();
    let (outcome, plain) = run(&steps, CLEAN, 1, side, ways);
    assert!(outcome.sends.iter().all(|send| send.status == WcStatus::Success) && outcome.sends.len() == 10);
    (outcome, plain)
}

#[test]
fn plain_sends_take_the_short_way() {
    assert_eq!(ten_sends(Ways::Short).1, 30, "ten requests at either side, and ten acknowledgements");
}

#[test]
fn plain_sends_need_no_packet_as_acknowledgement() {
    assert_eq!(ten_sends(Ways::ByResult).0.packets[1], [], "the receiver answers");
}

#[test]
fn fetches_take_the_short_way_whether_packets_get_lost_or_not() {
    for lossless in [true, false] {
        fetches_take_the_short_way(QpParams { lossless, ..params(65_536) });
    }
}

fn fetches_take_the_short_way(side: QpParams) {
    let read = Step::Read { len: 8, fence: true, signaled: true, keys: [ALL; 2] };
    let atomic = Step::Atomic { adds: true, at: 0, fence: false, keys: [ALL; 2] };
    let steps = [
        Step::Receive { len: 8, key: ALL },
        read,
        Step::Pause { steps: 3 },
        atomic,
        Step::Pause { steps: 3 },
    ];
    let (outcome, plain) = run(&steps.repeat(5), CLEAN, 1, side, Ways::Short);
    assert!(outcome.sends.iter().all(|send| send.status == WcStatus::Success) && outcome.sends.len() == 10);
    assert_eq!(plain, 30, "ten requests, ten answers, and these at the requester");
}

/// The first PSN of requests of `a`.
const FIRST: u32 = 0xff_fff0;

/// A connected pair on which nothing is under way.
fn quiet(side: QpParams) -> Pair {
    let side = QpParams { lossless: true, ..side };
    Pair::with(Service::Rc, side, side, FIRST)
}

/// A SEND or a fetch of `a` may leave at once.
fn may_leave(p: &Pair) -> (bool, bool) {
    let read = wr(1, SendOp::Read { va: BASE, rkey: ALL }, BASE, 8);
    (p.a.qp.plain_psn(8, || u32::MAX).is_some(), p.a.qp.fetch_psn(&read.request(), || u32::MAX).is_some())
}

/// A SEND of so many bytes may leave at once.
fn may_leave_whole(p: &Pair, len: u64) -> bool {
    p.a.qp.plain_psn(len, || u32::MAX).is_some()
}

#[test]
fn requests_leave_at_once_only_where_nothing_is_unusual() {
    const BOTH: (bool, bool) = (true, true);
    const NEITHER: (bool, bool) = (false, false);
    let p = quiet(params(1024));
    assert_eq!(may_leave(&p), BOTH);
    assert!(may_leave_whole(&p, 1024) && !may_leave_whole(&p, 1025), "one packet");
    let rate = RateLimit::new(1000, 0);
    assert_eq!(may_leave(&quiet(QpParams { rate, ..params(1024) })), NEITHER, "its rate is limited");
    let mut p = quiet(params(1024));
    p.a.qp.set_state(QpState::Sqd, &mut p.a.host);
    assert_eq!(may_leave(&p), NEITHER, "it drains");
    // An earlier request hasn't left.
    let mut p = quiet(params(1024));
    p.a.post(wr(1, SendOp::Send, BASE, 8));
    assert_eq!(may_leave(&p), NEITHER, "an earlier request waits");
    // An answer hasn't left.
    let mut p = quiet(params(1024));
    p.a.host.room = Some(0);
    p.b.post(wr(1, SendOp::Read { va: BASE, rkey: ALL }, BASE, 8));
    for _ in 0..10 {
        p.step();
    }
    assert!(p.a.qp.owes_answers());
    assert_eq!(may_leave(&p), NEITHER, "an answer waits");
    // The send queue is full.
    let mut p = quiet(params(1024));
    let now = p.now;
    let send = wr(1, SendOp::Send, BASE, 8);
    let sent = (0..5000).take_while(|_| post_plain(&mut p.a, now, &send, true)).count();
    assert_eq!((sent, may_leave(&p)), (4096, NEITHER));
    assert_eq!(p.a.qp.counters().requests_sent, 4096);
}

#[test]
fn where_packets_get_lost_sends_leave_within_the_window() {
    let mut p = Pair::with(Service::Rc, params(1024), params(1024), FIRST);
    assert_eq!(may_leave(&p), (true, true));
    let read = wr(1, SendOp::Read { va: BASE, rkey: ALL }, BASE, 1024);
    let may_fetch = |p: &Pair, window| p.a.qp.fetch_psn(&read.request(), || window).is_some();
    assert!(p.a.qp.plain_psn(1024, || 0).is_some() && may_fetch(&p, 0), "nothing is in flight");
    let (now, send) = (p.now, wr(1, SendOp::Send, BASE, 8));
    for sent in 0..8 {
        assert!(may_leave_whole(&p, 1024) && may_fetch(&p, u32::MAX), "{sent} aren't acknowledged");
        assert!(post_plain(&mut p.a, now, &send, false));
        assert!(p.a.qp.plain_psn(1024, || 1024).is_none() && !may_fetch(&p, 1024), "the window is full");
    }
    assert!(!may_leave_whole(&p, 8) && !may_fetch(&p, u32::MAX), "short requests wait for one another");
}

#[test]
fn fetches_leave_within_their_limits() {
    let mut p = quiet(QpParams { max_rd_atomic: 2, ..params(1024) });
    let now = p.now;
    let read = |len, fence| SendWr { fence, ..wr(1, SendOp::Read { va: BASE, rkey: ALL }, BASE, len) };
    let fits = |p: &Pair, wr: &SendWr<u32>| p.a.qp.fetch_psn(&wr.request(), || u32::MAX).is_some();
    for (len, expected) in [(0, false), (1, true), (1024, true), (1025, false)] {
        assert_eq!(fits(&p, &read(len, false)), expected, "a READ of {len} bytes");
    }
    for (len, expected) in [(7, false), (8, true), (16, true)] {
        let add = wr(1, SendOp::FetchAdd { va: BASE, rkey: ALL, add: 1 }, BASE, len);
        assert_eq!(fits(&p, &add), expected, "an atomic into {len} bytes");
    }
    post_fetch(&mut p.a, now, read(8, false), true);
    assert!(fits(&p, &read(8, false)) && !fits(&p, &read(8, true)), "a fence waits for those before it");
    post_fetch(&mut p.a, now, read(8, false), true);
    assert!(!fits(&p, &read(8, false)), "two at once");
    assert!(p.a.qp.awaits_data());
}

#[test]
fn messages_are_executed_at_once_only_where_they_are_expected() {
    let p = quiet(params(1024));
    let pkey = p.b.qp.params().pkey;
    let send = PlainSend { psn: FIRST, pkey, solicited: false, ack_request: false, immediate: None };
    let read = FetchOp::Read { va: BASE, rkey: ALL, len: 8 };
    let both = |p: &Pair, psn, pkey| {
        (p.b.qp.expects_plain(&PlainSend { psn, pkey, ..send }, 8), p.b.qp.expects_fetch(psn, pkey, &read))
    };
    assert_eq!(both(&p, FIRST, pkey), (true, true));
    assert_eq!(both(&p, FIRST + 1, pkey), (false, false), "a packet is missing");
    assert_eq!(both(&p, FIRST, pkey ^ 1), (false, false), "another partition");
    assert!(!p.b.qp.expects_plain(&send, 1025), "more than a packet");
    assert!(
        !quiet(QpParams { tags: true, ..params(1024) }).b.qp.expects_plain(&send, 8),
        "a tag chooses the receive"
    );
    // Until its first packet, RTR has an event to raise.
    let side = QpParams { lossless: true, ..params(1024) };
    let mut p = Pair::down(Service::Rc, side, side, FIRST);
    for state in [QpState::Init, QpState::Rtr] {
        p.b.qp.set_state(state, &mut p.b.host);
    }
    assert_eq!(both(&p, FIRST, pkey), (false, false), "the first packet in RTR");
    // A message of two packets has begun.
    let mut p = quiet(params(1024));
    p.b.host.post_recv(1, RECEIVES, 4096);
    p.a.post(wr(1, SendOp::Send, SOURCES, 2048));
    let mut seen = 0;
    p.drop_to_b = Some(Box::new(move |_| {
        seen += 1;
        seen > 1
    }));
    for _ in 0..4 {
        p.step();
    }
    assert_eq!(p.b.qp.rq_psn(), FIRST + 1);
    assert_eq!(both(&p, FIRST + 1, pkey), (false, false), "in the middle of a message");
}

#[test]
fn fetches_are_executed_at_once_only_where_they_are_permitted() {
    let expects = |side: QpParams, op| {
        let p = quiet(side);
        p.b.qp.expects_fetch(FIRST, p.b.qp.params().pkey, &op)
    };
    let read = |len| FetchOp::Read { va: BASE, rkey: ALL, len };
    let atomic = |va| FetchOp::Atomic { va, rkey: ALL, op: AtomicOp::FetchAdd { add: 1 } };
    let usual = params(1024);
    for (len, expected) in [(0, false), (1, true), (1024, true), (1025, false)] {
        assert_eq!(expects(usual, read(len)), expected, "a READ of {len} bytes");
    }
    assert!(expects(usual, atomic(BASE)) && !expects(usual, atomic(BASE + 4)), "atomics are aligned");
    let without = |access| QpParams { access, ..usual };
    assert!(!expects(without(Access { remote_read: false, ..usual.access }), read(8)));
    assert!(!expects(without(Access { remote_atomic: false, ..usual.access }), atomic(BASE)));
    for side in
        [QpParams { max_dest_rd_atomic: 0, ..usual }, QpParams { rate: RateLimit::new(1000, 0), ..usual }]
    {
        assert!(!expects(side, read(8)) && !expects(side, atomic(BASE)));
    }
}

#[test]
fn a_result_ends_the_sends_before_it_and_nothing_else() {
    let mut p = quiet(params(65_536));
    let now = p.now;
    for (i, signaled) in (0..).zip([true, false, true, true]) {
        assert!(post_plain(&mut p.a, now, &SendWr { signaled, ..wr(i, SendOp::Send, SOURCES, 8) }, true));
    }
    assert!(p.a.qp.next_timeout().is_some(), "answers are waited for");
    let take = |p: &mut Pair, psn| {
        let mut ends = Ends::default();
        let took = p.a.qp.take_executed(|| now, psn, &mut ends);
        let ended: Vec<_> = ends.0.iter().map(|(wr_id, end)| (*wr_id, end.map(|end| end.status))).collect();
        (took, ended)
    };
    let success = Some(WcStatus::Success);
    assert_eq!(take(&mut p, FIRST + 4), (false, vec![]), "it hasn't left");
    assert_eq!(take(&mut p, FIRST + 1), (true, vec![(0, success), (1, None)]));
    assert!(p.a.qp.next_timeout().is_some(), "two wait");
    assert_eq!(take(&mut p, FIRST + 3), (true, vec![(2, success), (3, success)]));
    assert_eq!(p.a.qp.next_timeout(), None, "nothing is waited for");
    assert_eq!((p.a.qp.sq_len(), p.a.qp.counters().requests_ended), (0, 4));
    // A READ ends with its answer only.
    post_fetch(&mut p.a, now, wr(5, SendOp::Read { va: BASE, rkey: ALL }, BASE, 8), true);
    p.a.qp.plain_sent(|| now, &wr(6, SendOp::Send, SOURCES, 8).request());
    assert_eq!(take(&mut p, FIRST + 5), (false, vec![]));
    // A SEND of several packets is left to the general rules.
    let mut p = quiet(params(1024));
    p.a.post(wr(7, SendOp::Send, SOURCES, 2048));
    p.transmit();
    assert_eq!(take(&mut p, FIRST + 1), (false, vec![]));
    p.a.qp.set_state(QpState::Err, &mut p.a.host);
    assert_eq!(take(&mut p, FIRST), (false, vec![]), "it has been flushed");
}

#[test]
fn an_answer_is_placed_only_if_it_is_the_one_that_is_awaited() {
    let mut p = quiet(params(1024));
    let now = p.now;
    post_fetch(&mut p.a, now, wr(1, SendOp::Read { va: BASE, rkey: ALL }, SOURCES, 100), true);
    let take = |p: &mut Pair, what, places| {
        let (mut asked, mut ends) = (None, Ends::default());
        let place = |sge: &Sge| {
            asked = Some((sge.addr, sge.length));
            places
        };
        let done = p.a.qp.take_fetched(|| now, what, place, &mut ends);
        assert!(ends.0.len() <= 1 && done != ends.0.is_empty());
        let ended = ends.0.first().map(|(wr_id, end)| (*wr_id, end.map(|end| end.byte_len)));
        (asked, ended)
    };
    for wrong in [(FIRST + 1, 100), (FIRST, 99), (FIRST, 8)] {
        assert_eq!(take(&mut p, wrong, true), (None, None), "{wrong:?}");
    }
    let place = Some((SOURCES, 100));
    assert_eq!(take(&mut p, (FIRST, 100), false), (place, None), "the memory isn't there");
    assert_eq!(take(&mut p, (FIRST, 100), true), (place, Some((1, Some(100)))));
    assert!(!p.a.qp.awaits_data() && take(&mut p, (FIRST, 100), true) == (None, None));
    assert_eq!(p.a.qp.next_timeout(), None);
}

#[test]
fn a_fetch_leaves_at_once_while_answers_of_either_kind_are_outstanding() {
    let mut p = quiet(params(1024));
    let now = p.now;
    // Two packets: it takes the general way.
    post_fetch(&mut p.a, now, wr(1, SendOp::Read { va: BASE, rkey: ALL }, SOURCES, 2048), true);
    p.transmit();
    assert_eq!(may_leave(&p), (true, true), "the peer doesn't let its answer overtake that one");
    post_fetch(&mut p.a, now, wr(2, SendOp::Read { va: BASE, rkey: ALL }, SOURCES, 8), true);
    assert_eq!(may_leave(&p), (true, true), "results come in order");
    p.run_for(Duration::from_millis(1));
    assert!(!p.a.qp.awaits_data() && p.a.send_ok());
}

#[test]
fn an_answer_that_has_overtaken_another_is_asked_for_again_and_an_atomic_is_executed_once() {
    let mut p = quiet(params(1024));
    let now = p.now;
    let add = |id| wr(id, SendOp::FetchAdd { va: WORDS, rkey: ALL, add: 1 }, BASE + 8 * id, 8);
    for id in [1, 2] {
        p.a.host.takes_plain = true;
        post_fetch(&mut p.a, now, add(id), true);
    }
    p.b.host.takes_plain = true;
    // The first is left to the general rules, and its answer lost.
    p.a.host.awaited.remove(&FIRST);
    p.drop_to_a = Some(Box::new({
        let mut seen = 0;
        move |_| {
            seen += 1;
            seen == 1
        }
    }));
    p.run_for(Duration::from_millis(50));
    assert!(p.a.send_ok() && p.a.host.sends.iter().map(|send| send.wr_id).eq([1, 2]));
    assert_eq!(p.a.qp.counters().implied_naks, 1, "it was asked for at once");
    assert_eq!(p.b.host.bytes(WORDS, 8), 2u64.to_ne_bytes());
    for (id, original) in [(1, 0u64), (2, 1)] {
        assert_eq!(p.a.host.bytes(BASE + 8 * id, 8), original.to_ne_bytes());
    }
}

#[test]
fn an_answer_that_comes_after_the_end_of_its_request_changes_nothing() {
    let mut p = quiet(params(1024));
    let now = p.now;
    post_fetch(&mut p.a, now, wr(1, SendOp::Read { va: BASE, rkey: ALL }, SOURCES, 8), true);
    let before = p.a.host.bytes(SOURCES, 8).to_vec();
    p.a.qp.set_state(QpState::Err, &mut p.a.host);
    assert_eq!(p.a.host.sends.len(), 1);
    p.a.qp.fetched(now, FIRST, &&[9; 8][..], &mut p.a.host);
    assert_eq!(p.a.host.bytes(SOURCES, 8), before, "the program owns its memory again");
    assert_eq!((p.a.host.sends.len(), p.a.host.sends[0].status), (1, WcStatus::WrFlushErr));
    let mut p = quiet(params(1024));
    p.a.qp.fetched(now, FIRST, &&[9; 8][..], &mut p.a.host);
    assert_eq!(p.a.qp.counters().stale_responses, 1, "it hasn't left");
}
