//! Where a program wants the entries of queues to lie: the allocator of a parent domain (ibv_alloc_parent_domain(3)).

use std::fmt::Debug;
use std::ptr::NonNull;

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
