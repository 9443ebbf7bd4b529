//! Random operations under random faults against a simple model: memory, completions, exactly once and in order.

use crate::host::{ALL, BASE, pattern};
use crate::net::{Faults, Pair, Side, params, wr};
use core::time::Duration;
use ferroce_proto::{QpParams, SendOp};
use ferroce_types::WcStatus;
use ferroce_wire::Service;
use proptest::prelude::*;

/// A's memory: sources, then results. B's memory: what is written and read, then receives.
const AREA: u64 = 64 << 10;
const RESULTS: u64 = BASE + AREA;
const RECEIVES: u64 = BASE + (1 << 20);

#[derive(Clone, Debug)]
enum Op {
    Send { len: u32, immediate: bool },
    Write { at: u32, len: u32, immediate: bool },
    Read { at: u32, len: u32 },
    FetchAdd { at: u32, add: u64 },
    CompareSwap { at: u32, compare: u64, swap: u64 },
}

#[derive(Clone, Debug)]
struct Request {
    op: Op,
    signaled: bool,
    fence: bool,
    /// Steps of the network between this request and the next.
    pause: u8,
}

fn len() -> impl Strategy<Value = u32> {
    prop_oneof![Just(0u32), 1..64u32, 200..1100u32, 1000..9000u32]
}

fn request() -> impl Strategy<Value = Request> {
    let at = 0..(AREA as u32 - 9000) / 8;
    let op = prop_oneof![
        (len(), any::<bool>()).prop_map(|(len, immediate)| Op::Send { len, immediate }),
        (at.clone(), len(), any::<bool>()).prop_map(|(at, len, immediate)| Op::Write {
            at: at * 8,
            len,
            immediate
        }),
        (at.clone(), len()).prop_map(|(at, len)| Op::Read { at: at * 8, len }),
        (0..8u32, 0..5u64).prop_map(|(at, add)| Op::FetchAdd { at: at * 8, add }),
        (0..8u32, 0..9u64, 0..9u64).prop_map(|(at, compare, swap)| Op::CompareSwap {
            at: at * 8,
            compare,
            swap
        }),
    ];
    (op, any::<bool>(), prop::bool::weighted(0.2), 0..4u8).prop_map(|(op, signaled, fence, pause)| Request {
        op,
        signaled,
        fence,
        pause,
    })
}

fn faults() -> impl Strategy<Value = Faults> {
    (0..60u32, 0..120u32, 0..60u32, 1..600u64).prop_map(|(loss, duplicate, reorder, delay)| Faults {
        loss,
        duplicate,
        reorder,
        delay: Duration::from_micros(delay),
        link: None,
    })
}

/// A memory that does each request at once.
struct Model {
    memory: Vec<u8>,
    /// What request `i` must have left at the requester.
    results: Vec<Option<Vec<u8>>>,
    received: Vec<Received>,
}

/// A message received: number, bytes, immediate, contents of a SEND.
type Received = (u64, u32, Option<[u8; 4]>, Option<Vec<u8>>);

impl Model {
    fn apply(&mut self, i: usize, op: &Op, source: &[u8]) {
        let immediate = (i as u32).to_be_bytes();
        let number = self.received.len() as u64;
        let mut result = None;
        match *op {
            Op::Send { len, immediate: has } => {
                let bytes = source[..len as usize].to_vec();
                self.received.push((number, len, has.then_some(immediate), Some(bytes)));
            }
            Op::Write { at, len, immediate: has } => {
                self.memory[at as usize..][..len as usize].copy_from_slice(&source[..len as usize]);
                if has {
                    self.received.push((number, len, Some(immediate), None));
                }
            }
            Op::Read { at, len } => result = Some(self.memory[at as usize..][..len as usize].to_vec()),
            Op::FetchAdd { at, add } => {
                let old = self.word(at);
                self.set(at, old.wrapping_add(add));
                result = Some(old.to_ne_bytes().to_vec());
            }
            Op::CompareSwap { at, compare, swap } => {
                let old = self.word(at);
                if old == compare {
                    self.set(at, swap);
                }
                result = Some(old.to_ne_bytes().to_vec());
            }
        }
        self.results.push(result);
    }

    fn word(&self, at: u32) -> u64 {
        u64::from_ne_bytes(self.memory[at as usize..][..8].try_into().unwrap())
    }

    fn set(&mut self, at: u32, value: u64) {
        self.memory[at as usize..][..8].copy_from_slice(&value.to_ne_bytes());
    }
}

/// Where request `i`'s source and result lie.
fn slot(i: usize) -> u64 {
    i as u64 * 9000
}

fn post(a: &mut Side, i: usize, request: &Request) {
    let immediate = (i as u32).to_be_bytes();
    let source = BASE + (2 << 20) + slot(i);
    let result = RESULTS + slot(i);
    let (op, addr, len) = match request.op {
        Op::Send { len, immediate: true } => (SendOp::SendWithImmediate { immediate }, source, len),
        Op::Send { len, .. } => (SendOp::Send, source, len),
        Op::Write { at, len, immediate: true } => {
            (SendOp::WriteWithImmediate { va: BASE + u64::from(at), rkey: ALL, immediate }, source, len)
        }
        Op::Write { at, len, .. } => (SendOp::Write { va: BASE + u64::from(at), rkey: ALL }, source, len),
        Op::Read { at, len } => (SendOp::Read { va: BASE + u64::from(at), rkey: ALL }, result, len),
        Op::FetchAdd { at, add } => {
            (SendOp::FetchAdd { va: BASE + u64::from(at), rkey: ALL, add }, result, 8)
        }
        Op::CompareSwap { at, compare, swap } => {
            (SendOp::CompareSwap { va: BASE + u64::from(at), rkey: ALL, compare, swap }, result, 8)
        }
    };
    let mut wr = wr(i as u64, op, addr, len);
    wr.signaled = request.signaled;
    wr.fence = request.fence;
    a.post(wr);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 250, max_shrink_iters: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_requests_under_random_faults_do_what_the_model_does(
        mut requests in prop::collection::vec(request(), 1..60),
        faults in faults(),
        seed in any::<u64>(),
        start in prop_oneof![0xff_ff00..0x100_0000u32, 0..0x100_0000u32],
        mtu in prop::sample::select(vec![256u32, 512, 1024, 2048, 4096, u32::MAX]),
        reads in 1..6u8,
        window in prop::sample::select(vec![2000u32, 20_000, 1 << 20]),
        late_receives in any::<bool>(),
        kept in prop::sample::select(vec![0usize, 0, 3, 1024]),
    ) {
        // What follows a READ may overtake it at the responder unless it is fenced (IBTA 10.8.3.3): the model has one
        // order only.
        let mut read = false;
        for request in &mut requests {
            request.fence |= read && !matches!(request.op, Op::Send { .. });
            read = matches!(request.op, Op::Read { .. }) || (read && !request.fence);
        }
        let side = QpParams { max_rd_atomic: reads, max_dest_rd_atomic: reads, min_rnr_timer: 5, ..params(mtu) };
        let mut p = Pair::with(Service::Rc, side, side, start).seeded(seed, faults);
        p.a.host.window = window;
        p.keep(kept);
        p.a.host.fill(BASE + (2 << 20), 60 * 9000, 1);
        let source = |i: usize| -> Vec<u8> { (0..9000).map(|n| pattern(1, slot(i) as usize + n)).collect() };
        let mut model = Model { memory: vec![0; AREA as usize], results: Vec::new(), received: Vec::new() };
        for (i, request) in requests.iter().enumerate() {
            let before = model.received.len();
            model.apply(i, &request.op, &source(i));
            if model.received.len() > before && !late_receives {
                p.b.host.post_recv(before as u64, RECEIVES + before as u64 * 9000, 9000);
            }
            post(&mut p.a, i, request);
            for _ in 0..request.pause {
                p.step();
            }
        }
        if late_receives {
            p.run_for(Duration::from_millis(1));
            for n in 0..model.received.len() as u64 {
                p.b.host.post_recv(n, RECEIVES + n * 9000, 9000);
            }
        }
        p.run();

        let ended: Vec<_> = p.a.host.send_statuses();
        let expected: Vec<_> = requests
            .iter()
            .enumerate()
            .filter(|(_, r)| r.signaled)
            .map(|(i, _)| (i as u64, WcStatus::Success))
            .collect();
        prop_assert_eq!(ended, expected, "{:?}", p);
        prop_assert!(p.b.host.memory[..AREA as usize] == model.memory[..], "memory of the peer");
        for (i, result) in model.results.iter().enumerate() {
            if let Some(result) = result {
                prop_assert!(p.a.host.bytes(RESULTS + slot(i), result.len()) == &result[..], "result of {}", i);
            }
        }
        prop_assert_eq!(p.b.host.recvs.len(), model.received.len());
        for (c, (number, len, immediate, bytes)) in p.b.host.recvs.iter().zip(&model.received) {
            prop_assert_eq!((c.wr_id, c.status), (*number, WcStatus::Success));
            prop_assert_eq!((c.byte_len, c.immediate()), (*len, *immediate));
            if let Some(bytes) = bytes {
                prop_assert!(p.b.host.bytes(RECEIVES + number * 9000, bytes.len()) == &bytes[..], "message {}", number);
            }
        }
        prop_assert!(p.a.host.events.is_empty() && p.b.host.events.is_empty());
        prop_assert!(p.b.host.kept.is_empty());
        prop_assert_eq!(p.a.qp.next_timeout(), None);
    }
}
