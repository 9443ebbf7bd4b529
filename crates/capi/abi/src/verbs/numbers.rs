//! Constants of the header, as far as the library uses them.

use std::ffi::{c_int, c_uint};

macro_rules! numbers {
    ($($ty:ty: { $($name:ident = $value:expr;)* })*) => {
        $($(pub const $name: $ty = $value;)*)*

        /// Name and value of each constant, for the comparison with the header.
        pub const NUMBERS: &[(&str, i64)] = &[$($((stringify!($name), $name as i64),)*)*];
    };
}

numbers! {
    u8: {
        IBV_RX_HASH_FUNC_TOEPLITZ = 1 << 0;
    }
    c_int: {
        IBV_NODE_CA = 1;
        IBV_FLOW_ATTR_NORMAL = 0;
        IBV_FLOW_ATTR_ALL_DEFAULT = 1;
        IBV_FLOW_ATTR_MC_DEFAULT = 2;
        IBV_FLOW_ATTR_SNIFFER = 3;
        IBV_FLOW_SPEC_ETH = 0x20;
        IBV_FLOW_SPEC_IPV4 = 0x30;
        IBV_FLOW_SPEC_IPV6 = 0x31;
        IBV_FLOW_SPEC_IPV4_EXT = 0x32;
        IBV_FLOW_SPEC_ESP = 0x34;
        IBV_FLOW_SPEC_TCP = 0x40;
        IBV_FLOW_SPEC_UDP = 0x41;
        IBV_FLOW_SPEC_VXLAN_TUNNEL = 0x50;
        IBV_FLOW_SPEC_GRE = 0x51;
        IBV_FLOW_SPEC_MPLS = 0x60;
        IBV_FLOW_SPEC_INNER = 0x100;
        IBV_FLOW_SPEC_ACTION_TAG = 0x1000;
        IBV_FLOW_SPEC_ACTION_DROP = 0x1001;
        IBV_FLOW_SPEC_ACTION_HANDLE = 0x1002;
        IBV_FLOW_SPEC_ACTION_COUNT = 0x1003;
        IBV_COUNTER_PACKETS = 0;
        IBV_COUNTER_BYTES = 1;
        IBV_WQT_RQ = 0;
        IBV_WQS_RESET = 0;
        IBV_WQS_RDY = 1;
        IBV_WQS_ERR = 2;
        IBV_TRANSPORT_IB = 0;
        IBV_ATOMIC_HCA = 1;
        IBV_MTU_256 = 1;
        IBV_MTU_512 = 2;
        IBV_MTU_1024 = 3;
        IBV_MTU_2048 = 4;
        IBV_MTU_4096 = 5;
        IBV_PORT_DOWN = 1;
        IBV_PORT_ACTIVE = 4;
        IBV_LINK_LAYER_INFINIBAND = 1;
        IBV_FORK_UNNEEDED = 2;
        IBV_GID_TYPE_ROCE_V2 = 2;

        IBV_EVENT_CQ_ERR = 0;
        IBV_EVENT_QP_FATAL = 1;
        IBV_EVENT_QP_REQ_ERR = 2;
        IBV_EVENT_QP_ACCESS_ERR = 3;
        IBV_EVENT_COMM_EST = 4;
        IBV_EVENT_SQ_DRAINED = 5;
        IBV_EVENT_DEVICE_FATAL = 8;
        IBV_EVENT_PORT_ACTIVE = 9;
        IBV_EVENT_PORT_ERR = 10;
        IBV_EVENT_LID_CHANGE = 11;
        IBV_EVENT_SRQ_ERR = 14;
        IBV_EVENT_SRQ_LIMIT_REACHED = 15;
        IBV_EVENT_WQ_FATAL = 19;
        IBV_EVENT_QP_LAST_WQE_REACHED = 16;
        IBV_EVENT_GID_CHANGE = 18;

        IBV_WC_SUCCESS = 0;
        IBV_WC_RECV = 128;
        IBV_WC_RECV_RDMA_WITH_IMM = 129;
        IBV_WC_TM_RECV = 133;
        IBV_WC_TM_NO_TAG = 134;

        IBV_QPT_RC = 2;
        IBV_QPT_UC = 3;
        IBV_QPT_UD = 4;
        IBV_QPT_RAW_PACKET = 8;
        IBV_QPT_XRC_SEND = 9;
        IBV_QPT_XRC_RECV = 10;

        IBV_QPS_RESET = 0;
        IBV_QPS_INIT = 1;
        IBV_QPS_RTR = 2;
        IBV_QPS_RTS = 3;
        IBV_QPS_SQD = 4;
        IBV_QPS_SQE = 5;
        IBV_QPS_ERR = 6;
        IBV_QPS_UNKNOWN = 7;

        IBV_MIG_MIGRATED = 0;

        IBV_WR_RDMA_WRITE = 0;
        IBV_WR_RDMA_WRITE_WITH_IMM = 1;
        IBV_WR_SEND = 2;
        IBV_WR_SEND_WITH_IMM = 3;
        IBV_WR_RDMA_READ = 4;
        IBV_WR_ATOMIC_CMP_AND_SWP = 5;
        IBV_WR_ATOMIC_FETCH_AND_ADD = 6;
        IBV_WR_LOCAL_INV = 7;
        IBV_WR_BIND_MW = 8;
        IBV_WR_SEND_WITH_INV = 9;
        IBV_WR_TSO = 10;
        IBV_WR_ATOMIC_WRITE = 15;

        IBV_SRQT_BASIC = 0;
        IBV_SRQT_XRC = 1;
        IBV_SRQT_TM = 2;
        IBV_WR_TAG_ADD = 0;
        IBV_WR_TAG_DEL = 1;
        IBV_WR_TAG_SYNC = 2;
        IBV_OPS_SIGNALED = 1 << 0;
        IBV_OPS_TM_SYNC = 1 << 1;

        IBV_QP_STATE = 1 << 0;
        IBV_QP_CUR_STATE = 1 << 1;
        IBV_QP_EN_SQD_ASYNC_NOTIFY = 1 << 2;
        IBV_QP_ACCESS_FLAGS = 1 << 3;
        IBV_QP_PKEY_INDEX = 1 << 4;
        IBV_QP_PORT = 1 << 5;
        IBV_QP_QKEY = 1 << 6;
        IBV_QP_AV = 1 << 7;
        IBV_QP_PATH_MTU = 1 << 8;
        IBV_QP_TIMEOUT = 1 << 9;
        IBV_QP_RETRY_CNT = 1 << 10;
        IBV_QP_RNR_RETRY = 1 << 11;
        IBV_QP_RQ_PSN = 1 << 12;
        IBV_QP_MAX_QP_RD_ATOMIC = 1 << 13;
        IBV_QP_ALT_PATH = 1 << 14;
        IBV_QP_MIN_RNR_TIMER = 1 << 15;
        IBV_QP_SQ_PSN = 1 << 16;
        IBV_QP_MAX_DEST_RD_ATOMIC = 1 << 17;
        IBV_QP_PATH_MIG_STATE = 1 << 18;
        IBV_QP_CAP = 1 << 19;
        IBV_QP_DEST_QPN = 1 << 20;
        IBV_QP_RATE_LIMIT = 1 << 25;

        IBV_SRQ_MAX_WR = 1 << 0;
        IBV_SRQ_LIMIT = 1 << 1;

        IBV_MW_TYPE_1 = 1;
        IBV_MW_TYPE_2 = 2;

        IBV_ADVISE_MR_ADVICE_PREFETCH = 0;
        IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE = 1;
        IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT = 2;

        IBV_REREG_MR_CHANGE_TRANSLATION = 1 << 0;
        IBV_REREG_MR_CHANGE_PD = 1 << 1;
        IBV_REREG_MR_CHANGE_ACCESS = 1 << 2;
        IBV_REREG_MR_ERR_INPUT = -1;
        IBV_REREG_MR_ERR_CMD = -4;
    }
    u64: {
        IBV_ODP_SUPPORT = 1 << 0;
        IBV_ODP_SUPPORT_IMPLICIT = 1 << 1;

        IBV_QP_EX_WITH_RDMA_WRITE = 1 << 0;
        IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM = 1 << 1;
        IBV_QP_EX_WITH_SEND = 1 << 2;
        IBV_QP_EX_WITH_SEND_WITH_IMM = 1 << 3;
        IBV_QP_EX_WITH_RDMA_READ = 1 << 4;
        IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP = 1 << 5;
        IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD = 1 << 6;
        IBV_QP_EX_WITH_LOCAL_INV = 1 << 7;
        IBV_QP_EX_WITH_BIND_MW = 1 << 8;
        IBV_QP_EX_WITH_SEND_WITH_INV = 1 << 9;
        IBV_QP_EX_WITH_TSO = 1 << 10;
        IBV_QP_EX_WITH_ATOMIC_WRITE = 1 << 12;
    }
    c_uint: {
        IBV_WC_GRH = 1 << 0;
        IBV_WC_WITH_IMM = 1 << 1;
        IBV_WC_WITH_INV = 1 << 3;
        IBV_WC_IP_CSUM_OK = 1 << 2;
        IBV_WC_TM_SYNC_REQ = 1 << 4;
        IBV_WC_TM_MATCH = 1 << 5;
        IBV_WC_TM_DATA_VALID = 1 << 6;

        IBV_SEND_FENCE = 1 << 0;
        IBV_SEND_SIGNALED = 1 << 1;
        IBV_SEND_SOLICITED = 1 << 2;
        IBV_SEND_INLINE = 1 << 3;
        IBV_SEND_IP_CSUM = 1 << 4;

        IBV_ACCESS_LOCAL_WRITE = 1 << 0;
        IBV_ACCESS_REMOTE_WRITE = 1 << 1;
        IBV_ACCESS_REMOTE_READ = 1 << 2;
        IBV_ACCESS_REMOTE_ATOMIC = 1 << 3;
        IBV_ACCESS_MW_BIND = 1 << 4;
        IBV_ACCESS_ZERO_BASED = 1 << 5;
        IBV_ACCESS_ON_DEMAND = 1 << 6;
        IBV_ACCESS_HUGETLB = 1 << 7;
        IBV_ACCESS_OPTIONAL_RANGE = 0x3ff0_0000;

        IBV_DEVICE_CURR_QP_STATE_MOD = 1 << 7;
        IBV_DEVICE_PORT_ACTIVE_EVENT = 1 << 10;
        IBV_DEVICE_SYS_IMAGE_GUID = 1 << 11;
        IBV_DEVICE_RC_RNR_NAK_GEN = 1 << 12;
        IBV_DEVICE_SRQ_RESIZE = 1 << 13;
        IBV_DEVICE_MEM_WINDOW = 1 << 17;
        IBV_DEVICE_XRC = 1 << 20;
        IBV_DEVICE_MEM_WINDOW_TYPE_2B = 1 << 24;

        IBV_ADVISE_MR_FLAG_FLUSH = 1 << 0;

        IBV_ODP_SUPPORT_SEND = 1 << 0;
        IBV_ODP_SUPPORT_RECV = 1 << 1;
        IBV_ODP_SUPPORT_WRITE = 1 << 2;
        IBV_ODP_SUPPORT_READ = 1 << 3;
        IBV_ODP_SUPPORT_ATOMIC = 1 << 4;
        IBV_ODP_SUPPORT_SRQ_RECV = 1 << 5;

        IBV_SRQ_INIT_ATTR_TYPE = 1 << 0;
        IBV_SRQ_INIT_ATTR_PD = 1 << 1;
        IBV_SRQ_INIT_ATTR_XRCD = 1 << 2;
        IBV_SRQ_INIT_ATTR_CQ = 1 << 3;
        IBV_SRQ_INIT_ATTR_TM = 1 << 4;
        IBV_TM_CAP_RC = 1 << 0;

        IBV_XRCD_INIT_ATTR_FD = 1 << 0;
        IBV_XRCD_INIT_ATTR_OFLAGS = 1 << 1;

        IBV_QP_CREATE_BLOCK_SELF_MCAST_LB = 1 << 1;
        IBV_QP_CREATE_CVLAN_STRIPPING = 1 << 9;
        IBV_WQ_INIT_ATTR_FLAGS = 1 << 0;
        IBV_WQ_FLAGS_CVLAN_STRIPPING = 1 << 0;
        IBV_WQ_ATTR_STATE = 1 << 0;
        IBV_WQ_ATTR_CURR_STATE = 1 << 1;
        IBV_WQ_ATTR_FLAGS = 1 << 2;
        IBV_FLOW_ATTR_FLAGS_DONT_TRAP = 1 << 1;
        IBV_FLOW_ATTR_FLAGS_EGRESS = 1 << 2;
        IBV_READ_COUNTERS_ATTR_PREFER_CACHED = 1 << 0;
        IBV_RAW_PACKET_CAP_CVLAN_STRIPPING = 1 << 0;
        IBV_RAW_PACKET_CAP_IP_CSUM = 1 << 2;
        IBV_DEVICE_RAW_IP_CSUM = 1 << 26;
        IBV_DEVICE_MANAGED_FLOW_STEERING = 1 << 29;
        IBV_QP_INIT_ATTR_PD = 1 << 0;
        IBV_QP_INIT_ATTR_XRCD = 1 << 1;
        IBV_QP_INIT_ATTR_CREATE_FLAGS = 1 << 2;
        IBV_QP_INIT_ATTR_MAX_TSO_HEADER = 1 << 3;
        IBV_QP_INIT_ATTR_IND_TABLE = 1 << 4;
        IBV_QP_INIT_ATTR_RX_HASH = 1 << 5;
        IBV_QP_INIT_ATTR_SEND_OPS_FLAGS = 1 << 6;

        IBV_QP_OPEN_ATTR_NUM = 1 << 0;
        IBV_QP_OPEN_ATTR_XRCD = 1 << 1;
        IBV_QP_OPEN_ATTR_CONTEXT = 1 << 2;
        IBV_QP_OPEN_ATTR_TYPE = 1 << 3;

        IBV_CQ_INIT_ATTR_MASK_FLAGS = 1 << 0;
        IBV_CQ_INIT_ATTR_MASK_PD = 1 << 1;
        IBV_CREATE_CQ_ATTR_SINGLE_THREADED = 1 << 0;
        IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN = 1 << 1;
        IBV_WC_STANDARD_FLAGS = 0x7f;
        IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS = 1 << 0;
        IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT = 1 << 1;
        IBV_CQ_ATTR_MODERATE = 1 << 0;
        IBV_VALUES_MASK_RAW_CLOCK = 1 << 0;
    }
    u64: {
        IBV_WC_EX_WITH_COMPLETION_TIMESTAMP = 1 << 7;
        IBV_WC_EX_WITH_CVLAN = 1 << 8;
        IBV_WC_EX_WITH_FLOW_TAG = 1 << 9;
        IBV_WC_EX_WITH_TM_INFO = 1 << 10;
        IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK = 1 << 11;
    }
}

// Of rdma-core v65; older headers don't have them.
pub const IBV_EVENT_DEVICE_SPEED_CHANGE: c_int = 20;
pub const IBV_ODP_SUPPORT_FLUSH: c_uint = 1 << 6;
pub const IBV_ODP_SUPPORT_ATOMIC_WRITE: c_uint = 1 << 7;
pub const IBV_WR_FLUSH: c_int = 14;
pub const IBV_ACCESS_FLUSH_GLOBAL: c_uint = 1 << 8;
pub const IBV_ACCESS_FLUSH_PERSISTENT: c_uint = 1 << 9;
pub const IBV_QP_EX_WITH_FLUSH: u64 = 1 << 11;
pub const IBV_FLUSH_RANGE: u8 = 0;
pub const IBV_FLUSH_MR: u8 = 1;
/// `IB_UVERBS_DEVICE_FLUSH_GLOBAL` of `device_cap_flags_ex`.
pub const IB_UVERBS_DEVICE_FLUSH_GLOBAL: u64 = 1 << 38;
/// `IB_UVERBS_DEVICE_FLUSH_PERSISTENT`.
pub const IB_UVERBS_DEVICE_FLUSH_PERSISTENT: u64 = 1 << 39;
/// `IB_UVERBS_DEVICE_ATOMIC_WRITE`.
pub const IB_UVERBS_DEVICE_ATOMIC_WRITE: u64 = 1 << 40;
pub const IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC: u32 = 1 << 2;
/// `enum ibv_mr_init_attr_mask` (v65).
pub const IBV_REG_MR_MASK_IOVA: u64 = 1 << 0;
pub const IBV_REG_MR_MASK_ADDR: u64 = 1 << 1;
pub const IBV_REG_MR_MASK_FD: u64 = 1 << 2;
pub const IBV_REG_MR_MASK_FD_OFFSET: u64 = 1 << 3;
pub const IBV_REG_MR_MASK_DMAH: u64 = 1 << 4;
pub const IBV_REG_MR_MASK_BUF: u64 = 1 << 5;
/// `enum ibv_dmah_init_attr_mask` (v65).
pub const IBV_DMAH_INIT_ATTR_MASK_CPU_ID: u32 = 1 << 0;
pub const IBV_DMAH_INIT_ATTR_MASK_PH: u32 = 1 << 1;
pub const IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE: u32 = 1 << 2;
/// The greatest of `enum ibv_tph_mem_type` (v65).
pub const IBV_TPH_MEM_TYPE_PM: u8 = 1;
