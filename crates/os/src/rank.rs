//! The order in which locks are taken. Each lock has a class, and the classes are ranked: a thread that holds one takes only
//! those after it. A debug build checks that at each lock, and panics with both names; a release build has nothing of it.
//!
//! `docs/locks.md` shows the table.

/// What a lock is of.
pub trait Class: std::fmt::Debug {
    /// Its place in the order.
    const RANK: Rank;
}

macro_rules! classes {
    ($($class:ident: $place:literal, $what:literal;)*) => {
        /// The classes, in the order in which their locks are taken.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        pub enum Rank {
            $(#[doc = $what] $class,)*
        }

        /// The types that stand for the classes.
        pub mod class {
            use super::{Class, Rank};

            $(
                #[doc = $what]
                #[derive(Debug)]
                pub struct $class;

                impl Class for $class {
                    const RANK: Rank = Rank::$class;
                }
            )*
        }

        /// Name, file, and what the lock is for.
        #[cfg(test)]
        const TABLE: &[(&str, &str, &str)] = &[$((stringify!($class), $place, $what),)*];
    };
}

classes! {
    CriticalRegion: "nic/src/qp/wr_session.rs", "a critical region (`ibv_wr_start` … `ibv_wr_complete`): the program's code runs within, and only posting threads take it";
    CmDevices: "capi/rdmacm/src/devices.rs", "the devices that ids have opened, and their default domains";
    CheckedTurn: "capi/check/src/watch.rs", "the thread that polls a completion queue, for the checker";
    Checked: "capi/check/src/watch.rs", "what is outstanding on a queue pair or a shared receive queue, for the checker; held while requests are posted";
    Starting: "nic/src/opening.rs", "the making of the adapter";
    NetworkMonitor: "nic/src/adapter/network.rs", "changes of the network";
    MulticastChanging: "network/src/multicast.rs", "joining and leaving groups";
    SocketReader: "udp/src/endpoint.rs", "the reader of a RoCE socket";
    ForwardInbox: "host/src/process.rs", "packets that other processes pass on";
    MulticastReader: "udp/src/multicast.rs", "the reader of a group's socket";
    MulticastGroups: "network/src/multicast.rs", "the groups";
    MulticastMembers: "network/src/multicast.rs", "the queue pairs of a group";
    FaultsIn: "network/src/taps.rs", "packets that faults hold back as they come";
    RawPorts: "raw/src/qp/ports.rs", "the raw packet queue pairs and their sockets";
    RawQp: "raw/src/qp/mod.rs", "a raw packet queue pair's sending side";
    RawSender: "raw/src/qp/port.rs", "the sender of a packet socket";
    RawReceiver: "raw/src/qp/port.rs", "the reader of a packet socket";
    FlowRules: "raw/src/qp/port.rs", "the flows of an interface";
    CounterPoints: "raw/src/counters.rs", "what flow counters count";
    LinkRx: "hostlink/src/link/mod.rs", "the reader of a link's ring";
    GuestTarget: "xrc/src/guest.rs", "another process's handle of a target";
    RemoteTarget: "xrc/src/remote.rs", "a handle of another process's target";
    ListeningPort: "connect/src/port.rs", "whether a port is listened at";
    Joining: "host/src/process.rs", "becoming a holder or a guest of an address";
    RawBlocked: "raw/src/qp/port.rs", "raw packet queue pairs that wait for room in the socket";
    Wq: "raw/src/wq.rs", "a work queue";
    Qp: "nic/src/qp/mod.rs", "a queue pair";
    AhPath: "parts/src/ah.rs", "the paths that an address handle leads to";
    Throttle: "parts/src/ah.rs", "the static rate of an address handle";
    RunQueue: "engine/src/handoff/run_queue.rs", "jobs with more to do";
    ReceiveQueue: "nic/src/qp/mod.rs", "a receive queue";
    Deadlines: "engine/src/handoff/deadlines.rs", "timers";
    SrqNumbers: "xrc/src/srq_numbers.rs", "shared receive queues by number";
    Srq: "queues/src/recv/mod.rs", "a shared receive queue";
    QpNumbers: "parts/src/numbers.rs", "queue pairs by number";
    Listeners: "network/src/locals.rs", "how many queue pairs listen at an address";
    Pace: "parts/src/path.rs", "the pace towards a socket of a peer";
    WorkPool: "engine/src/pool.rs", "buffers of threads at work";
    Bringing: "nic/src/qp/waiting.rs", "memory that threads bring in";
    Cq: "queues/src/cq/mod.rs", "a completion queue";
    Alarms: "engine/src/alarms.rs", "objects to call at a given time";
    CmAttached: "capi/rdmacm/src/devices.rs", "the ids that are bound to a device";
    CmWaiting: "capi/rdmacm/src/later.rs", "operations of ids that complete without a descriptor";
    CmId: "capi/rdmacm/src/id.rs", "the state of a connection id, and the channel of its events";
    EventQueue: "queues/src/events.rs", "events that the program hasn't read";
    CmChannels: "capi/rdmacm/src/channel.rs", "the event channels that exist";
    FaultsOut: "network/src/taps.rs", "packets that faults hold back as they leave";
    PeerSockets: "network/src/locals.rs", "sockets of peers, which queue pairs share";
    LinksMaking: "hostlink/src/links.rs", "the making of a link";
    LinksIntroducing: "hostlink/src/links.rs", "which of two processes goes first when both make a link at the same time";
    LinkFinishing: "hostlink/src/link/mod.rs", "the end of a link";
    ImportedPds: "import/src/exporter.rs", "protection domains of an exporter";
    Leader: "host/src/process.rs", "the leader's socket";
    Attendance: "host/src/attendance.rs", "sockets that are read for other users";
    SocketGroups: "host/src/process.rs", "the groups of sockets by address";
    Registry: "nic/src/adapter/registry.rs", "all objects of the process";
    Port: "nic/src/device/mod.rs", "a context's GID table and port";
    GuestsTimer: "host/src/process.rs", "the timer of guest processes";
    LinkTx: "hostlink/src/link/mod.rs", "the writer of a link's ring";
    LinkUnacked: "hostlink/src/link/mod.rs", "messages whose results are awaited";
    LinkBlocked: "hostlink/src/link/mod.rs", "queue pairs that wait for room in a ring";
    WindowGate: "mem/src/mw.rs", "what a window is bound to";
    Keys: "mem/src/keys.rs", "regions and windows by key";
    RegionGate: "mem/src/mr/mod.rs", "what a region is registered as";
    LinkAccess: "hostlink/src/link/mod.rs", "access to a peer's memory";
    Handles: "import/src/handles.rs", "a context's objects by handle";
    Ledger: "import/src/handles.rs", "what other processes may import";
    CommandFd: "import/src/handles.rs", "the descriptor of the ledger";
    Ends: "xrc/src/connections.rs", "connections of XRC with other processes";
    Jobs: "xrc/src/connections.rs", "changes of target queue pairs that wait";
    LinksRefused: "hostlink/src/links.rs", "processes that share no memory just now";
    LinkConfirmed: "hostlink/src/link/mod.rs", "slots that are known to be the peer's";
    Locals: "network/src/locals.rs", "the addresses in use";
    Arrivals: "network/src/locals.rs", "addresses that a device has got since it was opened";
    LeftOut: "network/src/locals.rs", "addresses of devices whose UDP port belongs to another program";
    Services: "host/src/services.rs", "the functions that answer requests of other processes";
    SpareDescriptor: "host/src/services.rs", "a descriptor that is given up when there is no other left";
    SilentClients: "host/src/services.rs", "connections of other processes that have asked for nothing yet";
    HostSlots: "host/src/process.rs", "the slots of this process";
    HostPorts: "host/src/port_table.rs", "the ports of this process";
    PortClients: "host/src/port_table.rs", "connections to ports over which nothing has come yet";
    Guests: "host/src/process.rs", "addresses whose port another user has";
    LinksEnded: "hostlink/src/links.rs", "links that have ended while the peer was in the middle of an access";
    LinkList: "hostlink/src/links.rs", "the links";
    InFlight: "mem/src/in_flight.rs", "what is in the memory that requests under way name, for the checker; held while a packet is copied there";
    NotedRanges: "access/src/late.rs", "ranges of registered memory that can come late";
    CopyPair: "access/src/copy.rs", "the pair of sockets of copies that the kernel refuses otherwise";
    Lifelines: "network/src/gsi/state.rs", "connections that end with another process";
    AtPorts: "network/src/gsi/state.rs", "connections over which requests went that may be unread";
    GsiPassOn: "network/src/gsi/pass_on.rs", "MADs for other processes that have too much to read";
    GsiInbox: "network/src/gsi/state.rs", "MADs that wait for the communication manager";
    ConnectManager: "connect/src/manager.rs", "the communication manager of this process";
    Connections: "connect/src/state.rs", "connections, ports and their events";
    PastCounters: "parts/src/counted.rs", "counters of destroyed queue pairs, and the last values of the others";
    Tracer: "parts/src/traced.rs", "the processes that trace this one, and the recorded messages";
    KnownDevices: "capi/ibverbs/src/device.rs", "the devices that were returned to programs";
    DeviceView: "capi/ibverbs/src/device.rs", "a device as it was when it was last listed";
    HeardOfPackets: "udp/src/endpoint.rs", "ICMP errors for packets that were sent";
    CmUnacked: "capi/rdmacm/src/unacked.rs", "which events of an id the program has";
    CheckedQps: "capi/check/src/watch.rs", "queue pairs that the checker watches, by number, and the shared receive queues of a completion queue";
    CheckedObjects: "capi/check/src/objects.rs", "what exists and where it was made, for the checker";
    SpokenCalls: "capi/entry/src/log.rs", "when a call's refusal was last printed";
}

#[cfg(debug_assertions)]
mod checked {
    use super::{Class, Rank};
    use std::cell::RefCell;

    thread_local! {
        static HELD: RefCell<Vec<Rank>> = const { RefCell::new(Vec::new()) };
    }

    /// May this thread take a lock of class `C`?
    ///
    /// # Panics
    /// It holds one of this class or of a later one.
    #[track_caller]
    pub(crate) fn check<C: Class>() {
        // The program enters critical regions in the order that it likes.
        let wrong = |&held: &Rank| held >= C::RANK && held != Rank::CriticalRegion;
        // A thread that ends has no list any more.
        let held =
            HELD.try_with(|held| held.borrow().iter().copied().find(|held| wrong(held))).ok().flatten();
        if let Some(held) = held {
            panic!("lock order: {:?} is taken while {held:?} is held", C::RANK);
        }
    }

    /// This thread has got one.
    pub(crate) fn held<C: Class>() {
        let _ = HELD.try_with(|held| held.borrow_mut().push(C::RANK));
    }

    /// It has freed one.
    pub(crate) fn freed<C: Class>() {
        let _ = HELD.try_with(|held| {
            let mut held = held.borrow_mut();
            if let Some(at) = held.iter().rposition(|&rank| rank == C::RANK) {
                held.remove(at);
            }
        });
    }

    /// This thread is about to sleep for long, or to run code of the program.
    ///
    /// # Panics
    /// It holds a lock of the adapter.
    #[track_caller]
    pub(crate) fn check_none_held() {
        let held =
            HELD.try_with(|held| held.borrow().iter().copied().find(|&rank| rank != Rank::CriticalRegion));
        if let Ok(Some(held)) = held {
            panic!("{held:?} is held over a long sleep or code of the program");
        }
    }
}

#[cfg(not(debug_assertions))]
mod checked {
    use super::Class;

    #[inline(always)]
    pub(crate) fn check<C: Class>() {}

    #[inline(always)]
    pub(crate) fn held<C: Class>() {}

    #[inline(always)]
    pub(crate) fn freed<C: Class>() {}

    #[inline(always)]
    pub(crate) fn check_none_held() {}
}

pub(crate) use checked::{check, check_none_held, freed, held};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::Mutex;
    use std::path::Path;

    #[test]
    #[cfg(debug_assertions)]
    fn a_lock_against_the_order_panics_with_both_names() {
        let (first, second) = (Mutex::<class::Qp, _>::new(()), Mutex::<class::Cq, _>::new(()));
        let taken = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _second = second.lock();
            let _first = first.lock();
        }));
        let why = taken.expect_err("the wrong order");
        let why = why.downcast_ref::<String>().expect("a message");
        assert_eq!(why, "lock order: Qp is taken while Cq is held");
        // The panic has freed both, and in the right order they go together.
        let _first = first.lock();
        let _second = second.lock();
    }

    #[test]
    fn the_page_shows_the_table() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let page = std::fs::read_to_string(root.join("docs/locks.md")).expect("the page");
        let rows: Vec<String> =
            TABLE.iter().map(|(class, place, what)| format!("| {class} | `{place}` | {what} |")).collect();
        let shown: Vec<&str> = page.lines().filter(|line| line.starts_with("| ")).skip(1).collect();
        assert_eq!(shown, rows);
        for (class, place, _) in TABLE {
            let source =
                std::fs::read_to_string(root.join("crates").join(place)).expect("a file of the table");
            assert!(source.contains(&format!("<class::{class}")), "{place} has no lock of class {class}");
        }
    }

    fn sources(directory: &Path, found: &mut Vec<std::path::PathBuf>) {
        for entry in std::fs::read_dir(directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                sources(&path, found);
            } else if path.extension().is_some_and(|end| end == "rs") {
                found.push(path);
            }
        }
    }

    /// `preload` isn't part of the adapter: it is loaded into programs without the library.
    #[test]
    fn no_lock_of_the_adapter_is_without_a_class() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut found = Vec::new();
        for name in [
            "mem",
            "queues",
            "engine",
            "netdev",
            "host",
            "hostlink",
            "udp",
            "parts",
            "nic",
            "capi/entry",
            "capi/check",
            "capi/ibverbs",
            "capi/objects",
            "capi/work",
        ] {
            sources(&crates.join(name).join("src"), &mut found);
        }
        // One file is built for tests alone.
        for path in found.into_iter().filter(|path| !path.ends_with("mem/src/double.rs")) {
            let text = std::fs::read_to_string(&path).expect("a source");
            let product = text.split("#[cfg(test)]").next().unwrap_or_default();
            let of_std = |line: &&str| {
                line.contains("std::sync::") && ["Mutex", "RwLock"].iter().any(|lock| line.contains(lock))
            };
            assert_eq!(product.lines().find(of_std), None, "{}: use ferroce_os::sync", path.display());
        }
    }
}
