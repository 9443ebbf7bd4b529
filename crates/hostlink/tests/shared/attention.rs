//! Attention: a look counts for a while, and no longer once the watch is over.

use crate::explore;
use crate::protocol::Attention;
use loom::thread;
use std::sync::Arc;

#[test]
fn a_look_counts_for_a_while_and_work_for_longer() {
    explore(3, || {
        let attention = Arc::new(Attention::default());
        let is_given = |now| attention.is_given(now, 10, 100);
        assert!(!is_given(0) && !is_given(5));
        let watcher = thread::spawn({
            let attention = attention.clone();
            move || {
                attention.looks(1000);
                attention.works(1001);
            }
        });
        // Nothing, the look, or the work.
        assert!(!is_given(1101));
        watcher.join().unwrap();
        assert!(is_given(1100) && !is_given(1101));
        // Processors may disagree by some ticks.
        attention.looks(1000);
        assert!(is_given(995) && is_given(1009) && !is_given(1010));
        attention.looks(u64::MAX >> 1);
        assert!(is_given(u64::MAX >> 1));
        attention.ends();
        assert!(!is_given(u64::MAX >> 1) && !is_given(0));
    });
}
