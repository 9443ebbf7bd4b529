//! Where a program wants the entries of queues to lie: the allocator of a parent domain (ibv_alloc_parent_domain(3)).

use ferroce_ring::EntryRing;
use ferroce_types::{Error, Result};
use std::fmt::Debug;
use std::ptr::NonNull;
use std::sync::Arc;

/// What a queue's memory is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
#[allow(missing_docs)]
pub enum QueueKind {
    Receive = 1,
    SharedReceive = 2,
    Completion = 3,
    Send = 4,
}

/// What a program's allocator answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AllocatorAnswer {
    /// Memory, until it is given back.
    Memory(NonNull<u8>),
    /// The adapter is to use its own.
    Default,
    /// There is none.
    None,
}

/// The allocator of a parent domain. Both functions are the program's: they are called while nothing is locked, in calls
/// of the program.
pub trait QueueMemory: Debug + Send + Sync {
    /// Memory of `size` bytes at a multiple of `align`.
    fn alloc(&self, size: usize, align: usize, kind: QueueKind) -> AllocatorAnswer;
    /// Gives back what `alloc` gave.
    fn free(&self, memory: NonNull<u8>, kind: QueueKind);
}

/// A ring for up to `capacity` entries: in memory of the program, unless its allocator leaves the memory to the adapter. It calls the
/// program, as a drop of the ring does: the caller holds no lock.
///
/// # Errors
/// [`Error::NoMemory`] when the allocator returns no memory, [`Error::Invalid`] for memory that isn't aligned.
pub fn ring_for<T: Default>(
    memory: Option<&Arc<dyn QueueMemory>>,
    capacity: usize,
    kind: QueueKind,
) -> Result<EntryRing<T>> {
    let Some(memory) = memory.filter(|_| capacity > 0) else { return Ok(EntryRing::new()) };
    let (places, size) = EntryRing::<T>::size_for(capacity);
    let align = align_of::<T>().max(64);
    match memory.alloc(size, align, kind) {
        AllocatorAnswer::Default => Ok(EntryRing::new()),
        AllocatorAnswer::None => {
            Err(Error::NoMemory(format!("the domain's allocator returns no {size} bytes for a queue")))
        }
        AllocatorAnswer::Memory(at) if !at.addr().get().is_multiple_of(align) => {
            memory.free(at, kind);
            Err(Error::Invalid(format!("the domain's allocator returns {at:?}, no multiple of {align}")))
        }
        AllocatorAnswer::Memory(at) => {
            let memory = memory.clone();
            // SAFETY: the program gives memory of this size and alignment to the queue until the queue frees it.
            Ok(unsafe { EntryRing::in_memory(at, places, Box::new(move |at| memory.free(at, kind))) })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    /// Answers with this, and keeps what is returned to it.
    #[derive(Debug)]
    struct Answers(AllocatorAnswer, Mutex<Vec<NonNull<u8>>>);

    // SAFETY: only addresses are kept.
    unsafe impl Send for Answers {}
    // SAFETY: as above.
    unsafe impl Sync for Answers {}

    impl QueueMemory for Answers {
        fn alloc(&self, size: usize, align: usize, _kind: QueueKind) -> AllocatorAnswer {
            assert_eq!((size, align), (64, 64));
            self.0
        }

        fn free(&self, memory: NonNull<u8>, _kind: QueueKind) {
            self.1.lock().unwrap().push(memory);
        }
    }

    #[repr(align(64))]
    struct Memory([u8; 64]);

    /// What an attempt to make a ring of five entries returns, and what has been returned to the allocator after the ring's end.
    fn attempt(answer: AllocatorAnswer) -> (Result<()>, Vec<NonNull<u8>>) {
        let answers = Arc::new(Answers(answer, Mutex::default()));
        let ring = ring_for::<u64>(Some(&(answers.clone() as _)), 5, QueueKind::Completion);
        let outcome = ring.map(|mut ring| {
            (0..5).for_each(|n| ring.push_back(n));
            assert!(answers.1.lock().unwrap().is_empty());
        });
        (outcome, std::mem::take(&mut *answers.1.lock().unwrap()))
    }

    #[test]
    fn an_allocator_provides_memory_leaves_it_to_the_adapter_or_refuses() {
        let mut memory = Memory([0; 64]);
        let at = NonNull::from(&mut memory.0).cast();
        assert!(matches!(attempt(AllocatorAnswer::Memory(at)), (Ok(()), freed) if freed == [at]));
        assert!(memory.0.starts_with(&[0; 8]) && memory.0[8] == 1);
        assert!(matches!(attempt(AllocatorAnswer::Default), (Ok(()), freed) if freed.is_empty()));
        let (refused, freed) = attempt(AllocatorAnswer::None);
        assert_eq!((refused.unwrap_err().errno(), freed), (libc::ENOMEM, vec![]));
        let askew = NonNull::new(0x1008 as *mut u8).unwrap();
        let (refused, freed) = attempt(AllocatorAnswer::Memory(askew));
        assert_eq!((refused.unwrap_err().errno(), freed), (libc::EINVAL, vec![askew]));
    }
}
