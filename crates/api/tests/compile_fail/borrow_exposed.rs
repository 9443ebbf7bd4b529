//! E0608: exposed memory isn't borrowed, since peers change it.
use ferroce::{Exposed, rights};

pub fn f(exposed: &Exposed<rights::Write>) {
    exposed.store(0, &[1]);
    let _ = &exposed[0]; // WRONG
}
