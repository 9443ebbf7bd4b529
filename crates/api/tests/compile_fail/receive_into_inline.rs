//! E0277: nothing is received into inline data.
use ferroce::Inline;
use ferroce::verbs::RcQp;

pub fn f(qp: &mut RcQp) {
    let _ = Inline::from(b"");
    let _ = qp.recv(1, Inline::from(b"")); // WRONG
}
