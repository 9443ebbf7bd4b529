//! What completions contain besides.

use crate::fixture::Fixture;
use ferroce::Kind;
use ferroce::verbs::{Send, Timestamp, WallClock};
use std::time::{Duration, SystemTime};

pub fn stamped(fixture: &impl Fixture) {
    let [a, b] = fixture.devices().map(|device| device.open().unwrap());
    let made = (a.cq_with::<(Timestamp, WallClock)>(32), b.cq_with::<Timestamp>(32));
    let (mut a_cq, mut b_cq) = match made {
        (Ok(a_cq), Ok(b_cq)) => (a_cq, b_cq),
        (a_cq, b_cq) => {
            // `rdma_rxe` has no clock.
            assert!(fixture.is_foreign());
            for error in [a_cq.err(), b_cq.err()].into_iter().flatten() {
                assert!([Kind::Unsupported, Kind::Invalid].contains(&error.kind()), "{error}");
            }
            return;
        }
    };
    let a_setup = a.rc(&a_cq).build().unwrap();
    let mut b_setup = b.rc(&b_cq).build().unwrap();
    for tag in 0..4 {
        b_setup.recv(tag, b.alloc(8).unwrap()).unwrap();
    }
    let (a_end, b_end) = (a_setup.endpoint(), b_setup.endpoint());
    let (mut a_qp, _b_qp) = (a_setup.connect(&b_end).unwrap(), b_setup.connect(&a_end).unwrap());
    let mut last = (Timestamp(0), WallClock(0), Timestamp(0));
    for round in 0..4_u32 {
        let mut buffer = a.alloc(8).unwrap();
        buffer.fill(b"stamped!");
        a_qp.post(1, Send::new(buffer).imm(round)).unwrap();
        let mut received = b_cq.next(None).unwrap().unwrap();
        received.result().unwrap();
        assert_eq!((received.imm(), received.len()), (Some(round), 8));
        assert_eq!(&received.take().buffer().unwrap()[..], b"stamped!");
        let at_b = received.extra();
        let sent = a_cq.next(None).unwrap().unwrap();
        sent.result().unwrap();
        let (at_a, wall) = sent.extra();
        assert!(at_a > last.0 && wall > last.1 && at_b > last.2, "{at_a:?} {wall:?} {at_b:?} after {last:?}");
        last = (at_a, wall, at_b);
    }
    if !fixture.devices()[0].name().starts_with("sim_") {
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap();
        assert!(now - Duration::from_nanos(last.1.0) < Duration::from_secs(60), "{now:?} and {last:?}");
    }
    // An empty poll ends, too.
    assert!(a_cq.poll().unwrap().next().is_none());
    assert!(!b_cq.wait(Some(Duration::from_millis(1))).unwrap());
}
