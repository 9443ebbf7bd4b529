//! E0277: a payload is memory that the crate knows.
use ferroce::Buffer;
use ferroce::verbs::Send;

pub struct Mine(pub Buffer);

pub fn f(buffer: Buffer) {
    let mine = Mine(buffer);
    let _ = Send::new(mine.0);
    let _ = Send::new("text"); // WRONG
}
