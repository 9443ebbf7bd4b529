//! Queue pairs.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use ferroce_nic as nic;
use ferroce_parts::{QpAttr, mask};
use ferroce_raw::RawQp;

use super::block;
use ferroce_abi::verbs::*;
use ferroce_check::{self as check, QpWatch};
use ferroce_entry::call::{Outcome, Refusal};

/// The adapter's object behind a queue pair.
pub enum QpObject {
    /// One of the transport services RC, UC and UD, or an XRC initiator.
    Transport(Arc<nic::Qp>),
    /// A handle of an XRC target.
    Target(nic::XrcTarget),
    /// Ethernet frames.
    Raw(Arc<RawQp>),
}

/// What does a queue pair's work.
#[derive(Clone, Copy)]
pub enum QpWork<'a> {
    /// A transport service.
    Transport(&'a Arc<nic::Qp>),
    /// Ethernet frames.
    Raw(&'a Arc<RawQp>),
}

block! {
    /// All have room for the extended part.
    QpBlock: ibv_qp_ex as ibv_qp, "qp", |c| (c.context, c.handle);
    /// The adapter's object, by the kind of queue pair.
    kind: QpObject,
    /// What the extended interface offers (`IBV_QP_EX_WITH_*`), if the program asked for it.
    send_ops: Option<u64>,
    /// The access flags as they were set: those for local access mean nothing to the adapter, but are given back.
    access: AtomicU32,
    /// For the checker, of a transport service.
    watch: Option<Arc<QpWatch>>,
}

impl QpBlock {
    /// The queue pair, if it is one of a transport service.
    pub fn nic(&self) -> Outcome<&Arc<nic::Qp>> {
        match self.work() {
            QpWork::Transport(nic) => Ok(nic),
            QpWork::Raw(_) => Err(Refusal::unsupported("a raw packet queue pair can't do this")),
        }
    }

    /// The queue pair, if it is one for Ethernet frames.
    pub fn raw(&self) -> Outcome<&Arc<RawQp>> {
        match self.work() {
            QpWork::Raw(nic) => Ok(nic),
            QpWork::Transport(nic) if nic.service() == ferroce_wire::Service::Ud => {
                Err(Refusal::unsupported("this for UD queue pairs: only for raw packet queue pairs"))
            }
            QpWork::Transport(nic) => {
                Err(Refusal::invalid(format!("{:?} queue pairs don't have this", nic.service())))
            }
        }
    }

    /// What does the queue pair's work.
    pub fn work(&self) -> QpWork<'_> {
        match &self.kind {
            QpObject::Transport(nic) => QpWork::Transport(nic),
            QpObject::Target(target) => QpWork::Transport(target.qp()),
            QpObject::Raw(nic) => QpWork::Raw(nic),
        }
    }

    /// What the checker knows of it, if there is one.
    pub fn watch(&self) -> Option<&Arc<QpWatch>> {
        self.watch.as_ref()
    }

    /// Changes attributes and state.
    pub fn modify(&self, attr: &QpAttr, bits: u32) -> Outcome<()> {
        match &self.kind {
            QpObject::Transport(nic) => nic.modify(attr, bits)?,
            QpObject::Target(target) => target.modify(attr, bits)?,
            QpObject::Raw(nic) => nic.modify(attr, bits)?,
        }
        if let Some(watch) = self.watch() {
            self.note_change(watch, attr, bits);
        }
        Ok(())
    }

    /// Reports changed attributes to the checker.
    #[cold]
    fn note_change(&self, watch: &QpWatch, attr: &QpAttr, bits: u32) {
        if bits & mask::STATE != 0 && attr.state == ferroce_types::QpState::Reset {
            watch.reset();
        }
        if let QpObject::Transport(nic) = &self.kind
            && bits & mask::PATH_MTU != 0
            && check::is_on()
            && let Ok(now) = nic.query()
        {
            watch.connected(now.dest_qpn, now.path_mtu, || nic.peer_mtu());
        }
    }

    /// Present attributes.
    pub fn query(&self) -> Outcome<QpAttr> {
        Ok(match &self.kind {
            QpObject::Transport(nic) => nic.query()?,
            QpObject::Target(target) => target.query()?,
            QpObject::Raw(nic) => nic.query()?,
        })
    }

    /// The extended interface offers this operation.
    pub fn has_op(&self, kind: u64) -> bool {
        self.send_ops.is_some_and(|ops| ops & kind != 0)
    }

    /// Asynchronous events of it that the program has to acknowledge.
    pub fn unacked_async(&self) -> &ferroce_queues::Unacked {
        match &self.kind {
            QpObject::Transport(nic) => nic.unacked_async(),
            QpObject::Target(target) => target.unacked_async(),
            QpObject::Raw(nic) => nic.unacked_async(),
        }
    }
}
