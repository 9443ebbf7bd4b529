//! News of the network: changes of interfaces and addresses reach the open contexts.

use super::{Adapter, contexts};
use ferroce_engine::Source;
use ferroce_netdev::{Changes, Monitor, NetError, Netdev};
use ferroce_os::sync::{Mutex, class};
use ferroce_types::Result;
use std::collections::BTreeMap;

/// How often the interfaces are read while news of them goes on coming.
const MAX_READINGS: u32 = 16;

/// Where news comes from; nowhere, if the system doesn't allow it.
#[derive(Debug)]
pub(super) struct NetworkMonitor {
    monitor: Option<Mutex<class::NetworkMonitor, Monitor>>,
}

impl NetworkMonitor {
    pub(super) fn open() -> Self {
        let monitor = Monitor::open()
            .inspect_err(|error| tracing::info!(%error, "changes of the network won't be noticed"))
            .ok()
            .map(Mutex::new);
        Self { monitor }
    }
}

/// The network as a source.
pub(crate) struct NetworkSource(pub(crate) &'static Adapter);

impl Source for NetworkSource {
    fn serve(&self) {
        if let Some(monitor) = &self.0.monitor.monitor {
            look_at_network(&mut monitor.lock());
        }
    }
}

impl Adapter {
    /// Has the background thread look at the network when there is news.
    ///
    /// # Errors
    /// The system refused.
    pub(crate) fn watch_network(&self) -> Result<()> {
        match &self.monitor.monitor {
            Some(monitor) => self.engine.watch_control(monitor.lock().fd()),
            None => Ok(()),
        }
    }
}

fn look_at_network(monitor: &mut Monitor) {
    let mut changes = Changes::default();
    let mut now = BTreeMap::new();
    // Drain netlink first: otherwise the changes that this read finds trigger another one.
    for _ in 0..MAX_READINGS {
        match monitor.drain() {
            Ok(more) if more.is_empty() => break,
            Ok(more) => changes.merge(more),
            Err(error) => return tracing::debug!(%error, "reading news of the network"),
        }
        for context in contexts() {
            let ifindex = context.device().info().netdev.ifindex;
            if changes.concerns(ifindex) {
                now.insert(ifindex, Netdev::read(ifindex));
            }
        }
    }
    for context in contexts() {
        let ifindex = context.device().info().netdev.ifindex;
        match now.get(&ifindex) {
            Some(Ok(netdev)) => context.refresh(netdev, changes.was_down(ifindex)),
            Some(Err(error @ NetError::Gone { .. })) => context.gone(error),
            Some(Err(error)) => {
                tracing::debug!(%error, ifindex, "an interface that has changed can't be read")
            }
            None => {}
        }
    }
}
