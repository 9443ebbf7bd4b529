//! Numbers of the SRQs of XRC domains. They are made as QPNs are, of a slot of this process and an index, but are a
//! namespace of their own.

use crate::Domain;
use ferroce_os::sync::{RwLock, class};
use ferroce_queues::Srq;
use ferroce_types::{Error, QPNS_PER_SLOT, Result, first_qpn};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

/// Indices in a slot.
const PER_SLOT: u32 = QPNS_PER_SLOT as u32;

/// The XRC SRQs of the process, by number.
#[derive(Debug)]
pub struct SrqTable<X>(RwLock<class::SrqNumbers, Numbers<X>>);

#[derive(Debug)]
struct Numbers<X> {
    srqs: BTreeMap<u32, Numbered<X>>,
    /// Where the search for a free index goes on: a number isn't used again soon.
    next: u32,
}

#[derive(Debug)]
struct Numbered<X> {
    srq: Weak<Srq>,
    xrcd: Weak<X>,
    domain: Weak<Domain>,
}

impl<X> Default for SrqTable<X> {
    fn default() -> Self {
        Self(RwLock::new(Numbers { srqs: BTreeMap::new(), next: 0 }))
    }
}

impl<X> SrqTable<X> {
    /// Gives a new SRQ of an XRC domain, by its handle `xrcd`, a number in one of the slots of this process.
    ///
    /// # Errors
    /// ENOMEM when the numbers in this process's slots are used up.
    pub fn add(
        &self,
        slots: &[u16],
        (xrcd, domain): (&Arc<X>, &Arc<Domain>),
        make: impl FnOnce(u32) -> Arc<Srq>,
    ) -> Result<Arc<Srq>> {
        let mut numbers = self.0.write();
        let count = slots.len() as u32 * PER_SLOT;
        let at = |i: u32| first_qpn(slots[(i / PER_SLOT) as usize]) + i % PER_SLOT;
        let from = numbers.next;
        let free = (0..count).map(|i| (from + i) % count).find(|&i| !numbers.srqs.contains_key(&at(i)));
        let Some(index) = free else {
            return Err(Error::NoMemory(format!("{count} shared receive queues of XRC domains exist")));
        };
        numbers.next = index + 1;
        let srq = make(at(index));
        let (xrcd, domain) = (Arc::downgrade(xrcd), Arc::downgrade(domain));
        numbers.srqs.insert(at(index), Numbered { srq: Arc::downgrade(&srq), xrcd, domain });
        Ok(srq)
    }

    /// Frees a number.
    pub fn remove(&self, number: u32) {
        self.0.write().srqs.remove(&number);
    }

    /// The SRQ with this number, if it is of this process and of that XRC domain.
    pub fn get(&self, number: u32, domain: &Arc<Domain>) -> Option<Arc<Srq>> {
        let numbers = self.0.read();
        let found = numbers.srqs.get(&number)?;
        std::ptr::eq(found.domain.as_ptr(), Arc::as_ptr(domain)).then(|| found.srq.upgrade())?
    }

    /// The handle of the XRC domain by which the SRQ with this number belongs to it.
    pub fn xrcd_of(&self, number: u32) -> Option<Arc<X>> {
        self.0.read().srqs.get(&number)?.xrcd.upgrade()
    }
}
