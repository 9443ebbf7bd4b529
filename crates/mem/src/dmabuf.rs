//! dma-bufs (ibv_reg_dmabuf_mr(3)): memory of other devices and drivers behind a descriptor, mapped here. An
//! ioctl before and after each access of the CPU keeps caches coherent.

use super::mapping::{MappedFile, NAME, SEALS};
use ferroce_os::sys::{self, KeptFd};
use ferroce_types::{Error, Result, invalid};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// `f_type` of the file system that dma-bufs are on.
const DMA_BUF_MAGIC: u64 = 0x444d_4142;
/// `DMA_BUF_IOCTL_SYNC` and the flags of its one word.
const DMA_BUF_IOCTL_SYNC: libc::c_ulong = 0x4008_6200;
const SYNC_READ: u64 = 1;
const SYNC_WRITE: u64 = 2;
const SYNC_END: u64 = 4;
/// `UDMABUF_CREATE` and its flag for close-on-exec.
const UDMABUF_CREATE: libc::c_ulong = 0x4018_7542;
const UDMABUF_FLAGS_CLOEXEC: u32 = 1;

/// `struct udmabuf_create`.
#[repr(C)]
struct UdmabufCreate {
    memfd: u32,
    flags: u32,
    offset: u64,
    size: u64,
}

/// A range of a dma-buf, mapped from the dma-buf's beginning on: some drivers map that whatever offset is asked for.
#[derive(Debug)]
pub(super) struct DmaBuf {
    fd: KeptFd,
    mapping: MappedFile,
    /// Where in the mapping the range begins.
    offset: u64,
    /// The kernel wants to know of accesses.
    synced: bool,
}

impl DmaBuf {
    /// Maps `len` bytes from `offset` on of the dma-buf `fd`.
    ///
    /// # Errors
    /// EBADF for a number that isn't a descriptor, EINVAL for one that isn't a dma-buf's or for a range outside of it, and
    /// those of mmap(2).
    pub(super) fn map(fd: RawFd, offset: u64, len: u64, writable: bool) -> Result<Self> {
        let os = Error::os("mapping a dma-buf");
        let fd = match sys::duplicate(fd) {
            Ok(fd) => fd,
            Err(error) => return Err(os(error)),
        };
        let synced = is_dma_buf(fd.as_raw_fd());
        if !synced && !is_device_memory(fd.as_raw_fd()) {
            return invalid!("the descriptor isn't that of a dma-buf");
        }
        let size = sys::seek_end(fd.as_raw_fd()).map_err(Error::os("asking for the size of a dma-buf"))?;
        if len == 0 || offset.checked_add(len).is_none_or(|end| end > size) {
            return invalid!("{offset}+{len} is outside of a dma-buf of {size} bytes");
        }
        let mapping = MappedFile::new(fd.as_raw_fd(), (offset + len) as usize, 1, writable).map_err(os)?;
        Ok(Self { fd, mapping, offset, synced })
    }

    /// Where the range is mapped.
    pub(super) fn addr(&self) -> u64 {
        self.mapping.addr() + self.offset
    }

    /// Runs `f`, which reads or writes the memory.
    pub(super) fn accessed<R>(&self, write: bool, f: impl FnOnce() -> R) -> R {
        let flags = if write { SYNC_READ | SYNC_WRITE } else { SYNC_READ };
        self.sync(flags);
        let result = f();
        self.sync(flags | SYNC_END);
        result
    }

    fn sync(&self, mut flags: u64) {
        if !self.synced {
            return;
        }
        loop {
            // SAFETY: the ioctl reads one word.
            let done = unsafe {
                libc::syscall(libc::SYS_ioctl, self.fd.as_raw_fd(), DMA_BUF_IOCTL_SYNC, &raw mut flags)
            };
            let again = done != 0
                && matches!(io::Error::last_os_error().raw_os_error(), Some(libc::EINTR | libc::EAGAIN));
            if !again {
                return;
            }
        }
    }
}

/// Is the file behind `fd` a dma-buf?
fn is_dma_buf(fd: RawFd) -> bool {
    // SAFETY: all-zero bytes are a valid statfs.
    let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes a statfs into `stat`.
    let done = unsafe { libc::syscall(libc::SYS_fstatfs, fd, &raw mut stat) };
    done == 0 && stat.f_type as u64 == DMA_BUF_MAGIC
}

/// Is the file behind `fd` device memory of this adapter, exported without a dma-buf?
fn is_device_memory(fd: RawFd) -> bool {
    let name = std::fs::read_link(format!("/proc/thread-self/fd/{fd}"));
    let wanted = format!("/memfd:{} (deleted)", NAME.to_string_lossy());
    name.is_ok_and(|name| name.as_os_str() == wanted.as_str())
        && sys::seals(fd).is_ok_and(|seals| seals & SEALS == SEALS)
}

/// A dma-buf of the first `len` bytes of a sealed memfd.
///
/// # Errors
/// There is no /dev/udmabuf, or not for this user, or it refuses.
pub(super) fn of_memfd(memfd: &OwnedFd, len: u64) -> io::Result<OwnedFd> {
    let device = std::fs::OpenOptions::new().read(true).write(true).open("/dev/udmabuf")?;
    let create =
        UdmabufCreate { memfd: memfd.as_raw_fd() as u32, flags: UDMABUF_FLAGS_CLOEXEC, offset: 0, size: len };
    // SAFETY: the ioctl reads the structure.
    let fd = unsafe { libc::syscall(libc::SYS_ioctl, device.as_raw_fd(), UDMABUF_CREATE, &raw const create) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor without another owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}
