//! E0499: a completion queue isn't polled while completions are lent.
use ferroce::verbs::Cq;

pub fn f(cq: &mut Cq) {
    let mut completions = cq.poll().unwrap();
    let _ = cq.poll().unwrap();
    let _ = completions.next(); // WRONG
}
