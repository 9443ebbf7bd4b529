//! ibv_advise_mr(3).

use std::ffi::c_int;

use ferroce_abi::verbs::*;
use ferroce_entry::call::{self, Refusal};
use ferroce_objects::{Headed, PdBlock};
use ferroce_work::post;

/// The slot behind ibv_advise_mr(3). The pages are there when it returns, with IBV_ADVISE_MR_FLAG_FLUSH or without.
pub(crate) unsafe extern "C" fn advise_mr(
    pd: *mut ibv_pd,
    advice: c_int,
    flags: u32,
    sg_list: *mut ibv_sge,
    num_sge: u32,
) -> c_int {
    call::errno_value("ibv_advise_mr", || {
        // SAFETY: by the man page a domain.
        let domain = unsafe { PdBlock::checked(pd) }?;
        let prefetch = match advice {
            IBV_ADVISE_MR_ADVICE_PREFETCH => ferroce_mem::Prefetch::Read,
            IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE => ferroce_mem::Prefetch::Write,
            IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT => ferroce_mem::Prefetch::NoFault,
            other => return Err(Refusal::new(libc::ENOTSUP, format!("there is no advice {other}"))),
        };
        if flags & !IBV_ADVISE_MR_FLAG_FLUSH != 0 {
            return Err(Refusal::invalid(format!("flags {flags:#x}: IBV_ADVISE_MR_FLAG_FLUSH or none")));
        }
        if num_sge == 0 {
            return Err(Refusal::invalid("advice about nothing"));
        }
        let count = c_int::try_from(num_sge).map_err(|_| Refusal::invalid(format!("{num_sge} elements")))?;
        // SAFETY: by the man page a list of `num_sge` elements.
        let elements = unsafe { post::elements(sg_list, count, num_sge) }?;
        Ok(prefetch.run(domain.nic(), &post::sges(elements))?)
    })
}
