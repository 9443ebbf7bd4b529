//! A process with a QP that others connect to. It reads a command from each line: some send back the messages that arrive, others
//! do what only a hostile process does.

use super::member::answer_commands;
use super::messages::{self, INCOMING};
use super::scribble;
use super::side::{Side, open};
use ferroce_mem::{Mw, MwKind};
use ferroce_nic::Poll as _;
use ferroce_proto::SendOp;
use ferroce_tests::helper::Helper;
use ferroce_types::{Access, Completion, Sge, WcOpcode, WcStatus};
use ferroce_wire::Service;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Bytes of the memory on either side; what is written by RDMA goes to the upper half.
pub const MEMORY: usize = 256 * 1024;

/// The other's side of a connection.
pub struct Remote {
    pub member: Helper,
    pub qpn: u32,
    pub addr: u64,
    pub rkey: u32,
}

impl Remote {
    pub fn start() -> Self {
        Self::with_memory(MEMORY)
    }

    /// As `start`, with so many bytes of memory.
    pub fn with_memory(bytes: usize) -> Self {
        let mut member = Helper::start("peer");
        let made = member.ask(&format!("make {bytes}"));
        let numbers: Vec<u64> = made.split(' ').map(|number| number.parse().unwrap()).collect();
        Self { member, qpn: numbers[0] as u32, addr: numbers[1], rkey: numbers[2] as u32 }
    }

    /// Connects with `side`, the other process first; `timeout` as in ibv_modify_qp(3).
    pub fn connect(&mut self, side: &Side, timeout: u8) {
        assert_eq!(self.member.ask(&format!("connect {}", side.qp.qpn())), "ok");
        side.connect_with(self.qpn, |attr| attr.timeout = timeout);
    }
}

/// A completion, if there is one.
fn completion(side: &Side) -> Option<Completion> {
    let mut got = None;
    side.cq.poll(1, |wc| got = Some(*wc)).unwrap();
    if got.is_none() {
        std::thread::sleep(Duration::from_micros(100));
    }
    got
}

/// Sends back what comes.
fn echo(side: &Side) {
    let half = MEMORY / 4;
    let buffer = |n: u64| side.sge(n as usize * half, half);
    for n in 0..2 {
        side.recv(n, buffer(n));
    }
    loop {
        let Some(wc) = completion(side) else { continue };
        if wc.status != WcStatus::Success {
            return;
        }
        if wc.opcode == WcOpcode::Recv {
            side.send(wc.wr_id, SendOp::Send, side.sge(wc.wr_id as usize * half, wc.byte_len as usize), None);
        } else {
            side.recv(wc.wr_id, buffer(wc.wr_id));
        }
    }
}

/// Waits for `count` completions. What they are, if they aren't all successes.
fn wait_for(side: &Side, count: usize) -> String {
    let bad = (0..count).map(|_| side.wait()).find(|wc| wc.status != WcStatus::Success);
    bad.map_or_else(|| "ok".into(), |wc| format!("{wc:?}"))
}

/// The process of a helper.
pub fn peer() {
    let mut side: Option<&'static Side> = None;
    let mut held: Vec<OwnedFd> = Vec::new();
    answer_commands(|words| match *words {
        ["make", bytes] => {
            let made = &*Box::leak(Box::new(Side::new(&open(), Service::Rc, bytes.parse().unwrap())));
            side = Some(made);
            format!("{} {} {}", made.qp.qpn(), made.addr(), made.mr.key())
        }
        ["connect", peer] => {
            let side = side.unwrap();
            side.connect(peer.parse().unwrap());
            std::thread::spawn(|| echo(side));
            "ok".into()
        }
        // Connects, after RESET, and sends nothing back.
        ["reconnect", peer] => {
            side.unwrap().reset();
            side.unwrap().connect(peer.parse().unwrap());
            "ok".into()
        }
        // As `reconnect`, to RTR only: the side can't send.
        ["listen", peer] => {
            let side = side.unwrap();
            side.reset();
            side.connect_to_rtr(peer.parse().unwrap(), side.av());
            "ok".into()
        }
        // Binds a window to all of the memory. Its key.
        ["window"] => {
            let side = side.unwrap();
            let window = Mw::alloc(&side.pd, MwKind::Two).unwrap();
            let access = Access { remote_read: true, remote_write: true, ..Access::default() };
            let range = (side.addr(), side.memory.len() as u64);
            let bind = window.bind_request(window.rkey() ^ 1, Some(&side.mr), range, access, false).unwrap();
            side.send(0, SendOp::BindMw(bind), side.sge(0, 0), None);
            assert_eq!(side.wait().status, WcStatus::Success);
            window.rkey().to_string()
        }
        // Posts messages of one byte.
        ["burst", count, byte] => {
            let side = side.unwrap();
            let at = side.mr.key();
            // SAFETY: the memory is the side's, and no request or other thread uses it now.
            unsafe { (side.addr() as *mut u8).write(byte.parse().unwrap()) };
            for n in 0..count.parse().unwrap() {
                side.send(n, SendOp::Send, Sge { addr: side.addr(), length: 1, lkey: at }, None);
            }
            "ok".into()
        }
        // Waits until the messages of the last burst have ended with success.
        ["sent", count] => wait_for(side.unwrap(), count.parse().unwrap()),
        ["receive", count, len] => {
            messages::receive_many(side.unwrap(), count.parse().unwrap(), len.parse().unwrap());
            "ok".into()
        }
        // Posts messages with a pattern. How many went the way within a host.
        ["send", seed, count, len] => {
            let [seed, count, len] = [seed, count, len].map(|number| number.parse().unwrap());
            messages::send_many(side.unwrap(), seed, count, len).to_string()
        }
        // Checks messages with a pattern.
        ["check", seed, count, len] => {
            let [seed, count, len] = [seed, count, len].map(|number| number.parse().unwrap());
            let side = side.unwrap();
            messages::check_many(side, seed, len, &messages::take_many(side, count, seed % 2 == 0));
            "ok".into()
        }
        ["statuses", count] => {
            let taken = messages::take_many(side.unwrap(), count.parse().unwrap(), true);
            taken.iter().map(|wc| format!("{:?}", wc.status)).collect::<Vec<_>>().join(" ")
        }
        ["clear"] => {
            let side = side.unwrap();
            messages::fill(side, 0, std::iter::repeat_n(0xee, side.memory.len()));
            "ok".into()
        }
        ["cleared"] => {
            let side = side.unwrap();
            let untouched = messages::bytes(side, 0, side.memory.len()).iter().all(|&byte| byte == 0xee);
            if untouched { "ok" } else { "changed" }.into()
        }
        // Checks what was written by RDMA, and that nothing was beside.
        ["written", seed, len] => {
            let side = side.unwrap();
            let [seed, len] = [seed, len].map(|number| number.parse().unwrap());
            let expected = (0..len).map(|at| messages::pattern(seed, 1, at));
            let all = std::iter::repeat_n(0xee, INCOMING)
                .chain(expected)
                .chain(std::iter::repeat(0xee))
                .take(side.memory.len());
            let right = messages::bytes(side, 0, side.memory.len()).into_iter().eq(all);
            if right { "ok" } else { "wrong bytes" }.into()
        }
        // Waits until as many messages have come.
        ["received", count] => wait_for(side.unwrap(), count.parse().unwrap()),
        ["access", key, qpn] => {
            scribble::begin_access(key.parse().unwrap(), qpn.parse().unwrap());
            "ok".into()
        }
        ["scribble", what] => {
            scribble::scribble(what);
            "ok".into()
        }
        ["bells", len] => {
            scribble::ring_bells(len.parse().unwrap());
            "ok".into()
        }
        ["claim", slot] => {
            scribble::claim(slot.parse().unwrap());
            "ok".into()
        }
        ["forge", qpn] => {
            scribble::forge(qpn.parse().unwrap(), side.unwrap().av().dgid);
            "ok".into()
        }
        ["offer", slot, how] => scribble::offer(slot.parse().unwrap(), how).0.into(),
        // How many of so many links that this process may have at once.
        ["links", slot, count] => {
            let slot = slot.parse().unwrap();
            let offered: Vec<_> =
                (0..count.parse().unwrap()).map(|_: u32| scribble::offer(slot, "rightly")).collect();
            offered.iter().filter(|(said, _)| *said == "granted").count().to_string()
        }
        // Connects again and again without sending a request; returns how many connections succeeded.
        ["flood", slot, count] => {
            let slot = slot.parse().unwrap();
            let before = held.len();
            held.extend((0..count.parse().unwrap()).filter_map(|_: u32| {
                std::thread::sleep(Duration::from_micros(200));
                scribble::connect(slot).ok()
            }));
            (held.len() - before).to_string()
        }
        _ => panic!("no command {words:?}"),
    });
}
