//! Any bytes that a peer writes into a ring, and any tails that it claims: records within bounds, or a broken ring.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (Vec<u8>, Vec<u8>)| {
    let (tails, stream) = input;
    // Mostly the next few grains; 255 stands for a tail that is none.
    let mut tail = 0;
    let tails: Vec<u64> = tails
        .iter()
        .map(|&step| {
            tail += 64 * u64::from(step);
            if step == u8::MAX { u64::MAX - tail } else { tail }
        })
        .collect();
    let reading = ferroce_hostlink::untrusted::read(&stream, &tails);
    assert!(reading.is_broken || reading.consumed == tail);
});
