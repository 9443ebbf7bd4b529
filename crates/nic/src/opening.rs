//! The devices that programs can open, and the adapter that the first open makes.

use crate::adapter::{self, Adapter, current};
use crate::device::{Context, Device, ImportOrigin};
use crate::gids::{self, gid_table};
use crate::listed_regions::ListedRegions;
use crate::{path_mtu, tracer, watched, xrc};
use ferroce_access::copy;
use ferroce_engine::Thread;
use ferroce_import::Handles;
use ferroce_mem::KeyTable;
use ferroce_network::gsi;
use ferroce_os::fork::{self, ChildStep};
use ferroce_os::sync::{Mutex, class};
use ferroce_os::{clock, sys};
use ferroce_parts::settings;
use ferroce_types::{Error, Result};
use std::sync::Arc;

static STARTING: Mutex<class::Starting, ()> = Mutex::new(());

/// The devices of this process's network namespace; may be empty.
///
/// # Errors
/// The network can't be read, or FERROCE_DEVICES is wrong.
pub fn devices() -> Result<Vec<Arc<Device>>> {
    let infos = ferroce_netdev::discover()
        .map_err(|error| Error::Refused { errno: error.errno(), why: error.to_string() })?;
    Ok(infos
        .into_iter()
        .enumerate()
        .map(|(index, info)| Arc::new(Device::new(info, index as u32, start)))
        .collect())
}

impl Device {
    /// Opens the device: joins the host's other processes on UDP port 4791.
    ///
    /// # Errors
    /// EADDRINUSE when a process that doesn't share the port has it; other errors of the system.
    pub fn open(self: &Arc<Self>) -> Result<Arc<Context>> {
        self.open_as(None, || Handles::new(&self.info().name))
    }

    /// Opens the device, for objects of its own or of another context.
    pub(crate) fn open_as(
        self: &Arc<Self>,
        origin: Option<ImportOrigin>,
        handles: impl FnOnce() -> Handles,
    ) -> Result<Arc<Context>> {
        start()?;
        let context = Context::new(self, gid_table(self.info()), origin, handles())?;
        adapter::register_context(&context);
        context.catch_up();
        context.explain_missing_lid();
        context.adapter()?;
        Ok(context)
    }
}

/// The adapter of this process; the first call makes it.
///
/// # Errors
/// What kept the process from joining the host's others.
pub fn start() -> Result<&'static Adapter> {
    if let Some(adapter) = current() {
        return Ok(adapter);
    }
    let _starting = STARTING.lock();
    if let Some(adapter) = current() {
        return Ok(adapter);
    }
    fork::install();
    fork::register(ChildStep::Engine, adapter::forget_after_fork);
    fork::protect_engine_fds();
    copy::choose(settings::way_of_copies());
    let adapter = Box::new(Adapter::new()?);
    KeyTable::global().list_in(&ListedRegions);
    if settings::is_strict() {
        KeyTable::global().tell_keys_apart();
        if let Some(adapter) = settings::limits_of() {
            adapter.choose();
        }
    }
    let services = adapter.host.services();
    adapter.links.register(services);
    xrc::register(services);
    gids::register(services);
    path_mtu::register(services);
    ferroce_import::register(services, settings::allows_copies());
    gsi::register(services, || current().map(|adapter| &**adapter));
    watched::register(services);
    tracer::register(services);
    adapter.watch_network()?;
    adapter.engine.watch_control(adapter.host.poll_fd())?;
    adapter.engine.watch_control(adapter.xrc.poll_fd())?;
    adapter.watch_links()?;
    let thread = Thread::start()?;
    // An error before this line drops the adapter; from here on it stays until the process ends.
    let adapter: &'static Adapter = Box::leak(adapter);
    thread.drive(adapter);
    adapter.make_current();
    sys::tell_of_ends(wake_background_thread);
    Ok(adapter)
}

/// The background thread looks whether the program has ended.
fn wake_background_thread() {
    if let Some(adapter) = current() {
        adapter.engine.wake_for(clock::now());
    }
}
