//! What a strict adapter (`ferroce run --strict`) hides of completions.

use ferroce_abi::verbs::{IBV_WC_SUCCESS, ibv_wc};
use std::ffi::{c_int, c_uint};

/// What stands in members that aren't valid, in each byte.
const PATTERN: u32 = 0xa5a5_a5a5;

/// Hides what isn't valid of a completion with an error: all but `wr_id`, `status`, `qp_num` and `vendor_err`
/// (ibv_poll_cq(3)).
pub fn hide_invalid(wc: &mut ibv_wc) {
    if wc.status != IBV_WC_SUCCESS {
        let &mut ibv_wc { wr_id, status, vendor_err, qp_num, .. } = wc;
        *wc = ibv_wc {
            wr_id,
            status,
            vendor_err,
            qp_num,
            opcode: PATTERN as c_int,
            byte_len: PATTERN,
            imm_data: PATTERN,
            src_qp: PATTERN,
            wc_flags: PATTERN as c_uint,
            pkey_index: PATTERN as u16,
            slid: PATTERN as u16,
            sl: PATTERN as u8,
            dlid_path_bits: PATTERN as u8,
        };
    }
}
