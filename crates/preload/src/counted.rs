//! Counters of devices: sums over the processes that use them. The processes are asked when a counter is opened; the sums
//! are kept for 20 ms.

use std::collections::BTreeMap;
use std::sync::{Mutex, TryLockError};
use std::time::{Duration, Instant};

use ferroce_host::ask_all;
use ferroce_watch::{Counters, LONGEST, Process, Wish, port_counter};

use crate::tree::CounterSet;

/// A program that looks at one counter looks at the others, too.
const FRESH: Duration = Duration::from_millis(20);
/// How long processes are waited for that don't answer; what they have counted is missing then.
const PATIENCE: Duration = Duration::from_millis(200);

type Devices = BTreeMap<String, Counters>;

static LATEST: Mutex<Option<(Instant, Devices)>> = Mutex::new(None);

/// The text of a counter's attribute; `None` where the processes can't be found.
#[must_use]
pub fn text(device: &str, set: CounterSet, name: &str) -> Option<String> {
    let counted = of(device)?;
    let value = match set {
        CounterSet::Port => port_counter(name, &counted),
        CounterSet::Hardware => counted.each().into_iter().find(|(known, _)| *known == name)?.1,
    };
    Some(format!("{value}\n"))
}

/// Waits only for the processes that are asked, and never for the lock: it stays locked in a child that was forked while
/// another thread held it.
fn of(device: &str) -> Option<Counters> {
    let mut latest = match LATEST.try_lock() {
        Ok(latest) => Some(latest),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    };
    if let Some((asked, devices)) = latest.as_deref().and_then(Option::as_ref)
        && asked.elapsed() < FRESH
    {
        return Some(devices.get(device).copied().unwrap_or_default());
    }
    let devices = ask()?;
    let counted = devices.get(device).copied().unwrap_or_default();
    if let Some(latest) = &mut latest {
        **latest = Some((Instant::now(), devices));
    }
    Some(counted)
}

fn ask() -> Option<Devices> {
    let mut devices = Devices::new();
    // What an account has is added up as it comes.
    ask_all(Wish::Devices.to_byte(), LONGEST, PATIENCE, |_, account| {
        for device in Process::from_bytes(&account)?.devices {
            devices.entry(device.name.to_string()).or_default().add(&device.counters);
        }
        Some(())
    })?;
    Some(devices)
}
