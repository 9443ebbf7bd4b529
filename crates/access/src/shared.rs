//! Memory that two processes share: a sealed memfd and its mapping.
//!
//! The other process may write to it at any time, so all of it is atomics. Bytes are copied in and out, each
//! once: only a private copy is parsed, which the other process can't change. The memfd is sealed against shrinking, so the
//! memory stays mapped.

use crate::{Fault, copy};
use ferroce_os::fork;
use ferroce_os::sys::{self, EngineFd};
use std::io;
use std::ops::Deref;
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// A mapping, gone from the children of a fork.
#[derive(Debug)]
pub struct SharedMemory {
    fd: EngineFd,
    base: NonNull<u8>,
    len: usize,
    writable: bool,
    generation: u32,
}

// SAFETY: the mapping is used through raw copies and atomics only.
unsafe impl Send for SharedMemory {}
// SAFETY: as above.
unsafe impl Sync for SharedMemory {}

/// Types of which any bytes are a value, and which both sides may write at any time: atomics, and structures of them.
///
/// # Safety
/// The type consists of atomics of the standard library alone.
pub unsafe trait SharedWords {
    /// Made of the names, places and layouts of all fields: processes that share the words compare it.
    const LAYOUT: u64;
}

/// Shared words of a mapping that are used often: where they are is checked once.
pub struct SharedPlace<T> {
    words: NonNull<T>,
    /// They are there as long as this.
    _memory: Arc<SharedMemory>,
}

impl<T> std::fmt::Debug for SharedPlace<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "shared words at {:?}", self.words)
    }
}

// SAFETY: the words are atomics, of a mapping that any thread may use.
unsafe impl<T: SharedWords> Send for SharedPlace<T> {}
// SAFETY: as above.
unsafe impl<T: SharedWords> Sync for SharedPlace<T> {}

impl<T: SharedWords> SharedPlace<T> {
    /// The words at byte `at` of `memory`.
    ///
    /// # Panics
    /// As [`SharedMemory::words`].
    #[must_use]
    pub fn new(memory: &Arc<SharedMemory>, at: usize) -> Self {
        Self { words: NonNull::from(memory.words(at)), _memory: memory.clone() }
    }
}

impl<T: SharedWords> Deref for SharedPlace<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: checked when this was made; the mapping is there as long as this, except in the children of a fork. There the link is
        // dead (`is_inherited`), which its users ask first.
        unsafe { self.words.as_ref() }
    }
}

impl SharedMemory {
    /// New memory of `len` bytes, all zero, sealed against shrinking and growing; with `only_here` a process that gets the
    /// descriptor can't write to it.
    ///
    /// # Errors
    /// The system refused.
    pub fn create(len: usize, only_here: bool) -> io::Result<Self> {
        let fd = sys::memfd(c"ferroce-shm", len)?;
        let this = Self::map(fd, len, true)?;
        let mut seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
        if only_here {
            seals |= libc::F_SEAL_FUTURE_WRITE;
        }
        sys::add_seals(this.fd.raw(), seals | libc::F_SEAL_SEAL)?;
        Ok(this)
    }

    /// Memory that another process has made.
    ///
    /// # Errors
    /// It hasn't this length, or isn't sealed, or the system refused.
    pub fn open(fd: EngineFd, len: usize, writable: bool) -> io::Result<Self> {
        let wanted = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
        if sys::seals(fd.raw())? & wanted != wanted || sys::file_size(fd.raw())? != len as u64 {
            return Err(io::Error::from_raw_os_error(libc::EPROTO));
        }
        Self::map(fd, len, writable)
    }

    fn map(fd: EngineFd, len: usize, writable: bool) -> io::Result<Self> {
        let base = sys::map_shared(fd.raw(), len, writable)?;
        Ok(Self { fd, base, len, writable, generation: fork::generation() })
    }

    /// The mapping is that of the process before a fork, and isn't here.
    #[must_use]
    #[inline]
    pub fn is_inherited(&self) -> bool {
        self.generation != fork::generation()
    }

    /// The memfd, for handing it on.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.fd.checked()
    }

    /// Where byte `at` is mapped.
    ///
    /// # Panics
    /// `at` is beyond the end.
    #[must_use]
    #[inline]
    fn pointer(&self, at: usize) -> *mut u8 {
        assert!(at <= self.len);
        // SAFETY: inside the mapping or at its end, as asserted above.
        unsafe { self.base.as_ptr().add(at) }
    }

    /// Copies `len` bytes of the program's memory at `addr` to byte `at`.
    ///
    /// # Errors
    /// [`Fault`] when a byte can't be read; a part may have been copied.
    ///
    /// # Panics
    /// A byte is beyond the end, or the mapping is for reading only.
    #[inline]
    pub fn copy_from_program(&self, at: usize, addr: u64, len: usize) -> Result<(), Fault> {
        assert!(self.writable && at <= self.len && len <= self.len - at);
        // SAFETY: bytes of the mapping, which is writable; no reference to them exists.
        unsafe { copy::read_to_shared(addr, self.pointer(at), len) }
    }

    /// Copies `len` bytes from byte `at` to the program's memory at `addr`.
    ///
    /// # Errors
    /// [`Fault`] when a byte can't be written; a part may have been.
    ///
    /// # Panics
    /// A byte is beyond the end.
    #[inline]
    pub fn copy_to_program(&self, at: usize, addr: u64, len: usize) -> Result<(), Fault> {
        assert!(at <= self.len && len <= self.len - at);
        // SAFETY: bytes of the mapping.
        unsafe { copy::write_from_shared(addr, self.pointer(at), len) }
    }

    /// Has the processor fetch the line of byte `at` for writing, while the caller goes on.
    #[inline]
    pub fn prepare_write(&self, at: usize) {
        #[cfg(target_arch = "x86_64")]
        if at < self.len {
            use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
            // SAFETY: a hint, of an address in the mapping.
            unsafe { _mm_prefetch::<_MM_HINT_ET0>(self.pointer(at).cast()) };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = at;
    }

    /// Copies bytes in.
    ///
    /// # Panics
    /// A byte is beyond the end, or the mapping is for reading only.
    #[inline]
    pub fn write(&self, at: usize, bytes: &[u8]) {
        assert!(self.writable);
        let (before, words, after) = self.parts(at, bytes.len());
        let (first, rest) = bytes.split_at(before.len());
        let (middle, last) = rest.as_chunks();
        before.iter().zip(first).for_each(|(to, byte)| to.store(*byte, Ordering::Relaxed));
        words
            .iter()
            .zip(middle)
            .for_each(|(to, word)| to.store(u64::from_ne_bytes(*word), Ordering::Relaxed));
        after.iter().zip(last).for_each(|(to, byte)| to.store(*byte, Ordering::Relaxed));
    }

    /// Copies bytes out: each once, whatever the other process makes of them meanwhile.
    ///
    /// # Panics
    /// A byte is beyond the end.
    #[inline]
    pub fn read(&self, at: usize, bytes: &mut [u8]) {
        let (before, words, after) = self.parts(at, bytes.len());
        let (first, rest) = bytes.split_at_mut(before.len());
        let (middle, last) = rest.as_chunks_mut();
        before.iter().zip(first).for_each(|(from, byte)| *byte = from.load(Ordering::Relaxed));
        words.iter().zip(middle).for_each(|(from, word)| *word = from.load(Ordering::Relaxed).to_ne_bytes());
        after.iter().zip(last).for_each(|(from, byte)| *byte = from.load(Ordering::Relaxed));
    }

    /// `len` bytes from `at` as the atomics they consist of: bytes, aligned words, bytes.
    #[inline]
    fn parts(&self, at: usize, len: usize) -> (&[AtomicU8], &[AtomicU64], &[AtomicU8]) {
        assert!(at <= self.len && len <= self.len - at);
        // SAFETY: inside the mapping, which lives as long as `self`; others may write to atomics.
        let all = unsafe { std::slice::from_raw_parts(self.pointer(at).cast::<AtomicU8>(), len) };
        // SAFETY: eight atomic bytes, aligned, are an atomic word.
        unsafe { all.align_to() }
    }

    /// The shared words at `at`.
    ///
    /// # Panics
    /// `at` isn't aligned for them, or a byte is beyond the end.
    #[must_use]
    #[inline]
    pub fn words<T: SharedWords>(&self, at: usize) -> &T {
        assert!(at.is_multiple_of(align_of::<T>()) && at <= self.len && size_of::<T>() <= self.len - at);
        // SAFETY: aligned (mappings are, to pages) and inside the mapping, which lives as long as `self`; any bytes are
        // a `T`, and atomics may be written by others.
        unsafe { &*self.pointer(at).cast::<T>() }
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // In a child something else may be there.
        if !self.is_inherited() {
            sys::unmap(self.base, self.len);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: usize = 8192;

    fn again(memory: &SharedMemory) -> EngineFd {
        // SAFETY: takes no pointer.
        EngineFd::adopt(unsafe { libc::dup(memory.fd()) }).unwrap()
    }

    #[test]
    fn memory_that_another_has_made_is_the_same_memory() {
        let memory = SharedMemory::create(LEN, false).unwrap();
        let opened = SharedMemory::open(again(&memory), LEN, true).unwrap();
        memory.write(5000, b"there");
        opened.write(5005, b" and back");
        let mut bytes = [0; 14];
        memory.read(5000, &mut bytes);
        assert_eq!(&bytes, b"there and back");
    }

    #[test]
    fn bytes_at_any_place_and_of_any_length_arrive() {
        let memory = SharedMemory::create(LEN, false).unwrap();
        let bytes: Vec<u8> = (1..=40).collect();
        for at in 0..16 {
            for len in 0..bytes.len() {
                memory.write(0, &[0; 64]);
                memory.write(at, &bytes[..len]);
                let mut all = [0; 64];
                memory.read(0, &mut all);
                assert!(all[at..at + len] == bytes[..len] && all[at + len..].iter().all(|&byte| byte == 0));
                let mut part = vec![0; len];
                memory.read(at, &mut part);
                assert_eq!(part, bytes[..len]);
            }
        }
    }

    #[test]
    fn memory_that_only_its_maker_writes_is_mapped_by_others_for_reading() {
        let memory = SharedMemory::create(LEN, true).unwrap();
        assert!(SharedMemory::open(again(&memory), LEN, true).is_err());
        let opened = SharedMemory::open(again(&memory), LEN, false).unwrap();
        memory.write(0, b"x");
        let mut byte = [0];
        opened.read(0, &mut byte);
        assert_eq!(&byte, b"x");
    }

    #[test]
    fn memory_of_another_length_or_that_could_be_taken_away_is_refused() {
        let memory = SharedMemory::create(LEN, false).unwrap();
        for len in [0, 4096, LEN - 1, LEN + 1, 2 * LEN] {
            assert!(SharedMemory::open(again(&memory), len, false).is_err(), "{len}");
        }
        for seals in [0, libc::F_SEAL_SHRINK, libc::F_SEAL_GROW] {
            let fd = sys::memfd(c"test", LEN).unwrap();
            sys::add_seals(fd.raw(), seals).unwrap();
            assert!(SharedMemory::open(fd, LEN, false).is_err(), "seals {seals}");
        }
        let pipe = sys::eventfd(0, 0).unwrap();
        assert!(SharedMemory::open(pipe, LEN, false).is_err());
    }

    #[test]
    #[should_panic(expected = "assertion failed")]
    fn bytes_beyond_are_not_written() {
        SharedMemory::create(LEN, false).unwrap().write(LEN - 1, &[0; 2]);
    }
}
