//! Answers to messages without a receiver.

use ferroce_wire::cm::{
    CommIds, Mad, Message, Reject, RejectReason, Rejected, Request, SidrReply, SidrStatus,
};

/// The answer to a message for a port or connection that no process here has; `None` for a message without answer.
///
/// A REQ is rejected, a DREQ is confirmed, and a REP for a forgotten request is rejected, so that the peer doesn't wait.
#[must_use]
pub fn answer_for_nobody(mad: &Mad) -> Option<Mad> {
    let message = match &mad.message {
        Message::Request(request) => Message::Reject(refusal(request, RejectReason::INVALID_SERVICE_ID)),
        Message::Reply(reply) => Message::Reject(Reject {
            rejected: Rejected::Reply,
            ..Reject::of_request(
                CommIds { local: reply.remote_comm_id, remote: reply.local_comm_id },
                RejectReason::INVALID_COMM_ID,
            )
        }),
        Message::DisconnectRequest(request) => {
            Message::DisconnectReply(CommIds { local: request.ids.remote, remote: request.ids.local })
        }
        Message::SidrRequest(request) => {
            let status = SidrStatus::UNSUPPORTED;
            Message::SidrReply(SidrReply::without_qp(request.request_id, status, request.service_id))
        }
        Message::Mra(_)
        | Message::Reject(_)
        | Message::ReadyToUse(_)
        | Message::DisconnectReply(_)
        | Message::SidrReply(_) => return None,
    };
    Some(Mad { transaction: mad.transaction, message })
}

/// The rejection of a request of which nothing is remembered.
pub(crate) fn refusal(request: &Request, reason: RejectReason) -> Reject {
    Reject::of_request(CommIds { local: 0, remote: request.local_comm_id }, reason)
}
