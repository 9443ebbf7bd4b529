//! Messages over sockets: one, or many at once (`sendmmsg(2)`, `recvmmsg(2)`). Callers pass and get slices and addresses; the
//! kernel's structures with their pointers stay in here. Nothing here waits.

use super::control::{ControlBuffer, ReceivedControls};
use super::{InetAddress, KernelAddress, check};
use crate::room;
use std::io::{self, IoSlice};
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::ptr::{from_ref, null_mut};

const SENDING: libc::c_int = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
const RECEIVING: libc::c_int = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
/// Without MSG_CMSG_CLOEXEC: a packet socket refuses flags that mean nothing there.
const RECEIVING_MANY: libc::c_int = libc::MSG_DONTWAIT;

/// A message to send: its bytes, in parts, and where to.
pub struct Outgoing<'a, const PARTS: usize> {
    parts: [IoSlice<'a>; PARTS],
    name: *const libc::sockaddr,
    name_length: libc::socklen_t,
    address: PhantomData<&'a ()>,
}

impl<'a, const PARTS: usize> Outgoing<'a, PARTS> {
    /// A message over a socket that knows where to.
    #[must_use]
    #[inline]
    pub fn new(parts: [&'a [u8]; PARTS]) -> Self {
        Self { parts: parts.map(IoSlice::new), name: std::ptr::null(), name_length: 0, address: PhantomData }
    }

    /// The message, to this address.
    #[must_use]
    #[inline]
    pub fn to(self, address: &'a impl KernelAddress) -> Self {
        Self { name: address.pointer(), name_length: address.length(), ..self }
    }

    /// Points `header` to the message and its control messages, which must outlive its use.
    fn describe<const CONTROL: usize>(
        &self,
        header: &mut libc::msghdr,
        parts: &mut [libc::iovec; PARTS],
        control: &mut ControlBuffer<CONTROL>,
    ) {
        for (to, part) in parts.iter_mut().zip(&self.parts) {
            *to = libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() };
        }
        header.msg_iov = parts.as_mut_ptr();
        header.msg_iovlen = PARTS;
        header.msg_name = self.name.cast_mut().cast();
        header.msg_namelen = self.name_length;
        header.msg_controllen = control.len();
        header.msg_control = control.for_sending();
    }
}

/// Sends one message (`sendmsg(2)` with MSG_NOSIGNAL | MSG_DONTWAIT); the bytes sent.
///
/// # Errors
/// That of the call.
#[inline]
pub fn send_message<const PARTS: usize, const CONTROL: usize>(
    fd: RawFd,
    message: &Outgoing<'_, PARTS>,
    control: &mut ControlBuffer<CONTROL>,
) -> io::Result<usize> {
    // SAFETY: all-zero bytes are a valid msghdr and iovec: null pointers, lengths of 0.
    let (mut header, mut parts): (libc::msghdr, [libc::iovec; PARTS]) = unsafe { std::mem::zeroed() };
    message.describe(&mut header, &mut parts, control);
    // SAFETY: the header points to a local, and to what `message` and `control` borrow; the kernel only reads it.
    check(unsafe { libc::syscall(libc::SYS_sendmsg, fd, from_ref(&header), SENDING) })
}

/// What a `sendmmsg(2)` is handed: at most `MESSAGES` messages of `PARTS` parts each, with `CONTROL` bytes of control messages.
pub struct SendBatch<const MESSAGES: usize, const PARTS: usize, const CONTROL: usize>(
    Box<SendSlots<MESSAGES, PARTS, CONTROL>>,
);

struct SendSlots<const MESSAGES: usize, const PARTS: usize, const CONTROL: usize> {
    headers: [libc::mmsghdr; MESSAGES],
    parts: [[libc::iovec; PARTS]; MESSAGES],
    controls: [ControlBuffer<CONTROL>; MESSAGES],
}

// SAFETY: the pointers in it are set in each call, before they are used, and not used after it.
unsafe impl<const MESSAGES: usize, const PARTS: usize, const CONTROL: usize> Send
    for SendBatch<MESSAGES, PARTS, CONTROL>
{
}

impl<const MESSAGES: usize, const PARTS: usize, const CONTROL: usize> SendBatch<MESSAGES, PARTS, CONTROL> {
    /// Its room is made where it stays: the caller's stack may be small.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "it allocates")]
    pub fn new() -> Self {
        // SAFETY: all-zero bytes are a valid iovec and mmsghdr (null pointers, lengths of 0), and an empty Control.
        Self(unsafe { room::zeroed() })
    }

    /// Sends the first `MESSAGES` of `items`, each as `message` makes it, which may add control messages (MSG_NOSIGNAL |
    /// MSG_DONTWAIT); how many went.
    ///
    /// # Errors
    /// That of the call, about the first message.
    #[inline]
    pub fn send<'a, T>(
        &mut self,
        fd: RawFd,
        items: &'a [T],
        mut message: impl FnMut(&'a T, &mut ControlBuffer<CONTROL>) -> Outgoing<'a, PARTS>,
    ) -> io::Result<usize> {
        let SendSlots { headers, parts, controls } = &mut *self.0;
        for (((item, header), parts), control) in items.iter().zip(&mut *headers).zip(parts).zip(controls) {
            *control = ControlBuffer::new();
            message(item, control).describe(&mut header.msg_hdr, parts, control);
        }
        let count = items.len().min(MESSAGES) as libc::c_uint;
        // SAFETY: the first `count` headers were just set, to slots of this value and to what lives for 'a, beyond this call.
        check(unsafe { libc::syscall(libc::SYS_sendmmsg, fd, headers.as_mut_ptr(), count, SENDING) })
    }
}

/// What has been received beside a message's bytes.
#[derive(Clone, Copy, Debug)]
pub struct MessageInfo {
    /// Bytes that were written.
    pub length: usize,
    /// The message was longer than the buffer.
    pub truncated: bool,
    /// There were more control messages than room for them.
    pub control_truncated: bool,
    /// Bytes of control messages, for [`ControlBuffer::received`].
    pub control: usize,
}

/// Receives one message (`recvmsg(2)` with MSG_DONTWAIT | MSG_CMSG_CLOEXEC).
///
/// # Errors
/// That of the call.
pub fn receive_message<const CONTROL: usize>(
    fd: RawFd,
    bytes: &mut [u8],
    control: &mut ControlBuffer<CONTROL>,
) -> io::Result<MessageInfo> {
    receive_with(fd, bytes, control, RECEIVING)
}

/// As [`receive_message`], of a message that stays where it is.
///
/// # Errors
/// That of `recvmsg(2)`.
pub fn peek_message<const CONTROL: usize>(
    fd: RawFd,
    bytes: &mut [u8],
    control: &mut ControlBuffer<CONTROL>,
) -> io::Result<MessageInfo> {
    receive_with(fd, bytes, control, RECEIVING | libc::MSG_PEEK)
}

fn receive_with<const CONTROL: usize>(
    fd: RawFd,
    bytes: &mut [u8],
    control: &mut ControlBuffer<CONTROL>,
    flags: libc::c_int,
) -> io::Result<MessageInfo> {
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: all-zero bytes are a valid msghdr: null pointers, lengths of 0.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    (header.msg_control, header.msg_controllen) = control.for_receiving();
    // SAFETY: the header points to a local, and to what `bytes` and `control` borrow for writing.
    let length = check(unsafe { libc::syscall(libc::SYS_recvmsg, fd, &raw mut header, flags) })?;
    Ok(MessageInfo {
        length,
        truncated: header.msg_flags & libc::MSG_TRUNC != 0,
        control_truncated: header.msg_flags & libc::MSG_CTRUNC != 0,
        control: header.msg_controllen,
    })
}

/// An ICMP error for a packet that was sent (`IP_RECVERR`, `IPV6_RECVERR`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Returned {
    /// Where the packet was to go.
    pub to: SocketAddr,
    /// SO_EE_ORIGIN_ICMP, SO_EE_ORIGIN_ICMP6 or another.
    pub origin: u8,
    /// The type of the ICMP message.
    pub kind: u8,
    /// Its code.
    pub code: u8,
}

/// Takes the oldest error of a socket's packets (`recvmsg(2)` with MSG_ERRQUEUE); `None`: another kind of message. When none is
/// left, the next send returns no error of earlier packets.
///
/// # Errors
/// That of the call: EAGAIN when there is nothing.
pub fn receive_returned(fd: RawFd) -> io::Result<Option<Returned>> {
    /// `sock_extended_err`, with the address of the error's sender.
    const CONTROL: usize = super::control::space(16 + size_of::<libc::sockaddr_in6>());
    let mut control = ControlBuffer::<CONTROL>::new();
    let mut to = InetAddress::zeroed();
    // Nothing of the packet is wanted, but qemu-user doesn't call the kernel for a message without room.
    let mut first = 0_u8;
    let mut part = libc::iovec { iov_base: (&raw mut first).cast(), iov_len: 1 };
    // SAFETY: all-zero bytes are a valid msghdr: null pointers, lengths of 0.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_name = (&raw mut to).cast();
    header.msg_namelen = InetAddress::SIZE;
    (header.msg_control, header.msg_controllen) = control.for_receiving();
    // SAFETY: the header points to locals, which are writable for the lengths in it.
    check(unsafe { libc::syscall(libc::SYS_recvmsg, fd, &raw mut header, RECEIVING | libc::MSG_ERRQUEUE) })?;
    let is_error = |level, kind| {
        (level, kind) == (libc::IPPROTO_IP, libc::IP_RECVERR)
            || (level, kind) == (libc::IPPROTO_IPV6, libc::IPV6_RECVERR)
    };
    let message =
        control.received(header.msg_controllen).find(|message| is_error(message.level, message.kind));
    // The errno, origin, type and code.
    let fields = message.and_then(|message| message.payload.first_chunk::<7>().copied());
    Ok(fields.zip(to.socket_addr()).map(|([.., origin, kind, code], to)| Returned { to, origin, kind, code }))
}

/// Buffers for `recvmmsg(2)`: at most `MESSAGES` messages, each of at most `BYTES` bytes and `CONTROL` bytes of control
/// messages. Of the address space that it takes, only what arrives is ever touched.
pub struct ReceiveBatch<const MESSAGES: usize, const BYTES: usize, const CONTROL: usize> {
    buffers: Box<[u8]>,
    slots: Box<ReceiveSlots<MESSAGES, CONTROL>>,
    /// Where messages are from is asked for.
    sources: bool,
    /// The last messages received.
    received: usize,
    /// Headers that the kernel may have written to since they were set up.
    used: usize,
}

struct ReceiveSlots<const MESSAGES: usize, const CONTROL: usize> {
    headers: [libc::mmsghdr; MESSAGES],
    parts: [libc::iovec; MESSAGES],
    controls: [ControlBuffer<CONTROL>; MESSAGES],
    sources: [InetAddress; MESSAGES],
}

// SAFETY: the pointers in `slots` lead to memory that the same value owns.
unsafe impl<const MESSAGES: usize, const BYTES: usize, const CONTROL: usize> Send
    for ReceiveBatch<MESSAGES, BYTES, CONTROL>
{
}

/// A message that has been received.
pub struct BatchMessage<'a> {
    /// Its bytes.
    pub bytes: &'a mut [u8],
    /// It was longer.
    pub truncated: bool,
    /// Where it is from; zero where that wasn't asked for.
    pub source: &'a InetAddress,
    /// The kernel's control messages.
    pub control: ReceivedControls<'a>,
}

impl<const MESSAGES: usize, const BYTES: usize, const CONTROL: usize> ReceiveBatch<MESSAGES, BYTES, CONTROL> {
    /// Buffers without messages; with `sources` the kernel is asked where each is from.
    #[must_use]
    pub fn new(sources: bool) -> Self {
        // SAFETY: all-zero bytes are a valid mmsghdr and iovec (null pointers, lengths of 0), and an empty Control and
        // InetAddress, which consist of numbers.
        let mut slots: Box<ReceiveSlots<MESSAGES, CONTROL>> = unsafe { room::zeroed() };
        let mut buffers = vec![0; MESSAGES * BYTES].into_boxed_slice();
        let ReceiveSlots { headers, parts, controls, sources: names } = &mut *slots;
        let rooms = buffers.chunks_exact_mut(BYTES);
        let each = headers.iter_mut().zip(parts).zip(controls).zip(names).zip(rooms);
        for ((((header, part), control), source), buffer) in each {
            *part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
            let header = &mut header.msg_hdr;
            (header.msg_iov, header.msg_iovlen) = (part, 1);
            if sources {
                header.msg_name = std::ptr::from_mut(source).cast();
            }
            header.msg_control = control.for_receiving().0;
        }
        Self { buffers, slots, sources, received: 0, used: MESSAGES }
    }

    /// Makes the headers that were used ready for the next call: of a header, the kernel writes to the lengths only.
    #[inline]
    fn prepare(&mut self) {
        let name_length = if self.sources { InetAddress::SIZE } else { 0 };
        for header in &mut self.slots.headers[..self.used] {
            (header.msg_hdr.msg_namelen, header.msg_hdr.msg_controllen) = (name_length, CONTROL);
        }
        self.used = 0;
    }

    /// Receives up to `wanted` messages (MSG_DONTWAIT); how many.
    ///
    /// # Errors
    /// That of the call, about the first message.
    #[inline]
    pub fn receive(&mut self, fd: RawFd, wanted: usize) -> io::Result<usize> {
        self.prepare();
        // SAFETY: every pointer was set by `new`, to buffers that this value owns, and those stay where they are.
        let received = unsafe {
            match &mut self.slots.headers[..wanted.min(MESSAGES)] {
                // One message costs the kernel less to ask for in this way.
                [one] => check(libc::syscall(libc::SYS_recvmsg, fd, &raw mut one.msg_hdr, RECEIVING_MANY))
                    .map(|length| {
                        one.msg_len = length as u32;
                        1
                    }),
                many => {
                    let count = many.len() as libc::c_uint;
                    let no_timeout = null_mut::<libc::timespec>();
                    let headers = many.as_mut_ptr();
                    check(libc::syscall(libc::SYS_recvmmsg, fd, headers, count, RECEIVING_MANY, no_timeout))
                }
            }
        };
        (self.received, self.used) = match &received {
            Ok(count) => (*count, *count),
            Err(e) if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) => (0, 0),
            Err(_) => (0, MESSAGES),
        };
        received
    }

    /// The messages that the last call has received.
    #[inline]
    pub fn messages(&mut self) -> impl Iterator<Item = BatchMessage<'_>> {
        let ReceiveSlots { headers, controls, sources, .. } = &*self.slots;
        let buffers = self.buffers.chunks_exact_mut(BYTES).take(self.received);
        buffers.enumerate().map(|(at, buffer)| {
            let header = &headers[at];
            BatchMessage {
                bytes: &mut buffer[..(header.msg_len as usize).min(BYTES)],
                truncated: header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
                source: &sources[at],
                control: controls[at].received(header.msg_hdr.msg_controllen),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{bind, socket, socket_name};
    use super::*;
    use std::net::SocketAddr;

    /// A UDP socket and its address.
    fn bound() -> (super::super::EngineFd, InetAddress) {
        let socket = socket(libc::AF_INET, libc::SOCK_DGRAM).unwrap();
        bind(socket.raw(), &InetAddress::new("127.0.0.1:0".parse().unwrap())).unwrap();
        let mut name = InetAddress::zeroed();
        socket_name(socket.raw(), &mut name).unwrap();
        (socket, name)
    }

    #[test]
    fn many_messages_arrive_in_order_each_with_its_source() {
        let ((from, source), (to, name)) = (bound(), bound());
        let items: Vec<Vec<u8>> = (1..=6).map(|n| vec![n; usize::from(n) * 10]).collect();
        let mut sender = SendBatch::<4, 2, 0>::new();
        let mut sent = 0;
        while sent < items.len() {
            sent += sender
                .send(from.raw(), &items[sent..], |bytes, _| Outgoing::new([b"head", bytes]).to(&name))
                .unwrap();
        }
        let mut receiver = ReceiveBatch::<8, 48, 64>::new(true);
        let mut got = Vec::new();
        for wanted in [1, 2, 8] {
            receiver.receive(to.raw(), wanted).unwrap();
            got.extend(receiver.messages().map(|message| {
                assert_eq!(message.source.socket_addr(), source.socket_addr());
                (message.bytes.to_vec(), message.truncated)
            }));
        }
        let right = items.iter().map(|bytes| {
            let whole = [b"head", &bytes[..]].concat();
            (whole[..whole.len().min(48)].to_vec(), whole.len() > 48)
        });
        assert_eq!(got, right.collect::<Vec<_>>());
        assert_eq!(receiver.receive(to.raw(), 8).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert_eq!(receiver.messages().count(), 0);
    }

    #[test]
    fn one_message_arrives_with_its_control_messages() {
        let ((from, _), (to, name)) = (bound(), bound());
        super::super::set_option(to.raw(), libc::IPPROTO_IP, libc::IP_RECVTTL, &1).unwrap();
        let mut control = ControlBuffer::<64>::new();
        assert!(control.push(libc::IPPROTO_IP, libc::IP_TTL, &7_i32.to_ne_bytes()));
        let message = Outgoing::new([&b"seven"[..]]).to(&name);
        assert_eq!(send_message(from.raw(), &message, &mut control).unwrap(), 5);
        let mut bytes = [0; 3];
        let received = receive_message(to.raw(), &mut bytes, &mut control).unwrap();
        assert_eq!((received.length, received.truncated, &bytes), (3, true, b"sev"));
        let said: Vec<_> = control.received(received.control).map(|message| message.int()).collect();
        assert_eq!(said, [Some(7)]);
        let addresses: [Option<SocketAddr>; 1] = [InetAddress::zeroed().socket_addr()];
        assert_eq!(addresses, [None]);
    }
}
