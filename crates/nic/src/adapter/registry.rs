//! Every queue pair of the process but raw ones, and every open context, so that news of the network reach it.

use crate::Context;
use crate::qp::Qp;
use ferroce_mem::is_same;
use ferroce_os::fork::InChild;
use ferroce_os::sync::{Mutex, class};
use ferroce_xrc::{Domain, DomainFile};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

#[derive(Default)]
struct Registry {
    qps: BTreeMap<usize, Weak<Qp>>,
    contexts: Vec<Weak<Context>>,
    /// The XRC domains of files.
    domains: BTreeMap<DomainFile, Weak<Domain>>,
}

static REGISTRY: Mutex<class::Registry, Option<Registry>> = Mutex::new(None);

fn with<R>(f: impl FnOnce(&mut Registry) -> R) -> R {
    f(REGISTRY.lock().get_or_insert_default())
}

pub(crate) fn register_qp(qp: &Arc<Qp>) {
    with(|r| r.qps.insert(Arc::as_ptr(qp) as usize, Arc::downgrade(qp)));
}

pub(crate) fn unregister_qp(qp: &Arc<Qp>) {
    with(|r| r.qps.remove(&(Arc::as_ptr(qp) as usize)));
}

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

/// The queue pairs of `context`, and the XRC targets of others, of which it may have handles.
pub(crate) fn qps_of(context: &Context) -> Vec<Arc<Qp>> {
    // What is the last reference to an object must not be dropped here, where the registry is locked.
    let qps: Vec<Arc<Qp>> = with(|r| r.qps.values().filter_map(Weak::upgrade).collect());
    let is_of = |qp: &Arc<Qp>| qp.is_target() || is_same(&**qp.pd().owner(), context);
    qps.into_iter().filter(is_of).collect()
}

/// In the child of a fork: frees critical regions from threads that aren't here. No other thread is.
pub(super) fn free_critical_regions(child: &InChild) {
    // Locked, it is by a call that the fork has interrupted: then verbs can't be used any more.
    let Some(registry) = REGISTRY.try_lock() else { return };
    let Some(all) = &*registry else { return };
    all.qps.values().filter_map(Weak::upgrade).for_each(|qp| qp.wr_session().after_fork(child));
}
