//! Attributes of a QP: their values, bits and names.

mod rules;
mod static_rate;

pub use rules::{AttrRules, check, check_av, check_rate};
pub use static_rate::STATIC_RATES;
pub use static_rate::{limit_of, stricter};

use ferroce_types::{Access, QpState};

/// Attribute bits of `enum ibv_qp_attr_mask`.
#[allow(missing_docs)]
pub mod mask {
    pub const STATE: u32 = 1 << 0;
    pub const CUR_STATE: u32 = 1 << 1;
    pub const EN_SQD_ASYNC_NOTIFY: u32 = 1 << 2;
    pub const ACCESS_FLAGS: u32 = 1 << 3;
    pub const PKEY_INDEX: u32 = 1 << 4;
    pub const PORT: u32 = 1 << 5;
    pub const QKEY: u32 = 1 << 6;
    pub const AV: u32 = 1 << 7;
    pub const PATH_MTU: u32 = 1 << 8;
    pub const TIMEOUT: u32 = 1 << 9;
    pub const RETRY_CNT: u32 = 1 << 10;
    pub const RNR_RETRY: u32 = 1 << 11;
    pub const RQ_PSN: u32 = 1 << 12;
    pub const MAX_QP_RD_ATOMIC: u32 = 1 << 13;
    pub const ALT_PATH: u32 = 1 << 14;
    pub const MIN_RNR_TIMER: u32 = 1 << 15;
    pub const SQ_PSN: u32 = 1 << 16;
    pub const MAX_DEST_RD_ATOMIC: u32 = 1 << 17;
    pub const PATH_MIG_STATE: u32 = 1 << 18;
    pub const CAP: u32 = 1 << 19;
    pub const DEST_QPN: u32 = 1 << 20;
    pub const RATE_LIMIT: u32 = 1 << 25;
}

const NAMES: [(u32, &str); 22] = [
    (mask::STATE, "IBV_QP_STATE"),
    (mask::CUR_STATE, "IBV_QP_CUR_STATE"),
    (mask::EN_SQD_ASYNC_NOTIFY, "IBV_QP_EN_SQD_ASYNC_NOTIFY"),
    (mask::ACCESS_FLAGS, "IBV_QP_ACCESS_FLAGS"),
    (mask::PKEY_INDEX, "IBV_QP_PKEY_INDEX"),
    (mask::PORT, "IBV_QP_PORT"),
    (mask::QKEY, "IBV_QP_QKEY"),
    (mask::AV, "IBV_QP_AV"),
    (mask::PATH_MTU, "IBV_QP_PATH_MTU"),
    (mask::TIMEOUT, "IBV_QP_TIMEOUT"),
    (mask::RETRY_CNT, "IBV_QP_RETRY_CNT"),
    (mask::RNR_RETRY, "IBV_QP_RNR_RETRY"),
    (mask::RQ_PSN, "IBV_QP_RQ_PSN"),
    (mask::MAX_QP_RD_ATOMIC, "IBV_QP_MAX_QP_RD_ATOMIC"),
    (mask::ALT_PATH, "IBV_QP_ALT_PATH"),
    (mask::MIN_RNR_TIMER, "IBV_QP_MIN_RNR_TIMER"),
    (mask::SQ_PSN, "IBV_QP_SQ_PSN"),
    (mask::MAX_DEST_RD_ATOMIC, "IBV_QP_MAX_DEST_RD_ATOMIC"),
    (mask::PATH_MIG_STATE, "IBV_QP_PATH_MIG_STATE"),
    (mask::CAP, "IBV_QP_CAP"),
    (mask::DEST_QPN, "IBV_QP_DEST_QPN"),
    (mask::RATE_LIMIT, "IBV_QP_RATE_LIMIT"),
];

/// The C names of the attributes in `bits`, for messages.
#[must_use]
pub fn names(bits: u32) -> String {
    let mut names: Vec<String> =
        NAMES.iter().filter(|(bit, _)| bits & bit != 0).map(|&(_, name)| name.to_owned()).collect();
    let unknown = bits & !NAMES.iter().fold(0, |all, (bit, _)| all | bit);
    if unknown != 0 {
        names.push(format!("unknown bits {unknown:#x}"));
    }
    names.join(" | ")
}

/// An address vector (`struct ibv_ah_attr`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AddressVector {
    /// A GRH is given: packets go to the address of the GID. Without one, they go to the LID, which only ports of InfiniBand have.
    pub is_global: bool,
    /// Destination GID.
    pub dgid: [u8; 16],
    /// Index of the source in the GID table. By a LID the source is the port's address.
    pub sgid_index: u8,
    /// Flow label, 20 bits: that of IPv6 packets.
    pub flow_label: u32,
    /// Hop limit; 0 is taken as 64.
    pub hop_limit: u8,
    /// Traffic class: the IP header's TOS byte.
    pub traffic_class: u8,
    /// Service level (kept, not used).
    pub sl: u8,
    /// Destination LID.
    pub dlid: u16,
    /// Path bits (kept, not used: a port has one LID).
    pub src_path_bits: u8,
    /// Static rate ([`STATIC_RATES`]): at most this is sent to the address.
    pub static_rate: u8,
    /// Port, 1.
    pub port_num: u8,
}

/// `struct ibv_qp_attr` without what has no meaning here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // the fields are those of ibv_modify_qp(3)
pub struct QpAttr {
    pub state: QpState,
    pub cur_state: QpState,
    /// `enum ibv_mtu`: 1 (256) to 5 (4096).
    pub path_mtu: u8,
    /// 0 migrated, 1 rearm, 2 armed.
    pub path_mig_state: u8,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qpn: u32,
    pub access: Access,
    pub av: AddressVector,
    pub pkey_index: u16,
    pub en_sqd_async_notify: bool,
    pub sq_draining: bool,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    /// Thousands of bits a second; 0 means no limit.
    pub rate_limit: u32,
    /// Bytes at once under a limit; 0 leaves it to the adapter.
    pub max_burst: u32,
}

impl Default for QpAttr {
    fn default() -> Self {
        Self {
            state: QpState::Reset,
            cur_state: QpState::Reset,
            path_mtu: 0,
            path_mig_state: 0,
            qkey: 0,
            rq_psn: 0,
            sq_psn: 0,
            dest_qpn: 0,
            access: Access::default(),
            av: AddressVector::default(),
            pkey_index: 0,
            en_sqd_async_notify: false,
            sq_draining: false,
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
            min_rnr_timer: 0,
            port_num: 0,
            timeout: 0,
            retry_cnt: 0,
            rnr_retry: 0,
            rate_limit: 0,
            max_burst: 0,
        }
    }
}

/// The highest limit of what a QP sends, in thousands of bits a second.
pub const MAX_RATE: u32 = 100_000_000;
