//! The catalogue: each reason with its number, which never changes its meaning, and its texts. Findings are in `findings`.

use crate::entry::Explanation;
use crate::findings::FINDINGS;

/// All reasons and findings, by number.
pub fn all() -> impl Iterator<Item = &'static Explanation> {
    CATALOGUE.iter().chain(FINDINGS)
}

/// The entry with this number.
#[must_use]
pub fn entry(number: u16) -> Option<&'static Explanation> {
    all().find(|entry| entry.number == number)
}

const FLUSH: &str = "IBV_WC_WR_FLUSH_ERR";
const RETRY: &str = "IBV_WC_RETRY_EXC_ERR";
const RNR: &str = "IBV_WC_RNR_RETRY_EXC_ERR";
const ACCESS: &str = "IBV_WC_REM_ACCESS_ERR";
const INVALID: &str = "IBV_WC_REM_INV_REQ_ERR";
const OPERATION: &str = "IBV_WC_REM_OP_ERR";
const PROTECTION: &str = "IBV_WC_LOC_PROT_ERR";
const LENGTH: &str = "IBV_WC_LOC_LEN_ERR";

/// All reasons, by number.
pub const CATALOGUE: &[Explanation] = &[
    Explanation {
        number: 1,
        title: "the request was posted to a queue pair that had failed before",
        means: "A failed queue pair accepts requests and flushes them. The cause isn't this request: an earlier line \
                about this queue pair names the request that failed.",
        see: "vendor_err of every flushed completion contains the number of the first failure.",
        fix: "Look at the first failure; to reuse the queue pair take it to RESET, INIT, RTR and RTS, on both sides.",
        statuses: &[FLUSH],
    },
    Explanation {
        number: 10,
        title: "nothing comes back from the peer",
        means: "The request was sent retry_cnt + 1 times, and no packet came back. Possible causes: the peer's \
                process has ended or hangs; the address belongs to another host; something on the path drops UDP \
                port 4791; or the peer's queue pair doesn't exist or is in RESET, INIT or ERR, and drops packets \
                silently.",
        see: "`ferroce doctor PEER` checks the path. If the peer runs Ferroce, its log may have a line of the same \
                time. A capture on both hosts (`ferroce run --capture FILE`) shows where packets stop.",
        fix: "Check that the peer's process runs, that dest_qp_num and dgid are the peer's, and that its queue pair \
                is in RTR or RTS before the first request.",
        statuses: &[RETRY],
    },
    Explanation {
        number: 11,
        title: "no queue pair has the peer's QP number",
        means: "The destination QPN belongs to no queue pair. Possible causes: the queue pair was never created, was \
                destroyed or ended with its process; or the number was corrupted when it was exchanged (byte order, \
                a wrong field, another connection's number).",
        see: "Print dest_qp_num, and qp_num of the peer's queue pair.",
        fix: "Either the number is wrong or the peer's process has ended: check that it runs, and that dest_qp_num \
                is the peer's qp_num, in host byte order.",
        statuses: &[RETRY],
    },
    Explanation {
        number: 12,
        title: "the peer's queue pair accepts no packets",
        means: "A queue pair in RESET, INIT or ERR drops incoming packets. RESET or INIT: it isn't connected yet, \
                because this side was faster or ibv_modify_qp failed at the peer. ERR: it failed earlier, or its \
                program moved it there.",
        see: "ibv_query_qp at the peer returns the state. If the queue pair has failed, the peer's log contains the \
                reason.",
        fix: "Take the peer to RTR before this side sends: exchange messages over the connection that carries the \
                addresses.",
        statuses: &[RETRY],
    },
    Explanation {
        number: 13,
        title: "the two sides don't agree on the first PSN",
        means: "Packets arrive with PSNs that the receiver doesn't expect: below rq_psn they look like duplicates, \
                above it like packets after a loss. sq_psn of one side must be rq_psn of the other.",
        see: "The line contains both numbers.",
        fix: "Exchange PSNs with QPNs and GIDs; set rq_psn (at RTR) to the peer's sq_psn (at RTS).",
        statuses: &[RETRY],
    },
    Explanation {
        number: 14,
        title: "there is no route to the peer's address",
        means: "The kernel has no route to the address of the GID, or can't create a socket for it; or a host on the \
                path sent an ICMP message: network unreachable, host unreachable, or prohibited. If no host of the \
                local network has the address, the kernel reports it after three seconds.",
        see: "`ip route get ADDRESS`, `ferroce doctor PEER`. The line names the ICMP message, if there was one.",
        fix: "If the interface is down, bring it up (`ip link set dev INTERFACE up`) or reconnect its cable; otherwise check dgid and \
                sgid_index: both must be of one address family, and of a network that the interface reaches.",
        statuses: &[RETRY],
    },
    Explanation {
        number: 15,
        title: "the peer's process has ended",
        means: "The other process of this host exited or executed another program while requests were outstanding. \
                Or it is running, and wrote invalid data into the memory that it shares with this process, which \
                then closed the connection.",
        see: "The exit status of the other process, and its last output. After invalid data this process's log \
                contains a line.",
        fix: "Find out why the process ended; have both sides agree on the end before one of them exits.",
        statuses: &[RETRY],
    },
    Explanation {
        number: 16,
        title: "the peer reports missing packets again and again",
        means: "The peer asked for the same packet more often than retry_cnt allows, and there is no local ACK \
                timeout (timeout 0) that would count instead. Something drops this packet each time. The usual cause \
                is a path MTU that is too large for the path.",
        see: "`ping -M do -s SIZE PEER` with the size of a full packet.",
        fix: "Use a smaller path_mtu, and a timeout other than 0.",
        statuses: &[RETRY],
    },
    Explanation {
        number: 17,
        title: "the peer's process receives the packets and doesn't answer",
        means: "The other process of this host has read the packets, and the queue pair with this number didn't \
                answer. Possible causes: the queue pair is connected to another queue pair, or expects other PSNs.",
        see: "ibv_query_qp at the peer. If the queue pair has failed or receives unexpected PSNs, the peer's log \
                contains a line.",
        fix: "Check that dest_qp_num of each side is the other's qp_num, and that rq_psn of each side is the other's sq_psn.",
        statuses: &[RETRY],
    },
    Explanation {
        number: 18,
        title: "no process listens at the peer's UDP port 4791",
        means: "The peer's host answered with the ICMP message \"port unreachable\": the path works, and no process \
                there receives RoCE packets. Possible causes: the peer's process has ended or hasn't opened its \
                device yet, or the address belongs to another host. Hosts with an RDMA adapter never send this \
                message.",
        see: "`ferroce ps` on the peer's host; `ss -uln sport = 4791` there.",
        fix: "Start the peer's program before this side sends, and check that it still runs and that dgid is its \
                address.",
        statuses: &[RETRY],
    },
    Explanation {
        number: 19,
        title: "the peer's process is stopped",
        means: "The other process of this host is stopped by a signal (SIGSTOP, SIGTSTP) or a debugger, or frozen \
                with its cgroup (`docker pause`). It answers nothing until it continues. An adapter answers for a stopped process, as long as the request doesn't \
                need its program.",
        see: "`ferroce ps`; the state T in `ps -o pid,stat,comm`.",
        fix: "Continue the process (`kill -CONT`, `continue` in a debugger, `docker unpause`), and set timeout and retry_cnt so that \
                they outlast a stop.",
        statuses: &[RETRY],
    },
    Explanation {
        number: 20,
        title: "the first message came before the first receive was posted",
        means: "A SEND or an RDMA WRITE with immediate needs a receive at the peer. This queue pair has never used \
                one: the sender was faster than the first ibv_post_recv, or the peer posts none.",
        see: "rnr_retry and min_rnr_timer in the line give the time that the sender waited.",
        fix: "Post receives before the queue pair goes to RTR; rnr_retry 7 waits for ever.",
        statuses: &[RNR],
    },
    Explanation {
        number: 21,
        title: "the peer's receives are used up",
        means: "Earlier messages consumed all receives, and none was posted in time: the receiver doesn't repost, or \
                is slower than the sender, and there is no flow control.",
        see: "Compare the numbers of posted and completed receives at the peer.",
        fix: "Repost a receive for each one that completes, post more of them, or have the receiver grant credits; rnr_retry 7 \
               waits for ever.",
        statuses: &[RNR],
    },
    Explanation {
        number: 22,
        title: "the peer had no receive",
        means: "The peer answered \"receiver not ready\" more often than rnr_retry allows. The peer doesn't use \
                Ferroce, or its reason was lost. Its receives are posted too late, or aren't reposted.",
        see: "Compare the numbers of posted and completed receives at the peer.",
        fix: "Post receives before RTR and repost them; rnr_retry 7 waits for ever.",
        statuses: &[RNR],
    },
    Explanation {
        number: 30,
        title: "no region or window has this key",
        means: "This process has never assigned the key. Usual causes: an rkey of another process or another \
                connection, a key that was byte-swapped or truncated when it was exchanged, memory that is \
                registered with another device or not at all, lkey 0.",
        see: "Print lkey and rkey where the region is registered, and where they are used. For a byte-swapped key, the line \
              contains the valid key.",
        fix: "Use mr->lkey for local elements and the peer's mr->rkey for its memory, in the byte order in which it \
                was sent.",
        statuses: &[ACCESS, PROTECTION, "IBV_WC_LOC_ACCESS_ERR", OPERATION],
    },
    Explanation {
        number: 31,
        title: "the key's region or window has been deregistered",
        means: "The key was valid before. Requests must have completed, at both sides, before ibv_dereg_mr or \
                ibv_dealloc_mw. A request that arrives later fails.",
        see: "The line gives the time since the deregistration.",
        fix: "Notify the peer, wait for the last completion, then deregister; exchange keys again after each \
                registration.",
        statuses: &[ACCESS, PROTECTION, "IBV_WC_LOC_ACCESS_ERR", OPERATION],
    },
    Explanation {
        number: 32,
        title: "the key belongs to another protection domain than the queue pair",
        means: "A queue pair can use regions and windows of its own protection domain only.",
        see: "Compare the pd of ibv_reg_mr with that of ibv_create_qp (for shared receive queues: of ibv_create_srq).",
        fix: "Register the memory, or create the queue pair, in the same protection domain.",
        statuses: &[ACCESS, PROTECTION, "IBV_WC_LOC_ACCESS_ERR", OPERATION],
    },
    Explanation {
        number: 33,
        title: "the key belongs to a memory window that isn't bound for this access",
        means: "The window isn't bound, was bound again with another key, was invalidated, or is of type 2 and bound \
                to another queue pair. A window's key can't be used as an lkey.",
        see: "The completions of IBV_WR_BIND_MW and IBV_WR_LOCAL_INV.",
        fix: "Bind the window, wait for the completion, and send the peer the key that the bind has set.",
        statuses: &[ACCESS, PROTECTION, OPERATION],
    },
    Explanation {
        number: 34,
        title: "the region or window doesn't permit this access",
        means: "Remote access needs IBV_ACCESS_REMOTE_READ, _WRITE or _ATOMIC of the region. Receives, and READs and \
                atomics at the requester, write to local memory and need IBV_ACCESS_LOCAL_WRITE. If the region has \
                no remote right at all, its lkey may have been sent to the peer by mistake.",
        see: "The line contains the right that is needed and the rights of the region.",
        fix: "Register the region with the right that is missing.",
        statuses: &[ACCESS, PROTECTION, "IBV_WC_LOC_ACCESS_ERR", OPERATION],
    },
    Explanation {
        number: 35,
        title: "the range is outside the region",
        means: "The address or the length is wrong: an offset in place of an address, an address in another buffer, \
                a length beyond the end. With IBV_ACCESS_ZERO_BASED and ibv_reg_mr_iova, addresses start at another \
                value.",
        see: "The line contains both ranges.",
        fix: "Use addresses from the region's first byte (mr->addr, or its iova) on, and lengths up to its end.",
        statuses: &[ACCESS, PROTECTION, "IBV_WC_LOC_ACCESS_ERR", OPERATION],
    },
    Explanation {
        number: 36,
        title: "the address was byte-swapped or truncated when it was exchanged",
        means: "The key is valid, and the address is not. The address lies in the region after a byte swap, or with the \
                upper 32 bits of the region's address.",
        see: "Print the address before it is sent and after it was received.",
        fix: "Send 64-bit addresses with htobe64 and be64toh (htonl keeps 32 bits only), and keep them in a uint64_t.",
        statuses: &[ACCESS, PROTECTION, "IBV_WC_LOC_ACCESS_ERR", OPERATION],
    },
    Explanation {
        number: 37,
        title: "the queue pair doesn't permit this operation",
        means: "qp_access_flags of the responder's queue pair lacks the right. The rights of the region don't \
                replace it.",
        see: "ibv_query_qp with IBV_QP_ACCESS_FLAGS at the peer.",
        fix: "Set qp_access_flags (at INIT) to what peers may do: IBV_ACCESS_REMOTE_READ, _WRITE, _ATOMIC, _FLUSH_*.",
        statuses: &[INVALID],
    },
    Explanation {
        number: 38,
        title: "the memory behind the key is gone",
        means: "The region is registered, but its memory has since been freed, unmapped, truncated or protected. An \
                adapter keeps registered pages: it would read and write pages that the program no longer has.",
        see: "Look for free, munmap, ftruncate and mprotect before ibv_dereg_mr.",
        fix: "Deregister a region before its memory is freed.",
        statuses: &[OPERATION, PROTECTION, "IBV_WC_LOC_ACCESS_ERR"],
    },
    Explanation {
        number: 39,
        title: "the key can't be invalidated",
        means: "SEND with invalidate and local invalidate take the key of a type 2 window that is bound to this \
                queue pair.",
        see: "The completion of IBV_WR_BIND_MW, and the key that it has set.",
        fix: "Send the current key of the peer's window, over the queue pair that it is bound to.",
        statuses: &[ACCESS, "IBV_WC_MW_BIND_ERR"],
    },
    Explanation {
        number: 40,
        title: "the message is longer than the receive",
        means: "A SEND uses one receive, the oldest one, which must have room for the whole message. Receives are \
                used in order, whatever their sizes.",
        see: "The line contains both lengths, and wr_id of the receive.",
        fix: "Post receives of at least the length of the longest message, or send shorter messages.",
        statuses: &[INVALID, LENGTH],
    },
    Explanation {
        number: 41,
        title: "a packet doesn't have the length that this side's path MTU requires",
        means: "Both sides of a connection must have the same path_mtu. The receiver refuses a packet that is longer \
                than its path MTU, and a packet within a message that is shorter.",
        see: "ibv_query_qp with IBV_QP_PATH_MTU on both sides.",
        fix: "Exchange path MTUs, and use the smaller one on both sides.",
        statuses: &[INVALID],
    },
    Explanation {
        number: 42,
        title: "the packet is invalid at this point of the message",
        means: "The opcodes came in an order that no message has, the length differs from the announced one, or the \
                operation is unknown. A program can't cause this by verbs: the peer's RDMA stack, or a device \
                between, has a defect.",
        see: "A capture (`ferroce run --capture FILE`).",
        fix: "Report it, with a capture, to the maker of the peer's RDMA stack.",
        statuses: &[INVALID],
    },
    Explanation {
        number: 43,
        title: "a datagram doesn't fit into the receive: 40 bytes of GRH come before its data",
        means: "A receive of a UD queue pair is filled with 40 bytes of GRH and then the payload. The datagram is \
                dropped, and the receive remains posted.",
        see: "The line gives the number of bytes that are needed.",
        fix: "Make receives 40 bytes longer than the longest message.",
        statuses: &[],
    },
    Explanation {
        number: 44,
        title: "a datagram has another Q_Key",
        means: "A UD queue pair accepts datagrams with its own Q_Key only, and drops others silently. If the highest \
                bit of the Q_Key in a request is set, the sender's own Q_Key is used.",
        see: "The line contains the datagram's Q_Key; ibv_query_qp with IBV_QP_QKEY returns the queue pair's.",
        fix: "Set wr.ud.remote_qkey to the qkey of the receiver's queue pair.",
        statuses: &[],
    },
    Explanation {
        number: 50,
        title: "READs and atomics need max_rd_atomic of at least 1",
        means: "max_rd_atomic (at RTS) is the number of READs and atomics that this side may have outstanding. With \
                0 it can't post any.",
        see: "ibv_query_qp with IBV_QP_MAX_QP_RD_ATOMIC.",
        fix: "Set max_rd_atomic at RTS, and max_dest_rd_atomic of the peer at RTR to at least the same value.",
        statuses: &["IBV_WC_LOC_QP_OP_ERR"],
    },
    Explanation {
        number: 51,
        title: "more READs and atomics are outstanding than max_dest_rd_atomic",
        means: "The requester's max_rd_atomic is above the responder's max_dest_rd_atomic.",
        see: "ibv_query_qp on both sides.",
        fix: "Exchange both values, and set max_rd_atomic to at most the peer's max_dest_rd_atomic.",
        statuses: &[INVALID],
    },
    Explanation {
        number: 52,
        title: "an atomic on an address that isn't a multiple of 8",
        means: "Atomics and atomic writes access 8 aligned bytes of the peer's memory.",
        see: "The line contains the address.",
        fix: "Align the remote variable to 8 bytes.",
        statuses: &[INVALID],
    },
    Explanation {
        number: 53,
        title: "the local buffer of an atomic has fewer than 8 bytes",
        means: "The local elements of an atomic receive the original value, which has 8 bytes.",
        see: "The lengths in sg_list.",
        fix: "Give the request one element of 8 bytes.",
        statuses: &[LENGTH],
    },
    Explanation {
        number: 54,
        title: "a READ response doesn't have the requested length",
        means: "The two sides split the response into different packets: their path MTUs differ, or the peer's RDMA \
                stack has a defect.",
        see: "ibv_query_qp with IBV_QP_PATH_MTU on both sides.",
        fix: "Use the same path_mtu on both sides.",
        statuses: &["IBV_WC_BAD_RESP_ERR"],
    },
    Explanation {
        number: 55,
        title: "the memory window can't be bound, or the key can't be invalidated",
        means: "The region must belong to the window's protection domain, be registered with IBV_ACCESS_MW_BIND and \
                the rights of the window, and contain the window's range. A type 2 window can be bound again only \
                after it was invalidated.",
        see: "FERROCE_LOG=debug logs which of these is missing.",
        fix: "Register the region with IBV_ACCESS_MW_BIND, and invalidate a type 2 window before it is bound again.",
        statuses: &["IBV_WC_MW_BIND_ERR"],
    },
    Explanation {
        number: 60,
        title: "the peer refuses the request as invalid and gives no reason",
        means: "The peer doesn't use Ferroce, or its reason was lost. Usual causes: the message is longer than the \
                receive (FC040), qp_access_flags lacks the right (FC037), path MTUs differ (FC041), \
                max_dest_rd_atomic is too small (FC051), an atomic isn't aligned (FC052).",
        see: "If the peer runs Ferroce, its log contains the reason.",
        fix: "Look at the peer's log, and at the status of its receive.",
        statuses: &[INVALID],
    },
    Explanation {
        number: 61,
        title: "the peer refuses the access and gives no reason",
        means: "The peer doesn't use Ferroce, or its reason was lost. Usual causes: a key that isn't valid there \
                (FC030, FC031), of another protection domain (FC032) or without the right (FC034), or a range \
                outside the region (FC035, FC036).",
        see: "If the peer runs Ferroce, its log contains the reason.",
        fix: "Look at the peer's log; compare address, length and rkey with the region.",
        statuses: &[ACCESS],
    },
    Explanation {
        number: 62,
        title: "the peer can't carry out the request and gives no reason",
        means: "The peer doesn't use Ferroce, or its reason was lost. Usual causes: the memory of its receive is \
                wrong (lkey, range or rights), or registered memory was freed (FC038).",
        see: "If the peer runs Ferroce, its log contains the reason; so does the status of its receive.",
        fix: "Look at the peer's log, and at the lkey and addresses of its receives.",
        statuses: &[OPERATION],
    },
    Explanation {
        number: 70,
        title: "a completion queue has overrun",
        means: "More completions arrived than the queue holds. The queue can't be used any more, and neither can the \
                queue pairs whose completions didn't fit.",
        see: "Add up the depths of all queues that complete into it.",
        fix: "Create the completion queue with cqe of at least the depths of all queues that complete into it, or \
                poll before posting more.",
        statuses: &[FLUSH],
    },
    Explanation {
        number: 71,
        title: "the XRC request doesn't name a shared receive queue of the target's domain",
        means: "remote_srqn must be the number of a shared receive queue of the XRC domain that the target belongs to.",
        see: "ibv_get_srq_num at the peer.",
        fix: "Exchange the number of the SRQ, in host byte order, and open the same XRC domain for target and SRQ.",
        statuses: &[INVALID],
    },
    Explanation {
        number: 72,
        title: "the process that owns the shared receive queue refuses the request",
        means: "An XRC target forwards requests to the process that owns the SRQ. That process has refused this one.",
        see: "The log of that process contains the reason.",
        fix: "Look at the log of the process that created the SRQ.",
        statuses: &[INVALID, ACCESS, OPERATION],
    },
];

#[cfg(test)]
mod tests {
    use super::CATALOGUE;

    #[test]
    fn numbers_rise_and_texts_are_whole() {
        assert!(CATALOGUE.is_sorted_by(|a, b| a.number < b.number));
        for entry in CATALOGUE {
            assert!((1..=999).contains(&entry.number));
            assert!(!entry.title.ends_with('.'), "{}", entry.title);
            for text in [entry.means, entry.see, entry.fix] {
                assert!(text.ends_with('.') && !text.contains("  "), "{text}");
            }
        }
    }
}
