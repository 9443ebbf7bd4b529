//! E0277: a token that permits reading doesn't permit writing.
use ferroce::{Buffer, Remote, rights};
use ferroce::verbs::{Read, Write};

pub fn f(buffer: Buffer, other: Buffer, token: Remote<rights::Read>) {
    let _ = Read::new(buffer, token);
    let _ = Write::new(other, token); // WRONG
}
