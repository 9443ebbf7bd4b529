//! E0382: a shared receive queue that is destroyed takes no receives.
use ferroce::verbs::Srq;

pub fn f(srq: Srq) -> usize {
    let outstanding = srq.destroy().unwrap();
    let _ = srq.recv(1, ()); // WRONG
    outstanding.len()
}
