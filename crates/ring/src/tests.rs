use super::*;
use proptest::prelude::*;
use std::alloc::{Layout, alloc, dealloc};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A ring in memory that counts in `freed` when it is returned.
fn given<T: Default>(capacity: usize, freed: &Arc<AtomicUsize>) -> EntryRing<T> {
    let (places, size) = EntryRing::<T>::size_for(capacity);
    let layout = Layout::from_size_align(size, align_of::<T>()).unwrap();
    // SAFETY: not of size 0.
    let at = NonNull::new(unsafe { alloc(layout) }).unwrap();
    let freed = freed.clone();
    let free = move |at: NonNull<u8>| {
        freed.fetch_add(1, Ordering::Relaxed);
        // SAFETY: allocated above.
        unsafe { dealloc(at.as_ptr(), layout) };
    };
    // SAFETY: memory for as many, which `free` frees.
    unsafe { EntryRing::in_memory(at, places, Box::new(free)) }
}

#[derive(Clone, Debug)]
enum RingStep {
    Push,
    PushFront,
    Pop,
    Skip,
    RetainOdd,
    Move,
    Reset,
}

fn steps() -> impl Strategy<Value = Vec<RingStep>> {
    let step = prop_oneof![
        8 => Just(RingStep::Push),
        2 => Just(RingStep::PushFront),
        5 => Just(RingStep::Pop),
        2 => Just(RingStep::Skip),
        1 => Just(RingStep::RetainOdd),
        1 => Just(RingStep::Move),
        1 => Just(RingStep::Reset),
    ];
    prop::collection::vec(step, 0..200)
}

proptest! {
    /// Both kinds of ring contain what a `VecDeque` contains, also beyond the capacity of the program's memory, and each entry is dropped.
    #[test]
    fn a_ring_behaves_as_a_queue(steps in steps(), capacity in 1usize..20) {
        let freed = Arc::new(AtomicUsize::new(0));
        let mut made = 1;
        let entry = Rc::new(());
        {
            let mut rings = [EntryRing::<Option<(u32, Rc<()>)>>::new(), given(capacity, &freed)];
            let mut model = VecDeque::new();
            for (n, step) in (0u32..).zip(steps) {
                match step {
                    RingStep::Push => model.push_back(n),
                    RingStep::PushFront => model.push_front(n),
                    RingStep::Pop | RingStep::Skip => _ = model.pop_front(),
                    RingStep::RetainOdd => model.retain(|n| n % 2 == 1),
                    RingStep::Move => made += 1,
                    RingStep::Reset => model.clear(),
                }
                for (kind, ring) in rings.iter_mut().enumerate() {
                    match step {
                        RingStep::Push => ring.push_back(Some((n, entry.clone()))),
                        RingStep::PushFront => ring.push_front(Some((n, entry.clone()))),
                        RingStep::Pop => _ = ring.pop_front(),
                        RingStep::Skip => ring.skip_front(),
                        RingStep::RetainOdd => ring.retain(|entry| entry.as_ref().is_some_and(|(n, _)| n % 2 == 1)),
                        RingStep::Move if kind == 0 => prop_assert!(ring.move_to(EntryRing::new()).is_empty()),
                        RingStep::Move => prop_assert!(ring.move_to(given(capacity, &freed)).is_empty()),
                        RingStep::Reset => ring.reset(),
                    }
                    let number = |entry: Option<&Option<(u32, Rc<()>)>>| entry.and_then(|e| e.as_ref().map(|(n, _)| *n));
                    prop_assert_eq!(ring.len(), model.len());
                    for from in [0, 1] {
                        let held: Vec<_> = ring.iter_from(from).map(|entry| number(Some(entry)).unwrap()).collect();
                        prop_assert_eq!(held, model.iter().skip(from).copied().collect::<Vec<_>>());
                    }
                    for index in 0..=model.len() {
                        prop_assert_eq!(number(ring.get(index)), model.get(index).copied());
                        prop_assert_eq!(number(ring.get_mut(index).map(|entry| &*entry)), model.get(index).copied());
                    }
                    prop_assert_eq!(ring.is_empty(), model.is_empty());
                    prop_assert_eq!(number(ring.front()), model.front().copied());
                }
            }
            prop_assert_eq!(freed.load(Ordering::Relaxed), made - 1);
        }
        prop_assert_eq!(freed.load(Ordering::Relaxed), made);
        prop_assert_eq!(Rc::strong_count(&entry), 1);
    }
}

#[test]
fn entries_stay_in_the_memory_of_the_program_up_to_its_capacity() {
    let freed = Arc::default();
    let mut ring = given::<u64>(5, &freed);
    let range = ring.places.at.as_ptr()..ring.places.at.as_ptr().wrapping_add(8);
    for round in 0..100 {
        while ring.len() < 5 {
            let place: *mut u64 = ring.add();
            assert!(range.contains(&place));
        }
        (0..round % 5).for_each(|_| ring.skip_front());
    }
    // An owner that adds entries of its own to the program's goes beyond, and comes back with a reset.
    (0..10).for_each(|n| ring.push_back(n));
    assert!(!range.contains(&std::ptr::from_ref(ring.front().unwrap()).cast_mut()));
    ring.reset();
    let place: *mut u64 = ring.add();
    assert!(range.contains(&place));
}

#[test]
fn a_ring_has_as_many_places_as_were_needed_at_once() {
    let mut ring = EntryRing::new();
    for n in 0..1000 {
        ring.push_back(n);
        if n >= 5 {
            assert_eq!(ring.pop_front(), Some(n - 5));
        }
    }
    assert_eq!(ring.places.count, 8);
    ring.reset();
    assert_eq!((ring.places.count, ring.pop_front()), (0, None));
}
