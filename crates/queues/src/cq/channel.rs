//! Completion channels: where the events of completion queues wait for a reader.

use super::Cq;
use crate::events::EventQueue;
use ferroce_mem::Owner;
use ferroce_types::{Result, Users};
use std::sync::Arc;

/// A completion channel (ibv_create_comp_channel(3)): events that carry the user handle of their completion queue.
#[derive(Debug)]
pub struct CompChannel {
    owner: Arc<dyn Owner>,
    events: EventQueue<Arc<Cq>>,
    pub(super) users: Users,
}

impl CompChannel {
    /// A new channel.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new<O: Owner>(owner: &Arc<O>) -> Result<Arc<Self>> {
        Ok(Arc::new(Self { owner: owner.clone(), events: EventQueue::new()?, users: Users::default() }))
    }

    /// The open device that it belongs to.
    #[must_use]
    pub fn owner(&self) -> &Arc<dyn Owner> {
        &self.owner
    }

    /// The events. A caller that takes one must call [`Cq::unacked`]`().got()` for its queue.
    #[must_use]
    pub fn events(&self) -> &EventQueue<Arc<Cq>> {
        &self.events
    }

    /// Completion queues whose events come here.
    #[must_use]
    pub fn queues(&self) -> usize {
        self.users.count()
    }

    /// May the channel be destroyed?
    ///
    /// # Errors
    /// [`ferroce_types::Error::Busy`] while a completion queue uses it.
    pub fn check_unused(&self) -> Result<()> {
        self.users.check_none("the channel still has completion queues")
    }
}
