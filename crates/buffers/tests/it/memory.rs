//! Whose memory it is: registration, parts, pools, and the owner's way back.

use crate::adapter::{Adapter, held};
use ferroce_buffers::{
    AccessBy, Buffer, Kind, Memory, NotLent, Payload, Pool, RawMemory, Remote, borrowing, register, rights,
};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

/// Memory that notes when it is released.
struct Noted(Vec<u8>, Arc<Mutex<Vec<&'static str>>>);

// SAFETY: as for a vector.
unsafe impl Memory for Noted {
    fn bytes(&mut self) -> NonNull<[u8]> {
        self.0.bytes()
    }
}

impl Drop for Noted {
    fn drop(&mut self) {
        self.1.lock().unwrap().push("released");
    }
}

fn registered<M: Memory>(adapter: &Adapter, memory: M) -> Buffer {
    register(memory, AccessBy::Tap, |tap| adapter.register(tap)).unwrap()
}

#[test]
fn memory_is_deregistered_before_it_is_released() {
    let adapter = Adapter::default();
    let mut buffer = registered(&adapter, Noted(vec![1; 16], adapter.log.clone()));
    let part = buffer.split_off(8);
    drop(buffer);
    assert!(adapter.log.lock().unwrap().is_empty());
    drop(held(|slot| drop(part.hold(slot))));
    assert_eq!(*adapter.log.lock().unwrap(), ["deregistered", "released"]);
}

#[test]
fn an_owner_gets_its_memory_back_when_all_parts_are_joined() {
    let adapter = Adapter::default();
    let mut buffer = registered(&adapter, b"0123456789".to_vec());
    let after = buffer.split_off(4);
    assert_eq!((&buffer[..], &after[..]), (&b"0123"[..], &b"456789"[..]));
    let buffer = buffer.reclaim::<Vec<u8>>().unwrap_err();
    let (after, buffer) = after.join(buffer).unwrap_err();
    let buffer = buffer.join(after).unwrap();
    let mut buffer = buffer.reclaim::<Box<[u8]>>().unwrap_err();
    buffer[0] = b'x';
    assert_eq!(buffer.reclaim::<Vec<u8>>().unwrap(), b"x123456789");
    assert_eq!(*adapter.log.lock().unwrap(), ["deregistered"]);
    let boxed: Box<[u8]> = vec![3; 5].into();
    let moved = std::thread::spawn({
        let adapter = adapter.clone();
        move || registered(&adapter, boxed)
    });
    assert_eq!(*moved.join().unwrap().reclaim::<Box<[u8]>>().unwrap(), [3; 5]);
}

#[test]
fn raw_memory_comes_back_with_what_keeps_it() {
    let adapter = Adapter::default();
    let start = NonNull::from(Box::leak(Box::new([5_u8; 32])));
    // SAFETY: the allocation is used through the region alone until it is released below.
    let raw = unsafe { RawMemory::new(start.cast(), 32, "kept") };
    let mut buffer = registered(&adapter, raw);
    buffer[31] = 6;
    let raw = buffer.reclaim::<RawMemory<&str>>().unwrap();
    assert_eq!(raw.into_keep(), "kept");
    // SAFETY: made by `Box`, and not used any more.
    assert_eq!(unsafe { Box::from_raw(start.as_ptr()) }[30..], [5, 6]);
}

#[test]
fn an_owner_gets_the_memory_of_a_pool_back_when_the_pool_has_ended() {
    let adapter = Adapter::default();
    for places in [1, 3] {
        let pool = Pool::new(registered(&adapter, vec![0; places * 8]), 8).unwrap();
        let buffer = pool.try_take().unwrap();
        let buffer = buffer.reclaim::<Vec<u8>>().unwrap_err();
        drop(buffer);
        assert_eq!(pool.free(), places);
        let [first, second] = [pool.try_take(), pool.try_take()];
        drop(pool);
        let buffer = first.unwrap().reclaim::<Box<[u8]>>().unwrap_err();
        let buffer = match second {
            Some(second) => {
                let buffer = buffer.reclaim::<Vec<u8>>().unwrap_err();
                drop(second);
                buffer
            }
            None => buffer,
        };
        assert_eq!(buffer.reclaim::<Vec<u8>>().unwrap().len(), places * 8);
    }
}

#[test]
fn a_refused_registration_gives_the_memory_back() {
    let adapter = Adapter { refuses: true, ..Adapter::default() };
    let failed = register(vec![1, 2], AccessBy::Tap, |tap| adapter.register(tap)).unwrap_err();
    assert_eq!((failed.error.kind(), failed.back), (Kind::NoMemory, vec![1, 2]));
}

#[test]
fn chunks_cover_a_buffer_once() {
    let adapter = Adapter::default();
    let mut chunks: Vec<_> = adapter.alloc(100).chunks(32).collect();
    assert_eq!(chunks.iter().map(Buffer::capacity).collect::<Vec<_>>(), [32, 32, 32, 4]);
    for (number, chunk) in chunks.iter_mut().enumerate() {
        chunk.iter_mut().for_each(|byte| *byte = number as u8);
    }
    let whole = chunks.into_iter().reduce(|whole, chunk| whole.join(chunk).unwrap()).unwrap();
    assert_eq!((whole.len(), whole[31], whole[32], whole[99]), (100, 0, 1, 3));
}

#[test]
fn a_split_buffer_returns_to_its_pool_with_its_last_part() {
    let adapter = Adapter::default();
    let pool = Pool::new(adapter.alloc(100), 32).unwrap();
    assert_eq!(pool.free(), 3);
    let mut buffer = pool.try_take().unwrap();
    let part = buffer.split_off(8);
    drop(buffer);
    assert_eq!(pool.free(), 2);
    drop(part);
    assert_eq!(pool.free(), 3);
    let mut buffer = pool.try_take().unwrap();
    let part = buffer.split_off(8);
    let buffer = buffer.join(part).unwrap();
    assert_eq!((pool.free(), buffer.capacity()), (2, 32));
    let other = pool.try_take().unwrap();
    let (buffer, _other) = buffer.join(other).unwrap_err();
    drop(pool);
    assert_eq!(buffer.capacity(), 32);
}

#[test]
fn a_pool_is_made_of_a_whole_region_only() {
    let adapter = Adapter::default();
    let mut whole = adapter.alloc(64);
    let part = whole.split_off(32);
    assert_eq!(Pool::new(whole, 32).unwrap_err().kind(), Kind::Invalid);
    drop(part);
    assert_eq!(Pool::new(adapter.alloc(64), 65).unwrap_err().kind(), Kind::Invalid);
    let pool = Pool::new(adapter.alloc(64), 64).unwrap();
    let only = pool.try_take().unwrap();
    assert_eq!(Pool::new(only, 64).unwrap_err().kind(), Kind::Invalid);
}

/// Rule S7.
#[test]
fn all_bytes_up_to_the_capacity_are_initialised() {
    let adapter = Adapter::default();
    // Several at a time: the allocator gives the same memory out again.
    let mut dirty: Vec<_> = (0..8).map(|_| adapter.alloc(4000)).collect();
    dirty.iter_mut().for_each(|buffer| buffer.fill(&[0xaa; 4000]));
    drop(dirty);
    let pools: Vec<_> = (0..8).map(|_| Pool::new(adapter.alloc(4000), 1000).unwrap()).collect();
    for pool in &pools {
        let mut buffers: Vec<_> = std::iter::from_fn(|| pool.try_take()).collect();
        for buffer in &mut buffers {
            assert_eq!(buffer.len(), 0);
            buffer.set_len(1000);
            assert!(buffer.iter().all(|byte| *byte == 0));
        }
    }
}

#[test]
#[should_panic(expected = "a length of 9 in a buffer of 8 bytes")]
fn a_length_beyond_the_capacity_panics() {
    Adapter::default().alloc(8).set_len(9);
}

struct Woken(std::sync::atomic::AtomicU32);

impl std::task::Wake for Woken {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
}

#[test]
fn waits_for_a_buffer_are_woken_by_the_next_that_is_dropped() {
    let adapter = Adapter::default();
    let pool = Pool::new(adapter.alloc(64), 32).unwrap();
    let woken = std::sync::Arc::new(Woken(0.into()));
    let waker = std::task::Waker::from(woken.clone());
    let wakeups = || woken.0.load(std::sync::atomic::Ordering::Relaxed);
    let (first, second) = (pool.poll_take(&waker).unwrap(), pool.poll_take(&waker).unwrap());
    assert!(pool.poll_take(&waker).is_none() && pool.poll_take(&waker).is_none());
    drop(first);
    assert_eq!(wakeups(), 1, "a waker is kept once");
    drop(second);
    assert_eq!(wakeups(), 1);
    let take = std::pin::pin!(pool.take());
    assert!(take.poll(&mut std::task::Context::from_waker(&waker)).is_ready());
}

#[test]
fn tokens_are_24_bytes_with_their_rights() {
    let adapter = Adapter::default();
    let exposed = adapter.alloc(64).expose(rights::ReadWrite).unwrap();
    let bytes = exposed.token().to_bytes();
    let token = Remote::<rights::Read>::from_bytes(bytes).unwrap();
    assert_eq!((token.key(), token.len()), (exposed.token().key(), 64));
    let part = token.slice(8..=15);
    assert_eq!((part.address() - token.address(), part.len()), (8, 8));
    assert_eq!(Remote::<rights::Atomic>::from_bytes(bytes).unwrap_err().kind(), Kind::Denied);
    for (at, value) in [(0, 2), (8, 0xff)] {
        let mut wrong = bytes;
        wrong[at..at + 8].fill(value);
        assert_eq!(Remote::<rights::Read>::from_bytes(wrong).unwrap_err().kind(), Kind::Invalid);
    }
}

#[test]
fn borrowed_memory_is_deregistered_when_its_borrow_ends() {
    let adapter = Adapter::default();
    let (mut into, from) = ([0; 8], *b"borrowed");
    let lent = borrowing(|borrows| {
        let (segments, read) =
            borrows.for_reading(&from, AccessBy::Tap, |tap| adapter.register(tap)).unwrap();
        assert_eq!((segments.len(), segments[0].length), (1, 8));
        let (_, written) =
            borrows.for_writing(&mut into, AccessBy::Tap, |tap| adapter.register(tap)).unwrap();
        let mut bytes = [0; 8];
        let tap = adapter.tap(0).unwrap();
        tap.read(0, &mut bytes).unwrap();
        assert_eq!(tap.write(0, &bytes), Err(NotLent));
        drop(tap);
        adapter.tap(1).unwrap().write(0, &bytes).unwrap();
        // It doesn't come back as a buffer.
        assert_eq!((read.settle(None).count(), written.settle(Some(8)).count()), (0, 0));
        assert!(adapter.log.lock().unwrap().is_empty());
        // No memory needs no registration.
        let (none, _) = borrows.for_reading(&[], AccessBy::Tap, |_| unreachable!()).unwrap();
        none.len()
    });
    assert_eq!((lent, &into), (0, b"borrowed"));
    assert_eq!(*adapter.log.lock().unwrap(), ["deregistered", "deregistered"]);
}
