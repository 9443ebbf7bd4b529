//! The check of an ICRC names an identification exactly when the ICRC computed with it is the one received.
#![no_main]

use ferroce_wire::{ICRC_LEN, icrc::Flow};
use libfuzzer_sys::fuzz_target;
use std::net::{Ipv4Addr, Ipv6Addr};

fuzz_target!(|input: (u16, u16, bool, Vec<u8>)| {
    let (id, hint, damage, mut packet) = input;
    let v4 = Flow::v4(Ipv4Addr::LOCALHOST, Ipv4Addr::LOCALHOST, 0xc000, 4791);
    let v6 = Flow::v6(Ipv6Addr::LOCALHOST, Ipv6Addr::LOCALHOST, 0xc000, 4791);
    let _ = v6.verify(&packet, hint);
    if packet.len() < 12 + ICRC_LEN || packet.len() > 65_507 {
        let _ = v4.verify(&packet, hint);
        return;
    }
    let covered = packet.len() - ICRC_LEN;
    let icrc = |packet: &[u8], id| {
        let mut crc = v4.start(packet.len(), id);
        crc.bth(&packet[..covered]);
        crc.finish()
    };
    if !damage {
        let right = icrc(&packet, id);
        packet[covered..].copy_from_slice(&right);
        assert_eq!(v4.verify(&packet, hint), Some(id));
    } else if let Some(id) = v4.verify(&packet, hint) {
        assert_eq!(icrc(&packet, id), packet[covered..]);
    }
});
