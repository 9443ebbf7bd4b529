//! What the adapter has for QP 1: the MADs that wait, and the connections by which the end of other processes is noticed.
//!
//! In here: data. Out of here: what becomes of MADs (`gsi`).

mod pass_on;

pub(crate) use pass_on::{Attempt, Kept, PassOn};

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
pub(crate) const PACKET_LEN: usize = BTH_LEN + 8 + MAD_LEN + ICRC_LEN;

/// A MAD that has come for the manager of a process's connections.
#[derive(Clone, Debug)]
pub struct ArrivedMad {
    /// The MAD and its addresses.
    pub mad: AddressedMad,
    /// A process of this user has made it. False: it came from the network, where any user of this host can send from the host's addresses.
    pub is_of_user: bool,
}

/// The manager of a process's connections.
pub trait CommunicationManager: Send + Sync {
    /// MADs have come, or the time of [`Gsi::set_alarm`](crate::gsi::Gsi::set_alarm) has come. One call at a time, by a thread
    /// that makes progress and holds no lock.
    fn work(&self, mads: &mut dyn Iterator<Item = ArrivedMad>);

    /// What is shown of its listeners and connections; `None` while another thread is at work there.
    fn try_look(&self) -> Option<ConnectionManager>;

    /// The process of this host is gone that had a slot, and that was [followed](crate::gsi::Gsi::follow). `None`: a process, or
    /// a port of one, is gone that hasn't read a request.
    fn gone(&self, slot: Option<u16>);
}

/// A connection that ends with the process at its other end.
pub(crate) struct Lifeline {
    /// `None`: the process keeps none for now.
    pub(crate) connection: Option<EngineFd>,
    /// Of the process at the other end.
    pub(crate) slot: u16,
    /// How often the process has been asked; 0: it has the connection, so the end of that is its own.
    pub(crate) asked: u8,
}

/// The lifelines of this process.
pub(crate) struct Lifelines {
    pub(crate) all: Mutex<class::Lifelines, Vec<Lifeline>>,
    /// When those are asked for that couldn't be had; `u64::MAX`: there are none.
    pub(crate) later: AtomicU64,
    /// Some of these can be had later. The others are of another user's processes, which keep none, and are asked for to see whether those
    /// processes are there.
    pub(crate) are_missing: AtomicBool,
}

impl Default for Lifelines {
    fn default() -> Self {
        Self { all: Mutex::default(), later: AtomicU64::new(u64::MAX), are_missing: AtomicBool::new(false) }
    }
}

impl Lifelines {
    /// Some can't be had yet.
    pub(crate) fn are_missing(&self) -> bool {
        self.are_missing.load(Ordering::Acquire)
    }

    /// When there is something to do, in ns.
    pub(crate) fn next(&self) -> u64 {
        self.later.load(Ordering::Acquire)
    }
}

/// The last connection to each port.
#[derive(Default)]
pub(crate) struct AtPorts(pub(crate) Mutex<class::AtPorts, VecDeque<AtPort>>);

/// The packet of a MAD that its receiver hasn't had room for.
pub(crate) struct UnreadMad {
    /// Without its bytes.
    pub(crate) datagram: Datagram<'static>,
    pub(crate) bytes: [u8; PACKET_LEN],
    pub(crate) from_network: bool,
}

impl UnreadMad {
    pub(crate) fn datagram(&self) -> Datagram<'_> {
        Datagram { bytes: &self.bytes, ..self.datagram }
    }
}

/// What has come, in order.
pub(crate) enum PendingInput {
    ForManager(ArrivedMad),
    /// The answer to one without a receiver.
    Answer(AddressedMad),
    /// The process that had this slot is gone: its messages come before. `None`: a port is gone, with a request that hasn't been read.
    Gone(Option<u16>),
}

impl PendingInput {
    /// A MAD of a process of this user.
    pub(crate) const fn of_user(mad: AddressedMad) -> Self {
        Self::ForManager(ArrivedMad { mad, is_of_user: true })
    }
}

/// The adapter's part of QP 1.
#[derive(Default)]
pub(crate) struct GsiState {
    pub(crate) manager: OnceLock<Arc<dyn CommunicationManager>>,
    pub(crate) inbox: Mutex<class::GsiInbox, VecDeque<PendingInput>>,
    pub(crate) has_mads: AtomicBool,
    /// A thread does what is to be done.
    pub(crate) at_work: AtomicBool,
    /// When the manager has something to do.
    pub(crate) due: AtomicU64,
    pub(crate) psn: AtomicU32,
    pub(crate) lifelines: Lifelines,
    pub(crate) at_ports: AtPorts,
    pub(crate) pass_on: PassOn<Destination, UnreadMad>,
}

impl GsiState {
    /// Packets for QP 1 are read here.
    pub(crate) fn is_read(&self) -> bool {
        self.manager.get().is_some()
    }
}
