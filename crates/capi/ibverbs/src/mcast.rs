//! Multicast groups: ibv_attach_mcast(3), ibv_detach_mcast(3). On Ethernet the MLID means nothing.

use crate::abi::{ibv_gid, ibv_qp};
use crate::call::{at, entry};
use crate::object::Headed;
use crate::qp::QpBlock;

entry! {
    pub fn ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, _lid: u16) -> errno {
        // SAFETY: by the man page a queue pair and the caller's GID.
        let (qp, gid) = unsafe { (QpBlock::checked(qp)?, at(gid, "gid")?) };
        qp.nic()?.attach_mcast(gid.bytes())?;
        Ok(())
    }
}

entry! {
    pub fn ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, _lid: u16) -> errno {
        // SAFETY: by the man page a queue pair and the caller's GID.
        let (qp, gid) = unsafe { (QpBlock::checked(qp)?, at(gid, "gid")?) };
        qp.nic()?.detach_mcast(gid.bytes())?;
        Ok(())
    }
}
