//! Packets out and in over the loopback interface.

use super::member::{Member, endpoint};
use super::namespace::in_namespace;
use super::packets::{identification, push};
use ferroce_host::Host;
use ferroce_os::{clock, sys};
use ferroce_tests::wait::eventually;
use ferroce_types::{Datagram, HostAddr, steering_of};
use ferroce_udp::{Endpoint, RecvOutcome, TxBatch};
use ferroce_wire::Operation::{SendFirst, SendLast, SendMiddle, WriteFirst, WriteMiddle};
use ferroce_wire::icrc::Flow;
use ferroce_wire::{Operation, Packet};
use std::net::Ipv4Addr;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// PSN, segment, identification, TOS, TTL.
type Got = (u32, u16, Option<u16>, u8, Option<u8>);

fn drain(endpoint: &Endpoint, steering: u8) -> Vec<Got> {
    let mut got = Vec::new();
    loop {
        let received = endpoint.recv(steering, clock::now(), &mut |datagrams| {
            for d in datagrams {
                let psn = Packet::parse(d.bytes).unwrap().headers.bth.psn;
                got.push((psn, d.segment, identification(d), d.tos, d.ttl));
            }
        });
        if received.unwrap().count() == 0 {
            return got;
        }
    }
}

fn receive(endpoint: &Endpoint, qpn: u32, count: usize) -> Vec<Got> {
    let mut got = Vec::new();
    eventually("all packets arrive", || {
        got.extend(drain(endpoint, steering_of(qpn)));
        got.len() >= count
    });
    assert_eq!(got.len(), count);
    got
}

fn endpoints(host: &Host) -> [Arc<Endpoint>; 2] {
    ["127.0.0.1", "::1"].map(|ip| endpoint(host, HostAddr::new(ip.parse().unwrap(), 0)).unwrap())
}

#[test]
fn packets_of_every_steering_class_come_to_their_socket() {
    in_namespace("udp::packets_of_every_steering_class_come_to_their_socket", || {
        let host = Host::join().unwrap();
        for endpoint in endpoints(&host) {
            let mut batch = TxBatch::new();
            for class in 0..64_u32 {
                // Other bits of the QPN must not matter.
                let qpn = 0xfc_0abc & !(63 << 12) | class << 12;
                let dest = endpoint.dest(endpoint.address(), 0, 0, qpn).unwrap();
                push(&mut batch, &dest, SendMiddle, qpn, class, 100);
            }
            assert_eq!(batch.flush(clock::now()).sent, 64);
            for class in 0..64_u32 {
                let psns: Vec<u32> = receive(&endpoint, class << 12, 1).iter().map(|g| g.0).collect();
                assert_eq!(psns, [class]);
            }
        }
    });
}

#[test]
fn trains_arrive_whole_with_right_icrcs() {
    in_namespace("udp::trains_arrive_whole_with_right_icrcs", || {
        let host = Host::join().unwrap();
        for endpoint in endpoints(&host) {
            let qpn = 0x123_456;
            let v6 = endpoint.address().is_ipv6();
            let dest = endpoint.dest(endpoint.address(), 0, 0, qpn).unwrap();
            for len in [1, 3, 256, 1000, 1024, 4096] {
                let mut batch = TxBatch::with_capacity(1 << 20);
                for psn in 0..100 {
                    let operation = if psn == 0 { SendFirst } else { SendMiddle };
                    push(&mut batch, &dest, operation, qpn, psn, len);
                }
                push(&mut batch, &dest, SendLast, qpn, 100, len / 2);
                let flushed = batch.flush(clock::now());
                assert_eq!((flushed.sent, flushed.dropped), (101, 0), "{len} bytes");
                let got = receive(&endpoint, qpn, 101);
                let per_train = (65_000 / (16 + len.next_multiple_of(4))).min(64) as u16;
                for (index, &(psn, segment, id, tos, ttl)) in got.iter().enumerate() {
                    let place = index as u16 % per_train;
                    assert_eq!((psn, segment), (index as u32, place), "{len} bytes");
                    // The ICRC is for the identification that segmentation gives the packet.
                    assert_eq!(id, Some(if v6 { segment } else { place }), "{len} bytes, packet {index}");
                    assert_eq!((tos, ttl), (0, Some(64)));
                }
            }
            assert!(endpoint.stats().trains.load(Ordering::Relaxed) >= 12, "sent as trains");
        }
    });
}

#[test]
fn first_packet_of_a_write_does_not_hold_up_the_train() {
    in_namespace("udp::first_packet_of_a_write_does_not_hold_up_the_train", || {
        let host = Host::join().unwrap();
        for endpoint in endpoints(&host) {
            let qpn = 0x200_000;
            let dest = endpoint.dest(endpoint.address(), 0, 0, qpn).unwrap();
            let mut batch = TxBatch::new();
            push(&mut batch, &dest, WriteFirst, qpn, 0, 1024);
            (1..40).for_each(|psn| push(&mut batch, &dest, WriteMiddle, qpn, psn, 1024));
            assert_eq!(batch.flush(clock::now()).sent, 40);
            let got = receive(&endpoint, qpn, 40);
            assert!(got.iter().all(|g| g.2.is_some()));
            assert_eq!(got.iter().map(|g| g.0).collect::<Vec<_>>(), (0..40).collect::<Vec<_>>());
            // First with the first middle (which is shorter), then all the others.
            assert_eq!(endpoint.stats().trains.load(Ordering::Relaxed), 2);
        }
    });
}

#[test]
fn service_type_and_hop_limit_are_per_destination() {
    in_namespace("udp::service_type_and_hop_limit_are_per_destination", || {
        let host = Host::join().unwrap();
        for endpoint in endpoints(&host) {
            let qpn = 0x301_000;
            let mut batch = TxBatch::new();
            for (psn, tos, ttl) in [(0, 0x68 | 2, 7), (1, 0x68 | 3, 7), (2, 0, 0), (3, 0xff, 255)] {
                let dest = endpoint.dest(endpoint.address(), tos, ttl, qpn).unwrap();
                (0..3).for_each(|_| push(&mut batch, &dest, SendMiddle, qpn, psn, 32));
            }
            assert_eq!(batch.flush(clock::now()).sent, 12);
            for (psn, _, id, tos, ttl) in receive(&endpoint, qpn, 12) {
                let expected = [(0x6a, 7), (0x6b, 7), (0, 64), (0xff, 255)][psn as usize];
                assert_eq!((tos, ttl.unwrap()), expected);
                assert!(id.is_some(), "the ICRC leaves them out");
            }
        }
    });
}

#[test]
fn flow_labels_are_per_destination() {
    in_namespace("udp::flow_labels_are_per_destination", || {
        let host = Host::join().unwrap();
        let [_, endpoint] = endpoints(&host);
        let qpn = 0x301_000;
        let mut batch = TxBatch::new();
        let labels = [0x1_2345, 0, 0xf_ffff];
        for (psn, label) in labels.into_iter().enumerate() {
            let dest = endpoint.dest(endpoint.address(), 0x68, 0, qpn).unwrap().labelled(label);
            assert_eq!(dest.flow_label(), label);
            (0..3).for_each(|_| push(&mut batch, &dest, SendMiddle, qpn, psn as u32, 32));
        }
        assert_eq!(batch.flush(clock::now()).sent, 9);
        let mut got = Vec::new();
        eventually("all packets arrive", || {
            let mut take = |datagrams: &[Datagram<'_>]| {
                let psn = |d: &Datagram<'_>| Packet::parse(d.bytes).unwrap().headers.bth.psn;
                got.extend(datagrams.iter().map(|d| (psn(d), d.flow_label, d.tos)));
            };
            endpoint.recv(steering_of(qpn), clock::now(), &mut take).unwrap();
            got.len() >= 9
        });
        let expected: Vec<_> = (0..9).map(|i| (i / 3, labels[i as usize / 3], 0x68)).collect();
        assert_eq!(got, expected);
    });
}

#[test]
fn failed_payload_leaves_no_trace() {
    in_namespace("udp::failed_payload_leaves_no_trace", || {
        let host = Host::join().unwrap();
        let [endpoint, _] = endpoints(&host);
        let qpn = 0x400_000;
        let dest = endpoint.dest(endpoint.address(), 0, 0, qpn).unwrap();
        let mut batch = TxBatch::new();
        let header = super::packets::headers(SendMiddle, qpn, 77);
        push(&mut batch, &dest, SendMiddle, qpn, 0, 64);
        assert!(batch.packet(&dest, &header, 64, |_, _| Err("gone")).is_err());
        assert!(batch.packet(&dest, &header, 70_000, |_, crc| Ok::<_, ()>(crc)).is_err());
        let write_without_reth = super::packets::headers(Operation::WriteMiddle, qpn, 1);
        let mut wrong = write_without_reth;
        wrong.bth.opcode = ferroce_wire::Opcode::new(ferroce_wire::Service::Rc, WriteFirst).unwrap();
        assert!(batch.packet(&dest, &wrong, 4, |_, crc| Ok::<_, ()>(crc)).is_err());
        push(&mut batch, &dest, SendMiddle, qpn, 1, 64);
        assert_eq!(batch.flush(clock::now()).sent, 2);
        let got = receive(&endpoint, qpn, 2);
        assert_eq!(got.iter().map(|g| (g.0, g.2)).collect::<Vec<_>>(), [(0, Some(0)), (1, Some(1))]);
        assert_eq!(batch.flush(clock::now()).sent, 0);
    });
}

#[test]
fn batch_beyond_its_room_flushes_itself_and_loses_nothing() {
    in_namespace("udp::batch_beyond_its_room_flushes_itself_and_loses_nothing", || {
        let host = Host::join().unwrap();
        let [endpoint, _] = endpoints(&host);
        let mut batch = TxBatch::with_capacity(0);
        let dests: Vec<_> =
            (0..64_u32).map(|c| endpoint.dest(endpoint.address(), 0, 0, c << 12).unwrap()).collect();
        // More bytes and more trains than the batch holds.
        for psn in 0..3 {
            for (class, dest) in dests.iter().enumerate() {
                push(&mut batch, dest, SendMiddle, (class as u32) << 12, psn, 1024);
            }
        }
        assert_eq!(batch.flush(clock::now()).sent, 192);
        for class in 0..64_u32 {
            let got = receive(&endpoint, class << 12, 3);
            assert_eq!(got.iter().map(|g| g.0).collect::<Vec<_>>(), [0, 1, 2]);
        }
    });
}

#[test]
fn unsendable_packets_are_dropped_counted_and_do_not_stop_the_others() {
    in_namespace("udp::unsendable_packets_are_dropped_counted_and_do_not_stop_the_others", || {
        let set = |args: &str| assert!(Command::new("ip").args(args.split(' ')).status().unwrap().success());
        set("link set lo mtu 1500");
        let host = Host::join().unwrap();
        for endpoint in endpoints(&host) {
            let qpn = 0x500_000;
            let dest = endpoint.dest(endpoint.address(), 0, 0, qpn).unwrap();
            assert_eq!(endpoint.path_mtu(endpoint.address()).unwrap(), 1500);
            let mut batch = TxBatch::new();
            push(&mut batch, &dest, SendMiddle, qpn, 0, 1024);
            (1..5).for_each(|psn| push(&mut batch, &dest, SendMiddle, qpn, psn, 2048));
            (5..8).for_each(|psn| push(&mut batch, &dest, SendMiddle, qpn, psn, 512));
            let flushed = batch.flush(clock::now());
            let got = receive(&endpoint, qpn, flushed.sent);
            assert!(got.iter().all(|g| g.2.is_some()));
            // The first 512 bytes ended the train of those too long, and went with it.
            assert_eq!(got.iter().map(|g| g.0).collect::<Vec<_>>(), [0, 6, 7]);
            assert_eq!(flushed.dropped, 5);
            assert_eq!(endpoint.stats().dropped.load(Ordering::Relaxed), 5);
            // That was about the length: trains are still in use.
            let trains = endpoint.stats().trains.load(Ordering::Relaxed);
            (0..4).for_each(|psn| push(&mut batch, &dest, SendMiddle, qpn, psn, 256));
            assert_eq!(batch.flush(clock::now()).sent, 4);
            receive(&endpoint, qpn, 4);
            assert_eq!(endpoint.stats().trains.load(Ordering::Relaxed), trains + 1);
        }
    });
}

#[test]
fn peer_without_a_route_and_of_the_other_family_is_refused_or_dropped() {
    in_namespace("udp::peer_without_a_route_and_of_the_other_family_is_refused_or_dropped", || {
        let host = Host::join().unwrap();
        let [v4, v6] = endpoints(&host);
        assert_eq!(v4.dest(v6.address(), 0, 0, 1).unwrap_err().raw_os_error(), Some(libc::EAFNOSUPPORT));
        let nowhere = HostAddr::new("203.0.113.1".parse().unwrap(), 0);
        assert!(v4.path_mtu(nowhere).is_err());
        let dest = v4.dest(nowhere, 0, 0, 1).unwrap();
        let mut batch = TxBatch::new();
        (0..10).for_each(|psn| push(&mut batch, &dest, SendMiddle, 1, psn, 64));
        let flushed = batch.flush(clock::now());
        assert_eq!((flushed.sent, flushed.dropped), (0, 10));
    });
}

#[test]
fn socket_that_another_thread_reads_is_reported_busy() {
    in_namespace("udp::socket_that_another_thread_reads_is_reported_busy", || {
        let host = Host::join().unwrap();
        let [endpoint, _] = endpoints(&host);
        let dest = endpoint.dest(endpoint.address(), 0, 0, 0).unwrap();
        let mut batch = TxBatch::new();
        push(&mut batch, &dest, SendMiddle, 0, 0, 64);
        batch.flush(clock::now());
        let mut inner = None;
        eventually("the packet arrives", || {
            let received = endpoint.recv(0, clock::now(), &mut |_| {
                // Another thread, while this one is in the middle of its packets.
                std::thread::scope(|s| {
                    inner =
                        s.spawn(|| endpoint.recv(0, clock::now(), &mut |_| ()).ok()).join().ok().flatten();
                });
            });
            received.unwrap().count() == 1
        });
        assert_eq!(inner, Some(RecvOutcome::Busy));
    });
}

#[test]
fn short_datagrams_are_counted_and_not_handed_on() {
    in_namespace("udp::short_datagrams_are_counted_and_not_handed_on", || {
        let host = Host::join().unwrap();
        let [endpoint, _] = endpoints(&host);
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        for len in [0, 1, 7, 15] {
            socket.send_to(&[0; 16][..len], "127.0.0.1:4791").unwrap();
        }
        eventually("they are counted", || {
            assert_eq!(drain(&endpoint, 0), []);
            endpoint.stats().malformed.load(Ordering::Relaxed) == 3
        });
    });
}

#[test]
fn packets_on_the_wire_carry_the_identification_their_icrc_is_for() {
    in_namespace("udp::packets_on_the_wire_carry_the_identification_their_icrc_is_for", || {
        // Trains are then cut before they reach the interface, as for an adapter without offloads.
        let args = ["link", "set", "lo", "gso_max_segs", "1"];
        assert!(Command::new("ip").args(args).status().unwrap().success());
        let protocol = i32::from((libc::ETH_P_IP as u16).to_be());
        let capture = sys::socket(libc::AF_PACKET, libc::SOCK_DGRAM | libc::SOCK_NONBLOCK).unwrap();
        // SAFETY: all-zero bytes are a valid sockaddr_ll.
        let mut all: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        all.sll_family = libc::AF_PACKET as u16;
        all.sll_protocol = protocol as u16;
        // SAFETY: the address and its length belong together.
        let bound = unsafe {
            libc::bind(capture.raw(), std::ptr::from_ref(&all).cast(), size_of::<libc::sockaddr_ll>() as u32)
        };
        assert_eq!(bound, 0);

        let host = Host::join().unwrap();
        let [endpoint, _] = endpoints(&host);
        let qpn = 0x600_000;
        let dest = endpoint.dest(endpoint.address(), 0, 0, qpn).unwrap();
        let mut batch = TxBatch::new();
        (0..100).for_each(|psn| push(&mut batch, &dest, SendMiddle, qpn, psn, 333));
        assert_eq!(batch.flush(clock::now()).sent, 100);
        let got = receive(&endpoint, qpn, 100);
        assert_eq!(got.iter().map(|g| g.0).collect::<Vec<_>>(), (0..100).collect::<Vec<_>>());

        let flow = Flow::v4(Ipv4Addr::LOCALHOST, Ipv4Addr::LOCALHOST, dest.source_port(), 4791);
        let mut ids = Vec::new();
        let mut buffer = [0; 65536];
        while let Ok(len) = sys::read(capture.raw(), &mut buffer) {
            let (ip, packet) = (&buffer[..20], &buffer[28..len]);
            let id = u16::from_be_bytes([ip[4], ip[5]]);
            assert_eq!((ip[0], ip[6], len), (0x45, 0x40, 20 + 8 + 12 + 336 + 4), "DF, one packet");
            let (covered, icrc) = packet.split_at(packet.len() - 4);
            let mut crc = flow.start(packet.len(), id);
            crc.bth(covered);
            assert_eq!(crc.finish(), icrc, "identification {id}");
            ids.push(id);
        }
        assert_eq!(ids, (0..64).chain(0..36).collect::<Vec<u16>>());
    });
}

#[test]
fn full_send_buffer_drops_and_counts_and_goes_on() {
    in_namespace("udp::full_send_buffer_drops_and_counts_and_goes_on", || {
        // What waits in the interface's queue fills the sender's buffer.
        let queue = "qdisc add dev lo root tbf rate 8mbit burst 70000 limit 100000000";
        if !Command::new("tc").args(queue.split(' ')).status().is_ok_and(|s| s.success()) {
            ferroce_tests::record_skip("this kernel or system has no tbf");
            return;
        }
        let host = Host::join().unwrap();
        let [endpoint, _] = endpoints(&host);
        let qpn = 0x700_000;
        let dest = endpoint.dest(endpoint.address(), 0, 0, qpn).unwrap();
        let mut batch = TxBatch::new();
        let (mut sent, mut dropped) = (0, 0);
        for round in 0..400 {
            (0..60).for_each(|psn| push(&mut batch, &dest, SendMiddle, qpn, round * 60 + psn, 1024));
            let flushed = batch.flush(clock::now());
            assert_eq!(flushed.sent + flushed.dropped, 60);
            (sent, dropped) = (sent + flushed.sent, dropped + flushed.dropped);
        }
        assert!(dropped > 0 && sent > 0, "{sent} sent, {dropped} dropped");
        assert_eq!(endpoint.stats().dropped.load(Ordering::Relaxed), dropped as u64);
        assert!(Command::new("tc").args("qdisc del dev lo root".split(' ')).status().unwrap().success());
        eventually("it sends again", || {
            push(&mut batch, &dest, SendMiddle, qpn, 0, 64);
            batch.flush(clock::now()).sent == 1
        });
    });
}

#[test]
fn packets_cross_a_link_with_ipv4_global_and_link_local_ipv6() {
    in_namespace("udp::packets_cross_a_link_with_ipv4_global_and_link_local_ipv6", || {
        let mut near = Member::start();
        let mut far = Member::start_apart();
        assert_eq!(far.ask("ip link set lo up"), "ok", "it has left for its own namespace");
        assert_eq!(
            near.ask(&format!("ip link add veth0 type veth peer name veth1 netns {}", far.pid())),
            "ok"
        );
        for (member, device, n) in [(&mut near, "veth0", 1), (&mut far, "veth1", 2)] {
            for (address, more) in [
                (format!("10.9.0.{n}/24"), ""),
                (format!("fd09::{n}/64"), " nodad"),
                (format!("fe80::{n}/64"), " nodad"),
            ] {
                assert_eq!(member.ask(&format!("ip address add {address} dev {device}{more}")), "ok");
            }
            assert_eq!(member.ask(&format!("ip link set {device} up")), "ok");
        }
        let slot = far.number("slot");
        let mut arrived = 0;
        for (from, to) in
            [("10.9.0.1", "10.9.0.2"), ("fd09::1", "fd09::2"), ("fe80::1%veth0", "fe80::2%veth1")]
        {
            // Both ends of a link come up a moment after one another.
            eventually("the addresses are usable", || near.ask(&format!("join {from}")) == "ok");
            eventually("the addresses are usable", || far.ask(&format!("join {to}")) == "ok");
            let to = to.replace("veth1", "veth0");
            assert_eq!(near.ask(&format!("path_mtu {from} {to}")), "1500");
            for len in [0, 1024, 1408] {
                assert_eq!(near.ask(&format!("send {from} {to} {slot} 200 {len}")), "200");
                arrived += 200;
                eventually("all packets arrive intact", || far.number("own") == arrived);
            }
            assert_ne!(near.ask(&format!("trains {from}")), "0");
        }
        assert_eq!((far.number("bad"), far.number("foreign")), (0, 0));
    });
}
