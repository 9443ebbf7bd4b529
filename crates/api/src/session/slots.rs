//! The requests of a connection: those that are outstanding, and those that have ended and wait for the program to see it.

use crate::session::line::Later;
use crate::session::outcome::Ending;
use std::task::Waker;

/// A request.
#[derive(Debug)]
enum Slot {
    Free,
    /// It is outstanding. The waker is of the task that waits for it.
    Posted(Option<Waker>),
    /// It is outstanding, and nothing waits for it any more.
    Abandoned,
    Ended(Ending),
}

/// The slots of a connection. Freed ones are used again, so in the long run a request allocates nothing.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

impl Slots {
    /// Room for so many.
    pub(crate) fn with_capacity(count: u32) -> Self {
        Self { slots: Vec::with_capacity(count as usize), free: Vec::with_capacity(count as usize) }
    }

    /// A slot for a request that is being posted.
    #[inline]
    pub(crate) fn take(&mut self) -> u32 {
        let posted = Slot::Posted(None);
        if let Some(free) = self.free.pop() {
            self.slots[free as usize] = posted;
            return free;
        }
        self.slots.push(posted);
        (self.slots.len() - 1) as u32
    }

    /// A slot isn't used any more.
    pub(crate) fn release(&mut self, slot: u32) {
        self.slots[slot as usize] = Slot::Free;
        self.free.push(slot);
    }

    /// A request has ended.
    #[inline]
    pub(crate) fn end(&mut self, slot: u32, ending: impl FnOnce() -> Ending, later: &mut Later) {
        match self.slots.get_mut(slot as usize) {
            Some(place @ Slot::Posted(_)) => {
                if let Slot::Posted(waker) = place {
                    waker.take().into_iter().for_each(|waker| later.wake(waker));
                }
                *place = Slot::Ended(ending());
            }
            Some(Slot::Abandoned) => {
                self.release(slot);
                later.drop_ending(ending());
            }
            _ => later.drop_ending(ending()),
        }
    }

    /// The end of a request, if it has ended. Otherwise the waker is kept.
    #[inline]
    pub(crate) fn look(&mut self, slot: u32, waker: Option<&Waker>, later: &mut Later) -> Option<Ending> {
        let place = &mut self.slots[slot as usize];
        match place {
            Slot::Posted(kept) => {
                let waker = waker.filter(|waker| !kept.as_ref().is_some_and(|kept| kept.will_wake(waker)));
                if let Some(old) = waker.and_then(|waker| kept.replace(waker.clone())) {
                    later.drop_waker(old);
                }
                None
            }
            Slot::Ended(_) => {
                let Slot::Ended(ending) = std::mem::replace(place, Slot::Free) else { return None };
                self.free.push(slot);
                Some(ending)
            }
            Slot::Free | Slot::Abandoned => None,
        }
    }

    /// Nothing waits for a request any more.
    pub(crate) fn abandon(&mut self, slot: u32, later: &mut Later) {
        match self.look(slot, None, later) {
            Some(ending) => later.drop_ending(ending),
            None => {
                let place = &mut self.slots[slot as usize];
                if let Slot::Posted(Some(waker)) = std::mem::replace(place, Slot::Abandoned) {
                    later.drop_waker(waker);
                }
            }
        }
    }
}
