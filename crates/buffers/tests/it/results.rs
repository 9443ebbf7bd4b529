//! Words for the results of atomics.

use crate::adapter::Adapter;
use ferroce_buffers::{NotLent, Results};

#[test]
fn requests_that_are_outstanding_have_words_of_their_own() {
    let adapter = Adapter::default();
    for depth in [1, 3, 4, 1000] {
        let results = Results::new(adapter.alloc(Results::bytes(depth))).unwrap();
        // One that has ended, and all that may be outstanding then.
        for first in [0, 7, u32::MAX] {
            let addresses = (0..=depth).map(|after| results.segments(first.wrapping_add(after))[0].addr);
            let mut addresses: Vec<_> = addresses.collect();
            addresses.sort_unstable();
            assert!(addresses.windows(2).all(|two| two[0] + 8 <= two[1]), "depth {depth}");
        }
    }
}

#[test]
fn the_adapter_writes_a_word_while_the_words_exist() {
    let adapter = Adapter::default();
    let results = Results::new(adapter.alloc(Results::bytes(3))).unwrap();
    let tap = adapter.tap(0).unwrap();
    let at = (results.segments(6)[0].addr - results.segments(0)[0].addr) as usize;
    tap.write(at, &7u64.to_ne_bytes()).unwrap();
    assert_eq!((results.load(6), results.load(5)), (7, 0));
    drop(results);
    assert_eq!(tap.write(at, &[0; 8]), Err(NotLent));
    assert_eq!(*adapter.log.lock().unwrap(), ["deregistered"]);
}

#[test]
fn words_are_made_of_a_power_of_two_of_them() {
    let adapter = Adapter::default();
    assert!(Results::new(adapter.alloc(24)).is_err());
    assert!(Results::new(adapter.alloc(15)).is_err());
    assert!(Results::new(adapter.alloc(12).split_off(4)).is_err(), "its address isn't a multiple of 8");
}
