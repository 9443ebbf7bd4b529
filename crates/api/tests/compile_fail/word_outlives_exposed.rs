//! E0505: a word doesn't outlive the exposed memory.
use ferroce::{Exposed, rights};

pub fn f(exposed: Exposed<rights::Atomic>) {
    let word = exposed.word(0);
    let _ = exposed.revoke();
    word.store(1); // WRONG
}
