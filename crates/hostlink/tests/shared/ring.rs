//! A ring: each record arrives once, whole and in order, and a producer that waits for room is woken when there is some.

use crate::alarm::Alarm;
use crate::explore;
use crate::protocol::{Broken, COPIED_WORDS, Consumer, Producer, RingWords};
use loom::cell::UnsafeCell;
use loom::thread;
use std::sync::Arc;

/// Grains of the ring.
const SIZE: usize = 8;

/// What is in a grain of a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Grain {
    Nothing,
    Padding(usize),
    /// The first of a record's grains.
    Record {
        id: usize,
        grains: usize,
    },
    /// Another one.
    More {
        id: usize,
    },
}

/// A ring's words and bytes. Loom panics if a thread reads a grain while another writes it.
pub struct Ring {
    pub lines: RingWords,
    grains: [UnsafeCell<Grain>; SIZE],
}

impl Ring {
    pub fn new() -> Self {
        Self { lines: RingWords::default(), grains: std::array::from_fn(|_| UnsafeCell::new(Grain::Nothing)) }
    }

    fn write(&self, at: usize, grain: Grain) {
        // SAFETY: loom panics unless this is the only access.
        self.grains[at].with_mut(|bytes| unsafe { *bytes = grain });
    }

    fn read(&self, at: usize) -> Grain {
        // SAFETY: loom panics if another thread writes at the same time.
        self.grains[at].with(|bytes| unsafe { *bytes })
    }

    /// Sends a record of `len` grains, if there is room; returns the position of its end.
    pub fn try_send(&self, producer: &mut Producer, id: usize, len: usize) -> Option<u64> {
        let place = producer.reserve(&self.lines, len * RingWords::GRAIN).unwrap()?;
        let at = place.at / RingWords::GRAIN;
        for grain in at + 1..at + len {
            self.write(grain, Grain::More { id });
        }
        self.write(at, Grain::Record { id, grains: len });
        if let Some((start, bytes)) = place.padding {
            self.write(start / RingWords::GRAIN, Grain::Padding(bytes / RingWords::GRAIN));
        }
        let end = place.end();
        assert_eq!(producer.publish(&self.lines, place), end);
        Some(end)
    }

    /// Takes records, at most `limit`, and gives their room back in one go. Returns their numbers (there may be padding
    /// only), and whether the producer has to be woken; `None` when nothing is there.
    pub fn receive(&self, consumer: &mut Consumer, limit: usize) -> Option<(Vec<usize>, bool)> {
        let mut ids = Vec::new();
        let (at, bytes) = consumer.peek(&self.lines).unwrap()?;
        let (mut at, end) = (at / RingWords::GRAIN, (at + bytes) / RingWords::GRAIN);
        let mut taken = 0;
        while at < end && ids.len() < limit {
            let grains = match self.read(at) {
                Grain::Padding(grains) => grains,
                Grain::Record { id, grains } => {
                    for grain in at + 1..at + grains {
                        assert_eq!(self.read(grain), Grain::More { id });
                    }
                    ids.push(id);
                    grains
                }
                other => panic!("no record begins with {other:?}"),
            };
            at += grains;
            taken += grains * RingWords::GRAIN;
        }
        assert!(at <= end, "a record that isn't published as a whole");
        Some((ids, consumer.release(&self.lines, taken)))
    }
}

/// What a model is about: the lengths of the records that are there before threads begin, how many of them have been dealt
/// with, and the lengths of those that are sent then.
struct Traffic {
    before: &'static [usize],
    dealt_with: usize,
    sent: &'static [usize],
    /// Records that the consumer gives back at a time.
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
        let mut producer = Producer::new(SIZE * RingWords::GRAIN);
        let mut consumer = Consumer::new(SIZE * RingWords::GRAIN);
        for (id, &len) in before.iter().enumerate() {
            ring.try_send(&mut producer, id, len).unwrap();
        }
        let mut got = Vec::new();
        while got.len() < dealt_with {
            got.extend(ring.receive(&mut consumer, 1).unwrap().0);
        }
        let other = shared.clone();
        let sender = thread::spawn(move || {
            let (ring, news, room) = &*other;
            let mut end = 0;
            for (id, &len) in sent.iter().enumerate() {
                end = loop {
                    if let Some(end) = ring.try_send(&mut producer, before.len() + id, len) {
                        break end;
                    }
                    producer.wait(&ring.lines);
                    while !producer.has_room(&ring.lines).unwrap() {
                        room.wait();
                    }
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
        assert!(!ring.lines.has_records());
    });
}

#[test]
fn every_record_arrives_whole_and_in_order_while_the_ring_wraps() {
    // A grain is left at the ring's end: the first record goes to its beginning, the second waits for room.
    all_arrive(Traffic { before: &[2, 2, 2, 1], dealt_with: 1, sent: &[2, 2], batch: 1, switches: 3 });
}

#[test]
fn a_producer_that_fills_the_ring_more_than_once_is_told_of_room() {
    all_arrive(Traffic { before: &[2, 2, 2], dealt_with: 0, sent: &[2, 2, 2, 2], batch: 4, switches: 2 });
}

#[test]
fn a_producer_is_told_of_room_by_a_consumer_that_knows_of_few_records() {
    // The consumer has seen two records when the others fill the ring.
    all_arrive(Traffic { before: &[2, 2], dealt_with: 1, sent: &[2, 2, 2, 1], batch: 1, switches: 2 });
}

#[test]
fn positions_that_cannot_be_are_broken() {
    explore(3, || {
        let ring = Ring::new();
        // Two producers: the second doesn't know of the first's record, so that the head is beyond its tail.
        let (mut producer, mut stranger) =
            (Producer::new(SIZE * RingWords::GRAIN), Producer::new(SIZE * RingWords::GRAIN));
        let mut consumer = Consumer::new(SIZE * RingWords::GRAIN);
        ring.try_send(&mut producer, 0, 1).unwrap();
        assert_eq!(ring.receive(&mut consumer, 1), Some((vec![0], false)));
        assert_eq!(stranger.has_room(&ring.lines), Err(Broken));
    });
}

#[test]
fn a_copy_of_the_last_record_is_of_that_record_or_is_not_there() {
    explore(3, || {
        let lines = Arc::new(RingWords::default());
        let mut producer = Producer::new(SIZE * RingWords::GRAIN);
        let other = lines.clone();
        let sender = thread::spawn(move || {
            for _ in 0..2 {
                let place = producer.reserve(&other, RingWords::GRAIN).unwrap().unwrap();
                other.copy_last(place.end(), [place.end(); COPIED_WORDS]);
                producer.publish(&other, place);
            }
        });
        let mut consumer = Consumer::new(SIZE * RingWords::GRAIN);
        for _ in 0..2 {
            if consumer.peek(&lines).unwrap().is_none() {
                break;
            }
            if let Some(words) = consumer.copy_of_only(&lines) {
                assert_eq!(words, [consumer.head() + RingWords::GRAIN as u64; COPIED_WORDS]);
                consumer.release(&lines, RingWords::GRAIN);
            }
        }
        sender.join().unwrap();
    });
}

#[test]
fn the_only_short_record_is_read_beside_its_position() {
    explore(3, || {
        let lines = RingWords::default();
        let (mut producer, mut consumer) =
            (Producer::new(SIZE * RingWords::GRAIN), Consumer::new(SIZE * RingWords::GRAIN));
        let mut send = |grains: usize, copied: bool| {
            let place = producer.reserve(&lines, grains * RingWords::GRAIN).unwrap().unwrap();
            if copied {
                lines.copy_last(place.end(), [place.end(); COPIED_WORDS]);
            }
            producer.publish(&lines, place)
        };
        let mut copy = || {
            consumer.look(&lines).unwrap();
            let copy = consumer.copy_of_only(&lines);
            while let Some((_, published)) = consumer.ahead_of(consumer.head()) {
                consumer.release(&lines, published);
            }
            copy
        };
        let end = send(1, true);
        assert_eq!(copy(), Some([end; COPIED_WORDS]));
        send(1, false);
        assert_eq!(copy(), None, "the copy is of the record before");
        send(1, true);
        send(1, true);
        assert_eq!(copy(), None, "two records wait");
    });
}
