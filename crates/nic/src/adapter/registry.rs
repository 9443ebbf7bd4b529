//! Every queue pair and work queue of the process, and every open context, so that news of the network reach it.

use crate::Context;
use crate::qp::Qp;
use crate::raw::{RawQp, Wq};
use crate::xrc::{Domain, DomainFile};
use ferroce_os::fork::InChild;
use ferroce_os::sync::{Mutex, class};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

#[derive(Default)]
struct Registry {
    qps: BTreeMap<usize, Weak<Qp>>,
    raw_qps: BTreeMap<usize, Weak<RawQp>>,
    wqs: BTreeMap<usize, Weak<Wq>>,
    contexts: Vec<Weak<Context>>,
    /// The XRC domains of files.
    domains: BTreeMap<DomainFile, Weak<Domain>>,
}

static REGISTRY: Mutex<class::Registry, Option<Registry>> = Mutex::new(None);

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

/// What exists of a context, or by its handles.
pub(crate) struct Existing {
    pub(crate) qps: Vec<Arc<Qp>>,
    pub(crate) raw_qps: Vec<Arc<RawQp>>,
}

/// The queue pairs of `context`, and the XRC targets of others, of which it may have handles.
pub(crate) fn existing(context: &Context) -> Existing {
    let is_it = |other: &Arc<Context>| std::ptr::eq(Arc::as_ptr(other), context);
    // What is the last reference to an object must not be dropped here, where the registry is locked.
    let (qps, raw_qps) = with(|r| {
        fn alive<T>(all: &BTreeMap<usize, Weak<T>>) -> Vec<Arc<T>> {
            all.values().filter_map(Weak::upgrade).collect()
        }
        (alive(&r.qps), alive(&r.raw_qps))
    });
    Existing {
        qps: qps.into_iter().filter(|qp| qp.is_target() || is_it(&qp.context())).collect(),
        raw_qps: raw_qps.into_iter().filter(|qp| is_it(&qp.context())).collect(),
    }
}

/// In the child of a fork: frees critical regions from threads that aren't here. No other thread is.
pub(super) fn free_critical_regions(child: &InChild) {
    // Locked, it is by a call that the fork has interrupted: then verbs can't be used any more.
    let Some(registry) = REGISTRY.try_lock() else { return };
    let Some(all) = &*registry else { return };
    all.qps.values().filter_map(Weak::upgrade).for_each(|qp| qp.wr_session().after_fork(child));
    all.raw_qps.values().filter_map(Weak::upgrade).for_each(|qp| qp.wr_session().after_fork(child));
}
