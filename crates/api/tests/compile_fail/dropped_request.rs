//! unused_must_use: a request that isn't posted does nothing.
use ferroce::Buffer;
use ferroce::verbs::Send;

pub fn f(buffer: Buffer) {
    let send = Send::new(buffer);
    let _ = send.into_payload();
    Send::new(()); // WRONG
}
