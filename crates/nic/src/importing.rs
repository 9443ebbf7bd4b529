//! The importing side of contexts: contexts, domains, regions and device memory of another context, in this process or another.

use crate::adapter;
use crate::device::{Context, ImportOrigin};
use crate::opening::devices;
use ferroce_host::Host;
use ferroce_import::{Exporter, Handles, no_such};
use ferroce_mem::{Dm, Mr, Pd};
use ferroce_types::{Error, Result, invalid};
use std::any::Any;
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;

fn host() -> Option<&'static Host> {
    adapter::current().map(|adapter| &*adapter.host)
}

impl Context {
    /// Imports the context behind `cmd_fd`, a duplicate of a context's (ibv_import_device(3)): a context of its own, by
    /// which objects of the other can be imported. It takes `cmd_fd` over if it succeeds.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a descriptor that isn't a context's; ENODEV when this process hasn't the device.
    pub fn import(cmd_fd: RawFd) -> Result<Arc<Self>> {
        let Ok(exporter) = Exporter::open(cmd_fd) else {
            return invalid!("descriptor {cmd_fd} isn't the cmd_fd of a context");
        };
        let name = exporter.device();
        let device = devices()?.into_iter().find(|device| device.info().name == name).ok_or(Error::Os {
            what: "importing a context",
            source: io::Error::from_raw_os_error(libc::ENODEV),
        })?;
        let origin = match adapter::contexts().iter().find(|context| context.handles().are_of(&exporter)) {
            Some(context) => ImportOrigin::Here(Arc::downgrade(context)),
            None => ImportOrigin::Process(Arc::new(exporter)),
        };
        device.open_as(Some(origin), || Handles::imported(cmd_fd))
    }

    /// Is it this very context of the process that it was imported from?
    pub(crate) fn is_import_of(&self, context: &Self) -> bool {
        matches!(self.origin(), Some(ImportOrigin::Here(origin)) if std::ptr::eq(origin.as_ptr(), context))
    }

    /// The object behind a handle of this context, or of the one of this process that it was imported from.
    fn object<T: Any + Send + Sync>(&self, handle: u32, what: &'static str) -> Result<Arc<T>> {
        let object = match self.origin() {
            Some(ImportOrigin::Here(context)) => {
                context.upgrade().and_then(|context| context.handles().get(handle))
            }
            _ => self.handles().get(handle),
        };
        object.ok_or_else(|| no_such(what))
    }

    /// The domain behind a handle (ibv_import_pd(3)).
    ///
    /// # Errors
    /// ENOENT for a handle that isn't a domain's.
    pub fn import_pd(self: &Arc<Self>, handle: u32) -> Result<Arc<Pd>> {
        const WHAT: &str = "importing a protection domain";
        if let Some(ImportOrigin::Process(exporter)) = self.origin() {
            return exporter.pd(self, handle);
        }
        Pd::shared(&self.object(handle, WHAT)?, self)
    }

    /// The device memory behind a handle (ibv_import_dm(3)).
    ///
    /// # Errors
    /// ENOENT for a handle that isn't one's; the errno of open(2) when the memory of another process can't be opened.
    pub fn import_dm(self: &Arc<Self>, handle: u32) -> Result<Arc<Dm>> {
        const WHAT: &str = "importing device memory";
        if let Some(ImportOrigin::Process(exporter)) = self.origin() {
            return exporter.dm(self, handle, host());
        }
        self.object(handle, WHAT)
    }

    /// The region behind a handle (ibv_import_mr(3)). That of another process gets a key of this one; it can be used while
    /// it stays what it is and its process lives. Atomics on plain memory of another
    /// process are refused: they can't be made atomic with those of its own queue pairs.
    ///
    /// # Errors
    /// ENOENT for a handle that isn't a region's; [`Error::Permission`] when this process may not copy from and to the
    /// other's memory.
    pub fn import_mr(self: &Arc<Self>, handle: u32) -> Result<Arc<Mr>> {
        const WHAT: &str = "importing a memory region";
        let Some(ImportOrigin::Process(exporter)) = self.origin() else {
            return self.object(handle, WHAT);
        };
        exporter.mr(self, handle, host())
    }
}
