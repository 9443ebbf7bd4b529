//! E0499: two threads don't post to one queue pair at once.
use ferroce::verbs::{RcQp, Send};

pub fn f(qp: &mut RcQp) {
    std::thread::scope(|scope| {
        scope.spawn(|| drop(qp.post(1, Send::new(()))));
        scope.spawn(|| drop(qp.post(2, Send::new(())))); // WRONG
    });
}
