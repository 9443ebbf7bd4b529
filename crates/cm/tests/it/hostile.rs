//! MADs from strangers and from peers that are out of their minds.

use super::pair::{Fate, Pair, address, answer, config, ip, listen, ms, wanted};
use ferroce_cm::{Cm, Config, ConnectionEvent, Event};
use ferroce_types::HostAddr;
use ferroce_wire::cm::{MAD_LEN, Mad, Message};
use proptest::prelude::*;
use std::time::Duration;

#[test]
fn a_flood_of_requests_is_bounded_and_the_listener_goes_on() {
    let mut cm = Cm::new(Config { max_connections: 4096, ..config(1) });
    cm.listen(listen(1024));
    let mut client = Pair::new();
    client.judge = Box::new(|_| Fate::Lost);
    client.connect(1);
    let (.., mad) = client.sent[0];
    let Message::Request(request) = mad.message else { panic!("a request") };
    let mut answers = 0;
    for n in 0..100_000_u32 {
        let request = ferroce_wire::cm::Request { local_comm_id: n + 1, qpn: n + 1, ..request };
        let mad = Mad { transaction: 0, message: Message::Request(request) };
        cm.handle(ms(u64::from(n)), address(0), address(1), &mad);
        while cm.poll_transmit().is_some() {
            answers += 1;
        }
        assert!(cm.count() <= 1024);
    }
    assert_eq!(answers, 0);
    let mut events = 0;
    while let Some(Event::Request { handle, .. }) = cm.poll_event() {
        events += 1;
        cm.take(handle);
        cm.destroy(ms(0), handle);
    }
    assert_eq!((events, cm.count()), (1024, 0));
}

#[test]
fn strangers_can_not_interfere() {
    let mut pair = Pair::listening();
    let handles = pair.connected();
    pair.judge = Box::new(|_| Fate::Lost);
    pair.disconnect(0, handles[0]);
    let (.., mad) = pair.sent[0];
    let stranger = HostAddr::new("10.0.0.9".parse().expect("an address"), 0);
    let now = pair.now;
    pair.cms[1].handle(now, stranger, address(1), &mad);
    assert!(pair.cms[1].poll_event().is_none() && pair.cms[1].poll_transmit().is_none());
    // A request in another's name is refused, with a REJ to its sender, not to the other.
    let now = pair.now;
    pair.cms[0].connect(now, &wanted(0x12)).expect("a request");
    let transmit = pair.cms[0].poll_transmit().expect("a message");
    pair.cms[1].handle(now, stranger, address(1), &transmit.mad);
    assert!(pair.cms[1].poll_event().is_none());
    let answer = pair.cms[1].poll_transmit().expect("an answer");
    assert_eq!((answer.from, answer.to), (address(1), stranger));
}

/// Changes to MADs of a connection: which one, at which byte, to what.
type Changes = Vec<(usize, usize, u8)>;

/// All MADs that two sides exchange in a life.
fn life() -> Vec<(usize, [u8; MAD_LEN])> {
    let mut pair = Pair::listening();
    let mut all = Vec::new();
    let [mine, theirs] = {
        let mine = pair.connect(0x11);
        pair.run(ms(10));
        let theirs = pair.request();
        pair.accept(theirs);
        pair.run(ms(10));
        pair.establish(mine);
        pair.run(ms(10));
        [mine, theirs]
    };
    pair.disconnect(1, theirs);
    pair.run(ms(10));
    pair.disconnect(0, mine);
    pair.run(ms(10));
    all.extend(pair.sent.iter().map(|(_, side, mad)| (*side, mad.emit())));
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Nothing panics, everything stays bounded, and no answer is larger than its question, whatever comes in whatever state.
    #[test]
    fn any_mads_in_any_state_do_no_harm(
        changes in proptest::collection::vec((0_usize..6, 0_usize..MAD_LEN, any::<u8>()), 1..200),
        attributes in proptest::collection::vec(0x0f_u8..0x1c, 1..50),
        steps in 0_usize..4,
    ) {
        let changes: Changes = changes;
        let life = life();
        let mut pair = Pair::listening();
        let mine = pair.connect(0x11);
        pair.run(ms(10));
        let theirs = pair.request();
        if steps > 0 {
            pair.accept(theirs);
            pair.run(ms(10));
        }
        if steps > 1 {
            pair.establish(mine);
            pair.run(ms(10));
        }
        if steps > 2 {
            pair.disconnect(0, mine);
        }
        for (at, &(which, byte, value)) in changes.iter().enumerate() {
            let (side, mut mad) = life[which % life.len()];
            mad[byte] = value;
            if at % 3 == 0 {
                mad[17] = attributes[at % attributes.len()];
            }
            let now = pair.now;
            for (from, cm) in [(side, 1 - side), (1 - side, side)] {
                let cm = &mut pair.cms[cm];
                if let Ok(mad) = Mad::parse(&mad) {
                    cm.handle(now, address(from), address(1 - from), &mad);
                }
                let mut answers = 0;
                while let Some(transmit) = cm.poll_transmit() {
                    prop_assert_eq!(transmit.to, address(from));
                    answers += 1;
                }
                // A stale connection is ended besides.
                prop_assert!(answers <= 2);
                prop_assert!(cm.count() <= 16);
            }
            pair.now += Duration::from_millis(u64::from(value));
            let now = pair.now;
            pair.cms.iter_mut().for_each(|cm| cm.handle_timeout(now));
            while let Some(event) = pair.cms[1].poll_event() {
                match event {
                    // A program that takes everything and accepts half of it.
                    Event::Request { handle, .. } if at % 2 == 0 => {
                        let _ = pair.cms[1].accept(now, handle, &answer());
                    }
                    Event::Request { handle, .. } => pair.cms[1].destroy(now, handle),
                    Event::Of(handle, ConnectionEvent::Disconnected { .. }) => pair.cms[1].destroy(now, handle),
                    _ => {}
                }
            }
            while pair.cms[0].poll_event().is_some() {}
            pair.cms.iter_mut().for_each(|cm| while cm.poll_transmit().is_some() {});
        }
        // The listener goes on serving.
        pair.run(Duration::from_secs(300));
        pair.events[1].clear();
        pair.connect(0x7777);
        pair.run(ms(10));
        let is_new = |e: &Event| matches!(e, Event::Request { request, .. } if request.qpn == 0x7777);
        prop_assert!(pair.events[1].iter().any(is_new), "{:?}", pair.events[1]);
    }

    #[test]
    fn random_bytes_do_no_harm(mads in proptest::collection::vec(proptest::collection::vec(any::<u8>(), MAD_LEN), 1..50)) {
        let mut cm = Cm::new(config(1));
        cm.listen(listen(4));
        for mut mad in mads {
            mad[..4].copy_from_slice(&[1, 7, 2, 3]);
            mad[16] = 0;
            mad[17] = 0x10 + mad[17] % 12;
            if let Ok(mad) = Mad::parse(&mad) {
                cm.handle(ms(1), HostAddr::new(ip(0), 0), address(1), &mad);
            }
        }
        prop_assert!(cm.count() <= 4);
    }
}
