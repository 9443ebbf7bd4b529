//! What events mean: those of rdma_cm, those of devices, and why a connection is rejected.

use crate::Word;
use crate::statuses::word;

/// `enum rdma_cm_event_type`.
pub const CM_EVENTS: &[Word] = &[
    word("RDMA_CM_EVENT_ADDR_RESOLVED", 0, "", "rdma_resolve_addr has found the address and the device."),
    word(
        "RDMA_CM_EVENT_ADDR_ERROR",
        1,
        "",
        "rdma_resolve_addr has failed; the event's status is a negative errno. -110 (ETIMEDOUT): no neighbour answers for the \
         address. Check the address and that the host is up: `ferroce doctor ADDRESS`.",
    ),
    word("RDMA_CM_EVENT_ROUTE_RESOLVED", 2, "", "rdma_resolve_route has found the path."),
    word(
        "RDMA_CM_EVENT_ROUTE_ERROR",
        3,
        "",
        "rdma_resolve_route has failed; the event's status is a negative errno.",
    ),
    word(
        "RDMA_CM_EVENT_CONNECT_REQUEST",
        4,
        "",
        "A client wants to connect. Answer by rdma_accept or rdma_reject within about a minute.",
    ),
    word(
        "RDMA_CM_EVENT_CONNECT_RESPONSE",
        5,
        "",
        "The server has accepted, and the id has no QP of rdma_create_qp: take the QP to RTS, then call rdma_establish.",
    ),
    word(
        "RDMA_CM_EVENT_CONNECT_ERROR",
        6,
        "",
        "The connection failed on this side, usually while the QP was taken to RTR or RTS; the event's status is a negative errno.",
    ),
    word(
        "RDMA_CM_EVENT_UNREACHABLE",
        7,
        "",
        "The peer has not answered. The event's status is a negative errno. No process uses Ferroce at that host, or packets to UDP \
         port 4791 are dropped on the way: `ferroce doctor ADDRESS`.",
    ),
    word(
        "RDMA_CM_EVENT_REJECTED",
        8,
        "",
        "The peer rejects the connection. The event's status is the reason: 8: no process listens at this port; 28: the program at the peer called \
         rdma_reject; 10: a stale connection; 4: the peer waited too long. Start the server first, and check port and port space.",
    ),
    word("RDMA_CM_EVENT_ESTABLISHED", 9, "", "The connection is ready."),
    word(
        "RDMA_CM_EVENT_DISCONNECTED",
        10,
        "",
        "The peer has called rdma_disconnect or has ended, or this side has disconnected. Outstanding requests are flushed.",
    ),
    word("RDMA_CM_EVENT_DEVICE_REMOVAL", 11, "", "The device is gone: destroy the id."),
    word("RDMA_CM_EVENT_MULTICAST_JOIN", 12, "", "rdma_join_multicast has joined the group."),
    word(
        "RDMA_CM_EVENT_MULTICAST_ERROR",
        13,
        "",
        "rdma_join_multicast has failed; the event's status is a negative errno.",
    ),
    word("RDMA_CM_EVENT_ADDR_CHANGE", 14, "", "The address of the id's device has changed."),
    word(
        "RDMA_CM_EVENT_TIMEWAIT_EXIT",
        15,
        "",
        "The QP has left its time of waiting after a disconnection: it can be used again.",
    ),
];

/// The reasons of RDMA_CM_EVENT_REJECTED (IBTA table 112), as programs see them in the event's status.
pub const REJECTIONS: &[Word] = &[
    word("IB_CM_REJ_NO_QP", 1, "", "The peer has no QP left."),
    word("IB_CM_REJ_NO_RESOURCES", 3, "", "The peer has no resources left."),
    word("IB_CM_REJ_TIMEOUT", 4, "", "The peer has waited too long for the next message."),
    word("IB_CM_REJ_UNSUPPORTED", 5, "", "The peer doesn't support the request."),
    word(
        "IB_CM_REJ_INVALID_COMM_ID",
        6,
        "",
        "The peer doesn't know the connection: its process may have ended.",
    ),
    word(
        "IB_CM_REJ_INVALID_SERVICE_ID",
        8,
        "",
        "No process listens at this port in this port space (RDMA_PS_TCP, RDMA_PS_UDP, RDMA_PS_IB). Start the server first; `ferroce ps` shows the \
         listeners at its host.",
    ),
    word("IB_CM_REJ_STALE_CONN", 10, "", "The peer still has an older connection with these QP numbers."),
    word(
        "IB_CM_REJ_CONSUMER_DEFINED",
        28,
        "",
        "The program at the peer has called rdma_reject, or has destroyed the id of the request.",
    ),
];

/// `enum ibv_event_type`, as far as the adapter reports it.
pub const ASYNC_EVENTS: &[Word] = &[
    word(
        "IBV_EVENT_CQ_ERR",
        0,
        "CQ error",
        "A completion queue has overrun (FC070): make it larger, or poll before more is posted.",
    ),
    word(
        "IBV_EVENT_QP_FATAL",
        1,
        "local work queue catastrophic error",
        "A QP has failed, and no completion could report it: its completion queue has overrun, or the peer's request was refused. The \
         QP is in ERR.",
    ),
    word(
        "IBV_EVENT_QP_REQ_ERR",
        2,
        "invalid request local work queue error",
        "The peer has sent a request that this QP refuses as invalid. The QP is in ERR; a line on standard error has the reason.",
    ),
    word(
        "IBV_EVENT_QP_ACCESS_ERR",
        3,
        "local access violation work queue error",
        "The peer has asked for memory that it may not access: key, rights or range are wrong. The QP is in ERR; a line on standard \
         error has the reason.",
    ),
    word("IBV_EVENT_COMM_EST", 4, "communication established", "A packet has arrived at a QP in RTR."),
    word(
        "IBV_EVENT_SQ_DRAINED",
        5,
        "send queue drained",
        "The send queue of a QP in SQD has no request under way any more.",
    ),
    word(
        "IBV_EVENT_DEVICE_FATAL",
        8,
        "local catastrophic error",
        "The device has failed: close it, and open it anew.",
    ),
    word("IBV_EVENT_PORT_ACTIVE", 9, "port active", "The network interface is up."),
    word("IBV_EVENT_PORT_ERR", 10, "port error", "The network interface is down, or its cable is."),
    word("IBV_EVENT_LID_CHANGE", 11, "LID change", "The LID has changed with the interface's IPv4 address."),
    word("IBV_EVENT_SRQ_ERR", 14, "SRQ catastrophic error", "A shared receive queue has failed."),
    word(
        "IBV_EVENT_SRQ_LIMIT_REACHED",
        15,
        "SRQ limit reached",
        "A shared receive queue has fewer receives than its limit: post more.",
    ),
    word(
        "IBV_EVENT_QP_LAST_WQE_REACHED",
        16,
        "last WQE reached",
        "A QP with a shared receive queue is in ERR and takes no receive any more.",
    ),
    word(
        "IBV_EVENT_GID_CHANGE",
        18,
        "GID table change",
        "An address of the interface has come or gone: look at the GID table again.",
    ),
    word("IBV_EVENT_WQ_FATAL", 19, "WQ fatal", "A work queue of an RSS QP has failed."),
];
