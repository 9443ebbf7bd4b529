//! Device memory (ibv_alloc_dm(3)): the adapter's own, which programs reach through copies and work requests only.
//!
//! The adapter is this process, so its memory is a memfd, mapped where the rest of the adapter finds it like any other
//! registered memory. Another process can map it as well, and a fork's child goes on to share it.

use super::mapping::{MappedFile, NAME, SEALS};
use super::owner::{ListedObject, Owner};
use ferroce_access::{Fault, copy};
use ferroce_os::sys::{self, KeptFd};
use ferroce_types::{Error, Result, Users, invalid};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// Bytes of device memory that a process may have at once.
pub const MAX_DM: u64 = 64 << 20;
/// Greatest alignment, as a power of 2.
const MAX_ALIGN: u32 = 30;
/// What offsets and lengths of copies are multiples of.
const COPY_ALIGN: u64 = 4;
/// Bytes allocated in this process.
static ALLOCATED: AtomicU64 = AtomicU64::new(0);

/// A piece of device memory.
#[derive(Debug)]
pub struct Dm {
    owner: Arc<dyn Owner>,
    /// Kept over a fork: the child has the memory too.
    fd: KeptFd,
    base: MappedFile,
    len: u64,
    /// What this process's total counts; 0 for memory of another process.
    counted: u64,
    users: Users,
    handle: u32,
}

impl Dm {
    /// Allocates `len` bytes, zeroed, at a multiple of 2^`log_align` bytes.
    ///
    /// # Errors
    /// [`Error::Invalid`] for no byte or an alignment above 2^30; [`Error::NoMemory`] when the process's [`MAX_DM`] bytes
    /// don't suffice, or the system's memory.
    pub fn alloc<O: Owner>(owner: &Arc<O>, len: u64, log_align: u32) -> Result<Arc<Self>> {
        if len == 0 || log_align > MAX_ALIGN {
            return invalid!(
                "{len} bytes of device memory, aligned to 2^{log_align}: at least 1, at most 2^{MAX_ALIGN}"
            );
        }
        let counted = len;
        let take = |used: u64| used.checked_add(counted).filter(|&sum| sum <= MAX_DM);
        if let Err(used) = ALLOCATED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) {
            return Err(Error::NoMemory(format!(
                "{len} bytes of device memory: {used} of {MAX_DM} are in use by this process"
            )));
        }
        make(len, log_align)
            .map(|(fd, base)| {
                Arc::new_cyclic(|this: &Weak<Self>| {
                    let handle = owner.add(this.clone());
                    owner.list(handle, ListedObject::Dm { fd: fd.as_raw_fd(), len });
                    let (owner, users) = (owner.clone(), Users::default());
                    Self { owner, fd, base, len, counted, users, handle }
                })
            })
            .inspect_err(|_| {
                ALLOCATED.fetch_sub(counted, Ordering::Relaxed);
            })
    }

    /// The memory `handle` of another process, which keeps its descriptor at `path`.
    ///
    /// # Errors
    /// It can't be opened or mapped, or isn't device memory of `len` bytes.
    pub fn of_another<O: Owner>(owner: &Arc<O>, path: &str, len: u64, handle: u32) -> Result<Arc<Self>> {
        let (fd, base) = open(path, len)?;
        let (owner, users) = (owner.clone(), Users::default());
        Ok(Arc::new(Self { owner, fd, base, len, counted: 0, users, handle }))
    }

    /// Names it to those who import it.
    #[must_use]
    pub fn handle(&self) -> u32 {
        self.handle
    }

    /// Whose it is.
    #[must_use]
    pub fn owner(&self) -> &Arc<dyn Owner> {
        &self.owner
    }

    /// Bytes.
    #[allow(clippy::len_without_is_empty)] // never empty
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Where the adapter has it.
    pub(super) fn addr(&self) -> u64 {
        self.base.addr()
    }

    /// The offset, if `len` bytes from there on lie inside and copies may begin there.
    fn range(&self, offset: u64, len: u64) -> Result<usize> {
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(Error::Fault(format!(
                "{offset}+{len} is outside of {} bytes of device memory",
                self.len
            )));
        }
        if !offset.is_multiple_of(COPY_ALIGN) || !len.is_multiple_of(COPY_ALIGN) {
            return invalid!("a copy of {len} bytes at {offset}: both are multiples of {COPY_ALIGN}");
        }
        Ok(offset as usize)
    }

    /// Copies `len` bytes of the program's memory at `from` to `offset` (ibv_memcpy_to_dm(3)).
    ///
    /// # Errors
    /// [`Error::Fault`] for a range outside of the device memory, or program memory that isn't there; [`Error::Invalid`]
    /// for an offset or a length that isn't a multiple of 4.
    pub fn copy_in(&self, offset: u64, from: u64, len: u64) -> Result<()> {
        let at = self.range(offset, len)?;
        if len == 0 {
            return Ok(());
        }
        // SAFETY: `range` has checked that it is inside the mapping; no reference to device memory exists.
        unsafe { copy::read_to_shared(from, self.base.at().as_ptr().add(at), len as usize) }
            .map_err(unreachable_host)
    }

    /// Copies `len` bytes from `offset` to the program's memory at `to` (ibv_memcpy_from_dm(3)).
    ///
    /// # Errors
    /// As [`Dm::copy_in`].
    pub fn copy_out(&self, offset: u64, to: u64, len: u64) -> Result<()> {
        let at = self.range(offset, len)?;
        if len == 0 {
            return Ok(());
        }
        // SAFETY: as in `copy_in`.
        unsafe { copy::write_from_shared(to, self.base.at().as_ptr().add(at), len as usize) }
            .map_err(unreachable_host)
    }

    /// A descriptor of the memory, the caller's own (ibv_dm_export_dmabuf_fd(3)): a dma-buf where the kernel makes
    /// one of a memfd (/dev/udmabuf), and the memfd itself elsewhere, which this adapter registers just as well.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn export(&self) -> Result<OwnedFd> {
        let made = super::dmabuf::of_memfd(&self.fd, self.len.next_multiple_of(sys::page_size()));
        made.or_else(|why| {
            tracing::debug!(%why, "no dma-buf can be made: the device memory is exported as a memfd");
            self.fd.try_clone()
        })
        .map_err(Error::os("exporting device memory"))
    }

    pub(super) fn hold(&self) {
        self.users.hold();
    }

    pub(super) fn release(&self) {
        self.users.release();
    }

    /// Ends it (ibv_free_dm(3)).
    ///
    /// # Errors
    /// [`Error::Busy`] while a memory region is registered on it.
    pub fn free(&self) -> Result<()> {
        self.users.check_none("the device memory still has memory regions")?;
        if self.counted > 0 {
            self.owner.remove(self.handle);
        }
        Ok(())
    }
}

impl Drop for Dm {
    fn drop(&mut self) {
        ALLOCATED.fetch_sub(self.counted, Ordering::Relaxed);
    }
}

fn unreachable_host(_: Fault) -> Error {
    Error::Fault("the program's memory can't be copied".into())
}

/// A sealed memfd of `len` bytes, mapped.
fn make(len: u64, log_align: u32) -> Result<(KeptFd, MappedFile)> {
    let no_memory = |error: io::Error| Error::NoMemory(format!("{len} bytes of device memory: {error}"));
    let whole = (len as usize).next_multiple_of(sys::page_size() as usize);
    let fd = sys::memfd(NAME, whole).map_err(no_memory)?;
    sys::add_seals(fd.raw(), SEALS | libc::F_SEAL_SEAL).map_err(no_memory)?;
    let own = sys::duplicate(fd.raw()).map_err(no_memory)?;
    let base = MappedFile::new(own.as_raw_fd(), whole, 1 << log_align, true).map_err(no_memory)?;
    Ok((own, base))
}

/// That of another process, mapped.
fn open(path: &str, len: u64) -> Result<(KeptFd, MappedFile)> {
    let os = |error| Error::os("opening the device memory of another process")(error);
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).map_err(os)?;
    let fd = KeptFd::from(OwnedFd::from(file));
    let whole = len.checked_next_multiple_of(sys::page_size());
    let (seals, size) = (sys::seals(fd.as_raw_fd()), sys::file_size(fd.as_raw_fd()).map_err(os)?);
    if !seals.is_ok_and(|seals| seals & SEALS == SEALS) || Some(size) != whole {
        return invalid!("{path} isn't device memory of {len} bytes");
    }
    let base = MappedFile::new(fd.as_raw_fd(), size as usize, 1, true).map_err(os)?;
    Ok((fd, base))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_another_length_than_its_process_says_is_refused() {
        let (fd, _mapping) = make(5000, 0).unwrap();
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        open(&path, 5000).unwrap();
        for wrong in [0, 1, 4096, 8193, u64::MAX] {
            assert_eq!(open(&path, wrong).unwrap_err().errno(), libc::EINVAL, "{wrong}");
        }
        let unsealed = sys::memfd(c"other", 8192).unwrap();
        assert_eq!(
            open(&format!("/proc/self/fd/{}", unsealed.raw()), 5000).unwrap_err().errno(),
            libc::EINVAL
        );
    }
}
