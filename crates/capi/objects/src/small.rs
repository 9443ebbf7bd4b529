//! Objects that consist of nothing but the adapter's object.

use ferroce_nic as nic;
use ferroce_raw::{FlowCounters, SteeringFlow};

use super::block;
use ferroce_abi::verbs::*;

block! {
    AhBlock: ibv_ah, "ah", |c| (c.context, c.handle);
    => ferroce_parts::Ah;
}

block! {
    CountersBlock: ibv_counters, "counters", |c| (c.context, 0);
    => FlowCounters;
}

block! {
    FlowBlock: ibv_flow, "flow_id", |c| (c.context, c.handle);
    => SteeringFlow;
}

block! {
    XrcdBlock: ibv_xrcd, "xrcd", |c| (c.context, 0);
    => nic::Xrcd;
}
