//! E0597: memory of a scope is longer there than the scope.
use ferroce::verbs::{Cq, RcQp};

pub fn f(qp: &mut RcQp, cq: &mut Cq) {
    let _ = qp.scope(cq, |scope| {
        let local = [0; 8];
        let _ = scope.send(&local); // WRONG
        drop(local);
    });
}
