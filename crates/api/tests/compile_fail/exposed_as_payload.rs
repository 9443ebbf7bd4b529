//! E0277: exposed memory isn't sent, since peers change it.
use ferroce::{Exposed, rights};
use ferroce::verbs::Send;

pub fn f(exposed: Exposed<rights::Write>) {
    let _ = exposed.len();
    let _ = Send::new(exposed); // WRONG
}
