//! Why a queue pair fails, in the explainer's words.

use crate::adapter::{Key, User};
use crate::keys::key_fault;
use ferroce_buffers::{Fault, Status};
use ferroce_explain::{KeyFault, Reason};
use ferroce_proto::{
    Cause, Data, Failure, Refusing, RequestedAccess, SendOp, SendWr, ack_timeout, rnr_delay,
};
use ferroce_types::{Sge, WcStatus, vendor_err};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;

/// The reason of a failure.
pub(crate) fn reason(keys: &BTreeMap<u32, Key>, user: User, failure: &Failure<'_, Ipv4Addr>) -> Reason {
    let params = failure.params;
    match failure.cause {
        Cause::Refused { status, told } => Reason::Peer { reported: told, status },
        Cause::NoAnswer { asked_for: Some(expected), .. } => {
            Reason::Psn { sent: Some(params.sq_psn), expected: Some(expected) }
        }
        Cause::NoAnswer { tries, answered, .. } => {
            Reason::NoAnswer { tries, each: ack_timeout(params.timeout).unwrap_or_default(), answered }
        }
        Cause::SequenceErrors => Reason::SequenceErrors,
        Cause::NotReady { tries, timer, told } => {
            Reason::NotReady { reported: told, tries, wait: rnr_delay(timer) }
        }
        Cause::StillNotReady { waited, told } => Reason::StillNotReady { reported: told, waited },
        Cause::LocalMemory => failure.request.map_or(Reason::Malformed, |wr| of_request(keys, user, wr)),
        Cause::NoReadDepth => Reason::NoReadDepth,
        Cause::ShortResult => Reason::ShortResult,
        Cause::BadResponse => Reason::BadResponse,
        Cause::Window => match failure.request.map(|wr| wr.op) {
            Some(SendOp::LocalInvalidate { rkey }) => Reason::NotInvalidated { key: rkey },
            _ => Reason::NotBound,
        },
        Cause::Refuses { why, asked } => refusal(keys, user, (why, asked), failure),
        Cause::RefusedElsewhere => Reason::Elsewhere,
        Cause::NoReceive { first: true } => Reason::NeverPosted,
        Cause::NoReceive { first: false } => Reason::NoneLeft,
        Cause::BeforeFirst { psn, expected } => Reason::Psn { sent: Some(psn), expected: Some(expected) },
        Cause::QKey { theirs, .. } => Reason::QKey { theirs, ours: params.qkey },
        Cause::NoRoomForGrh { needs } => Reason::GrhRoom { needs },
        Cause::PostedAfter { reason } => Reason::PostedAfter { first: reason },
        Cause::Overrun => Reason::Overrun,
    }
}

fn refusal(
    keys: &BTreeMap<u32, Key>,
    user: User,
    (why, asked): (Refusing, RequestedAccess),
    failure: &Failure<'_, Ipv4Addr>,
) -> Reason {
    match why {
        Refusing::QpRights => Reason::QpRights,
        Refusing::Depth => Reason::Depth { limit: failure.params.max_dest_rd_atomic },
        Refusing::Misaligned => Reason::Misaligned { va: asked.va },
        Refusing::PacketLength => Reason::PacketLength { len: asked.packet, mtu: failure.params.path_mtu },
        Refusing::Malformed => Reason::Malformed,
        Refusing::TooLong => {
            Reason::TooLong { len: asked.len, room: failure.receive.map_or(0, |wqe| wqe.capacity()) }
        }
        Refusing::Access(access) => {
            let key = asked.rkey;
            match key_fault(keys, (key, user), (asked.va, asked.len), Some(access)) {
                Ok(_) => Reason::Key { key, fault: KeyFault::Gone },
                Err(fault) => Reason::Key { key, fault },
            }
        }
        Refusing::Gone(_) => Reason::Key { key: asked.rkey, fault: KeyFault::Gone },
        Refusing::Receive => failure.receive.map_or(Reason::Malformed, |wqe| of_sges(keys, user, &wqe.sges)),
        Refusing::Invalidation => Reason::NotInvalidated { key: asked.rkey },
        Refusing::NoSrq => Reason::NoSrq,
    }
}

fn of_request(keys: &BTreeMap<u32, Key>, user: User, wr: &SendWr<Ipv4Addr>) -> Reason {
    match &wr.data {
        Data::Sges(sges) => of_sges(keys, user, sges),
        Data::Inline(_) => Reason::Malformed,
    }
}

fn of_sges(keys: &BTreeMap<u32, Key>, user: User, sges: &[Sge]) -> Reason {
    let fault = |sge: &Sge| {
        let range = (sge.addr, u64::from(sge.length));
        key_fault(keys, (sge.lkey, user), range, None).err().map(|fault| (sge.lkey, fault))
    };
    match sges.iter().find_map(fault) {
        Some((key, fault)) => Reason::Key { key, fault },
        // The keys are right, so the memory isn't lent any more.
        None => Reason::Key { key: sges.first().map_or(0, |sge| sge.lkey), fault: KeyFault::Gone },
    }
}

/// A fault for the program.
pub(crate) fn fault(status: WcStatus, number: u16, reason: Option<Arc<str>>, first: Option<Fault>) -> Fault {
    let status = Status::from_number(status as u32).unwrap_or(Status::Other(0));
    Fault::new(status, vendor_err(number), reason, first)
}
