//! E0200: a promise about memory is `unsafe`.
use std::ptr::NonNull;

pub struct Mine(pub Vec<u8>);

impl Mine {
    pub fn bytes(&mut self) -> NonNull<[u8]> {
        NonNull::from(&mut self.0[..])
    }
}

impl ferroce::Memory for Mine { fn bytes(&mut self) -> NonNull<[u8]> { NonNull::from(&mut self.0[..]) } } // WRONG
