//! Every operation of every service moves its bytes, on both fabrics.

use crate::namespace::in_namespace;
use crate::pair::{over_sockets, pair};
use crate::side::{QKEY, Side, open, register};
use ferroce_access::Fault;
use ferroce_mem::{Backing, Mr, MrAccess, MrInit};
use ferroce_nic::create_ah;
use ferroce_parts::AddressVector;
use ferroce_proto::{SendOp, UdTarget};
use ferroce_types::{Sge, WcOpcode, WcStatus};
use ferroce_wire::Service;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

const SIZES: [usize; 6] = [0, 1, 1000, 4096, 70_001, 1 << 20];

fn fill(side: &mut Side, len: usize, seed: u8) {
    for (i, byte) in side.memory[..len].iter_mut().enumerate() {
        *byte = (i as u8).wrapping_mul(31).wrapping_add(seed).wrapping_add((i >> 8) as u8);
    }
}

fn sends(service: Service) {
    let (mut a, mut b) = pair(service, 1 << 20);
    for (i, &len) in SIZES.iter().enumerate() {
        fill(&mut a, len, i as u8);
        b.memory.fill(0);
        b.recv(7, b.sge(0, 1 << 20));
        a.send(8, SendOp::SendWithImmediate { immediate: [1, 2, 3, i as u8] }, a.sge(0, len), None);
        let sent = a.wait();
        assert_eq!(
            (sent.wr_id, sent.status, sent.opcode),
            (8, WcStatus::Success, WcOpcode::Send),
            "{len} bytes"
        );
        let got = b.wait();
        assert_eq!((got.wr_id, got.status, got.byte_len), (7, WcStatus::Success, len as u32));
        assert_eq!(got.immediate(), Some([1, 2, 3, i as u8]));
        assert!(a.memory[..len] == b.memory[..len], "{len} bytes arrived damaged");
        let op = SendOp::WriteWithImmediate { va: b.addr(), rkey: b.mr.key(), immediate: [9; 4] };
        fill(&mut a, len, i as u8 + 100);
        b.recv(9, b.sge(0, 0));
        a.send(10, op, a.sge(0, len), None);
        assert_eq!(a.wait().status, WcStatus::Success);
        let got = b.wait();
        assert_eq!((got.status, got.opcode), (WcStatus::Success, WcOpcode::RecvRdmaWithImm));
        assert!(a.memory[..len] == b.memory[..len], "{len} bytes written damaged");
    }
}

fn reads_and_atomics() {
    let (mut a, mut b) = pair(Service::Rc, 1 << 20);
    for (i, &len) in SIZES.iter().enumerate() {
        fill(&mut b, len, i as u8);
        a.memory.fill(0);
        a.send(1, SendOp::Read { va: b.addr(), rkey: b.mr.key() }, a.sge(0, len), None);
        let done = a.wait();
        assert_eq!((done.status, done.byte_len), (WcStatus::Success, len as u32));
        assert!(a.memory[..len] == b.memory[..len], "{len} bytes read damaged");
    }
    b.memory[..8].copy_from_slice(&40u64.to_ne_bytes());
    let (va, rkey) = (b.addr(), b.mr.key());
    a.send(2, SendOp::FetchAdd { va, rkey, add: 2 }, a.sge(0, 8), None);
    assert_eq!(a.wait().opcode, WcOpcode::FetchAdd);
    assert_eq!(a.memory[..8], 40u64.to_ne_bytes());
    a.send(3, SendOp::CompareSwap { va, rkey, compare: 42, swap: 7 }, a.sge(8, 8), None);
    assert_eq!(a.wait().status, WcStatus::Success);
    assert_eq!(a.memory[8..16], 42u64.to_ne_bytes());
    assert_eq!(b.memory[..8], 7u64.to_ne_bytes());
}

fn datagrams() {
    let (mut a, b) = pair(Service::Ud, 8192);
    let ah = create_ah(&a.pd, a.av()).unwrap();
    for len in [0, 1, 1000, 1024] {
        fill(&mut a, len, 3);
        b.recv(1, b.sge(0, 8192));
        let target = UdTarget { address: ah.clone(), qpn: b.qp.qpn(), qkey: QKEY };
        a.send(2, SendOp::Send, a.sge(0, len), Some(target));
        assert_eq!(a.wait().status, WcStatus::Success);
        let got = b.wait();
        assert_eq!((got.status, got.byte_len), (WcStatus::Success, len as u32 + 40));
        assert!(got.grh());
        assert_eq!(got.src_qp, a.qp.qpn());
        assert!(a.memory[..len] == b.memory[40..40 + len]);
        assert_eq!(b.memory[20], 0x45);
    }
}

/// A message of one packet is read as a whole before it is written, also where source and target overlap.
fn overlapping_writes_and_reads() {
    const LEN: usize = 700;
    const STEP: usize = 8;
    let (mut a, b) = pair(Service::Rc, 8192);
    let (addr, access) = (a.addr(), MrAccess::ALL);
    let theirs = register(&b.pd, MrInit { addr, length: 8192, iova: addr, access }).unwrap();
    let rkey = theirs.key();
    // The first requests make the queue pairs known to each other.
    for round in 0..8 {
        fill(&mut a, LEN, round);
        let before = a.memory[..LEN].to_vec();
        let (op, to) = if round % 2 == 0 {
            (SendOp::Write { va: addr + STEP as u64, rkey }, a.sge(0, LEN))
        } else {
            (SendOp::Read { va: addr, rkey }, a.sge(STEP, LEN))
        };
        a.send(1, op, to, None);
        assert_eq!(a.wait().status, WcStatus::Success);
        assert!(a.memory[STEP..STEP + LEN] == before, "round {round}");
    }
    theirs.deregister().unwrap();
}

/// Memory of another process, which is a buffer of this one, at address 0. It counts the bytes that are accessed.
#[derive(Debug)]
struct Elsewhere {
    memory: Mutex<Vec<u8>>,
    accessed: AtomicU64,
}

#[derive(Debug)]
struct Import(Arc<Elsewhere>);

impl Backing for Import {
    fn accessed(
        &self,
        addr: u64,
        len: u64,
        write: bool,
        f: &mut dyn FnMut(u64) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        self.0.accessed.fetch_add(len, Ordering::Relaxed);
        let mut memory = self.0.memory.lock().unwrap();
        let place = &mut memory[addr as usize..(addr + len) as usize];
        let mut copy = place.to_vec();
        f(copy.as_mut_ptr() as u64)?;
        if write {
            place.copy_from_slice(&copy);
        }
        Ok(())
    }
}

/// Each byte of a message is accessed once: a look at the pages isn't an access.
fn writes_to_imported_memory_and_reads_into_it() {
    const LEN: usize = 1 << 18;
    let (mut a, mut b) = pair(Service::Rc, LEN);
    let there = MrInit { addr: 0, length: LEN as u64, iova: 0, access: MrAccess::ALL };
    let import = |side: &Side| {
        let memory = Arc::new(Elsewhere { memory: Mutex::new(vec![0; LEN]), accessed: AtomicU64::new(0) });
        (Mr::import_backed(&side.pd, Box::new(Import(memory.clone())), there, 7).unwrap(), memory)
    };
    let ((a_mr, a_memory), (b_mr, b_memory)) = (import(&a), import(&b));
    let all_once = |memory: &Elsewhere| {
        // A packet that is sent twice is accessed once: the second has a PSN that isn't expected.
        assert_eq!(memory.accessed.swap(0, Ordering::Relaxed), LEN as u64);
        std::mem::replace(&mut *memory.memory.lock().unwrap(), vec![0; LEN])
    };
    fill(&mut a, LEN, 1);
    a.send(1, SendOp::Write { va: 0, rkey: b_mr.rkey() }, a.sge(0, LEN), None);
    assert_eq!(a.wait().status, WcStatus::Success);
    assert!(all_once(&b_memory) == a.memory[..]);
    fill(&mut b, LEN, 2);
    let into = Sge { addr: 0, length: LEN as u32, lkey: a_mr.key() };
    a.send(2, SendOp::Read { va: b.addr(), rkey: b.mr.rkey() }, into, None);
    assert_eq!(a.wait().status, WcStatus::Success);
    assert!(all_once(&a_memory) == b.memory[..]);
    for mr in [a_mr, b_mr] {
        mr.unimport().unwrap();
    }
}

macro_rules! on_both_fabrics {
    ($($local:ident, $udp:ident: $body:expr;)*) => { $(
        #[test]
        fn $local() {
            in_namespace(concat!("transfer::", stringify!($local)), || $body);
        }

        #[test]
        fn $udp() {
            in_namespace(concat!("transfer::", stringify!($udp)), || {
                over_sockets();
                $body;
            });
        }
    )* };
}

on_both_fabrics! {
    rc_sends_and_writes_arrive_within_a_process, rc_sends_and_writes_arrive_over_sockets: sends(Service::Rc);
    uc_sends_and_writes_arrive_within_a_process, uc_sends_and_writes_arrive_over_sockets: sends(Service::Uc);
    reads_and_atomics_work_within_a_process, reads_and_atomics_work_over_sockets: reads_and_atomics();
    overlapping_requests_work_within_a_process, overlapping_requests_work_over_sockets: overlapping_writes_and_reads();
    imported_memory_works_within_a_process, imported_memory_works_over_sockets: writes_to_imported_memory_and_reads_into_it();
    datagrams_arrive_within_a_process, datagrams_arrive_over_sockets: datagrams();
}

/// The sender marks its own packets as a congested switch would.
fn marked_packets() {
    over_sockets();
    let context = open();
    let (a, b) = (Side::new(&context, Service::Rc, 4096), Side::new(&context, Service::Rc, 4096));
    let marked = AddressVector { traffic_class: 3, ..a.av() };
    a.connect_over(b.qp.qpn(), marked, |_| ());
    b.connect(a.qp.qpn());
    b.recv(1, b.sge(0, 4096));
    a.send(2, SendOp::Send, a.sge(0, 64), None);
    assert_eq!(a.wait().status, WcStatus::Success);
    assert_eq!(b.wait().status, WcStatus::Success);
    // More than one where the machine was so busy that the message was sent twice.
    assert!(a.qp.counters().cnps >= 1);
    assert_eq!(b.qp.counters().cnps, 0);
}

#[test]
fn a_congestion_mark_is_answered_with_a_notification() {
    in_namespace("transfer::a_congestion_mark_is_answered_with_a_notification", marked_packets);
}
