//! Address handles (ibv_create_ah(3)): where UD packets go, and the paths that were found to there.

use crate::attr::{AddressVector, limit_of};
use crate::path::{Path, ResolvedAv};
use ferroce_mem::Pd;
use ferroce_os::sync::{Mutex, class};
use ferroce_proto::{RateLimit, Throttle};
use ferroce_types::{Instant, Quota, QuotaPlace, Result, slot_of};
use smallvec::SmallVec;
use std::sync::Arc;

/// What is known of the path to a QP.
pub enum PathLookup {
    /// It is this one.
    Known(Path),
    /// It has to be found by the adapter.
    Unknown,
    /// There is none.
    None,
}

/// Address handles that a process may have.
pub const MAX_AH: u32 = 1 << 20;
static HANDLES: Quota = Quota::new("address handles", MAX_AH);

/// A path to the QPs of one process.
#[derive(Debug)]
struct CachedPath {
    slot: u16,
    /// The adapter's.
    generation: u32,
    /// `None`: none could be made.
    path: Option<Path>,
}

impl CachedPath {
    fn is_of(&self, slot: u16, generation: u32) -> bool {
        (self.slot, self.generation) == (slot, generation)
    }

    fn is_dead(&self) -> bool {
        matches!(&self.path, Some(Path::Shm { link, .. }) if link.is_dead())
    }
}

/// An address handle: where UD packets go.
#[derive(Debug)]
pub struct Ah {
    pd: Arc<Pd>,
    av: AddressVector,
    route: ResolvedAv,
    /// What may go there, and what has gone.
    limit: Option<RateLimit>,
    throttle: Mutex<class::Throttle, Throttle>,
    /// The paths that were found last, oldest first. Most handles lead to one process.
    found: Mutex<class::AhPath, SmallVec<[CachedPath; 1]>>,
    _held: QuotaPlace,
}

impl Ah {
    /// Processes of one host to which paths are known at a time.
    pub const PATHS: usize = 32;

    /// A handle of `av`, which `route` resolves.
    ///
    /// # Errors
    /// ENOMEM when there are `MAX_AH` handles.
    pub fn new(pd: &Arc<Pd>, av: AddressVector, route: ResolvedAv) -> Result<Arc<Self>> {
        let held = HANDLES.take()?;
        pd.hold();
        let (limit, throttle, found) = (limit_of(av.static_rate), Mutex::default(), Mutex::default());
        Ok(Arc::new(Self { pd: pd.clone(), av, route, limit, throttle, found, _held: held }))
    }

    /// The address vector it was made of.
    #[must_use]
    pub fn vector(&self) -> &AddressVector {
        &self.av
    }

    /// Its protection domain.
    #[must_use]
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// Ends the handle (ibv_destroy_ah(3)). Sends that were posted with it still go out.
    pub fn destroy(&self) {
        self.pd.release();
    }

    /// May something go there now, by the static rate?
    ///
    /// # Errors
    /// When to ask again.
    #[inline]
    pub fn ask(&self, now: Instant) -> std::result::Result<(), Instant> {
        if self.limit.is_none() { Ok(()) } else { self.throttle.lock().ask(now, self.limit) }
    }

    /// A packet with this many bytes of payload has gone.
    #[inline]
    pub fn sent(&self, now: Instant, bytes: usize) {
        if self.limit.is_some() {
            self.throttle.lock().sent(now, bytes as u32, 1, self.limit);
        }
    }

    /// The path to a QP at this address, if it is known. Asks no other process and opens no socket.
    /// `generation`: the adapter's.
    #[inline]
    pub fn path_to(&self, generation: u32, qpn: u32) -> PathLookup {
        let mut found = self.found.lock();
        let slot = slot_of(qpn);
        let Some(at) = found.iter().position(|found| found.is_of(slot, generation)) else {
            return PathLookup::Unknown;
        };
        match &found[at].path {
            _ if found[at].is_dead() => PathLookup::Unknown,
            Some(path) => PathLookup::Known(path.clone()),
            None => {
                // For one packet: by the next there may be one.
                found.remove(at);
                PathLookup::None
            }
        }
    }

    /// Where the address is.
    #[inline]
    pub fn route(&self) -> &ResolvedAv {
        &self.route
    }

    /// Keeps the path to the QPs of a process for [`Ah::path_to`]. `None`: there is none.
    pub fn keep_path(&self, generation: u32, slot: u16, path: Option<Path>) {
        let mut found = self.found.lock();
        found.retain(|old| old.generation == generation && old.slot != slot && !old.is_dead());
        if found.len() == Self::PATHS {
            found.remove(0);
        }
        found.push(CachedPath { slot, generation, path });
    }
}
