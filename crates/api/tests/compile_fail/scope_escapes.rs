//! E0521: a scope isn't used after its end.
use ferroce::verbs::{Cq, RcQp};
use std::fmt::Debug;

pub fn f(qp: &mut RcQp, cq: &mut Cq) {
    let mut outside: Option<&'static dyn Debug> = None;
    let _ = qp.scope(cq, |scope| {
        let _ = scope.finish();
        outside = Some(scope); // WRONG
    });
    let _ = outside.take();
}
