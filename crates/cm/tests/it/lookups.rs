//! Datagram services are looked up.

use super::pair::{PORT, Pair, ip, lose_all, lose_first, ms, route};
use ferroce_cm::{CmError, ConnectionEvent, Event, Handle, Listen, Lookup, LookupReply};
use ferroce_wire::cm::{Ece, IpHeader, PortSpace, ServiceId, SidrReply, SidrStatus};
use std::time::Duration;

fn listening() -> Pair {
    let mut pair = Pair::new();
    pair.cms[1].listen(Listen { space: PortSpace::Udp, transport: None, ..super::pair::listen(8) });
    pair
}

fn wanted() -> Lookup<'static> {
    Lookup {
        route: route(0),
        service_id: ServiceId::of_port(PortSpace::Udp, PORT),
        header: Some(IpHeader { source: (ip(0), 40000).into(), destination: ip(1) }),
        pkey: 0xffff,
        private_data: b"where",
    }
}

fn answer() -> LookupReply<'static> {
    LookupReply {
        status: SidrStatus::SUCCESS,
        qpn: 0x33,
        qkey: 0x0123_4567,
        ece: Ece::default(),
        private_data: b"here",
    }
}

fn lookup(pair: &mut Pair) -> Handle {
    let handle = pair.cms[0].lookup(pair.now, &wanted()).expect("a lookup");
    pair.run(ms(10));
    handle
}

fn incoming(pair: &mut Pair) -> Handle {
    match pair.events[1].remove(0) {
        Event::Lookup { handle, request, .. } => {
            assert_eq!(&request.private_data[36..41], b"where");
            pair.cms[1].take(handle);
            handle
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_lookup_is_answered() {
    let mut pair = listening();
    let mine = lookup(&mut pair);
    let theirs = incoming(&mut pair);
    pair.cms[1].answer(theirs, &answer()).expect("answered");
    pair.run(ms(10));
    pair.expect(0, mine, |h| {
        let ConnectionEvent::Answer(reply) = h else { return false };
        (reply.status, reply.qpn, reply.qkey) == (SidrStatus::SUCCESS, 0x33, 0x0123_4567)
            && reply.private_data.starts_with(b"here\0")
    });
    assert!(matches!(pair.cms[1].answer(theirs, &answer()), Err(CmError::State { .. })));
    pair.destroy(0, mine);
    pair.destroy(1, theirs);
    pair.run(ms(100_000));
    pair.expect_silence();
    assert_eq!((pair.cms[0].count(), pair.cms[1].count()), (0, 0));
    assert_eq!(pair.traffic(), [(0, "SIDR_REQ"), (1, "SIDR_REP")]);
}

#[test]
fn lost_lookups_and_answers_come_again() {
    let mut pair = listening();
    pair.judge = lose_first("SIDR_REQ");
    let mine = lookup(&mut pair);
    pair.run(ms(4200));
    let theirs = incoming(&mut pair);
    pair.judge = lose_first("SIDR_REP");
    pair.cms[1].answer(theirs, &answer()).expect("answered");
    pair.run(ms(4200));
    // It has come once more, as a new one.
    let theirs = incoming(&mut pair);
    pair.cms[1].answer(theirs, &answer()).expect("answered");
    pair.run(ms(10));
    pair.expect(0, mine, |h| matches!(h, ConnectionEvent::Answer(_)));
}

#[test]
fn a_lookup_that_waits_is_kept_once() {
    let mut pair = listening();
    lookup(&mut pair);
    let theirs = incoming(&mut pair);
    pair.run(ms(30_000));
    pair.expect_silence();
    pair.destroy(1, theirs);
    pair.run(ms(10));
    let Some(Event::Of(_, ConnectionEvent::Answer(reply))) = pair.events[0].pop() else {
        panic!("no answer")
    };
    assert_eq!(reply.status, SidrStatus::REJECT);
}

#[test]
fn nobody_is_there() {
    let mut pair = Pair::new();
    let mine = lookup(&mut pair);
    pair.expect(0, mine, |h| matches!(h, ConnectionEvent::Answer(r) if r.status == SidrStatus::UNSUPPORTED));
    let mut pair = listening();
    pair.judge = lose_all(&["SIDR_REQ"]);
    let mine = lookup(&mut pair);
    pair.run(Duration::from_secs(66));
    pair.expect(0, mine, |h| *h == ConnectionEvent::Unreachable);
    assert_eq!(pair.times(0, "SIDR_REQ"), (0..16).map(|n| n * 4096).collect::<Vec<_>>());
}

#[test]
fn too_much_private_data_is_refused() {
    let mut pair = listening();
    let long = [1; 300];
    let most = pair.cms[0].lookup(pair.now, &Lookup { private_data: &long[..180], ..wanted() });
    assert!(most.is_ok());
    let more = pair.cms[0].lookup(pair.now, &Lookup { private_data: &long[..181], ..wanted() });
    assert_eq!(more, Err(CmError::PrivateData { given: 181, most: 180 }));
    pair.run(ms(10));
    let Some(Event::Lookup { handle, .. }) = pair.events[1].pop() else { panic!("no lookup") };
    let more = pair.cms[1].answer(handle, &LookupReply { private_data: &long[..137], ..answer() });
    assert_eq!(more, Err(CmError::PrivateData { given: 137, most: SidrReply::PRIVATE_DATA }));
}
