//! The order of all crates of the library, from the ground up, each with a description.
//!
//! A crate uses crates of lower storeys only, never of its own. The rooms (top-level modules) of a crate have no order, but no circle
//! either; rooms that may use one another are listed here, with the reason.

/// Crates that don't use one another.
pub type Storey = &'static [Crate];

/// A crate of `crates/`.
pub struct Crate {
    /// Its package's name without `ferroce-`.
    pub name: &'static str,
    /// What it is, in a sentence.
    pub what: &'static str,
    /// Sets of its rooms that may know one another.
    pub together: &'static [Together],
}

/// Rooms that may import one another.
pub struct Together {
    /// Their names.
    pub rooms: &'static [&'static str],
    /// Why they may.
    pub why: &'static str,
}

const fn room(name: &'static str, what: &'static str) -> Crate {
    Crate { name, what, together: &[] }
}

/// From the ground up.
pub const HOUSE: &[Storey] = &[
    &[
        room(
            "types",
            "The vocabulary that crates share: time, states, completions, memory as requests name it, addresses, errors.",
        ),
        room("wire", "The formats on the wire: headers and ICRC, parsed and emitted, and nothing else."),
        room("ring", "The ring that holds the entries of queues, in memory of its own or in the program's."),
        room("capi-abi", "The C structures and numbers of rdma-core's headers, and nothing else."),
    ],
    &[
        room(
            "qp-context",
            "The QP context: what the transport keeps of a queue pair as plain data, and what it asks of its environment.",
        ),
        room("linux", "Linux: raw system calls, descriptors, threads, the clock."),
    ],
    &[
        room(
            "proto",
            "The transport as state machines without I/O: requester, responder, timers; time is an argument.",
        ),
        room("pcapng", "RoCEv2 packets in capture files: blocks, IP and UDP headers, the bytes of a packet."),
        room(
            "rsocket-protocol",
            "What goes over a connection of rsockets, without I/O: formats, credits, ends.",
        ),
        room(
            "cm",
            "The communication manager as a state machine without I/O: connections, lookups, their timers.",
        ),
        room("buffers", "Registered memory for the Rust API: regions, buffers, and the slots that own them."),
        room("explain", "Why requests fail, in words: the catalogue of reasons, and the lines made of them."),
        room(
            "watch",
            "The snapshot of a process for `ferroce ps`, `top` and `trace`, and its validation by the reader.",
        ),
        room(
            "os",
            "The operating system as the adapter needs it, with much of the `unsafe`: fork, locks, what threads have.",
        ),
    ],
    &[
        room(
            "access",
            "Memory that may be gone when it is touched: the program's, a peer's, what processes share; a fault is an error.",
        ),
        room(
            "fabric",
            "A data center in virtual time under the transport, which decides on its send window.",
        ),
    ],
    &[
        room(
            "mem",
            "The memory that programs register: domains, keys, regions, windows, and the access to it.",
        ),
        room(
            "engine",
            "Which thread makes progress and when: the loop, its thread, leases, timers, the run queue.",
        ),
        room(
            "rsocket-calls",
            "What the calls of rsockets have around them: refusals, waiting, signals, cancellation.",
        ),
        room("netdev", "The machine's network devices: interfaces, routes, the table of GIDs."),
    ],
    &[
        room(
            "queues",
            "What programs post to and poll: completion queues, receive queues, events, counters.",
        ),
        room(
            "host",
            "The processes of one host: slots, names, what they hand over and forward to one another.",
        ),
    ],
    &[
        room(
            "hostlink",
            "Two processes of one host: links in shared memory, their rings, bells and directories.",
        ),
        room(
            "import",
            "Domains and memory of one context that another may import: handles, and the ledger of them.",
        ),
        room("udp", "Packets between hosts: sockets, trains, steering, capture and faults."),
    ],
    &[
        room(
            "parts",
            "What the adapter's objects are made of: attributes, address handles, paths, QPNs, settings; data and its rules.",
        ),
        room("sim", "A simulated network of hosts and adapters in virtual time, for tests by seeds."),
    ],
    &[
        Crate {
            name: "network",
            what: "The process in the network: its addresses, the paths from them, multicast groups, QP 1.",
            together: &[Together {
                rooms: &["addresses", "gsi", "multicast", "network", "paths", "taps"],
                why: "Methods of the one struct that has the parts of the network, each beside its part.",
            }],
        },
        Crate {
            name: "xrc",
            what: "XRC between the processes of a host: domains, numbers of SRQs, messages and connections of targets.",
            together: &[Together {
                rooms: &["connections", "guest", "remote"],
                why: "The table of connections has the handles of both kinds, and a handle enters itself there.",
            }],
        },
    ],
    &[Crate {
        name: "nic",
        what: "The adapter: the objects of verbs, and which fabric carries what.",
        together: &[Together {
            rooms: &["adapter", "device", "qp", "xrc"],
            why: "The objects of verbs and the adapter that has them: each is made of others, and found through others.",
        }],
    }],
    &[
        room(
            "connect",
            "Connections between processes: ports, and the way of the communication manager's messages to whom they are for.",
        ),
        room(
            "raw",
            "Raw packet QPs: Ethernet frames through packet sockets, and the flows that choose them.",
        ),
        room(
            "capi-entry",
            "What every C function has around it: entering the library, refusals, and where they are printed.",
        ),
    ],
    &[
        room("native", "The adapter's objects as the Rust API uses them."),
        room("system", "The machine's libibverbs.so.1 as the Rust API uses it."),
        room(
            "capi-check",
            "The checker: uses of verbs that work here and fail, hang or lose data on an adapter.",
        ),
    ],
    &[room("capi-objects", "C structures, each with the adapter's object behind it.")],
    &[room("capi-work", "The C calls that post requests and poll completions, and the queues for it.")],
    &[
        room("capi-ibverbs", "The C interface: libibverbs.so.1."),
        room("ferroce", "The public Rust API: verbs without `unsafe`, and the simulation for tests."),
        room("rsocket", "rsockets, over the C interfaces of librdmacm and libibverbs."),
        room("rsocket-preload", "What lets programs of sockets use rsockets."),
        room("preload", "What programs see of the device in /sys and /dev."),
    ],
    &[room(
        "capi-rdmacm",
        "The C interface of connections: librdmacm.so.1, in the same library as that of verbs.",
    )],
    &[room(
        "doctor",
        "What would stop a verbs program here: the network, other processes, limits, the installation.",
    )],
    &[room("cli", "The ferroce command.")],
];
