//! Packet buffers that the kernel can copy from and to without faulting, at little cost.
//!
//! They are the pages of a memfd: `pread` moves bytes from a buffer to the program's memory, and `pwrite` back, and a
//! bad address there is an error. For small pieces that is two to three times as fast as `process_vm_readv`.
//! Where there is no memfd to be had, buffers are plain memory and copies go the other way.

use crate::sync::Mutex;
use crate::sys::EngineFd;
use std::ops::{Deref, DerefMut};
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

/// Address space of the arena; pages come with their first use.
const ARENA: usize = 64 << 20;
const GRAIN: usize = 64 << 10;

struct Arena {
    _fd: EngineFd,
    /// Free pieces, in grains: where and how many.
    free: Vec<(usize, usize)>,
}

static STATE: Mutex<Option<Arena>> = Mutex::new(None);
/// Where the arena is mapped; 0: nowhere.
static BASE: AtomicUsize = AtomicUsize::new(0);
static FD: AtomicI32 = AtomicI32::new(-1);

/// A buffer, zeroed when it is new, that belongs to its owner alone.
pub(crate) struct Staging {
    start: NonNull<u8>,
    len: usize,
    /// The arena's address, or 0 for plain memory.
    base: usize,
}

// SAFETY: a Staging is the only owner of its bytes, as a box is.
unsafe impl Send for Staging {}
// SAFETY: shared references only read.
unsafe impl Sync for Staging {}

impl Staging {
    pub(crate) fn new(len: usize) -> Self {
        from_arena(len).unwrap_or_else(|| {
            let plain = Box::leak(vec![0u8; len].into_boxed_slice());
            Self { start: NonNull::from(plain).cast(), len, base: 0 }
        })
    }
}

impl Deref for Staging {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `len` initialised bytes that this value owns.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Staging {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and exclusively borrowed.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if self.base == 0 {
            // SAFETY: leaked from a box of this length in `new`.
            drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(self.start.as_ptr(), self.len)) });
        } else if self.base == BASE.load(Ordering::Acquire)
            && let Some(arena) = &mut *STATE.lock()
        {
            let at = (self.start.as_ptr() as usize - self.base) / GRAIN;
            arena.free.push((at, self.len.div_ceil(GRAIN)));
        }
    }
}

fn from_arena(len: usize) -> Option<Staging> {
    let mut state = STATE.lock();
    if state.is_none() {
        *state = Some(make()?);
    }
    let arena = state.as_mut()?;
    let grains = len.div_ceil(GRAIN);
    let index = arena.free.iter().position(|&(_, n)| n >= grains)?;
    let (at, n) = arena.free[index];
    if n == grains {
        arena.free.swap_remove(index);
    } else {
        arena.free[index] = (at + grains, n - grains);
    }
    let base = BASE.load(Ordering::Acquire);
    let start = NonNull::new((base + at * GRAIN) as *mut u8)?;
    Some(Staging { start, len, base })
}

/// Makes and maps the memfd; `None` where the system refuses, or would send a signal for a file of this size.
fn make() -> Option<Arena> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is writable.
    if unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) } != 0 || limit.rlim_cur < ARENA as u64 {
        return None;
    }
    // SAFETY: a C string; the result is checked by `adopt`.
    let fd = unsafe { libc::memfd_create(c"ferroce".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_NOEXEC_SEAL) };
    // Kernels before 6.3 don't know the last flag.
    // SAFETY: as above.
    let fd = if fd < 0 { unsafe { libc::memfd_create(c"ferroce".as_ptr(), libc::MFD_CLOEXEC) } } else { fd };
    let fd = EngineFd::adopt(fd).ok()?;
    // SAFETY: a new shared mapping of our own file at an address of the kernel's choice; a child of a fork, which would
    // share it, doesn't get it.
    let base = unsafe {
        if libc::ftruncate(fd.raw(), ARENA as libc::off_t) != 0 {
            return None;
        }
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_NORESERVE);
        let base = libc::mmap(std::ptr::null_mut(), ARENA, protection, flags, fd.raw(), 0);
        if base == libc::MAP_FAILED {
            return None;
        }
        libc::madvise(base, ARENA, libc::MADV_DONTFORK);
        base
    };
    FD.store(fd.raw(), Ordering::Release);
    BASE.store(base as usize, Ordering::Release);
    Some(Arena { _fd: fd, free: vec![(0, ARENA / GRAIN)] })
}

/// The file and offset of a buffer's bytes, if they are the arena's.
pub(super) fn locate(bytes: &[u8]) -> Option<(RawFd, usize)> {
    let base = BASE.load(Ordering::Acquire);
    let offset = (bytes.as_ptr() as usize).checked_sub(base)?;
    (base != 0 && offset < ARENA).then(|| (FD.load(Ordering::Relaxed), offset))
}

/// Keeps the arena still over a fork.
pub(crate) fn freeze() {
    std::mem::forget(STATE.lock());
}

/// Undoes [`freeze`]; a child starts without an arena.
///
/// # Safety
/// This thread, or in a child its original, has frozen the arena.
pub(crate) unsafe fn thaw(child: bool) {
    if child {
        BASE.store(0, Ordering::Release);
        FD.store(-1, Ordering::Release);
        // SAFETY: locked by `freeze`, says the caller, and nobody else exists in a child. The old value's descriptor is
        // closed and its mapping isn't here: nothing of it may be dropped.
        std::mem::forget(unsafe { (*STATE.data_ptr()).take() });
    }
    // SAFETY: locked by `freeze`, says the caller.
    unsafe { STATE.force_unlock() };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_apart_and_come_back() {
        let mut all: Vec<Staging> = (0..8).map(|_| Staging::new(100_000)).collect();
        for (i, staging) in all.iter_mut().enumerate() {
            staging.fill(i as u8);
        }
        assert!(all.iter().enumerate().all(|(i, s)| s.len() == 100_000 && s.iter().all(|&b| b == i as u8)));
        let first = all[0].as_ptr();
        assert!(locate(&all[0][5..]).is_some_and(|(_, at)| locate(&all[0]).unwrap().1 + 5 == at));
        assert!(locate(&[0u8; 4]).is_none());
        drop(all.remove(0));
        let again = Staging::new(100_000);
        assert!(
            std::ptr::eq(first, again.as_ptr())
                || all.iter().all(|s| !std::ptr::eq(s.as_ptr(), again.as_ptr()))
        );
        // More than the arena has: plain memory.
        let plain = Staging::new(ARENA + 1);
        assert!(locate(&plain).is_none());
    }
}
