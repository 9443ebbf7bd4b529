//! Multicast groups: ibv_attach_mcast(3), ibv_detach_mcast(3). The MGID alone identifies the group: on Ethernet the MLID
//! means nothing, on InfiniBand it has to be valid.

use ferroce_netdev::{LinkLayer, MULTICAST_LIDS};

use ferroce_abi::verbs::{ibv_gid, ibv_qp};
use ferroce_entry::call::{Outcome, Refusal, at, entry};
use ferroce_objects::{Headed, QpBlock};

fn check_mlid(lid: u16) -> Outcome<()> {
    if LinkLayer::current().is_infiniband() && !MULTICAST_LIDS.contains(&lid) {
        return Err(Refusal::invalid(format!(
            "lid {lid:#x} isn't a multicast LID: those are 0xc000 to 0xfffe"
        )));
    }
    Ok(())
}

entry! {
    pub fn ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> errno {
        // SAFETY: by the man page a queue pair and the caller's GID.
        let (qp, gid) = unsafe { (QpBlock::checked(qp)?, at(gid, "gid")?) };
        check_mlid(lid)?;
        qp.nic()?.attach_mcast(gid.bytes())?;
        Ok(())
    }
}

entry! {
    pub fn ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> errno {
        // SAFETY: by the man page a queue pair and the caller's GID.
        let (qp, gid) = unsafe { (QpBlock::checked(qp)?, at(gid, "gid")?) };
        check_mlid(lid)?;
        qp.nic()?.detach_mcast(gid.bytes())?;
        Ok(())
    }
}
