//! The requests of a connection: those that are outstanding, and those that have ended and wait for the program to see it.

use crate::session::line::Later;
use crate::session::outcome::Ending;
use std::task::Waker;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SlotState {
    Free,
    Posted,
    /// It is outstanding, and nothing waits for it any more.
    Abandoned,
    Ended,
}

/// A request. What it owns changes in place: most changes drop nothing.
#[derive(Debug)]
struct Slot {
    state: SlotState,
    /// Of the task that waits for a request which is outstanding.
    waker: Option<Waker>,
    /// Of a request that has ended, until the program takes it.
    ending: Ending,
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
        if let Some(free) = self.free.pop() {
            self.slots[free as usize].state = SlotState::Posted;
            return free;
        }
        self.add()
    }

    /// A new slot.
    #[cold]
    fn add(&mut self) -> u32 {
        self.slots.push(Slot { state: SlotState::Posted, waker: None, ending: Ending::default() });
        (self.slots.len() - 1) as u32
    }

    /// A slot isn't used any more.
    pub(crate) fn release(&mut self, slot: u32) {
        self.slots[slot as usize].state = SlotState::Free;
        self.free.push(slot);
    }

    /// A request has ended. If something may wait for it, `take` moves its end here.
    #[inline]
    pub(crate) fn end(&mut self, slot: u32, later: &mut Later, take: impl FnOnce(&mut Ending)) {
        match self.slots.get_mut(slot as usize) {
            Some(place) if place.state == SlotState::Posted => {
                if let Some(waker) = place.waker.take() {
                    later.wake(waker);
                }
                take(&mut place.ending);
                place.state = SlotState::Ended;
            }
            place => {
                if place.is_some_and(|place| place.state == SlotState::Abandoned) {
                    self.release(slot);
                }
            }
        }
    }

    /// What `take` returns of the end of a request, if it has ended. Otherwise the waker is kept.
    #[inline]
    pub(crate) fn look<R>(
        &mut self,
        slot: u32,
        waker: Option<&Waker>,
        later: &mut Later,
        take: impl FnOnce(&mut Ending) -> R,
    ) -> Option<R> {
        let place = &mut self.slots[slot as usize];
        match place.state {
            SlotState::Ended => {
                let taken = take(&mut place.ending);
                place.state = SlotState::Free;
                self.free.push(slot);
                Some(taken)
            }
            SlotState::Posted => {
                let kept = &mut place.waker;
                let waker = waker.filter(|waker| !kept.as_ref().is_some_and(|kept| kept.will_wake(waker)));
                if let Some(old) = waker.and_then(|waker| kept.replace(waker.clone())) {
                    later.drop_waker(old);
                }
                None
            }
            SlotState::Free | SlotState::Abandoned => None,
        }
    }

    /// Nothing waits for a request any more.
    pub(crate) fn abandon(&mut self, slot: u32, later: &mut Later) {
        match self.look(slot, None, later, Ending::parts) {
            Some(parts) => later.drop_parts(parts),
            None => {
                let place = &mut self.slots[slot as usize];
                place.state = SlotState::Abandoned;
                if let Some(waker) = place.waker.take() {
                    later.drop_waker(waker);
                }
            }
        }
    }
}
