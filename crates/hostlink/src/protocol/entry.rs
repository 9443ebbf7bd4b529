//! Entries of a shared directory, and how one is taken back from readers in other processes.
//!
//! An entry is written by its owner only, and only while nobody can be using it. A reader announces itself in its *busy
//! word* before it looks. The owner takes the entry back ([`DirectoryEntry::revoke`]) and then waits until each busy word that was
//! odd has changed ([`Busy::has_left`]): who comes later doesn't find the entry any more.

use crate::sync::{AtomicU64, Ordering, fence, shared_words};

/// What an entry says; what the words mean is the directory's affair.
pub(crate) type Words = [u64; DirectoryEntry::WORDS];

/// One entry.
#[derive(Default, Debug)]
#[repr(C, align(64))]
pub(crate) struct DirectoryEntry {
    /// What the entry stands for; 0: nothing.
    name: AtomicU64,
    words: [AtomicU64; DirectoryEntry::WORDS],
}

shared_words!(DirectoryEntry { name, words } Busy { 0 } Ended { 0 });

impl DirectoryEntry {
    pub(crate) const WORDS: usize = 4;

    /// Fills the entry. It must be empty, and all who used it gone.
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

    /// Empties the entry and returns its name. Who was using it may still be.
    pub(crate) fn revoke(&self) -> u64 {
        let name = self.name.swap(0, Ordering::SeqCst);
        // Of this fence and that of a reader one comes first: what is before it, the other side sees.
        fence(Ordering::SeqCst);
        name
    }

    /// Undoes [`DirectoryEntry::revoke`].
    pub(crate) fn restore(&self, name: u64) {
        self.name.store(name, Ordering::Release);
    }

    /// What the entry says, if it stands for `name`. To be called, and used, between [`Busy::enter`] and [`Busy::leave`].
    pub(crate) fn read(&self, name: u64) -> Option<Words> {
        (self.name.load(Ordering::Acquire) == name)
            .then(|| std::array::from_fn(|i| self.words[i].load(Ordering::Relaxed)))
    }
}

/// Odd while a process uses entries of one other's directory. Written by the using process only, by one thread at a
/// time.
#[derive(Default, Debug)]
#[repr(C)]
pub(crate) struct Busy(AtomicU64);

impl Busy {
    /// From here on entries that are found stay valid …
    pub(crate) fn enter(&self) {
        let value = self.0.load(Ordering::Relaxed);
        // Who sees this one instead of the last `leave` is to know as much.
        self.0.store(value | 1, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// … up to here.
    pub(crate) fn leave(&self) {
        let value = self.0.load(Ordering::Relaxed);
        self.0.store((value | 1).wrapping_add(1), Ordering::Release);
    }

    /// The word now, for the owner of what was revoked.
    pub(crate) fn value(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Whoever was using something at `value` has left it.
    pub(crate) fn has_left(&self, value: u64) -> bool {
        value & 1 == 0 || self.value() != value
    }
}

/// Whether the owner of a directory has given up its link to a process. Written by the owner only.
#[derive(Default, Debug)]
#[repr(C)]
pub(crate) struct Ended(AtomicU64);

impl Ended {
    /// Nobody begins to use an entry by this link any more, but for those that the busy word tells of from here on.
    pub(crate) fn set(&self) {
        self.0.store(1, Ordering::Relaxed);
        // As in [`DirectoryEntry::revoke`].
        fence(Ordering::SeqCst);
    }

    /// For who has entered: it has to leave without a look at any entry.
    #[inline]
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }
}
