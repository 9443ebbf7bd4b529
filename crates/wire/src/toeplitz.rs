//! The Toeplitz hash, by which receive-side scaling spreads packets over queues.

/// Bytes of a key.
pub const KEY_LEN: usize = 40;
/// The longest input: two IPv6 addresses and two ports, and an SPI.
pub const MAX_INPUT: usize = KEY_LEN - 4;

/// The hash of `input`, of which [`MAX_INPUT`] bytes count: for each bit that is set, from the first on, the 32 bits of the
/// key that begin at its place.
#[must_use]
pub fn hash(key: &[u8; KEY_LEN], input: &[u8]) -> u32 {
    let mut result = 0;
    let (mut window, rest) = match key.split_first_chunk::<4>() {
        Some((first, rest)) => (u32::from_be_bytes(*first), rest),
        None => (0, &key[..0]),
    };
    for (byte, next) in input.iter().zip(rest) {
        for bit in (0..8).rev() {
            if byte >> bit & 1 != 0 {
                result ^= window;
            }
            window = window << 1 | u32::from(next >> bit & 1);
        }
    }
    result
}
