//! E0277: reading and writing don't permit atomics.
use ferroce::{Remote, rights};
use ferroce::verbs::FetchAdd;

pub fn f(all: Remote<rights::All>, token: Remote<rights::ReadWrite>) {
    let _ = FetchAdd::new(all, 1);
    let _ = FetchAdd::new(token, 1); // WRONG
}
