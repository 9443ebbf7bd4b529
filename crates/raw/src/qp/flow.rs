//! Flows: which frames go to which QP (ibv_create_flow(3)).

use super::RawQp;
use super::port::Membership;
use crate::counters::FlowCounters;
use crate::frame::IncomingFrame;
use crate::spec::{self, Match, Spec};
use ferroce_types::{Result, invalid};
use std::sync::Arc;

/// What kind of rule a flow is (`enum ibv_flow_attr_type`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlowKind {
    /// Frames that match its specifications.
    Normal,
    /// Frames that no other flow has taken.
    AllDefault,
    /// Multicast frames that no other flow has taken.
    McDefault,
    /// All frames, besides what other flows do with them.
    Sniffer,
}

/// What a new flow is made of.
#[derive(Clone, Debug)]
pub struct FlowInit {
    /// The kind of rule.
    pub kind: FlowKind,
    /// Rules of a lower number are looked at first.
    pub priority: u16,
    /// Rules of a higher number see the frame too.
    pub dont_trap: bool,
    /// What frames must look like: all of them. None: all frames.
    pub specs: Vec<Spec>,
    /// Comes with the completion.
    pub tag: u32,
    /// Frames that match go nowhere.
    pub drop: bool,
    /// Count frames that match.
    pub counters: Vec<Arc<FlowCounters>>,
}

/// A rule in force.
#[derive(Debug)]
pub struct SteeringFlow {
    init: FlowInit,
    qp: Arc<RawQp>,
}

impl SteeringFlow {
    /// Steers frames to `qp` from here on.
    ///
    /// # Errors
    /// [`Error::Invalid`](ferroce_types::Error::Invalid) for specifications that contradict one another or a kind of rule that
    /// takes none; what the system refused.
    pub fn create(qp: &Arc<RawQp>, init: FlowInit) -> Result<Arc<Self>> {
        spec::check(&init.specs)?;
        if init.kind != FlowKind::Normal && (!init.specs.is_empty() || init.dont_trap) {
            return invalid!("{:?} flows take no specification and no DONT_TRAP", init.kind);
        }
        init.counters.iter().for_each(|counters| counters.hold());
        let flow = Arc::new(Self { init, qp: qp.clone() });
        qp.port().add_flow(&flow).inspect_err(|_| flow.release_counters())?;
        qp.hold();
        Ok(flow)
    }

    /// Ends the rule (ibv_destroy_flow(3)): when this returns, no frame is steered by it any more.
    pub fn destroy(self: &Arc<Self>) {
        self.qp.port().remove_flow(self);
        self.release_counters();
        self.qp.release();
    }

    fn release_counters(&self) {
        self.init.counters.iter().for_each(|counters| counters.release());
    }

    pub(super) fn kind(&self) -> FlowKind {
        self.init.kind
    }

    fn priority(&self) -> u16 {
        self.init.priority
    }

    /// What the interface must let pass for this rule.
    pub(super) fn membership(&self, own: [u8; 6]) -> Option<Membership> {
        match self.init.kind {
            FlowKind::AllDefault | FlowKind::Sniffer => return Some(Membership::All),
            FlowKind::McDefault => return Some(Membership::AllMulticast),
            FlowKind::Normal => {}
        }
        self.init.specs.iter().find_map(|spec| match spec {
            Spec { inner: false, header: Match::Ethernet { dst, .. } } if dst.mask == [0xff; 6] => {
                match dst.value {
                    mac if mac == own || mac == [0xff; 6] => None,
                    mac if mac[0] & 1 != 0 => Some(Membership::Multicast(mac)),
                    mac => Some(Membership::Unicast(mac)),
                }
            }
            _ => None,
        })
    }

    fn matches(&self, frame: &IncomingFrame<'_>) -> bool {
        spec::matches(&self.init.specs, &frame.headers)
    }

    fn take(&self, frame: &IncomingFrame<'_>) {
        self.init.counters.iter().for_each(|counters| counters.count(frame.bytes.len()));
        if !self.init.drop {
            self.qp.receive(frame, self.init.tag);
        }
    }
}

/// The rules of one interface in this process, in the order in which they are looked at.
#[derive(Debug, Default)]
pub(super) struct SteeringRules {
    sniffers: Vec<Arc<SteeringFlow>>,
    normal: Vec<Arc<SteeringFlow>>,
    multicast: Vec<Arc<SteeringFlow>>,
    all: Vec<Arc<SteeringFlow>>,
}

impl SteeringRules {
    fn list(&mut self, kind: FlowKind) -> &mut Vec<Arc<SteeringFlow>> {
        match kind {
            FlowKind::Normal => &mut self.normal,
            FlowKind::AllDefault => &mut self.all,
            FlowKind::McDefault => &mut self.multicast,
            FlowKind::Sniffer => &mut self.sniffers,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        [&self.sniffers, &self.normal, &self.multicast, &self.all].iter().all(|list| list.is_empty())
    }

    pub(super) fn add(&mut self, flow: &Arc<SteeringFlow>) {
        let list = self.list(flow.kind());
        let at = list.partition_point(|other| other.priority() <= flow.priority());
        list.insert(at, flow.clone());
    }

    pub(super) fn remove(&mut self, flow: &Arc<SteeringFlow>) {
        self.list(flow.kind()).retain(|other| !Arc::ptr_eq(other, flow));
    }

    /// Gives a frame to all sniffers; then to the matching rules of the first priority that has any, and of those after it
    /// as long as none of them traps; and to the default rules if it wasn't trapped. Whether any rule took it.
    pub(super) fn distribute(&self, frame: &IncomingFrame<'_>) -> bool {
        self.sniffers.iter().for_each(|flow| flow.take(frame));
        let (mut trapped, mut taken) = (None, !self.sniffers.is_empty());
        for flow in &self.normal {
            if trapped.is_some_and(|priority| priority != flow.priority()) {
                break;
            }
            if flow.matches(frame) {
                if !flow.init.dont_trap {
                    trapped = Some(flow.priority());
                }
                taken = true;
                flow.take(frame);
            }
        }
        if trapped.is_some() {
            return true;
        }
        let multicast = frame.is_multicast() && !self.multicast.is_empty();
        let default = if multicast { &self.multicast } else { &self.all };
        default.iter().for_each(|flow| flow.take(frame));
        taken || !default.is_empty()
    }
}
