//! Datagrams to groups: a copy for each attached QP, and none for the others.

use crate::namespace::in_namespace;
use crate::side::{QKEY, Side, open};
use ferroce_nic::{Poll as _, create_ah};
use ferroce_parts::{AddressVector, Ah};
use ferroce_proto::{SendOp, UdTarget};
use ferroce_types::WcStatus;
use ferroce_wire::Service;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

const GROUP: Ipv4Addr = Ipv4Addr::new(239, 1, 2, 3);
/// The destination QPN of datagrams to groups.
const MULTICAST_QPN: u32 = 0xff_ffff;
const SIZE: usize = 512;

fn mgid(last: u8) -> [u8; 16] {
    let [a, b, c, _] = GROUP.octets();
    Ipv4Addr::new(a, b, c, last).to_ipv6_mapped().octets()
}

fn ready_side() -> Side {
    let side = Side::new(&open(), Service::Ud, 1 << 16);
    side.connect(0);
    side
}

fn handle(side: &Side, dgid: [u8; 16], hop_limit: u8) -> Arc<Ah> {
    create_ah(&side.pd, AddressVector { dgid, hop_limit, ..side.av() }).unwrap()
}

fn send(side: &mut Side, ah: &Arc<Ah>, qkey: u32, text: &[u8]) {
    side.memory[..text.len()].copy_from_slice(text);
    let target = UdTarget { address: ah.clone(), qpn: MULTICAST_QPN, qkey };
    side.send(
        99,
        SendOp::SendWithImmediate { immediate: [1, 2, 3, 4] },
        side.sge(0, text.len()),
        Some(target),
    );
}

fn post(side: &Side, places: std::ops::Range<usize>) {
    for place in places {
        side.recv(place as u64, side.sge(4096 + place * SIZE, SIZE));
    }
}

fn expect(side: &Side, place: usize, from: &Side, text: &[u8], group: [u8; 16]) {
    let got = side.wait();
    assert_eq!(
        (got.wr_id, got.status, got.byte_len),
        (place as u64, WcStatus::Success, 40 + text.len() as u32)
    );
    assert_eq!((got.src_qp, got.grh(), got.immediate()), (from.qp.qpn(), true, Some([1, 2, 3, 4])));
    let bytes = &side.memory[4096 + place * SIZE..][..40 + text.len()];
    assert_eq!(&bytes[40..], text);
    // The network header: an IPv4 one in the last half.
    assert_eq!((bytes[20], bytes[28], &bytes[36..40]), (0x45, 7, &group[12..]));
}

fn expect_nothing(side: &Side) {
    std::thread::sleep(Duration::from_millis(50));
    side.cq.poll(1, |wc| panic!("received {wc:?}")).unwrap();
}

fn memberships(ip: Ipv4Addr) -> usize {
    let word = format!("{:08X}", u32::from_ne_bytes(ip.octets()));
    std::fs::read_to_string("/proc/net/igmp").unwrap().matches(&word).count()
}

fn delivery() {
    let mut sides: Vec<Side> = (0..4).map(|_| ready_side()).collect();
    let ah = handle(&sides[0], mgid(3), 7);
    sides.iter().for_each(|side| post(side, 0..8));
    for side in &sides[..3] {
        side.qp.attach_mcast(mgid(3)).unwrap();
    }
    // Twice is once.
    sides[1].qp.attach_mcast(mgid(3)).unwrap();
    // A QP in another group only.
    sides[3].qp.attach_mcast(mgid(4)).unwrap();
    assert_eq!(memberships(GROUP), 1);

    // The sender gets its own copy.
    send(&mut sides[0], &ah, QKEY, b"for all of you");
    let sent = sides[0].wait();
    assert_eq!((sent.wr_id, sent.status), (99, WcStatus::Success));
    for side in &sides[..3] {
        expect(side, 0, &sides[0], b"for all of you", mgid(3));
    }
    sides.iter().for_each(expect_nothing);

    // Unless it doesn't want it.
    sides[0].qp.block_own_multicast();
    send(&mut sides[0], &ah, QKEY, b"for the others");
    assert_eq!(sides[0].wait().wr_id, 99);
    for side in &sides[1..3] {
        expect(side, 1, &sides[0], b"for the others", mgid(3));
    }
    sides.iter().for_each(expect_nothing);

    // No QP receives a datagram with a wrong Q_Key.
    send(&mut sides[0], &ah, QKEY + 1, b"psst");
    assert_eq!(sides[0].wait().wr_id, 99);
    sides.iter().for_each(expect_nothing);

    // A QP that has detached gets nothing, though it was attached twice.
    sides[1].qp.detach_mcast(mgid(3)).unwrap();
    assert_eq!(sides[1].qp.detach_mcast(mgid(3)).unwrap_err().errno(), libc::EINVAL);
    let ah = handle(&sides[3], mgid(3), 7);
    send(&mut sides[3], &ah, QKEY, b"for two of you");
    assert_eq!(sides[3].wait().wr_id, 99);
    for (side, place) in [(&sides[0], 1), (&sides[2], 2)] {
        expect(side, place, &sides[3], b"for two of you", mgid(3));
    }
    sides.iter().for_each(expect_nothing);

    sides[0].qp.detach_mcast(mgid(3)).unwrap();
    assert_eq!(memberships(GROUP), 1);
    sides[2].qp.detach_mcast(mgid(3)).unwrap();
    assert_eq!(memberships(GROUP), 0);
    send(&mut sides[3], &ah, QKEY, b"no members");
    assert_eq!(sides[3].wait().wr_id, 99);
    sides.iter().for_each(expect_nothing);

    assert_eq!(sides[3].qp.destroy().unwrap_err().errno(), libc::EBUSY);
    sides[3].qp.detach_mcast(mgid(4)).unwrap();
    ah.destroy();
    for side in sides.drain(1..) {
        side.qp.destroy().unwrap();
    }
}

#[test]
fn each_attached_qp_gets_one_copy() {
    in_namespace("multicast::each_attached_qp_gets_one_copy", delivery);
}

fn refusals() {
    let errno = |result: ferroce_types::Result<()>| result.unwrap_err().errno();
    let context = open();
    let side = Side::new(&context, Service::Ud, 4096);
    for wrong in [[0; 16], context.gid(1).unwrap().gid, Ipv4Addr::new(240, 0, 0, 1).to_ipv6_mapped().octets()]
    {
        assert_eq!(errno(side.qp.attach_mcast(wrong)), libc::EINVAL);
        assert_eq!(errno(side.qp.detach_mcast(wrong)), libc::EINVAL);
    }
    for service in [Service::Rc, Service::Uc] {
        let other = Side::new(&context, service, 4096);
        assert_eq!(errno(other.qp.attach_mcast(mgid(1))), libc::EINVAL);
        other.close();
    }
    assert_eq!(errno(side.qp.detach_mcast(mgid(1))), libc::EINVAL);
    // In any state, even before INIT.
    let groups = ferroce_nic::limits().max_mcast_grp as u16;
    let nth = |n: u16| Ipv4Addr::new(239, 9, (n >> 8) as u8, n as u8).to_ipv6_mapped().octets();
    for n in 0..groups {
        side.qp.attach_mcast(nth(n)).unwrap();
    }
    assert_eq!(errno(side.qp.attach_mcast(nth(groups))), libc::ENOMEM);
    let others: Vec<Side> = (1..ferroce_nic::limits().max_mcast_qp_attach)
        .map(|_| Side::new(&context, Service::Ud, 4096))
        .collect();
    for other in &others {
        other.qp.attach_mcast(nth(0)).unwrap();
    }
    let one_more = Side::new(&context, Service::Ud, 4096);
    assert_eq!(errno(one_more.qp.attach_mcast(nth(0))), libc::ENOMEM);
    others[0].qp.detach_mcast(nth(0)).unwrap();
    one_more.qp.attach_mcast(nth(0)).unwrap();
    for n in 0..groups {
        side.qp.detach_mcast(nth(n)).unwrap();
    }
    side.close();
    assert!(matches!(context.gid(1).unwrap().ip, IpAddr::V4(_)));
}

#[test]
fn wrong_groups_and_too_many_are_refused() {
    in_namespace("multicast::wrong_groups_and_too_many_are_refused", refusals);
}
