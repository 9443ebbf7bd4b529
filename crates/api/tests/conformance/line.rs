//! A channel between two programs for what they exchange besides RDMA, in each setting.

use ferroce::sim::{Receiver, Sender};
#[cfg(any(feature = "native", feature = "system"))]
use ferroce_tests::helper::{self, Helper};
#[cfg(any(feature = "native", feature = "system"))]
use std::sync::mpsc;

/// One end of a line between two programs.
pub trait Line {
    fn tell(&mut self, message: &[u8]);
    /// The next message. `None`: the other program has ended.
    fn hear(&mut self) -> Option<Vec<u8>>;

    /// As [`Line::hear`], of a program that goes on.
    fn expect<const N: usize>(&mut self) -> [u8; N] {
        self.hear().expect("the other program has ended").try_into().expect("a message of another length")
    }

    /// Both programs have come this far.
    fn meet(&mut self) {
        self.tell(b"here");
        assert_eq!(&self.expect(), b"here");
    }
}

/// Between programs of a simulation.
pub struct Simulated(pub Sender<Vec<u8>>, pub Receiver<Vec<u8>>);

impl Line for Simulated {
    fn tell(&mut self, message: &[u8]) {
        self.0.send(message.to_vec());
    }

    fn hear(&mut self) -> Option<Vec<u8>> {
        self.1.recv()
    }
}

/// Between threads.
#[cfg(any(feature = "native", feature = "system"))]
pub struct Threads(pub mpsc::Sender<Vec<u8>>, pub mpsc::Receiver<Vec<u8>>);

#[cfg(any(feature = "native", feature = "system"))]
impl Threads {
    pub fn pair() -> [Self; 2] {
        let ((to_b, at_b), (to_a, at_a)) = (mpsc::channel(), mpsc::channel());
        [Self(to_b, at_a), Self(to_a, at_b)]
    }
}

#[cfg(any(feature = "native", feature = "system"))]
impl Line for Threads {
    fn tell(&mut self, message: &[u8]) {
        let _ = self.0.send(message.to_vec());
    }

    fn hear(&mut self) -> Option<Vec<u8>> {
        self.1.recv().ok()
    }
}

#[cfg(any(feature = "native", feature = "system"))]
pub fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(any(feature = "native", feature = "system"))]
pub fn from_hex(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap()).collect()
}

/// From the test to a helper's process.
#[cfg(any(feature = "native", feature = "system"))]
impl Line for Helper {
    fn tell(&mut self, message: &[u8]) {
        Helper::tell(self, &to_hex(message));
    }

    fn hear(&mut self) -> Option<Vec<u8>> {
        Some(from_hex(&self.answer()))
    }
}

/// In a helper's process.
#[cfg(any(feature = "native", feature = "system"))]
pub struct Standard;

#[cfg(any(feature = "native", feature = "system"))]
impl Line for Standard {
    fn tell(&mut self, message: &[u8]) {
        helper::answer(&to_hex(message));
    }

    fn hear(&mut self) -> Option<Vec<u8>> {
        let mut line = String::new();
        (std::io::stdin().read_line(&mut line).unwrap() > 0).then(|| from_hex(line.trim_end()))
    }
}
