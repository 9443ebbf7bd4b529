//! E0382: memory that is posted belongs to the shared receive queue.
use ferroce::Buffer;
use ferroce::verbs::Srq;

pub fn f(srq: &Srq, buffer: Buffer) {
    let _ = srq.recv(1, buffer);
    let _ = buffer.len(); // WRONG
}
