//! What connections promise on every backend.

use crate::fixture::Fixture;
use ferroce::session::{Connection, Driver};
use ferroce::verbs::{Builder, FetchAdd, Read, Reliable, Send, Write};
use ferroce::{Inline, Kind, Pool, Status, rights};
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(30);

/// One side of a connection, with a driver of its own.
pub struct Side {
    pub driver: Driver,
    pub pool: Pool,
    pub peer: Connection,
}

/// Two connected sides, whose drivers are turned by [`both`].
pub fn joined(fixture: &impl Fixture) -> [Side; 2] {
    joined_with(fixture, 16, |builder| builder.send_depth(4).recv_depth(4))
}

pub fn joined_with(
    fixture: &impl Fixture,
    buffers: usize,
    build: impl Fn(Builder<'_, Reliable>) -> Builder<'_, Reliable>,
) -> [Side; 2] {
    let [a, b] = fixture.devices().map(|device| Driver::manual(&device.open().unwrap()).unwrap());
    let (a_pool, b_pool) = (a.domain().pool(buffers, 256).unwrap(), b.domain().pool(buffers, 256).unwrap());
    let (a_setup, b_setup) = (build(a.rc()).build().unwrap(), build(b.rc()).build().unwrap());
    let (a_end, b_end) = (a_setup.endpoint(), b_setup.endpoint());
    // Both post their receives here.
    let a_joins = a.join(a_setup, &a_pool, async |_| Ok(b_end));
    let b_joins = b.join(b_setup, &b_pool, async |_| Ok(a_end));
    let (a_peer, b_peer) = (ready(a_joins).unwrap(), ready(b_joins).unwrap());
    [Side { driver: a, pool: a_pool, peer: a_peer }, Side { driver: b, pool: b_pool, peer: b_peer }]
}

/// The output of a future that waits for nothing.
pub fn ready<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("it waits"),
    }
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

/// Runs a future on this thread, and turns the drivers meanwhile. The future is polled when it was woken, and only then: a lost wakeup
/// never ends.
pub fn run<F: Future>(sides: &[Side; 2], future: F) -> F::Output {
    let mut future = pin!(future);
    let woken = Arc::new(Woken(AtomicBool::new(true)));
    let waker = Waker::from(woken.clone());
    let began = std::time::Instant::now();
    loop {
        if woken.0.swap(false, Ordering::AcqRel)
            && let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker))
        {
            return output;
        }
        for side in sides {
            side.driver.turn();
        }
        assert!(began.elapsed() < LIMIT, "a future isn't woken");
    }
}

/// Both outputs.
pub async fn both<A: Future, B: Future>(a: A, b: B) -> (A::Output, B::Output) {
    let (mut a, mut b) = (pin!(a), pin!(b));
    let (mut a_output, mut b_output) = (None, None);
    poll_fn(|context| {
        if a_output.is_none()
            && let Poll::Ready(output) = a.as_mut().poll(context)
        {
            a_output = Some(output);
        }
        if b_output.is_none()
            && let Poll::Ready(output) = b.as_mut().poll(context)
        {
            b_output = Some(output);
        }
        if a_output.is_some() && b_output.is_some() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    (a_output.unwrap(), b_output.unwrap())
}

pub fn echo(fixture: &impl Fixture) {
    let sides = joined(fixture);
    let [a, b] = &sides;
    let client = async {
        for number in 0..40_u8 {
            let mut buffer = a.pool.take().await;
            buffer.fill(&[number; 100][..usize::from(number)]);
            let sent = a.peer.send(buffer).await.unwrap();
            let message = a.peer.recv().await.unwrap();
            assert_eq!(message[..], sent[..]);
        }
        let mut buffer = a.pool.take().await;
        buffer.fill(b"with 32 bits");
        a.peer.perform(Send::new(buffer).imm(77)).await.unwrap();
    };
    let server = async {
        for _ in 0..40 {
            let message = b.peer.recv().await.unwrap();
            assert_eq!((message.imm(), message.written()), (None, None));
            b.peer.send(message.into_buffer()).await.unwrap();
        }
        let message = b.peer.recv().await.unwrap();
        assert_eq!((message.imm(), &message[..]), (Some(77), &b"with 32 bits"[..]));
    };
    run(&sides, both(client, server));
}

pub fn one_sided(fixture: &impl Fixture) {
    let sides = joined(fixture);
    let [a, b] = &sides;
    let exposed = b.driver.domain().alloc(4096).unwrap().expose(rights::All).unwrap();
    let token = exposed.token();
    run(&sides, async {
        let mut buffer = a.pool.take().await;
        buffer.fill(b"written");
        let buffer = a.peer.write(buffer, token.slice(8..15)).await.unwrap();
        let read = a.peer.read(buffer, token.slice(8..12)).await.unwrap();
        assert_eq!(&read[..], b"writ");
        assert_eq!(a.peer.fetch_add(token.slice(..8), 5).await.unwrap(), 0);
        assert_eq!(a.peer.compare_swap(token.slice(..8), 5, 9).await.unwrap(), 5);
        a.peer.perform(Write::new(read, token.slice(100..104)).imm(6)).await.unwrap();
        let message = b.peer.recv().await.unwrap();
        assert_eq!((message.imm(), message.written(), message.len()), (Some(6), Some(4), 0));
    });
    assert_eq!(exposed.word(0).load(), 9);
}

/// Sends beyond the queue's depth wait, and never fail.
pub fn beyond_the_depth(fixture: &impl Fixture) {
    let sides = joined(fixture);
    let [a, b] = &sides;
    const COUNT: u32 = 200;
    let send = async |number: u32| {
        let sent = a.peer.perform(Send::new(Inline::from(&number.to_ne_bytes())));
        sent.await.unwrap();
    };
    let client = async {
        // All at once: 200 requests for a queue of 4.
        let mut sends: Vec<Pin<Box<dyn Future<Output = ()>>>> =
            (0..COUNT).map(|n| Box::pin(send(n)) as _).collect();
        poll_fn(|context| {
            sends.retain_mut(|send| send.as_mut().poll(context).is_pending());
            if sends.is_empty() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    };
    let server = async {
        for number in 0..COUNT {
            let message = b.peer.recv().await.unwrap();
            assert_eq!(message[..], number.to_ne_bytes(), "waits end in order");
        }
    };
    run(&sides, both(client, server));
}

pub fn full(fixture: &impl Fixture) {
    let sides = joined(fixture);
    let [a, b] = &sides;
    let posted: Vec<_> = (0..4_u8).map(|n| a.peer.try_post(Send::new(Inline::from(&[n]))).unwrap()).collect();
    let refused = a.peer.try_post(Send::new(Inline::from(&[4_u8]))).unwrap_err();
    assert_eq!(refused.error.kind(), Kind::Full);
    let mut waits = pin!(a.peer.ready());
    assert!(waits.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    run(&sides, async {
        for op in posted {
            op.await.unwrap();
        }
        let permit = waits.await.unwrap();
        // A permit holds its place, and gives it back unused.
        let others = a.peer.batch(3).await.unwrap();
        assert_eq!(a.peer.try_post(Send::new(())).unwrap_err().error.kind(), Kind::Full);
        drop(permit);
        a.peer.try_post(Send::new(Inline::from(&[4_u8]))).unwrap().await.unwrap();
        let mut batch = others;
        let posted = [5_u8, 6, 7].map(|n| batch.post(Send::new(Inline::from(&[n]))).unwrap());
        assert_eq!((batch.left(), batch.post(Send::new(())).unwrap_err().error.kind()), (0, Kind::Full));
        for op in posted {
            op.await.unwrap();
        }
        for number in 0..8_u8 {
            assert_eq!(b.peer.recv().await.unwrap()[..], [number]);
        }
        assert_eq!(a.peer.batch(5).await.unwrap_err().kind(), Kind::Invalid);
    });
}

/// A wait for room that is given up lets the next one have it.
pub fn given_up(fixture: &impl Fixture) {
    let sides = joined(fixture);
    let [a, b] = &sides;
    run(&sides, async {
        let all = a.peer.batch(4).await.unwrap();
        let mut first = Box::pin(a.peer.ready());
        let mut second = Box::pin(a.peer.ready());
        poll_fn(|context| {
            assert!(first.as_mut().poll(context).is_pending() && second.as_mut().poll(context).is_pending());
            Poll::Ready(())
        })
        .await;
        drop(all);
        drop(first);
        second.await.unwrap().post(Send::new(Inline::from(b"second"))).unwrap().await.unwrap();
        assert_eq!(b.peer.recv().await.unwrap()[..], *b"second");
        // The same with messages.
        let mut first = Box::pin(b.peer.recv());
        let mut second = Box::pin(b.peer.recv());
        poll_fn(|context| {
            assert!(first.as_mut().poll(context).is_pending() && second.as_mut().poll(context).is_pending());
            Poll::Ready(())
        })
        .await;
        drop(first);
        a.peer.send(Inline::from(b"third")).await.unwrap();
        assert_eq!(second.await.unwrap()[..], *b"third");
    });
}

/// Rule S3: what observes a request owns nothing of it.
pub fn dropped(fixture: &impl Fixture) {
    let sides = joined(fixture);
    let [a, b] = &sides;
    let exposed = b.driver.domain().alloc(64).unwrap().expose(rights::All).unwrap();
    exposed.store(8, b"the answer");
    exposed.store(0, &41_u64.to_ne_bytes());
    let (word, answer) = (exposed.token().slice(..8), exposed.token().slice(8..18));
    let free = a.pool.free();
    drop(a.peer.try_post(Read::new(a.pool.try_take().unwrap(), answer)).unwrap());
    // The place of the dropped one isn't free yet: its end is not that of another request.
    let counted = a.peer.try_post(FetchAdd::new(word, 1)).unwrap();
    std::mem::forget(a.peer.try_post(Read::new(a.pool.try_take().unwrap(), answer)).unwrap());
    run(&sides, async {
        assert_eq!(counted.await.unwrap(), 41);
        let read = a.peer.read(a.pool.take().await, answer).await.unwrap();
        assert_eq!(&read[..], b"the answer");
    });
    // The forgotten one keeps its buffer until the connection ends.
    assert_eq!(a.pool.free(), free - 1);
}

/// The call posts the request, so dropping its future before it is polled cancels nothing, and leaves nothing behind.
pub fn never_polled(fixture: &impl Fixture) {
    let sides = joined(fixture);
    let [a, b] = &sides;
    let free = a.pool.free();
    // More than the queue has places for.
    for number in 0..10_u8 {
        let mut buffer = a.pool.try_take().unwrap();
        buffer.fill(&[number]);
        drop(a.peer.send(buffer));
        run(&sides, async {
            assert_eq!(b.peer.recv().await.unwrap()[..], [number]);
            while a.pool.free() < free {
                yield_once().await;
            }
        });
    }
}

/// Lets the drivers have a turn.
async fn yield_once() {
    let mut has_yielded = false;
    poll_fn(|context| {
        if std::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Receives of the program's own would be taken for those of the connection.
pub fn own_receives(fixture: &impl Fixture) {
    let driver = Driver::manual(&fixture.devices()[0].open().unwrap()).unwrap();
    let pool = driver.domain().pool(4, 64).unwrap();
    let mut setup = driver.rc().build().unwrap();
    setup.recv(1, pool.try_take().unwrap()).unwrap();
    let end = setup.endpoint();
    let refused = ready(driver.join(setup, &pool, async |_| Ok(end)));
    assert_eq!(refused.map(drop).unwrap_err().kind(), Kind::Invalid);
}

pub fn timeout(fixture: &impl Fixture) {
    let sides = joined(fixture);
    let [a, b] = &sides;
    let exposed = b.driver.domain().alloc(64).unwrap().expose(rights::Read).unwrap();
    let buffer = a.pool.try_take().unwrap();
    let op = a.peer.try_post(Read::new(buffer, exposed.token())).unwrap();
    let op = match op.try_done() {
        Ok(done) => {
            assert!(fixture.is_quick());
            return drop(done.unwrap());
        }
        Err(op) => op,
    };
    // The answer takes longer than no time.
    let Err(op) = op.wait_for(Duration::ZERO) else { panic!("nothing has turned the driver") };
    a.peer.abort();
    let failed = match op.wait() {
        Ok(read) => {
            assert!(fixture.is_quick() && read.len() == 64);
            return;
        }
        Err(failed) => failed,
    };
    assert_eq!(failed.error.fault().unwrap().status(), Status::Flushed);
    assert_eq!(failed.back.capacity(), 256);
    let refused = a.peer.try_post(Send::new(failed.back)).unwrap_err();
    assert_eq!(refused.error.kind(), Kind::Failed);
}

pub fn closed(fixture: &impl Fixture) {
    let sides = joined(fixture);
    let [a, b] = &sides;
    let exposed = b.driver.domain().alloc(64).unwrap().expose(rights::Read).unwrap();
    let token = exposed.token();
    drop(exposed.revoke());
    run(&sides, async {
        let mut read = Box::pin(a.peer.read(a.pool.take().await, token));
        let mut closed = Box::pin(a.peer.closed());
        let mut recv = Box::pin(a.peer.recv());
        let (failed, (fault, ended)) = both(&mut read, both(&mut closed, &mut recv)).await;
        let failed = failed.unwrap_err();
        let status = failed.error.fault().unwrap().status();
        assert!([Status::RemoteAccess, Status::RetriesExceeded].contains(&status), "{status}");
        assert_eq!(fault.status(), status);
        assert_eq!(ended.unwrap_err().fault().unwrap().status(), status);
        assert_eq!(a.peer.ready().await.unwrap_err().kind(), Kind::Failed);
        assert_eq!(a.peer.send(failed.back).await.unwrap_err().back.capacity(), 256);
    });
}

/// Requests under way when a connection is closed return their memory.
pub fn closed_early(fixture: &impl Fixture) {
    let [a, b] = joined(fixture);
    let exposed = b.driver.domain().alloc(64).unwrap().expose(rights::Read).unwrap();
    let free = a.pool.free();
    let op = a.peer.try_post(Read::new(a.pool.try_take().unwrap(), exposed.token())).unwrap();
    let other = a.peer.clone();
    a.peer.close();
    match op.wait() {
        Ok(read) => assert!(fixture.is_quick() && read.len() == 64),
        Err(failed) => assert_eq!(failed.error.fault().unwrap().status(), Status::Flushed),
    }
    assert!(ready(other.recv()).is_err());
    // The receives were returned too.
    assert_eq!(a.pool.free(), free + 4);
    drop((b, other, a.driver));
}

/// A buffer that the program keeps is missing until it is back in the pool: then a receive is posted without a call.
pub fn kept(fixture: &impl Fixture) {
    let sides = joined_with(fixture, 2, |builder| builder.send_depth(4).recv_depth(4));
    let [a, b] = &sides;
    run(&sides, async {
        a.peer.send(Inline::from(b"1")).await.unwrap();
        a.peer.send(Inline::from(b"2")).await.unwrap();
        let kept = [b.peer.recv().await.unwrap().into_buffer(), b.peer.recv().await.unwrap().into_buffer()];
        let (sent, received) = both(a.peer.send(Inline::from(b"3")), async {
            let mut recv = pin!(b.peer.recv());
            poll_fn(|context| {
                assert!(recv.as_mut().poll(context).is_pending());
                Poll::Ready(())
            })
            .await;
            drop(kept);
            assert_eq!(b.pool.free(), 0, "the buffers are posted at once");
            recv.await
        })
        .await;
        sent.unwrap();
        assert_eq!(received.unwrap()[..], *b"3");
    });
}

/// Blocking calls on one driver by this thread alone.
pub fn blocking(fixture: &impl Fixture) {
    let sides = joined(fixture);
    let [a, b] = &sides;
    let op = a.peer.try_post(Send::new(Inline::from(b"hello"))).unwrap();
    assert_eq!(b.peer.recv_blocking().unwrap()[..], *b"hello");
    op.wait().unwrap();
    assert!(b.peer.try_recv().unwrap().is_none());
    let message = b.driver.run(async {
        let sent = a.peer.post(Send::new(Inline::from(b"again"))).await.unwrap();
        let message = b.peer.recv().await.unwrap();
        drop(sent);
        message
    });
    assert_eq!(message[..], *b"again");
}
