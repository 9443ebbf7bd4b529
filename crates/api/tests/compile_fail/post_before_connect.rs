//! E0599: a queue pair that isn't connected takes no requests.
use ferroce::Buffer;
use ferroce::verbs::{Reliable, Send, Setup};

pub fn f(setup: &mut Setup<Reliable>, buffer: Buffer) {
    let _ = (setup.number(), Send::new(buffer));
    let _ = setup.post(1, Send::new(())); // WRONG
}
