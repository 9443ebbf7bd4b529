//! Queue pairs: the block behind a program's pointer, and how it ends (ibv_destroy_qp(3)). Posting is in `post`.

mod attr;
mod create;
mod ece;
mod raw;

pub(crate) use attr::modify_qp_rate_limit;
pub use attr::{ibv_modify_qp, ibv_query_qp};
pub use create::{create_qp_ex, ibv_create_qp};
pub use ece::{ibv_query_ece, ibv_set_ece};
pub(crate) use raw::tso;

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use ferroce_nic as nic;
use nic::qp::{QpAttr, mask};
use nic::raw::RawQp;

use crate::abi::*;
use crate::call::{Outcome, Refusal, entry};
use crate::check::{self, QpWatch};
use crate::object::{Headed, Identity};

/// The adapter's object behind a queue pair.
pub(crate) enum Kind {
    /// One of the transport services RC, UC and UD, or an XRC initiator.
    Transport(Arc<nic::Qp>),
    /// A handle of an XRC target.
    Target(nic::XrcTarget),
    /// Ethernet frames.
    Raw(Arc<RawQp>),
}

/// What does a queue pair's work.
#[derive(Clone, Copy)]
pub(crate) enum Work<'a> {
    /// A transport service.
    Transport(&'a Arc<nic::Qp>),
    /// Ethernet frames.
    Raw(&'a Arc<RawQp>),
}

/// All have room for the extended part.
#[repr(C)]
pub(crate) struct QpBlock {
    c: ibv_qp_ex,
    kind: Kind,
    /// What the extended interface offers (`IBV_QP_EX_WITH_*`), if the program asked for it.
    send_ops: Option<u64>,
    /// The access flags as they were set: those for local access mean nothing to the adapter, but are given back.
    access: AtomicU32,
    /// For the checker, of a transport service.
    watch: Option<Arc<QpWatch>>,
}

// SAFETY: `repr(C)` with an `ibv_qp_ex` first, whose first field is an `ibv_qp`.
unsafe impl Headed for QpBlock {
    type C = ibv_qp;
    const WHAT: &'static str = "qp";

    fn identity(c: &ibv_qp) -> Identity {
        Identity { context: c.context, handle: c.handle }
    }
}

impl QpBlock {
    /// The queue pair, if it is one of a transport service.
    pub(crate) fn nic(&self) -> Outcome<&Arc<nic::Qp>> {
        match self.work() {
            Work::Transport(nic) => Ok(nic),
            Work::Raw(_) => Err(Refusal::unsupported("a raw packet queue pair can't do this")),
        }
    }

    /// The queue pair, if it is one for Ethernet frames.
    pub(crate) fn raw(&self) -> Outcome<&Arc<RawQp>> {
        match self.work() {
            Work::Raw(nic) => Ok(nic),
            Work::Transport(nic) if nic.service() == nic::Service::Ud => {
                Err(Refusal::unsupported("this for UD queue pairs: only for raw packet queue pairs"))
            }
            Work::Transport(nic) => {
                Err(Refusal::invalid(format!("{:?} queue pairs don't have this", nic.service())))
            }
        }
    }

    /// What does the queue pair's work.
    pub(crate) fn work(&self) -> Work<'_> {
        match &self.kind {
            Kind::Transport(nic) => Work::Transport(nic),
            Kind::Target(target) => Work::Transport(target.qp()),
            Kind::Raw(nic) => Work::Raw(nic),
        }
    }

    /// What the checker knows of it, if there is one.
    pub(crate) fn watch(&self) -> Option<&Arc<QpWatch>> {
        self.watch.as_ref()
    }

    /// Changes attributes and state.
    pub(crate) fn modify(&self, attr: &QpAttr, bits: u32) -> Outcome<()> {
        match &self.kind {
            Kind::Transport(nic) => nic.modify(attr, bits)?,
            Kind::Target(target) => target.modify(attr, bits)?,
            Kind::Raw(nic) => nic.modify(attr, bits)?,
        }
        if let Some(watch) = self.watch() {
            self.note_change(watch, attr, bits);
        }
        Ok(())
    }

    /// Tells the checker of changed attributes.
    #[cold]
    fn note_change(&self, watch: &QpWatch, attr: &QpAttr, bits: u32) {
        if bits & mask::STATE != 0 && attr.state == nic::QpState::Reset {
            watch.reset();
        }
        if let Kind::Transport(nic) = &self.kind
            && bits & mask::PATH_MTU != 0
            && check::is_on()
            && let Ok(now) = nic.query()
        {
            watch.connected(now.dest_qpn, now.path_mtu, || nic.peer_mtu());
        }
    }

    /// Present attributes.
    pub(crate) fn query(&self) -> Outcome<QpAttr> {
        Ok(match &self.kind {
            Kind::Transport(nic) => nic.query()?,
            Kind::Target(target) => target.query()?,
            Kind::Raw(nic) => nic.query()?,
        })
    }

    /// The extended interface offers this operation.
    pub(crate) fn has_op(&self, kind: u64) -> bool {
        self.send_ops.is_some_and(|ops| ops & kind != 0)
    }

    /// Asynchronous events of it that the program has to acknowledge.
    pub(crate) fn unacked_async(&self) -> &nic::Unacked {
        match &self.kind {
            Kind::Transport(nic) => nic.unacked_async(),
            Kind::Target(target) => target.unacked_async(),
            Kind::Raw(nic) => nic.unacked_async(),
        }
    }
}

entry! {
    pub fn ibv_destroy_qp(qp: *mut ibv_qp) -> errno {
        // SAFETY: by the man page a queue pair that the caller gives up. When its destruction returns, no event of it
        // is left anywhere.
        unsafe {
            let block = QpBlock::ending(qp)?;
            match &block.kind {
                Kind::Transport(nic) => nic.destroy()?,
                Kind::Target(target) => target.close()?,
                Kind::Raw(nic) => nic.destroy()?,
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
