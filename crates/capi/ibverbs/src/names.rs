//! Numbers to words and rates: pure functions of their argument.
//!
//! ibv_rate_to_mult(3), ibv_rate_to_mbps(3), ibv_event_type_str(3); the words for completion statuses are those of the
//! InfiniBand Architecture Specification, section 11.6.2.

use std::ffi::{CStr, c_char};

use libc::c_int;

use ferroce_entry::call::entry;
use ferroce_parts::STATIC_RATES;

fn word(words: &[&'static CStr], number: c_int) -> *const c_char {
    usize::try_from(number).ok().and_then(|n| words.get(n)).unwrap_or(&c"unknown").as_ptr()
}

const WC_STATUS: [&CStr; 24] = [
    c"success",
    c"local length error",
    c"local QP operation error",
    c"local EE context operation error",
    c"local protection error",
    c"Work Request Flushed Error",
    c"memory management operation error",
    c"bad response error",
    c"local access error",
    c"remote invalid request error",
    c"remote access error",
    c"remote operation error",
    c"transport retry counter exceeded",
    c"RNR retry counter exceeded",
    c"local RDD violation error",
    c"remote invalid RD request",
    c"aborted error",
    c"invalid EE context number",
    c"invalid EE context state",
    c"fatal error",
    c"response timeout error",
    c"general error",
    c"TM error",
    c"TM software rendezvous",
];

const PORT_STATE: [&CStr; 6] =
    [c"no state change (NOP)", c"down", c"init", c"armed", c"active", c"active defer"];

const NODE_TYPE: [&CStr; 8] = [
    c"unknown",
    c"InfiniBand channel adapter",
    c"InfiniBand switch",
    c"InfiniBand router",
    c"iWARP NIC",
    c"usNIC",
    c"usNIC UDP",
    c"unspecified",
];

const EVENT_TYPE: [&CStr; 21] = [
    c"CQ error",
    c"local work queue catastrophic error",
    c"invalid request local work queue error",
    c"local access violation work queue error",
    c"communication established",
    c"send queue drained",
    c"path migrated",
    c"path migration request error",
    c"local catastrophic error",
    c"port active",
    c"port error",
    c"LID change",
    c"P_Key change",
    c"SM change",
    c"SRQ catastrophic error",
    c"SRQ limit reached",
    c"last WQE reached",
    c"client reregistration",
    c"GID table change",
    c"WQ fatal",
    c"device speed change",
];

const WR_OPCODE: [&CStr; 16] = [
    c"RDMA write",
    c"RDMA write with immediate",
    c"send",
    c"send with immediate",
    c"RDMA read",
    c"atomic compare and swap",
    c"atomic fetch and add",
    c"local invalidate",
    c"bind memory window",
    c"send with invalidate",
    c"TSO",
    c"driver 1",
    c"unknown",
    c"unknown",
    c"flush",
    c"atomic write",
];

entry! {
    fn ibv_wc_status_str(status: c_int) -> value *const c_char = c"unknown".as_ptr(), {
        word(&WC_STATUS, status)
    }
}

entry! {
    fn ibv_port_state_str(state: c_int) -> value *const c_char = c"unknown".as_ptr(), {
        word(&PORT_STATE, state)
    }
}

entry! {
    fn ibv_node_type_str(node_type: c_int) -> value *const c_char = c"unknown".as_ptr(), {
        word(&NODE_TYPE, node_type)
    }
}

entry! {
    fn ibv_event_type_str(event: c_int) -> value *const c_char = c"unknown".as_ptr(), {
        word(&EVENT_TYPE, event)
    }
}

entry! {
    fn ibv_wr_opcode_str(opcode: c_int) -> value *const c_char = c"unknown".as_ptr(), {
        word(&WR_OPCODE, opcode)
    }
}

/// Those of `enum ibv_rate` that are a multiple of 2.5 Gbit/s, and which.
const MULTS: [(c_int, c_int); 15] = [
    (2, 1),
    (5, 2),
    (3, 4),
    (6, 8),
    (4, 12),
    (7, 16),
    (8, 24),
    (9, 32),
    (10, 48),
    (19, 11),
    (20, 20),
    (21, 160),
    (22, 240),
    (23, 320),
    (24, 480),
];

/// `IBV_RATE_MAX`: what a rate that isn't in the table becomes.
const RATE_MAX: c_int = 0;

entry! {
    fn ibv_rate_to_mult(rate: c_int) -> value c_int = -1, {
        MULTS.iter().find(|r| r.0 == rate).map_or(-1, |r| r.1)
    }
}

entry! {
    fn mult_to_ibv_rate(mult: c_int) -> value c_int = RATE_MAX, {
        MULTS.iter().find(|r| r.1 == mult).map_or(RATE_MAX, |r| r.0)
    }
}

entry! {
    fn ibv_rate_to_mbps(rate: c_int) -> value c_int = -1, {
        STATIC_RATES.iter().find(|r| c_int::from(r.0) == rate).map_or(-1, |r| r.1 as c_int)
    }
}

entry! {
    fn mbps_to_ibv_rate(mbps: c_int) -> value c_int = RATE_MAX, {
        STATIC_RATES.iter().find(|r| r.1 as c_int == mbps).map_or(RATE_MAX, |r| r.0.into())
    }
}
