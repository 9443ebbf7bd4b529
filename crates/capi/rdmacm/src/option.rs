//! Options of ids: rdma_set_option(3).

use std::ffi::{c_int, c_void};

use ferroce_abi::verbs::IBV_QPT_UD;
use ferroce_entry::call::{Outcome, Refusal};
use ferroce_entry::entry;
use libc::size_t;

use crate::abi::*;
use crate::block::IdBlock;
use crate::id::IdStep;
use crate::resolve;

/// Reads a value of exactly this type.
///
/// # Safety
/// `value` is null or valid for `length` bytes.
unsafe fn exactly<T: Copy>(value: *const c_void, length: size_t, what: &str) -> Outcome<T> {
    if value.is_null() || length != size_of::<T>() {
        return Err(Refusal::invalid(format!(
            "{what} is {} bytes, and {length} were passed",
            size_of::<T>()
        )));
    }
    // SAFETY: the caller's promise; a number of the program's at any address.
    Ok(unsafe { value.cast::<T>().read_unaligned() })
}

entry! {
    fn rdma_set_option(
        id: *mut rdma_cm_id,
        level: c_int,
        optname: c_int,
        optval: *mut c_void,
        optlen: size_t,
    ) -> minus_one {
        // SAFETY: by the man page an id.
        let (shared, qp_type) = unsafe { (IdBlock::of(id)?, (*id).qp_type) };
        // SAFETY: by the man page `optlen` bytes.
        unsafe {
            match (level, optname) {
                (RDMA_OPTION_ID, RDMA_OPTION_ID_TOS) => {
                    let tos = exactly(optval, optlen, "RDMA_OPTION_ID_TOS")?;
                    shared.state.lock().options.tos = tos;
                }
                (RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR) => {
                    let reuse = exactly::<c_int>(optval, optlen, "RDMA_OPTION_ID_REUSEADDR")? != 0;
                    let mut state = shared.state.lock();
                    if reuse && state.step == IdStep::Listening {
                        return Err(Refusal::invalid("a port that is listened at can't be shared"));
                    }
                    state.options.reuse = reuse;
                }
                (RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY) => {
                    let only = exactly::<c_int>(optval, optlen, "RDMA_OPTION_ID_AFONLY")? != 0;
                    let mut state = shared.state.lock();
                    if !matches!(state.step, IdStep::Idle | IdStep::Bound) {
                        return Err(Refusal::invalid("RDMA_OPTION_ID_AFONLY comes before listening and resolving"));
                    }
                    state.options.v6_only = only;
                }
                (RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT) => {
                    let timeout: u8 = exactly(optval, optlen, "RDMA_OPTION_ID_ACK_TIMEOUT")?;
                    if qp_type == IBV_QPT_UD {
                        return Err(Refusal::invalid("datagrams aren't acknowledged: RDMA_OPTION_ID_ACK_TIMEOUT"));
                    }
                    shared.state.lock().options.ack_timeout = Some(timeout & 31);
                }
                (RDMA_OPTION_IB, RDMA_OPTION_IB_PATH) => {
                    if optval.is_null() || optlen == 0 || !optlen.is_multiple_of(size_of::<ibv_path_data>()) {
                        return Err(Refusal::invalid(format!("RDMA_OPTION_IB_PATH of {optlen} bytes: paths of 72 each")));
                    }
                    // On Ethernet a subnet manager's path record changes nothing.
                    resolve::route(id)?;
                }
                _ => {
                    return Err(Refusal::new(libc::ENOSYS, format!("option {optname} of level {level}: there is none")));
                }
            }
        }
        Ok(0)
    }
}
