//! Fields of a message at their offsets in the specification's tables, most significant byte first.
//!
//! The places are constants within the message, so nothing here is out of bounds.

/// Bytes of a message: a MAD without its header.
pub(super) const DATA_LEN: usize = 232;

/// A message's bytes.
pub(super) type Data = [u8; DATA_LEN];

pub(super) fn bytes<const N: usize>(data: &Data, at: usize) -> [u8; N] {
    core::array::from_fn(|i| data[at + i])
}

pub(super) fn put<const N: usize>(data: &mut Data, at: usize, value: [u8; N]) {
    data[at..at + N].copy_from_slice(&value);
}

pub(super) fn u16_at(data: &Data, at: usize) -> u16 {
    u16::from_be_bytes(bytes(data, at))
}

pub(super) fn u24_at(data: &Data, at: usize) -> u32 {
    let [a, b, c] = bytes(data, at);
    u32::from_be_bytes([0, a, b, c])
}

pub(super) fn u32_at(data: &Data, at: usize) -> u32 {
    u32::from_be_bytes(bytes(data, at))
}

pub(super) fn u64_at(data: &Data, at: usize) -> u64 {
    u64::from_be_bytes(bytes(data, at))
}

pub(super) fn put_u16(data: &mut Data, at: usize, value: u16) {
    put(data, at, value.to_be_bytes());
}

/// The low 24 bits.
pub(super) fn put_u24(data: &mut Data, at: usize, value: u32) {
    let [_, a, b, c] = value.to_be_bytes();
    put(data, at, [a, b, c]);
}

pub(super) fn put_u32(data: &mut Data, at: usize, value: u32) {
    put(data, at, value.to_be_bytes());
}

pub(super) fn put_u64(data: &mut Data, at: usize, value: u64) {
    put(data, at, value.to_be_bytes());
}
