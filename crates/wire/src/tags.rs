//! The headers of messages to a tag-matching SRQ, at the front of the payload of a SEND (ibv_post_srq_ops(3),
//! `struct ibv_tmh` and `struct ibv_rvh`).

/// What a message is to a tag-matching SRQ.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum TagOperation {
    /// Isn't matched.
    NoTag = 0,
    /// Asks the receiver to fetch the data by an RDMA READ.
    Rendezvous = 1,
    /// Reports that the data has been fetched.
    Fin = 2,
    /// Carries its data.
    Eager = 3,
}

/// Tag-matching header, 16 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tmh {
    /// What the message is.
    pub operation: TagOperation,
    /// The sender's own number, in host byte order.
    pub app_ctx: u32,
    /// What is matched.
    pub tag: u64,
}

impl Tmh {
    /// Bytes of it.
    pub const LEN: usize = 16;

    /// Reads it. The three reserved bytes aren't looked at; `None` for an operation that doesn't exist.
    #[must_use]
    pub fn parse(bytes: &[u8; Self::LEN]) -> Option<Self> {
        let [operation, _, _, _, c3, c2, c1, c0, tag @ ..] = *bytes;
        let operation = match operation {
            0 => TagOperation::NoTag,
            1 => TagOperation::Rendezvous,
            2 => TagOperation::Fin,
            3 => TagOperation::Eager,
            _ => return None,
        };
        Some(Self { operation, app_ctx: u32::from_be_bytes([c3, c2, c1, c0]), tag: u64::from_be_bytes(tag) })
    }

    /// Its bytes.
    #[must_use]
    pub fn emit(&self) -> [u8; Self::LEN] {
        let [c3, c2, c1, c0] = self.app_ctx.to_be_bytes();
        let [t7, t6, t5, t4, t3, t2, t1, t0] = self.tag.to_be_bytes();
        [self.operation as u8, 0, 0, 0, c3, c2, c1, c0, t7, t6, t5, t4, t3, t2, t1, t0]
    }
}

/// Rendezvous header, 16 bytes: where the data are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rvh {
    /// Virtual address.
    pub va: u64,
    /// Remote key.
    pub rkey: u32,
    /// Bytes.
    pub len: u32,
}

impl Rvh {
    /// Bytes of it.
    pub const LEN: usize = 16;

    /// Reads it.
    #[must_use]
    pub fn parse(bytes: &[u8; Self::LEN]) -> Self {
        let [v7, v6, v5, v4, v3, v2, v1, v0, k3, k2, k1, k0, len @ ..] = *bytes;
        Self {
            va: u64::from_be_bytes([v7, v6, v5, v4, v3, v2, v1, v0]),
            rkey: u32::from_be_bytes([k3, k2, k1, k0]),
            len: u32::from_be_bytes(len),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_lie_as_in_tm_types_h() {
        let bytes = [3, 9, 9, 9, 0, 0, 0, 7, 1, 2, 3, 4, 5, 6, 7, 8];
        let tmh = Tmh { operation: TagOperation::Eager, app_ctx: 7, tag: 0x0102_0304_0506_0708 };
        assert_eq!(Tmh::parse(&bytes), Some(tmh));
        assert_eq!(tmh.emit(), [3, 0, 0, 0, 0, 0, 0, 7, 1, 2, 3, 4, 5, 6, 7, 8]);
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 1, 0, 0, 1, 0, 0];
        assert_eq!(Rvh::parse(&bytes), Rvh { va: 0x0102_0304_0506_0708, rkey: 0x100, len: 0x1_0000 });
    }

    #[test]
    fn every_operation_comes_back_and_others_are_none() {
        for operation in 0..=255u8 {
            let mut bytes = [0; Tmh::LEN];
            bytes[0] = operation;
            assert_eq!(Tmh::parse(&bytes).map(|tmh| tmh.emit()), (operation < 4).then_some(bytes));
        }
    }
}
