//! unused_must_use: a batch that isn't posted does nothing.
use ferroce::verbs::RcQp;

pub fn f(qp: &mut RcQp) {
    qp.batch().post();
    qp.batch(); // WRONG
}
