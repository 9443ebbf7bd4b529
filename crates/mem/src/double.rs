//! An owner for tests, which lists nothing.

use crate::{ListedObject, Owner, QueueKind};
use ferroce_types::AsyncEvent;
use std::any::Any;
use std::sync::Weak;

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
