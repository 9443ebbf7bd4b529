//! The QPNs of this process and the QPs that own them. A QPN is a slot of the host (high 12 bits) and an index (low 12 bits).

use crate::adapter::Adapter;
use crate::device::MAX_QP;
use crate::qp::Qp;
use ferroce_os::sync::{Published, RwLock, class};
use ferroce_types::{Error, QPNS_PER_SLOT, Result, first_qpn, slot_of};
use std::sync::Arc;

/// QPs that are found without a lock.
const LATELY: usize = 1024;

/// The QPs of the process, by number.
#[derive(Debug)]
pub(crate) struct QpTable {
    slots: RwLock<class::QpNumbers, Vec<Slot>>,
    /// Some of those that packets have come for, by the end of their numbers. Written with the slots locked.
    lately: [Published<Qp>; LATELY],
}

impl Default for QpTable {
    fn default() -> Self {
        Self { slots: RwLock::default(), lately: std::array::from_fn(|_| Published::default()) }
    }
}

impl QpTable {
    fn lately(&self, qpn: u32) -> &Published<Qp> {
        &self.lately[qpn as usize % LATELY]
    }
}

#[derive(Debug)]
struct Slot {
    number: u16,
    /// Where the search for a free index goes on: a number isn't used again soon.
    next: usize,
    count: usize,
    qps: Box<[QpnEntry]>,
}

/// What a number stands for.
#[derive(Clone, Debug)]
enum QpnEntry {
    Free,
    Qp(Arc<Qp>),
    /// An object for which no packets come.
    Reserved,
}

impl Slot {
    fn new(number: u16) -> Self {
        let next = ferroce_os::sys::random() as usize % QPNS_PER_SLOT;
        Self { number, next, count: 0, qps: vec![QpnEntry::Free; QPNS_PER_SLOT].into_boxed_slice() }
    }

    fn add(&mut self, make: impl FnOnce(u32) -> QpnEntry) -> Option<()> {
        let free = |&i: &usize| matches!(self.qps[i], QpnEntry::Free);
        let index = (0..QPNS_PER_SLOT).map(|i| (self.next + i) % QPNS_PER_SLOT).find(free)?;
        self.next = (index + 1) % QPNS_PER_SLOT;
        self.count += 1;
        self.qps[index] = make(first_qpn(self.number) | index as u32);
        Some(())
    }
}

/// Frees a number if `is_it` returns true for its entry, and returns the entry.
fn free(slots: &mut [Slot], qpn: u32, is_it: impl Fn(&QpnEntry) -> bool) -> Option<QpnEntry> {
    let slot = slots.iter_mut().find(|slot| slot.number == slot_of(qpn))?;
    let entry = &mut slot.qps[qpn as usize % QPNS_PER_SLOT];
    is_it(entry).then(|| {
        slot.count -= 1;
        std::mem::replace(entry, QpnEntry::Free)
    })
}

impl Adapter {
    /// Gives a new QP a number.
    ///
    /// # Errors
    /// ENOMEM when the device's QPs or the host's slots are used up.
    pub(crate) fn add_qp(&'static self, make: impl FnOnce(u32) -> Arc<Qp>) -> Result<Arc<Qp>> {
        let mut qp = None;
        self.add_entry(|qpn| QpnEntry::Qp(qp.insert(make(qpn)).clone()))?;
        qp.ok_or_else(|| Error::NoMemory("no QPN is left".into()))
    }

    /// Gives a number to a QP or queue for which no packets come.
    ///
    /// # Errors
    /// ENOMEM when the device's QPs or the host's slots are used up.
    pub fn reserve_qpn(&'static self) -> Result<u32> {
        let mut reserved = 0;
        self.add_entry(|qpn| {
            reserved = qpn;
            QpnEntry::Reserved
        })?;
        Ok(reserved)
    }

    fn add_entry(&'static self, make: impl FnOnce(u32) -> QpnEntry) -> Result<()> {
        let mut slots = self.qps.slots.write();
        let count: usize = slots.iter().map(|s| s.count).sum();
        if count >= MAX_QP as usize {
            return Err(Error::NoMemory(format!("{MAX_QP} queue pairs exist")));
        }
        if slots.iter().all(|s| s.count == QPNS_PER_SLOT) {
            let fresh = self.host.slots().into_iter().find(|n| slots.iter().all(|s| s.number != *n));
            let number = match fresh {
                Some(number) => number,
                None => self.host.claim_slot()?,
            };
            slots.push(Slot::new(number));
            if let Some(directory) = self.links.own() {
                directory.add_slot(number);
            }
            self.watch_slots()?;
        }
        let slot = slots.iter_mut().find(|s| s.count < QPNS_PER_SLOT);
        slot.and_then(|slot| slot.add(make)).ok_or_else(|| Error::NoMemory("no QPN is left".into()))
    }

    /// Frees the number of a QP, if the number is this QP's.
    pub(crate) fn remove_qp(&self, qp: &Arc<Qp>) {
        let is_it = |entry: &QpnEntry| matches!(entry, QpnEntry::Qp(found) if Arc::ptr_eq(found, qp));
        let mut slots = self.qps.slots.write();
        let is_found_lately = free(&mut slots, qp.qpn(), is_it).is_some() && self.qps.lately(qp.qpn()).is(qp);
        let replaced = is_found_lately.then(|| self.qps.lately(qp.qpn()).replace(None));
        drop(slots);
        // Waits for readers, without a lock.
        drop(replaced);
    }

    /// Frees a number that [`Adapter::reserve_qpn`] has given.
    pub fn free_qpn(&self, qpn: u32) {
        free(&mut self.qps.slots.write(), qpn, |entry| matches!(entry, QpnEntry::Reserved));
    }

    /// The QP with this number, if it is of this process.
    #[inline]
    pub(crate) fn qp(&self, qpn: u32) -> Option<Arc<Qp>> {
        self.qps.lately(qpn).keep(|qp| qp.qpn() == qpn).or_else(|| self.find_qp(qpn))
    }

    fn find_qp(&self, qpn: u32) -> Option<Arc<Qp>> {
        let slots = self.qps.slots.read();
        match &slots.iter().find(|s| s.number == slot_of(qpn))?.qps[qpn as usize % QPNS_PER_SLOT] {
            QpnEntry::Qp(qp) => {
                self.qps.lately(qpn).fill(qp);
                Some(qp.clone())
            }
            QpnEntry::Free | QpnEntry::Reserved => None,
        }
    }
}
