//! Memory windows: which memory peers may access through them, and how long.

use crate::namespace::in_namespace;
use crate::pair::{connected, over_sockets, pair};
use crate::side::{Side, register};
use ferroce_mem::{Mr, MrAccess, MrInit, Mw, MwKind, Pd};
use ferroce_proto::SendOp;
use ferroce_types::{Access, Completion, Sge, WcOpcode, WcStatus};
use ferroce_wire::Service;
use std::sync::Arc;

const ALL: Access = Access {
    remote_write: true,
    remote_read: true,
    remote_atomic: true,
    flush: ferroce_types::Placement { global: false, persistent: false },
};
const NOTHING: Sge = Sge { addr: 0, length: 0, lkey: 0 };

/// Binds the window to `range` of the side's region. Returns the side's next completion.
fn bind(side: &Side, mw: &Mw, rkey: u32, range: (u64, u64), access: Access, zero_based: bool) -> Completion {
    bind_to(side, mw, rkey, &side.mr, range, access, zero_based)
}

fn bind_to(
    side: &Side,
    mw: &Mw,
    rkey: u32,
    mr: &Mr,
    range: (u64, u64),
    access: Access,
    zero_based: bool,
) -> Completion {
    let request = mw.bind_request(rkey, Some(mr), range, access, zero_based).unwrap();
    side.send(7, SendOp::BindMw(request), NOTHING, None);
    side.wait()
}

fn next(mw: &Mw) -> u32 {
    let rkey = mw.rkey();
    (rkey & !0xff) | (rkey + 1) & 0xff
}

fn status(side: &Side, op: SendOp) -> WcStatus {
    side.send(8, op, side.sge(0, 8), None);
    side.wait().status
}

/// A fresh connection each time: a refusal ends the one it comes on.
fn reach(open: impl FnOnce(&Side) -> (Arc<Mw>, u32), op: impl FnOnce(u32, &Side) -> SendOp) -> WcStatus {
    let (a, b) = pair(Service::Rc, 4096);
    let (mw, rkey) = open(&b);
    let status = status(&a, op(rkey, &b));
    mw.dealloc().unwrap();
    b.mr.deregister().unwrap();
    status
}

fn window(kind: MwKind, from: u64, length: u64, access: Access) -> impl FnOnce(&Side) -> (Arc<Mw>, u32) {
    move |b| {
        let mw = Mw::alloc(&b.pd, kind).unwrap();
        let rkey = next(&mw);
        let done = bind(b, &mw, rkey, (b.addr() + from, length), access, false);
        assert_eq!((done.status, done.opcode), (WcStatus::Success, WcOpcode::BindMw));
        assert_eq!(mw.rkey(), rkey);
        assert_eq!(b.mr.deregister().unwrap_err().errno(), libc::EBUSY);
        (mw, rkey)
    }
}

fn rights_and_range_are_those_of_the_window() {
    let read = Access { remote_write: false, remote_atomic: false, ..ALL };
    let write = Access { remote_read: false, remote_atomic: false, ..ALL };
    let atomic = Access { remote_read: false, remote_write: false, ..ALL };
    let (ok, no) = (WcStatus::Success, WcStatus::RemAccessErr);
    for kind in [MwKind::One, MwKind::Two] {
        for (access, expected) in [(read, [ok, no, no]), (write, [no, ok, no]), (atomic, [no, no, ok])] {
            let ops: [fn(u32, &Side) -> SendOp; 3] = [
                |rkey, b| SendOp::Read { va: b.addr() + 64, rkey },
                |rkey, b| SendOp::Write { va: b.addr() + 64, rkey },
                |rkey, b| SendOp::FetchAdd { va: b.addr() + 64, rkey, add: 1 },
            ];
            for (op, expected) in ops.into_iter().zip(expected) {
                assert_eq!(reach(window(kind, 64, 128, access), op), expected, "{kind:?} {access:?}");
            }
        }
        for (from, expected) in [(64, ok), (184, ok), (63, no), (185, no), (0, no), (4000, no)] {
            let op = |rkey, b: &Side| SendOp::Write { va: b.addr() + from, rkey };
            assert_eq!(reach(window(kind, 64, 128, ALL), op), expected, "{kind:?} at {from}");
        }
    }
}

fn a_window_of_type_2_is_its_queue_pairs_alone() {
    for (kind, expected) in [(MwKind::One, WcStatus::Success), (MwKind::Two, WcStatus::RemAccessErr)] {
        let (a, b) = pair(Service::Rc, 4096);
        let (mw, rkey) = window(kind, 0, 4096, ALL)(&b);
        assert_eq!(status(&a, SendOp::Write { va: b.addr(), rkey }), WcStatus::Success);
        // Another connection to the same domain.
        let other = Side::of(&b.pd, Service::Rc, 4096, b.cq.clone(), None);
        let peer = Side::new(&a.context, Service::Rc, 4096);
        other.connect(peer.qp.qpn());
        peer.connect(other.qp.qpn());
        assert_eq!(status(&peer, SendOp::Write { va: b.addr(), rkey }), expected, "{kind:?}");
        mw.dealloc().unwrap();
        // And to another.
        let (c, d) = connected(&a.context, Service::Rc, 4096);
        let (mw, rkey) = window(kind, 0, 4096, ALL)(&b);
        assert_eq!(status(&c, SendOp::Write { va: b.addr(), rkey }), WcStatus::RemAccessErr);
        drop(d);
        mw.dealloc().unwrap();
    }
}

fn binds_that_may_not_be_are_mw_bind_err() {
    let rw = MrAccess { flush: Default::default(), bind_windows: false, ..MrAccess::ALL };
    let region = |side: &Side, access| {
        let init = MrInit { addr: side.addr(), length: 4096, iova: side.addr(), access };
        register(&side.pd, init).unwrap()
    };
    let constant = MrAccess { bind_windows: true, ..MrAccess::default() };
    let read = Access { remote_write: false, remote_atomic: false, ..ALL };
    for (what, kind, access, right, range, expected) in [
        ("without MW_BIND", MwKind::One, rw, read, (0, 64), WcStatus::MwBindErr),
        ("write without local write", MwKind::One, constant, ALL, (0, 64), WcStatus::MwBindErr),
        ("read without local write", MwKind::One, constant, read, (0, 64), WcStatus::Success),
        ("beyond", MwKind::Two, MrAccess::ALL, read, (4000, 97), WcStatus::MwBindErr),
        ("a length that overflows", MwKind::Two, MrAccess::ALL, read, (8, u64::MAX), WcStatus::MwBindErr),
        ("all of it", MwKind::Two, MrAccess::ALL, read, (0, 4096), WcStatus::Success),
        ("no byte, type 2", MwKind::Two, MrAccess::ALL, read, (0, 0), WcStatus::MwBindErr),
        ("no byte, type 1", MwKind::One, MrAccess::ALL, read, (0, 0), WcStatus::Success),
    ] {
        let (_a, b) = pair(Service::Rc, 4096);
        let (mr, mw) = (region(&b, access), Mw::alloc(&b.pd, kind).unwrap());
        let range = (b.addr() + range.0, range.1);
        let done = bind_to(&b, &mw, next(&mw), &mr, range, right, false);
        assert_eq!(done.status, expected, "{what}");
        mw.dealloc().unwrap();
        mr.deregister().unwrap();
    }
    for (kind, refused) in [(MwKind::One, true), (MwKind::Two, false)] {
        let (a, b) = pair(Service::Rc, 4096);
        let (other, range) = (region(&a, MrAccess::ALL), (a.addr(), 64));
        let mw = Mw::alloc(&b.pd, kind).unwrap();
        if refused {
            let error = mw.bind_request(mw.rkey(), Some(&other), range, ALL, false).unwrap_err();
            assert_eq!(error.errno(), libc::EPERM);
        } else {
            let done = bind_to(&b, &mw, next(&mw), &other, range, ALL, false);
            assert_eq!(done.status, WcStatus::MwBindErr, "a region of another domain");
        }
        mw.dealloc().unwrap();
        other.deregister().unwrap();
    }
    let (_a, b) = pair(Service::Rc, 4096);
    let mw = Mw::alloc(&b.pd, MwKind::Two).unwrap();
    let range = (b.addr(), 64);
    assert_eq!(mw.bind_request(mw.rkey(), None, range, ALL, false).unwrap_err().errno(), libc::EINVAL);
    assert_eq!(bind(&b, &mw, next(&mw), range, ALL, false).status, WcStatus::Success);
    assert_eq!(bind(&b, &mw, next(&mw), range, ALL, false).status, WcStatus::MwBindErr, "bound already");
    assert_eq!(b.pd.check_unused().unwrap_err().errno(), libc::EBUSY);
    mw.dealloc().unwrap();
}

fn a_key_is_chosen_in_its_low_8_bits_and_the_rest_is_the_windows() {
    let (a, b) = pair(Service::Rc, 4096);
    let mw = Mw::alloc(&b.pd, MwKind::Two).unwrap();
    let own = mw.rkey();
    for asked in [b.mr.key(), !own, 0x5a] {
        let done = bind(&b, &mw, asked, (b.addr(), 64), ALL, false);
        assert_eq!(done.status, WcStatus::Success, "{asked:#x}");
        assert_eq!(mw.rkey(), (own & !0xff) | (asked & 0xff));
        assert_eq!(status(&a, SendOp::Write { va: b.addr(), rkey: mw.rkey() }), WcStatus::Success);
        b.send(2, SendOp::LocalInvalidate { rkey: mw.rkey() }, NOTHING, None);
        assert_eq!(b.wait().status, WcStatus::Success);
    }
    mw.dealloc().unwrap();
}

fn only_type_2_windows_are_invalidated_and_by_their_queue_pair() {
    let (a, b) = pair(Service::Rc, 4096);
    let (mw, rkey) = window(MwKind::Two, 0, 4096, ALL)(&b);
    b.recv(1, b.sge(0, 64));
    a.send(1, SendOp::SendWithInvalidate { rkey }, a.sge(0, 64), None);
    assert_eq!(a.wait().status, WcStatus::Success);
    assert_eq!(b.wait().invalidated_rkey(), Some(rkey));
    let again = bind(&b, &mw, next(&mw), (b.addr(), 64), ALL, true);
    assert_eq!(again.status, WcStatus::Success);
    // Zero-based: addresses count from the window's first byte.
    assert_eq!(status(&a, SendOp::Write { va: 56, rkey: mw.rkey() }), WcStatus::Success);
    b.send(2, SendOp::LocalInvalidate { rkey: mw.rkey() }, NOTHING, None);
    assert_eq!((b.wait().status, b.mr.deregister().is_ok()), (WcStatus::Success, true));
    mw.dealloc().unwrap();
    let keys: [fn(&Side) -> u32; 3] =
        [|b| b.mr.key(), |b| window(MwKind::One, 0, 64, ALL)(b).1, |b| b.mr.key() ^ 0x100];
    for key in keys {
        let (_a, b) = pair(Service::Rc, 4096);
        let rkey = key(&b);
        b.send(3, SendOp::LocalInvalidate { rkey }, NOTHING, None);
        assert_eq!(b.wait().status, WcStatus::MwBindErr);
        let (a, b) = pair(Service::Rc, 4096);
        b.recv(1, b.sge(0, 64));
        let rkey = key(&b);
        a.send(1, SendOp::SendWithInvalidate { rkey }, a.sge(0, 64), None);
        assert_eq!(a.wait().status, WcStatus::RemAccessErr);
    }
}

fn a_null_region_gives_zeros_and_keeps_nothing() {
    let (mut a, b) = pair(Service::Rc, 8192);
    a.memory.fill(0xff);
    let (null, nowhere) = (Mr::null(&a.pd).unwrap(), Mr::null(&b.pd).unwrap());
    let of = |mr: &Mr| Sge { addr: 0xdead_0000, length: 3000, lkey: mr.key() };
    a.send(1, SendOp::Write { va: b.addr(), rkey: b.mr.key() }, a.sge(0, 8192), None);
    assert_eq!(a.wait().status, WcStatus::Success);
    a.send(1, SendOp::Write { va: b.addr() + 8, rkey: b.mr.key() }, of(&null), None);
    assert_eq!(a.wait().status, WcStatus::Success);
    let zeros = b.memory.iter().enumerate().filter(|(_, byte)| **byte == 0).map(|(at, _)| at);
    assert!(zeros.eq(8..3008), "zeros where they belong");
    a.send(1, SendOp::Read { va: b.addr(), rkey: b.mr.key() }, of(&null), None);
    assert_eq!(a.wait().status, WcStatus::Success);
    b.recv(2, of(&nowhere));
    a.send(1, SendOp::Send, a.sge(0, 3000), None);
    assert_eq!((a.wait().status, b.wait().byte_len), (WcStatus::Success, 3000));
    assert_eq!(status(&a, SendOp::Write { va: 0, rkey: nowhere.key() }), WcStatus::RemAccessErr);
    let spare = Pd::alloc(&a.context).unwrap();
    let init = MrInit { addr: a.addr(), length: 64, iova: 0, access: MrAccess::ALL };
    let (held, kept) = (Mr::null(&spare).unwrap(), register(&spare, init).unwrap());
    assert_eq!(spare.check_unused().unwrap_err().errno(), libc::EBUSY, "another region holds its domain");
    kept.deregister().unwrap();
    spare.dealloc().unwrap();
    held.deregister().unwrap();
    let init = null.init().unwrap();
    // SAFETY: it is refused.
    let changed = unsafe { null.reregister(Some(&b.pd), init, init) };
    assert_eq!(changed.unwrap_err().errno(), libc::EINVAL);
    null.deregister().unwrap();
    nowhere.deregister().unwrap();
}

macro_rules! on_both_fabrics {
    ($($name:ident;)*) => {
        mod within_a_process {
            use super::*;
            $(#[test] fn $name() {
                in_namespace(concat!("mw::within_a_process::", stringify!($name)), || super::$name());
            })*
        }
        mod over_udp {
            use super::*;
            $(#[test] fn $name() {
                in_namespace(concat!("mw::over_udp::", stringify!($name)), || { over_sockets(); super::$name(); });
            })*
        }
    };
}

on_both_fabrics! {
    rights_and_range_are_those_of_the_window;
    a_window_of_type_2_is_its_queue_pairs_alone;
    binds_that_may_not_be_are_mw_bind_err;
    a_key_is_chosen_in_its_low_8_bits_and_the_rest_is_the_windows;
    only_type_2_windows_are_invalidated_and_by_their_queue_pair;
    a_null_region_gives_zeros_and_keeps_nothing;
}
