//! E0277: a token that permits writing doesn't permit reading.
use ferroce::{Buffer, Remote, rights};
use ferroce::verbs::{Read, Write};

pub fn f(buffer: Buffer, other: Buffer, token: Remote<rights::Write>) {
    let _ = Write::new(buffer, token);
    let _ = Read::new(other, token); // WRONG
}
