//! Queue pairs, and their end (ibv_destroy_qp(3)). Posting is in `post` and `wr`.

mod attr;
mod create;
mod ece;
mod raw;
mod target;

pub(crate) use attr::modify_qp_rate_limit;
pub use attr::{ibv_modify_qp, ibv_query_qp};
pub use create::{create_qp_ex, ibv_create_qp};
pub use ece::{ibv_query_ece, ibv_set_ece};
pub(crate) use target::open_qp;

use ferroce_abi::verbs::*;
use ferroce_entry::call::{Refusal, entry};
use ferroce_objects::{Headed, QpBlock, QpObject};

entry! {
    pub fn ibv_destroy_qp(qp: *mut ibv_qp) -> errno {
        // SAFETY: by the man page a queue pair that the caller gives up. When its destruction returns, no event of it
        // is left anywhere.
        unsafe {
            let block = QpBlock::ending(qp)?;
            match &block.kind {
                QpObject::Transport(nic) => nic.destroy()?,
                QpObject::Target(target) => target.close()?,
                QpObject::Raw(nic) => nic.destroy()?,
            }
            if let Some(watch) = block.watch() {
                watch.end();
            }
            QpBlock::free(qp);
        }
        Ok(())
    }
}

entry! {
    /// The same queue pair with its extended interface, if it was created with one.
    fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> pointer ibv_qp_ex, {
        // SAFETY: by the man page a queue pair.
        match unsafe { QpBlock::checked(qp) }?.send_ops {
            Some(_) => Ok(qp.cast()),
            None => Err(Refusal::unsupported("the queue pair wasn't created with send_ops_flags")),
        }
    }
}
