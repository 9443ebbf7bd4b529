//! Reading a socket of the group: `recvmmsg` (or `recvmsg`) into large buffers, GRO trains cut into packets.

use super::Stats;
use ferroce_os::room;
use ferroce_os::sys::{self, BatchMessage, EngineFd, ReceiveBatch, control};
use ferroce_types::{Datagram, HostAddr, MAX_FLOW_LABEL};
use ferroce_wire::MIN_PACKET_LEN;
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

/// Messages a call takes; each is a whole train where the kernel merges.
const MESSAGES: usize = 16;
/// The largest UDP datagram, merged or not.
const MESSAGE_BYTES: usize = 65536;
/// Packets handed on at once.
const BATCH: usize = 64;
/// Segment size, TOS, TTL and flow label.
const CONTROL: usize = 4 * control::space(4);

/// A socket for RoCEv2 packets, not bound yet.
///
/// # Errors
/// No descriptor is left, or the kernel lacks an option.
pub fn receiving_socket(v6: bool) -> io::Result<EngineFd> {
    let socket = sys::socket(if v6 { libc::AF_INET6 } else { libc::AF_INET }, libc::SOCK_DGRAM)?;
    let fd = socket.raw();
    let on = 1_i32;
    if v6 {
        sys::set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, &on)?;
        if_known(sys::set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_ALL, &0_i32))?;
        sys::set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, &on)?;
        sys::set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT, &on)?;
        if_known(sys::set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_FLOWINFO, &on))?;
        // RoCE adapters send UDP checksums of 0; without this IPv6 drops them.
        sys::set_option(fd, libc::SOL_UDP, libc::UDP_NO_CHECK6_RX, &on)?;
    } else {
        if_known(sys::set_option(fd, libc::IPPROTO_IP, libc::IP_MULTICAST_ALL, &0_i32))?;
        sys::set_option(fd, libc::IPPROTO_IP, libc::IP_RECVTOS, &on)?;
        sys::set_option(fd, libc::IPPROTO_IP, libc::IP_RECVTTL, &on)?;
    }
    // Where it doesn't exist, packets come one by one.
    let _ = sys::set_option(fd, libc::SOL_UDP, libc::UDP_GRO, &on);
    sys::large_buffer(fd, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF);
    Ok(socket)
}

/// What an option gave that qemu-user doesn't know: without it packets have flow label 0. That only groups come that a socket has joined is
/// also seen to by the address and the interface that it is bound to.
fn if_known(outcome: io::Result<()>) -> io::Result<()> {
    match outcome {
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => Ok(()),
        outcome => outcome,
    }
}

/// What [`super::Endpoint::recv`] did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RecvOutcome {
    /// Another thread is reading this socket at the moment.
    Busy,
    /// This many packets were handed on; perhaps none.
    Packets {
        /// How many.
        count: usize,
        /// The call was filled: there may be more.
        more: bool,
    },
}

impl RecvOutcome {
    /// Packets handed on.
    #[must_use]
    pub const fn count(&self) -> usize {
        match self {
            Self::Busy => 0,
            Self::Packets { count, .. } => *count,
        }
    }
}

/// Buffers of one socket. A megabyte of address space, of which only what arrives is ever touched.
pub(super) struct SocketReader {
    messages: ReceiveBatch<MESSAGES, MESSAGE_BYTES, CONTROL>,
    /// Messages to ask for: asking for more than there are costs time when there is one.
    expected: usize,
    /// The last call returned as many as were asked for.
    was_filled: bool,
    /// Room for what is handed on at once.
    batch: Vec<Datagram<'static>>,
}

impl SocketReader {
    pub(super) fn new() -> Self {
        Self {
            messages: ReceiveBatch::new(true),
            expected: 1,
            was_filled: false,
            batch: Vec::with_capacity(BATCH),
        }
    }

    pub(super) fn receive(
        &mut self,
        fd: RawFd,
        destination: HostAddr,
        stats: &Stats,
        f: &mut dyn FnMut(&[Datagram<'_>]),
    ) -> io::Result<RecvOutcome> {
        let messages = match self.messages.receive(fd, self.expected) {
            Ok(n) => n,
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => 0,
            Err(e) => return Err(e),
        };
        let more = messages == self.expected;
        // The message of a ping-pong is followed by none. So only the second call in a row that was filled asks for more.
        self.expected = match (more, self.was_filled) {
            (true, true) => (2 * messages).min(MESSAGES),
            _ => messages.max(1),
        };
        self.was_filled = more;
        let count = match messages {
            0 => 0,
            1 => self.hand_on_alone(destination, stats, f),
            _ => self.hand_on(destination, stats, f),
        };
        stats.received.fetch_add(count as u64, Ordering::Relaxed);
        Ok(RecvOutcome::Packets { count, more })
    }

    /// Hands on the only message that has been received. A packet that has come alone needs no room in the batch.
    #[inline]
    fn hand_on_alone(
        &mut self,
        destination: HostAddr,
        stats: &Stats,
        f: &mut dyn FnMut(&[Datagram<'_>]),
    ) -> usize {
        let first = self.messages.messages().next();
        let alone = first.and_then(|message| ReceivedTrain::of(message, destination));
        if let Some(ReceivedTrain { datagram, segment_size }) = &alone
            && (1..=*segment_size).contains(&datagram.bytes.len())
        {
            if datagram.bytes.len() < MIN_PACKET_LEN {
                stats.malformed.fetch_add(1, Ordering::Relaxed);
                return 0;
            }
            f(std::slice::from_ref(datagram));
            return 1;
        }
        self.hand_on(destination, stats, f)
    }

    /// Hands on what has been received, at most [`BATCH`] packets at once; returns how many there were.
    #[inline(never)]
    fn hand_on(&mut self, destination: HostAddr, stats: &Stats, f: &mut dyn FnMut(&[Datagram<'_>])) -> usize {
        let mut count = 0;
        let mut batch: Vec<Datagram<'_>> = room::reuse(std::mem::take(&mut self.batch));
        let messages = self.messages.messages().filter_map(|message| ReceivedTrain::of(message, destination));
        for ReceivedTrain { datagram, segment_size } in messages {
            for (segment, bytes) in datagram.bytes.chunks(segment_size).enumerate() {
                if bytes.len() < MIN_PACKET_LEN {
                    stats.malformed.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
                batch.push(Datagram { segment: segment as u16, bytes, ..datagram });
                if batch.len() == BATCH {
                    count += batch.len();
                    f(&batch);
                    batch.clear();
                }
            }
        }
        if !batch.is_empty() {
            count += batch.len();
            f(&batch);
            batch.clear();
        }
        self.batch = room::reuse(batch);
        count
    }
}

/// What the kernel has received at once: a packet, or a train that it has merged.
struct ReceivedTrain<'a> {
    /// Its first packet, with the bytes of all.
    datagram: Datagram<'a>,
    /// Bytes of each packet but the last.
    segment_size: usize,
}

impl<'a> ReceivedTrain<'a> {
    #[inline(always)]
    fn of(message: BatchMessage<'a>, destination: HostAddr) -> Option<Self> {
        let source = message.source.socket_addr()?;
        let bytes = message.bytes;
        let mut datagram = Datagram {
            source,
            destination,
            tos: 0,
            ttl: None,
            flow_label: 0,
            is_of_user: false,
            segment: 0,
            bytes,
        };
        let segment_size = read_control(message.control, &mut datagram).unwrap_or(MESSAGE_BYTES);
        Some(Self { datagram, segment_size })
    }
}

/// Fills in TOS, TTL and flow label; returns the segment size of a merged train.
#[inline]
fn read_control(messages: control::ReceivedControls<'_>, about: &mut Datagram<'_>) -> Option<usize> {
    let mut segment_size = None;
    for message in messages {
        let Some(value) = message.int() else { continue };
        match (message.level, message.kind) {
            (libc::SOL_UDP, libc::UDP_GRO) => segment_size = usize::try_from(value).ok().filter(|&n| n > 0),
            (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                about.tos = value as u8
            }
            (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                about.ttl = u8::try_from(value).ok();
            }
            (libc::IPPROTO_IPV6, libc::IPV6_FLOWINFO) => {
                about.flow_label = u32::from_be(value as u32) & MAX_FLOW_LABEL;
            }
            _ => {}
        }
    }
    segment_size
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    #[test]
    #[cfg_attr(miri, ignore = "it opens sockets")]
    fn messages_that_come_alone_are_asked_for_one_by_one_and_more_in_a_row_together() {
        let socket = receiving_socket(false).unwrap();
        sys::bind(socket.raw(), &sys::InetAddress::new("127.0.0.1:0".parse().unwrap())).unwrap();
        let mut name = sys::InetAddress::zeroed();
        sys::socket_name(socket.raw(), &mut name).unwrap();
        let to = name.socket_addr().unwrap();
        let from = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut reader = SocketReader::new();
        let mut receive = |count: usize| {
            (0..count).for_each(|n| _ = from.send_to(&[0; 64][..32 + n % 2], to).unwrap());
            let destination = HostAddr::from(to);
            let outcome = reader.receive(socket.raw(), destination, &Stats::default(), &mut |_| ()).unwrap();
            (outcome.count(), reader.expected)
        };
        for _ in 0..10 {
            assert_eq!(receive(1), (1, 1));
            assert_eq!(receive(0), (0, 1));
        }
        assert_eq!(receive(7), (1, 1));
        assert_eq!([receive(0), receive(0), receive(0)], [(1, 2), (2, 4), (3, 3)]);
    }

    #[test]
    #[cfg_attr(miri, ignore = "it opens sockets")]
    fn packets_that_one_call_returns_are_handed_on_together() {
        let socket = receiving_socket(false).unwrap();
        sys::bind(socket.raw(), &sys::InetAddress::new("127.0.0.1:0".parse().unwrap())).unwrap();
        let mut name = sys::InetAddress::zeroed();
        sys::socket_name(socket.raw(), &mut name).unwrap();
        let to = name.socket_addr().unwrap();
        let from = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut reader = SocketReader::new();
        let mut batches = Vec::new();
        // Of different lengths: the kernel merges none.
        (0..11_usize).for_each(|n| _ = from.send_to(&[n as u8; 64][..32 + n % 2], to).unwrap());
        for _ in 0..4 {
            let mut take = |datagrams: &[Datagram<'_>]| {
                batches.push(datagrams.iter().map(|datagram| datagram.bytes[0]).collect::<Vec<_>>());
            };
            reader.receive(socket.raw(), to.into(), &Stats::default(), &mut take).unwrap();
        }
        assert_eq!(batches, [vec![0], vec![1], vec![2, 3], vec![4, 5, 6, 7]]);
    }
}
