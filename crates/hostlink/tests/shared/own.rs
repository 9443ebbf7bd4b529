//! A ring of a process to itself: a thread that leaves a cell takes it, or leaves it to the thread that is at it.

use crate::explore;
use crate::protocol::{Consumer, Producer, fence_of_own_ring};
use crate::ring::Ring;
use loom::sync::Mutex;
use loom::thread;
use std::sync::Arc;

/// Threads that leave a cell each.
const THREADS: usize = 2;

struct Own {
    ring: Ring,
    producer: Mutex<Producer>,
    /// Cells that have been taken, too.
    consumer: Mutex<(Consumer, usize)>,
}

impl Own {
    fn leave(&self, id: usize) {
        self.ring.try_send(&mut self.producer.lock().unwrap(), id, 1).unwrap();
        loop {
            fence_of_own_ring();
            if !self.ring.has_cells() {
                return;
            }
            let Ok(mut held) = self.consumer.try_lock() else { return };
            let (consumer, taken) = &mut *held;
            *taken += self.ring.receive(consumer, 1).map_or(0, |(ids, _)| ids.len());
        }
    }
}

#[test]
fn a_cell_that_finds_the_consumer_held_is_taken() {
    explore(3, || {
        let own = Arc::new(Own {
            ring: Ring::new(),
            producer: Mutex::new(Ring::producer()),
            consumer: Mutex::new((Ring::consumer(), 0)),
        });
        let others: Vec<_> = (1..THREADS)
            .map(|id| {
                let own = own.clone();
                thread::spawn(move || own.leave(id))
            })
            .collect();
        own.leave(0);
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!(own.consumer.lock().unwrap().1, THREADS);
    });
}
