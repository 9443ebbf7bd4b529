//! Values that one guard at a time has for itself.

use ferroce_buffers::{Parked, Reset};

#[derive(Debug, Default)]
struct Text(String);

impl Reset for Text {
    fn reset(&mut self) {
        self.0.clear();
    }
}

#[test]
fn a_value_is_lent_again_in_its_place() {
    let mut parked = Parked::<Text>::default();
    let mut first = parked.lend();
    first.0.push_str("first");
    let place = &raw const *first;
    drop(first);
    let second = parked.lend();
    assert!(second.0.is_empty() && second.0.capacity() >= 5, "it was reset, not made anew");
    assert_eq!(place, &raw const *second);
}

#[test]
fn two_guards_have_two_values() {
    let mut parked = Parked::<Text>::default();
    let mut first = parked.lend();
    first.0.push_str("first");
    let mut second = parked.lend();
    second.0.push_str("second");
    std::mem::forget(parked.lend());
    assert!(parked.lend().0.is_empty(), "that of a forgotten guard isn't lent again");
    drop(parked);
    assert_eq!((&*first.0, &*second.0), ("first", "second"));
}

#[test]
fn a_guard_ends_on_another_thread() {
    let mut parked = Parked::<Text>::default();
    let threads: Vec<_> = (0..100)
        .map(|round| {
            let mut guard = parked.lend();
            assert!(guard.0.is_empty());
            guard.0 = round.to_string();
            std::thread::spawn(move || assert_eq!(guard.0, round.to_string()))
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}
