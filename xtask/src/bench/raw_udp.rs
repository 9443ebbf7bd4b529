//! What plain UDP sockets do on the same path: the ceiling for a transport in user space.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};
use std::{mem, ptr};

/// The kernel's limit for one train (64 segments on older kernels, 65,507 bytes on all).
const MAX_SEGMENTS: usize = 64;
const MAX_TRAIN: usize = 65_000;
/// A datagram of one byte ends a measurement.
const END: &[u8] = &[0];
/// Silence after which either side gives up.
const PATIENCE: Duration = Duration::from_secs(10);

fn set_udp_option(socket: &UdpSocket, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
    // SAFETY: `value` outlives the call and its size is given.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_UDP,
            option,
            (&raw const value).cast(),
            mem::size_of_val(&value) as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn unspecified(port: u16) -> SocketAddr {
    (std::net::Ipv6Addr::UNSPECIFIED, port).into()
}

/// Counts bytes until a sender announces its end; prints `received BYTES bytes in SECONDS seconds`.
///
/// # Errors
/// A socket call fails, or nothing arrives for ten seconds.
pub fn sink(port: u16) -> io::Result<()> {
    let socket = UdpSocket::bind(unspecified(port))?;
    set_udp_option(&socket, libc::UDP_GRO, 1)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    println!("ready");
    let mut buffer = vec![0; 65_536];
    let (mut bytes, mut first, mut last) = (0u64, None, Instant::now());
    loop {
        let count = socket.recv(&mut buffer)?;
        if count == END.len() {
            break;
        }
        last = Instant::now();
        first.get_or_insert(last);
        bytes += count as u64;
    }
    let seconds = first.map_or(0.0, |first| (last - first).as_secs_f64());
    println!("received {bytes} bytes in {seconds} seconds");
    Ok(())
}

/// Sends trains of `segment`-byte datagrams as fast as the socket takes them; prints `sent BYTES bytes in SECONDS seconds`.
///
/// # Errors
/// A socket call fails.
pub fn source(to: SocketAddr, seconds: u64, segment: u16) -> io::Result<()> {
    let socket = UdpSocket::bind(unspecified(0)).and_then(|socket| {
        set_udp_option(&socket, libc::UDP_SEGMENT, segment.into())?;
        socket.connect(mapped(to))?;
        Ok(socket)
    })?;
    let segments = MAX_SEGMENTS.min(MAX_TRAIN / usize::from(segment));
    let train = vec![0x5a; segments * usize::from(segment)];
    let (start, mut bytes) = (Instant::now(), 0u64);
    while start.elapsed() < Duration::from_secs(seconds) {
        bytes += socket.send(&train)? as u64;
    }
    let elapsed = start.elapsed().as_secs_f64();
    println!("sent {bytes} bytes in {elapsed} seconds");
    announce_the_end(&socket)
}

/// Datagrams of one sendmmsg or recvmmsg.
const BATCH: usize = 64;

/// The structures of a sendmmsg or recvmmsg of [`BATCH`] datagrams, which lie one behind the other in `buffer`.
fn batch(buffer: &mut [u8]) -> (Vec<libc::iovec>, Vec<libc::mmsghdr>) {
    let size = buffer.len() / BATCH;
    let mut pieces: Vec<libc::iovec> = buffer
        .chunks_exact_mut(size)
        .map(|piece| libc::iovec { iov_base: piece.as_mut_ptr().cast(), iov_len: size })
        .collect();
    let headers = pieces.iter_mut().map(|piece| {
        // SAFETY: zeroes are a valid header: no address, no data, no control messages.
        let mut header: libc::mmsghdr = unsafe { mem::zeroed() };
        (header.msg_hdr.msg_iov, header.msg_hdr.msg_iovlen) = (piece, 1);
        header
    });
    let headers = headers.collect();
    (pieces, headers)
}

/// Counts datagrams with recvmmsg until a sender announces its end; prints `received COUNT messages in SECONDS seconds`.
///
/// # Errors
/// A socket call fails, or nothing arrives for ten seconds.
pub fn count(port: u16) -> io::Result<()> {
    let socket = UdpSocket::bind(unspecified(port))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    println!("ready");
    let mut buffer = vec![0; BATCH * 2048];
    let (_pieces, mut headers) = batch(&mut buffer);
    let (mut messages, mut first, mut last) = (0usize, None, Instant::now());
    loop {
        let (descriptor, wait_for_one) = (socket.as_raw_fd(), libc::MSG_WAITFORONE);
        // SAFETY: the headers, their pieces and the buffer outlive the call.
        let received = unsafe {
            libc::recvmmsg(descriptor, headers.as_mut_ptr(), BATCH as u32, wait_for_one, ptr::null_mut())
        };
        let Ok(received) = usize::try_from(received) else { return Err(io::Error::last_os_error()) };
        if headers[..received].iter().any(|header| header.msg_len as usize == END.len()) {
            break;
        }
        last = Instant::now();
        first.get_or_insert(last);
        messages += received;
    }
    let seconds = first.map_or(0.0, |first| (last - first).as_secs_f64());
    println!("received {messages} messages in {seconds} seconds");
    Ok(())
}

/// Sends datagrams of `size` bytes with sendmmsg as fast as the socket takes them.
///
/// # Errors
/// A socket call fails.
pub fn shower(to: SocketAddr, seconds: u64, size: usize) -> io::Result<()> {
    let socket = UdpSocket::bind(unspecified(0))?;
    socket.connect(mapped(to))?;
    let mut buffer = vec![0x5a; BATCH * size];
    let (_pieces, mut headers) = batch(&mut buffer);
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(seconds) {
        // SAFETY: the headers, their pieces and the buffer outlive the call.
        if unsafe { libc::sendmmsg(socket.as_raw_fd(), headers.as_mut_ptr(), BATCH as u32, 0) } == -1 {
            return Err(io::Error::last_os_error());
        }
    }
    announce_the_end(&socket)
}

/// Sends the end more than once: the queue before it may be full.
fn announce_the_end(socket: &UdpSocket) -> io::Result<()> {
    for _ in 0..20 {
        socket.send(END).or_else(refused_is_fine)?;
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// The first end that arrives closes the sink, and the next is answered by ICMP.
fn refused_is_fine(error: io::Error) -> io::Result<usize> {
    if error.kind() == ErrorKind::ConnectionRefused { Ok(0) } else { Err(error) }
}

fn mapped(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(v4) => (v4.ip().to_ipv6_mapped(), v4.port()).into(),
        SocketAddr::V6(_) => address,
    }
}

/// Returns every datagram to its sender, polling, until an end arrives.
///
/// # Errors
/// A socket call fails, or nothing arrives for ten seconds.
pub fn echo(port: u16) -> io::Result<()> {
    let socket = UdpSocket::bind(unspecified(port))?;
    socket.set_nonblocking(true)?;
    println!("ready");
    let mut buffer = [0; 65_536];
    loop {
        let (count, from) = poll(|| socket.recv_from(&mut buffer))?;
        if count == END.len() {
            return Ok(());
        }
        socket.send_to(&buffer[..count], from)?;
    }
}

/// Measures round trips, polling; prints `median MICROSECONDS usec` of half a round trip, as latency tools do.
///
/// # Errors
/// A socket call fails, or an answer doesn't come within ten seconds.
pub fn ping(to: SocketAddr, iterations: usize, size: usize) -> io::Result<()> {
    let socket = UdpSocket::bind(unspecified(0))?;
    socket.connect(mapped(to))?;
    socket.set_nonblocking(true)?;
    let message = vec![0x5a; size.max(END.len() + 1)];
    let mut buffer = vec![0; message.len()];
    let mut times = Vec::with_capacity(iterations);
    for _ in 0..iterations {
        let start = Instant::now();
        socket.send(&message)?;
        poll(|| socket.recv(&mut buffer))?;
        times.push(start.elapsed());
    }
    socket.send(END)?;
    times.sort_unstable();
    println!("median {} usec", times[times.len() / 2].as_secs_f64() * 1e6 / 2.0);
    Ok(())
}

fn poll<T>(mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let mut start = None;
    loop {
        match attempt() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                let start = *start.get_or_insert_with(Instant::now);
                if start.elapsed() > PATIENCE {
                    return Err(error);
                }
            }
            result => return result,
        }
    }
}
