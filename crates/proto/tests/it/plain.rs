//! SENDs, READs and atomics that take the short way: whatever the requests, the receives, the keys and the network are, all ends as it does the
//! general way.

use crate::host::{ALL, BASE, Frame};
use crate::net::{CLEAN, Faults, Pair, Side, params, wr};
use core::time::Duration;
use ferroce_proto::{
    Completion, Counters, Data, Fetch, Instant, PlainData, PlainRequest, QpEvent, QpParams, RecvWqe, SendOp,
    SendWr, Sge, WcStatus,
};
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
    /// Payloads that can't be had at the peer.
    LosePayloads {
        count: u32,
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
        1 => (len(), any::<bool>()).prop_map(|(len, immediate)| Step::Write { len, immediate }),
        3 => (len(), prop::bool::weighted(0.1), any::<bool>(), [key(), key()])
            .prop_map(|(len, fence, signaled, keys)| Step::Read { len, fence, signaled, keys }),
        3 => (any::<bool>(), prop_oneof![20 => Just(0), 20 => Just(8), 1 => Just(4)], prop::bool::weighted(0.1), [key(), key()])
            .prop_map(|(adds, at, fence, keys)| Step::Atomic { adds, at, fence, keys }),
        6 => (prop_oneof![9 => Just(LONGEST), 1 => len()], key()).prop_map(|(len, key)| Step::Receive { len, key }),
        4 => (1..6u8).prop_map(|steps| Step::Pause { steps }),
        1 => (1..3u32).prop_map(|count| Step::LosePayloads { count }),
        1 => prop::option::of(0..4usize).prop_map(|packets| Step::Room { packets }),
    ]
}

/// Posts a SEND the short way if that is possible.
fn post_plain(side: &mut Side, now: Instant, wr: &SendWr<u32>, by_position: bool) -> bool {
    let Some(request) = PlainRequest::of(wr).filter(|_| side.host.room.is_none()) else { return false };
    let payload = match request.data {
        PlainData::Memory(sge) if sge.length > 0 && !side.host.regions.contains_key(&sge.lkey) => {
            return false;
        }
        PlainData::Memory(sge) => side.host.bytes(sge.addr, sge.length as usize).to_vec(),
        PlainData::Inline(bytes) => bytes.to_vec(),
    };
    let Some(psn) = side.qp.plain_psn(payload.len() as u64) else { return false };
    let immediate = request.immediate;
    let operation = if immediate.is_some() { Operation::SendOnlyWithImmediate } else { Operation::SendOnly };
    let bth = Bth::new(Opcode { service: Service::Rc, operation }, side.qp.params().dest_qpn, psn);
    let bth = Bth { solicited: wr.solicited, ack_request: true, ..bth };
    side.host.log.push((operation, psn));
    side.host.out.push(Frame { headers: Headers { immediate, ..Headers::new(bth) }, payload });
    if by_position && !side.qp.awaits_data() {
        side.host.awaited.insert(psn);
    }
    side.qp.plain_sent(|| now, &request);
    side.host.plain += 1;
    true
}

/// Posts a READ or an atomic, the short way if that is possible and wanted.
fn post_fetch(side: &mut Side, now: Instant, wr: SendWr<u32>, short: bool) {
    let fetch = Fetch::of(&wr).filter(|_| short && side.host.room.is_none());
    let Some((fetch, psn)) = fetch.and_then(|fetch| Some((fetch, side.qp.fetch_psn(&fetch)?))) else {
        return side.post(wr);
    };
    let atomic = |va, rkey, swap_or_add, compare| AtomicEth { va, rkey, swap_or_add, compare };
    let (operation, reth, atomic) = match fetch.op {
        SendOp::Read { va, rkey } => {
            (Operation::ReadRequest, Some(Reth { va, rkey, dma_len: fetch.sge.length }), None)
        }
        SendOp::CompareSwap { va, rkey, compare, swap } => {
            (Operation::CompareSwap, None, Some(atomic(va, rkey, swap, compare)))
        }
        SendOp::FetchAdd { va, rkey, add } => (Operation::FetchAdd, None, Some(atomic(va, rkey, add, 0))),
        _ => unreachable!("it is no fetch"),
    };
    let bth = Bth::new(Opcode { service: Service::Rc, operation }, side.qp.params().dest_qpn, psn);
    let headers = Headers::new(Bth { ack_request: true, ..bth });
    side.host.log.push((operation, psn));
    side.host.out.push(Frame { headers: Headers { reth, atomic, ..headers }, payload: Vec::new() });
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
    /// The short way, and the fabric tells which packets were executed.
    ByPosition,
}

/// Runs the steps, and says how many packets went the short way.
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
                if p.a.qp.check_post(&wr, 0).is_err() {
                    continue;
                }
                if !(plain && post_plain(&mut p.a, p.now, &wr, ways == Ways::ByPosition)) {
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
                p.a.post(wr(i, op, source, len));
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
            Step::LosePayloads { count } => p.b.host.payloads_lost = count,
            Step::Room { packets } => p.a.host.room = packets,
        }
        // Whoever posts lets the QP send at once.
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
    ) {
        let side = QpParams {
            lossless: true,
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
    fn acknowledgements_by_position_end_as_those_by_packets_do(
        steps in prop::collection::vec(step(), 1..80),
        seed: u64,
        rnr_retry in prop::sample::select(vec![0u8, 2, 7]),
    ) {
        let side = QpParams { lossless: true, rnr_retry, retry_cnt: 2, min_rnr_timer: 12, timeout: 10, ..params(65_536) };
        let (general, _) = run(&steps, CLEAN, seed, side, Ways::General);
        let (by_position, _) = run(&steps, CLEAN, seed, side, Ways::ByPosition);
        prop_assert_eq!(&by_position.sends, &general.sends);
        prop_assert_eq!(&by_position.receives, &general.receives);
        prop_assert_eq!(&by_position.events, &general.events);
        // The sender has asked for the same; what the receiver answers is less.
        prop_assert_eq!(&by_position.packets[0], &general.packets[0]);
        prop_assert!(by_position.memory == general.memory && by_position.end == general.end);
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
    assert_eq!(ten_sends(Ways::Short).1, 20, "ten at either side");
}

#[test]
fn plain_sends_need_no_packet_as_acknowledgement() {
    assert_eq!(ten_sends(Ways::ByPosition).0.packets[1], [], "the receiver answers");
}

#[test]
fn fetches_take_the_short_way() {
    let side = QpParams { lossless: true, ..params(65_536) };
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
