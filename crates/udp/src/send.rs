//! Handing a batch to the kernel: `sendmmsg`, and what to do when it refuses.

use super::endpoint::{Dest, Endpoint};
use super::train::{Flushed, Train};
use ferroce_os::clock;
use ferroce_os::sys::{self, Outgoing, SendBatch, control};
use ferroce_os::throttle::OncePerSecond;
use ferroce_types::Instant as Present;
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Messages a `sendmmsg` takes here.
const MESSAGES: usize = 32;
/// What full socket buffers are given, per batch.
const PATIENCE: Duration = Duration::from_millis(1);
/// TOS, TTL, flow label and segment size.
const CONTROL: usize = 4 * control::space(4);
type ControlOut = control::ControlBuffer<CONTROL>;

/// What a `sendmmsg` of many messages is handed; too much for small stacks.
pub(super) type Many = SendBatch<MESSAGES, 1, CONTROL>;

/// Sends trains that lie in `staging`; those that leave by one socket leave in order. `many` is made when many messages go at once, and
/// serves the next call. `now` is the present, at most half a millisecond ago.
pub(super) fn send(
    staging: &mut [u8],
    trains: &mut [Train],
    many: &mut Option<Many>,
    now: Present,
) -> Flushed {
    let mut sending = Sending { staging, many, now, deadline: None, flushed: Flushed::default() };
    trains.sort_by_key(Train::socket);
    for trains in trains.chunk_by(|a, b| a.socket() == b.socket()) {
        // What was dropped is counted.
        let _ = sending.messages(trains);
    }
    sending.flushed
}

/// Sends a packet that needs no control message, and counts it. False, and nothing was sent: [`send`] has to, which knows what errors mean.
/// `now` as in [`send`].
#[inline(always)]
pub(super) fn plain(dest: &Dest, packet: &[u8], now: Present) -> bool {
    let sent =
        dest.is_plain() && sys::send_to(dest.endpoint.sender_fd(dest.sender, now), packet, &dest.to).is_ok();
    if sent {
        dest.endpoint.stats().sent.fetch_add(1, Ordering::Relaxed);
    }
    sent
}

/// The errors that sending one message has returned. An error may be the ICMP error of an earlier packet: it is returned once, and the message
/// can be sent again. An error of the message itself is returned each time.
#[derive(Default)]
struct Tries {
    /// Errors that may be the network's.
    heard: u8,
    /// Errors since the last of these.
    alone: u8,
}

/// What to do with a message after an error.
#[derive(Debug, PartialEq, Eq)]
enum ErrorAction {
    TryAgain,
    /// The kernel refuses it.
    Refused,
    /// Too many ICMP errors to match one with this message: it is dropped.
    Lost,
}

impl Tries {
    /// Errors that the network may cause, of one message.
    const HEARD: u8 = 16;
    /// Errors in a row that nothing explains. Not the first: its explanation may have been taken by another thread, or with that of the
    /// error before.
    const ALONE: u8 = 2;

    /// The error was returned, with or without an ICMP message since.
    #[cold]
    fn next(&mut self, has_heard: bool) -> ErrorAction {
        if has_heard {
            (self.heard, self.alone) = (self.heard + 1, 0);
        } else {
            self.alone += 1;
        }
        match self {
            Self { alone: Self::ALONE.., .. } => ErrorAction::Refused,
            Self { heard: Self::HEARD.., .. } => ErrorAction::Lost,
            _ => ErrorAction::TryAgain,
        }
    }
}

struct Sending<'s> {
    staging: &'s mut [u8],
    many: &'s mut Option<Many>,
    now: Present,
    /// When the patience ends; from the first full buffer on.
    deadline: Option<Instant>,
    flushed: Flushed,
}

impl Sending<'_> {
    /// The packets of a train as messages of their own. Each then has the identification 0.
    fn singles(&mut self, train: &Train) -> Vec<Train> {
        for packet in self.staging[train.start..train.start + train.len].chunks_mut(train.segment) {
            train.dest.write_icrc(packet, 0);
        }
        let single = |at| {
            let len = train.segment.min(train.len - at);
            Train { dest: train.dest.clone(), start: train.start + at, len, segment: len, count: 1 }
        };
        (0..train.len).step_by(train.segment).map(single).collect()
    }

    /// Sends these, which leave by one socket, or drops them. The error is that of those that were dropped last.
    #[inline]
    fn messages(&mut self, trains: &[Train]) -> io::Result<()> {
        match self.next(trains) {
            Ok(sent) if sent == trains.len() => Ok(()),
            sent => self.after(trains, sent),
        }
    }

    /// Sends the first of these. Returns how many went.
    #[inline]
    fn next(&mut self, trains: &[Train]) -> io::Result<usize> {
        let Some(Train { dest, .. }) = trains.first() else { return Ok(0) };
        let fd = dest.endpoint.sender_fd(dest.sender, self.now);
        let sent = self.once(fd, &trains[..trains.len().min(MESSAGES)])?;
        self.sent(&dest.endpoint, &trains[..sent]);
        Ok(sent)
    }

    /// The rest of [`Self::messages`], after the first call of [`Self::next`].
    #[cold]
    fn after(&mut self, trains: &[Train], mut sent: io::Result<usize>) -> io::Result<()> {
        let mut result = Ok(());
        let mut rest = trains;
        let mut tries = Tries::default();
        loop {
            let error = match sent {
                Ok(sent) => {
                    rest = &rest[sent..];
                    tries = Tries::default();
                    None
                }
                Err(error) => Some(error),
            };
            let Some(first) = rest.first() else { return result };
            let (endpoint, sender) = (&*first.dest.endpoint, first.dest.sender);
            match error {
                None => {}
                Some(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Some(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let has_room = self.wait(endpoint.sender_fd(sender, self.now));
                    if !has_room {
                        self.drop_all(rest, &error);
                        return Err(error);
                    }
                }
                Some(error) => match tries.next(endpoint.take_returned(sender)) {
                    ErrorAction::TryAgain => {}
                    // What the kernel refuses may be the label: then it goes without.
                    ErrorAction::Refused if refuses_label(&error, first) => endpoint.labels_refused(),
                    ErrorAction::Refused if first.count > 1 && refuses_segmentation(&error) => {
                        rest = &rest[1..];
                        tries = Tries::default();
                        result = self.try_singles(first);
                    }
                    ErrorAction::Refused | ErrorAction::Lost => {
                        rest = &rest[1..];
                        tries = Tries::default();
                        self.drop_all(std::slice::from_ref(first), &error);
                        result = Err(error);
                    }
                },
            }
            sent = self.next(rest);
        }
    }

    /// A train was refused in a way that may be about segmentation or about the packets themselves. If the packets go
    /// out alone it was segmentation, and this address won't try it again.
    #[cold]
    #[inline(never)]
    fn try_singles(&mut self, train: &Train) -> io::Result<()> {
        let singles = self.singles(train);
        let (first, others) = singles.split_at(1);
        if let Err(error) = self.messages(first) {
            self.drop_all(others, &error);
            return Err(error);
        }
        train.dest.endpoint.segmentation_failed();
        self.messages(others)
    }

    /// One `sendmmsg`: how many of `trains` (at most [`MESSAGES`]) went. A lone message, as in a ping-pong, doesn't pay
    /// for the space of many.
    fn once(&mut self, fd: RawFd, trains: &[Train]) -> io::Result<usize> {
        match trains {
            [one] if one.count == 1 && one.dest.is_plain() => {
                let bytes = &self.staging[one.start..one.start + one.len];
                sys::send_to(fd, bytes, &one.dest.to).map(|_| 1)
            }
            [one] => self.one(fd, one),
            _ => self.many(fd, trains),
        }
    }

    fn one(&mut self, fd: RawFd, train: &Train) -> io::Result<usize> {
        let mut control = ControlOut::new();
        let message = message(self.staging, train, &mut control);
        sys::send_message(fd, &message, &mut control).map(|_| 1)
    }

    fn many(&mut self, fd: RawFd, trains: &[Train]) -> io::Result<usize> {
        let staging = &*self.staging;
        let many = self.many.get_or_insert_with(Many::new);
        many.send(fd, trains, |train, control| message(staging, train, control))
    }

    fn wait(&mut self, fd: RawFd) -> bool {
        let now = Instant::now();
        let deadline = *self.deadline.get_or_insert(now + PATIENCE);
        let left = deadline.saturating_duration_since(now);
        let has_room = !left.is_zero() && sys::wait_for(fd, libc::POLLOUT, left);
        // Meanwhile the program may have given the number another file.
        self.now = clock::now();
        has_room
    }

    fn sent(&mut self, endpoint: &Endpoint, trains: &[Train]) {
        for train in trains {
            let packets = usize::from(train.count);
            self.flushed.sent += packets;
            endpoint.stats().sent.fetch_add(packets as u64, Ordering::Relaxed);
            if packets > 1 {
                endpoint.stats().trains.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    #[cold]
    fn drop_all(&mut self, trains: &[Train], error: &io::Error) {
        static BRAKE: OncePerSecond = OncePerSecond::new();
        let Some(Train { dest, len: bytes, .. }) = trains.first() else { return };
        let packets: usize = trains.iter().map(|train| usize::from(train.count)).sum();
        self.flushed.dropped += packets;
        dest.endpoint.stats().dropped.fetch_add(packets as u64, Ordering::Relaxed);
        if BRAKE.allows_now() {
            tracing::debug!(?dest, packets, bytes, %error, "packets not sent");
        }
    }
}

/// A message with its control messages.
fn message<'a>(staging: &'a [u8], train: &'a Train, control: &mut ControlOut) -> Outgoing<'a, 1> {
    fill_control(control, train);
    Outgoing::new([&staging[train.start..train.start + train.len]]).to(&train.dest.to)
}

fn fill_control(control: &mut ControlOut, train: &Train) {
    let dest = &train.dest;
    let v6 = dest.peer().is_ipv6();
    let level = if v6 { libc::IPPROTO_IPV6 } else { libc::IPPROTO_IP };
    // There is room for all four.
    if train.count > 1 {
        control.push(libc::SOL_UDP, libc::UDP_SEGMENT, &(train.segment as u16).to_ne_bytes());
    }
    if dest.marked.0 {
        let kind = if v6 { libc::IPV6_TCLASS } else { libc::IP_TOS };
        control.push(level, kind, &i32::from(dest.tos).to_ne_bytes());
    }
    if dest.marked.1 {
        let kind = if v6 { libc::IPV6_HOPLIMIT } else { libc::IP_TTL };
        control.push(level, kind, &i32::from(dest.ttl).to_ne_bytes());
    }
    if dest.flow_label() != 0 {
        control.push(level, libc::IPV6_FLOWINFO, &dest.flow_label().to_be_bytes());
    }
}

/// The kernel's error may be about the flow label.
fn refuses_label(error: &io::Error, train: &Train) -> bool {
    error.raw_os_error() == Some(libc::EINVAL) && train.dest.flow_label() != 0
}

/// Whether the error may mean that the kernel or the device can't segment. These errors have other causes too.
fn refuses_segmentation(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EINVAL | libc::EIO | libc::EOPNOTSUPP | libc::ENOPROTOOPT | libc::EMSGSIZE)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PushError, TxBatch, send_at_once};
    use ferroce_os::sys::{EngineFd, InetAddress};
    use ferroce_types::{GROUP_SIZE, HostAddr, Unreachable};
    use ferroce_wire::crc::extend;
    use ferroce_wire::icrc::Flow;
    use ferroce_wire::{Bth, Headers, Opcode, Operation, Service};
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
    use std::sync::Arc;

    fn headers(psn: u32) -> Headers {
        let opcode = Opcode { service: Service::Rc, operation: Operation::SendMiddle };
        Headers::new(Bth::new(opcode, 0x1000, psn))
    }

    #[test]
    fn without_segmentation_packets_go_one_by_one_with_icrcs_to_match() {
        // Not port 4791, which is the host's: a receiver on a port of its own.
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        receiver.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let port = receiver.local_addr().unwrap().port();
        let lo = HostAddr::new(Ipv4Addr::LOCALHOST.into(), 0);
        let unused: Vec<EngineFd> =
            (0..GROUP_SIZE).map(|_| sys::socket(libc::AF_INET, libc::SOCK_DGRAM).unwrap()).collect();
        let group: Box<[EngineFd; GROUP_SIZE]> = unused.into_boxed_slice().try_into().unwrap();
        let endpoint = Arc::new(Endpoint::new(lo, Some(group.into())));
        let mut dest = endpoint.dest(lo, 0, 0, 0x1000).unwrap();
        dest.to = InetAddress::new(lo.with_port(port));
        dest.flow = Flow::v4(Ipv4Addr::LOCALHOST, Ipv4Addr::LOCALHOST, dest.source_port(), port);
        // The kernel refuses to segment for a socket that sends no checksums.
        let fd = endpoint.sender_fd(dest.sender, clock::now());
        sys::set_option(fd, libc::SOL_SOCKET, libc::SO_NO_CHECK, &1_i32).unwrap();

        for round in 0..2 {
            let mut batch = TxBatch::new();
            for psn in 0..50 {
                // The last is shorter.
                let len = if psn == 49 { 20 } else { 600 };
                let fill = |buffer: &mut [u8], crc| -> Result<u32, ()> {
                    buffer.fill(psn as u8);
                    Ok(extend(crc, buffer))
                };
                batch.packet(&dest, &headers(psn), len, fill).unwrap();
            }
            assert_eq!(batch.flush(clock::now()), Flushed { sent: 50, dropped: 0 });
            let mut buffer = [0; 2048];
            for psn in 0..50_u32 {
                let len = receiver.recv(&mut buffer).unwrap();
                assert_eq!(len, 16 + if psn == 49 { 20 } else { 600 });
                assert_eq!(buffer[11], psn as u8);
                assert_eq!(dest.flow.verify(&buffer[..len], 0), Some(0), "each has the identification 0");
            }
            assert!(!endpoint.segmentation(), "remembered in round {round}");
        }
        assert_eq!(endpoint.stats().trains.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn after_a_wait_for_room_a_socket_is_looked_at_again() {
        let has_room = UdpSocket::bind("127.0.0.1:0").unwrap();
        let (now, flushed) = (Present(0), Flushed::default());
        let mut sending = Sending { staging: &mut [], many: &mut None, now, deadline: None, flushed };
        let before = clock::now();
        assert!(sending.wait(std::os::fd::AsRawFd::as_raw_fd(&has_room)));
        assert!(sending.now >= before);
    }

    #[test]
    fn a_message_is_refused_when_an_error_comes_again_that_the_network_does_not_explain() {
        let nexts = |heard: &[bool]| {
            let mut tries = Tries::default();
            heard.iter().map(|&heard| tries.next(heard)).last()
        };
        assert_eq!(nexts(&[false]), Some(ErrorAction::TryAgain));
        assert_eq!(nexts(&[false, false]), Some(ErrorAction::Refused));
        assert_eq!(nexts(&[true, true, false]), Some(ErrorAction::TryAgain));
        assert_eq!(nexts(&[false, true, false]), Some(ErrorAction::TryAgain));
        assert_eq!(nexts(&[true, false, false]), Some(ErrorAction::Refused));
        assert_eq!(nexts(&[true; 15]), Some(ErrorAction::TryAgain));
        assert_eq!(nexts(&[true; 16]), Some(ErrorAction::Lost));
    }

    #[test]
    fn what_the_network_says_of_a_packet_is_heard_and_keeps_no_other_back() {
        for lo in [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
            let lo = HostAddr::new(lo, 0);
            // The socket receives from itself only and keeps its port: to all other sockets the port is closed.
            let closed = match UdpSocket::bind(lo.with_port(0)) {
                Err(_) if lo.is_ipv6() => continue,
                bound => bound.unwrap(),
            };
            closed.connect(closed.local_addr().unwrap()).unwrap();
            let endpoint = Arc::new(Endpoint::new(lo, None));
            let mut dest = endpoint.dest(lo, 0, 0, 0x1000).unwrap();
            dest.to = InetAddress::new(closed.local_addr().unwrap());
            let heard = || dest.unreachable(Duration::from_secs(600));
            let send = || {
                let mut batch = TxBatch::new();
                let nothing = |_: &mut [u8], crc| -> Result<u32, ()> { Ok(crc) };
                batch.packet(&dest, &headers(0), 0, nothing).unwrap();
                assert_eq!(batch.flush(clock::now()), Flushed { sent: 1, dropped: 0 }, "{lo}");
            };
            assert_eq!(heard(), None);
            // The ICMP error is mostly there before `send` returns, and the next `send` finds it.
            (0..3).for_each(|_| send());
            let since = Instant::now();
            while heard().is_none() && since.elapsed() < Duration::from_secs(20) {
                std::thread::sleep(Duration::from_millis(10));
                send();
            }
            assert_eq!(heard(), Some(Unreachable::Port), "{lo}");
            assert_eq!(dest.unreachable(Duration::ZERO), None);
        }
    }

    /// Datagrams that come to a sending socket leave room for ICMP errors.
    #[test]
    fn what_the_network_says_is_heard_whatever_else_comes() {
        let lo = HostAddr::new(Ipv4Addr::LOCALHOST.into(), 0);
        let endpoint = Arc::new(Endpoint::new(lo, None));
        let closed = UdpSocket::bind("127.0.0.1:0").unwrap();
        closed.connect(closed.local_addr().unwrap()).unwrap();
        let mut dest = endpoint.dest(lo, 0, 0, 0x1000).unwrap();
        dest.to = InetAddress::new(closed.local_addr().unwrap());
        let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
        for _ in 0..100 {
            stranger.send_to(&[0; 1000], ("127.0.0.1", dest.source_port())).unwrap();
        }
        let since = Instant::now();
        while dest.unreachable(Duration::from_secs(600)).is_none() {
            assert!(since.elapsed() < Duration::from_secs(20));
            let mut batch = TxBatch::new();
            let nothing = |_: &mut [u8], crc| -> Result<u32, ()> { Ok(crc) };
            batch.packet(&dest, &headers(0), 0, nothing).unwrap();
            batch.flush(clock::now());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn a_packet_that_is_sent_at_once_arrives_though_an_error_of_an_earlier_one_is_returned() {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        receiver.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let port = receiver.local_addr().unwrap().port();
        let lo = HostAddr::new(Ipv4Addr::LOCALHOST.into(), 0);
        let endpoint = Arc::new(Endpoint::new(lo, None));
        let to = |port| {
            let mut dest = endpoint.dest(lo, 0, 0, 0x1000).unwrap();
            dest.to = InetAddress::new(lo.with_port(port));
            dest.flow = Flow::v4(Ipv4Addr::LOCALHOST, Ipv4Addr::LOCALHOST, dest.source_port(), port);
            dest
        };
        let closed = UdpSocket::bind("127.0.0.1:0").unwrap();
        closed.connect(closed.local_addr().unwrap()).unwrap();
        let nowhere = to(closed.local_addr().unwrap().port());
        let fill = |buffer: &mut [u8], crc| -> Result<u32, ()> {
            buffer.fill(7);
            Ok(extend(crc, buffer))
        };
        let mut buffer = [0; 2048];
        // With a TOS of its own, a packet needs a control message.
        for dest in [to(port), to(port).ecn_capable()] {
            for psn in 0..10 {
                let now = clock::now();
                send_at_once(&mut [0; 64], &nowhere, &headers(psn), (8, now), fill).unwrap();
                send_at_once(&mut [0; 64], &dest, &headers(psn), (9, now), fill).unwrap();
                let len = receiver.recv(&mut buffer).unwrap();
                assert_eq!((len, buffer[11]), (12 + 12 + 4, psn as u8));
                assert_eq!(dest.flow.verify(&buffer[..len], 0), Some(0));
            }
        }
        assert_eq!(endpoint.stats().sent.load(Ordering::Relaxed), 40);
        let refused = send_at_once(&mut [0; 64], &to(port), &headers(0), (49, clock::now()), fill);
        assert_eq!(refused, Err(PushError::TooLong(49)), "12 and 4 bytes are around it");
    }
}
