//! Every object of the process that has a lock, so that a fork can hold them all still, and every open context, so
//! that news of the network reach it.

use crate::Context;
use crate::cq::Cq;
use crate::mem::MrTable;
use crate::qp::Qp;
use crate::raw::{RawQp, Wq};
use crate::recv::Srq;
use crate::sync::Mutex;
use crate::xrc::{Domain, DomainFile};
use std::collections::HashMap;
use std::sync::{Arc, Weak};

#[derive(Default)]
struct Registry {
    qps: HashMap<usize, Weak<Qp>>,
    raw_qps: HashMap<usize, Weak<RawQp>>,
    srqs: HashMap<usize, Weak<Srq>>,
    wqs: HashMap<usize, Weak<Wq>>,
    cqs: HashMap<usize, Weak<Cq>>,
    contexts: Vec<Weak<Context>>,
    /// The XRC domains of files.
    domains: HashMap<DomainFile, Weak<Domain>>,
}

static REGISTRY: Mutex<Option<Registry>> = Mutex::new(None);

fn with<R>(f: impl FnOnce(&mut Registry) -> R) -> R {
    f(REGISTRY.lock().get_or_insert_default())
}

macro_rules! kind {
    ($register:ident, $unregister:ident, $field:ident: $type:ty) => {
        pub(crate) fn $register(object: &Arc<$type>) {
            with(|r| r.$field.insert(Arc::as_ptr(object) as usize, Arc::downgrade(object)));
        }

        pub(crate) fn $unregister(object: &Arc<$type>) {
            with(|r| r.$field.remove(&(Arc::as_ptr(object) as usize)));
        }
    };
}

kind!(register_qp, unregister_qp, qps: Qp);
kind!(register_raw_qp, unregister_raw_qp, raw_qps: RawQp);
kind!(register_wq, unregister_wq, wqs: Wq);
kind!(register_srq, unregister_srq, srqs: Srq);
kind!(register_cq, unregister_cq, cqs: Cq);

pub(crate) fn register_context(context: &Arc<Context>) {
    with(|r| {
        r.contexts.retain(|c| c.strong_count() > 0);
        r.contexts.push(Arc::downgrade(context));
    });
}

/// The XRC domain of a file, as `choose` makes it of the one there is, if there is one. Without a file it is a new one.
pub(crate) fn domain<E>(
    file: Option<&DomainFile>,
    choose: impl FnOnce(Option<Arc<Domain>>) -> Result<Arc<Domain>, E>,
) -> Result<Arc<Domain>, E> {
    with(|r| {
        r.domains.retain(|_, domain| domain.strong_count() > 0);
        let found = file.and_then(|file| r.domains.get(file)).and_then(Weak::upgrade);
        let chosen = choose(found)?;
        if let Some(file) = file {
            r.domains.insert(file.clone(), Arc::downgrade(&chosen));
        }
        Ok(chosen)
    })
}

/// The open contexts.
pub(crate) fn contexts() -> Vec<Arc<Context>> {
    with(|r| r.contexts.iter().filter_map(Weak::upgrade).collect())
}

/// What exists of a context.
pub(crate) struct Existing {
    pub(crate) qps: Vec<Arc<Qp>>,
    pub(crate) raw_qps: Vec<Arc<RawQp>>,
    pub(crate) srqs: usize,
    pub(crate) cqs: usize,
}

/// The queues of `context`.
pub(crate) fn existing(context: &Context) -> Existing {
    let is_it = |other: &Arc<Context>| std::ptr::eq(Arc::as_ptr(other), context);
    // What is the last reference to an object must not be dropped here, where the registry is locked.
    let (qps, raw_qps, srqs, cqs) = with(|r| {
        fn alive<T>(all: &HashMap<usize, Weak<T>>) -> Vec<Arc<T>> {
            all.values().filter_map(Weak::upgrade).collect()
        }
        (alive(&r.qps), alive(&r.raw_qps), alive(&r.srqs), alive(&r.cqs))
    });
    Existing {
        qps: qps.into_iter().filter(|qp| is_it(qp.context())).collect(),
        raw_qps: raw_qps.into_iter().filter(|qp| is_it(qp.context())).collect(),
        srqs: srqs.iter().filter(|srq| is_it(srq.context())).count(),
        cqs: cqs.iter().filter(|cq| is_it(cq.context())).count(),
    }
}

/// Everything that a fork holds still. Locks are taken in the order in which the rest of the crate takes them: a QP's,
/// then those of SRQs, then those of CQs, then the keys, then the handles.
pub(super) struct Frozen {
    qps: Vec<Arc<Qp>>,
    raw_qps: Vec<Arc<RawQp>>,
    srqs: Vec<Arc<Srq>>,
    wqs: Vec<Arc<Wq>>,
    cqs: Vec<Arc<Cq>>,
    contexts: Vec<Arc<Context>>,
}

/// Waits for whoever is at work and keeps all others out.
pub(super) fn freeze() -> Frozen {
    let mut registry = REGISTRY.lock();
    let all = registry.get_or_insert_default();
    let frozen = Frozen {
        qps: all.qps.values().filter_map(Weak::upgrade).collect(),
        raw_qps: all.raw_qps.values().filter_map(Weak::upgrade).collect(),
        srqs: all.srqs.values().filter_map(Weak::upgrade).collect(),
        wqs: all.wqs.values().filter_map(Weak::upgrade).collect(),
        cqs: all.cqs.values().filter_map(Weak::upgrade).collect(),
        contexts: all.contexts.iter().filter_map(Weak::upgrade).collect(),
    };
    frozen.qps.iter().for_each(|qp| qp.freeze());
    frozen.raw_qps.iter().for_each(|qp| qp.freeze());
    frozen.srqs.iter().for_each(|srq| srq.freeze());
    frozen.wqs.iter().for_each(|wq| wq.freeze());
    frozen.cqs.iter().for_each(|cq| cq.freeze());
    MrTable::global().freeze();
    frozen.contexts.iter().for_each(|context| context.handles().freeze());
    std::mem::forget(registry);
    frozen
}

/// Lets everybody go on.
///
/// # Safety
/// This thread, or in a child its original, made `frozen`.
pub(super) unsafe fn thaw(frozen: &Frozen) {
    // SAFETY: all of these were locked by `freeze`, and nobody else can have unlocked them.
    unsafe {
        frozen.contexts.iter().for_each(|context| context.handles().thaw());
        MrTable::global().thaw();
        frozen.cqs.iter().for_each(|cq| cq.thaw());
        frozen.wqs.iter().for_each(|wq| wq.thaw());
        frozen.srqs.iter().for_each(|srq| srq.thaw());
        frozen.raw_qps.iter().for_each(|qp| qp.thaw());
        frozen.qps.iter().for_each(|qp| qp.thaw());
        REGISTRY.force_unlock();
    }
}
