//! E0499: a scope receives into memory once.
use ferroce::verbs::{Cq, RcQp};

pub fn f(qp: &mut RcQp, cq: &mut Cq) {
    let mut into = [0; 8];
    let _ = qp.scope(cq, |scope| {
        let _ = scope.recv(&mut into);
        let _ = scope.recv(&mut into); // WRONG
    });
}
