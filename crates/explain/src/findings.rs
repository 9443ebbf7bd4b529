//! What `ferroce run --check` finds: uses of verbs that work here, and fail, hang or lose data on an adapter.

use crate::Entry;

/// The first number of a finding; smaller ones are reasons of requests that fail.
pub(crate) const FIRST: u16 = 100;

/// This one is told without `--check`, too.
pub(crate) const ALWAYS_TOLD: u16 = 103;

/// A correct program may have this one: it ends no process.
pub(crate) const IN_DOUBT: u16 = 110;

/// All findings, by number.
pub const FINDINGS: &[Entry] = &[
    Entry {
        number: 100,
        title: "more send requests are outstanding than the send queue holds",
        means: "A send request keeps its place until a completion tells that it has ended: its own, or that of a signaled request \
                posted after it. Requests that are never signaled, or completions that are never polled, fill the queue for \
                ever. Ferroce frees the place when the request has ended, as rdma_rxe does; an adapter returns ENOMEM.",
        see: "Count requests posted since the last signaled one, and completions polled. max_send_wr is in the line.",
        fix: "Signal one request in max_send_wr / 2 at least, and poll its completion before posting more.",
        statuses: &[],
    },
    Entry {
        number: 101,
        title: "a region is deregistered while requests name it",
        means: "ibv_dereg_mr was called while send requests of this process that name the region are under way. They end with an \
                error, or, on an adapter that has fetched the data already, by chance with success.",
        see: "The line says how many requests there are, and of which queue pair.",
        fix: "Poll the completions of all requests that name the region, or destroy the queue pair, before ibv_dereg_mr.",
        statuses: &[],
    },
    Entry {
        number: 102,
        title: "a completion queue is smaller than what feeds it",
        means: "Signaled send requests and posted receives may complete into the queue at once, and are more than it has entries. \
                If they do before the program polls, the queue overruns, and all its queue pairs fail.",
        see: "The line has the entries and what may come.",
        fix: "Create the queue with an entry for each signaled send request and each receive that may be outstanding at once.",
        statuses: &[],
    },
    Entry {
        number: 103,
        title: "the call waits until events are acknowledged",
        means: "Each event that rdma_get_cm_event, ibv_get_cq_event or ibv_get_async_event returns has to be acknowledged. The \
                destruction of the object that it names waits until it is, for ever if need be, and so does rdma_migrate_id. A \
                thread that destroys an id while it has an event of the id in its hands waits for itself. A request for a \
                connection counts against the id that listens.",
        see: "The line has the call, which id of librdmacm it is about, and how many events of which kind. `ferroce run --check` \
              says too where the program took one.",
        fix: "Call rdma_ack_cm_event, ibv_ack_cq_events or ibv_ack_async_event for each event, before the object is destroyed.",
        statuses: &[],
    },
    Entry {
        number: 104,
        title: "a completion queue is armed with completions in it, and not polled before the wait",
        means: "An event comes for a completion that is added after ibv_req_notify_cq. For what was there already an adapter need \
                not raise one: the program waits for ever. Ferroce raises it.",
        see: "Look for a wait that follows ibv_req_notify_cq without ibv_poll_cq in between.",
        fix: "After ibv_req_notify_cq poll until the queue is empty, and only then wait.",
        statuses: &[],
    },
    Entry {
        number: 105,
        title: "the two ends of a connection have different path MTUs",
        means: "path_mtu of a queue pair isn't that of its peer. Within a host nothing is cut into packets, so nothing fails; on \
                a wire the end with the smaller one refuses longer packets (IBV_WC_REM_INV_REQ_ERR).",
        see: "The line has both.",
        fix: "Exchange the path MTU with QPN and GID, and use the smaller one at both ends, at most the port's active_mtu.",
        statuses: &[],
    },
    Entry {
        number: 106,
        title: "objects are left when their device is closed or the process exits",
        means: "What a program creates it has to destroy. What is left keeps memory pinned on an adapter, and a program that opens \
                devices again and again runs into a limit.",
        see: "The line says where the first object of each kind was made.",
        fix: "Destroy queue pairs, then queues and regions, then protection domains, and close the device last.",
        statuses: &[],
    },
    Entry {
        number: 107,
        title: "more memory is registered than RLIMIT_MEMLOCK lets an adapter pin",
        means: "An adapter pins the pages of each region, and the kernel counts them against RLIMIT_MEMLOCK of the process, each \
                region for itself: a page in two regions counts twice. Beyond the limit ibv_reg_mr fails with ENOMEM, unless \
                the process has CAP_IPC_LOCK. Ferroce pins nothing.",
        see: "`ulimit -l` (KiB); the line has the bytes that are registered.",
        fix: "Raise the limit (`ulimit -l unlimited`, memlock in /etc/security/limits.conf), or register less.",
        statuses: &[],
    },
    Entry {
        number: 108,
        title: "a send buffer was written before the request's completion was polled",
        means: "Between ibv_post_send and the completion that tells of the request's end the memory belongs to the adapter, which may \
                read it at any time, also once more to send it again. What the peer gets is the old bytes, the new ones, or some \
                of each. Found by `--check=memory`, which compares the first 64 KiB of each element.",
        see: "The line has the request and the first and last bytes that differ. A watchpoint there (`watch` of gdb) stops at the \
              write.",
        fix: "Write to a send buffer only when its completion, or that of a later request of the queue pair, was polled.",
        statuses: &[],
    },
    Entry {
        number: 109,
        title: "the program writes to a buffer that the adapter fills",
        means: "From ibv_post_recv, or from posting an RDMA READ or an atomic, until the completion was polled the adapter may write the \
                buffer at any time. What the program writes there meanwhile is lost, or destroys what has come. Found by \
                `--check=memory`, which compares the first 64 KiB of each element. A program that was built with AddressSanitizer is ended by the sanitizer at its \
                first instrumented access to these bytes (use-after-poison).",
        see: "The line has the request and the first and last bytes that differ. Often one buffer is posted several times, or is for \
              sending too.",
        fix: "Leave the buffer alone until its completion was polled, and give each receive one of its own.",
        statuses: &[],
    },
    Entry {
        number: 110,
        title: "the program looks for a completion that no request asks for",
        means: "A request makes a completion if it has IBV_SEND_SIGNALED, or if its queue pair was created with sq_sig_all. Here no \
                request of the queue pair had the one, and the queue pair hasn't the other. The thread that has posted the last \
                request has polled the completion queue and no other for a second, or slept in ibv_get_cq_event, all of its requests \
                have ended, and nothing else is posted that completes there. If the program waits for a completion, the wait has no \
                end. If it waits for something else, such as the peer's answer in its memory, and looks at the queue for errors \
                only, it is right: a request that fails makes a completion all the same. The checker can't tell the two apart.",
        see: "The line says how many requests have ended without a word, and where the program waits.",
        fix: "Set IBV_SEND_SIGNALED in the request that is waited for, or create the queue pair with sq_sig_all. If none is \
               waited for, leave the finding out: --check=-FC110.",
        statuses: &[],
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CATALOGUE;

    #[test]
    fn findings_and_reasons_have_numbers_of_their_own() {
        assert!(CATALOGUE.iter().all(|reason| reason.number < FIRST));
        assert!(FINDINGS.windows(2).all(|two| two[0].number < two[1].number));
        assert!(FINDINGS.iter().all(|finding| finding.number >= FIRST && finding.statuses.is_empty()));
    }
}
