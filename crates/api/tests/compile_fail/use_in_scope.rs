//! E0502: memory that a scope writes isn't read before its end.
use ferroce::verbs::{Cq, RcQp};

pub fn f(qp: &mut RcQp, cq: &mut Cq) -> u8 {
    let mut into = [0; 8];
    let _ = qp.scope(cq, |scope| {
        let _ = scope.recv(&mut into);
        assert_eq!(into[0], 0); // WRONG
    });
    into[0]
}
