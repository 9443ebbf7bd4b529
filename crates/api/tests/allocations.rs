//! A request of a connection allocates nothing beside what the adapter does for it.

use ferroce::session::{Connection, Driver};
use ferroce::verbs::{Cq, Device, FetchAdd, Operation, RcQp, Read, Reliable, Send, Write};
use ferroce::{Inline, Pool, Remote, rights};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Counts the allocations of each thread.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    let _ = ALLOCATIONS.try_with(|allocations| allocations.set(allocations.get() + 1));
}

// SAFETY: the system's allocator does it all.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Every kind of request, with futures and without, and a queue that is full.
fn round(driver: &Driver, [a, b]: [&Connection; 2], pool: &Pool, there: Remote<rights::All>) {
    driver.run(async {
        let mut buffer = pool.take().await;
        buffer.fill(b"a message");
        let buffer = a.send(buffer).await.unwrap();
        assert_eq!(b.recv().await.unwrap().len(), 9);
        let buffer = a.write(buffer, there.slice(8..64)).await.unwrap();
        let _buffer = a.read(buffer, there.slice(8..17)).await.unwrap();
        a.fetch_add(there.slice(..8), 1).await.unwrap();
        let mut batch = a.batch(4).await.unwrap();
        let ops = [1_u8, 2, 3, 4].map(|n| batch.post(Send::new(Inline::from(&[n]))).unwrap());
        // There is no room: it waits.
        a.send(Inline::from(&[5])).await.unwrap();
        for op in ops {
            op.await.unwrap();
        }
        for _ in 0..5 {
            drop(b.recv().await.unwrap());
        }
        drop(a.post(Read::new(pool.take().await, there.slice(..8))).await.unwrap());
    });
    let op = a.try_post(Send::new(Inline::from(b"blocking"))).unwrap();
    drop(b.recv_blocking().unwrap());
    op.wait().unwrap();
}

/// The same requests by verbs.
fn round_of_verbs(cq: &mut Cq, [a, b]: [&mut RcQp; 2], pool: &Pool, there: Remote<rights::All>) {
    fn perform(cq: &mut Cq, a: &mut RcQp, operation: impl Operation<Reliable>, completions: usize) {
        a.post(1, operation).map_err(|failed| failed.error).unwrap();
        for _ in 0..completions {
            cq.next(None).unwrap().unwrap().result().unwrap();
        }
    }
    let buffer = || {
        let mut buffer = pool.try_take().unwrap();
        buffer.fill(b"a message");
        buffer
    };
    b.recv(2, pool.try_take().unwrap()).unwrap();
    perform(cq, a, Send::new(buffer()), 2);
    perform(cq, a, Write::new(buffer(), there.slice(8..64)), 1);
    perform(cq, a, Read::new(buffer(), there.slice(8..17)), 1);
    perform(cq, a, FetchAdd::new(there.slice(..8), 1), 1);
    for n in 0..6_u8 {
        b.recv(2, pool.try_take().unwrap()).unwrap();
        perform(cq, a, Send::new(Inline::from(&[n])), 2);
    }
    perform(cq, a, Read::new(buffer(), there.slice(..8)), 1);
}

/// Allocations of so many rounds.
fn allocations(rounds: u64, mut round: impl FnMut()) -> u64 {
    // What grows, grows before.
    (0..50).for_each(|_| round());
    let before = ALLOCATIONS.get();
    (0..rounds).for_each(|_| round());
    ALLOCATIONS.get() - before
}

#[test]
fn requests_of_a_connection_allocate_nothing() {
    ferroce_tests::inside::in_namespace("requests_of_a_connection_allocate_nothing", || {
        let device = Device::native().unwrap();
        let domain = device.open().unwrap();
        let mut cq = domain.cq(64).unwrap();
        let (a, b) = (domain.rc(&cq).build().unwrap(), domain.rc(&cq).build().unwrap());
        let (a_end, b_end) = (a.endpoint(), b.endpoint());
        let (mut a, mut b) = (a.connect(&b_end).unwrap(), b.connect(&a_end).unwrap());
        let pool = domain.pool(32, 256).unwrap();
        let exposed = domain.alloc(64).unwrap().expose(rights::All).unwrap();
        let of_verbs = allocations(200, || round_of_verbs(&mut cq, [&mut a, &mut b], &pool, exposed.token()));
        drop((a, b, cq));

        let driver = Driver::manual(&domain).unwrap();
        let setups = [(); 2].map(|()| driver.rc().send_depth(4).recv_depth(8).build().unwrap());
        let ends = [setups[1].endpoint(), setups[0].endpoint()];
        let [a, b] = setups;
        let a = driver.run(driver.join(a, &pool, async |_| Ok(ends[0]))).unwrap();
        let b = driver.run(driver.join(b, &pool, async |_| Ok(ends[1]))).unwrap();
        let of_session = allocations(200, || round(&driver, [&a, &b], &pool, exposed.token()));
        // `Driver::run` allocates its waker, once a round.
        assert_eq!(of_session, of_verbs + 200);
    });
}
