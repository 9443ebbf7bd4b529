//! E0499: one completion is lent at a time.
use ferroce::verbs::Cq;

pub fn f(cq: &mut Cq) {
    let mut completions = cq.poll().unwrap();
    let first = completions.next();
    let _ = completions.next(); // WRONG
    drop(first);
}
