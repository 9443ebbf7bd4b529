//! E0277: a connection has one peer, so it takes no request with an address.
use ferroce::verbs::{Address, RcQp, Send, SendTo};

pub fn f(qp: &mut RcQp, to: &Address) {
    let _ = qp.post(1, Send::new(()));
    let _ = SendTo::new((), to);
    let _ = qp.post(2, SendTo::new((), to)); // WRONG
}
