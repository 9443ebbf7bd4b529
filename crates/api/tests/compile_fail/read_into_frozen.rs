//! E0277: nothing is read into a frozen buffer.
use ferroce::{Frozen, Remote, rights};
use ferroce::verbs::{Read, Send};

pub fn f(frozen: Frozen, token: Remote<rights::Read>) {
    let _ = Send::new(frozen.clone());
    let _ = Read::new(frozen, token); // WRONG
}
