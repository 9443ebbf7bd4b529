//! Entries of a shared directory, and how one is taken back from readers in other processes.
//!
//! The owner writes an entry, and only while no reader can be using it. A reader names the QP and the region that it is about to use
//! in one of its *access words*, then looks the entries up. The owner takes an entry back ([`DirectoryEntry::revoke`]) and waits until
//! each access word that names the object has changed ([`AccessWord::has_left`]): a later reader doesn't find the entry. Accesses to
//! other objects aren't waited for, however long they take.

use crate::sync::{AtomicU64, Ordering, fence, shared_words};

/// The words of an entry. Their meaning is defined by the directory.
pub(crate) type Words = [u64; DirectoryEntry::WORDS];

/// The name of an entry that was withdrawn. No object has it.
const WITHDRAWN: u64 = u64::MAX;

/// One entry.
#[derive(Default, Debug)]
#[repr(C, align(64))]
pub(crate) struct DirectoryEntry {
    /// What the entry stands for; 0: nothing.
    name: AtomicU64,
    words: [AtomicU64; DirectoryEntry::WORDS],
}

shared_words!(DirectoryEntry { name, words } AccessWord { 0 } EndedFlag { 0 });

impl DirectoryEntry {
    pub(crate) const WORDS: usize = 4;

    /// Fills the entry. It must be empty, and no access to it in progress.
    pub(crate) fn publish(&self, name: u64, words: Words) {
        for (to, word) in self.words.iter().zip(words) {
            to.store(word, Ordering::Relaxed);
        }
        self.name.store(name, Ordering::Release);
    }

    /// Changes a word. To be called by the owner alone, by one thread at a time.
    pub(crate) fn set(&self, word: usize, value: u64) {
        self.words[word].store(value, Ordering::Release);
    }

    /// A word, whatever the entry stands for: a guess, for any time.
    pub(crate) fn get(&self, word: usize) -> u64 {
        self.words[word].load(Ordering::Acquire)
    }

    /// Empties the entry and returns its name. Accesses that found it before may still be under way.
    pub(crate) fn revoke(&self) -> u64 {
        let name = self.name.swap(0, Ordering::SeqCst);
        // SYNC: store-buffering pair with `AccessWord::enter`.
        fence(Ordering::SeqCst);
        name
    }

    /// Undoes [`DirectoryEntry::revoke`], unless the entry was withdrawn meanwhile.
    pub(crate) fn restore(&self, name: u64) {
        // The words haven't changed since the name was published.
        let _ = self.name.compare_exchange(0, name, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Empties the entry for good: until the next [`DirectoryEntry::publish`] nothing restores it. Accesses that found it before may
    /// still be under way.
    pub(crate) fn withdraw(&self) {
        self.name.swap(WITHDRAWN, Ordering::SeqCst);
        // SYNC: store-buffering pair with `AccessWord::enter`.
        fence(Ordering::SeqCst);
    }

    /// The entry's words, if it stands for `name`. To be called, and used, between [`AccessWord::enter`] and [`AccessWord::leave`].
    pub(crate) fn read(&self, name: u64) -> Option<Words> {
        (self.name.load(Ordering::Acquire) == name)
            .then(|| std::array::from_fn(|i| self.words[i].load(Ordering::Relaxed)))
    }
}

/// What a directory's owner takes back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RevokedObject {
    /// A region, by its key.
    Region(u32),
    /// A queue pair, by its number.
    Qp(u32),
}

/// Names the QP and the region of the other process that one thread of a process is using. Written by the using process only, by one
/// thread at a time.
///
/// Bit 0: in use. Bits 1 to 7 count accesses. Bits 8 to 31: the QPN. Bits 32 to 63: the region's key. The names are 0 while the word is
/// not in use.
#[derive(Default, Debug)]
#[repr(C, align(64))]
pub(crate) struct AccessWord(AtomicU64);

impl AccessWord {
    const IN_USE: u64 = 1;
    /// The count, with [`AccessWord::IN_USE`] as its lowest bit.
    const COUNT: u64 = 0xff;

    /// From here on the entries of this QP and this region that are found stay valid …
    #[inline]
    pub(crate) fn enter(&self, qpn: u32, rkey: u32) {
        let count = self.0.load(Ordering::Relaxed) & Self::COUNT;
        let names = u64::from(rkey) << 32 | u64::from(qpn & 0xff_ffff) << 8;
        // Release: an owner that reads this word in place of the last `leave` sees that access complete.
        self.0.store(names | count | Self::IN_USE, Ordering::Release);
        // SYNC: store-buffering pair with `DirectoryEntry::revoke` and `EndedFlag::set`. Either the owner sees this word, or this thread sees
        // that the entry has been taken back, or that the link has ended.
        fence(Ordering::SeqCst);
    }

    /// … up to here.
    #[inline]
    pub(crate) fn leave(&self) {
        let count = (self.0.load(Ordering::Relaxed) | Self::IN_USE).wrapping_add(1) & Self::COUNT;
        self.0.store(count, Ordering::Release);
    }

    /// The word now. The owner of the directory reads it after it has taken an entry back.
    pub(crate) fn value(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// A word of this value is in use.
    pub(crate) fn is_in_use(value: u64) -> bool {
        value & Self::IN_USE != 0
    }

    /// A word of this value names `object`.
    pub(crate) fn names(value: u64, object: RevokedObject) -> bool {
        Self::is_in_use(value)
            && match object {
                RevokedObject::Region(key) => value >> 32 == u64::from(key),
                RevokedObject::Qp(qpn) => value >> 8 & 0xff_ffff == u64::from(qpn),
            }
    }

    /// The access that was under way at `value` has ended.
    pub(crate) fn has_left(&self, value: u64) -> bool {
        !Self::is_in_use(value) || self.value() != value
    }
}

/// Whether the owner of a directory has given up its link to a process. Written by the owner only.
#[derive(Default, Debug)]
#[repr(C)]
pub(crate) struct EndedFlag(AtomicU64);

impl EndedFlag {
    /// No access by this link begins any more, but for those that the access words show from here on.
    pub(crate) fn set(&self) {
        self.0.store(1, Ordering::Relaxed);
        // SYNC: store-buffering pair with `AccessWord::enter`.
        fence(Ordering::SeqCst);
    }

    /// Read after [`AccessWord::enter`]: if it is set, the reader leaves without a look at any entry.
    #[inline]
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }
}
