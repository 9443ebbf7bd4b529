//! E0277: a datagram needs an address.
use ferroce::verbs::{Address, Send, SendTo, UdQp};

pub fn f(qp: &mut UdQp, to: &Address) {
    let _ = qp.post(1, SendTo::new((), to));
    let _ = Send::new(());
    let _ = qp.post(2, Send::new(())); // WRONG
}
