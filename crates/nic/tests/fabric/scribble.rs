//! What a hostile process can do to others of its user: write into the memory that it shares with them, and send messages that aren't
//! requests to their sockets.

use ferroce_os::sys::{self, EngineFd};
use ferroce_wire::{Aeth, Bth, Headers, Opcode, Reth};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Cells of a ring.
const CELLS: usize = 4096;
const CELL: usize = 64;
const BULK: usize = 512 * 1024;
/// Where the cells of a ring and its bulk begin: between both are the results of the cells.
const CELLS_AT: usize = 4096;
const BULK_AT: usize = CELLS_AT + CELLS * (CELL + size_of::<u64>());
/// A ring with its words.
const SPAN: usize = BULK_AT + BULK;
const LINK: usize = 2 * SPAN;
const DIRECTORY: usize = 4096 + (65_536 + 4 * 4096) * 64;
/// Words of a ring, by the byte where they are.
const WAITS: usize = 0;
const HEAD: usize = 128;
const ACCESS: usize = 256;
const SEES_EXIT: usize = ACCESS + 5 * 64 + 24;

/// Where memory of this length is that this process shares and may write.
fn mappings(len: usize) -> Vec<usize> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines()
        .filter(|line| line.contains("ferroce-shm") && line.contains("rw-s"))
        .filter_map(|line| {
            let (from, to) = line.split(' ').next()?.split_once('-')?;
            let [from, to] = [from, to].map(|at| usize::from_str_radix(at, 16).unwrap());
            (to - from == len).then_some(from)
        })
        .collect()
}

fn word(base: usize, at: usize) -> &'static AtomicU64 {
    // SAFETY: inside a shared mapping, which this process keeps as long as it lives, and aligned.
    unsafe { AtomicU64::from_ptr((base + at) as *mut u64) }
}

fn put(at: usize, bytes: &[u8]) {
    // SAFETY: the callers name places inside a shared mapping.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, bytes.len()) };
}

/// Bases of the two rings of each link: its own, if it made the link, and the peer's.
fn rings() -> Vec<[usize; 2]> {
    let links = mappings(LINK);
    assert!(!links.is_empty(), "there is no shared memory");
    links.into_iter().map(|base| [base, base + SPAN]).collect()
}

/// Where the cell at a position is.
fn cell_at(ring: usize, position: u64) -> usize {
    ring + CELLS_AT + position as usize % CELLS * CELL
}

/// What the first word of the cell at a position has in its lower half when the cell is published.
fn stamp(position: u64) -> u32 {
    (position as u32).wrapping_add(1)
}

/// The position of the next cell that isn't published.
fn next(ring: usize) -> u64 {
    let head = word(ring, HEAD).load(Ordering::Acquire);
    let is_published =
        |position: &u64| word(cell_at(ring, *position), 0).load(Ordering::Acquire) as u32 == stamp(*position);
    (head..head + CELLS as u64).find(|position| !is_published(position)).unwrap_or(head + CELLS as u64)
}

/// Publishes the cell at a position, with this in the upper half of its first word.
fn publish_cell(ring: usize, position: u64, about: u32) {
    let first = u64::from(about) << 32 | u64::from(stamp(position));
    word(cell_at(ring, position), 0).store(first, Ordering::Release);
}

/// A SEND of RC in a cell.
const SEND: u32 = 0xffff_0402;

/// Writes nonsense into all links, of the kind that `what` names.
pub fn scribble(what: &str) {
    for [own, peers] in rings() {
        let position = next(own);
        let cell = cell_at(own, position);
        match what {
            "garbage" => {
                for position in position..position + 16 {
                    let bytes: Vec<u8> = (0..CELL).map(|_| sys::random() as u8).collect();
                    put(cell_at(own, position), &bytes);
                    publish_cell(own, position, sys::random() as u32);
                }
            }
            "zeros" => publish_cell(own, position, 0),
            // As a process without a process descriptor of the other side.
            "unseeing" => word(own, SEES_EXIT).store(0, Ordering::Release),
            "bulk-between-lines" | "bulk-beyond" | "long-bulk" => {
                let (len, bulk) = match what {
                    "bulk-between-lines" => (100, 8),
                    "bulk-beyond" => (100, (BULK - CELL) as u64),
                    _ => (65_537, 0),
                };
                word(cell, 16).store(len, Ordering::Relaxed);
                word(cell, 56).store(bulk, Ordering::Relaxed);
                publish_cell(own, position, SEND);
            }
            "head-ahead" => word(peers, HEAD).store(u64::MAX - 63, Ordering::Release),
            "head-back" => word(peers, HEAD).store(0, Ordering::Release),
            "waits" => word(own, WAITS).store(u64::MAX, Ordering::Release),
            // What only the other side should write: what it writes next takes the place of the cell.
            "words-of-the-other" => {
                word(peers, WAITS).store(u64::MAX, Ordering::Release);
                publish_cell(peers, next(peers), 0);
                word(peers, ACCESS).store(u64::MAX, Ordering::Release);
                word(own, HEAD).store(u64::MAX, Ordering::Release);
            }
            _ => panic!("{what}?"),
        }
    }
}

/// Begins an access to the region `key` by way of the QP `qpn` of the other process, and never ends it.
pub fn begin_access(key: u64, qpn: u64) {
    for [own, _] in rings() {
        word(own, ACCESS).store(key << 32 | qpn << 8 | 1, Ordering::Release);
    }
}

/// Claims a slot of another process in this one's directories.
pub fn claim(slot: u64) {
    for directory in mappings(DIRECTORY) {
        for at in [8, 16, 24, 32] {
            word(directory, at).store(1 << 63 | slot, Ordering::Release);
        }
    }
}

/// Puts packets for `qpn` into the ring, with many PSNs: sends, writes and acknowledgements from `gid` to `gid`.
pub fn forge(qpn: u32, gid: [u8; 16]) {
    let bth = |opcode, psn| Bth { ack_request: true, ..Bth::new(opcode, qpn, psn) };
    for [own, _] in rings() {
        for psn in (0..1500).chain(0xff_fff0..=0xff_ffff) {
            for opcode in [0x04, 0x0a, 0x11].map(|opcode| Opcode::from_u8(opcode).unwrap()) {
                let mut headers = Headers::new(bth(opcode, psn));
                headers.reth = opcode.carries_reth().then_some(Reth { va: 0, rkey: 0x100, dma_len: 0 });
                headers.aeth = opcode.carries_aeth().then_some(Aeth { syndrome: 0x60, msn: psn });
                publish(own, &headers, gid);
            }
        }
    }
}

fn publish(ring: usize, headers: &Headers, gid: [u8; 16]) {
    let mut packet = [0; 128];
    let len = headers.emit(&mut packet[48..]).unwrap();
    let total = (48 + len).next_multiple_of(8);
    packet[5..8].copy_from_slice(&[len as u8, 0, 64]);
    packet[12..14].copy_from_slice(&(len as u16 + 4).to_ne_bytes());
    packet[16..32].copy_from_slice(&gid);
    packet[32..48].copy_from_slice(&gid);
    // Waits for room, for about a second: the peer may have stopped reading the ring.
    for _ in 0..1000 {
        let position = next(ring);
        if position - word(ring, HEAD).load(Ordering::Acquire) < CELLS as u64 {
            let (cell, bulk) = (cell_at(ring, position), position as usize * packet.len() % BULK);
            put(ring + BULK_AT + bulk, &packet[..total]);
            put(cell + 8, &headers.bth.dest_qp.to_ne_bytes());
            put(cell + 16, &(total as u32).to_ne_bytes());
            word(cell, 56).store(bulk as u64, Ordering::Relaxed);
            publish_cell(ring, position, 1);
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Sends messages of `len` bytes over the connections of all links, as fast as they go, for a quarter of a second.
pub fn ring_bells(len: usize) {
    let option = |fd: RawFd, name| sys::int_option(fd, libc::SOL_SOCKET, name).ok();
    let is_connection = |fd: &RawFd| {
        option(*fd, libc::SO_TYPE) == Some(libc::SOCK_SEQPACKET)
            && option(*fd, libc::SO_ACCEPTCONN) == Some(0)
    };
    let connections: Vec<RawFd> = (3..1 << 16).filter(is_connection).collect();
    assert!(!connections.is_empty());
    let start = std::time::Instant::now();
    while start.elapsed() < Duration::from_millis(250) {
        for &fd in &connections {
            // SAFETY: the bytes are a local's.
            unsafe {
                libc::send(fd, [1u8; 64].as_ptr().cast(), len, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
            };
        }
    }
}

/// A connection to the holder of a slot.
pub fn connect(slot: u32) -> std::io::Result<OwnedFd> {
    let address = SocketAddr::from_abstract_name(format!("ferroce-2-slot-{slot}"))?;
    // SAFETY: takes no pointer.
    let fd = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK, 0) };
    assert!(fd >= 0);
    // SAFETY: the descriptor is new, and nothing else owns it.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: all-zero bytes are a valid sockaddr_un.
    let mut name: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    name.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let text = address.as_abstract_name().unwrap();
    for (to, from) in name.sun_path[1..].iter_mut().zip(text) {
        *to = *from as libc::c_char;
    }
    let len = size_of::<libc::sa_family_t>() + 1 + text.len();
    // SAFETY: a sockaddr_un of at least that length.
    let done = unsafe { libc::connect(fd, (&raw const name).cast(), len as libc::socklen_t) };
    if done == 0 { Ok(socket) } else { Err(std::io::Error::last_os_error()) }
}

/// False when the other end is closed: it doesn't wait long.
fn send(socket: &OwnedFd, bytes: &[u8], fds: &[RawFd]) -> bool {
    let mut vector = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let rights = size_of_val(fds) as u32;
    // Enough of them for 253 descriptors, and aligned.
    let mut control = [0u64; 256];
    // SAFETY: all-zero bytes are a valid msghdr, and the pointers set are to locals that are large enough.
    let sent = unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &raw mut vector;
        message.msg_iovlen = 1;
        if !fds.is_empty() {
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE(rights) as usize;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(rights) as usize;
            std::ptr::copy_nonoverlapping(fds.as_ptr().cast(), libc::CMSG_DATA(header), rights as usize);
        }
        libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL)
    };
    let error = std::io::Error::last_os_error();
    assert!(sent >= 0 || error.kind() == std::io::ErrorKind::BrokenPipe, "{error}");
    sent >= 0
}

/// What became of a message: "granted", "refused", or "closed".
fn verdict(socket: &OwnedFd) -> &'static str {
    assert!(sys::wait_for(socket.as_raw_fd(), libc::POLLIN, Duration::from_secs(20)), "no answer");
    let mut bytes = [0u8; 128];
    match sys::read(socket.as_raw_fd(), &mut bytes) {
        Ok(len) if len >= 8 && bytes[5] == 0 => "granted",
        Ok(len) if len >= 8 => "refused",
        _ => "closed",
    }
}

fn memory(len: usize, seals: i32) -> EngineFd {
    let fd = sys::memfd(c"ferroce-shm", len).unwrap();
    sys::add_seals(fd.raw(), seals).unwrap();
    fd
}

/// Asks for leave to send memory. False when the other end is closed.
fn may_send_memory(socket: &OwnedFd) -> bool {
    send(socket, b"FRCE\x02\x0c\0\0", &[]) && verdict(socket) == "granted"
}

/// Offers shared memory, right or wrong as `how` names it. Returns the answer and the connection.
pub fn offer(slot: u32, how: &str) -> (&'static str, OwnedFd) {
    let mut hello = vec![0; 40];
    hello[..8].copy_from_slice(b"FRCE\x02\x02\0\0");
    hello[8..16].copy_from_slice(&ferroce_hostlink::LAYOUT.to_ne_bytes());
    hello[16..24].copy_from_slice(&sys::random().to_ne_bytes());
    let sealed = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
    let (link, directory) = (memory(LINK, sealed), memory(DIRECTORY, sealed));
    let good = [link.raw(), directory.raw()];
    let pipe = sys::eventfd(0, 0).unwrap();
    let (unsealed, small) = (memory(LINK, 0), memory(4096, sealed));
    let fds = match how {
        "rightly" => good.to_vec(),
        "without-descriptors" => Vec::new(),
        "one-descriptor" => vec![link.raw()],
        "three-descriptors" => vec![link.raw(), directory.raw(), pipe.raw()],
        "253-descriptors" => vec![link.raw(); 253],
        "no-memory" => vec![pipe.raw(), pipe.raw()],
        "no-directory" => vec![link.raw(), pipe.raw()],
        "unsealed" => vec![unsealed.raw(), directory.raw()],
        "small" => vec![small.raw(), directory.raw()],
        "small-directory" => vec![link.raw(), small.raw()],
        "swapped" => vec![directory.raw(), link.raw()],
        "short" => {
            hello.truncate(39);
            good.to_vec()
        }
        "long" => {
            hello.resize(120, 0);
            good.to_vec()
        }
        "very-long" => {
            hello.resize(4096, 0);
            good.to_vec()
        }
        "frame-only" => {
            hello.truncate(8);
            good.to_vec()
        }
        "another-layout" => {
            hello[8] ^= 1;
            good.to_vec()
        }
        "another-kind" => {
            hello[5] = 9;
            good.to_vec()
        }
        _ => panic!("{how}?"),
    };
    loop {
        match connect(slot) {
            Ok(socket) if may_send_memory(&socket) && send(&socket, &hello, &fds) => {
                return (verdict(&socket), socket);
            }
            Ok(_) => {}
            // Its queue of connections is full.
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => panic!("{error}"),
        }
    }
}
