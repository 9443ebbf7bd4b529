//! Which memory a receive may name, and what becomes of a message that it has no room for.

use crate::namespace::in_namespace;
use crate::pair::over_sockets;
use crate::side::{QKEY, Side, cap, open, register};
use ferroce_mem::{MrAccess, MrInit, Pd};
use ferroce_nic::qp::{QpCap, QpInit};
use ferroce_nic::{Context, Qp, create_ah};
use ferroce_parts::Ah;
use ferroce_proto::{SendOp, UdTarget};
use ferroce_queues::{Cq, Srq, SrqAttr};
use ferroce_types::{QpState, RecvWqe, Sge, WcStatus};
use ferroce_wire::Service;
use std::sync::Arc;
use std::time::{Duration, Instant};

fn srq_of(pd: &Arc<Pd>) -> Arc<Srq> {
    Srq::create(pd, SrqAttr { max_wr: 16, max_sge: 1, limit: 0 }, 0).unwrap()
}

fn post(srq: &Srq, wr_id: u64, sge: Sge) {
    srq.post(RecvWqe { wr_id, sges: [sge].into_iter().collect() }).unwrap();
}

/// Two sides, the second of which receives from `srq` and has another domain than it.
fn with_srq(context: &Arc<Context>, service: Service, srq: &Arc<Srq>) -> (Side, Side) {
    let a = Side::new(context, service, 4096);
    let (pd, cq) = (Pd::alloc(context).unwrap(), Cq::create(context, 64, None, 0).unwrap());
    let b = Side::of(&pd, service, 4096, cq, Some(srq.clone()));
    a.connect(b.qp.qpn());
    b.connect(a.qp.qpn());
    (a, b)
}

fn to(a: &Side, b: &Side) -> Option<UdTarget<Arc<Ah>>> {
    let address = create_ah(&a.pd, a.av()).unwrap();
    (a.qp.service() == Service::Ud).then(|| UdTarget { address, qpn: b.qp.qpn(), qkey: QKEY })
}

fn a_shared_queues_receives_name_the_memory_of_its_domain_and_no_other() {
    let context = open();
    for service in [Service::Rc, Service::Ud] {
        let pd = Pd::alloc(&context).unwrap();
        let srq = srq_of(&pd);
        let memory = vec![0u8; 4096];
        let addr = memory.as_ptr() as u64;
        let mr = register(&pd, MrInit { addr, length: 4096, iova: addr, access: MrAccess::ALL }).unwrap();
        let (a, b) = with_srq(&context, service, &srq);
        post(&srq, 1, Sge { addr, length: 1000, lkey: mr.key() });
        a.send(1, SendOp::Send, a.sge(0, 100), to(&a, &b));
        assert_eq!((b.wait().status, a.wait().status), (WcStatus::Success, WcStatus::Success), "{service:?}");
        // A receive in the shared queue must not name memory of the QP's own domain.
        post(&srq, 2, b.sge(0, 1000));
        a.send(2, SendOp::Send, a.sge(0, 100), to(&a, &b));
        assert_eq!(b.wait().status, WcStatus::LocProtErr, "{service:?}");
        assert_eq!(b.qp.query().unwrap().state, QpState::Err, "{service:?}");
    }
}

fn a_read_of_a_qp_with_a_shared_queue_goes_to_the_qps_own_memory() {
    let context = open();
    let pd = Pd::alloc(&context).unwrap();
    let srq = srq_of(&pd);
    let memory = vec![0u8; 4096];
    let addr = memory.as_ptr() as u64;
    let mr = register(&pd, MrInit { addr, length: 4096, iova: addr, access: MrAccess::ALL }).unwrap();
    let (a, b) = with_srq(&context, Service::Rc, &srq);
    let read = SendOp::Read { va: a.addr(), rkey: a.mr.key() };
    let add = SendOp::FetchAdd { va: a.addr(), rkey: a.mr.key(), add: 1 };
    b.send(1, read, b.sge(0, 100), None);
    b.send(2, add, b.sge(0, 8), None);
    assert_eq!((b.wait().status, b.wait().status), (WcStatus::Success, WcStatus::Success));
    b.send(3, read, Sge { addr, length: 100, lkey: mr.key() }, None);
    assert_eq!(b.wait().status, WcStatus::LocProtErr);
}

fn a_datagram_that_does_not_fit_is_dropped_and_takes_no_receive() {
    let context = open();
    let pd = Pd::alloc(&context).unwrap();
    for srq in [None, Some(srq_of(&pd))] {
        let a = Side::new(&context, Service::Ud, 4096);
        let b = Side::of(&pd, Service::Ud, 4096, Cq::create(&context, 64, None, 0).unwrap(), srq.clone());
        a.connect(b.qp.qpn());
        b.connect(a.qp.qpn());
        let receive = |wr_id, sge| match &srq {
            Some(srq) => post(srq, wr_id, sge),
            None => b.recv(wr_id, sge),
        };
        receive(1, b.sge(0, 49));
        receive(2, b.sge(100, 1040));
        for length in [10u16, 500, 9] {
            a.send(u64::from(length), SendOp::Send, a.sge(0, usize::from(length)), to(&a, &b));
            assert_eq!(a.wait().status, WcStatus::Success);
        }
        let got = b.wait();
        assert_eq!((got.wr_id, got.status, got.byte_len), (1, WcStatus::Success, 49));
        a.send(4, SendOp::Send, a.sge(0, 1000), to(&a, &b));
        assert_eq!((b.wait().byte_len, b.qp.query().unwrap().state), (1040, QpState::Rts));
    }
}

fn sides_whose_psns_do_not_match_confirm_nothing() {
    let context = open();
    let requests = |b: &Side| {
        let (va, rkey) = (b.addr(), b.mr.key());
        [
            SendOp::Write { va, rkey },
            SendOp::Read { va, rkey },
            SendOp::Send,
            SendOp::FetchAdd { va, rkey, add: 1 },
            SendOp::WriteWithImmediate { va, rkey, immediate: [1; 4] },
        ]
    };
    for which in 0..5 {
        let (a, b) = (Side::new(&context, Service::Rc, 64), Side::new(&context, Service::Rc, 64));
        // The peer expects 0xfffff0.
        a.connect_with(b.qp.qpn(), |attr| {
            (attr.sq_psn, attr.timeout, attr.retry_cnt) = (0xff_ffef, 10, 1);
        });
        b.connect(a.qp.qpn());
        b.recv(9, b.sge(0, 64));
        let started = Instant::now();
        a.send(1, requests(&b)[which], a.sge(8, 8), None);
        assert_eq!(a.wait().status, WcStatus::RetryExcErr, "{which}");
        assert!(started.elapsed() >= Duration::from_millis(8), "{which}");
        assert!(b.memory.iter().all(|byte| *byte == 0), "{which}");
    }
}

macro_rules! on_both_fabrics {
    ($($name:ident;)*) => {
        mod within_a_process {
            use super::*;
            $(#[test] fn $name() {
                in_namespace(concat!("receives::within_a_process::", stringify!($name)), || super::$name());
            })*
        }
        mod over_udp {
            use super::*;
            $(#[test] fn $name() {
                in_namespace(concat!("receives::over_udp::", stringify!($name)), || {
                    over_sockets();
                    super::$name();
                });
            })*
        }
    };
}

on_both_fabrics! {
    a_shared_queues_receives_name_the_memory_of_its_domain_and_no_other;
    a_read_of_a_qp_with_a_shared_queue_goes_to_the_qps_own_memory;
    a_datagram_that_does_not_fit_is_dropped_and_takes_no_receive;
    sides_whose_psns_do_not_match_confirm_nothing;
}

fn sizes_of_a_receive_queue_that_is_not_there_are_ignored() {
    let context = open();
    let (pd, cq) = (Pd::alloc(&context).unwrap(), Cq::create(&context, 1, None, 0).unwrap());
    let srq = srq_of(&pd);
    for (service, srq) in
        [(Service::Rc, Some(&srq)), (Service::Ud, Some(&srq)), (Service::Xrc, None), (Service::Rc, None)]
    {
        let cap = QpCap { max_recv_wr: u32::MAX, max_recv_sge: u32::MAX, ..cap() };
        let init = QpInit {
            service,
            send_cq: cq.clone(),
            recv_cq: cq.clone(),
            srq: srq.cloned(),
            cap,
            sq_sig_all: false,
            user_handle: 0,
        };
        match Qp::create(&pd, init) {
            Ok(qp) => {
                assert_eq!((qp.cap().max_recv_wr, qp.cap().max_recv_sge), (0, 0), "{service:?}");
                qp.destroy().unwrap();
            }
            Err(error) => {
                assert_eq!(error.errno(), libc::EINVAL);
                assert!(service == Service::Rc && srq.is_none(), "{service:?}: {error}");
            }
        }
    }
    srq.destroy().unwrap();
    cq.destroy().unwrap();
}

#[test]
fn receive_sizes_are_ignored_where_there_is_no_receive_queue() {
    in_namespace(
        "receives::receive_sizes_are_ignored_where_there_is_no_receive_queue",
        sizes_of_a_receive_queue_that_is_not_there_are_ignored,
    );
}
