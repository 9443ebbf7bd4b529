//! E0133: a borrow of exposed memory is the caller's responsibility.
use ferroce::{Exposed, rights};

pub fn f(exposed: &Exposed<rights::Write>) -> u8 {
    let mut byte = [0];
    exposed.load(0, &mut byte);
    byte[0] = exposed.quiet(..)[0]; // WRONG
    byte[0]
}
