//! Arbitrary bytes parse or fail; what parses is emitted to bytes that parse to the same.
#![no_main]

use ferroce_wire::{Headers, ICRC_LEN, MAX_HEADERS_LEN, Packet};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok((headers, len)) = Headers::parse(bytes) {
        let mut out = [0; MAX_HEADERS_LEN];
        assert_eq!(headers.emit(&mut out), Ok(len));
        assert_eq!(Headers::parse(&out[..len]), Ok((headers, len)));
    }
    if let Ok(packet) = Packet::parse(bytes) {
        let pad = usize::from(packet.headers.bth.pad);
        assert_eq!(packet.headers.len() + packet.payload.len() + pad + ICRC_LEN, bytes.len());
    }
});
