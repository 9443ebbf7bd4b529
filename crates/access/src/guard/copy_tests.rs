//! Guarded copies: every length and place, borders of memory, and what others see of a copy meanwhile.

use super::tests::{NOWHERE, ends};
use super::*;
use std::sync::atomic::{AtomicU8, AtomicU64};
use std::time::{Duration, Instant};

const PAGE: usize = 4096;
/// The wide routine goes to and fro with the narrow one up to here.
const LONGEST: usize = 300;

/// A page between two inaccessible ones.
struct Island(*mut u8);

impl Island {
    fn new() -> Self {
        // SAFETY: mappings of its own.
        unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let all = libc::mmap(std::ptr::null_mut(), 3 * PAGE, libc::PROT_NONE, flags, -1, 0);
            assert_ne!(all, libc::MAP_FAILED);
            let page = all.cast::<u8>().add(PAGE);
            assert_eq!(libc::mprotect(page.cast(), PAGE, libc::PROT_READ | libc::PROT_WRITE), 0);
            Self(page)
        }
    }

    fn at(&self, offset: usize) -> u64 {
        self.0 as u64 + offset as u64
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the page.
        unsafe { std::slice::from_raw_parts_mut(self.0, PAGE) }
    }
}

impl Drop for Island {
    fn drop(&mut self) {
        // SAFETY: what `new` has mapped.
        unsafe { libc::munmap(self.0.sub(PAGE).cast(), 3 * PAGE) };
    }
}

fn pattern(i: usize) -> u8 {
    (i * 7 + 3) as u8 | 1
}

/// Whether a copy succeeds, with each routine.
fn copied(to: u64, from: u64, len: usize) -> bool {
    assert!(stands());
    let results = arch::COPIES.map(|copy| {
        // SAFETY: memory of these tests.
        unsafe { copy(to, from, len) }.faulted == 0
    });
    assert!(results.iter().all(|&result| result == results[0]));
    results[0]
}

#[test]
fn every_length_arrives_at_every_place_and_nothing_else_changes() {
    let (mut from, mut to) = (Island::new(), Island::new());
    from.bytes().iter_mut().enumerate().for_each(|(i, byte)| *byte = pattern(i));
    for copy in arch::COPIES {
        for len in (0..=LONGEST).chain([511, 640, 1000, 2049]) {
            for (at, start) in (0..33).map(|at| (64 + at, 5 * at % 33)) {
                to.bytes().fill(0);
                assert!(stands());
                // SAFETY: memory of this test.
                assert_eq!(unsafe { copy(to.at(at), from.at(start), len) }.faulted, 0);
                let bytes = to.bytes();
                assert_eq!(bytes[at..at + len], from.bytes()[start..start + len], "{len} at {at}");
                let around = bytes[..at].iter().chain(&bytes[at + len..]).all(|&byte| byte == 0);
                assert!(around, "{len} at {at}");
            }
        }
    }
}

#[test]
fn a_copy_up_to_a_border_succeeds_and_one_across_it_fails() {
    let (whole, island) = (Island::new(), Island::new());
    for len in 1..=LONGEST {
        for at in 0..9 {
            let inside = whole.at(64 + at);
            let (first, last) = (island.at(0), island.at(PAGE - len));
            for edge in [first, last] {
                assert!(copied(inside, edge, len) && copied(edge, inside, len), "{len}");
            }
            for across in [1, 2, 7, 8, 15, 16, 31, 63].into_iter().filter(|&across| across <= len) {
                for edge in [first - across as u64, last + across as u64] {
                    assert!(!copied(inside, edge, len) && !copied(edge, inside, len), "{len} by {across}");
                }
            }
        }
    }
}

#[test]
fn a_truncated_file_is_a_fault() {
    // SAFETY: a file and a mapping of this test's own.
    unsafe {
        let file = libc::memfd_create(c"truncated".as_ptr(), libc::MFD_CLOEXEC);
        assert!(file >= 0 && libc::ftruncate(file, 2 * PAGE as i64) == 0);
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let map = libc::mmap(std::ptr::null_mut(), 2 * PAGE, rights, libc::MAP_SHARED, file, 0);
        assert_ne!(map, libc::MAP_FAILED);
        let (map, island) = (map as u64, Island::new());
        assert!(copied(map, island.at(0), PAGE));
        assert_eq!(libc::ftruncate(file, PAGE as i64), 0);
        assert!(copied(island.at(0), map, PAGE));
        assert!(!copied(map + 100, island.at(0), PAGE) && !copied(island.at(0), map + 100, PAGE));
        libc::munmap(map as *mut _, 2 * PAGE);
        libc::close(file);
    }
}

/// Copies and folds, and returns the CRC-32 of what `crc` is the CRC-32 of, followed by the bytes.
fn folded(fold: Fold, (to, from, len): (u64, u64, usize), crc: u32) -> Option<u32> {
    let mut folded = [0; 16];
    folded[..4].copy_from_slice(&(!crc).to_le_bytes());
    assert!(stands());
    // SAFETY: memory of these tests.
    let outcome = unsafe { fold(to, from, len, &mut folded) };
    (outcome.faulted == 0).then(|| extend(u32::MAX, &folded))
}

#[test]
fn every_way_to_copy_and_sum_up_agrees_with_a_copy_and_a_sum() {
    let (mut from, mut to) = (Island::new(), Island::new());
    from.bytes().iter_mut().enumerate().for_each(|(i, byte)| *byte = pattern(i) ^ (i >> 5) as u8);
    for (way, fold) in arch::folds().into_iter().enumerate() {
        for len in (FEWEST_FOLDED..=1024).step_by(FOLDED).chain([2048, 3968]) {
            for (at, start) in [(0, 0), (32, 64), (40, 8), (1, 3), (17, 30)] {
                let crc = 0x1234_5678_u32.rotate_left(len as u32);
                to.bytes().fill(0);
                let sum = folded(fold, (to.at(at), from.at(start), len), crc);
                let source = &from.bytes()[start..start + len];
                assert_eq!(sum, Some(extend(crc, source)), "way {way}, {len} bytes at {at}");
                assert_eq!(to.bytes()[at..at + len], *source, "way {way}, {len} bytes at {at}");
                let bytes = to.bytes();
                let around = bytes[..at].iter().chain(&bytes[at + len..]).all(|&byte| byte == 0);
                assert!(around, "way {way}, {len} bytes at {at}");
            }
        }
    }
    if cfg!(target_arch = "x86_64") && !cfg!(miri) {
        assert!(!arch::folds().is_empty(), "this processor multiplies without carries");
    }
}

#[test]
fn a_pass_that_copies_and_sums_up_fails_across_a_border() {
    let (whole, island) = (Island::new(), Island::new());
    for fold in arch::folds() {
        for len in [128, 160, 192, 224, 256, 1056] {
            let (first, last) = (island.at(0), island.at(PAGE - len));
            for edge in [first, last] {
                for copy in [(whole.at(64), edge, len), (edge, whole.at(64), len)] {
                    assert!(folded(fold, copy, 0).is_some(), "{len}");
                }
            }
            for across in [1, 16, 32, 33, 127] {
                for edge in [first - across, last + across] {
                    for copy in [(whole.at(64), edge, len), (edge, whole.at(64), len)] {
                        assert!(folded(fold, copy, 0).is_none(), "{len} by {across}");
                    }
                }
            }
        }
    }
}

/// Bytes that threads share.
fn shared(bytes: &[AtomicU64]) -> &[AtomicU8] {
    // SAFETY: eight atomic bytes are an atomic word.
    unsafe { bytes.align_to::<AtomicU8>().1 }
}

#[test]
fn who_sees_the_last_byte_sees_all() {
    let memory: [AtomicU64; 128] = std::array::from_fn(|_| AtomicU64::new(0));
    let bytes = shared(&memory);
    for (at, len) in [(0, 8), (0, 64), (8, 64), (4, 20), (1, 17), (3, 300), (8, 296), (16, 512), (5, 777)] {
        let (end, seen) = (Instant::now() + Duration::from_secs(20), AtomicU64::new(0));
        bytes.iter().for_each(|byte| byte.store(0, Ordering::Relaxed));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=500u64 {
                    while bytes[at + len - 1].load(Ordering::Acquire) != round as u8 {
                        assert!(Instant::now() < end, "the last byte doesn't come");
                        std::hint::spin_loop();
                    }
                    let late =
                        bytes[at..at + len].iter().position(|b| b.load(Ordering::Relaxed) != round as u8);
                    assert_eq!(late, None, "of {len} bytes at {at}");
                    seen.store(round, Ordering::Release);
                }
            });
            for round in 1..=500u64 {
                let source = [round as u8; 1024];
                assert!(stands());
                let to = bytes.as_ptr() as u64 + at as u64;
                // SAFETY: memory that is shared through atomics.
                assert_eq!(unsafe { copy(to, source.as_ptr() as u64, len) }, Ok(()));
                while seen.load(Ordering::Acquire) != round {
                    assert!(Instant::now() < end, "the reader doesn't see the last byte");
                    std::hint::spin_loop();
                }
            }
        });
    }
}

#[test]
fn no_aligned_word_is_seen_in_parts() {
    let memory: [AtomicU64; 96] = std::array::from_fn(|_| AtomicU64::new(0));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                // Those that each copy touches as a whole or not at all.
                for word in &memory[8..88] {
                    let word = word.load(Ordering::Relaxed);
                    assert!(word == 0 || word == u64::MAX, "{word:x}");
                }
            }
        });
        for round in 0..2000usize {
            let source = [if round % 2 == 0 { u64::MAX } else { 0 }; 97];
            for (at, len) in [(64, 8), (64, 88), (72, 232), (80, 592), (4, 760), (0, 768), (61, 645)] {
                // Wherever the bytes come from.
                let from = source.as_ptr() as u64 + (round % 8) as u64;
                assert!(copied(memory.as_ptr() as u64 + at, from, len));
            }
            if reader.is_finished() {
                break;
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
}

fn fails_nowhere() {
    let word = 0u64;
    // SAFETY: nothing is there.
    assert_eq!(unsafe { copy(NOWHERE, &raw const word as u64, 8) }, Err(Fault));
}

#[test]
fn a_thread_that_blocks_the_signals_has_no_guarded_copies() {
    for signal in action::SIGNALS {
        let ended = ends(|| {
            action::block(action::bit(signal));
            assert!(!stands());
            fails_nowhere();
            // An atomic that has the signals unblocked for itself changes nothing.
            drop(FaultGuard::hold().expect("a guard"));
            assert!(!stands());
            fails_nowhere();
            action::unblock(FAULTS);
            assert!((0..=PATIENCE).any(|_| stands()));
            fails_nowhere();
        });
        assert_eq!(ended, Some(0));
    }
}

#[test]
fn signals_that_are_blocked_are_noticed_within_a_millisecond() {
    let ended = ends(|| {
        assert!(stands());
        fails_nowhere();
        action::block(FAULTS);
        std::thread::sleep(Duration::from_millis(5));
        fails_nowhere();
    });
    assert_eq!(ended, Some(0));
}

#[test]
fn an_answer_is_good_for_a_while_and_no_longer() {
    assert!(stands());
    let of = answer().given.get();
    let began = Instant::now();
    while answer().given.get() == of {
        assert!(began.elapsed() < Duration::from_secs(10));
        assert!(stands());
    }
}

#[test]
fn a_thread_without_ticks_has_no_guarded_copies_and_goes_on() {
    let ended = ends(|| {
        assert!(stands());
        // SAFETY: takes numbers. A kernel without this option lets every thread read the counter.
        if unsafe { libc::prctl(libc::PR_SET_TSC, libc::PR_TSC_SIGSEGV) } == 0 {
            assert!(!stands());
            fails_nowhere();
            assert!(FaultGuard::hold().is_some());
        }
    });
    assert_eq!(ended, Some(0));
}
