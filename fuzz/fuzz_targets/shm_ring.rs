//! Any bytes that a peer writes into the cells and the bulk of a ring: packets within bounds, or a broken ring.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (Vec<u8>, Vec<u8>)| {
    let (cells, bulk) = input;
    let reading = ferroce_hostlink::untrusted::read(&cells, &bulk);
    assert!(reading.is_broken || reading.packets == cells.len() / 64);
});
