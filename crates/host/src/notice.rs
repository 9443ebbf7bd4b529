//! What a guest asks the holder of an address, and what it is answered: datagrams to the names of slots. Frozen, like
//! the names.

use super::names::USABLE;
use ferroce_types::HostAddr;

const MAGIC: [u8; 4] = *b"FRCN";
/// Magic, kind, three reserved bytes, address (16, 4 scope), slot, two reserved bytes, steering values (u64).
const LENGTH: usize = 4 + 4 + 20 + 4 + 8;

/// A notice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Notice {
    pub(super) kind: NoticeKind,
    pub(super) address: HostAddr,
    /// Of the sender, which takes the answer.
    pub(super) slot: u16,
    /// A bit for each steering value whose socket is to be read for a while.
    pub(super) steerings: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NoticeKind {
    /// Has the process the sockets of the address? If so, let it read these.
    Ask = 1,
    /// It has, and does.
    Have = 2,
}

impl Notice {
    pub(super) fn emit(&self) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = self.kind as u8;
        bytes[8..24].copy_from_slice(&self.address.gid());
        bytes[24..28].copy_from_slice(&self.address.scope_id().to_ne_bytes());
        bytes[28..30].copy_from_slice(&self.slot.to_ne_bytes());
        bytes[32..].copy_from_slice(&self.steerings.to_ne_bytes());
        bytes
    }

    /// `None`: this is something else.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; LENGTH] =
            bytes.try_into().ok().filter(|bytes: &&[u8; LENGTH]| bytes[..4] == MAGIC)?;
        let kind = match bytes[4] {
            1 => NoticeKind::Ask,
            2 => NoticeKind::Have,
            _ => return None,
        };
        let scope = u32::from_ne_bytes(*bytes[24..].first_chunk()?);
        let slot = u16::from_ne_bytes(*bytes[28..].first_chunk()?);
        Some(Self {
            kind,
            address: HostAddr::from_gid(*bytes[8..].first_chunk()?, scope),
            slot: Some(slot).filter(|slot| USABLE.contains(slot))?,
            steerings: u64::from_ne_bytes(*bytes[32..].first_chunk()?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_round_trip_and_others_are_refused() {
        let address = HostAddr::new("fe80::1".parse().unwrap(), 9);
        let notice = Notice { kind: NoticeKind::Ask, address, slot: 4094, steerings: 1 << 63 | 1 };
        let bytes = notice.emit();
        assert_eq!(Notice::parse(&bytes), Some(notice));
        assert_eq!(Notice::parse(&bytes[1..]), None);
        for (place, value) in [(0, b'X'), (4, 3), (29, 0xff)] {
            let mut bad = bytes;
            bad[place] = value;
            assert_eq!(Notice::parse(&bad), None, "byte {place}");
        }
    }
}
