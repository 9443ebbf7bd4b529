//! What exists of the program's objects, where it was made, and what an adapter would have pinned for it.

use super::{CallTrace, ExitPolicy, found, is_on, tell};
use ferroce_abi::verbs::ibv_context;
use ferroce_explain::Finding;
use ferroce_os::sync::{Mutex, class};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Debug)]
struct CheckedObject {
    kind: &'static str,
    context: usize,
    /// The process that has made it.
    generation: u32,
    made: CallTrace,
    /// Bytes of the pages that an adapter pins for it.
    pinned: u64,
}

/// By their addresses.
static OBJECTS: Mutex<class::CheckedObjects, BTreeMap<usize, CheckedObject>> = Mutex::new(BTreeMap::new());

/// An object has been made; `kind` is what its C structure is called.
pub fn made(kind: &'static str, context: *mut ibv_context, address: usize) {
    if is_on() {
        let generation = ferroce_os::fork::generation();
        let object =
            CheckedObject { kind, context: context as usize, generation, made: CallTrace::here(), pinned: 0 };
        OBJECTS.lock().insert(address, object);
    }
}

/// It has been destroyed.
pub fn gone(address: usize) {
    if is_on() {
        let gone = OBJECTS.lock().remove(&address);
        drop(gone);
    }
}

/// It is the library's own, which keeps it until the process ends.
pub fn own<T>(object: *mut T) {
    gone(object as usize);
}

/// An adapter would pin these bytes of the program for a region. Reports, once, if they are too many.
pub fn pinned(region: usize, addr: u64, length: u64) {
    const PAGE: u64 = 4096;
    static TOLD: AtomicBool = AtomicBool::new(false);
    if !is_on() {
        return;
    }
    let bytes = addr.saturating_add(length).next_multiple_of(PAGE) - addr / PAGE * PAGE;
    let total: u64 = {
        let mut objects = OBJECTS.lock();
        if let Some(object) = objects.get_mut(&region) {
            object.pinned = bytes;
        }
        objects.values().map(|object| object.pinned).sum()
    };
    let Some(limit) = memlock().filter(|limit| total > *limit) else { return };
    if !TOLD.swap(true, Ordering::Relaxed) {
        let known = format!("{total} bytes in pages, the limit is {limit}");
        let place = CallTrace::here().place();
        found(&Finding { number: 107, about: "ibv_reg_mr".into(), known, place });
    }
}

/// RLIMIT_MEMLOCK, where the kernel would go by it.
fn memlock() -> Option<u64> {
    const CAP_IPC_LOCK: u64 = 1 << 14;
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a structure to be filled in.
    if unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) } != 0
        || limit.rlim_cur == libc::RLIM_INFINITY
    {
        return None;
    }
    let text = |path| std::fs::read_to_string(path).unwrap_or_default();
    // Only a capability over the whole machine counts.
    let is_first = text("/proc/self/uid_map").split_whitespace().eq(["0", "0", "4294967295"]);
    let status = text("/proc/thread-self/status");
    let effective =
        status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("CapEff:")?.trim(), 16).ok());
    let may_pin = is_first && effective.is_some_and(|capabilities| capabilities & CAP_IPC_LOCK != 0);
    (!may_pin).then_some(limit.rlim_cur)
}

fn take(of: impl Fn(&CheckedObject) -> bool) -> Vec<CheckedObject> {
    let mut objects = OBJECTS.lock();
    let addresses: Vec<usize> = objects.iter().filter(|(_, object)| of(object)).map(|(at, _)| *at).collect();
    addresses.iter().filter_map(|address| objects.remove(address)).collect()
}

/// A context is closed: reports the objects that are left of it.
pub fn close(context: *mut ibv_context) {
    if is_on() {
        tell_left(&take(|object| object.context == context as usize), "ibv_close_device", ExitPolicy::AtOnce);
    }
}

fn tell_left(left: &[CheckedObject], about: &str, end: ExitPolicy) {
    let mut kinds: BTreeMap<&'static str, (usize, &CallTrace)> = BTreeMap::new();
    let own = left.iter().filter(|object| object.generation == ferroce_os::fork::generation());
    for object in own {
        kinds.entry(object.kind).or_insert((0, &object.made)).0 += 1;
    }
    if kinds.is_empty() {
        return;
    }
    let of_kind = |(kind, (count, made)): (&&str, &(usize, &CallTrace))| {
        let place = made.place().map_or(String::new(), |place| format!(" made at {place}"));
        format!("{count} {kind}{place}")
    };
    let known = kinds.iter().map(of_kind).collect::<Vec<_>>().join(", ");
    let place = kinds.values().next().and_then(|(_, made)| made.place());
    tell(&Finding { number: 106, about: about.into(), known, place }, end);
}

/// Reports the objects that are left when the process exits, after the program's own handlers and destructors, which may destroy objects.
pub fn tell_left_at_exit() {
    if !OBJECTS.lock().is_empty() {
        tell_left(&take(|_| true), "exit", ExitPolicy::Exiting);
    }
}
