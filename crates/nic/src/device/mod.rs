//! Devices and device contexts: what ibv_get_device_list(3) shows and ibv_open_device(3) returns.

mod ends;
mod owner;

pub(crate) use ends::seen_of;
pub use owner::OfContext;

use crate::adapter::{self, Adapter};
use ferroce_import::{Exporter, Handles};
use ferroce_mem::{MAX_DM, MAX_MR, MAX_MR_SIZE, MAX_MW, MAX_PD};
use ferroce_netdev::{DeviceInfo, GidEntry, GidTable, LastSpeed, PortAttributes};
use ferroce_network::{MAX_ATTACHED, MAX_GROUPS};
use ferroce_os::sync::{RwLock, class};
use ferroce_parts::{MAX_AH, MAX_QP};
use ferroce_proto::Violation;
use ferroce_queues::{EventQueue, Limits, MAX_CQ, MAX_SRQ};
use ferroce_types::{AsyncEvent, HostAddr, Result, invalid};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

/// Longest message: 2 GiB (IBTA 9.7.1.1: 2^31 bytes).
pub const MAX_MESSAGE: u32 = 1 << 31;

/// A device that programs can open.
#[derive(Debug)]
pub struct Device {
    info: DeviceInfo,
    index: u32,
    /// Makes the process's adapter, if it has none.
    start: fn() -> Result<&'static Adapter>,
}

/// Limits of the adapter (ibv_query_device(3)). What isn't named here, it doesn't have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // the names are the man page's
pub struct DeviceLimits {
    pub max_mr_size: u64,
    pub max_qp: u32,
    pub max_qp_wr: u32,
    pub max_sge: u32,
    pub max_cq: u32,
    pub max_cqe: u32,
    pub max_mr: u32,
    pub max_mw: u32,
    pub max_pd: u32,
    pub max_qp_rd_atom: u32,
    pub max_ah: u32,
    pub max_srq: u32,
    pub max_srq_wr: u32,
    pub max_srq_sge: u32,
    pub max_inline: u32,
    pub max_mcast_grp: u32,
    pub max_mcast_qp_attach: u32,
    pub max_dm_size: u64,
}

/// The adapter's limits, each of them enforced.
#[must_use]
pub fn limits() -> DeviceLimits {
    let Limits { wr, sge, cqe, srq_wr, srq_sge, rd_atomic, inline } = *Limits::get();
    DeviceLimits {
        max_mr_size: MAX_MR_SIZE,
        max_qp: MAX_QP,
        max_qp_wr: wr,
        max_sge: sge,
        max_cq: MAX_CQ,
        max_cqe: cqe,
        max_mr: MAX_MR as u32,
        max_mw: MAX_MW as u32,
        max_pd: MAX_PD,
        max_qp_rd_atom: rd_atomic.into(),
        max_ah: MAX_AH,
        max_srq: MAX_SRQ,
        max_srq_wr: srq_wr,
        max_srq_sge: srq_sge,
        max_inline: inline,
        max_mcast_grp: MAX_GROUPS,
        max_mcast_qp_attach: MAX_ATTACHED,
        max_dm_size: MAX_DM,
    }
}

impl Device {
    pub(crate) fn new(info: DeviceInfo, index: u32, start: fn() -> Result<&'static Adapter>) -> Self {
        Self { info, index, start }
    }

    /// Name, interface and GUID.
    #[must_use]
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Place in the list.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }
}

#[derive(Debug)]
struct PortView {
    attributes: PortAttributes,
    hardware_address: Option<[u8; 6]>,
    last_speed: LastSpeed,
    gids: GidTable,
}

/// What becomes of an open device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DeviceNews {
    /// It can't be used any more.
    Failed,
    /// Its interface has another hardware address.
    HardwareAddress,
    /// Its interface has lost these addresses.
    AddressesLost(Vec<HostAddr>),
}

/// The function that is called when there is news of a device.
struct NewsListener(Box<dyn Fn(&DeviceNews) + Send + Sync>);

impl std::fmt::Debug for NewsListener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("NewsListener")
    }
}

/// Where the objects of an imported context are.
#[derive(Debug, Clone)]
pub(crate) enum ImportOrigin {
    /// In another context of this process.
    Here(Weak<Context>),
    /// In another process.
    Process(Arc<Exporter>),
}

/// An open device (ibv_open_device(3)).
#[derive(Debug)]
pub struct Context {
    device: Arc<Device>,
    port: RwLock<class::Port, PortView>,
    /// The adapter that has been asked to listen to the device's addresses: its generation plus one. 0: none.
    listening: AtomicU32,
    async_events: EventQueue<AsyncEvent>,
    /// IBV_EVENT_DEVICE_FATAL has been raised.
    failed: AtomicBool,
    listener: OnceLock<NewsListener>,
    /// Packets with a P_Key or Q_Key that their QP doesn't have.
    bad_pkeys: AtomicU32,
    bad_qkeys: AtomicU32,
    /// Of an imported context.
    origin: Option<ImportOrigin>,
    handles: Handles,
    /// Shared receive queues and completion queues that exist.
    pub(crate) srqs: AtomicUsize,
    pub(crate) cqs: AtomicUsize,
}

/// The adapter has failed for a cause that no other event stands for: raises IBV_EVENT_DEVICE_FATAL, once for each open device.
pub fn fail_devices() {
    for context in adapter::contexts() {
        context.fail();
    }
}

impl Context {
    /// A context of `device`, with the GID table that the host's processes have of it.
    pub(crate) fn new(
        device: &Arc<Device>,
        gids: GidTable,
        origin: Option<ImportOrigin>,
        handles: Handles,
    ) -> Result<Arc<Self>> {
        let port = PortView {
            attributes: device.info.port(),
            hardware_address: device.info.netdev.mac,
            last_speed: LastSpeed::default(),
            gids,
        };
        Ok(Arc::new(Self {
            device: device.clone(),
            port: RwLock::new(port),
            listening: AtomicU32::new(0),
            async_events: EventQueue::new()?,
            failed: AtomicBool::new(false),
            listener: OnceLock::new(),
            bad_pkeys: AtomicU32::new(0),
            bad_qkeys: AtomicU32::new(0),
            origin,
            handles,
            srqs: AtomicUsize::new(0),
            cqs: AtomicUsize::new(0),
        }))
    }

    /// The descriptor by which others import it (ibv_import_device(3)); −1 where the system has none for it.
    #[must_use]
    pub fn cmd_fd(&self) -> RawFd {
        self.handles.cmd_fd()
    }

    pub(crate) fn handles(&self) -> &Handles {
        &self.handles
    }

    pub(crate) fn origin(&self) -> Option<&ImportOrigin> {
        self.origin.as_ref()
    }

    /// The device it was opened from.
    #[must_use]
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Attributes of the port as they are now.
    #[must_use]
    pub fn port(&self) -> PortAttributes {
        self.port.read().attributes
    }

    /// An entry of the GID table; `None` where it is empty or ends.
    #[must_use]
    pub fn gid(&self, index: usize) -> Option<GidEntry> {
        self.port.read().gids.get(index).copied()
    }

    /// The entries of the GID table that are in use, with their indices.
    #[must_use]
    pub fn gids(&self) -> Vec<(usize, GidEntry)> {
        self.port.read().gids.iter().map(|(i, e)| (i, *e)).collect()
    }

    /// The asynchronous events. A thread that takes an event about an object calls that object's `unacked_async().got()`.
    #[must_use]
    pub fn async_events(&self) -> &EventQueue<AsyncEvent> {
        &self.async_events
    }

    /// Packets that came for QPs of this context with a P_Key, and with a Q_Key, that isn't theirs
    /// (`bad_pkey_cntr` and `qkey_viol_cntr` of ibv_query_port(3)).
    #[must_use]
    pub fn violations(&self) -> [u32; 2] {
        [&self.bad_pkeys, &self.bad_qkeys].map(|count| count.load(Ordering::Relaxed))
    }

    pub(crate) fn count_violation(&self, violation: Violation) {
        let count = match violation {
            Violation::PKey => &self.bad_pkeys,
            Violation::QKey => &self.bad_qkeys,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn gid_table(&self) -> GidTable {
        self.port.read().gids.clone()
    }

    /// Takes into account what has changed since the devices were listed. Later changes are reported by the news of the network.
    pub(crate) fn catch_up(&self) {
        let mut port = self.port.write();
        if let Ok(netdev) = ferroce_netdev::Netdev::read(self.device.info.netdev.ifindex) {
            port.gids.update(&netdev);
            port.attributes = PortAttributes::of(&netdev);
            port.hardware_address = netdev.mac;
            let attributes = port.attributes;
            port.last_speed.update(&attributes);
        }
    }

    /// A program that addresses by LIDs can't use a port without one: logs, once in each process, why the port has none.
    pub(crate) fn explain_missing_lid(&self) {
        static TOLD: AtomicBool = AtomicBool::new(false);
        let port = self.port();
        if port.link_layer.is_infiniband()
            && port.lids.is_none()
            && !TOLD.swap(true, Ordering::Relaxed)
            && let Some(why) = ferroce_netdev::why_no_lid(&self.device.info.netdev)
        {
            ferroce_parts::voice::tell(&format!(
                "{why}; address vectors of {} need a GRH",
                self.device.info.name
            ));
        }
    }

    pub(crate) fn raise(&self, event: AsyncEvent) {
        tracing::debug!(?event, device = %self.device.info.name, "asynchronous event");
        self.async_events.push(event);
    }

    /// Withdraws the unread events about an object.
    pub(crate) fn withdraw(&self, object: usize) {
        self.async_events.withdraw(|e| e.object() == Some(object));
    }

    /// The process's adapter: after a fork, a new one. The first call makes the device's addresses usable, which takes a while. Later
    /// addresses are made usable by the news of them, and by the queue pairs that name them.
    ///
    /// # Errors
    /// What kept the process from joining the host's others, or from using an address.
    pub fn adapter(&self) -> Result<&'static Adapter> {
        let adapter = (self.device.start)()?;
        let generation = adapter.generation() + 1;
        if self.listening.load(Ordering::Relaxed) == generation {
            return Ok(adapter);
        }
        // Other processes ask for the table meanwhile.
        let addresses: Vec<HostAddr> =
            self.port.read().gids.iter().map(|(_, entry)| HostAddr::new(entry.ip, entry.scope_id)).collect();
        adapter.use_addresses(&addresses)?;
        self.listening.store(generation, Ordering::Relaxed);
        Ok(adapter)
    }

    /// The local address behind a GID index.
    ///
    /// # Errors
    /// EINVAL for an index without a GID.
    pub(crate) fn source(&self, sgid_index: u8) -> Result<GidEntry> {
        match self.gid(usize::from(sgid_index)) {
            Some(entry) => Ok(entry),
            None => {
                let there: Vec<_> = self.gids().iter().map(|(index, _)| index.to_string()).collect();
                let (name, there) = (&self.device.info.name, there.join(", "));
                invalid!("entry {sgid_index} of the GID table of {name} is empty; there are: {there}")
            }
        }
    }

    /// The interface has gone: the device is of no more use.
    pub(crate) fn gone(&self, why: &ferroce_netdev::NetError) {
        tracing::warn!(%why, device = %self.device.info.name, "the device's interface is gone");
        self.port.write().attributes.state = ferroce_netdev::PortState::Down;
        self.fail();
    }

    /// Raises IBV_EVENT_DEVICE_FATAL, once.
    fn fail(&self) {
        if !self.failed.swap(true, Ordering::Relaxed) {
            self.raise(AsyncEvent::DeviceFatal);
            self.tell(&DeviceNews::Failed);
        }
    }

    /// Has `listener` called when there is news of the device, by whichever thread finds that out; it must not block. The first one that is
    /// set counts.
    pub fn listen(&self, listener: impl Fn(&DeviceNews) + Send + Sync + 'static) {
        let _ = self.listener.set(NewsListener(Box::new(listener)));
        if self.failed.load(Ordering::Relaxed) {
            self.tell(&DeviceNews::Failed);
        }
    }

    fn tell(&self, news: &DeviceNews) {
        if let Some(NewsListener(listener)) = self.listener.get() {
            listener(news);
        }
    }

    /// Has the adapter listen to those of the table's addresses that can be used by now.
    fn add_addresses(&self, netdev: &ferroce_netdev::Netdev) {
        let Some(adapter) = adapter::current() else { return };
        let is_usable = |entry: &GidEntry| netdev.usable_addresses().any(|address| address.ip == entry.ip);
        let gids = self.gid_table();
        let entries = gids.iter().map(|(_, entry)| entry).filter(|entry| is_usable(entry));
        let addresses: Vec<HostAddr> = entries.map(|e| HostAddr::new(e.ip, e.scope_id)).collect();
        adapter.use_later(&addresses);
    }

    /// Takes a change of the interface into account and raises the events for it. `was_down`: it has been down since the
    /// last time, whatever it is now.
    pub(crate) fn refresh(&self, netdev: &ferroce_netdev::Netdev, was_down: bool) {
        let mut port = self.port.write();
        let before = port.attributes;
        let changes = port.gids.update(netdev);
        let is_there = |entry: &GidEntry| port.gids.iter().any(|(_, there)| there == entry);
        let lost = changes.iter().filter_map(|change| change.old).filter(|old| !is_there(old));
        let lost: Vec<HostAddr> = lost.map(|entry| HostAddr::new(entry.ip, entry.scope_id)).collect();
        port.attributes = PortAttributes::of(netdev);
        let now = port.attributes;
        let (was, is) = (before.state, now.state);
        let other_speed = port.last_speed.update(&now);
        let hardware_address = std::mem::replace(&mut port.hardware_address, netdev.mac);
        drop(port);
        for change in &changes {
            tracing::info!(?change, device = %self.device.info.name, "GID table changed");
        }
        self.add_addresses(netdev);
        use ferroce_netdev::PortState::{Active, Down};
        if was == Active && (was_down || is == Down) {
            self.raise(AsyncEvent::PortError(1));
        }
        if is == Active && (was_down || was == Down) {
            self.raise(AsyncEvent::PortActive(1));
        }
        if other_speed {
            self.raise(AsyncEvent::SpeedChange);
        }
        if before.lid() != now.lid() {
            self.raise(AsyncEvent::LidChange(1));
        }
        if !changes.is_empty() {
            self.raise(AsyncEvent::GidChange(1));
        }
        if hardware_address != netdev.mac {
            self.tell(&DeviceNews::HardwareAddress);
        } else if !lost.is_empty() {
            self.tell(&DeviceNews::AddressesLost(lost));
        }
    }
}
