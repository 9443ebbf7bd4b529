//! The connections of a driver.

use crate::session::shared::Shared;
use smallvec::SmallVec;
use std::sync::Arc;

/// A place of the table. Its number is the high half of the tags of a connection's requests.
#[derive(Default)]
enum Place {
    #[default]
    Free,
    /// For a connection that is being made.
    Reserved,
    Taken(Arc<Shared>),
}

#[derive(Default)]
pub(crate) struct Table {
    places: Vec<Place>,
    free: Vec<u32>,
    /// Places of connections that have ended. A completion of one may have been taken from the completion queue.
    ended: SmallVec<[u32; 4]>,
    /// Places and QPNs of connections of which the connection manager has news. The place may be another's since.
    nudged: SmallVec<[(u32, u32); 4]>,
}

impl Table {
    /// Reserves a place.
    pub(crate) fn reserve(&mut self) -> u32 {
        if let Some(place) = self.free.pop() {
            self.places[place as usize] = Place::Reserved;
            return place;
        }
        self.places.push(Place::Reserved);
        (self.places.len() - 1) as u32
    }

    pub(crate) fn put(&mut self, shared: Arc<Shared>) {
        let place = shared.place as usize;
        self.places[place] = Place::Taken(shared);
    }

    pub(crate) fn of_tag(&self, tag: u64) -> Option<Arc<Shared>> {
        match self.places.get((tag >> 32) as usize) {
            Some(Place::Taken(shared)) => Some(shared.clone()),
            _ => None,
        }
    }

    pub(crate) fn nudge(&mut self, place: u32, qpn: u32) {
        self.nudged.push((place, qpn));
    }

    /// A connection has ended, and [`Table::purge`] hasn't been called since.
    #[inline]
    pub(crate) fn has_ended(&self) -> bool {
        !self.ended.is_empty()
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn is_nudged(&self) -> bool {
        !self.nudged.is_empty()
    }

    pub(crate) fn nudged(&mut self) -> SmallVec<[Arc<Shared>; 1]> {
        let nudged = std::mem::take(&mut self.nudged);
        let find = |(place, qpn)| self.of_tag(u64::from(place) << 32).filter(|shared| shared.qpn == qpn);
        nudged.into_iter().filter_map(find).collect()
    }

    pub(crate) fn end(&mut self, place: u32) {
        self.ended.push(place);
    }

    /// Forgets the connections that have ended. The caller drops them outside of locks.
    pub(crate) fn purge(&mut self) -> SmallVec<[Arc<Shared>; 1]> {
        let Self { places, free, ended, .. } = self;
        let purged = ended.drain(..).filter_map(|place| {
            free.push(place);
            match std::mem::take(&mut places[place as usize]) {
                Place::Taken(shared) => Some(shared),
                Place::Free | Place::Reserved => None,
            }
        });
        purged.collect()
    }

    pub(crate) fn all(&self) -> Vec<Arc<Shared>> {
        let taken = self.places.iter().filter_map(|place| match place {
            Place::Taken(shared) => Some(shared.clone()),
            Place::Free | Place::Reserved => None,
        });
        taken.collect()
    }
}
