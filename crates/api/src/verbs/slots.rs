//! The slots of the queues that use a completion queue, which both sides share.

use crate::verbs::backend::RawAddress;
use crate::verbs::cq::Operated;
use crate::verbs::loans::{Lent, Windows};
use crate::verbs::scope::Scoped;
use ferroce_buffers::slots::Retirer;
use ferroce_buffers::{Error, Fault, Held, Kind, Parts, Result, Results, Shelf};
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a slot contains.
#[derive(Default)]
pub(crate) struct Entry {
    pub(crate) tag: u64,
    pub(crate) what: Operated,
    /// Bytes that a READ asks for.
    pub(crate) len: u32,
    pub(crate) held: Held,
    pub(crate) kept: Option<Kept>,
}

/// What a request needs besides its memory.
pub(crate) enum Kept {
    /// The address handle of a datagram.
    Address(Arc<RawAddress>),
    /// Where the result of an atomic is, and the number of its request.
    Result(Arc<Results>, u32),
    /// The memory of a datagram's receive begins with a GRH. The Q_Key is that of the queue pair.
    Grh(Arc<AtomicU32>),
    /// The window that a request binds, and the receives of its queue pair.
    Window(Arc<Lent>, Arc<Queue>),
    /// The request is on borrowed memory.
    Scoped(Arc<Scoped>),
}

impl Entry {
    /// Ends a request of a scope. Its memory isn't lent any more when the scope learns that.
    pub(crate) fn end_scoped(&mut self, what: Operated, len: usize, fault: Option<Fault>) {
        drop(std::mem::take(&mut self.held));
        if let Some(Kept::Scoped(scoped)) = self.kept.take() {
            scoped.note(what, len, fault);
        }
    }

    /// The memory of a request that has no completion.
    pub(crate) fn settle(mut self) -> (u64, Parts) {
        match &self.kept {
            Some(Kept::Window(lent, _)) => lent.end(None),
            Some(Kept::Grh(_)) => drop(self.held.take(&mut None)),
            Some(Kept::Scoped(_)) => self.end_scoped(self.what, 0, None),
            Some(Kept::Address(_) | Kept::Result(..)) | None => {}
        }
        (self.tag, self.held.settle(None))
    }
}

/// The slots of one direction of a queue pair, or of a shared receive queue, as the completion queue sees them.
pub(crate) struct Queue {
    number: u32,
    slots: Slots,
}

enum Slots {
    /// In the order in which they were posted.
    Ring(Retirer<Box<Entry>>),
    /// In any order.
    Shelf(Mutex<Shelf<Entry>>),
}

#[inline]
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The numbers of shared receive queues have this bit, and are those of all completion queues.
const SHARED: u32 = 1 << 31;

impl Queue {
    /// The slots of a shared receive queue.
    pub(crate) fn shared(depth: u32) -> Arc<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed) | SHARED;
        Arc::new(Self { number, slots: Slots::Shelf(Mutex::new(Shelf::new(depth))) })
    }

    #[inline]
    pub(crate) const fn number(&self) -> u32 {
        self.number
    }

    /// The number of a request, as the adapter gets it.
    #[inline]
    pub(crate) fn wr_id(&self, slot: u32) -> u64 {
        u64::from(self.number) << 32 | u64::from(slot)
    }

    /// The slots of a shared receive queue. (Those of a queue pair's ring aren't on a shelf.)
    pub(crate) fn shelf(&self) -> Option<MutexGuard<'_, Shelf<Entry>>> {
        match &self.slots {
            Slots::Ring(_) => None,
            Slots::Shelf(shelf) => Some(lock(shelf)),
        }
    }

    pub(crate) fn is_outstanding(&self, slot: u32) -> bool {
        match &self.slots {
            Slots::Ring(ring) => ring.is_outstanding(slot),
            Slots::Shelf(shelf) => lock(shelf).is_outstanding(slot),
        }
    }

    /// Takes what ends with the request in this slot, if that is outstanding: an earlier one first. Whether it is the last. The slot gets
    /// what `into` was, an entry of nothing.
    #[inline]
    pub(crate) fn retire(&self, slot: u32, into: &mut Box<Entry>) -> Option<bool> {
        match &self.slots {
            Slots::Ring(ring) => ring.retire(slot, into),
            Slots::Shelf(shelf) => Self::retire_of_shelf(shelf, slot, into),
        }
    }

    #[inline(never)]
    fn retire_of_shelf(shelf: &Mutex<Shelf<Entry>>, slot: u32, into: &mut Entry) -> Option<bool> {
        *into = lock(shelf).take(slot)?;
        Some(true)
    }

    /// The numbers of the oldest receive and of the next one to be posted, if they retire in order.
    pub(crate) fn ends(&self) -> Option<(u32, u32)> {
        match &self.slots {
            Slots::Ring(ring) => Some(ring.ends()),
            Slots::Shelf(_) => None,
        }
    }

    fn pop(&self) -> Option<Entry> {
        match &self.slots {
            Slots::Ring(ring) => ring.pop().map(|entry| *entry),
            Slots::Shelf(shelf) => lock(shelf).pop(),
        }
    }

    /// Takes all entries. Nothing uses them any more.
    pub(crate) fn drain(&self) -> Vec<(u64, Parts)> {
        let mut entries = Vec::new();
        // The lock isn't held while memory is released, which may run code of the program.
        while let Some(entry) = self.pop() {
            entries.push(entry.settle());
        }
        entries
    }
}

/// What a completion queue shares with its queue pairs.
pub(crate) struct Shared {
    capacity: u32,
    queues: Mutex<Queues>,
}

#[derive(Default)]
struct Queues {
    joined: BTreeMap<u32, Joined>,
    next: u32,
    /// Entries that completions of the queues may take.
    reserved: u32,
    /// Of queue pairs that receive here, by QPN.
    windows: BTreeMap<u32, Arc<Windows>>,
}

struct Joined {
    queue: Arc<Queue>,
    depth: u32,
    /// Queue pairs. A shared receive queue may have several.
    users: u32,
}

impl Queues {
    fn reserve(&mut self, depth: u32, capacity: u32) -> Result<()> {
        let free = capacity - self.reserved;
        if depth > free {
            let why = format!("the completion queue has room for {free} more requests, not for {depth}");
            return Err(Error::new(Kind::Full, "build", why));
        }
        self.reserved += depth;
        Ok(())
    }
}

impl Shared {
    pub(crate) fn new(capacity: u32) -> Arc<Self> {
        Arc::new(Self { capacity, queues: Mutex::default() })
    }

    pub(crate) const fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Adds the slots of a queue pair, and reserves entries for them: a completion queue never overruns (rule S10).
    pub(crate) fn join(&self, retirer: Retirer<Box<Entry>>, depth: u32) -> Result<Arc<Queue>> {
        let mut queues = lock(&self.queues);
        queues.reserve(depth, self.capacity)?;
        // A number comes again after 2^31 queues.
        while queues.joined.contains_key(&queues.next) {
            queues.next = (queues.next + 1) & !SHARED;
        }
        let number = queues.next;
        queues.next = (number + 1) & !SHARED;
        let queue = Arc::new(Queue { number, slots: Slots::Ring(retirer) });
        queues.joined.insert(number, Joined { queue: queue.clone(), depth, users: 1 });
        Ok(queue)
    }

    /// Adds the slots of a shared receive queue, unless another queue pair has done so. Its receives may all complete here.
    pub(crate) fn join_shared(&self, queue: &Arc<Queue>, depth: u32) -> Result<()> {
        let mut queues = lock(&self.queues);
        if let Some(joined) = queues.joined.get_mut(&queue.number) {
            if !Arc::ptr_eq(&joined.queue, queue) {
                return Err(Error::new(Kind::Busy, "build", "2^31 shared receive queues were made"));
            }
            joined.users += 1;
            return Ok(());
        }
        queues.reserve(depth, self.capacity)?;
        queues.joined.insert(queue.number, Joined { queue: queue.clone(), depth, users: 1 });
        Ok(())
    }

    /// A queue pair is destroyed: it ends the reservation of a queue, if it was the last that used it.
    pub(crate) fn leave(&self, queue: &Queue) {
        let mut queues = lock(&self.queues);
        let Some(joined) = queues.joined.get_mut(&queue.number) else { return };
        joined.users -= 1;
        if joined.users == 0 {
            queues.reserved -= joined.depth;
            let removed = queues.joined.remove(&queue.number);
            drop(queues);
            drop(removed);
        }
    }

    /// The windows of a queue pair whose messages are received here; `None`: it is destroyed.
    pub(crate) fn set_windows(&self, qpn: u32, windows: Option<Arc<Windows>>) {
        let mut queues = lock(&self.queues);
        let before = match windows {
            Some(windows) => queues.windows.insert(qpn, windows),
            None => queues.windows.remove(&qpn),
        };
        drop(queues);
        drop(before);
    }

    /// A message to this queue pair has invalidated a key.
    #[cold]
    pub(crate) fn note_returned(&self, qpn: u32, key: u32) {
        let windows = lock(&self.queues).windows.get(&qpn).cloned();
        if let Some(windows) = windows {
            windows.note_returned(key);
        }
    }

    /// The queue with this number.
    #[cold]
    pub(crate) fn find(&self, number: u32) -> Option<Arc<Queue>> {
        lock(&self.queues).joined.get(&number).map(|joined| joined.queue.clone())
    }
}
