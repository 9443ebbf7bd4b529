//! Where the entries of queues lie: in memory of the adapter, or in memory that the program gives through the allocator
//! of a parent domain (ibv_alloc_parent_domain(3)).

use ferroce_mem::{AllocatorAnswer, QueueKind, QueueMemory};
use ferroce_types::{Error, Result};
use std::collections::VecDeque;
use std::fmt::{self, Debug};
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Arc;

/// A first-in, first-out queue. That in a program's memory has a fixed capacity, which the owner keeps to.
pub(crate) enum Ring<T> {
    Own(VecDeque<T>),
    Given(GivenRing<T>),
}

impl<T> Default for Ring<T> {
    fn default() -> Self {
        Self::Own(VecDeque::new())
    }
}

impl<T> Debug for Ring<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ring of {}", self.len())
    }
}

impl<T> Ring<T> {
    /// A queue for up to `capacity` entries. It calls the program: nothing may be locked.
    ///
    /// # Errors
    /// [`Error::NoMemory`] when the program's allocator gives nothing.
    pub(crate) fn new(
        memory: Option<&Arc<dyn QueueMemory>>,
        capacity: usize,
        kind: QueueKind,
    ) -> Result<Self> {
        Ok(GivenRing::given(memory, capacity, kind)?.map_or_else(Self::default, Self::Given))
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Own(entries) => entries.len(),
            Self::Given(slots) => slots.len,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn push_back(&mut self, entry: T) {
        match self {
            Self::Own(entries) => entries.push_back(entry),
            Self::Given(slots) => slots.push_back(entry),
        }
    }

    pub(crate) fn pop_front(&mut self) -> Option<T> {
        match self {
            Self::Own(entries) => entries.pop_front(),
            Self::Given(slots) => slots.pop_front(),
        }
    }

    /// Drops the oldest, if there is one, where it lies: the pop would move it first.
    #[inline]
    pub(crate) fn drop_front(&mut self) {
        match self {
            Self::Own(entries) => drop(entries.pop_front()),
            Self::Given(slots) => drop(slots.pop_front()),
        }
    }

    #[inline]
    pub(crate) fn front(&self) -> Option<&T> {
        match self {
            Self::Own(entries) => entries.front(),
            Self::Given(slots) => slots.get(0),
        }
    }

    pub(crate) fn clear(&mut self) {
        while self.pop_front().is_some() {}
    }

    /// The entries, oldest first, from the `from`th on.
    pub(crate) fn iter_from(&self, from: usize) -> impl Iterator<Item = &T> {
        (from..self.len()).filter_map(|i| match self {
            Self::Own(entries) => entries.get(i),
            Self::Given(slots) => slots.get(i),
        })
    }

    /// Keeps the entries that `keep` says.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        for _ in 0..self.len() {
            if let Some(entry) = self.pop_front().filter(&mut keep) {
                self.push_back(entry);
            }
        }
    }

    /// Moves all entries to `other`, which has room for them, and takes its place.
    pub(crate) fn move_to(&mut self, mut other: Self) -> Self {
        while let Some(entry) = self.pop_front() {
            other.push_back(entry);
        }
        std::mem::replace(self, other)
    }
}

/// A ring in memory of the program.
pub struct GivenRing<T> {
    at: NonNull<MaybeUninit<T>>,
    capacity: usize,
    head: usize,
    len: usize,
    memory: Arc<dyn QueueMemory>,
    kind: QueueKind,
}

// SAFETY: the slots belong to this value alone, as a box's would.
unsafe impl<T: Send> Send for GivenRing<T> {}
// SAFETY: shared references only read.
unsafe impl<T: Sync> Sync for GivenRing<T> {}

impl<T> GivenRing<T> {
    /// Room for `capacity` entries, if the allocator doesn't leave it to the adapter. It calls the program: nothing may be
    /// locked.
    ///
    /// # Errors
    /// [`Error::NoMemory`] when the allocator gives nothing, [`Error::Invalid`] for memory that isn't aligned.
    pub fn given(
        memory: Option<&Arc<dyn QueueMemory>>,
        capacity: usize,
        kind: QueueKind,
    ) -> Result<Option<Self>> {
        let Some(memory) = memory.filter(|_| capacity > 0) else { return Ok(None) };
        let size = capacity * size_of::<T>();
        let align = align_of::<T>().max(64);
        match memory.alloc(size, align, kind) {
            AllocatorAnswer::Default => Ok(None),
            AllocatorAnswer::None => {
                Err(Error::NoMemory(format!("the domain's allocator gives no {size} bytes for a queue")))
            }
            AllocatorAnswer::Memory(at) if !at.addr().get().is_multiple_of(align) => {
                memory.free(at, kind);
                Err(Error::Invalid(format!("the domain's allocator gives {at:?}, no multiple of {align}")))
            }
            AllocatorAnswer::Memory(at) => {
                let (at, memory) = (at.cast(), memory.clone());
                Ok(Some(Self { at, capacity, head: 0, len: 0, memory, kind }))
            }
        }
    }

    fn slot(&self, index: usize) -> NonNull<MaybeUninit<T>> {
        // SAFETY: below the capacity, which the memory was asked for.
        unsafe { self.at.add((self.head + index) % self.capacity) }
    }

    fn push_back(&mut self, entry: T) {
        assert!(self.len < self.capacity);
        // SAFETY: a slot of ours that holds nothing.
        unsafe { self.slot(self.len).write(MaybeUninit::new(entry)) };
        self.len += 1;
    }

    fn pop_front(&mut self) -> Option<T> {
        if self.len == 0 {
            return None;
        }
        // SAFETY: the oldest slot holds an entry, and none from here on.
        let entry = unsafe { self.slot(0).read().assume_init() };
        self.head = (self.head + 1) % self.capacity;
        self.len -= 1;
        Some(entry)
    }

    fn get(&self, index: usize) -> Option<&T> {
        // SAFETY: slots below `len` hold entries.
        (index < self.len).then(|| unsafe { self.slot(index).as_ref().assume_init_ref() })
    }
}

impl<T> Debug for GivenRing<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} entries at {:?}", self.len, self.capacity, self.at)
    }
}

impl<T: Send> ferroce_proto::Slots<T> for GivenRing<T> {
    fn len(&self) -> usize {
        self.len
    }

    fn has_room(&self) -> bool {
        self.len < self.capacity
    }

    fn push_back(&mut self, entry: T) {
        self.push_back(entry);
    }

    fn pop_front(&mut self) -> Option<T> {
        self.pop_front()
    }

    fn get(&self, index: usize) -> Option<&T> {
        self.get(index)
    }

    fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        // SAFETY: slots below `len` hold entries.
        (index < self.len).then(|| unsafe { self.slot(index).as_mut().assume_init_mut() })
    }
}

impl<T> Drop for GivenRing<T> {
    fn drop(&mut self) {
        while self.pop_front().is_some() {}
        self.memory.free(self.at.cast(), self.kind);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[derive(Debug)]
    struct Counted(Mutex<Vec<NonNull<u8>>>);

    // SAFETY: only addresses are kept.
    unsafe impl Send for Counted {}
    // SAFETY: as above.
    unsafe impl Sync for Counted {}

    const SIZE: usize = 4096;

    fn layout() -> std::alloc::Layout {
        std::alloc::Layout::from_size_align(SIZE, 64).unwrap()
    }

    impl QueueMemory for Counted {
        fn alloc(&self, size: usize, _align: usize, _kind: QueueKind) -> AllocatorAnswer {
            assert!(size <= SIZE);
            // SAFETY: not of size 0.
            let at = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout()) }).unwrap();
            self.0.lock().unwrap().push(at);
            AllocatorAnswer::Memory(at)
        }

        fn free(&self, memory: NonNull<u8>, _kind: QueueKind) {
            let mut all = self.0.lock().unwrap();
            let index = all.iter().position(|&at| at == memory).unwrap();
            all.swap_remove(index);
            // SAFETY: allocated above.
            unsafe { std::alloc::dealloc(memory.as_ptr(), layout()) };
        }
    }

    #[test]
    fn a_ring_in_given_memory_behaves_as_one_of_ours() {
        let counted = Arc::new(Counted(Mutex::default()));
        let memory: Arc<dyn QueueMemory> = counted.clone();
        let mut given = Ring::new(Some(&memory), 5, QueueKind::Receive).unwrap();
        let mut own = Ring::new(None, 5, QueueKind::Receive).unwrap();
        assert_eq!(counted.0.lock().unwrap().len(), 1);
        for round in 0..20 {
            for ring in [&mut given, &mut own] {
                while ring.len() < 5 {
                    ring.push_back(Arc::new(round * 10 + ring.len()));
                }
                ring.retain(|entry| **entry % 3 != 0);
                let (first, left) = (ring.front().cloned(), ring.len() - 1);
                if round % 2 == 0 {
                    assert_eq!(ring.pop_front(), first);
                } else {
                    ring.drop_front();
                    assert!(first.is_some_and(|first| Arc::strong_count(&first) == 1));
                }
                assert_eq!(ring.len(), left);
            }
            assert!(given.iter_from(0).eq(own.iter_from(0)), "round {round}");
            assert!(given.iter_from(1).eq(own.iter_from(1)), "round {round}");
        }
        let old = given.move_to(Ring::new(Some(&memory), 7, QueueKind::Receive).unwrap());
        assert!(old.is_empty() && given.iter_from(0).eq(own.iter_from(0)));
        assert_eq!(counted.0.lock().unwrap().len(), 2);
        drop((old, given));
        assert!(counted.0.lock().unwrap().is_empty());
    }

    #[test]
    fn an_allocator_may_leave_it_to_the_adapter_or_refuse() {
        #[derive(Debug)]
        struct Says(AllocatorAnswer);
        // SAFETY: only an address is kept.
        unsafe impl Send for Says {}
        // SAFETY: as above.
        unsafe impl Sync for Says {}
        impl QueueMemory for Says {
            fn alloc(&self, _size: usize, _align: usize, _kind: QueueKind) -> AllocatorAnswer {
                self.0
            }
            fn free(&self, _memory: NonNull<u8>, _kind: QueueKind) {}
        }
        let new = |given| Ring::<u64>::new(Some(&(Arc::new(Says(given)) as _)), 4, QueueKind::Completion);
        assert!(matches!(new(AllocatorAnswer::Default), Ok(Ring::Own(_))));
        assert_eq!(new(AllocatorAnswer::None).unwrap_err().errno(), libc::ENOMEM);
        let askew = NonNull::new(0x1008 as *mut u8).unwrap();
        assert_eq!(new(AllocatorAnswer::Memory(askew)).unwrap_err().errno(), libc::EINVAL);
    }
}
