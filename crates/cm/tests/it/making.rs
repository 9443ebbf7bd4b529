//! Connections are made, or not.

use super::pair::{Fate, Pair, answer, config, guid, ip, listen, lose_all, lose_first, ms, wanted};
use ferroce_cm::{Cm, CmError, Connect, ConnectionEvent, Event, Handle};
use ferroce_wire::cm::{
    ConnectPath, IpHeader, Message, PortSpace, Reject, RejectReason, Rejected, ServiceId, TransportService,
};
use std::time::Duration;

#[test]
fn what_is_shown_of_connections_is_their_states_and_how_long_they_wait() {
    let mut pair = Pair::listening();
    let begin = pair.now;
    let mine = pair.connect(0x11);
    let shown = |pair: &Pair, side: usize| {
        let status = pair.cms[side].statuses().next().expect("a connection");
        (status.state, status.peer.ip(), status.qpn, status.since.map(|since| since - begin))
    };
    assert_eq!(shown(&pair, 0), ("REQ_SENT", ip(1), 0x11, Some(ms(0))));
    // It is sent again 15 times, each time after 6,144 ms.
    let (peer, rest) = pair.cms[0].unanswered(pair.now, mine).expect("a request");
    assert_eq!((peer.port(), rest), (super::pair::PORT, 16 * ms(6144)));
    pair.run(ms(10));
    let (theirs, _) = pair.request_and_what();
    assert_eq!(shown(&pair, 1), ("REQ_RCVD", ip(0), 0, Some(ms(1))));
    let listeners = pair.cms[1].listeners().map(|(listen, _)| listen.port);
    assert_eq!(listeners.collect::<Vec<_>>(), [super::pair::PORT]);
    pair.accept(theirs);
    pair.run(ms(10));
    assert_eq!(shown(&pair, 0).0, "REP_RCVD");
    assert_eq!(pair.cms[0].unanswered(pair.now, mine), None);
    pair.establish(mine);
    pair.run(ms(10));
    for side in [0, 1] {
        let (state, _, _, since) = shown(&pair, side);
        assert_eq!((state, since), ("ESTABLISHED", None));
    }
}

#[test]
fn a_connection_is_made_by_three_messages() {
    let mut pair = Pair::listening();
    let mine = pair.connect(0x11);
    pair.run(ms(10));
    let (theirs, request) = pair.request_and_what();
    assert_eq!((request.qpn, request.starting_psn, request.responder_resources), (0x11, 0x1234, 7));
    assert_eq!((request.path_mtu, request.retry_count, request.rnr_retry_count), (3, 4, 3));
    assert_eq!(&request.private_data[36..41], b"hello");
    let primary = ConnectPath {
        local_lid: 0xffff,
        remote_lid: 0xffff,
        local_gid: super::pair::address(0).gid(),
        remote_gid: super::pair::address(1).gid(),
        flow_label: 0x1_2345,
        traffic_class: 8,
        hop_limit: 64,
        ack_timeout: 19,
        ..ConnectPath::NONE
    };
    assert_eq!((request.primary, request.alternate), (primary, ConnectPath::NONE));
    pair.accept(theirs);
    pair.run(ms(10));
    pair.expect(0, mine, |h| {
        let ConnectionEvent::Reply(reply) = h else { return false };
        assert_eq!((reply.qpn, reply.starting_psn, reply.ca_guid), (0x22, 0x4321, guid(1)));
        assert_eq!(&reply.private_data[..7], b"welcome");
        true
    });
    pair.expect_silence();
    pair.establish(mine);
    pair.run(ms(10));
    pair.expect(1, theirs, |h| *h == ConnectionEvent::Established);
    assert_eq!(pair.traffic(), [(0, "REQ"), (1, "REP"), (0, "RTU")]);
    let transactions: Vec<u64> = pair.sent.iter().map(|(.., mad)| mad.transaction).collect();
    assert!(transactions.iter().all(|t| *t == transactions[0]), "{transactions:?}");
    // Nothing more happens.
    pair.run(Duration::from_secs(1000));
    pair.expect_silence();
    assert_eq!(pair.sent.len(), 3);
}

#[test]
fn a_request_without_answer_is_sent_16_times_in_98_seconds() {
    let mut pair = Pair::listening();
    pair.judge = lose_all(&["REQ"]);
    let mine = pair.connect(0x11);
    pair.run(Duration::from_secs(98));
    pair.expect_silence();
    pair.run(Duration::from_secs(1));
    pair.expect(0, mine, |h| *h == ConnectionEvent::Unreachable);
    let times = pair.times(0, "REQ");
    assert_eq!(times, (0..16).map(|n| n * 6144).collect::<Vec<_>>());
    // A peer that may have got a REQ gets a REJ.
    assert_eq!(pair.traffic()[16..], [(0, "REJ")]);
    pair.destroy(0, mine);
    assert_eq!(pair.cms[0].count(), 0);
}

#[test]
fn a_request_can_be_sent_again_before_its_time() {
    let mut pair = Pair::listening();
    pair.judge = lose_first("REQ");
    pair.connect(0x11);
    pair.run(ms(100));
    pair.expect_silence();
    let now = pair.now;
    pair.cms[0].ask_again(now, |route| *route == super::pair::route(0));
    pair.run(ms(110));
    pair.request();
    assert_eq!(pair.times(0, "REQ"), [0, 200]);
}

#[test]
fn lost_messages_come_again() {
    for what in ["REQ", "REP", "RTU"] {
        let mut pair = Pair::listening();
        pair.judge = lose_first(what);
        let mine = pair.connect(0x11);
        pair.run(ms(6200));
        let theirs = pair.request();
        pair.accept(theirs);
        pair.run(ms(if what == "REP" { 4200 } else { 10 }));
        pair.expect(0, mine, |h| matches!(h, ConnectionEvent::Reply(_)));
        pair.establish(mine);
        pair.run(ms(4200));
        pair.expect(1, theirs, |h| *h == ConnectionEvent::Established);
        pair.run(ms(100_000));
        pair.expect_silence();
    }
}

#[test]
fn a_reply_without_answer_is_given_up_as_the_request_says() {
    let mut pair = Pair::listening();
    pair.judge = lose_all(&["REP", "RTU"]);
    pair.connect(0x11);
    pair.run(ms(10));
    let theirs = pair.request();
    pair.sent.clear();
    pair.accept(theirs);
    pair.run(Duration::from_secs(66));
    pair.expect(1, theirs, |h| *h == ConnectionEvent::Unreachable);
    assert_eq!(pair.times(1, "REP"), (0..16).map(|n| n * 4096).collect::<Vec<_>>());
    // The side that asked gets a REJ, and doesn't wait in vain.
    assert!(
        matches!(pair.events[0][..], [Event::Of(_, ConnectionEvent::Rejected(_))]),
        "{:?}",
        pair.events[0]
    );
}

#[test]
fn repetitions_change_nothing() {
    let mut pair = Pair::listening();
    pair.judge = Box::new(|_| Fate::Twice);
    let mine = pair.connect(0x11);
    pair.run(ms(10));
    let theirs = pair.request();
    // The program thinks: the second request is answered by a plea for time.
    assert_eq!(pair.traffic(), [(0, "REQ"), (1, "MRA")]);
    pair.accept(theirs);
    pair.run(ms(10));
    pair.expect(0, mine, |h| matches!(h, ConnectionEvent::Reply(_)));
    pair.establish(mine);
    pair.run(ms(10));
    pair.expect(1, theirs, |h| *h == ConnectionEvent::Established);
    pair.expect_silence();
}

#[test]
fn who_has_accepted_may_reject_until_the_peer_is_ready() {
    let mut pair = Pair::listening();
    let [mine, theirs] = pair.answered();
    pair.cms[1].reject(theirs, RejectReason::CONSUMER, b"no").expect("rejected");
    pair.run(ms(10));
    pair.expect(
        0,
        mine,
        |h| matches!(h, ConnectionEvent::Rejected(reject) if reject.private_data.starts_with(b"no")),
    );
    pair.run(ms(20_000));
    pair.expect_silence();
}

#[test]
fn who_is_not_wanted_is_rejected() {
    let reason = |wanted: &Connect<'_>| {
        let mut pair = Pair::listening();
        pair.cms[0].connect(pair.now, wanted).expect("a request");
        pair.run(ms(10));
        assert_eq!(pair.cms[1].count(), 0);
        match pair.events[0].pop() {
            Some(Event::Of(_, ConnectionEvent::Rejected(reject))) => reject.reason,
            other => panic!("{other:?}"),
        }
    };
    let good = wanted(0x11);
    let port = |space, port| Connect { service_id: ServiceId::of_port(space, port), ..good };
    assert_eq!(reason(&port(PortSpace::Tcp, 1)), RejectReason::INVALID_SERVICE_ID);
    assert_eq!(reason(&port(PortSpace::Udp, 7174)), RejectReason::INVALID_SERVICE_ID);
    let id = ServiceId(0x1_0106_0000 | 7174);
    assert_eq!(reason(&Connect { service_id: id, ..good }), RejectReason::INVALID_SERVICE_ID);
    assert_eq!(reason(&Connect { header: None, ..good }), RejectReason::CONSUMER);
    let elsewhere = IpHeader { source: (ip(0), 1).into(), destination: ip(5) };
    assert_eq!(reason(&Connect { header: Some(elsewhere), ..good }), RejectReason::CONSUMER);
    let with_qp = |change: fn(&mut ferroce_cm::ConnectionQp)| {
        let mut wanted = good;
        change(&mut wanted.qp);
        reason(&wanted)
    };
    assert_eq!(with_qp(|qp| qp.transport = TransportService::Uc), RejectReason::CONSUMER);
    assert_eq!(with_qp(|qp| qp.pkey = 0x1234), RejectReason::INVALID_GID);
}

#[test]
fn the_program_rejects_with_its_data() {
    let mut pair = Pair::listening();
    let mine = pair.connect(0x11);
    pair.run(ms(10));
    let theirs = pair.request();
    pair.cms[1].reject(theirs, RejectReason::CONSUMER, b"no").expect("rejected");
    pair.run(ms(10));
    pair.expect(0, mine, |h| {
        let ConnectionEvent::Rejected(reject) = h else { return false };
        reject.reason == RejectReason::CONSUMER && reject.private_data.starts_with(b"no\0")
    });
    let late = pair.cms[1].accept(pair.now, theirs, &answer());
    assert!(matches!(late, Err(CmError::State { .. })), "{late:?}");
    pair.destroy(0, mine);
    pair.destroy(1, theirs);
    pair.run(ms(100_000));
    assert_eq!((pair.cms[0].count(), pair.cms[1].count()), (0, 0));
    assert_eq!(pair.traffic(), [(0, "REQ"), (1, "REJ")]);
}

#[test]
fn a_reply_can_be_rejected() {
    let mut pair = Pair::listening();
    let [mine, theirs] = pair.answered();
    pair.cms[0].reject(mine, RejectReason::CONSUMER, b"").expect("rejected");
    pair.run(ms(10));
    pair.expect(1, theirs, |h| matches!(h, ConnectionEvent::Rejected(r) if r.rejected == Rejected::Reply));
    pair.run(ms(100_000));
    pair.expect_silence();
}

#[test]
fn a_request_that_is_given_up_can_not_be_accepted() {
    let mut pair = Pair::listening();
    let mine = pair.connect(0x11);
    pair.run(ms(10));
    let theirs = pair.request();
    pair.destroy(0, mine);
    pair.run(ms(10));
    pair.expect_silence();
    assert!(pair.cms[1].accept(pair.now, theirs, &answer()).is_err());
    // If the REJ is lost, the REP is rejected.
    let mut pair = Pair::listening();
    pair.judge = lose_all(&["REJ"]);
    let mine = pair.connect(0x11);
    pair.run(ms(10));
    let theirs = pair.request();
    pair.destroy(0, mine);
    pair.judge = Box::new(|_| Fate::Arrives);
    pair.accept(theirs);
    pair.run(ms(10));
    pair.expect(
        1,
        theirs,
        |h| matches!(h, ConnectionEvent::Rejected(r) if r.reason == RejectReason::INVALID_COMM_ID),
    );
}

#[test]
fn a_full_backlog_drops_silently_and_has_room_again() {
    let mut pair = Pair::new();
    pair.listen(2);
    for qpn in 0..3 {
        pair.connect(qpn);
    }
    pair.run(ms(10));
    assert_eq!(pair.events[1].len(), 2);
    assert!(!pair.traffic().iter().any(|(side, _)| *side == 1), "{:?}", pair.traffic());
    pair.request();
    pair.request();
    pair.run(ms(6200));
    // The third one has come again; the others are known.
    assert_eq!(pair.request_and_what().1.qpn, 2);
    pair.expect_silence();
}

#[test]
fn a_qpn_that_comes_again_ends_the_old_connection() {
    let mut pair = Pair::listening();
    let [_, theirs] = pair.connected();
    // The asking process has died, and another one has its number.
    pair.cms[0] = Cm::new(ferroce_cm::Config { first_id: 0x999, ..config(0) });
    let mine = pair.connect(0x11);
    pair.run(ms(10));
    pair.expect(
        0,
        mine,
        |h| matches!(h, ConnectionEvent::Rejected(r) if r.reason == RejectReason::STALE_CONNECTION),
    );
    pair.expect(1, theirs, |h| *h == ConnectionEvent::Disconnected { timed_out: false });
    assert_eq!(pair.traffic(), [(0, "REQ"), (1, "REJ"), (1, "DREQ"), (0, "DREP")]);
    // The next one is new.
    pair.connect(0x11);
    pair.run(ms(10));
    pair.request();
}

#[test]
fn data_may_say_that_the_peer_is_ready() {
    let mut pair = Pair::listening();
    pair.judge = lose_all(&["RTU"]);
    let mine = pair.connect(0x11);
    pair.run(ms(10));
    let theirs = pair.request();
    let state = |pair: &mut Pair, handle| pair.cms[1].notify_established(handle);
    assert!(matches!(state(&mut pair, theirs), Err(CmError::State { .. })));
    pair.accept(theirs);
    pair.run(ms(10));
    pair.expect(0, mine, |h| matches!(h, ConnectionEvent::Reply(_)));
    pair.establish(mine);
    assert_eq!(state(&mut pair, theirs), Ok(()));
    assert_eq!(state(&mut pair, theirs), Err(CmError::Established));
    pair.pump();
    pair.expect(1, theirs, |h| *h == ConnectionEvent::Established);
}

#[test]
fn too_much_private_data_is_refused() {
    let mut pair = Pair::listening();
    let long = [1; 300];
    let connect = |pair: &mut Pair, length| {
        pair.cms[0].connect(pair.now, &Connect { private_data: &long[..length], ..wanted(1) })
    };
    assert!(connect(&mut pair, 56).is_ok());
    assert_eq!(connect(&mut pair, 57), Err(CmError::PrivateData { given: 57, most: 56 }));
    pair.run(ms(10));
    let theirs = pair.request();
    let accept = |pair: &mut Pair, length| {
        let answer = ferroce_cm::Accept { private_data: &long[..length], ..answer() };
        pair.cms[1].accept(pair.now, theirs, &answer)
    };
    assert_eq!(accept(&mut pair, 197), Err(CmError::PrivateData { given: 197, most: 196 }));
    let reject = pair.cms[1].reject(theirs, RejectReason::CONSUMER, &long[..149]);
    assert_eq!(reject, Err(CmError::PrivateData { given: 149, most: Reject::PRIVATE_DATA }));
    assert_eq!(accept(&mut pair, 196), Ok(()));
}

#[test]
fn no_more_connections_than_allowed() {
    let mut pair = Pair::listening();
    for qpn in 0..64 {
        pair.connect(qpn);
    }
    assert_eq!(pair.cms[0].connect(pair.now, &wanted(65)), Err(CmError::TooMany { most: 64 }));
    let handles: Vec<Handle> = pair
        .sent
        .iter()
        .filter_map(|(.., mad)| match &mad.message {
            Message::Request(request) => Some(Handle(request.local_comm_id)),
            _ => None,
        })
        .collect();
    assert!(handles.iter().all(|handle| handle.0 >> 20 == config(0).id_prefix >> 20));
    for handle in handles {
        pair.destroy(0, handle);
    }
    assert_eq!(pair.cms[0].count(), 0);
    assert!(pair.cms[0].poll_timeout().is_none());
    pair.connect(66);
}

#[test]
fn the_listener_of_the_address_comes_before_that_of_all() {
    let mut cm = Cm::new(config(1));
    let any = cm.listen(ferroce_cm::Listen { address: "0.0.0.0".parse().expect("an address"), ..listen(4) });
    let exact = cm.listen(listen(4));
    let mut pair = Pair::new();
    pair.cms[1] = cm;
    for wanted in [exact, any] {
        pair.connect(wanted.0 as u32 + 1);
        pair.run(ms(10));
        let Some(Event::Request { listener, .. }) = pair.events[1].pop() else { panic!("no request") };
        assert_eq!(listener, wanted);
        pair.cms[1].stop_listening(exact);
    }
    pair.cms[1].stop_listening(any);
    pair.connect(9);
    pair.run(ms(10));
    assert!(pair.events[1].is_empty());
    assert_eq!(pair.sent.last().expect("a message").2.message.name(), "REJ");
}
