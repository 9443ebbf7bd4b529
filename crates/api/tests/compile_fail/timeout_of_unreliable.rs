//! E0599: an unreliable connection repeats nothing.
use ferroce::verbs::{Cq, Domain};
use std::time::Duration;

pub fn f(domain: &Domain, cq: &Cq) {
    let _ = domain.rc(cq).timeout(Duration::from_millis(20), 3).build();
    let _ = domain.uc(cq).timeout(Duration::from_millis(20), 3).build(); // WRONG
}
