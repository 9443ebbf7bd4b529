//! A ring: each cell arrives once, whole and in order, and a producer that waits for room is woken when there is some.

use crate::alarm::Alarm;
use crate::explore;
use crate::protocol::{
    AwaitedCells, Broken, CELL, CellSpace, Consumer, Producer, RingWords, is_published, published_end,
};
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use std::sync::Arc;

/// Cells of the ring, and lines of its bulk.
const CELLS: usize = 8;
const LINES: usize = 8;

/// What is in a cell.
#[derive(Clone, Copy, Default, Debug)]
struct CellContent {
    id: usize,
    /// The position of its bulk, and lines there.
    bulk: u64,
    lines: usize,
}

/// A ring's words, cells and bulk. Loom panics if a thread reads a cell or a line while another writes it.
pub struct Ring {
    pub lines: RingWords,
    /// The cells whose results the producer awaits.
    pub awaited: AwaitedCells,
    /// The cells before this position have been dealt with.
    taken: AtomicU64,
    firsts: [AtomicU64; CELLS],
    cells: [UnsafeCell<CellContent>; CELLS],
    bulk: [UnsafeCell<usize>; LINES],
}

impl Ring {
    pub fn new() -> Self {
        Self {
            lines: RingWords::default(),
            awaited: AwaitedCells::new(),
            taken: AtomicU64::new(0),
            firsts: std::array::from_fn(|_| AtomicU64::new(0)),
            cells: std::array::from_fn(|_| UnsafeCell::new(CellContent::default())),
            bulk: std::array::from_fn(|_| UnsafeCell::new(0)),
        }
    }

    pub fn producer() -> Producer {
        Producer::new(CELLS, LINES * CELL)
    }

    pub fn consumer() -> Consumer {
        Consumer::new(CELLS, LINES * CELL)
    }

    /// The lines of bulk from a position on.
    pub fn bulk(&self, position: u64, lines: usize) -> impl Iterator<Item = &UnsafeCell<usize>> {
        let first = position as usize / CELL % LINES;
        assert!(first + lines <= LINES);
        self.bulk[first..first + lines].iter()
    }

    /// Sends a cell with so many lines of bulk, if there is room; returns the position after it.
    pub fn try_send(&self, producer: &mut Producer, id: usize, lines: usize) -> Option<u64> {
        let space: CellSpace = producer.reserve(&self.lines, &self.awaited, lines * CELL).unwrap()?;
        let (bulk, _) = space.bulk;
        for line in self.bulk(bulk, lines) {
            // SAFETY: loom panics unless this is the only access.
            line.with_mut(|line| unsafe { *line = id });
        }
        let number = space.position as usize % CELLS;
        // SAFETY: as above.
        self.cells[number].with_mut(|cell| unsafe { *cell = CellContent { id, bulk, lines } });
        Some(producer.publish(space, &self.firsts[number], 7 << 32))
    }

    /// Takes cells, at most `limit`, and gives their room back in one go. Returns their numbers, and whether the producer has to be woken;
    /// `None` when nothing is there.
    pub fn receive(&self, consumer: &mut Consumer, limit: usize) -> Option<(Vec<usize>, bool)> {
        let mut ids = Vec::new();
        while ids.len() < limit && self.is_published(consumer.head()) {
            // SAFETY: loom panics if another thread writes at the same time.
            let CellContent { id, bulk, lines } =
                self.cells[consumer.head() as usize % CELLS].with(|cell| unsafe { *cell });
            for line in self.bulk(bulk, lines) {
                // SAFETY: as above.
                assert_eq!(line.with(|line| unsafe { *line }), id);
            }
            ids.push(id);
            let bulk_end = (lines > 0).then_some(bulk + (lines * CELL) as u64);
            consumer.advance(bulk_end);
        }
        if ids.is_empty() {
            return None;
        }
        self.taken.store(consumer.head(), Ordering::Release);
        Some((ids, consumer.release(&self.lines)))
    }

    fn is_published(&self, position: u64) -> bool {
        is_published(&self.firsts[position as usize % CELLS], position)
    }

    /// A cell is published that hasn't been dealt with.
    pub fn has_cells(&self) -> bool {
        self.is_published(self.taken.load(Ordering::Acquire))
    }
}

/// What a model is about: the lines of bulk of the cells that are there before threads begin, how many of them have been dealt
/// with, and the lines of those that are sent then.
struct Traffic {
    before: &'static [usize],
    dealt_with: usize,
    sent: &'static [usize],
    /// Cells that the consumer gives back at a time.
    batch: usize,
    /// See [`explore`].
    switches: usize,
}

/// A producer that sleeps when there is no room, and a consumer that sleeps when there is nothing.
fn all_arrive(traffic: Traffic) {
    explore(traffic.switches, move || {
        let Traffic { before, dealt_with, sent, batch, .. } = traffic;
        let shared = Arc::new((Ring::new(), Alarm::new(), Alarm::new()));
        let (ring, news, room) = &*shared;
        let (mut producer, mut consumer) = (Ring::producer(), Ring::consumer());
        for (id, &lines) in before.iter().enumerate() {
            ring.try_send(&mut producer, id, lines).unwrap();
        }
        let mut got = Vec::new();
        while got.len() < dealt_with {
            got.extend(ring.receive(&mut consumer, 1).unwrap().0);
        }
        let other = shared.clone();
        let sender = thread::spawn(move || {
            let (ring, news, room) = &*other;
            let mut end = 0;
            for (id, &lines) in sent.iter().enumerate() {
                end = loop {
                    if let Some(end) = ring.try_send(&mut producer, before.len() + id, lines) {
                        break end;
                    }
                    ring.lines.wait();
                    while !producer.has_room(&ring.lines, &ring.awaited).unwrap() {
                        room.wait();
                    }
                    ring.lines.stop_waiting();
                };
                news.ring();
            }
            end
        });
        let all = before.len() + sent.len();
        while got.len() < all {
            let Some((ids, wanted)) = ring.receive(&mut consumer, batch) else {
                news.wait();
                continue;
            };
            if wanted {
                room.ring();
            }
            got.extend(ids);
        }
        assert!(got.iter().copied().eq(0..all), "{got:?}");
        let end = sender.join().unwrap();
        assert!(ring.lines.is_consumed(end) && !ring.lines.is_consumed(end + 1));
        assert!(!ring.has_cells());
    });
}

#[test]
fn every_cell_arrives_whole_and_in_order_while_the_ring_wraps() {
    // A line is left at the end of the bulk: the first cell's is at its beginning, the second cell waits for room.
    all_arrive(Traffic { before: &[2, 2, 2, 1], dealt_with: 1, sent: &[2, 2], batch: 1, switches: 3 });
    all_arrive(Traffic { before: &[0; 7], dealt_with: 1, sent: &[1, 0, 1], batch: 1, switches: 3 });
}

#[test]
fn a_producer_that_fills_the_ring_more_than_once_is_told_of_room() {
    all_arrive(Traffic { before: &[2, 2, 2], dealt_with: 0, sent: &[2, 2, 2, 2], batch: 4, switches: 2 });
    all_arrive(Traffic { before: &[0; 7], dealt_with: 0, sent: &[0, 0, 0], batch: 4, switches: 2 });
}

#[test]
fn a_producer_is_told_of_room_by_a_consumer_that_knows_of_few_cells() {
    // The consumer has seen two cells when the others fill the ring.
    all_arrive(Traffic { before: &[2, 2], dealt_with: 1, sent: &[2, 2, 2, 1], batch: 1, switches: 2 });
}

#[test]
fn a_look_beside_reader_and_producer_finds_all_that_was_published() {
    explore(3, || {
        let shared = Arc::new(Ring::new());
        let (mut producer, mut consumer) = (Ring::producer(), Ring::consumer());
        (0..CELLS).for_each(|id| _ = shared.try_send(&mut producer, id, 0).unwrap());
        let (taken, published) = [(); 2].map(|()| shared.clone()).into();
        let reader = thread::spawn(move || _ = taken.receive(&mut consumer, CELLS));
        // The ring goes round where there is room.
        let sender = thread::spawn(move || {
            (CELLS..2 * CELLS - 2).for_each(|id| _ = published.try_send(&mut producer, id, 0));
        });
        let end = published_end(CELLS, &shared.taken, |at| &shared.firsts[at as usize % CELLS]) as usize;
        assert!((CELLS..2 * CELLS - 1).contains(&end), "{end}");
        reader.join().unwrap();
        sender.join().unwrap();
    });
}

#[test]
fn positions_that_cannot_be_are_broken() {
    explore(3, || {
        let ring = Ring::new();
        // Two producers: the second doesn't know of the first's cell, so that the head is beyond its tail.
        let (mut producer, mut stranger) = (Ring::producer(), Ring::producer());
        ring.try_send(&mut producer, 0, 1).unwrap();
        assert_eq!(ring.receive(&mut Ring::consumer(), 1), Some((vec![0], false)));
        assert_eq!(stranger.has_room(&ring.lines, &ring.awaited), Err(Broken));
    });
}
