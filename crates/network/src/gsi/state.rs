//! The state of QP 1: the MADs that wait, and the connections by which the end of other processes is noticed.

use super::pass_on::PassOn;
use ferroce_cm::AddressedMad;
use ferroce_host::{AtPort, Destination};
use ferroce_os::sync::{Mutex, class};
use ferroce_os::sys::EngineFd;
use ferroce_types::Datagram;
use ferroce_watch::ConnectionManager;
use ferroce_wire::cm::MAD_LEN;
use ferroce_wire::{BTH_LEN, ICRC_LEN};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Bytes of a MAD's packet.
pub(super) const PACKET_LEN: usize = BTH_LEN + 8 + MAD_LEN + ICRC_LEN;

/// The manager of a process's connections.
pub trait CommunicationManager: Send + Sync {
    /// MADs have come, or the time of `Gsi::set_alarm` has come. One call at a time, by a thread
    /// that makes progress and holds no lock.
    fn work(&self, mads: &mut dyn Iterator<Item = AddressedMad>);

    /// What is shown of its listeners and connections; `None` while another thread is at work there.
    fn try_look(&self) -> Option<ConnectionManager>;

    /// The process of this host is gone that had a slot, and that was followed (`Gsi::follow`). `None`: a process, or
    /// a port of one, is gone that hasn't read a request.
    fn gone(&self, slot: Option<u16>);
}

/// A connection that ends with the process at its other end.
pub(super) struct Lifeline {
    /// `None`: the process keeps none for now.
    pub(super) connection: Option<EngineFd>,
    /// Of the process at the other end.
    pub(super) slot: u16,
    /// How often the process has been asked; 0: it has the connection, so the end of that is its own.
    pub(super) asked: u8,
}

/// The lifelines of this process.
pub struct Lifelines {
    /// One for each process that is followed.
    pub(super) all: Mutex<class::Lifelines, Vec<Lifeline>>,
    /// When those are asked for that couldn't be had; `u64::MAX`: there are none.
    pub(super) later: AtomicU64,
    /// Some of these can be had later. The others are of another user's processes, which keep none, and are asked for to see whether those
    /// processes are there.
    pub(super) are_missing: AtomicBool,
}

impl Default for Lifelines {
    fn default() -> Self {
        Self { all: Mutex::default(), later: AtomicU64::new(u64::MAX), are_missing: AtomicBool::new(false) }
    }
}

impl Lifelines {
    /// Some can't be had yet.
    pub fn are_missing(&self) -> bool {
        self.are_missing.load(Ordering::Acquire)
    }

    /// When there is something to do, in ns.
    pub(super) fn next(&self) -> u64 {
        self.later.load(Ordering::Acquire)
    }
}

/// The last connection to each port.
#[derive(Default)]
pub(super) struct AtPorts(pub(super) Mutex<class::AtPorts, VecDeque<AtPort>>);

/// The packet of a MAD that its receiver hasn't had room for.
pub(super) struct UnreadMad {
    /// Without its bytes.
    pub(super) datagram: Datagram<'static>,
    /// Its bytes.
    pub(super) bytes: [u8; PACKET_LEN],
    /// It has come from a socket, not from another process.
    pub(super) from_network: bool,
}

impl UnreadMad {
    /// With its bytes.
    pub(super) fn datagram(&self) -> Datagram<'_> {
        Datagram { bytes: &self.bytes, ..self.datagram }
    }
}

/// What has come, in order.
pub(super) enum PendingInput {
    /// A MAD for the communication manager of this process.
    ForManager(AddressedMad),
    /// The answer to one without a receiver.
    Answer(AddressedMad),
    /// The process that had this slot is gone: its messages come before. `None`: a port is gone, with a request that hasn't been read.
    Gone(Option<u16>),
}

/// The adapter's part of QP 1.
#[derive(Default)]
pub struct GsiState {
    /// The communication manager of this process, once there is one.
    pub(super) manager: OnceLock<Arc<dyn CommunicationManager>>,
    /// What the manager has still to take.
    pub(super) inbox: Mutex<class::GsiInbox, VecDeque<PendingInput>>,
    /// The inbox isn't empty.
    pub(super) has_mads: AtomicBool,
    /// A thread does what is to be done.
    pub(super) at_work: AtomicBool,
    /// When the manager has something to do.
    pub(super) due: AtomicU64,
    /// The PSN of the next MAD that is sent.
    pub(super) psn: AtomicU32,
    /// By which the end of other processes is noticed.
    pub lifelines: Lifelines,
    /// By which the end of a port is noticed.
    pub(super) at_ports: AtPorts,
    /// MADs for processes that have no room for them.
    pub(super) pass_on: PassOn<Destination, UnreadMad>,
}

impl GsiState {
    /// Packets for QP 1 are read here.
    #[inline]
    pub fn is_read(&self) -> bool {
        self.manager.get().is_some()
    }
}
