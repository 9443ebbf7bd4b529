//! Sends packets that must be dropped to UDP port 4791, and records real ones to make such packets from.
//!
//! In here: a packet socket, the forging of packets, sending them at a rate. The tests in `hostile_packets.rs` run it
//! inside their hosts; it isn't part of what is tested.
//! Out of here: what the packets must not do; that is checked by the programs they are sent to.

mod capture;
mod forge;
mod mads;

use forge::{Forge, Victim};
use mads::{Kind, Mads};
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// Packets of one system call.
const BATCH: usize = 64;
const PORT: u16 = 4791;
const USAGE: &str = "usage: hostile-sender capture INTERFACE PACKETS FILE\n       hostile-sender send to=ADDRESS from=ADDRESS alias=ADDRESS count=N \
                     rate=N seed=N rc=QPN ud=QPN peer-rc=QPN psn=PSN qkey=KEY rkey=KEY va=ADDRESS captured=FILE [future=yes]\n       \
                     hostile-sender mads to=ADDRESS from=ADDRESS port=PORT kind=flood|replayed|mutated count=N rate=N seed=N";

fn main() -> io::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["capture", interface, count, file] => {
            let packets = capture::capture(interface, number(count)? as usize, Duration::from_secs(10))?;
            println!("{} packets", packets.len());
            capture::write(file, &packets)
        }
        ["send", settings @ ..] => send(settings),
        ["mads", settings @ ..] => send_mads(settings),
        _ => Err(usage("what to do")),
    }
}

fn usage(what: &str) -> io::Error {
    io::Error::other(format!("{what}?\n{USAGE}"))
}

fn number(text: &str) -> io::Result<u64> {
    text.parse().map_err(|_| usage(text))
}

fn send(settings: &[&str]) -> io::Result<()> {
    let settings: HashMap<&str, &str> = settings.iter().filter_map(|word| word.split_once('=')).collect();
    let text = |name: &str| settings.get(name).copied().ok_or_else(|| usage(name));
    let value = |name: &str| text(name).and_then(number);
    let address = |name: &str| text(name)?.parse::<IpAddr>().map_err(|_| usage(name));
    let to = SocketAddr::new(address("to")?, PORT);
    let sources = [Source::new(address("from")?, to)?, Source::new(address("alias")?, to)?];
    let victim = Victim {
        rc: value("rc")? as u32,
        ud: value("ud")? as u32,
        peer_rc: value("peer-rc")? as u32,
        psn: value("psn")? as u32,
        qkey: value("qkey")? as u32,
        rkey: value("rkey")? as u32,
        va: value("va")?,
    };
    let (count, rate) = (value("count")?, value("rate")?);
    let captured = capture::read(text("captured")?)?;
    let flows = sources.each_ref().map(|source| source.flow);
    let future = settings.contains_key("future");
    let mut forge = Forge::new(victim, captured, flows, future, value("seed")?);
    let start = Instant::now();
    let mut sent = 0;
    while sent < count {
        for (number, source) in sources.iter().enumerate() {
            let packets: Vec<Vec<u8>> = (0..BATCH).map(|_| forge.packet(number)).collect();
            sent += source.send(&packets)?;
        }
        let due = Duration::from_secs_f64(sent as f64 / rate as f64);
        std::thread::sleep(due.saturating_sub(start.elapsed()));
    }
    println!("{sent} packets in {:?}: {}", start.elapsed(), forge.summary());
    Ok(())
}

/// How long no answer comes before there is none left.
const QUIET: Duration = Duration::from_secs(1);

/// Sends messages to a listener, and receives its answers: none may be larger than the question, or more frequent than its requests
/// allow.
fn send_mads(settings: &[&str]) -> io::Result<()> {
    let settings: HashMap<&str, &str> = settings.iter().filter_map(|word| word.split_once('=')).collect();
    let text = |name: &str| settings.get(name).copied().ok_or_else(|| usage(name));
    let value = |name: &str| text(name).and_then(number);
    let address = |name: &str| text(name)?.parse::<IpAddr>().map_err(|_| usage(name));
    let (from, to) = (address("from")?, address("to")?);
    let source = Source::new(from, SocketAddr::new(to, PORT))?;
    // Answers come here, wherever the question came from.
    let answers = UdpSocket::bind((from, PORT))?;
    answers.set_nonblocking(true)?;
    let (count, rate) = (value("count")?, value("rate")?);
    let kind = Kind::named(text("kind")?).ok_or_else(|| usage("kind"))?;
    let mut mads = Mads::new(from, to, value("port")? as u16, kind, source.flow, value("seed")?);
    let (mut sent, mut longest, mut heard, mut longest_heard) = (0, 0, 0_u64, 0);
    let start = Instant::now();
    let mut packet = [0; 2048];
    let mut listen = |mads: &mut Mads| {
        while let Ok(length) = answers.recv(&mut packet) {
            heard += 1;
            longest_heard = length.max(longest_heard);
            mads.heard(&packet[..length]);
        }
    };
    println!("begins");
    while sent < count {
        let packets: Vec<Vec<u8>> = (0..BATCH).map(|_| mads.packet()).collect();
        longest = packets.iter().map(Vec::len).max().unwrap_or(0).max(longest);
        sent += source.send(&packets)?;
        listen(&mut mads);
        let due = Duration::from_secs_f64(sent as f64 / rate as f64);
        std::thread::sleep(due.saturating_sub(start.elapsed()));
    }
    let took = start.elapsed();
    // The last answers are over when none has come for a second.
    answers.set_nonblocking(false)?;
    answers.set_read_timeout(Some(QUIET))?;
    listen(&mut mads);
    println!("{sent} messages in {took:?}, {heard} answers");
    if longest_heard > longest {
        return Err(io::Error::other(format!("an answer of {longest_heard} bytes to at most {longest}")));
    }
    Ok(())
}

/// A socket that sends from one of our addresses, unconnected, as RoCE senders do: identification 0.
struct Source {
    socket: UdpSocket,
    to: libc::sockaddr_storage,
    to_length: libc::socklen_t,
    flow: ferroce_wire::icrc::Flow,
}

impl Source {
    fn new(from: IpAddr, to: SocketAddr) -> io::Result<Self> {
        let socket = UdpSocket::bind((from, 0))?;
        let port = socket.local_addr()?.port();
        let option = |level, name, value: libc::c_int| {
            // SAFETY: the option's value is an int.
            let result = unsafe {
                libc::setsockopt(
                    socket.as_raw_fd(),
                    level,
                    name,
                    (&raw const value).cast(),
                    size_of::<libc::c_int>() as libc::socklen_t,
                )
            };
            if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
        };
        let flow = match (from, to.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                option(libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO)?;
                ferroce_wire::icrc::Flow::v4(from, to, port, PORT)
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => ferroce_wire::icrc::Flow::v6(from, to, port, PORT),
            _ => return Err(usage("from and to of one family")),
        };
        let (to, to_length) = raw_address(to);
        Ok(Self { socket, to, to_length, flow })
    }

    /// Sends packets in as few calls as the kernel takes; returns how many left.
    fn send(&self, packets: &[Vec<u8>]) -> io::Result<u64> {
        let mut vectors: Vec<libc::iovec> = packets
            .iter()
            .map(|packet| libc::iovec { iov_base: packet.as_ptr().cast_mut().cast(), iov_len: packet.len() })
            .collect();
        let mut headers: Vec<libc::mmsghdr> = vectors
            .iter_mut()
            .map(|vector| {
                // SAFETY: all-zero bytes are a valid mmsghdr.
                let mut header: libc::mmsghdr = unsafe { std::mem::zeroed() };
                header.msg_hdr.msg_name = (&raw const self.to).cast_mut().cast();
                header.msg_hdr.msg_namelen = self.to_length;
                header.msg_hdr.msg_iov = vector;
                header.msg_hdr.msg_iovlen = 1;
                header
            })
            .collect();
        let mut done = 0;
        while done < headers.len() {
            let rest = &mut headers[done..];
            // SAFETY: the headers point to buffers that live until the end of this function and are only read.
            let result = unsafe {
                libc::sendmmsg(self.socket.as_raw_fd(), rest.as_mut_ptr(), rest.len() as libc::c_uint, 0)
            };
            match usize::try_from(result) {
                Ok(taken) => done += taken,
                Err(_) => return Err(io::Error::last_os_error()),
            }
        }
        Ok(done as u64)
    }
}

fn raw_address(address: SocketAddr) -> (libc::sockaddr_storage, libc::socklen_t) {
    // SAFETY: all-zero bytes are a valid sockaddr_storage.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let length = match address {
        SocketAddr::V4(v4) => {
            let raw = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                sin_zero: [0; 8],
            };
            // SAFETY: sockaddr_storage has room and alignment for every address.
            unsafe { (&raw mut storage).cast::<libc::sockaddr_in>().write(raw) };
            size_of_val(&raw)
        }
        SocketAddr::V6(v6) => {
            let raw = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: as above.
            unsafe { (&raw mut storage).cast::<libc::sockaddr_in6>().write(raw) };
            size_of_val(&raw)
        }
    };
    (storage, length as libc::socklen_t)
}
