//! A device context as the owner of what `mem` and the queues make, and the way back from an object to its context.

use super::Context;
use crate::adapter;
use ferroce_mem::{Dm, ListedObject, Owner, Pd, QueueKind};
use ferroce_queues::{CompChannel, Cq, EventTimer, Srq};
use ferroce_types::{AsyncEvent, Instant};
use std::any::Any;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

impl Owner for Context {
    fn device_name(&self) -> &str {
        &self.device().info().name
    }

    fn add(&self, object: Weak<dyn Any + Send + Sync>) -> u32 {
        self.handles().add(object)
    }

    fn list(&self, handle: u32, object: ListedObject) {
        self.handles().list(handle, object);
    }

    fn remove(&self, handle: u32) {
        self.handles().remove(handle);
    }

    fn raise(&self, event: AsyncEvent) {
        self.raise(event);
    }

    fn withdraw(&self, object: usize) {
        self.withdraw(object);
    }

    fn count(&self, kind: QueueKind, exists: bool) {
        if let Some(count) = self.count_of(kind) {
            if exists {
                count.fetch_add(1, Ordering::Relaxed);
            } else {
                count.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
}

impl EventTimer for Context {
    fn schedule(&self, cq: &Arc<Cq>, at: Instant) {
        adapter::schedule_event(cq, at);
    }

    fn expect_sleeper(&self, is_one_more: bool) {
        adapter::expect_sleeper(is_one_more);
    }
}

impl Context {
    fn count_of(&self, kind: QueueKind) -> Option<&AtomicUsize> {
        match kind {
            QueueKind::SharedReceive => Some(&self.srqs),
            QueueKind::Completion => Some(&self.cqs),
            QueueKind::Receive | QueueKind::Send => None,
        }
    }

    /// How many queues of a kind exist.
    pub(crate) fn queues(&self, kind: QueueKind) -> usize {
        self.count_of(kind).map_or(0, |count| count.load(Ordering::Relaxed))
    }
}

/// What belongs to a device context.
pub trait OfContext {
    /// The device context that the object belongs to.
    fn context(&self) -> Arc<Context>;
}

macro_rules! of_context {
    ($($object:ty),*) => {$(
        impl OfContext for $object {
            fn context(&self) -> Arc<Context> {
                context_of(self.owner().clone())
            }
        }
    )*};
}

of_context!(Pd, Dm, CompChannel, Cq);

impl OfContext for Srq {
    fn context(&self) -> Arc<Context> {
        self.pd().context()
    }
}

/// Contexts are the only owners here.
fn context_of(owner: Arc<dyn Any + Send + Sync>) -> Arc<Context> {
    owner.downcast().unwrap_or_else(|_| unreachable!("an owner that isn't a context"))
}
