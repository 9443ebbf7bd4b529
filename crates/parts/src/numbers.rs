//! The QPNs of this process and the QPs that own them. A QPN is a slot of the host (high 12 bits) and an index (low 12 bits).

use ferroce_os::sync::{Published, RwLock, class};
use ferroce_types::{Error, QPNS_PER_SLOT, Result, first_qpn, slot_of};
use std::sync::Arc;

/// Queue pairs a process may have.
pub const MAX_QP: u32 = 65_536;
/// QPs that are found without a lock.
const LATELY: usize = 1024;

/// What the numbers are of.
pub trait HasQpn {
    /// Its number.
    fn qpn(&self) -> u32;
}

/// The QPs of the process, by number.
#[derive(Debug)]
pub struct QpTable<Q: 'static> {
    slots: RwLock<class::QpNumbers, Vec<Slot<Q>>>,
    /// Some of those that packets have come for, by the end of their numbers. Written with the slots locked.
    lately: [Published<Q>; LATELY],
}

impl<Q> Default for QpTable<Q> {
    fn default() -> Self {
        Self { slots: RwLock::default(), lately: std::array::from_fn(|_| Published::default()) }
    }
}

#[derive(Debug)]
struct Slot<Q> {
    number: u16,
    /// Where the search for a free index goes on: a number isn't used again soon.
    next: usize,
    count: usize,
    qps: Box<[QpnEntry<Q>]>,
}

/// What a number stands for.
#[derive(Debug)]
enum QpnEntry<Q> {
    Free,
    Qp(Arc<Q>),
    /// An object for which no packets come.
    Reserved,
}

impl<Q> Slot<Q> {
    fn new(number: u16) -> Self {
        let next = ferroce_os::sys::random() as usize % QPNS_PER_SLOT;
        Self { number, next, count: 0, qps: (0..QPNS_PER_SLOT).map(|_| QpnEntry::Free).collect() }
    }

    fn add(&mut self, make: impl FnOnce(u32) -> QpnEntry<Q>) -> Option<()> {
        let free = |&i: &usize| matches!(self.qps[i], QpnEntry::Free);
        let index = (0..QPNS_PER_SLOT).map(|i| (self.next + i) % QPNS_PER_SLOT).find(free)?;
        self.next = (index + 1) % QPNS_PER_SLOT;
        self.count += 1;
        self.qps[index] = make(first_qpn(self.number) | index as u32);
        Some(())
    }
}

/// Frees a number if `is_it` returns true for its entry, and returns the entry.
fn free<Q>(slots: &mut [Slot<Q>], qpn: u32, is_it: impl Fn(&QpnEntry<Q>) -> bool) -> Option<QpnEntry<Q>> {
    let slot = slots.iter_mut().find(|slot| slot.number == slot_of(qpn))?;
    let entry = &mut slot.qps[qpn as usize % QPNS_PER_SLOT];
    is_it(entry).then(|| {
        slot.count -= 1;
        std::mem::replace(entry, QpnEntry::Free)
    })
}

impl<Q: HasQpn> QpTable<Q> {
    fn lately(&self, qpn: u32) -> &Published<Q> {
        &self.lately[qpn as usize % LATELY]
    }

    /// Gives a new QP a number. `more` returns one more slot of this process, which isn't known.
    ///
    /// # Errors
    /// ENOMEM when the device's QPs are used up; those of `more`.
    pub fn add(
        &self,
        more: impl FnOnce(&dyn Fn(u16) -> bool) -> Result<u16>,
        make: impl FnOnce(u32) -> Arc<Q>,
    ) -> Result<Arc<Q>> {
        let mut qp = None;
        self.add_entry(more, |qpn| QpnEntry::Qp(qp.insert(make(qpn)).clone()))?;
        qp.ok_or_else(|| Error::NoMemory("no QPN is left".into()))
    }

    /// Gives a number to a QP or queue for which no packets come. `more`: as for [`QpTable::add`].
    ///
    /// # Errors
    /// As [`QpTable::add`].
    pub fn reserve(&self, more: impl FnOnce(&dyn Fn(u16) -> bool) -> Result<u16>) -> Result<u32> {
        let mut reserved = 0;
        self.add_entry(more, |qpn| {
            reserved = qpn;
            QpnEntry::Reserved
        })?;
        Ok(reserved)
    }

    fn add_entry(
        &self,
        more: impl FnOnce(&dyn Fn(u16) -> bool) -> Result<u16>,
        make: impl FnOnce(u32) -> QpnEntry<Q>,
    ) -> Result<()> {
        let mut slots = self.slots.write();
        let count: usize = slots.iter().map(|s| s.count).sum();
        if count >= MAX_QP as usize {
            return Err(Error::NoMemory(format!("{MAX_QP} queue pairs exist")));
        }
        if slots.iter().all(|s| s.count == QPNS_PER_SLOT) {
            let number = more(&|number| slots.iter().any(|s| s.number == number))?;
            slots.push(Slot::new(number));
        }
        let slot = slots.iter_mut().find(|s| s.count < QPNS_PER_SLOT);
        slot.and_then(|slot| slot.add(make)).ok_or_else(|| Error::NoMemory("no QPN is left".into()))
    }

    /// Frees the number of a QP, if the number is this QP's.
    pub fn remove(&self, qp: &Arc<Q>) {
        let is_it = |entry: &QpnEntry<Q>| matches!(entry, QpnEntry::Qp(found) if Arc::ptr_eq(found, qp));
        let mut slots = self.slots.write();
        let is_found_lately = free(&mut slots, qp.qpn(), is_it).is_some() && self.lately(qp.qpn()).is(qp);
        let replaced = is_found_lately.then(|| self.lately(qp.qpn()).replace(None));
        drop(slots);
        // Waits for readers, without a lock.
        drop(replaced);
    }

    /// Frees a number that [`QpTable::reserve`] has given.
    pub fn free(&self, qpn: u32) {
        free(&mut self.slots.write(), qpn, |entry| matches!(entry, QpnEntry::Reserved));
    }

    /// The QP with this number, if it is of this process.
    #[inline(always)]
    pub fn get(&self, qpn: u32) -> Option<Arc<Q>> {
        self.lately(qpn).keep(|qp| qp.qpn() == qpn).or_else(|| self.find(qpn))
    }

    #[inline(never)]
    fn find(&self, qpn: u32) -> Option<Arc<Q>> {
        let slots = self.slots.read();
        match &slots.iter().find(|s| s.number == slot_of(qpn))?.qps[qpn as usize % QPNS_PER_SLOT] {
            QpnEntry::Qp(qp) => {
                self.lately(qpn).fill(qp);
                Some(qp.clone())
            }
            QpnEntry::Free | QpnEntry::Reserved => None,
        }
    }
}
