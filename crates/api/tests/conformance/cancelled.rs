//! Rule S3: futures own nothing. They are dropped, forgotten, and dropped by a panic, at each of their first polls.

use crate::fixture::Fixture;
use crate::sessions::{Side, both, joined_with, run};
use ferroce::sim::{Faults, World};
use ferroce::verbs::{Device, Read, Send, Write};
use ferroce::{Inline, Remote, rights};
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

/// How a future ends before its time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Early {
    Dropped,
    Forgotten,
    Panics,
}

const BUFFERS: usize = 16;

struct Hosts([Device; 2]);

impl Fixture for Hosts {
    fn devices(&self) -> [&Device; 2] {
        [&self.0[0], &self.0[1]]
    }

    fn seed(&self) -> u64 {
        0
    }
}

/// Lets a future be polled so often, and then ends it. Whether it was ended.
async fn ended_at<F: Future<Output = ()>>(future: F, poll: usize, early: Early) -> bool {
    let (mut future, mut polls) = (Some(Box::pin(future)), 0);
    poll_fn(move |context| {
        if polls == poll {
            let ended = future.take();
            match early {
                Early::Dropped => drop(ended),
                Early::Forgotten => std::mem::forget(ended),
                Early::Panics => {
                    let panics = AssertUnwindSafe(|| {
                        let _dropped_by_the_panic = ended;
                        // Without a line from the panic hook.
                        std::panic::resume_unwind(Box::new(()));
                    });
                    assert!(catch_unwind(panics).is_err());
                }
            }
            return Poll::Ready(true);
        }
        polls += 1;
        match &mut future {
            Some(future) => future.as_mut().poll(context).map(|()| false),
            None => Poll::Ready(false),
        }
    })
    .await
}

async fn either(mut a: Pin<&mut impl Future<Output = ()>>, mut b: Pin<&mut impl Future<Output = ()>>) {
    poll_fn(
        |context| {
            if a.as_mut().poll(context).is_ready() { Poll::Ready(()) } else { b.as_mut().poll(context) }
        },
    )
    .await;
}

/// All of some futures.
async fn all(mut futures: Vec<Pin<Box<dyn Future<Output = ()> + '_>>>) {
    poll_fn(|context| {
        futures.retain_mut(|future| future.as_mut().poll(context).is_pending());
        if futures.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// All that a connection can wait for, some of it at a time.
async fn program(side: &Side, there: Remote<rights::All>) {
    let Side { pool, peer, .. } = side;
    for round in 0..40_u64 {
        let read = async || {
            let into = pool.take().await;
            let read = peer.read(into, there.slice(64..128)).await.unwrap();
            assert_eq!(read[..], [7; 64], "another request has written this buffer");
        };
        let write = async || {
            let mut from = pool.take().await;
            from.fill(&[7; 64]);
            peer.perform(Write::new(from, there.slice(64..128))).await.unwrap();
        };
        let count = async || {
            peer.fetch_add(there.slice(..8), 1).await.unwrap();
        };
        let message = async || {
            peer.send(Inline::from(&round.to_ne_bytes())).await.unwrap();
            let permit = peer.ready().await.unwrap();
            permit.post(Send::new(Inline::from(&round.to_ne_bytes()))).unwrap().await.unwrap();
        };
        let batch = async || {
            let mut batch = peer.batch(2).await.unwrap();
            let first = batch.post(Read::new((), there.slice(..0))).unwrap();
            let _second = batch.post(Read::new(pool.take().await, there.slice(64..128))).unwrap();
            first.await.unwrap();
        };
        all(vec![
            Box::pin(read()),
            Box::pin(write()),
            Box::pin(count()),
            Box::pin(message()),
            Box::pin(batch()),
            Box::pin(read()),
        ])
        .await;
    }
}

/// Runs the program to its early end, and then uses the connection as if nothing had happened. False: it ended before.
fn cancel(seed: u64, poll: usize, early: Early) -> bool {
    let world = World::new(seed);
    let micros = Duration::from_micros;
    let delay = micros(1)..micros(40);
    world.faults(Faults { loss: 0.02, duplicate: 0.02, reorder: 0.05, delay, ..Faults::default() });
    let hosts = Hosts(["client", "server"].map(|name| Device::simulated(&world.host(name))));
    let sides = joined_with(&hosts, BUFFERS, |builder| builder.send_depth(3).recv_depth(3));
    let exposed = sides[1].driver.domain().alloc(128).unwrap().expose(rights::All).unwrap();
    exposed.store(64, &[7; 64]);
    let there = exposed.token();
    let [a, b] = &sides;
    let client = async {
        let ended = ended_at(program(a, there), poll, early).await;
        // Buffers that were given back are the program's.
        let mut kept: Vec<_> = std::iter::from_fn(|| a.pool.try_take()).collect();
        kept.iter_mut().for_each(|buffer| buffer.fill(&[9; 256]));
        if early == Early::Forgotten {
            // A forgotten wait keeps its turn, so others may wait for ever. What is under way ends all the same.
            a.peer.abort();
            a.peer.closed().await;
        } else {
            a.peer.send(Inline::from(b"last")).await.unwrap();
            let () = a.peer.read((), there.slice(..0)).await.unwrap();
        }
        assert!(kept.iter().all(|buffer| buffer[..] == [9; 256]), "a request has written a free buffer");
        ended
    };
    let server = async {
        let closed = pin!(async {
            a.peer.closed().await;
        });
        let last = pin!(async { while b.peer.recv().await.is_ok_and(|message| message[..] != *b"last") {} });
        either(last, closed).await;
    };
    let (ended, ()) = run(&sides, both(client, server));
    let [Side { driver, pool, peer }, b] = sides;
    drop((driver, peer, b));
    // A future that was forgotten never gives back what it had already.
    assert!(pool.free() == BUFFERS || early == Early::Forgotten, "{} buffers are back", pool.free());
    ended
}

fn cancel_everywhere(early: Early) {
    let (seeds, polls) = if cfg!(miri) { (1, 10) } else { (3, 200) };
    for seed in 0..seeds {
        for poll in 0..polls {
            assert!(cancel(seed, poll, early), "seed {seed}: it ends before poll {poll}");
        }
    }
}

#[test]
fn futures_that_are_dropped_at_any_poll_leave_memory_and_connection_intact() {
    cancel_everywhere(Early::Dropped);
}

#[test]
fn futures_that_are_forgotten_at_any_poll_leave_memory_and_connection_intact() {
    cancel_everywhere(Early::Forgotten);
}

#[test]
fn futures_that_a_panic_drops_at_any_poll_leave_memory_and_connection_intact() {
    cancel_everywhere(Early::Panics);
}
