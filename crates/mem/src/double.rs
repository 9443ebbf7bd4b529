//! An owner for tests, which lists nothing.

use crate::{Dm, ListedMr, Mr, Owner, Pd, QueueKind};
use ferroce_types::AsyncEvent;
use std::os::fd::RawFd;
use std::sync::Weak;

#[derive(Debug)]
pub(crate) struct Nobody;

impl Owner for Nobody {
    fn device_name(&self) -> &str {
        "none"
    }

    fn add_pd(&self, _pd: Weak<Pd>) -> u32 {
        1
    }

    fn add_dm(&self, _dm: Weak<Dm>, _fd: RawFd, _len: u64) -> u32 {
        1
    }

    fn add_mr(&self, _mr: Weak<Mr>) -> u32 {
        1
    }

    fn list_mr(&self, _handle: u32, _region: ListedMr) {}

    fn remove(&self, _handle: u32) {}

    fn raise(&self, _event: AsyncEvent) {}

    fn withdraw(&self, _object: usize) {}

    fn count(&self, _kind: QueueKind, _exists: bool) {}
}
