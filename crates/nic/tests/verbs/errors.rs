//! What goes wrong gets the status that the specification names, on both sides and both fabrics.

use crate::namespace::in_namespace;
use crate::pair::{over_sockets, pair};
use crate::side::{QKEY, Side, register};
use ferroce_mem::{Mr, MrAccess, MrInit};
use ferroce_nic::{Poll as _, create_ah};
use ferroce_parts::{QpAttr, mask};
use ferroce_proto::{Data, SendOp, SendWr, UdTarget};
use ferroce_queues::{Cq, Srq, SrqAttr};
use ferroce_types::{AsyncEvent, QpState, RecvWqe, Sge, WcStatus};
use ferroce_wire::Service;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Anonymous memory that can be taken away.
struct Pages(u64);

impl Pages {
    const LEN: u64 = 64 * 1024;

    /// Where the kernel puts nothing by itself, also when they are gone.
    fn new() -> Self {
        /// AddressSanitizer leaves the first to programs, ThreadSanitizer the second.
        const PLACES: [u64; 2] = [3 << 44, 64 << 30];
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let offset = NEXT.fetch_add(1 << 30, Ordering::Relaxed);
        let (protection, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
        );
        let map = |place: u64| {
            // SAFETY: a new private mapping where there was none.
            unsafe { libc::mmap((place + offset) as *mut _, Self::LEN as usize, protection, flags, -1, 0) }
        };
        let at = PLACES.into_iter().map(map).find(|&at| at != libc::MAP_FAILED).expect("a free place");
        Self(at as u64)
    }

    fn register(&self, side: &Side) -> Arc<Mr> {
        let access = MrAccess::ALL;
        let init = MrInit { addr: self.0, length: Self::LEN, iova: self.0, access };
        register(&side.pd, init).unwrap()
    }

    fn protect(&self, protection: i32) {
        // SAFETY: our own mapping, which no Rust reference points into.
        assert_eq!(unsafe { libc::mprotect(self.0 as *mut _, Self::LEN as usize, protection) }, 0);
    }

    fn unmap(&self) {
        // SAFETY: as above.
        assert_eq!(unsafe { libc::munmap(self.0 as *mut _, Self::LEN as usize) }, 0);
    }

    fn sge(&self, mr: &Mr) -> Sge {
        Sge { addr: self.0, length: 4096, lkey: mr.key() }
    }
}

/// What is asked of a peer.
type Request = fn(&Side) -> SendOp;

fn state(side: &Side) -> QpState {
    side.qp.query().unwrap().state
}

fn a_wrong_lkey_is_loc_prot_err() {
    let (a, b) = pair(Service::Rc, 4096);
    b.recv(1, b.sge(0, 4096));
    let sge = Sge { lkey: a.mr.key() ^ 1, ..a.sge(0, 64) };
    a.send(2, SendOp::Send, sge, None);
    assert_eq!(a.wait().status, WcStatus::LocProtErr);
    assert_eq!(state(&a), QpState::Err);
    a.send(3, SendOp::Send, a.sge(0, 64), None);
    assert_eq!(a.wait().status, WcStatus::WrFlushErr);
}

fn a_key_of_another_domain_is_loc_prot_err() {
    let (a, b) = pair(Service::Rc, 4096);
    a.send(2, SendOp::Send, Sge { lkey: b.mr.key(), ..b.sge(0, 64) }, None);
    assert_eq!(a.wait().status, WcStatus::LocProtErr);
}

fn remote_access_is_checked() {
    let requests: [(Request, WcStatus); 5] = [
        (|b| SendOp::Write { va: b.addr() + 4090, rkey: b.mr.key() }, WcStatus::RemAccessErr),
        (|b| SendOp::Write { va: b.addr(), rkey: b.mr.key() ^ 0x100 }, WcStatus::RemAccessErr),
        (|b| SendOp::Read { va: b.addr() - 1, rkey: b.mr.key() }, WcStatus::RemAccessErr),
        (|b| SendOp::FetchAdd { va: b.addr() + 4096, rkey: b.mr.key(), add: 1 }, WcStatus::RemAccessErr),
        (|b| SendOp::FetchAdd { va: b.addr() + 4, rkey: b.mr.key(), add: 1 }, WcStatus::RemInvReqErr),
    ];
    for (op, expected) in requests {
        let (a, b) = pair(Service::Rc, 4096);
        let before = b.memory.clone();
        a.send(1, op(&b), a.sge(0, 8), None);
        assert_eq!(a.wait().status, expected);
        assert_eq!((state(&a), state(&b)), (QpState::Err, QpState::Err));
        assert!(before == b.memory);
        let event = b.context.async_events();
        assert!(matches!(
            event.take(),
            Some(AsyncEvent::CommunicationEstablished(_))
                | Some(AsyncEvent::QpAccessError(_))
                | Some(AsyncEvent::QpRequestError(_))
        ));
    }
}

fn a_receive_too_small_fails_both_sides() {
    let (a, b) = pair(Service::Rc, 8192);
    b.recv(1, b.sge(0, 100));
    a.send(2, SendOp::Send, a.sge(0, 5000), None);
    assert_eq!(a.wait().status, WcStatus::RemInvReqErr);
    assert_eq!(b.wait().status, WcStatus::LocLenErr);
    assert_eq!((state(&a), state(&b)), (QpState::Err, QpState::Err));
}

fn no_receive_in_time_is_rnr_retry_exc_err() {
    let (a, b) = pair(Service::Rc, 4096);
    a.reset();
    a.connect_with(b.qp.qpn(), |attr| attr.rnr_retry = 2);
    a.send(2, SendOp::Send, a.sge(0, 64), None);
    assert_eq!(a.wait().status, WcStatus::RnrRetryExcErr);
}

fn a_peer_that_is_not_there_is_retry_exc_err() {
    let (a, b) = pair(Service::Rc, 4096);
    a.reset();
    a.connect_with(b.qp.qpn(), |attr| (attr.timeout, attr.retry_cnt) = (8, 2));
    b.qp.destroy().unwrap();
    a.send(2, SendOp::Send, a.sge(0, 64), None);
    assert_eq!(a.wait().status, WcStatus::RetryExcErr);
}

fn memory_that_went_away_fails_the_request_and_nothing_else() {
    let (a, b) = pair(Service::Rc, 4096);
    let pages = Pages::new();
    let mr = pages.register(&a);
    pages.unmap();
    b.recv(1, b.sge(0, 4096));
    a.send(2, SendOp::Send, pages.sge(&mr), None);
    assert_eq!(a.wait().status, WcStatus::LocProtErr);

    for op in [(|va, rkey| SendOp::Write { va, rkey }) as fn(u64, u32) -> SendOp, |va, rkey| {
        SendOp::FetchAdd { va, rkey, add: 1 }
    }] {
        let (a, b) = pair(Service::Rc, 4096);
        let pages = Pages::new();
        let mr = pages.register(&b);
        pages.protect(libc::PROT_READ);
        a.send(1, op(pages.0, mr.key()), a.sge(0, 8), None);
        assert_eq!(a.wait().status, WcStatus::RemOpErr);
    }

    let (a, b) = pair(Service::Rc, 4096);
    let pages = Pages::new();
    let mr = pages.register(&b);
    pages.unmap();
    a.send(1, SendOp::Read { va: pages.0, rkey: mr.key() }, a.sge(0, 8), None);
    assert_eq!(a.wait().status, WcStatus::RemOpErr);

    let (a, b) = pair(Service::Rc, 4096);
    let pages = Pages::new();
    let mr = pages.register(&b);
    pages.protect(libc::PROT_READ);
    b.recv(1, pages.sge(&mr));
    a.send(2, SendOp::Send, a.sge(0, 64), None);
    assert_eq!(b.wait().status, WcStatus::LocProtErr);
    assert_eq!(a.wait().status, WcStatus::RemOpErr);
}

fn a_deregistered_key_is_refused() {
    let (a, b) = pair(Service::Rc, 4096);
    let pages = Pages::new();
    let mr = pages.register(&b);
    mr.deregister().unwrap();
    a.send(1, SendOp::Write { va: pages.0, rkey: mr.key() }, a.sge(0, 8), None);
    assert_eq!(a.wait().status, WcStatus::RemAccessErr);
}

/// The responder finds out when it sends a part of the answer: the request was right when it came.
fn a_key_taken_back_in_the_middle_of_a_read_is_named_at_both_sides() {
    const LEN: usize = 16 << 20;
    /// FC031: the key was deregistered.
    const DEREGISTERED: u16 = 31;
    for attempt in 0.. {
        assert!(attempt < 50, "each READ ends before the deregistration");
        let (a, b) = pair(Service::Rc, LEN);
        let length = LEN as u64;
        let mr = register(&b.pd, MrInit { addr: b.addr(), length, iova: b.addr(), access: MrAccess::ALL })
            .unwrap();
        b.recv(1, b.sge(0, 8));
        a.send(2, SendOp::Read { va: b.addr(), rkey: mr.key() }, a.sge(0, LEN), None);
        mr.deregister().unwrap();
        let wc = a.wait();
        if wc.status == WcStatus::RemAccessErr {
            assert_eq!(wc.reason(), DEREGISTERED);
            let flushed = b.wait();
            assert_eq!((flushed.status, flushed.reason()), (WcStatus::WrFlushErr, DEREGISTERED));
            break;
        }
        assert_eq!(wc.status, WcStatus::Success);
    }
}

fn an_overrun_queue_says_so() {
    let (a, b) = pair(Service::Uc, 4096);
    drop(b);
    // The queue has 256 entries.
    for i in 0..300 {
        a.send(i, SendOp::Send, a.sge(0, 8), None);
    }
    let mut events = std::iter::from_fn(|| a.context.async_events().take());
    assert!(events.any(|e| matches!(e, AsyncEvent::CqError(_))));
    let mut got = 0;
    while let Ok(n) = a.cq.poll(16, |_| ()) {
        got += n;
        assert!(n > 0, "an overrun queue that is empty is an error");
    }
    assert_eq!(got, 256);
}

fn posting_respects_state_and_limits() {
    let (a, b) = pair(Service::Rc, 4096);
    a.reset();
    assert_eq!(a.post(0, SendOp::Send, a.sge(0, 8), None).unwrap_err().errno(), libc::EINVAL);
    a.connect_with(b.qp.qpn(), |attr| attr.rnr_retry = 7);
    // `b` has posted no receive: the send queue of 64 fills up.
    for _ in 0..64 {
        a.post(0, SendOp::Send, a.sge(0, 8), None).unwrap();
    }
    assert_eq!(a.post(0, SendOp::Send, a.sge(0, 8), None).unwrap_err().errno(), libc::ENOMEM);
    let error = QpAttr { state: QpState::Err, ..QpAttr::default() };
    a.qp.modify(&error, mask::STATE).unwrap();
    for _ in 0..64 {
        assert_eq!(a.wait().status, WcStatus::WrFlushErr);
    }
    // In ERR a receive is flushed at once.
    a.recv(5, a.sge(0, 8));
    assert_eq!(a.wait().status, WcStatus::WrFlushErr);
}

/// What a queue pair can't do is refused when it is posted, and posts nothing.
fn posting_refuses_what_the_queue_pair_cannot_do() {
    let (a, b) = pair(Service::Rc, 4096);
    let request = |op, data| SendWr {
        wr_id: 0,
        op,
        data,
        signaled: false,
        solicited: false,
        fence: false,
        ud: None,
        remote_srqn: 0,
    };
    let elements = |count| Data::Sges(std::iter::repeat_n(a.sge(0, 1), count).collect());
    let inline = |len| Data::Inline(std::iter::repeat_n(1, len).collect());
    let read = SendOp::Read { va: b.addr(), rkey: b.mr.key() };
    let add = SendOp::FetchAdd { va: b.addr(), rkey: b.mr.key(), add: 1 };
    let post = |wr: SendWr<_>| a.qp.post_send(wr.request());
    for data in [elements(5), inline(257)] {
        assert_eq!(post(request(SendOp::Send, data)).unwrap_err().errno(), libc::EINVAL);
    }
    for op in [read, add] {
        assert_eq!(post(request(op, inline(8))).unwrap_err().errno(), libc::EINVAL);
    }
    // Of a list those before the first that is refused are posted.
    let list = [elements(4), elements(5), elements(1)].map(|data| request(SendOp::Send, data));
    b.recv(0, b.sge(0, 256));
    let posted = a.qp.post_list(|poster| list.iter().try_for_each(|wr| poster.post(wr.request())));
    assert_eq!(posted.unwrap_err().errno(), libc::EINVAL);
    assert_eq!((a.wait().status, b.wait().byte_len), (WcStatus::Success, 4));
    b.recv(0, b.sge(0, 256));
    post(request(SendOp::Send, inline(256))).unwrap();
    assert_eq!((a.wait().status, b.wait().byte_len), (WcStatus::Success, 256));
    assert!(a.qp.has_nothing_under_way());
    b.reset();
    let receive = RecvWqe { wr_id: 1, sges: [b.sge(0, 8)].into_iter().collect() };
    assert_eq!(b.qp.post_recv(receive.clone()).unwrap_err().errno(), libc::EINVAL);
    let srq = Srq::create(&a.pd, SrqAttr { max_wr: 4, max_sge: 1, limit: 0 }, 0).unwrap();
    let shares = Side::of(&a.pd, Service::Rc, 8, Cq::create(&a.context, 4, None, 0).unwrap(), Some(srq));
    shares.connect(a.qp.qpn());
    assert_eq!(shares.qp.post_recv(receive).unwrap_err().errno(), libc::EINVAL);
    let datagrams = Side::new(&a.context, Service::Ud, 8);
    datagrams.connect(0);
    let posted = datagrams.post(0, SendOp::Send, datagrams.sge(0, 8), None);
    assert_eq!(posted.unwrap_err().errno(), libc::EINVAL);
    let target = |pd| UdTarget { address: create_ah(pd, a.av()).unwrap(), qpn: 1, qkey: QKEY };
    let posted = datagrams.post(0, SendOp::Send, datagrams.sge(0, 8), Some(target(&a.pd)));
    assert_eq!(posted.unwrap_err().errno(), libc::EINVAL);
    datagrams.send(0, SendOp::Send, datagrams.sge(0, 8), Some(target(&datagrams.pd)));
}

macro_rules! on_both_fabrics {
    ($($name:ident;)*) => {
        mod within_a_process {
            use super::*;
            $(#[test] fn $name() {
                in_namespace(concat!("errors::within_a_process::", stringify!($name)), || super::$name());
            })*
        }
        mod over_udp {
            use super::*;
            $(#[test] fn $name() {
                in_namespace(concat!("errors::over_udp::", stringify!($name)), || { over_sockets(); super::$name(); });
            })*
        }
    };
}

on_both_fabrics! {
    a_wrong_lkey_is_loc_prot_err;
    a_key_of_another_domain_is_loc_prot_err;
    remote_access_is_checked;
    a_receive_too_small_fails_both_sides;
    no_receive_in_time_is_rnr_retry_exc_err;
    a_peer_that_is_not_there_is_retry_exc_err;
    memory_that_went_away_fails_the_request_and_nothing_else;
    a_deregistered_key_is_refused;
    a_key_taken_back_in_the_middle_of_a_read_is_named_at_both_sides;
    an_overrun_queue_says_so;
    posting_respects_state_and_limits;
    posting_refuses_what_the_queue_pair_cannot_do;
}
