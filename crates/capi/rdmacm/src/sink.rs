//! The receiver of an id's events from the communication manager: it queues them, and repeats a request that came too early.

use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use ferroce_connect::{CmEvent, ConnectionEvent, RejectReason, SidrStatus, Sink};

use crate::agreed::Agreed;
use crate::explained;
use crate::id::{CmId, IdStep};
use crate::later::{self, Task};
use crate::news::IdNews;

/// The receiver of the events of an id's port and connection.
pub(crate) fn sink(id: &Arc<CmId>) -> Arc<dyn Sink> {
    Arc::new(IdSink(Arc::downgrade(id)))
}

/// Passes events to an id that may have been destroyed.
struct IdSink(Weak<CmId>);

impl Sink for IdSink {
    fn event(&self, event: CmEvent) {
        if let Some(id) = self.0.upgrade() {
            receive(&id, event);
        }
    }

    fn port_closed(&self, peer: SocketAddr, rest: Duration) {
        explained::port_closed(peer, rest);
    }
}

/// An event of the port or the connection of `id`.
fn receive(id: &Arc<CmId>, event: CmEvent) {
    let has_no_owner = match &event {
        CmEvent::Of(ConnectionEvent::Rejected(reject)) => reject.reason == RejectReason::INVALID_SERVICE_ID,
        CmEvent::Of(ConnectionEvent::Answer(reply)) => reply.status == SidrStatus::UNSUPPORTED,
        _ => false,
    };
    let Some(event) = unless_asked_again(id, has_no_owner, event) else { return };
    match &event {
        CmEvent::Of(ConnectionEvent::Reply(reply)) => {
            let mut state = id.state.lock();
            state.agreed = match std::mem::replace(&mut state.agreed, Agreed::Nothing) {
                Agreed::Asked(own) => Agreed::Answered(own, reply.clone()),
                other => other,
            };
        }
        CmEvent::Of(
            ConnectionEvent::Rejected(_)
            | ConnectionEvent::Unreachable
            | ConnectionEvent::Disconnected { .. },
        ) => id.state.lock().agreed = Agreed::Over,
        CmEvent::Of(
            ConnectionEvent::Established | ConnectionEvent::TimewaitExit | ConnectionEvent::Answer(_),
        )
        | CmEvent::Request(_)
        | CmEvent::Lookup(_) => {}
    }
    id.push(IdNews::Cm(event));
}

/// The answer to a request. `None`: the port has no owner, and the request is repeated since it may have come too early. The answer is kept
/// for the case that the program ends the id before.
fn unless_asked_again(id: &Arc<CmId>, has_no_owner: bool, answer: CmEvent) -> Option<CmEvent> {
    if !has_no_owner {
        return Some(answer);
    }
    {
        let mut state = id.state.lock();
        match &mut state.early {
            Some(early) if Instant::now() < early.until => early.refused = Some(answer),
            early => {
                *early = None;
                return Some(answer);
            }
        }
    }
    later::try_later(Box::new(Again(id.clone())));
    None
}

/// Ends the repetition of a refused request: the refusal becomes the program's event. False: there is none.
pub(crate) fn give_up(id: &Arc<CmId>) -> bool {
    let early = id.state.lock().early.take();
    let refusal = early.and_then(|early| early.refused);
    let was_refused = refusal.is_some();
    refusal.into_iter().for_each(|refusal| id.push(IdNews::Cm(refusal)));
    was_refused
}

/// Repeats the refused request of an id.
struct Again(Arc<CmId>);

impl Task for Again {
    fn is_over(&mut self) -> bool {
        // The call whose request was rejected has yet to store its connection, and mustn't overwrite the next one.
        let Self(id) = self;
        if id.is_making_connection() {
            return false;
        }
        let wanted = {
            let mut state = id.state.lock();
            if state.step != IdStep::Connecting {
                return true;
            }
            let Some(early) = &mut state.early else { return true };
            // From here on the request is sent: a call that ends the id comes after it.
            let Some(_) = early.refused.take() else { return true };
            early.wanted.clone()
        };
        // The rejected connection is dropped without a lock.
        let before = id.connection();
        let asked = id.make_connection(|| wanted.ask(sink(id)));
        drop(before);
        if let Err(refusal) = asked {
            tracing::warn!("a request can't be made again: {}", refusal.why);
            id.push(IdNews::Cm(CmEvent::Of(ConnectionEvent::Unreachable)));
        }
        true
    }

    fn give_up(&mut self) {
        _ = give_up(&self.0);
    }
}
