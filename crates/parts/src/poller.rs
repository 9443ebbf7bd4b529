//! A thread that polls for completions, as the code that makes completions sees it.

use ferroce_queues::Cq;
use ferroce_types::Completion;

/// A thread that polls a queue, while it makes progress: completions for the queue may go straight to the thread meanwhile.
pub struct Poller<'a> {
    cq: &'a Cq,
    /// For how many more completions the thread has room.
    room: usize,
    give: &'a mut dyn FnMut(&Completion),
}

impl<'a> Poller<'a> {
    /// A thread that polls `cq`, has room for so many completions, and takes each by `give`.
    pub fn new(cq: &'a Cq, room: usize, give: &'a mut dyn FnMut(&Completion)) -> Self {
        Self { cq, room, give }
    }

    /// For how many more completions there is room.
    #[inline]
    pub fn room(&self) -> usize {
        self.room
    }

    /// It takes more completions.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.room > 0
    }

    /// It takes completions for `cq` that the queue [lets pass](Cq::lets_pass).
    #[inline]
    pub fn polls(&self, cq: &Cq) -> bool {
        self.has_room() && std::ptr::eq(self.cq, cq)
    }

    /// Takes a completion for a queue that it polls, and that lets the completion pass.
    #[inline]
    pub fn take(&mut self, completion: &Completion) {
        self.room -= 1;
        (self.give)(completion);
    }

    /// Takes a completion for `cq` if it may. False: the completion has to be pushed. Caller holds the QP lock, which keeps
    /// completions in order.
    #[inline]
    pub fn take_of(&mut self, cq: &Cq, completion: &Completion) -> bool {
        let may = self.polls(cq) && cq.lets_pass();
        if may {
            self.take(completion);
        }
        may
    }
}
