//! This process's directory, and the links to the processes that know it.

use super::directory::Directory;
use super::links::Links;
use ferroce_os::fork::{self, ChildStep, InChild};
use ferroce_os::sync::Global;
use ferroce_types::Result;
use std::io;
use std::sync::{Arc, OnceLock, Weak};

/// The directory of this process.
pub(super) struct OwnDirectory {
    pub(super) directory: Directory,
    /// The links to the processes that know it: set once, as the directory is made for them.
    links: OnceLock<Weak<Links>>,
}

static OWN: Global<OwnDirectory> = Global::new();

/// In the child of a fork: the parent's isn't its own.
fn forget_after_fork(_: &InChild) {
    OWN.clear();
}

pub(super) fn own() -> Option<&'static OwnDirectory> {
    OWN.get()
}

/// The directory of this process, if it has one.
pub fn own_directory() -> Option<&'static Directory> {
    own().map(|own| &own.directory)
}

impl OwnDirectory {
    fn create() -> io::Result<&'static Self> {
        let directory = Directory::new()?;
        Ok(Box::leak(Box::new(Self { directory, links: OnceLock::new() })))
    }

    /// The links to the processes that know this directory.
    pub(super) fn links(&self) -> Option<Arc<Links>> {
        self.links.get()?.upgrade()
    }
}

impl Links {
    /// No link yet. Without `wanted` there will never be one. `captured`: all payloads are wanted in packets. `copied`: peers may
    /// copy from and to this process's memory, also where the Yama module asks for leave (PR_SET_PTRACER).
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new(wanted: bool, captured: bool, copied: bool) -> Result<Arc<Self>> {
        let own = wanted.then(OwnDirectory::create).and_then(|made| {
            made.inspect_err(
                |error| tracing::info!(%error, "no shared memory: processes of this host are reached by UDP"),
            )
            .ok()
        });
        let links = Self::of(own.map(|own| &own.directory), captured, copied)?;
        if let Some(own) = own {
            let _ = own.links.set(Arc::downgrade(&links));
            fork::register(ChildStep::Directory, forget_after_fork);
            OWN.set(own);
        }
        Ok(links)
    }
}
