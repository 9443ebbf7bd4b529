//! The house: all crates of the library from the ground up, each with what it is. This is the one place that says the order.
//!
//! A crate knows crates of lower storeys only, never its own storey's. Within a crate the rooms (top-level modules) have no
//! order of their own, but no circle either; rooms that are one thing told in several files are named here as that.

/// Crates that stand beside one another, and don't know one another.
pub type Storey = &'static [Crate];

/// A crate of `crates/`.
pub struct Crate {
    /// Its package's name without `ferroce-`.
    pub name: &'static str,
    /// What it is, in a sentence.
    #[allow(dead_code)] // For readers of this file.
    pub what: &'static str,
    /// Sets of its rooms that may know one another.
    pub together: &'static [Together],
}

/// Rooms that may know one another.
pub struct Together {
    /// Their names.
    pub rooms: &'static [&'static str],
    /// Why they may.
    #[allow(dead_code)] // For readers of this file.
    pub why: &'static str,
}

const fn room(name: &'static str, what: &'static str) -> Crate {
    Crate { name, what, together: &[] }
}

/// From the ground up.
pub const HOUSE: &[Storey] = &[
    &[room("wire", "The formats on the wire: headers and ICRC, parsed and emitted, and nothing else.")],
    &[room("types", "The vocabulary that crates share: numbers of queue pairs, addresses of hosts, errors.")],
    &[Crate {
        name: "proto",
        what: "The transport as state machines without I/O: requester, responder, rules, time as an argument.",
        together: &[Together {
            rooms: &[
                "answers",
                "elsewhere",
                "env",
                "execute",
                "qp",
                "requester",
                "responder",
                "sendq",
                "tags",
                "types",
            ],
            why: "They are one state machine: a queue pair, its two halves, and what it asks of the world.",
        }],
    }],
    &[room(
        "os",
        "The operating system and nearly all `unsafe`: calls, descriptors, fork, locks, the clock, copies.",
    )],
    &[
        room(
            "mem",
            "The memory that programs register: domains, keys, regions, windows, and the access to it.",
        ),
        room("engine", "Who makes progress and when: the loop, its thread, leases, timers, the run queue."),
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
        room("udp", "Packets between hosts: sockets, trains, steering, capture and faults."),
    ],
    &[Crate {
        name: "nic",
        what: "The adapter: the objects of verbs, and which fabric carries what.",
        together: &[Together {
            rooms: &["ah", "device", "engine", "owner", "qp", "share", "xrc"],
            why: "The objects of verbs and the adapter that has them: each is made of others, and found through others.",
        }],
    }],
    &[
        Crate {
            name: "capi-ibverbs",
            what: "The C interface: libibverbs.so.1.",
            together: &[Together {
                rooms: &[
                    "advise", "ah", "buf", "context", "counters", "cq", "cq_ex", "dm", "dmah", "domain",
                    "events", "flow", "memory", "mw", "poll", "post", "qp", "query", "reg_ex", "srq", "tags",
                    "wq", "wr", "xrc",
                ],
                why: "A context is the table of all functions, and the functions of each object begin with its context.",
            }],
        },
        room("preload", "What programs see of the device in /sys and /dev."),
    ],
    &[room("cli", "The ferroce command.")],
];
