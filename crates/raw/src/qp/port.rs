//! One interface as this process's raw QPs use it: a packet socket (packet(7)), and the flows that share what comes.
//!
//! The socket doesn't receive the frames that it has sent itself: those are distributed here. Frames of other processes' raw QPs
//! come as outgoing frames with a mark; the filter drops outgoing frames without the mark, which are the kernel's.

use super::RawQp;
use super::flow::{SteeringFlow, SteeringRules};
use super::ports::watch_room;
use super::send::FrameSender;
use crate::frame::IncomingFrame;
use crate::receive::FrameReceiver;
use ferroce_netdev::Netdev;
use ferroce_os::{
    fork,
    sync::{Mutex, RwLock, class},
    sys::{self, EngineFd, LinkAddress},
};
use ferroce_types::{Error, Result};
use ferroce_udp::{tap::Direction, tap::capture::Capture};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// The mark (SO_MARK) of frames that a raw QP has sent ("RoCE" in ASCII).
const MARK: u32 = 0x526f_4345;
const ALL_PROTOCOLS: u16 = libc::ETH_P_ALL as u16;

/// What the interface is asked to let pass besides frames to itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Membership {
    All,
    AllMulticast,
    Multicast([u8; 6]),
    Unicast([u8; 6]),
}

/// An interface's packet socket with the flows of this process.
pub(super) struct PacketPort {
    ifindex: u32,
    mac: [u8; 6],
    /// What is sent comes back as received.
    loopback: bool,
    generation: u32,
    capture: Option<&'static Capture>,
    socket: EngineFd,
    mtu: AtomicU32,
    rules: RwLock<class::FlowRules, SteeringRules>,
    receiver: Mutex<class::RawReceiver, Option<FrameReceiver>>,
    pub(super) sender: Mutex<class::RawSender, Option<FrameSender>>,
    /// QPs whose frames the socket had no room for.
    blocked: Mutex<class::RawBlocked, Vec<Arc<RawQp>>>,
    has_blocked: AtomicBool,
}

impl std::fmt::Debug for PacketPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Port").field("ifindex", &self.ifindex).finish_non_exhaustive()
    }
}

impl PacketPort {
    /// Opens the socket; it receives nothing yet.
    ///
    /// # Errors
    /// [`Error::Permission`] without CAP_NET_RAW; [`Error::NotSupported`] for an interface without Ethernet frames.
    pub(super) fn open(netdev: &Netdev) -> Result<Self> {
        let socket =
            sys::socket(libc::AF_PACKET, libc::SOCK_RAW).map_err(|error| match error.raw_os_error() {
                Some(libc::EPERM | libc::EACCES) => Error::Permission(
                    "raw packet queue pairs need CAP_NET_RAW in the network namespace's user namespace"
                        .into(),
                ),
                _ => Error::os("a packet socket")(error),
            })?;
        if netdev.hardware != libc::ARPHRD_ETHER && netdev.hardware != libc::ARPHRD_LOOPBACK {
            return Err(Error::NotSupported(format!("{} carries no Ethernet frames", netdev.name)));
        }
        let port = Self {
            ifindex: netdev.ifindex,
            mac: netdev.mac.unwrap_or_default(),
            loopback: netdev.is_loopback(),
            generation: fork::generation(),
            capture: Capture::global(),
            socket,
            mtu: AtomicU32::new(netdev.mtu),
            rules: RwLock::default(),
            receiver: Mutex::new(None),
            sender: Mutex::new(None),
            blocked: Mutex::default(),
            has_blocked: AtomicBool::new(false),
        };
        port.set_up().map_err(Error::os("setting up a packet socket"))?;
        Ok(port)
    }

    fn set_up(&self) -> std::io::Result<()> {
        let fd = self.fd();
        for option in [libc::PACKET_AUXDATA, libc::PACKET_VNET_HDR] {
            sys::set_option(fd, libc::SOL_PACKET, option, &1_i32)?;
        }
        // Kernels before 5.17 want CAP_NET_ADMIN for a mark.
        let marked = sys::set_option(fd, libc::SOL_SOCKET, libc::SO_MARK, &MARK).is_ok();
        if !marked {
            tracing::info!("frames can't be marked: raw QPs of other processes won't see those of this one");
        }
        self.attach_filter()?;
        sys::large_buffer(fd, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF);
        // Bound to the interface, to no protocol: what is sent leaves there, and nothing is received.
        self.bind(0)
    }

    /// Outgoing frames pass only with the mark of a raw QP.
    fn attach_filter(&self) -> std::io::Result<()> {
        const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
        const IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
        const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
        let field = |offset: i32| (libc::SKF_AD_OFF + offset) as u32;
        let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
        // What goes out through a loopback interface comes in again.
        let mark = if self.loopback { (1, 1) } else { (0, 1) };
        let program = [
            step(LOAD, 0, 0, field(libc::SKF_AD_PKTTYPE)),
            step(IF_EQUAL, 0, 2, libc::PACKET_OUTGOING.into()),
            step(LOAD, 0, 0, field(libc::SKF_AD_MARK)),
            step(IF_EQUAL, mark.0, mark.1, MARK),
            step(RETURN, 0, 0, u32::MAX),
            step(RETURN, 0, 0, 0),
        ];
        sys::attach_program(self.fd(), libc::SO_ATTACH_FILTER, &program)
    }

    fn bind(&self, protocol: u16) -> std::io::Result<()> {
        sys::bind(self.fd(), &LinkAddress::new(self.ifindex, protocol))
    }

    /// The socket, for epoll.
    pub(super) fn fd(&self) -> RawFd {
        self.socket.raw()
    }

    /// As [`fd`](Self::fd), but −1 if the program has closed the socket: another socket of the program may have the number now.
    pub(super) fn checked_fd(&self) -> RawFd {
        self.socket.checked()
    }

    /// The interface's index.
    pub(super) fn ifindex(&self) -> u32 {
        self.ifindex
    }

    /// Bytes that a frame may have with this header.
    pub(super) fn fits(&self, length: usize, header: usize) -> bool {
        let fits = |mtu: u32| length <= mtu as usize + header;
        fits(self.mtu.load(Ordering::Relaxed)) || {
            let mtu = sys::interface_mtu(self.fd(), self.ifindex).unwrap_or(0);
            self.mtu.store(mtu, Ordering::Relaxed);
            fits(mtu)
        }
    }

    /// Belongs to a process from before a fork.
    pub(super) fn is_inherited(&self) -> bool {
        self.generation != fork::generation()
    }

    /// Puts a rule in force.
    ///
    /// # Errors
    /// The system's errors.
    pub(super) fn add_flow(&self, flow: &Arc<SteeringFlow>) -> Result<()> {
        if self.is_inherited() {
            return Err(Error::Dead("the queue pair belongs to the process before the fork".into()));
        }
        let mut rules = self.rules.write();
        if let Some(membership) = flow.membership(self.mac) {
            self.member(libc::PACKET_ADD_MEMBERSHIP, membership)
                .map_err(Error::os("PACKET_ADD_MEMBERSHIP"))?;
        }
        if rules.is_empty() {
            self.bind(ALL_PROTOCOLS).map_err(Error::os("binding a packet socket"))?;
        }
        rules.add(flow);
        Ok(())
    }

    /// Takes a rule back: when this returns, no thread steers frames by it.
    pub(super) fn remove_flow(&self, flow: &Arc<SteeringFlow>) {
        if self.is_inherited() {
            return;
        }
        let mut rules = self.rules.write();
        rules.remove(flow);
        if rules.is_empty()
            && let Err(error) = self.bind(0)
        {
            tracing::debug!(%error, "binding a packet socket to nothing");
        }
        if let Some(membership) = flow.membership(self.mac) {
            // It fails if the interface has been removed, and the membership with it.
            let _ = self.member(libc::PACKET_DROP_MEMBERSHIP, membership);
        }
    }

    fn member(&self, change: i32, membership: Membership) -> std::io::Result<()> {
        let (kind, mac) = match membership {
            Membership::All => (libc::PACKET_MR_PROMISC, None),
            Membership::AllMulticast => (libc::PACKET_MR_ALLMULTI, None),
            Membership::Multicast(mac) => (libc::PACKET_MR_MULTICAST, Some(mac)),
            Membership::Unicast(mac) => (libc::PACKET_MR_UNICAST, Some(mac)),
        };
        let mut request = libc::packet_mreq {
            mr_ifindex: self.ifindex as i32,
            mr_type: kind as u16,
            mr_alen: if mac.is_some() { 6 } else { 0 },
            mr_address: [0; 8],
        };
        request.mr_address[..6].copy_from_slice(&mac.unwrap_or_default());
        sys::set_option(self.fd(), libc::SOL_PACKET, change, &request)
    }

    /// Gives a frame that has arrived to the QPs whose flows match.
    fn arrived(&self, frame: &IncomingFrame<'_>) {
        let taken = self.rules.read().distribute(frame);
        if taken && let Some(capture) = self.capture {
            capture.frame(Direction::In, frame.bytes);
        }
    }

    /// Gives a frame that a QP of this process has sent to the others.
    pub(super) fn sent(&self, bytes: &[u8], sender: u32) {
        if let Some(capture) = self.capture {
            capture.frame(Direction::Out, bytes);
        }
        if self.loopback || self.rules.read().is_empty() {
            return;
        }
        if let Some(frame) = IncomingFrame::new(bytes, false, Some(sender)) {
            self.rules.read().distribute(&frame);
        }
    }

    /// Takes one batch of frames that have arrived. Returns whether there were any.
    pub(super) fn receive(&self) -> bool {
        let mut done = false;
        if self.has_blocked.load(Ordering::Acquire) {
            done |= self.resume_blocked();
        }
        // If the receiver is locked, another thread is reading the socket.
        let Some(mut receiver) = self.receiver.try_lock() else { return done };
        let receiver = receiver.get_or_insert_with(FrameReceiver::new);
        let received = receiver.receive(self.checked_fd(), &mut |bytes, sealed| {
            if let Some(frame) = IncomingFrame::new(bytes, sealed, None) {
                self.arrived(&frame);
            }
        });
        done | received
    }

    /// Lets a QP go on when the socket has room again.
    pub(super) fn block(&self, qp: &Arc<RawQp>) {
        let mut blocked = self.blocked.lock();
        if !blocked.iter().any(|other| Arc::ptr_eq(other, qp)) {
            blocked.push(qp.clone());
        }
        if !self.has_blocked.swap(true, Ordering::AcqRel) {
            watch_room(qp.adapter, self.fd(), true);
        }
    }

    fn resume_blocked(&self) -> bool {
        let mut blocked = self.blocked.lock();
        let waiting = std::mem::take(&mut *blocked);
        self.has_blocked.store(false, Ordering::Release);
        if let Some(first) = waiting.first() {
            watch_room(first.adapter, self.fd(), false);
        }
        drop(blocked);
        waiting.iter().map(|qp| qp.resume()).fold(false, |done, sent| done | sent)
    }
}
