//! Memory windows: ibv_alloc_mw(3), ibv_bind_mw(3), and binding by ibv_post_send(3) or ibv_wr_bind_mw(3).

use std::ffi::{c_int, c_uint};

use ferroce_abi::verbs::*;
use ferroce_entry::call::{self, Outcome, Refusal, at};
use ferroce_objects::{Headed, MrBlock, PdBlock, QpBlock, block, next_handle};

block! {
    MwBlock: ibv_mw, "mw", |c| (c.context, c.handle);
    => ferroce_mem::Mw;
}

/// The slot behind ibv_alloc_mw(3).
pub unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, kind: c_int) -> *mut ibv_mw {
    call::pointer("ibv_alloc_mw", || {
        // SAFETY: by the man page a domain.
        let domain = unsafe { PdBlock::checked(pd) }?;
        let known = match kind {
            IBV_MW_TYPE_1 => ferroce_mem::MwKind::One,
            IBV_MW_TYPE_2 => ferroce_mem::MwKind::Two,
            other => return Err(Refusal::invalid(format!("memory windows are of type 1 or 2, not {other}"))),
        };
        let nic = ferroce_mem::Mw::alloc(domain.nic(), known)?;
        MwBlock::allocate(|_| {
            let (context, rkey, handle) = (domain.context(), nic.rkey(), next_handle());
            Ok(MwBlock { c: ibv_mw { context, pd, rkey, handle, r#type: kind }, nic })
        })
    })
}

/// The slot behind ibv_dealloc_mw(3).
pub unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    call::errno_value("ibv_dealloc_mw", || {
        // SAFETY: by the man page a window that the caller gives up.
        unsafe {
            MwBlock::ending(mw)?.nic().dealloc()?;
            MwBlock::free(mw);
        }
        Ok(())
    })
}

/// Rights of the peer, and whether addresses count from the window's first byte.
fn rights(access: c_uint) -> Outcome<(ferroce_types::Access, bool)> {
    let known = IBV_ACCESS_REMOTE_WRITE
        | IBV_ACCESS_REMOTE_READ
        | IBV_ACCESS_REMOTE_ATOMIC
        | IBV_ACCESS_ZERO_BASED
        // Windows aren't for local access; programs and rdma-core's tests set the flag nevertheless.
        | IBV_ACCESS_LOCAL_WRITE
        | IBV_ACCESS_OPTIONAL_RANGE;
    if access & !known != 0 {
        return Err(Refusal::invalid(format!(
            "mw_access_flags {:#x} aren't those of a window",
            access & !known
        )));
    }
    let has = |bit: c_uint| access & bit != 0;
    let rights = ferroce_types::Access {
        remote_write: has(IBV_ACCESS_REMOTE_WRITE),
        remote_read: has(IBV_ACCESS_REMOTE_READ),
        remote_atomic: has(IBV_ACCESS_REMOTE_ATOMIC),
        ..ferroce_types::Access::default()
    };
    Ok((rights, has(IBV_ACCESS_ZERO_BASED)))
}

/// What a send request for a bind asks for.
///
/// # Safety
/// `mw` is null or a window, `info.mr` null or a region.
unsafe fn operation(mw: *mut ibv_mw, rkey: u32, info: &ibv_mw_bind_info) -> Outcome<ferroce_types::BindMw> {
    // SAFETY: the caller's promise.
    let (window, region) = unsafe {
        let region = if info.mr.is_null() { None } else { Some(MrBlock::of(info.mr)?.nic()) };
        (MwBlock::of(mw)?, region)
    };
    let (access, zero_based) = rights(info.mw_access_flags)?;
    let range = (info.addr, info.length);
    Ok(window.nic().bind_request(rkey, region.map(AsRef::as_ref), range, access, zero_based)?)
}

/// What a send request for a bind asks for that the program posts itself: the window's structure gets the new key, of whose bits the
/// program chooses 8.
///
/// # Safety
/// `mw` is null or a window, `info.mr` null or a region.
pub unsafe fn posted(mw: *mut ibv_mw, rkey: u32, info: &ibv_mw_bind_info) -> Outcome<ferroce_proto::SendOp> {
    // SAFETY: the caller's promise; the field is the window's own, which the program doesn't change meanwhile.
    unsafe {
        let bind = operation(mw, rkey, info)?;
        (*mw).rkey = bind.rkey;
        Ok(ferroce_proto::SendOp::BindMw(bind))
    }
}

/// The slot behind ibv_bind_mw(3). Inline code of the header lets windows of type 1 through only.
pub unsafe extern "C" fn bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, bind: *mut ibv_mw_bind) -> c_int {
    call::to_errno(call::contain("ibv_bind_mw", || {
        // SAFETY: by the man page a queue pair, a window, and the caller's structure.
        let (qp, window, bind) =
            unsafe { (QpBlock::of(qp)?.nic()?, MwBlock::of(mw)?, at(bind.cast_const(), "mw_bind")?) };
        if window.nic().kind() != ferroce_mem::MwKind::One {
            return Err(Refusal::invalid("a window of type 2 is bound by ibv_post_send"));
        }
        if qp.service() == ferroce_wire::Service::Ud {
            return Err(Refusal::invalid("UD queue pairs bind no windows"));
        }
        let known = IBV_SEND_FENCE | IBV_SEND_SIGNALED;
        if bind.send_flags & !known != 0 {
            return Err(Refusal::invalid(format!("send_flags {:#x} for a bind", bind.send_flags & !known)));
        }
        // SAFETY: the window's own field, which the program doesn't change meanwhile.
        let rkey = next_rkey(unsafe { (*mw).rkey });
        // SAFETY: by the man page a window, and a region or none.
        let op = ferroce_proto::SendOp::BindMw(unsafe { operation(mw, rkey, &bind.bind_info) }?);
        let request = ferroce_proto::SendRequest {
            wr_id: bind.wr_id,
            op,
            data: ferroce_proto::DataRef::Sges(&[]),
            signaled: bind.send_flags & IBV_SEND_SIGNALED != 0,
            solicited: false,
            fence: bind.send_flags & IBV_SEND_FENCE != 0,
            ud: None,
            remote_srqn: 0,
        };
        qp.post_send(request)?;
        // SAFETY: as above; by the man page the caller finds the new key there.
        unsafe { (*mw).rkey = rkey };
        Ok(())
    }))
}

/// As ibv_inc_rkey(3): the next of the 256 keys of a window.
const fn next_rkey(rkey: u32) -> u32 {
    (rkey & !0xff) | (rkey.wrapping_add(1) & 0xff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_changes_in_its_low_8_bits() {
        assert_eq!(next_rkey(0x1234_5678), 0x1234_5679);
        assert_eq!(next_rkey(0xffff_ffff), 0xffff_ff00);
    }

    #[test]
    fn what_a_window_has_no_use_for_is_einval() {
        let (access, zero_based) = rights(IBV_ACCESS_REMOTE_READ | IBV_ACCESS_LOCAL_WRITE).expect("known");
        assert!(access.remote_read && !access.remote_write && !access.remote_atomic && !zero_based);
        for unknown in [IBV_ACCESS_MW_BIND, IBV_ACCESS_ON_DEMAND, IBV_ACCESS_HUGETLB, 1 << 12] {
            assert_eq!(rights(unknown).expect_err("unknown").errno, libc::EINVAL);
        }
    }
}
