//! The catalogue: each reason with its number, which never changes its meaning, and its texts. Findings are in `findings`.

/// A reason, or a finding.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Its number: 34 is FC034.
    pub number: u16,
    /// What is wrong, in a few words without a full stop.
    pub title: &'static str,
    /// What it means, and what usually leads to it.
    pub means: &'static str,
    /// How to see which of the causes it is.
    pub see: &'static str,
    /// The fix, in a sentence: it stands in the line too.
    pub fix: &'static str,
    /// The statuses of completions with this reason, at the side whose request fails and at the other. None of findings.
    pub statuses: &'static [&'static str],
}

impl Entry {
    /// `ferroce run --check` finds it; no completion has it.
    #[must_use]
    pub const fn is_finding(&self) -> bool {
        self.number >= crate::findings::FIRST
    }
}

/// All reasons and findings, by number.
pub fn all() -> impl Iterator<Item = &'static Entry> {
    CATALOGUE.iter().chain(crate::FINDINGS)
}

/// The entry with this number.
#[must_use]
pub fn entry(number: u16) -> Option<&'static Entry> {
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
pub const CATALOGUE: &[Entry] = &[
    Entry {
        number: 1,
        title: "the request was posted to a queue pair that had failed before",
        means: "A queue pair that has failed takes requests and flushes them. The request itself is as good as any other: \
                look for the earlier line about this queue pair, which names the request that failed.",
        see: "vendor_err of every flushed completion has the number of the first failure.",
        fix: "Look at the first failure; to use the queue pair again take it to RESET, INIT, RTR and RTS, on both sides.",
        statuses: &[FLUSH],
    },
    Entry {
        number: 10,
        title: "nothing comes back from the peer",
        means: "The request was sent as often as timeout and retry_cnt say, and no packet has come back. The peer's process \
                may have ended or stand still, the address may be another host's, something on the way may drop UDP port \
                4791, or the peer's queue pair drops the packets in silence: it doesn't exist, or is in RESET, INIT or ERR.",
        see: "`ferroce doctor PEER` looks at the way. If the peer runs Ferroce, its log may have a line at the same time. A \
              capture on both hosts (`ferroce run --capture FILE`) shows where packets stop.",
        fix: "Check that the peer's process runs, that QPN and GID are those that it has sent, and that its queue pair is in \
               RTR or RTS before the first request.",
        statuses: &[RETRY],
    },
    Entry {
        number: 11,
        title: "nobody has the peer's QP number",
        means: "The destination QPN belongs to no queue pair: it was never made, it or its process has ended, or the number was \
                mangled on its way (byte order, a wrong field, the number of another connection).",
        see: "Print dest_qp_num beside qp_num of the peer's queue pair.",
        fix: "Give ibv_modify_qp the peer's qp_num as dest_qp_num, in host byte order, and destroy a queue pair only when its \
               peer has ended too.",
        statuses: &[RETRY],
    },
    Entry {
        number: 12,
        title: "the peer's queue pair takes no packets",
        means: "A queue pair in RESET, INIT or ERR drops what comes for it. In RESET or INIT it wasn't connected yet: this side \
                was faster, or the other side's ibv_modify_qp has failed. In ERR it has failed before, or its program has taken \
                it there.",
        see: "ibv_query_qp at the peer tells the state; if it has failed, its own line tells why.",
        fix: "Take the peer to RTR before this side sends, by an exchange of messages over the connection that carries the \
               addresses.",
        statuses: &[RETRY],
    },
    Entry {
        number: 13,
        title: "the two sides don't agree on the first PSN",
        means: "Packets arrive, but with numbers that the receiver doesn't expect: behind rq_psn they look like repetitions, \
                ahead of it as if packets had been lost. sq_psn of one side must be rq_psn of the other.",
        see: "The line has both numbers.",
        fix: "Exchange PSNs with QPNs and GIDs; set rq_psn (at RTR) to the peer's sq_psn (at RTS).",
        statuses: &[RETRY],
    },
    Entry {
        number: 14,
        title: "there is no way to the peer's address",
        means: "The kernel has no route to the address of the GID, no socket can be made for it, or a host on the way has said by ICMP \
                that there is no such network or host, or that it lets nothing through. Where nobody has an address of the own \
                network, the kernel says so itself, after three seconds.",
        see: "`ip route get ADDRESS`, `ferroce doctor PEER`. The line says if it was ICMP.",
        fix: "Check dgid and sgid_index: both must be of one family, and of a network that the interface reaches.",
        statuses: &[RETRY],
    },
    Entry {
        number: 15,
        title: "the peer's process has ended",
        means: "The other process of this host has ended, or has executed another program, while requests were under way. Or it \
                lives, and has written nonsense into the memory that it shares with this process, which then gives it up.",
        see: "Its exit status, and its last lines. Of nonsense there is a line in this process's log.",
        fix: "Look at why it has ended; have both sides agree on the end before one of them leaves.",
        statuses: &[RETRY],
    },
    Entry {
        number: 16,
        title: "the peer misses packets again and again",
        means: "The peer has asked for the same packet more often than retry_cnt allows, and there is no local ACK timeout \
                (timeout 0) that would count instead. Something drops this very packet: a path MTU that is too large for the \
                way is the usual one.",
        see: "`ping -M do -s SIZE PEER` with the size of a full packet.",
        fix: "Use a smaller path_mtu, and a timeout other than 0.",
        statuses: &[RETRY],
    },
    Entry {
        number: 17,
        title: "the peer's process takes the packets, and answers none",
        means: "The other process of this host has looked at what was sent, and its queue pair with this number has said nothing: \
                it doesn't exist (any more), is in RESET, INIT or ERR, is connected to another queue pair, or expects other PSNs.",
        see: "ibv_query_qp at the peer; a queue pair that has failed, or meets strange PSNs, has a line in the peer's log.",
        fix: "Check that dest_qp_num is the peer's qp_num, that the peer is in RTR or RTS before the first request, and that \
               its rq_psn is this side's sq_psn.",
        statuses: &[RETRY],
    },
    Entry {
        number: 18,
        title: "nobody listens at the peer's UDP port 4791",
        means: "The peer's host has said by ICMP that the port is closed: the way is open, and no process there takes RoCE packets. The \
                peer's process has ended, or hasn't opened its device yet, or the address is that of a host that has neither. Who \
                has an adapter doesn't say this.",
        see: "`ferroce ps` on the peer's host; `ss -uln sport = 4791` there.",
        fix: "Start the peer's program before this side sends, check that it still runs, and that dgid is its address.",
        statuses: &[RETRY],
    },
    Entry {
        number: 19,
        title: "the peer's process is stopped",
        means: "The other process of this host lives, and a signal (SIGSTOP, SIGTSTP) or a debugger has stopped it: it answers nothing \
                until it goes on. An adapter answers for a process that is stopped, as long as nothing needs its program.",
        see: "`ferroce ps`; the state T in `ps -o pid,stat,comm`.",
        fix: "Let the process go on (`kill -CONT`, `continue` of a debugger), and set timeout and retry_cnt so that they outlast a stop.",
        statuses: &[RETRY],
    },
    Entry {
        number: 20,
        title: "the first message came before the first receive was posted",
        means: "A SEND or an RDMA WRITE with immediate needs a receive at the peer. None has ever been used on this queue pair: \
                the sender was faster than the first ibv_post_recv, or the peer posts none.",
        see: "rnr_retry and min_rnr_timer in the line say how long the sender has waited.",
        fix: "Post receives before the queue pair goes to RTR; rnr_retry 7 waits for ever.",
        statuses: &[RNR],
    },
    Entry {
        number: 21,
        title: "the peer's receives are used up",
        means: "Earlier messages have taken all receives, and none was posted again in time: the receiver doesn't repost, or \
                is slower than the sender, or the sender has no flow control.",
        see: "Count ibv_post_recv and completed receives at the peer.",
        fix: "Repost a receive for each one that completes, post more of them, or have the receiver grant credits; rnr_retry 7 \
               waits for ever.",
        statuses: &[RNR],
    },
    Entry {
        number: 22,
        title: "the peer had no receive",
        means: "The peer has answered \"receiver not ready\" as often as rnr_retry allows. It is no Ferroce, or its reason was lost \
                on the way: receives come too late, or aren't posted again.",
        see: "Count ibv_post_recv and completed receives at the peer.",
        fix: "Post receives before RTR and repost them; rnr_retry 7 waits for ever.",
        statuses: &[RNR],
    },
    Entry {
        number: 30,
        title: "no region or window has this key",
        means: "The key was never given out by this process. Usual: an rkey of another process or another connection, a key that \
                was byte-swapped or truncated on its way, memory that was registered with another device or not at all, lkey 0.",
        see: "Print lkey and rkey where the region is registered, and where they are used.",
        fix: "Use mr->lkey for the own elements and the peer's mr->rkey for its memory, in the byte order in which it was sent.",
        statuses: &[ACCESS, PROTECTION, "IBV_WC_LOC_ACCESS_ERR", OPERATION],
    },
    Entry {
        number: 31,
        title: "the key's region or window has been deregistered",
        means: "The key was valid once. Requests must have completed, at both sides, before ibv_dereg_mr or ibv_dealloc_mw: \
                what is still under way, or comes later, finds nothing.",
        see: "The line says how long ago that was.",
        fix: "Deregister after the last completion, and tell the peer before; exchange keys anew after each registration.",
        statuses: &[ACCESS, PROTECTION, "IBV_WC_LOC_ACCESS_ERR", OPERATION],
    },
    Entry {
        number: 32,
        title: "the key belongs to another protection domain than the queue pair",
        means: "A queue pair reaches regions and windows of its own protection domain only.",
        see: "Compare the pd of ibv_reg_mr with that of ibv_create_qp (for shared receive queues: of ibv_create_srq).",
        fix: "Register the memory, or create the queue pair, in the same protection domain.",
        statuses: &[ACCESS, PROTECTION, "IBV_WC_LOC_ACCESS_ERR", OPERATION],
    },
    Entry {
        number: 33,
        title: "the key is of a memory window that isn't bound to this",
        means: "The window isn't bound, was bound again with another key, has been invalidated, or is of type 2 and bound by \
                another queue pair. A window's key is no local key either.",
        see: "The completions of IBV_WR_BIND_MW and IBV_WR_LOCAL_INV.",
        fix: "Bind the window, wait for the completion, and send the peer the key that the bind has set.",
        statuses: &[ACCESS, PROTECTION, OPERATION],
    },
    Entry {
        number: 34,
        title: "the region or window doesn't permit this access",
        means: "Remote access needs IBV_ACCESS_REMOTE_READ, _WRITE or _ATOMIC of the region; receives, and READs and atomics at \
                the requester, write to local memory and need IBV_ACCESS_LOCAL_WRITE. A region with no remote right at all may \
                be one whose lkey was sent to the peer by mistake.",
        see: "The line says what is needed and what the region has.",
        fix: "Register the region with the right that is missing.",
        statuses: &[ACCESS, PROTECTION, "IBV_WC_LOC_ACCESS_ERR", OPERATION],
    },
    Entry {
        number: 35,
        title: "the range is outside the region",
        means: "Address or length is wrong: an offset in place of an address, an address of another buffer, a length beyond the \
                end. With IBV_ACCESS_ZERO_BASED or ibv_reg_mr_iova addresses count from another first byte.",
        see: "The line has both ranges.",
        fix: "Use addresses from the region's first byte (mr->addr, or its iova) on, and lengths up to its end.",
        statuses: &[ACCESS, PROTECTION, "IBV_WC_LOC_ACCESS_ERR", OPERATION],
    },
    Entry {
        number: 36,
        title: "the address was byte-swapped or truncated on its way",
        means: "The key is right, and the address would be too, had its bytes been kept: it lies in the region when they are \
                turned round, or when the upper half that was lost is put back.",
        see: "Print the address before it is sent and after it was received.",
        fix: "Send 64-bit addresses with htobe64 and be64toh (htonl keeps 32 bits only), and keep them in a uint64_t.",
        statuses: &[ACCESS, PROTECTION, "IBV_WC_LOC_ACCESS_ERR", OPERATION],
    },
    Entry {
        number: 37,
        title: "the queue pair doesn't permit this operation",
        means: "qp_access_flags of the queue pair that is asked lacks the right, whatever the region permits.",
        see: "ibv_query_qp with IBV_QP_ACCESS_FLAGS at the peer.",
        fix: "Set qp_access_flags (at INIT) to what peers may do: IBV_ACCESS_REMOTE_READ, _WRITE, _ATOMIC, _FLUSH_*.",
        statuses: &[INVALID],
    },
    Entry {
        number: 38,
        title: "the memory behind the key is gone",
        means: "The region is registered, but its memory was freed, unmapped, truncated or protected since. Adapters keep pages \
                that are registered, and the program then reads and writes pages that nobody else sees.",
        see: "Look for free, munmap, ftruncate and mprotect before ibv_dereg_mr.",
        fix: "Deregister a region before its memory goes.",
        statuses: &[OPERATION, PROTECTION, "IBV_WC_LOC_ACCESS_ERR"],
    },
    Entry {
        number: 39,
        title: "the key can't be invalidated",
        means: "SEND with invalidate and local invalidate take the key of a type 2 window that is bound by this very queue pair.",
        see: "The completion of IBV_WR_BIND_MW, and the key that it has set.",
        fix: "Send the key that the peer's window has now, over the queue pair that has bound it.",
        statuses: &[ACCESS, "IBV_WC_MW_BIND_ERR"],
    },
    Entry {
        number: 40,
        title: "the message is longer than the receive",
        means: "A SEND goes into one receive, the oldest one, which must have room for all of it. Receives are taken in order, \
                whatever their sizes.",
        see: "The line has both lengths, and wr_id of the receive.",
        fix: "Post receives as long as the longest message, or send less.",
        statuses: &[INVALID, LENGTH],
    },
    Entry {
        number: 41,
        title: "a packet is not as long as this side's path MTU asks for",
        means: "Both sides of a connection must have the same path_mtu: a longer packet than the receiver's is refused, and so is \
                a middle packet that is shorter.",
        see: "ibv_query_qp with IBV_QP_PATH_MTU on both sides.",
        fix: "Exchange path MTUs, and use the smaller one on both sides.",
        statuses: &[INVALID],
    },
    Entry {
        number: 42,
        title: "the packet makes no sense where it came",
        means: "Opcodes came in an order that no message has, a length isn't the one announced, or the operation is unknown. A \
                program can't cause it by verbs: the peer's stack, or something between, is at fault.",
        see: "A capture (`ferroce run --capture FILE`).",
        fix: "Report it, with a capture, to whoever has made the peer's stack.",
        statuses: &[INVALID],
    },
    Entry {
        number: 43,
        title: "a datagram has no room in the receive: 40 bytes of GRH come before its data",
        means: "A receive of a UD queue pair gets 40 bytes of GRH and then the payload. The datagram is dropped, and the receive \
                stays.",
        see: "The line says how many bytes are needed.",
        fix: "Make receives 40 bytes longer than the longest message.",
        statuses: &[],
    },
    Entry {
        number: 44,
        title: "a datagram has another Q_Key",
        means: "A UD queue pair takes datagrams with its own Q_Key only, and drops others in silence. A Q_Key in a request with \
                the highest bit set means the sender's own one.",
        see: "The line has the datagram's; ibv_query_qp with IBV_QP_QKEY tells the queue pair's.",
        fix: "Set wr.ud.remote_qkey to the qkey of the receiver's queue pair.",
        statuses: &[],
    },
    Entry {
        number: 50,
        title: "READs and atomics need max_rd_atomic of 1 at least",
        means: "max_rd_atomic (at RTS) says how many READs and atomics this side may have outstanding. With 0 there are none.",
        see: "ibv_query_qp with IBV_QP_MAX_QP_RD_ATOMIC.",
        fix: "Set max_rd_atomic at RTS, and max_dest_rd_atomic at RTR of the peer to as much.",
        statuses: &["IBV_WC_LOC_QP_OP_ERR"],
    },
    Entry {
        number: 51,
        title: "more READs and atomics at once than max_dest_rd_atomic",
        means: "The requester's max_rd_atomic is above the responder's max_dest_rd_atomic.",
        see: "ibv_query_qp on both sides.",
        fix: "Exchange the two, and set max_rd_atomic to at most the peer's max_dest_rd_atomic.",
        statuses: &[INVALID],
    },
    Entry {
        number: 52,
        title: "an atomic on an address that isn't a multiple of 8",
        means: "Atomics and atomic writes touch 8 aligned bytes of the peer.",
        see: "The line has the address.",
        fix: "Align the remote variable to 8 bytes.",
        statuses: &[INVALID],
    },
    Entry {
        number: 53,
        title: "the result of an atomic has no room of 8 bytes",
        means: "The local elements of an atomic take the original value, which has 8 bytes.",
        see: "The length of sg_list.",
        fix: "Give the request one element of 8 bytes.",
        statuses: &[LENGTH],
    },
    Entry {
        number: 54,
        title: "a READ response isn't as long as what was asked for",
        means: "The two sides cut the answer into other pieces: their path MTUs differ, or the peer's stack is at fault.",
        see: "ibv_query_qp with IBV_QP_PATH_MTU on both sides.",
        fix: "Use the same path_mtu on both sides.",
        statuses: &["IBV_WC_BAD_RESP_ERR"],
    },
    Entry {
        number: 55,
        title: "the memory window wasn't bound, or the key not invalidated",
        means: "The region must be of the window's protection domain, registered with IBV_ACCESS_MW_BIND and the rights that the \
                window is to have, and contain its range. A type 2 window is bound once, until it is invalidated.",
        see: "FERROCE_LOG=debug tells which of these is missing.",
        fix: "Register the region with IBV_ACCESS_MW_BIND and invalidate a type 2 window before it is bound again.",
        statuses: &["IBV_WC_MW_BIND_ERR"],
    },
    Entry {
        number: 60,
        title: "the peer refuses the request as invalid, and says no more",
        means: "It is no Ferroce, or its reason was lost on the way. Usual: the message is longer than the receive (FC040), qp_access_flags \
                lacks the right (FC037), path MTUs differ (FC041), max_dest_rd_atomic is too small (FC051), an atomic isn't \
                aligned (FC052).",
        see: "If the peer runs Ferroce, its own line tells which.",
        fix: "Look at the peer's log, and at the status of its receive.",
        statuses: &[INVALID],
    },
    Entry {
        number: 61,
        title: "the peer refuses the access, and says no more",
        means: "It is no Ferroce, or its reason was lost on the way. Usual: a key that isn't valid there (FC030, FC031), of another protection \
                domain (FC032), without the right (FC034), or a range outside the region (FC035, FC036).",
        see: "If the peer runs Ferroce, its own line tells which.",
        fix: "Look at the peer's log; compare address, length and rkey with the region.",
        statuses: &[ACCESS],
    },
    Entry {
        number: 62,
        title: "the peer can't carry the request out, and says no more",
        means: "It is no Ferroce, or its reason was lost on the way. Usual: the memory of its receive is wrong (its lkey, range or rights), or \
                memory that was registered is gone (FC038).",
        see: "If the peer runs Ferroce, its own line tells which; so does the status of its receive.",
        fix: "Look at the peer's log, and at the lkey and addresses of its receives.",
        statuses: &[OPERATION],
    },
    Entry {
        number: 70,
        title: "a completion queue has overrun",
        means: "More completions came than the queue holds. It is unusable from then on, and so are the queue pairs whose \
                completions found no room.",
        see: "Add up the depths of all queues that complete into it.",
        fix: "Create it with cqe of at least the depths of all queues that complete into it, or poll before more is posted.",
        statuses: &[FLUSH],
    },
    Entry {
        number: 71,
        title: "the XRC request names no shared receive queue of the target's domain",
        means: "remote_srqn must be the number of a shared receive queue of the XRC domain that the target belongs to.",
        see: "ibv_get_srq_num at the peer.",
        fix: "Exchange the number of the SRQ, in host byte order, and open the same XRC domain for target and SRQ.",
        statuses: &[INVALID],
    },
    Entry {
        number: 72,
        title: "the process that has the shared receive queue refuses the request",
        means: "An XRC target gives requests to the process that has the SRQ, and that one has refused.",
        see: "The other process's line tells why.",
        fix: "Look at the line of the process that has created the SRQ.",
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
