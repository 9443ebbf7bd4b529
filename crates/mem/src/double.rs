//! Owners and memory for tests.

use crate::{Backing, ListedObject, Owner, QueueKind};
use ferroce_access::Fault;
use ferroce_types::AsyncEvent;
use std::any::Any;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// An owner that lists nothing.
#[derive(Debug)]
pub(crate) struct Nobody;

impl Owner for Nobody {
    fn device_name(&self) -> &str {
        "none"
    }

    fn add(&self, _object: Weak<dyn Any + Send + Sync>) -> u32 {
        1
    }

    fn list(&self, _handle: u32, _object: ListedObject) {}

    fn remove(&self, _handle: u32) {}

    fn raise(&self, _event: AsyncEvent) {}

    fn withdraw(&self, _object: usize) {}

    fn count(&self, _kind: QueueKind, _exists: bool) {}
}

/// An owner that knows which of its objects have a handle.
#[derive(Debug, Default)]
pub(crate) struct HandleKeeper {
    last: AtomicU32,
    handles: Mutex<Vec<u32>>,
}

impl HandleKeeper {
    /// The handles that there are, oldest first.
    pub(crate) fn handles(&self) -> Vec<u32> {
        self.handles.lock().expect("no panic").clone()
    }
}

impl Owner for HandleKeeper {
    fn device_name(&self) -> &str {
        "none"
    }

    fn add(&self, _object: Weak<dyn Any + Send + Sync>) -> u32 {
        let handle = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        self.handles.lock().expect("no panic").push(handle);
        handle
    }

    fn list(&self, _handle: u32, _object: ListedObject) {}

    fn remove(&self, handle: u32) {
        self.handles.lock().expect("no panic").retain(|known| *known != handle);
    }

    fn raise(&self, _event: AsyncEvent) {}

    fn withdraw(&self, _object: usize) {}

    fn count(&self, _kind: QueueKind, _exists: bool) {}
}

/// Memory of another process, which is a buffer of this one. It counts the accesses.
#[derive(Debug, Default)]
pub(crate) struct CountedBacking(pub(crate) Arc<AtomicU32>);

impl Backing for CountedBacking {
    fn accessed(
        &self,
        _addr: u64,
        len: u64,
        _write: bool,
        f: &mut dyn FnMut(u64) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        self.0.fetch_add(1, Ordering::Relaxed);
        let copy = vec![0; len as usize];
        f(copy.as_ptr() as u64)
    }
}
