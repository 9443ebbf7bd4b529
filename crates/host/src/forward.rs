//! Packets that came to the wrong process, passed on to the owner of their slot.
//!
//! Steering is a matter of speed: two owners can share a socket, GRO can merge what steers apart, and a packet then
//! crosses here, over the DGRAM socket of the owner's slot. Only the owner of a slot, of whichever user, has the slot's common name.
//!
//! The queue of such a socket has room for ten datagrams (net.unix.max_dgram_qlen). The sender waits a moment for an owner that isn't
//! scheduled, since a packet lost at the end of a connection may have no sender that repeats it. What still doesn't fit is lost as on a wire.

use super::encoding::{RECORD_HEADER, decode, encode};
use super::exposed::ExposedSocket;
use super::names::Name;
use super::user::User;
use ferroce_os::clock;
use ferroce_os::room;
use ferroce_os::sys::{self, Outgoing, control};
use ferroce_os::throttle::OncePerSecond;
use ferroce_types::{Datagram, SLOTS};
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Datagrams of forwarded packets taken from one slot in a row.
pub(super) const INBOX_BURST: usize = 16;
/// Of one UNIX datagram: fits the default send buffer, and holds the longest train.
const BLOB: usize = 96 << 10;
pub(super) const MAGIC: [u8; 4] = *b"FRC2";
/// How long a name without a holder is taken for free.
const DEAD: Duration = Duration::from_millis(100);
/// How long an owner whose queue is full is waited for.
const PATIENCE: Duration = Duration::from_millis(50);
/// How long no owner is waited for after it was in vain, since one may have stopped: a thread waits for a twentieth of its time at most.
const IMPATIENCE: Duration = Duration::from_secs(1);
/// Between two attempts.
const TRY_AGAIN: Duration = Duration::from_micros(200);

type Credentials = control::ControlBuffer<{ control::space(size_of::<libc::ucred>()) }>;

/// What forwarding has counted. Written with relaxed ordering.
#[derive(Debug, Default)]
pub struct ForwardStats {
    /// Packets passed on to another process.
    pub forwarded: AtomicU64,
    /// Packets that another process passed on to this one.
    pub received: AtomicU64,
    /// Packets lost because the owner's queue was full.
    pub dropped: AtomicU64,
    /// Packets for a slot that no process has.
    pub unknown: AtomicU64,
    /// Packets that a process of another user has passed on without having the port of their address.
    pub refused: AtomicU64,
}

/// Sender's side.
pub(super) struct Forwarder {
    user: User,
    /// Per slot: until when it is taken for free. One writer's mistake costs a system call.
    dead_until: Box<[AtomicU64]>,
    /// Until when no owner is waited for.
    impatient_until: AtomicU64,
    pub(super) stats: ForwardStats,
}

impl Forwarder {
    pub(super) fn new(user: User) -> Self {
        let dead_until = (0..SLOTS).map(|_| Default::default()).collect();
        Self { user, dead_until, impatient_until: AtomicU64::new(0), stats: ForwardStats::default() }
    }

    /// Sends packets for one slot by way of `socket`, in as few datagrams as possible.
    pub(super) fn forward(&self, socket: RawFd, slot: u16, datagrams: &[Datagram<'_>]) {
        let Some(dead_until) = self.dead_until.get(usize::from(slot)) else { return };
        if dead_until.load(Ordering::Relaxed) > clock::now().0 {
            self.stats.unknown.fetch_add(datagrams.len() as u64, Ordering::Relaxed);
            return;
        }
        let mut rest = datagrams;
        while !rest.is_empty() {
            let mut size = MAGIC.len();
            let fits = |d: &&Datagram<'_>| {
                size += RECORD_HEADER + d.bytes.len();
                size <= BLOB
            };
            // At least one, whatever its size: the kernel refuses one that is too long.
            let (now, later) = rest.split_at(rest.iter().take_while(fits).count().max(1));
            rest = later;
            let mut blob =
                Vec::with_capacity(now.iter().map(|d| RECORD_HEADER + d.bytes.len()).sum::<usize>() + 4);
            blob.extend_from_slice(&MAGIC);
            now.iter().for_each(|d| encode(d, &mut blob));
            let counter = match self.send_patiently(socket, slot, &blob) {
                Ok(()) => &self.stats.forwarded,
                Err(e) if e.raw_os_error() == Some(libc::ECONNREFUSED) => {
                    dead_until.store(clock::now().after(DEAD).0, Ordering::Relaxed);
                    self.note(slot, "no process has that slot");
                    &self.stats.unknown
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.note(slot, "its owner doesn't keep up");
                    &self.stats.dropped
                }
                Err(error) => {
                    self.note(slot, &error.to_string());
                    &self.stats.dropped
                }
            };
            counter.fetch_add(now.len() as u64, Ordering::Relaxed);
        }
    }

    /// Sends a datagram to the owner of a slot; waits for room in its queue, for a while. ECONNREFUSED: the slot is free.
    fn send_patiently(&self, socket: RawFd, slot: u16, blob: &[u8]) -> io::Result<()> {
        let (name, mut began) = (Name::slot(slot), None);
        loop {
            match send(socket, self.user, &name, blob) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let now = clock::now();
                    let began = *began.get_or_insert(now);
                    if now.0 < self.impatient_until.load(Ordering::Relaxed) {
                        return Err(error);
                    }
                    if now.since(began) >= PATIENCE {
                        self.impatient_until.store(now.after(IMPATIENCE).0, Ordering::Relaxed);
                        return Err(error);
                    }
                    sys::pause(TRY_AGAIN);
                }
                sent => return sent,
            }
        }
    }

    fn note(&self, slot: u16, why: &str) {
        static BRAKE: OncePerSecond = OncePerSecond::new();
        if BRAKE.allows_now() {
            tracing::debug!(slot, why, "packets for another process's QPs lost");
        }
    }
}

/// Has the kernel attach the sender's user to what comes to a socket: anybody may send to an abstract name.
pub(super) fn expect_credentials(socket: RawFd) -> io::Result<()> {
    sys::set_option(socket, libc::SOL_SOCKET, libc::SO_PASSCRED, &1_i32)
}

/// Sends a datagram to a name by way of a socket of this process.
pub(super) fn send(fd: RawFd, user: User, name: &Name, blob: &[u8]) -> io::Result<()> {
    let mut credentials = Credentials::new();
    let own = sys::own_credentials(user.uid());
    // Otherwise the kernel attaches the right ones by itself, also where no message may name them: the group may have no
    // number in this user namespace.
    if sys::real_user_id() != own.uid {
        let payload = [own.pid.to_ne_bytes(), own.uid.to_ne_bytes(), own.gid.to_ne_bytes()].concat();
        credentials.push(libc::SOL_SOCKET, libc::SCM_CREDENTIALS, &payload);
    }
    let message = Outgoing::new([blob]).to(name.address());
    sys::send_message(fd, &message, &mut credentials).map(drop)
}

/// What a datagram or a message that has been received is.
pub(super) struct ReceivedBatch {
    /// The sender's user id, as the kernel has attached it.
    sender: Option<u32>,
    length: usize,
}

/// Receiver's side: the buffer a datagram is read into.
pub(super) struct ForwardReceiver {
    buffer: Vec<u8>,
    /// Room for the packets in it.
    batch: Vec<Datagram<'static>>,
}

impl ForwardReceiver {
    pub(super) fn new() -> Self {
        Self { buffer: vec![0; BLOB], batch: Vec::new() }
    }

    /// Takes one datagram or message from a socket, if there is one. One that is too long, or has descriptors with it, is taken for empty.
    pub(super) fn receive(&mut self, socket: &ExposedSocket) -> io::Result<Option<ReceivedBatch>> {
        self.read(socket, sys::receive_message)
    }

    /// As [`ForwardReceiver::receive`]. A message without descriptors stays where it is.
    pub(super) fn peek(&mut self, socket: &ExposedSocket) -> io::Result<Option<ReceivedBatch>> {
        self.read(socket, sys::peek_message)
    }

    fn read(
        &mut self,
        socket: &ExposedSocket,
        read: fn(RawFd, &mut [u8], &mut Credentials) -> io::Result<sys::MessageInfo>,
    ) -> io::Result<Option<ReceivedBatch>> {
        let fd = socket.raw();
        if socket.brings_descriptors() {
            sys::discard_message(fd)?;
            return Ok(Some(ReceivedBatch { sender: None, length: 0 }));
        }
        let mut credentials = Credentials::new();
        let received = match read(fd, &mut self.buffer, &mut credentials) {
            Ok(received) => received,
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                return Ok(None);
            }
            Err(e) => return Err(e),
        };
        let sender = sender_of(credentials.received(received.control));
        let length = if received.truncated { 0 } else { received.length };
        Ok(Some(ReceivedBatch { sender, length }))
    }

    /// What has been received, and its sender's user id.
    pub(super) fn bytes(&self, received: &ReceivedBatch) -> (Option<u32>, &[u8]) {
        (received.sender, self.buffer.get(..received.length).unwrap_or_default())
    }

    /// Passes the received packets for which `is_mine` is true to `f`. `is_own`: the sender is a process of this user.
    pub(super) fn hand_on(
        &mut self,
        received: &ReceivedBatch,
        stats: &ForwardStats,
        is_own: bool,
        is_mine: &mut dyn FnMut(&Datagram<'_>) -> bool,
        f: &mut dyn FnMut(&[Datagram<'_>]),
    ) {
        let bytes = self.buffer.get(..received.length).unwrap_or_default();
        let Some(mut records) = bytes.strip_prefix(&MAGIC) else { return };
        let mut batch: Vec<Datagram<'_>> = room::reuse(std::mem::take(&mut self.batch));
        while let Some(mut datagram) = decode(&mut records) {
            datagram.is_of_user &= is_own;
            if is_mine(&datagram) {
                batch.push(datagram);
            }
        }
        stats.received.fetch_add(batch.len() as u64, Ordering::Relaxed);
        if !batch.is_empty() {
            f(&batch);
        }
        self.batch = room::reuse(batch);
    }
}

/// The sender's user id, as the kernel attached it.
fn sender_of(messages: control::ReceivedControls<'_>) -> Option<u32> {
    let mut messages = messages;
    let message = messages.find(|m| (m.level, m.kind) == (libc::SOL_SOCKET, libc::SCM_CREDENTIALS))?;
    // struct ucred: pid, uid, gid.
    Some(u32::from_ne_bytes(*message.payload.get(4..8)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::super::names::USABLE;
    use super::*;
    use ferroce_os::sys::EngineFd;
    use ferroce_types::HostAddr;

    /// Kernels before Linux 6.16 can't refuse it.
    #[test]
    fn a_datagram_with_descriptors_is_empty_and_the_next_one_is_read() {
        let [own, peer] = sys::socket_pair(libc::SOCK_DGRAM).unwrap();
        expect_credentials(own.raw()).unwrap();
        let mut rights = control::ControlBuffer::<{ control::space(4) }>::new();
        assert!(rights.push(libc::SOL_SOCKET, libc::SCM_RIGHTS, &peer.raw().to_ne_bytes()));
        sys::send_message(peer.raw(), &Outgoing::new([b"first"]), &mut rights).unwrap();
        sys::send_message(peer.raw(), &Outgoing::new([b"next"]), &mut Credentials::new()).unwrap();
        let (inbox, mut receiver) = (ExposedSocket::new(own), ForwardReceiver::new());
        let own_user = sys::own_credentials(sys::real_user_id()).uid;
        for expected in [(None, &b""[..]), (Some(own_user), b"next")] {
            let received = receiver.receive(&inbox).unwrap().expect("a datagram");
            assert_eq!(receiver.bytes(&received), expected);
        }
        assert!(receiver.receive(&inbox).unwrap().is_none());
    }

    /// A slot that no process has but this test, and its inbox.
    struct Owner {
        slot: u16,
        inbox: ExposedSocket,
    }

    impl Owner {
        fn new() -> Self {
            let bind = |slot: u16| Some((slot, Name::slot(slot).bind(libc::SOCK_DGRAM).unwrap()?));
            let (slot, inbox) = USABLE.rev().find_map(bind).expect("a free slot");
            expect_credentials(inbox.raw()).unwrap();
            Self { slot, inbox }
        }

        /// The first bytes of the payloads in the next datagram, of those that pass.
        fn take(&self, stats: &ForwardStats, is_mine: fn(&Datagram<'_>) -> bool) -> Option<Vec<u8>> {
            let mut receiver = ForwardReceiver::new();
            let received = receiver.receive(&self.inbox).unwrap()?;
            let mut taken = Vec::new();
            receiver.hand_on(&received, stats, false, &mut |packet| is_mine(packet), &mut |batch| {
                assert!(!batch.is_empty());
                taken.extend(batch.iter().map(|packet| packet.bytes[0]));
            });
            Some(taken)
        }
    }

    fn forwarder() -> (Forwarder, EngineFd) {
        (
            Forwarder::new(User::current()),
            sys::socket(libc::AF_UNIX, libc::SOCK_DGRAM | libc::SOCK_NONBLOCK).unwrap(),
        )
    }

    fn packet(bytes: &[u8]) -> Datagram<'_> {
        let source = "10.0.0.1:5000".parse().unwrap();
        let destination = HostAddr::new("10.0.0.2".parse().unwrap(), 0);
        Datagram {
            source,
            destination,
            tos: 0,
            ttl: None,
            flow_label: 0,
            is_of_user: false,
            segment: 0,
            bytes,
        }
    }

    fn counts(stats: &ForwardStats) -> [u64; 4] {
        [&stats.forwarded, &stats.received, &stats.dropped, &stats.unknown]
            .map(|count| count.load(Ordering::Relaxed))
    }

    #[test]
    fn packets_arrive_together_and_in_order_as_far_as_a_datagram_has_room() {
        let (owner, (forwarder, socket)) = (Owner::new(), forwarder());
        let long: Vec<Vec<u8>> = (1..=3).map(|first| vec![first; BLOB / 3]).collect();
        let packets: Vec<Datagram<'_>> = long.iter().map(|bytes| packet(bytes)).collect();
        forwarder.forward(socket.raw(), owner.slot, &packets);
        let stats = &forwarder.stats;
        assert_eq!(counts(stats), [3, 0, 0, 0]);
        assert_eq!(owner.take(stats, |_| true), Some(vec![1, 2]));
        assert_eq!(owner.take(stats, |packet| packet.bytes[0] == 9), Some(vec![]), "another's");
        assert_eq!((owner.take(stats, |_| true), counts(stats)), (None, [3, 2, 0, 0]));
    }

    #[test]
    fn a_datagram_without_the_magic_or_longer_than_a_blob_has_no_packets() {
        let (owner, (forwarder, socket)) = (Owner::new(), forwarder());
        let sends = |magic: &[u8; 4], bytes: &[u8]| {
            let mut blob = magic.to_vec();
            encode(&packet(bytes), &mut blob);
            send(socket.raw(), forwarder.user, &Name::slot(owner.slot), &blob).unwrap();
            owner.take(&forwarder.stats, |_| true)
        };
        assert_eq!(sends(&MAGIC, &[7; 16]), Some(vec![7]));
        assert_eq!(sends(b"FRC1", &[7; 16]), Some(vec![]));
        assert_eq!(sends(&MAGIC, &vec![7; BLOB]), Some(vec![]));
    }

    /// A process of another user may claim it, too.
    #[test]
    fn a_packet_is_of_this_user_if_its_sender_is_and_claims_so() {
        let (owner, (forwarder, socket)) = (Owner::new(), forwarder());
        for (is_of_user, is_own) in [(true, true), (true, false), (false, true)] {
            forwarder.forward(socket.raw(), owner.slot, &[Datagram { is_of_user, ..packet(&[7; 16]) }]);
            let mut receiver = ForwardReceiver::new();
            let received = receiver.receive(&owner.inbox).unwrap().expect("a datagram");
            let mut of_user = Vec::new();
            receiver.hand_on(&received, &forwarder.stats, is_own, &mut |_| true, &mut |batch| {
                of_user.extend(batch.iter().map(|packet| packet.is_of_user));
            });
            assert_eq!(of_user, [is_of_user && is_own]);
        }
    }

    #[test]
    fn a_slot_without_a_process_is_taken_for_free_for_a_while() {
        let (owner, (forwarder, socket)) = (Owner::new(), forwarder());
        let (packets, Owner { slot, inbox }) = ([packet(&[7; 16])], owner);
        drop(inbox);
        let before = clock::now();
        forwarder.forward(socket.raw(), slot, &packets);
        let until = &forwarder.dead_until[usize::from(slot)];
        assert!(until.load(Ordering::Relaxed) >= before.after(DEAD).0);
        assert_eq!(counts(&forwarder.stats), [0, 0, 0, 1]);
        // Whether a process has it by now isn't found out before.
        let Some(inbox) = Name::slot(slot).bind(libc::SOCK_DGRAM).unwrap() else { return };
        let owner = Owner { slot, inbox };
        until.store(u64::MAX, Ordering::Relaxed);
        forwarder.forward(socket.raw(), slot, &packets);
        assert_eq!((owner.take(&forwarder.stats, |_| true), counts(&forwarder.stats)), (None, [0, 0, 0, 2]));
        until.store(0, Ordering::Relaxed);
        forwarder.forward(socket.raw(), slot, &packets);
        assert_eq!(owner.take(&forwarder.stats, |_| true), Some(vec![7]));
    }

    #[test]
    fn an_owner_without_room_is_waited_for_unless_that_was_in_vain() {
        let (owner, (forwarder, socket)) = (Owner::new(), forwarder());
        let packets = [packet(&[7; 16])];
        while send(socket.raw(), forwarder.user, &Name::slot(owner.slot), b"fill").is_ok() {}
        let before = clock::now();
        forwarder.forward(socket.raw(), owner.slot, &packets);
        let until = &forwarder.impatient_until;
        assert_eq!(counts(&forwarder.stats), [0, 0, 1, 0]);
        assert!(until.load(Ordering::Relaxed) >= before.after(PATIENCE).after(IMPATIENCE).0);
        // No second wait.
        until.store(u64::MAX, Ordering::Relaxed);
        forwarder.forward(socket.raw(), owner.slot, &packets);
        assert_eq!((counts(&forwarder.stats)[2], until.load(Ordering::Relaxed)), (2, u64::MAX));
        // One that has room soon gets it, if this thread isn't held up for longer than it waits.
        let gets_room = |_| {
            until.store(0, Ordering::Relaxed);
            std::thread::scope(|threads| {
                threads.spawn(|| forwarder.forward(socket.raw(), owner.slot, &packets));
                sys::pause(TRY_AGAIN * 5);
                owner.take(&forwarder.stats, |_| true);
            });
            counts(&forwarder.stats)[0] > 0
        };
        assert!((0..100).any(gets_room));
    }
}
