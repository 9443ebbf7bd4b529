//! Bytes that an adapter has received and not yet placed.

use ferroce_types::Sge;

/// Where bytes go.
#[derive(Debug)]
pub(crate) enum Target {
    /// To memory of the program's own requests.
    Local(Vec<Sge>, u64),
    /// To exposed memory.
    Remote(u32, u64),
}

/// Bytes that wait to be placed.
#[derive(Debug)]
pub(crate) struct Unplaced {
    pub(crate) target: Target,
    pub(crate) bytes: Vec<u8>,
}

impl Unplaced {
    /// Whether both are for the same bytes.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        let overlap = |a: u64, b: u64| a < b + other.bytes.len() as u64 && b < a + self.bytes.len() as u64;
        match (&self.target, &other.target) {
            (Target::Remote(_, a), Target::Remote(_, b)) => overlap(*a, *b),
            // A receive is used again after an unreliable message of which a part was lost.
            (Target::Local(a, a_offset), Target::Local(b, b_offset)) => {
                let addresses = |sges: &[Sge]| sges.first().map(|sge| sge.addr);
                addresses(a) == addresses(b) && overlap(*a_offset, *b_offset)
            }
            _ => false,
        }
    }
}
