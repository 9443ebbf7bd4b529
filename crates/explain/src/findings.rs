//! What `ferroce run --check` finds: uses of verbs that work here, and fail, hang or lose data on an adapter.

use crate::entry::Explanation;

/// This finding is reported without `--check`, too.
pub(crate) const ALWAYS_REPORTED: u16 = 103;

/// A correct program may have this finding, so `--check=fatal` doesn't end the process.
pub(crate) const IN_DOUBT: u16 = 110;

/// All findings, by number.
pub const FINDINGS: &[Explanation] = &[
    Explanation {
        number: 100,
        title: "more send requests are outstanding than the send queue holds",
        means: "A send request occupies its place in the send queue until its completion, or the completion of a \
                later signaled request, is polled. Requests that are never signaled, and completions that are never \
                polled, fill the queue permanently. Ferroce frees the place when the request finishes, as rdma_rxe \
                does; an adapter returns ENOMEM.",
        see: "Count the requests posted since the last signaled one, and the completions polled. The line contains \
                max_send_wr.",
        fix: "Signal at least one request in max_send_wr / 2, and poll its completion before posting more.",
        statuses: &[],
    },
    Explanation {
        number: 101,
        title: "a region is deregistered while requests name it",
        means: "ibv_dereg_mr was called while send requests of this process use the region. They end with an error. \
                On an adapter that has already fetched the data they may succeed.",
        see: "The line contains the number of requests and their queue pair.",
        fix: "Poll the completions of all requests that use the region, or destroy the queue pair, before \
                ibv_dereg_mr.",
        statuses: &[],
    },
    Explanation {
        number: 102,
        title: "a completion queue is smaller than the queues that complete into it",
        means: "Signaled send requests and posted receives may all complete before the program polls, and they are \
                more than the queue has entries. The queue then overruns, and all its queue pairs fail.",
        see: "The line contains the number of entries and the number of possible completions.",
        fix: "Create the queue with an entry for each signaled send request and each receive that may be outstanding at once.",
        statuses: &[],
    },
    Explanation {
        number: 103,
        title: "the call waits until events are acknowledged",
        means: "Each event that rdma_get_cm_event, ibv_get_cq_event or ibv_get_async_event returns must be \
                acknowledged. The call that destroys the event's object waits for that without a time limit, and so \
                does rdma_migrate_id. A thread that destroys an id before it acknowledges the id's event waits for \
                itself. A connection request counts for the id that listens.",
        see: "The line contains the call, the id of librdmacm, and the number and kind of events. With `ferroce run \
                --check` it also contains the place where the program got an event.",
        fix: "Call rdma_ack_cm_event, ibv_ack_cq_events or ibv_ack_async_event for each event, before the object is \
                destroyed.",
        statuses: &[],
    },
    Explanation {
        number: 104,
        title: "a completion queue is armed with completions in it, and not polled before the wait",
        means: "ibv_req_notify_cq requests an event for the next completion that is added. For a completion that is \
                already in the queue an adapter need not raise an event: the program waits for ever. Ferroce raises \
                it.",
        see: "Look for a wait that follows ibv_req_notify_cq without ibv_poll_cq in between.",
        fix: "After ibv_req_notify_cq poll until the queue is empty, and wait only then.",
        statuses: &[],
    },
    Explanation {
        number: 105,
        title: "the two ends of a connection have different path MTUs",
        means: "path_mtu of a queue pair differs from its peer's. Within a host, messages aren't split into packets \
                and nothing fails. On a wire, the end with the smaller value refuses longer packets \
                (IBV_WC_REM_INV_REQ_ERR).",
        see: "The line contains both values.",
        fix: "Exchange the path MTU with QPN and GID, and use the smaller one at both ends, at most the port's \
                active_mtu.",
        statuses: &[],
    },
    Explanation {
        number: 106,
        title: "objects are left when their device is closed or the process exits",
        means: "A program must destroy the objects that it creates. On an adapter the remaining objects keep memory \
                pinned, and a program that opens devices repeatedly reaches a limit.",
        see: "The line contains the place where the first object of each kind was created.",
        fix: "Destroy queue pairs, then queues and regions, then protection domains, and close the device last.",
        statuses: &[],
    },
    Explanation {
        number: 107,
        title: "more memory is registered than RLIMIT_MEMLOCK allows an adapter to pin",
        means: "An adapter pins the pages of each region, and the kernel counts them against RLIMIT_MEMLOCK of the \
                process. A page in two regions counts twice. Above the limit ibv_reg_mr fails with ENOMEM, unless \
                the process has CAP_IPC_LOCK. Ferroce pins nothing.",
        see: "`ulimit -l` (KiB); the line contains the number of registered bytes.",
        fix: "Raise the limit (`ulimit -l unlimited`, memlock in /etc/security/limits.conf), or register less.",
        statuses: &[],
    },
    Explanation {
        number: 108,
        title: "a send buffer was written before the request's completion was polled",
        means: "From ibv_post_send until the request's completion is polled, the memory belongs to the adapter. The \
                adapter may read it at any time, and again for a retransmission. The peer receives the old bytes, \
                the new ones, or a mixture. `--check=memory` finds this: it compares the first 64 KiB of each \
                element.",
        see: "The line contains the request and the first and last bytes that differ. A watchpoint there (`watch` in \
                gdb) stops at the write.",
        fix: "Write to a send buffer only after its completion, or the completion of a later request of the queue \
                pair, is polled.",
        statuses: &[],
    },
    Explanation {
        number: 109,
        title: "the program writes to a buffer that the adapter fills",
        means: "From ibv_post_recv, or from posting an RDMA READ or an atomic, until the completion is polled, the \
                adapter may write the buffer at any time. Bytes that the program writes there in this time are lost, \
                or overwrite received data. `--check=memory` finds this: it compares the first 64 KiB of each \
                element. In a program that was built with AddressSanitizer, the sanitizer reports the first \
                instrumented access to these bytes (use-after-poison) and ends the program.",
        see: "The line contains the request and the first and last bytes that differ. Often one buffer is posted \
                several times, or is also used for sending.",
        fix: "Don't access the buffer until its completion is polled, and use a separate buffer for each receive.",
        statuses: &[],
    },
    Explanation {
        number: 110,
        title: "the program waits for a completion that no request asks for",
        means: "A request makes a completion if it has IBV_SEND_SIGNALED or its queue pair was created with \
                sq_sig_all. No request of this queue pair had the flag, and the queue pair doesn't have sq_sig_all. \
                The thread that posted the last request has polled only this completion queue for a second, or slept \
                in ibv_get_cq_event. All its requests have finished, and nothing else is posted that completes \
                there. If the program waits for a completion, it waits for ever. If it waits for something else, \
                such as the peer's answer in its memory, and polls the queue for errors only, it is correct: a \
                failed request always makes a completion. The checker can't distinguish the two cases.",
        see: "The line contains the number of requests that finished without a completion, and the place where the \
                program waits.",
        fix: "Set IBV_SEND_SIGNALED in the request that is waited for, or create the queue pair with sq_sig_all. If \
                none is waited for, suppress the finding: --check=-FC110.",
        statuses: &[],
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CATALOGUE;
    use crate::entry::FIRST_FINDING as FIRST;

    #[test]
    fn findings_and_reasons_have_numbers_of_their_own() {
        assert!(CATALOGUE.iter().all(|reason| reason.number < FIRST));
        assert!(FINDINGS.windows(2).all(|two| two[0].number < two[1].number));
        assert!(FINDINGS.iter().all(|finding| finding.number >= FIRST && finding.statuses.is_empty()));
    }
}
