use super::*;
use ferroce_pcapng::flow;
use ferroce_wire::{Aeth, Bth, Opcode, Operation, Reth, Service};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A path in the temporary directory, removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let file = format!("ferroce-{name}-{}.pcapng", std::process::id());
        Self(std::env::temp_dir().join(file))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Blocks of a capture: type and body. Panics when lengths don't agree.
fn blocks(path: &Path) -> Vec<(u32, Vec<u8>)> {
    let file = std::fs::read(path).unwrap();
    let mut rest = &file[..];
    let word = |at: &[u8]| u32::from_le_bytes(*at.first_chunk().unwrap());
    let mut blocks = Vec::new();
    while !rest.is_empty() {
        let len = word(&rest[4..]) as usize;
        assert_eq!(len % 4, 0);
        assert_eq!(word(&rest[len - 4..]) as usize, len);
        blocks.push((word(rest), rest[8..len - 4].to_vec()));
        rest = &rest[len..];
    }
    blocks
}

/// The captured bytes of an enhanced packet block.
fn captured(block: &(u32, Vec<u8>)) -> &[u8] {
    assert_eq!(block.0, 6);
    let len = u32::from_le_bytes(*block.1[12..].first_chunk().unwrap());
    &block.1[20..][..len as usize]
}

fn v4() -> IpUdpHeader {
    let (src, dst) = ("10.1.0.1:49153", "10.1.0.2:4791");
    IpUdpHeader {
        src: src.parse().unwrap(),
        dst: dst.parse().unwrap(),
        tos: 0x6a,
        ttl: 61,
        flow_label: 0,
        id: 0x4321,
    }
}

fn v6() -> IpUdpHeader {
    let (src, dst) = ("[fd77::1]:49154", "[fd77::2]:4791");
    IpUdpHeader {
        src: src.parse().unwrap(),
        dst: dst.parse().unwrap(),
        tos: 0x6a,
        ttl: 62,
        flow_label: 0x1_2345,
        id: 0,
    }
}

fn headers_of(operation: Operation, psn: u32) -> Headers {
    let opcode = Opcode::new(Service::Rc, operation).unwrap();
    let mut h = Headers::new(Bth { ack_request: true, ..Bth::new(opcode, 0x123456, psn) });
    h.aeth = opcode.carries_aeth().then_some(Aeth { syndrome: 0x1f, msn: 3 });
    h.reth = opcode.carries_reth().then_some(Reth { va: 0x1000, rkey: 7, dma_len: 9 });
    h
}

#[test]
fn a_new_file_begins_with_one_header_and_a_created_one_is_emptied() {
    let path = Scratch::new("header");
    let kinds = || blocks(&path.0).iter().map(|b| b.0).collect::<Vec<_>>();
    let capture = Capture::open(&path.0).unwrap();
    Capture::open(&path.0).unwrap();
    assert_eq!(kinds(), [0x0a0d_0d0a, 1, 1]);
    capture.packet(Direction::In, &v4(), &[&[0; 16]]);
    assert_eq!(kinds(), [0x0a0d_0d0a, 1, 1, 6]);
    create(&path.0).unwrap();
    assert_eq!(kinds(), [0x0a0d_0d0a, 1, 1]);
    capture.packet(Direction::In, &v4(), &[&[0; 16]]);
    assert_eq!(kinds(), [0x0a0d_0d0a, 1, 1, 6]);
}

#[test]
fn a_packet_is_written_as_it_is() {
    let path = Scratch::new("bytes");
    let capture = Capture::open(&path.0).unwrap();
    for len in 16..40u8 {
        let bytes: Vec<u8> = (0..len).collect();
        capture.packet(Direction::Out, &v4(), &[&bytes[..7], &[], &bytes[7..]]);
        let blocks = blocks(&path.0);
        assert_eq!(captured(blocks.last().unwrap())[28..], bytes);
    }
}

#[test]
fn a_message_gets_the_pad_and_icrc_of_the_wire() {
    let path = Scratch::new("message");
    let capture = Capture::open(&path.0).unwrap();
    for (ip_udp, header) in [(v4(), 28), (v6(), 48)] {
        for len in [0, 1, 2, 3, 4, 1000, MESSAGE_BYTES] {
            let payload: Vec<u8> = (0..len).map(|i| i as u8).collect();
            let headers = headers_of(Operation::WriteOnly, 1);
            capture.message(Direction::Out, &ip_udp, &headers, &payload, len);
            let blocks = blocks(&path.0);
            let packet = &captured(blocks.last().unwrap())[header..];
            assert_eq!(flow(&ip_udp).verify(packet, ip_udp.id), Some(ip_udp.id));
            let parsed = ferroce_wire::Packet::parse(packet).unwrap();
            assert_eq!(parsed.payload, payload);
            assert_eq!(parsed.headers.reth, headers.reth);
        }
    }
}

#[test]
fn long_messages_are_cut_and_say_how_long_they_were() {
    let path = Scratch::new("long");
    let capture = Capture::open(&path.0).unwrap();
    let headers = headers_of(Operation::WriteOnly, 1);
    let len = 50_000;
    capture.message(Direction::Out, &v4(), &headers, &vec![1; len], len);
    capture.message(Direction::Out, &v4(), &headers, &[1; 10], len);
    let blocks = blocks(&path.0);
    for (block, there) in blocks[3..].iter().zip([MESSAGE_BYTES, 10]) {
        assert_eq!(captured(block).len(), 28 + 28 + there);
        let original = u32::from_le_bytes(*block.1[16..].first_chunk().unwrap());
        assert_eq!(original as usize, 28 + 28 + len + 4);
    }
}

#[test]
fn blocks_of_several_processes_do_not_mix() {
    const EACH: usize = 400;
    let path = Scratch::new("many");
    let write = |capture: &Capture, who: u8| {
        for i in 0..EACH {
            let len = 16 + i * 7 % 3000;
            capture.packet(Direction::Out, &v4(), &[&[who; 3100][..len]]);
        }
    };
    let before_fork = Capture::open(&path.0).unwrap();
    // SAFETY: the child only writes through the capture, which neither allocates nor locks, and leaves by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        write(&before_fork, 0);
        // SAFETY: ends the child without running anything of the parent's.
        unsafe { libc::_exit(0) };
    }
    assert!(child > 0);
    std::thread::scope(|s| {
        s.spawn(|| write(&before_fork, 1));
        for who in 2..5 {
            let path = &path.0;
            s.spawn(move || write(&Capture::open(path).unwrap(), who));
        }
    });
    wait_for(child);

    let mut seen = [0; 5];
    for block in blocks(&path.0).iter().filter(|b| b.0 == 6) {
        let packet = &captured(block)[28..];
        assert!(packet.iter().all(|b| *b == packet[0]));
        assert_eq!(
            packet.len(),
            16 + seen[usize::from(packet[0])] * 7 % 3000,
            "packets of one process in order"
        );
        seen[usize::from(packet[0])] += 1;
    }
    assert_eq!(seen, [EACH; 5]);
}

fn wait_for(child: libc::pid_t) {
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut status = 0;
    loop {
        // SAFETY: `status` is a valid integer to write to.
        match unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } {
            0 if Instant::now() > deadline => {
                // SAFETY: our own child, not yet waited for.
                unsafe { libc::kill(child, libc::SIGKILL) };
            }
            0 => std::thread::sleep(Duration::from_millis(5)),
            _ => break,
        }
    }
    assert_eq!(status, 0);
}

#[test]
fn a_reused_descriptor_gets_no_packets() {
    let (path, other) = (Scratch::new("reused"), Scratch::new("other"));
    let capture = Capture::open(&path.0).unwrap();
    let file = File::create(&other.0).unwrap();
    // SAFETY: both descriptors are open; the capture's now refers to the other file.
    assert!(unsafe { libc::dup2(file.as_raw_fd(), capture.file.as_raw_fd()) } >= 0);
    capture.packet(Direction::In, &v4(), &[&[9; 20]]);
    assert_eq!(std::fs::metadata(&other.0).unwrap().len(), 0);
    assert_eq!(captured(&blocks(&path.0)[3])[28..], [9; 20]);
}

#[test]
fn a_full_disk_ends_the_capture_and_not_the_program() {
    let capture = Capture::open(Path::new("/dev/full")).unwrap();
    assert!(!capture.failed.load(Ordering::Relaxed));
    for _ in 0..3 {
        capture.packet(Direction::In, &v4(), &[&[9; 20]]);
        assert!(capture.failed.load(Ordering::Relaxed));
    }
}

/// A FIFO, and its end to read from.
fn fifo(name: &str) -> (Scratch, File) {
    let path = Scratch::new(name);
    let text = std::ffi::CString::new(path.0.to_str().unwrap()).unwrap();
    // SAFETY: a C string.
    assert_eq!(unsafe { libc::mkfifo(text.as_ptr(), 0o600) }, 0);
    let flags = libc::O_NONBLOCK;
    let reader = File::options().read(true).custom_flags(flags).open(&path.0).unwrap();
    // SAFETY: takes no pointer.
    assert!(unsafe { libc::fcntl(reader.as_raw_fd(), libc::F_SETFL, 0) } >= 0);
    (path, reader)
}

#[test]
fn a_fifo_that_is_not_read_ends_the_capture_and_holds_up_no_program() {
    let (path, _reader) = fifo("unread");
    let capture = Capture::open(&path.0).unwrap();
    // It has room for 64 KiB.
    for _ in 0..100 {
        capture.packet(Direction::In, &v4(), &[&[9; 1000]]);
    }
    assert!(capture.failed.load(Ordering::Relaxed));
}

#[test]
fn a_fifo_that_is_read_slowly_gets_all_blocks_whole() {
    const PACKETS: usize = 60;
    let (path, mut reader) = fifo("slow");
    let copy = Scratch::new("copy");
    let mut file = File::create(&copy.0).unwrap();
    let capture = Capture::open(&path.0).unwrap();
    let reads = std::thread::spawn(move || {
        let mut bytes = [0; 3000];
        while let Ok(length @ 1..) = reader.read(&mut bytes) {
            file.write_all(&bytes[..length]).unwrap();
            std::thread::sleep(Duration::from_micros(500));
        }
    });
    // Longer than what a FIFO takes in one piece.
    for _ in 0..PACKETS {
        capture.packet(Direction::In, &v4(), &[&[1; 4000], &[2; 4000]]);
    }
    assert!(!capture.failed.load(Ordering::Relaxed));
    drop(capture);
    reads.join().unwrap();
    let blocks = blocks(&copy.0);
    assert_eq!(blocks.len(), PACKETS);
    for block in &blocks {
        assert_eq!(captured(block)[28..], [[1; 4000], [2; 4000]].concat());
    }
}

#[test]
fn tshark_reads_addresses_times_directions_and_checksums() {
    let installed = Command::new("tshark").arg("--version").output().is_ok_and(|o| o.status.success());
    if !installed {
        ferroce_tests::record_skip("tshark is not installed");
        return;
    }
    let path = Scratch::new("tshark");
    let capture = Capture::open(&path.0).unwrap();
    let write = headers_of(Operation::WriteOnly, 0x70);
    let ack = headers_of(Operation::Acknowledge, 0x71);
    let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    for ip_udp in [v4(), v6()] {
        capture.message(Direction::Out, &ip_udp, &write, b"nine byte", 9);
        capture.message(Direction::In, &ip_udp, &ack, &[], 0);
        capture.message(Direction::Out, &ip_udp, &write, &[5; 5000], 5000);
        capture.message(Direction::Out, &ip_udp, &write, &[5; 5000], 1 << 24);
    }
    let output = Command::new("timeout")
        .args(["60", "tshark", "-n", "-r"])
        .arg(&path.0)
        .args(["-o", "ip.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE"])
        .args(["-T", "fields", "-E", "separator=|", "-E", "occurrence=f"])
        .args(
            [
                "frame.packet_flags_direction",
                "ip.src",
                "ipv6.dst",
                "ip.id",
                "ip.ttl",
                "ipv6.hlim",
                "ip.dsfield",
                "ipv6.tclass",
                "ip.checksum.status",
                "udp.checksum.status",
                "udp.srcport",
                "infiniband.bth.psn",
                "infiniband.bth.padcnt",
                "infiniband.reth.va",
                "infiniband.aeth.msn",
                "_ws.malformed",
                "frame.time_epoch",
            ]
            .into_iter()
            .flat_map(|f| ["-e", f]),
        )
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let rows: Vec<(&str, f64)> = text
        .lines()
        .map(|line| line.rsplit_once('|').map(|(row, time)| (row, time.parse().unwrap())).unwrap())
        .collect();
    let expected = [
        "0x00000002|10.1.0.1||0x4321|61||0x6a||1|1|49153|112|3|0x0000000000001000||",
        "0x00000001|10.1.0.1||0x4321|61||0x6a||1|1|49153|113|0||3|",
        "0x00000002|10.1.0.1||0x4321|61||0x6a||1|2|49153|112|0|0x0000000000001000||",
        "0x00000002|10.1.0.1||0x4321|61||0x6a||1|2|49153|112|0|0x0000000000001000||",
        "0x00000002||fd77::2|||62||0x0000006a||1|49154|112|3|0x0000000000001000||",
        "0x00000001||fd77::2|||62||0x0000006a||1|49154|113|0||3|",
        "0x00000002||fd77::2|||62||0x0000006a||2|49154|112|0|0x0000000000001000||",
        "0x00000002||fd77::2|||62||0x0000006a||2|49154|112|0|0x0000000000001000||",
    ];
    assert_eq!(rows.iter().map(|r| r.0).collect::<Vec<_>>(), expected);
    let mut last = started;
    for (row, time) in rows {
        assert!((last - 1e-6..started + 60.0).contains(&time), "{time} of {row}");
        last = time;
    }
}
