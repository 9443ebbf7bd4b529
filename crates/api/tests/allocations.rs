//! A request of a connection allocates nothing.

use ferroce::session::{Connection, Driver};
use ferroce::verbs::{Device, Read, Send};
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

#[test]
fn requests_of_a_connection_allocate_nothing() {
    ferroce_tests::inside::in_namespace("requests_of_a_connection_allocate_nothing", || {
        let driver = Driver::manual(&Device::native().unwrap().open().unwrap()).unwrap();
        let pool = driver.domain().pool(32, 256).unwrap();
        let setups = [(); 2].map(|()| driver.rc().send_depth(4).recv_depth(8).build().unwrap());
        let ends = [setups[1].endpoint(), setups[0].endpoint()];
        let [a, b] = setups;
        let a = driver.run(driver.join(a, &pool, async |_| Ok(ends[0]))).unwrap();
        let b = driver.run(driver.join(b, &pool, async |_| Ok(ends[1]))).unwrap();
        let exposed = driver.domain().alloc(64).unwrap().expose(rights::All).unwrap();
        let mut allocations = |rounds: u32| {
            let before = ALLOCATIONS.get();
            (0..rounds).for_each(|_| round(&driver, [&a, &b], &pool, exposed.token()));
            ALLOCATIONS.get() - before
        };
        allocations(50);
        // `Driver::run` allocates its waker.
        assert_eq!(allocations(200), 200);
    });
}
