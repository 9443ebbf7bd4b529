//! Golden packets: one of every opcode over IPv4 and IPv6, decoded by tshark.
//!
//! tshark 4.0 knows nothing that follows the BTH in an XRC packet, a CNP, a flush or an atomic write, and no FECN or BECN.

use crate::common::{Fields, headers, icrc_by_definition, ipv4, ipv6, opcodes, udp};
use ferroce_wire::icrc::Flow;
use ferroce_wire::*;
use std::fmt::Write as _;
use std::process::Command;

const V4: ([u8; 4], [u8; 4]) = ([10, 1, 2, 3], [10, 4, 5, 6]);
const V6: ([u8; 16], [u8; 16]) = (
    [0xfd, 0x77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
    [0xfd, 0x77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2],
);
const PORT: u16 = 0xc0de;

/// What tshark is asked for, in this order.
const COLUMNS: [&str; 22] = [
    "infiniband.bth.opcode",
    "infiniband.bth.se",
    "infiniband.bth.m",
    "infiniband.bth.padcnt",
    "infiniband.bth.tver",
    "infiniband.bth.p_key",
    "infiniband.bth.destqp",
    "infiniband.bth.a",
    "infiniband.bth.psn",
    "infiniband.deth.q_key",
    "infiniband.deth.srcqp",
    "infiniband.reth.va",
    "infiniband.reth.r_key",
    "infiniband.reth.dmalen",
    "infiniband.atomiceth.swapdt",
    "infiniband.atomiceth.cmpdt",
    "infiniband.aeth.syndrome",
    "infiniband.aeth.msn",
    "infiniband.atomicacketh.origremdt",
    "infiniband.immdt",
    "infiniband.ieth",
    "infiniband.invariant.crc",
];

/// Fields whose every byte differs, and differs from packet to packet.
fn fields(seed: u32) -> Fields {
    let mut state = seed.wrapping_mul(0x9e37_79b9).wrapping_add(1);
    let mut next = move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.rotate_right(8)
    };
    let mut wide = || u64::from(next()) << 32 | u64::from(next());
    Fields {
        bth: Bth {
            opcode: Opcode::CNP,
            solicited: seed & 1 != 0,
            migrated: seed & 2 != 0,
            pad: 0,
            pkey: 0x8000 | wide() as u16,
            fecn: false,
            becn: false,
            dest_qp: wide() as u32 & 0xff_ffff,
            ack_request: seed & 4 != 0,
            psn: wide() as u32 & 0xff_ffff,
        },
        srqn: wide() as u32 & 0xff_ffff,
        flush: Feth { placement: seed as u8 & 3, selectivity: 0 },
        deth: Deth { qkey: wide() as u32, src_qp: wide() as u32 & 0xff_ffff },
        reth: Reth { va: wide(), rkey: wide() as u32, dma_len: wide() as u32 },
        atomic: AtomicEth { va: wide(), rkey: wide() as u32, swap_or_add: wide(), compare: wide() },
        aeth: Aeth {
            syndrome: Syndrome::RnrNak { timer: seed as u8 }.to_u8(),
            msn: wide() as u32 & 0xff_ffff,
        },
        atomic_ack: wide(),
        immediate: (wide() as u32).to_be_bytes(),
        invalidate_rkey: wide() as u32,
    }
}

struct Golden {
    headers: Headers,
    /// From the IP header on.
    bytes: Vec<u8>,
}

fn golden(opcode: Opcode, number: usize, v6: bool) -> Golden {
    let mut h = headers(opcode, &fields(number as u32 * 2 + u32::from(v6)));
    let payload: Vec<u8> = match opcode {
        Opcode::CNP => vec![0; CNP_RESERVED_LEN],
        _ if opcode.has_payload() => (0..=number as u8).map(|b| b ^ 0xa5).collect(),
        _ => Vec::new(),
    };
    h.bth.pad = (payload.len().wrapping_neg() % 4) as u8;
    let mut roce = vec![0; h.len()];
    h.emit(&mut roce).unwrap();
    roce.extend(payload);
    roce.resize(roce.len() + usize::from(h.bth.pad), 0);

    let id = 0x1200 + number as u16;
    let len = roce.len() + ICRC_LEN;
    let (flow, ip) = if v6 {
        (Flow::v6(V6.0.into(), V6.1.into(), PORT, ROCE_V2_PORT), ipv6(V6.0, V6.1, 0x0ab_cdef0, 64, len))
    } else {
        (Flow::v4(V4.0.into(), V4.1.into(), PORT, ROCE_V2_PORT), ipv4(V4.0, V4.1, id, 2, 64, len))
    };
    let udp = udp(PORT, len);
    let mut crc = flow.start(len, id);
    crc.bth(&roce);
    let icrc = crc.finish();
    assert_eq!(icrc, icrc_by_definition(&ip, &udp, &roce));
    Golden { headers: h, bytes: [&ip[..], &udp, &roce, &icrc].concat() }
}

/// A pcap file of raw IP packets (LINKTYPE_RAW).
fn pcap(packets: &[Golden]) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4u32, 4 << 16 | 2, 0, 0, 65_535, 101] {
        file.extend(word.to_le_bytes());
    }
    for (i, p) in packets.iter().enumerate() {
        let len = p.bytes.len() as u32;
        for word in [i as u32, 0, len, len] {
            file.extend(word.to_le_bytes());
        }
        file.extend(&p.bytes);
    }
    // The two halves of the version came out swapped by being written as one word.
    file[4..8].copy_from_slice(&[2, 0, 4, 0]);
    file
}

/// The values in the order of [`COLUMNS`]; numbers in decimal, byte strings in hexadecimal, nothing for what isn't there.
fn expected(p: &Golden) -> Vec<String> {
    let h = &p.headers;
    let number = |v: Option<u64>| v.map(|v| v.to_string()).unwrap_or_default();
    let hex = |v: Option<[u8; 4]>| {
        v.iter().flatten().fold(String::new(), |mut s, b| {
            write!(s, "{b:02x}").unwrap();
            s
        })
    };
    let u = |v: u32| Some(u64::from(v));
    let icrc = p.bytes.last_chunk::<4>().unwrap();
    let always = |v: u64| v.to_string();
    vec![
        always(h.bth.opcode.to_u8().into()),
        always(h.bth.solicited.into()),
        always(h.bth.migrated.into()),
        always(h.bth.pad.into()),
        always(0),
        always(h.bth.pkey.into()),
        always(h.bth.dest_qp.into()),
        always(h.bth.ack_request.into()),
        always(h.bth.psn.into()),
        number(h.deth.and_then(|d| u(d.qkey))),
        number(h.deth.and_then(|d| u(d.src_qp))),
        number(h.reth.map(|r| r.va).or(h.atomic.map(|a| a.va))),
        number(h.reth.map(|r| r.rkey).or(h.atomic.map(|a| a.rkey)).and_then(u)),
        number(h.reth.and_then(|r| u(r.dma_len))),
        number(h.atomic.map(|a| a.swap_or_add)),
        number(h.atomic.map(|a| a.compare)),
        number(h.aeth.and_then(|a| u(a.syndrome.into()))),
        number(h.aeth.and_then(|a| u(a.msn))),
        number(h.atomic_ack),
        hex(h.immediate),
        hex(h.invalidate_rkey.map(u32::to_be_bytes)),
        always(u32::from_be_bytes(*icrc).into()),
    ]
}

/// tshark writes numbers as decimal or as 0x…, truths as 1 and 0 or as True and False, depending on field and version.
fn normal(column: &str, value: &str) -> String {
    if ["infiniband.immdt", "infiniband.ieth"].contains(&column) {
        return value.replace(':', "").to_lowercase();
    }
    match value {
        "True" => "1".into(),
        "False" => "0".into(),
        _ => match value.strip_prefix("0x").map(|hex| u64::from_str_radix(hex, 16)) {
            Some(Ok(v)) => v.to_string(),
            _ => value.into(),
        },
    }
}

#[test]
fn tshark_decodes_every_opcode_to_what_was_put_in() {
    let installed = Command::new("tshark").arg("--version").output().is_ok_and(|o| o.status.success());
    if !installed {
        ferroce_tests::record_skip("tshark is not installed");
        return;
    }
    let packets: Vec<Golden> = [false, true]
        .into_iter()
        .flat_map(|v6| opcodes().enumerate().map(move |(i, opcode)| golden(opcode, i, v6)))
        .collect();
    let file = std::env::temp_dir().join(format!("ferroce-golden-{}.pcap", std::process::id()));
    std::fs::write(&file, pcap(&packets)).unwrap();
    let output = Command::new("timeout")
        .args(["60", "tshark", "-n", "-r"])
        .arg(&file)
        .args(["-T", "fields", "-E", "separator=|", "-E", "occurrence=f", "-e", "_ws.malformed"])
        .args(["-e", "ip.checksum.status", "-e", "udp.srcport"])
        .args(COLUMNS.iter().flat_map(|c| ["-e", c]))
        .args(["-o", "ip.check_checksum:TRUE"])
        // Guesses at what a SEND's payload might be, and finds random bytes malformed.
        .args(["--disable-protocol", "rpcordma"])
        .output();
    std::fs::remove_file(&file).unwrap();
    let output = output.unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let stdout = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = stdout.lines().collect();
    assert_eq!(lines.len(), packets.len(), "{stderr}");

    let mut wrong = String::new();
    for (p, line) in packets.iter().zip(lines) {
        let values: Vec<&str> = line.split('|').collect();
        let v4 = p.bytes[0] >> 4 == 4;
        let frame = [values[0], values[1], values[2]];
        if frame != ["", if v4 { "1" } else { "" }, "49374"] {
            writeln!(wrong, "{:?}: malformed, checksum, port: {frame:?}", p.headers.bth.opcode).unwrap();
        }
        let opcode = p.headers.bth.opcode;
        let newer = matches!(opcode.operation, Operation::Flush | Operation::AtomicWrite);
        let known =
            if newer || matches!(opcode.service, Service::Xrc | Service::Cnp) { 9 } else { COLUMNS.len() };
        for ((column, value), expected) in COLUMNS.iter().zip(&values[3..]).zip(expected(p)).take(known) {
            if normal(column, value) != expected {
                writeln!(wrong, "{:?}: {column} {value}, not {expected}", p.headers.bth.opcode).unwrap();
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}
