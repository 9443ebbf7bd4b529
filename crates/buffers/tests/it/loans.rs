//! What the adapter may touch, and when (rule S1).

use crate::adapter::{Adapter, held};
use ferroce_buffers::{NotLent, Payload, PayloadMut, Pool, rights};

#[test]
fn the_adapter_touches_a_buffer_only_while_a_slot_owns_it() {
    let adapter = Adapter::default();
    let mut buffer = adapter.alloc(64);
    buffer.fill(b"sent");
    let tap = adapter.tap(0).unwrap();
    let mut bytes = [0; 4];
    assert_eq!(tap.read(0, &mut bytes), Err(NotLent));
    let read = held(|slot| drop(buffer.hold(slot)));
    tap.read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"sent");
    assert_eq!(tap.write(0, b"late"), Err(NotLent));
    let buffer = read.settle(None).buffer().unwrap();
    assert_eq!(tap.read(0, &mut bytes), Err(NotLent));
    assert_eq!(&buffer[..], b"sent");
    let held = held(|slot| buffer.hold_for_writing(slot));
    tap.write(60, b"last").unwrap();
    assert_eq!(tap.read(0, &mut bytes), Err(NotLent));
    assert_eq!(tap.write(61, b"last"), Err(NotLent));
    let buffer = held.settle(Some(64)).buffer().unwrap();
    assert_eq!(tap.write(0, b"late"), Err(NotLent));
    assert_eq!((buffer.len(), &buffer[60..]), (64, &b"last"[..]));
}

#[test]
fn memory_of_a_request_returns_to_its_pool_after_the_loan() {
    let adapter = Adapter::default();
    let pool = Pool::new(adapter.alloc(256), 128).unwrap();
    let held = held(|slot| pool.try_take().unwrap().hold_for_writing(slot));
    assert_eq!(pool.free(), 1);
    let other = pool.try_take().unwrap();
    assert!(pool.try_take().is_none());
    let tap = adapter.tap(0).unwrap();
    tap.write(0, &[7; 128]).unwrap();
    assert_eq!(tap.write(128, &[7; 128]), Err(NotLent));
    drop((held, other));
    assert_eq!(pool.free(), 2);
    assert_eq!(tap.write(0, &[7; 128]), Err(NotLent));
}

#[test]
fn what_is_forgotten_stays_lent_and_registered() {
    let adapter = Adapter::default();
    let pool = Pool::new(adapter.alloc(64), 64).unwrap();
    std::mem::forget(held(|slot| pool.try_take().unwrap().hold_for_writing(slot)));
    drop(pool);
    adapter.tap(0).unwrap().write(0, &[1; 64]).unwrap();
    assert!(adapter.log.lock().unwrap().is_empty());
    // The leak is the point of the test, so the registration goes without its owner.
    adapter.regions.lock().unwrap().clear();
}

#[test]
fn a_frozen_buffer_is_lent_to_several_requests() {
    let adapter = Adapter::default();
    let mut buffer = adapter.alloc(64);
    buffer.fill(b"0123456789");
    let frozen = buffer.freeze();
    let (one, other) =
        (held(|slot| drop(frozen.slice(..5).hold(slot))), held(|slot| drop(frozen.slice(5..).hold(slot))));
    drop(one.settle(None));
    let mut bytes = [0; 5];
    adapter.tap(0).unwrap().read(5, &mut bytes).unwrap();
    assert_eq!((&bytes, &frozen[..3]), (b"56789", &b"012"[..]));
    let frozen = frozen.thaw().unwrap_err();
    drop(other);
    assert_eq!(&frozen.thaw().unwrap()[..], b"0123456789");
    assert!(adapter.tap(0).is_none(), "nothing refers to the region any more");
}

#[test]
fn a_revoked_key_gives_no_access() {
    let adapter = Adapter::default();
    let mut whole = adapter.alloc(128);
    let other = whole.split_off(64);
    let exposed = whole.expose(rights::All).unwrap();
    let peer = adapter.tap(1).unwrap();
    assert_eq!((exposed.token().key(), exposed.token().len()), (1, 64));
    peer.write(8, &5_u64.to_ne_bytes()).unwrap();
    assert_eq!(peer.write(64, &[1]), Err(NotLent));
    let word = exposed.word(8);
    assert_eq!((word.fetch_add(2), word.compare_swap(7, 9), word.load()), (5, 7, 9));
    assert_eq!(peer.update(8, |value| value + 1), Ok(9));
    let mut bytes = [0; 8];
    exposed.load(8, &mut bytes);
    assert_eq!(u64::from_ne_bytes(bytes), 10);
    // SAFETY: the only peer is this test.
    assert_eq!(unsafe { exposed.quiet(8..16) }, bytes);
    let buffer = exposed.revoke();
    assert_eq!(peer.write(8, &[1]), Err(NotLent));
    assert_eq!(adapter.tap(1).map(|tap| tap.len()), None);
    assert_eq!(buffer.join(other).unwrap().capacity(), 128);
}

#[test]
fn buffers_of_several_parts_are_lent_in_order() {
    let adapter = Adapter::default();
    let mut first = adapter.alloc(8);
    let second = first.split_off(3);
    let held = held(|slot| [first, second].hold_for_writing(slot));
    let tap = adapter.tap(0).unwrap();
    tap.write(0, b"abc").unwrap();
    tap.write(3, b"de").unwrap();
    let parts: Vec<_> = held.settle(Some(5)).collect();
    let texts: Vec<&[u8]> = parts
        .iter()
        .map(|part| match part {
            ferroce_buffers::Part::Buffer(buffer) => &buffer[..],
            _ => panic!("a buffer"),
        })
        .collect();
    assert_eq!(texts, [&b"abc"[..], b"de"]);
}
