//! CRC-32 (the polynomial of Ethernet and zlib) as arithmetic of polynomials over GF(2).
//!
//! The CRC of a message is a linear function of its bits, up to a constant. So what a change of a few known bytes does
//! to the CRC can be looked up, and what may have caused a difference can be worked out backwards.
//! A polynomial of degree below 32 is a `u32` whose *highest* bit is the coefficient of x^0.

/// The polynomial without its x^32.
const POLY: u32 = 0xedb8_8320;
/// x^0.
const ONE: u32 = 1 << 31;

/// Bytes from which on carry-less multiplication pays.
const LONG: usize = 64;

/// `[n][b]`: what the byte `b` makes of a state of 0 when `n` zero bytes follow it.
static BEHIND: [[u32; 256]; 8] = {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut state = byte as u32;
        let mut n = 0;
        while n < 8 {
            let mut bit = 0;
            while bit < 8 {
                state = times_x(state);
                bit += 1;
            }
            tables[n][byte] = state;
            n += 1;
        }
        byte += 1;
    }
    tables
};

/// The CRC-32 of what `crc` is the CRC-32 of, followed by `bytes`. That of nothing is 0.
#[must_use]
#[inline]
pub fn extend(crc: u32, bytes: &[u8]) -> u32 {
    if bytes.len() < LONG { extend_short(crc, bytes) } else { extend_long(crc, bytes) }
}

/// As [`extend`]. Apart, so that short messages don't save the registers that it needs.
#[inline(never)]
fn extend_long(crc: u32, bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(crc);
    hasher.update(bytes);
    hasher.finalize()
}

/// As [`extend`], of bytes that are too few for the setup of anything else.
#[inline]
fn extend_short(crc: u32, bytes: &[u8]) -> u32 {
    let (mut crc, mut bytes) = (crc, bytes);
    while let Some((word, rest)) = bytes.split_first_chunk() {
        (crc, bytes) = (extend_word(crc, u64::from_le_bytes(*word)), rest);
    }
    if let Some((half, rest)) = bytes.split_first_chunk() {
        (crc, bytes) = (extend_half(crc, u32::from_le_bytes(*half)), rest);
    }
    for &byte in bytes {
        let state = !crc;
        crc = !(state >> 8 ^ behind(0, state as u8 ^ byte));
    }
    crc
}

/// As [`extend`], of the eight bytes of a little-endian number.
#[inline]
pub(crate) fn extend_word(crc: u32, word: u64) -> u32 {
    let [a, b, c, d, e, f, g, h] = (u64::from(!crc) ^ word).to_le_bytes();
    let front = behind(7, a) ^ behind(6, b) ^ behind(5, c) ^ behind(4, d);
    !(front ^ behind(3, e) ^ behind(2, f) ^ behind(1, g) ^ behind(0, h))
}

/// As [`extend`], of the four bytes of a little-endian number.
#[inline]
pub(crate) fn extend_half(crc: u32, half: u32) -> u32 {
    let [a, b, c, d] = (!crc ^ half).to_le_bytes();
    !(behind(3, a) ^ behind(2, b) ^ behind(1, c) ^ behind(0, d))
}

#[inline]
fn behind(zeros: usize, byte: u8) -> u32 {
    BEHIND[zeros][usize::from(byte)]
}

/// The two factors with which carry-less multiplication moves 16 bytes `bits` bits up in a message: the lower eight bytes are multiplied by
/// the first one, and the upper eight by the second one. `bits` is a multiple of 128.
#[must_use]
pub const fn fold_by(bits: usize) -> [u64; 2] {
    // Products of reflected numbers are one bit too low.
    [(x_to_8((bits + 32) / 8) as u64) << 1, (x_to_8((bits - 32) / 8) as u64) << 1]
}

const fn times_x(a: u32) -> u32 {
    if a & 1 == 0 { a >> 1 } else { (a >> 1) ^ POLY }
}

/// The inverse of [`times_x`]: the polynomial has an x^0 term, so the shift can be undone.
const fn over_x(a: u32) -> u32 {
    if a & ONE == 0 { a << 1 } else { ((a ^ POLY) << 1) | 1 }
}

/// The product modulo the polynomial.
pub(crate) const fn mul(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    let mut i = 0;
    while i < 32 {
        product ^= b & 0u32.wrapping_sub(a >> (31 - i) & 1);
        b = (b >> 1) ^ (POLY & 0u32.wrapping_sub(b & 1));
        i += 1;
    }
    product
}

/// x^(8·bytes).
const fn x_to_8(bytes: usize) -> u32 {
    let mut a = ONE;
    let mut i = 0;
    while i < bytes * 8 {
        a = times_x(a);
        i += 1;
    }
    a
}

/// What the two bytes of a big-endian field do to a CRC that has gone `after` bytes beyond the field:
/// `[0]` by its high byte, `[1]` by its low byte.
pub(crate) struct FieldEffect([[u32; 256]; 2]);

impl FieldEffect {
    pub(crate) const fn new(after: usize) -> Self {
        let by = x_to_8(after + 2);
        let mut table = [[0; 256]; 2];
        let mut i = 0;
        while i < 256 {
            // The byte that comes first is in the low bits, where the CRC's reflected order takes it in.
            table[0][i] = mul(i as u32, by);
            table[1][i] = mul((i as u32) << 8, by);
            i += 1;
        }
        Self(table)
    }

    /// The difference between the CRC with `value` in the field and the CRC with 0 in it.
    pub(crate) const fn of(&self, value: u16) -> u32 {
        let [high, low] = value.to_be_bytes();
        self.0[0][high as usize] ^ self.0[1][low as usize]
    }
}

const fn inverse_powers<const N: usize>(step_bits: usize) -> [u32; N] {
    let mut step = ONE;
    let mut i = 0;
    while i < step_bits {
        step = over_x(step);
        i += 1;
    }
    let mut table = [ONE; N];
    let mut i = 1;
    while i < N {
        table[i] = mul(table[i - 1], step);
        i += 1;
    }
    table
}

/// x^(-8·i).
static BACK: [u32; 256] = inverse_powers(8);
/// x^(-8·256·i): enough for any UDP datagram.
static BACK_256: [u32; 258] = inverse_powers(8 * 256);

/// The big-endian 16-bit field value that makes a difference of `difference` to a CRC which has gone `after` bytes
/// beyond the field; `None` when no value does, or `after` is longer than a datagram.
pub(crate) fn field_causing(difference: u32, after: usize) -> Option<u16> {
    let bytes = after + 2;
    let factor = mul(*BACK_256.get(bytes >> 8)?, BACK[bytes & 0xff]);
    let field = mul(difference, factor);
    u16::try_from(field).ok().map(u16::swap_bytes)
}

#[cfg(test)]
mod tests {
    use super::{
        BACK, BACK_256, FieldEffect, ONE, extend, field_causing, fold_by, mul, over_x, times_x, x_to_8,
    };

    #[test]
    fn division_by_x_undoes_multiplication() {
        for a in [1, ONE, 0xdead_beef, u32::MAX, 0x1234_5678] {
            assert_eq!(over_x(times_x(a)), a);
            assert_eq!(times_x(over_x(a)), a);
        }
    }

    #[test]
    fn tables_hold_the_inverse_powers_of_x() {
        for (i, inverse) in BACK.iter().enumerate() {
            assert_eq!(mul(*inverse, x_to_8(i)), ONE, "x^-{}", 8 * i);
        }
        for (i, inverse) in BACK_256.iter().enumerate() {
            assert_eq!(mul(*inverse, x_to_8(256 * i)), ONE, "x^-{}", 2048 * i);
        }
    }

    #[test]
    fn short_and_long_messages_have_the_crc_of_the_crc_library() {
        let bytes: [u8; 100] = core::array::from_fn(|i| (i * 37) as u8 ^ 0x5a);
        for len in 0..=bytes.len() {
            for front in 0..=len {
                let crc = extend(extend(0, &bytes[..front]), &bytes[front..len]);
                assert_eq!(crc, crc32fast::hash(&bytes[..len]), "{front} of {len} bytes");
            }
        }
    }

    #[test]
    fn a_crc_goes_on_where_it_ended() {
        assert_eq!(extend(0, b"123456789"), 0xcbf4_3926);
        assert_eq!(extend(extend(0, b"1234"), b"56789"), 0xcbf4_3926);
        assert_eq!(extend(7, b""), 7);
    }

    /// Those of the paper on CRCs by carry-less multiplication (V. Gopal and others, 2009), which are well known.
    #[test]
    fn bytes_are_moved_by_the_known_factors() {
        assert_eq!(fold_by(512), [0x1_5444_2bd4, 0x1_c6e4_1596]);
        assert_eq!(fold_by(128), [0x1_7519_97d0, 0x0_ccaa_009e]);
    }

    #[test]
    fn field_effect_is_what_the_crc_library_computes() {
        const EFFECT: FieldEffect = FieldEffect::new(22);
        for value in (0..=u16::MAX).step_by(257).chain([1, 0x0100, 0xff00, 0x00ff]) {
            let mut message = [0x5a; 36];
            message[12..14].fill(0);
            let zero = crc32fast::hash(&message);
            message[12..14].copy_from_slice(&value.to_be_bytes());
            assert_eq!(crc32fast::hash(&message) ^ zero, EFFECT.of(value));
        }
    }

    #[test]
    fn a_field_is_found_at_every_distance() {
        const NEAR: FieldEffect = FieldEffect::new(0);
        for after in (0..300).chain([1023, 1024, 4096 + 80, 65_535, 65_535 + 22]) {
            let difference = mul(NEAR.of(0xbeef), x_to_8(after));
            assert_eq!(field_causing(difference, after), Some(0xbeef), "{after} bytes after the field");
        }
        assert_eq!(field_causing(1, 66_048), None);
        assert_eq!(field_causing(1, usize::MAX - 2), None);
    }
}
