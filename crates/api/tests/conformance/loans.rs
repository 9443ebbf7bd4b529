//! Memory that is lent to a peer (rules S6, S8).

use crate::fixture::{Fixture, Side, connected, large};
use ferroce::verbs::{Lend, Loan, Operated, Read, Send, Write};
use ferroce::{Buffer, Inline, Kind, Remote, Status, rights};
use ferroce_tests::random::Random;
use std::time::Duration;

fn lend<A: rights::Right>(side: &mut Side, buffer: Buffer, rights: A) -> Loan<A> {
    side.qp.post(900, Lend::new(buffer, rights)).unwrap();
    let mut lent = side.cq.next(None).unwrap().unwrap();
    assert_eq!((lent.tag(), lent.what()), (900, Operated::Lent));
    lent.loan().unwrap()
}

/// The refusal itself may be lost.
fn is_refusal(status: Status) -> bool {
    [Status::RemoteAccess, Status::RetriesExceeded, Status::RemoteRequest].contains(&status)
}

/// Whether the device has loans. If it hasn't, it refuses them, and gives the buffer back.
fn has_loans(fixture: &impl Fixture) -> bool {
    if !fixture.is_foreign() {
        return true;
    }
    let [mut a, _b] = connected(fixture);
    let failed = a.qp.post(1, Lend::new(a.domain.alloc(64).unwrap(), rights::Read)).unwrap_err();
    assert_eq!((failed.error.kind(), failed.error.verb()), (Kind::Unsupported, "post"));
    assert!(failed.error.to_string().contains("memory windows"), "{}", failed.error);
    assert_eq!(failed.back.into_buffer().capacity(), 64);
    false
}

/// Posts a request, and waits for its end.
macro_rules! carry_out {
    ($side:expr, $request:expr) => {{
        $side.qp.post(901, $request).unwrap();
        $side.cq.next(None).unwrap().unwrap().result()
    }};
}

pub fn returned(fixture: &impl Fixture) {
    if !has_loans(fixture) {
        return;
    }
    let [mut a, mut b] = connected(fixture);
    a.qp.recv(1, a.domain.alloc(16).unwrap()).unwrap();
    let block = a.domain.alloc(large(20_000)).unwrap();
    let loan = lend(&mut a, block, rights::Write);
    let token = loan.token();
    assert_eq!((token.len(), loan.is_returned()), (large(20_000) as u64, false));
    let loan = loan.returned().unwrap_err();
    let mut bytes = b.domain.alloc(large(20_000)).unwrap();
    bytes.iter_mut().enumerate().for_each(|(at, byte)| *byte = at as u8);
    carry_out!(b, Write::new(bytes, token)).unwrap();
    carry_out!(b, Send::new(Inline::from(b"yours")).returning(token)).unwrap();
    // The loan returns when the completion is taken from the adapter: later, the number of the queue pair may be another one's.
    assert!(a.cq.wait(None).unwrap() && loan.is_returned());
    let mut received = a.cq.next(None).unwrap().unwrap();
    received.result().unwrap();
    assert_eq!((received.what(), received.imm()), (Operated::Received, None));
    assert_eq!(received.returned(), Some(token.key()));
    assert_eq!(&received.take().buffer().unwrap()[..], b"yours");
    let mut block = loan.returned().unwrap();
    assert!(block.len() == large(20_000) && block.iter().enumerate().all(|(at, byte)| *byte == at as u8));
    // The token leads nowhere.
    block.fill(b"private");
    let fault = carry_out!(b, Write::new(Inline::from(b"late"), token.slice(..4))).unwrap_err();
    assert!(is_refusal(fault.status()), "{fault}");
    assert_eq!(&block[..], b"private");
}

pub fn again(fixture: &impl Fixture) {
    if !has_loans(fixture) {
        return;
    }
    // A window has 256 keys.
    let rounds = large(300);
    let [mut a, mut b] = connected(fixture);
    let pool = a.domain.pool(2, 64).unwrap();
    let mut last = None;
    for round in 0..rounds {
        let mut block = pool.try_take().unwrap();
        block.fill(&(round as u64).to_ne_bytes());
        let loan = lend(&mut a, block, rights::Read);
        let token = loan.token();
        assert_ne!(Some(token.key()), last);
        last = Some(token.key());
        a.qp.recv(1, ()).unwrap();
        b.qp.post(2, Read::new(b.domain.alloc(8).unwrap(), token.slice(..8))).unwrap();
        b.qp.post(3, Send::new(()).returning(token).fence()).unwrap();
        let read = b.cq.next(None).unwrap().unwrap().buffer().unwrap().unwrap();
        assert_eq!(read[..], (round as u64).to_ne_bytes());
        b.cq.next(None).unwrap().unwrap().result().unwrap();
        assert_eq!(a.cq.next(None).unwrap().unwrap().returned(), Some(token.key()));
        assert_eq!(loan.returned().unwrap().len(), 64);
    }
    assert_eq!(pool.free(), 2);
}

pub fn recalled(fixture: &impl Fixture) {
    if !has_loans(fixture) {
        return;
    }
    let [mut a, mut b] = connected(fixture);
    let block = a.domain.alloc(large(1 << 16)).unwrap();
    let loan = lend(&mut a, block, rights::Write);
    let token = loan.token();
    for _ in 0..8 {
        let mut bytes = b.domain.alloc(large(1 << 16)).unwrap();
        bytes.iter_mut().for_each(|byte| *byte = 0xee);
        b.qp.post(1, Write::new(bytes, token)).unwrap();
    }
    // WRITEs are under way, or have come.
    assert!(!a.cq.wait(Some(Duration::from_micros(10))).unwrap());
    let mut block = loan.recall();
    block.fill(&vec![0x11; large(1 << 16)]);
    let mut faults = 0;
    for _ in 0..8 {
        let done = b.cq.next(None).unwrap().unwrap();
        if let Err(fault) = done.result() {
            faults += 1;
            let expected = [Status::RemoteAccess, Status::RetriesExceeded, Status::Flushed];
            assert!(expected.contains(&fault.status()), "{fault}");
        }
    }
    // Without delays, they had come.
    assert!(faults > 0 || fixture.is_quick() || !fixture.loses());
    assert!(!a.cq.wait(Some(Duration::from_millis(50))).unwrap());
    assert!(block.iter().all(|byte| *byte == 0x11), "written after the recall");
}

pub fn rights_of_loans(fixture: &impl Fixture) {
    if !has_loans(fixture) {
        return;
    }
    for forged in [true, false] {
        let [mut a, mut b] = connected(fixture);
        let mut block = a.domain.alloc(64).unwrap();
        block.fill(&[3; 64]);
        let loan = lend(&mut a, block, rights::Read);
        let mut token = loan.token().to_bytes();
        if forged {
            // As if it had the right to write.
            token[1] = 0b111;
            let token = Remote::<rights::Write>::from_bytes(token).unwrap();
            let fault = carry_out!(b, Write::new(Inline::from(b"forged"), token.slice(..6))).unwrap_err();
            assert!(is_refusal(fault.status()), "{fault}");
        } else {
            // As if it were longer.
            token[16..].copy_from_slice(&65_u64.to_be_bytes());
            let token = Remote::<rights::Read>::from_bytes(token).unwrap();
            let fault = carry_out!(b, Read::new(b.domain.alloc(65).unwrap(), token)).unwrap_err();
            assert!(is_refusal(fault.status()), "{fault}");
        }
        assert_eq!(loan.recall()[..], [3; 64]);
    }
}

pub fn of_another(fixture: &impl Fixture) {
    if !has_loans(fixture) {
        return;
    }
    let [mut a, _b] = connected(fixture);
    // Another connection to the same domain.
    let device = fixture.devices()[1];
    let domain = device.open().unwrap();
    let (mut cq, a_cq) = (domain.cq(64).unwrap(), a.domain.cq(64).unwrap());
    let setup = domain.rc(&cq).build().unwrap();
    let a_setup = a.domain.rc(&a_cq).build().unwrap();
    let (own, end) = (setup.endpoint(), a_setup.endpoint());
    let (mut other, _a_other) = (setup.connect(&end).unwrap(), a_setup.connect(&own).unwrap());
    let block = a.domain.alloc(64).unwrap();
    let loan = lend(&mut a, block, rights::All);
    other.post(1, Write::new(Inline::from(b"stolen"), loan.token().slice(..6))).unwrap();
    let fault = cq.next(None).unwrap().unwrap().result().unwrap_err();
    assert!(is_refusal(fault.status()), "{fault}");
    assert!(!loan.is_returned());
    assert_eq!(loan.recall()[..6], [0; 6]);
}

pub fn guessed(fixture: &impl Fixture) {
    if !has_loans(fixture) {
        return;
    }
    let mut numbers = Random(fixture.seed() + 8);
    for _ in 0..large(16) {
        let [mut a, mut b] = connected(fixture);
        let block = a.domain.alloc(64).unwrap();
        let loan = lend(&mut a, block, rights::All);
        let mut token = loan.token().to_bytes();
        // Another key of the same window, or of another.
        token[4 + numbers.below(4) as usize] ^= 1 + numbers.below(255) as u8;
        let guessed = Remote::<rights::All>::from_bytes(token).unwrap();
        let fault = if numbers.below(2) == 0 {
            carry_out!(b, Write::new(Inline::from(b"guess"), guessed.slice(..5))).unwrap_err()
        } else {
            // To return what isn't lent is refused, too.
            a.qp.recv(1, ()).unwrap();
            carry_out!(b, Send::new(()).returning(guessed)).unwrap_err()
        };
        assert!(is_refusal(fault.status()), "{fault}");
        assert!(!loan.is_returned());
        assert_eq!(loan.recall()[..], [0; 64]);
    }
}

/// A completion that was in the queue when the loan was recalled returns no later loan.
pub fn stale(fixture: &impl Fixture) {
    if !has_loans(fixture) {
        return;
    }
    let [a, b] = fixture.devices().map(|device| device.open().unwrap());
    let (cq, mut recv_cq, b_cq) = (a.cq(64).unwrap(), a.cq(64).unwrap(), b.cq(64).unwrap());
    let a_setup = a.rc(&cq).recv_cq(&recv_cq).build().unwrap();
    let b_setup = b.rc(&b_cq).build().unwrap();
    let (a_end, b_end) = (a_setup.endpoint(), b_setup.endpoint());
    let (a_qp, b_qp) = (a_setup.connect(&b_end).unwrap(), b_setup.connect(&a_end).unwrap());
    let mut a = Side { domain: a, cq, qp: a_qp };
    let mut b = Side { domain: b, cq: b_cq, qp: b_qp };
    let mut keys = Vec::new();
    for tag in 0..3 {
        a.qp.recv(tag, ()).unwrap();
        let block = a.domain.alloc(64).unwrap();
        let loan = lend(&mut a, block, rights::Write);
        keys.push(loan.token().key());
        carry_out!(b, Send::new(()).returning(loan.token())).unwrap();
        // The message is there, and isn't polled.
        drop(loan.recall());
    }
    let loans: Vec<_> = (0..4)
        .map(|_| {
            let block = a.domain.alloc(64).unwrap();
            lend(&mut a, block, rights::Write)
        })
        .collect();
    for key in &keys {
        assert_eq!(recv_cq.next(None).unwrap().unwrap().returned(), Some(*key));
    }
    for loan in &loans {
        assert!(!keys.contains(&loan.token().key()), "the key of a recalled loan");
        assert!(!loan.is_returned());
    }
    // A loan that wasn't recalled returns.
    a.qp.recv(3, ()).unwrap();
    carry_out!(b, Send::new(()).returning(loans[2].token())).unwrap();
    recv_cq.next(None).unwrap().unwrap().result().unwrap();
    let returned: Vec<_> = loans.iter().map(Loan::is_returned).collect();
    assert_eq!(returned, [false, false, true, false]);
}

pub fn ends(fixture: &impl Fixture) {
    if !has_loans(fixture) {
        return;
    }
    let [mut a, b] = connected(fixture);
    let pool = a.domain.pool(4, 64).unwrap();
    let take = || pool.try_take().unwrap();
    let mut kept = Vec::new();
    for _ in 0..2 {
        kept.push(lend(&mut a, take(), rights::Write));
    }
    // The loan is dropped, or its completion with the loan.
    drop(kept.pop());
    assert_eq!(pool.free(), 3);
    a.qp.post(2, Lend::new(take(), rights::Write)).unwrap();
    let mut done = a.cq.next(None).unwrap().unwrap();
    assert_eq!(Kind::Invalid, done.loan::<rights::Read>().unwrap_err().kind());
    assert_eq!((done.take().count(), pool.free()), (0, 2));
    drop(done);
    assert_eq!(pool.free(), 3);
    // One that is outstanding, and one that was aborted.
    a.qp.post(3, Lend::new(take(), rights::Write)).unwrap();
    a.qp.abort();
    a.qp.post(4, Lend::new(take(), rights::Write)).unwrap();
    let mut lost = 0;
    for tag in [3, 4] {
        let mut done = a.cq.next(None).unwrap().unwrap();
        assert_eq!(done.tag(), tag);
        if done.result().is_err() {
            lost += 1;
            assert_eq!(done.take().buffer().unwrap().capacity(), 64);
        }
    }
    assert!(lost >= 1);
    let loan = kept.pop().unwrap();
    assert!(!loan.is_returned());
    a.qp.post(5, Lend::new(take(), rights::Write)).unwrap();
    let outstanding = a.qp.destroy();
    assert!(outstanding.len() <= 1);
    drop(outstanding);
    assert!(loan.is_returned());
    drop(loan.returned().unwrap());
    while a.cq.wait(Some(Duration::from_millis(1))).unwrap() {
        a.cq.next(None).unwrap();
    }
    assert_eq!(pool.free(), 4);
    drop(b);
}

pub fn refused(fixture: &impl Fixture) {
    if !has_loans(fixture) {
        return;
    }
    let [mut a, mut b] = connected(fixture);
    let block = a.domain.alloc(64).unwrap();
    let token = lend(&mut a, block, rights::Write).token();
    let failed = b.qp.post(1, Send::new(()).returning(token).imm(1)).unwrap_err();
    assert_eq!(failed.error.kind(), Kind::Invalid);
    let mut buffer = a.domain.alloc(8).unwrap();
    let rest = buffer.split_off(0);
    let failed = a.qp.post(1, Lend::new(buffer, rights::Read)).unwrap_err();
    assert_eq!((failed.error.kind(), failed.back.into_buffer().capacity()), (Kind::Invalid, 0));
    drop(rest);
    let cq = a.domain.cq(64).unwrap();
    let setup = a.domain.uc(&cq).build().unwrap();
    let end = setup.endpoint();
    let failed = setup.connect(&end).unwrap().post(1, Send::new(()).returning(token)).unwrap_err();
    assert_eq!(failed.error.kind(), Kind::Unsupported);
    // Memory that is exposed isn't returned by its token.
    let exposed = a.domain.alloc(8).unwrap().expose(rights::Write).unwrap();
    a.qp.recv(1, ()).unwrap();
    let fault = carry_out!(b, Send::new(()).returning(exposed.token())).unwrap_err();
    assert_ne!(fault.status(), Status::Flushed);
}
