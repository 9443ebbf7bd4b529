//! The structures of `<rdma/rdma_cma.h>` as C code sees them, in the newest layout (rdma-core v65). Names are the header's, so
//! that the two can be read side by side, and the fields' meaning is the man pages'.
//!
//! In here: layout and numbers. Out of here: any behaviour. `tests/it/cma.rs` compares all of it with the header.
#![allow(missing_docs, non_camel_case_types)] // both as in the header

use std::ffi::{c_char, c_int, c_void};

use crate::verbs::{
    ibv_ah_attr, ibv_comp_channel, ibv_context, ibv_cq, ibv_gid, ibv_pd, ibv_qp, ibv_sa_path_rec, ibv_srq,
};
use libc::{sockaddr, sockaddr_storage, socklen_t};

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdma_ib_addr {
    pub sgid: ibv_gid,
    pub dgid: ibv_gid,
    pub pkey: u16,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_addr {
    pub src_storage: sockaddr_storage,
    pub dst_storage: sockaddr_storage,
    pub ibaddr: rdma_ib_addr,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_route {
    pub addr: rdma_addr,
    pub path_rec: *mut ibv_sa_path_rec,
    pub num_paths: c_int,
}

#[repr(C)]
#[derive(Debug)]
pub struct rdma_event_channel {
    pub fd: c_int,
}

#[repr(C)]
pub struct rdma_cm_id {
    pub verbs: *mut ibv_context,
    pub channel: *mut rdma_event_channel,
    pub context: *mut c_void,
    pub qp: *mut ibv_qp,
    pub route: rdma_route,
    pub ps: c_int,
    pub port_num: u8,
    pub event: *mut rdma_cm_event,
    pub send_cq_channel: *mut ibv_comp_channel,
    pub send_cq: *mut ibv_cq,
    pub recv_cq_channel: *mut ibv_comp_channel,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut ibv_srq,
    pub pd: *mut ibv_pd,
    pub qp_type: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdma_conn_param {
    pub private_data: *const c_void,
    pub private_data_len: u8,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub flow_control: u8,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    pub srq: u8,
    pub qp_num: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rdma_ud_param {
    pub private_data: *const c_void,
    pub private_data_len: u8,
    pub ah_attr: ibv_ah_attr,
    pub qp_num: u32,
    pub qkey: u32,
}

/// `param` of an event.
#[repr(C)]
#[derive(Clone, Copy)]
pub union rdma_cm_event_param {
    pub conn: rdma_conn_param,
    pub ud: rdma_ud_param,
    pub arg: u64,
}

#[repr(C)]
pub struct rdma_cm_event {
    pub id: *mut rdma_cm_id,
    pub listen_id: *mut rdma_cm_id,
    pub event: c_int,
    pub status: c_int,
    pub param: rdma_cm_event_param,
}

#[repr(C)]
#[derive(Debug)]
pub struct rdma_addrinfo {
    pub ai_flags: c_int,
    pub ai_family: c_int,
    pub ai_qp_type: c_int,
    pub ai_port_space: c_int,
    pub ai_src_len: socklen_t,
    pub ai_dst_len: socklen_t,
    pub ai_src_addr: *mut sockaddr,
    pub ai_dst_addr: *mut sockaddr,
    pub ai_src_canonname: *mut c_char,
    pub ai_dst_canonname: *mut c_char,
    pub ai_route_len: usize,
    pub ai_route: *mut c_void,
    pub ai_connect_len: usize,
    pub ai_connect: *mut c_void,
    pub ai_next: *mut rdma_addrinfo,
}

#[repr(C)]
#[derive(Debug)]
pub struct rdma_cm_join_mc_attr_ex {
    pub comp_mask: u32,
    pub join_flags: u32,
    pub addr: *mut sockaddr,
}

/// `struct sockaddr_ib` of `<rdma/rdma_user_cm.h>` and `<infiniband/ib.h>`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct sockaddr_ib {
    pub sib_family: u16,
    pub sib_pkey: u16,
    pub sib_flowinfo: u32,
    pub sib_addr: [u8; 16],
    pub sib_sid: u64,
    pub sib_sid_mask: u64,
    pub sib_scope_id: u64,
}

/// `struct ibv_path_record` of `<infiniband/sa.h>`: big-endian numbers.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_path_record {
    pub service_id: u64,
    pub dgid: ibv_gid,
    pub sgid: ibv_gid,
    pub dlid: u16,
    pub slid: u16,
    pub flowlabel_hoplimit: u32,
    pub tclass: u8,
    pub reversible_numpath: u8,
    pub pkey: u16,
    pub qosclass_sl: u16,
    pub mtu: u8,
    pub rate: u8,
    pub packetlifetime: u8,
    pub preference: u8,
    pub reserved: [u8; 6],
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_path_data {
    pub flags: u32,
    pub path: ibv_path_record,
}

macro_rules! numbers {
    ($($name:ident: $type:ty = $value:expr;)*) => {
        $(pub const $name: $type = $value;)*

        /// All of them by name, but for those that older headers lack.
        pub const CMA_NUMBERS: &[(&str, i64)] = &[$((stringify!($name), $name as i64)),*];
    };
}

numbers! {
    RDMA_CM_EVENT_ADDR_RESOLVED: c_int = 0;
    RDMA_CM_EVENT_ADDR_ERROR: c_int = 1;
    RDMA_CM_EVENT_ROUTE_RESOLVED: c_int = 2;
    RDMA_CM_EVENT_ROUTE_ERROR: c_int = 3;
    RDMA_CM_EVENT_CONNECT_REQUEST: c_int = 4;
    RDMA_CM_EVENT_CONNECT_RESPONSE: c_int = 5;
    RDMA_CM_EVENT_CONNECT_ERROR: c_int = 6;
    RDMA_CM_EVENT_UNREACHABLE: c_int = 7;
    RDMA_CM_EVENT_REJECTED: c_int = 8;
    RDMA_CM_EVENT_ESTABLISHED: c_int = 9;
    RDMA_CM_EVENT_DISCONNECTED: c_int = 10;
    RDMA_CM_EVENT_DEVICE_REMOVAL: c_int = 11;
    RDMA_CM_EVENT_MULTICAST_JOIN: c_int = 12;
    RDMA_CM_EVENT_MULTICAST_ERROR: c_int = 13;
    RDMA_CM_EVENT_ADDR_CHANGE: c_int = 14;
    RDMA_CM_EVENT_TIMEWAIT_EXIT: c_int = 15;
    RDMA_PS_IPOIB: c_int = 0x0002;
    RDMA_PS_TCP: c_int = 0x0106;
    RDMA_PS_UDP: c_int = 0x0111;
    RDMA_PS_IB: c_int = 0x013f;
    RDMA_UDP_QKEY: u32 = 0x0123_4567;
    RDMA_MAX_RESP_RES: u8 = 0xff;
    RDMA_MAX_INIT_DEPTH: u8 = 0xff;
    RAI_PASSIVE: c_int = 1;
    RAI_NUMERICHOST: c_int = 2;
    RAI_NOROUTE: c_int = 4;
    RAI_FAMILY: c_int = 8;
    RDMA_CM_JOIN_MC_ATTR_ADDRESS: u32 = 1;
    RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS: u32 = 2;
    RDMA_MC_JOIN_FLAG_FULLMEMBER: u32 = 0;
    RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER: u32 = 1;
    RDMA_OPTION_ID: c_int = 0;
    RDMA_OPTION_IB: c_int = 1;
    RDMA_OPTION_ID_TOS: c_int = 0;
    RDMA_OPTION_ID_REUSEADDR: c_int = 1;
    RDMA_OPTION_ID_AFONLY: c_int = 2;
    RDMA_OPTION_ID_ACK_TIMEOUT: c_int = 3;
    RDMA_OPTION_IB_PATH: c_int = 1;
    IBV_PATH_FLAG_GMP: u32 = 1;
    IBV_PATH_FLAG_PRIMARY: u32 = 2;
    IBV_PATH_FLAG_BIDIRECTIONAL: u32 = 40;
}

// Since v60.
pub const RDMA_CM_EVENT_ADDRINFO_RESOLVED: c_int = 16;
pub const RDMA_CM_EVENT_ADDRINFO_ERROR: c_int = 17;
pub const RDMA_CM_EVENT_USER: c_int = 18;
pub const RAI_SA: c_int = 0x10;
pub const RAI_DNS: c_int = 0x20;
/// `AF_IB`.
pub const AF_IB: c_int = 27;
