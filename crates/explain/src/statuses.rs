//! The meaning of completion statuses and errno values, in a sentence or two.

use ferroce_types::WcStatus;

/// A word of the C interface.
#[derive(Clone, Copy, Debug)]
pub struct Word {
    /// Its name.
    pub name: &'static str,
    /// Its value.
    pub value: i32,
    /// How programs print it (ibv_wc_status_str, strerror), or nothing.
    pub text: &'static str,
    /// What it means.
    pub means: &'static str,
}

pub(crate) const fn word(name: &'static str, value: i32, text: &'static str, means: &'static str) -> Word {
    Word { name, value, text, means }
}

/// `enum ibv_wc_status`, as far as the adapter reports it.
pub const STATUSES: &[Word] = &[
    word("IBV_WC_SUCCESS", 0, "success", "The request has been carried out."),
    word(
        "IBV_WC_LOC_LEN_ERR",
        1,
        "local length error",
        "A length is wrong on this side. Receive: the message didn't fit into it. Send request: its buffer is too short for the result.",
    ),
    word(
        "IBV_WC_LOC_QP_OP_ERR",
        2,
        "local QP operation error",
        "The queue pair isn't set up for the request.",
    ),
    word(
        "IBV_WC_LOC_PROT_ERR",
        4,
        "local protection error",
        "An element of this side's request (addr, length, lkey) isn't valid memory of the queue pair's protection domain.",
    ),
    word(
        "IBV_WC_WR_FLUSH_ERR",
        5,
        "Work Request Flushed Error",
        "The request wasn't carried out, because the queue pair is in ERR: an earlier request failed, the peer's request was \
         refused, or the program has taken it there. The first completion with another status is the one to look at.",
    ),
    word(
        "IBV_WC_MW_BIND_ERR",
        6,
        "memory management operation error",
        "A memory window couldn't be bound, or a key couldn't be invalidated.",
    ),
    word("IBV_WC_BAD_RESP_ERR", 7, "bad response error", "The peer's response is invalid."),
    word(
        "IBV_WC_LOC_ACCESS_ERR",
        8,
        "local access error",
        "Receive: the RDMA WRITE with immediate that would use it isn't permitted to write to its destination.",
    ),
    word(
        "IBV_WC_REM_INV_REQ_ERR",
        9,
        "remote invalid request error",
        "The peer refuses the request as invalid.",
    ),
    word(
        "IBV_WC_REM_ACCESS_ERR",
        10,
        "remote access error",
        "The peer refuses access to its memory: key, domain, rights or range are wrong.",
    ),
    word(
        "IBV_WC_REM_OP_ERR",
        11,
        "remote operation error",
        "The peer couldn't carry out the request, because of its own memory.",
    ),
    word(
        "IBV_WC_RETRY_EXC_ERR",
        12,
        "transport retry counter exceeded",
        "No answer came in timeout × (retry_cnt + 1): the peer is unreachable or drops the packets.",
    ),
    word(
        "IBV_WC_RNR_RETRY_EXC_ERR",
        13,
        "RNR retry counter exceeded",
        "The peer had no receive posted, rnr_retry + 1 times, at intervals of the peer's min_rnr_timer.",
    ),
    word("IBV_WC_FATAL_ERR", 19, "fatal error", "The device has failed."),
    word("IBV_WC_GENERAL_ERR", 21, "general error", "Another error."),
    word("IBV_WC_TM_ERR", 22, "TM error", "A tag operation has failed."),
    word(
        "IBV_WC_TM_RNDV_INCOMPLETE",
        23,
        "TM software rendezvous",
        "The data of a rendezvous couldn't be fetched.",
    ),
];

/// The name of a status of failed requests.
pub(crate) fn status_name(status: WcStatus) -> &'static str {
    STATUSES.iter().find(|word| word.value == status as i32).map_or("an error", |word| word.name)
}

/// Values of errno that verbs return.
pub const ERRNOS: &[Word] = &[
    word(
        "EPERM",
        1,
        "Operation not permitted",
        "The operation isn't permitted: the process lacks a right, or the objects belong to different contexts or domains.",
    ),
    word(
        "ENOENT",
        2,
        "No such file or directory",
        "Nothing was found. ibv_start_poll and ibv_next_poll: no completion.",
    ),
    word(
        "EIO",
        5,
        "Input/output error",
        "The device has failed, or the process is a fork's child: open the device again.",
    ),
    word(
        "EAGAIN",
        11,
        "Resource temporarily unavailable",
        "Try again later. Event queues in non-blocking mode: there is no event.",
    ),
    word(
        "ENOMEM",
        12,
        "Cannot allocate memory",
        "A queue is full, or a limit of the device is reached: poll completions before posting more.",
    ),
    word(
        "EFAULT",
        14,
        "Bad address",
        "The memory isn't mapped, or not writable: check address, length and access flags of ibv_reg_mr.",
    ),
    word(
        "EBUSY",
        16,
        "Device or resource busy",
        "The object is in use: destroy the objects that use it first, and acknowledge its events.",
    ),
    word("ENODEV", 19, "No such device", "The device doesn't exist: `ferroce devices` lists the devices."),
    word(
        "EINVAL",
        22,
        "Invalid argument",
        "An argument is wrong. Under `ferroce run` a line on standard error names it, and the fix.",
    ),
    word(
        "ENOSPC",
        28,
        "No space left on device",
        "A table is full: of devices, no name is free by which Ferroce processes find each other; `unshare`: \
         user.max_user_namespaces is 0 or reached.",
    ),
    word("ENODATA", 61, "No data available", "The entry is empty. GID tables: an index without an address."),
    word(
        "EOPNOTSUPP",
        95,
        "Operation not supported",
        "The device doesn't support this: check with ibv_query_device_ex before.",
    ),
    word(
        "EADDRINUSE",
        98,
        "Address already in use",
        "Another process has the port: `ferroce doctor` names the one that has UDP port 4791, `ferroce ps` the listeners.",
    ),
    word(
        "EADDRNOTAVAIL",
        99,
        "Cannot assign requested address",
        "The address isn't one of this host's devices: `ferroce devices` shows these.",
    ),
    word(
        "ENETUNREACH",
        101,
        "Network is unreachable",
        "No route leads to the address: `ferroce doctor PEER` looks at it.",
    ),
    word(
        "ECONNRESET",
        104,
        "Connection reset by peer",
        "The peer's process has ended, or has closed the connection early.",
    ),
    word(
        "ETIMEDOUT",
        110,
        "Connection timed out",
        "No answer came in time. Of rdma_resolve_addr: no neighbour answers for the address. Of rdma_connect: no process uses \
         Ferroce at that host, or packets to UDP port 4791 are dropped on the way. `ferroce doctor PEER` looks at it.",
    ),
    word(
        "ECONNREFUSED",
        111,
        "Connection refused",
        "No process listens at that address and port. Listen there before the client connects.",
    ),
    word(
        "EHOSTUNREACH",
        113,
        "No route to host",
        "No route leads to the address, or no neighbour answers for it: `ferroce doctor PEER` looks at it.",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_of_the_catalogue_is_here() {
        for name in crate::CATALOGUE.iter().flat_map(|entry| entry.statuses) {
            assert!(STATUSES.iter().any(|word| word.name == *name), "{name}");
        }
    }
}
